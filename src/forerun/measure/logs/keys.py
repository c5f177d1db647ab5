"""Keys: what loggers call their numbers, as columns of a series in the series' units."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

_RATES = ("samples_per_s", "tokens_per_s", "steps_per_s")
_TIMES = ("step_time_s", "data_time_s", "sync_time_s", "eval_seconds", "elapsed_s")
SECONDS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0,
    "seconds": 1.0, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0,
    "millis": 1e-3, "milliseconds": 1e-3,
}  # fmt: skip
GIGABYTES = {
    "bytes": 1e-9, "b": 1e-9, "kb": 1e-6, "kib": 1024e-9, "mb": 1e-3, "m": 1024**2 / 1e9,
    "mib": 1024**2 / 1e9, "gb": 1.0, "gib": 1024**3 / 1e9, "g": 1024**3 / 1e9,
}  # fmt: skip
_PER_SECOND = re.compile(r"_?(?:per_(?:second|sec|s)|/s(?:ec(?:ond)?)?)$")
_PER_DEVICE = re.compile(r"[_/]per[_/](?:device|gpu)$")
_PHASE = re.compile(r"^(?:train|training|perf|performance|throughput|timers?)[/.]")


@cache
def vocabulary() -> dict[str, Any]:
    """Return the tables of patterns.yaml."""
    import yaml

    text = Path(__file__).with_name("patterns.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@cache
def _spellings(kind: str) -> dict[str, str]:
    """Return columns by spelling: of rates, of times, of memory, or of plain numbers."""
    kinds = dict.fromkeys(_RATES, "rate") | dict.fromkeys(_TIMES, "time") | {"memory_gb": "memory"}
    keys: dict[str, str] = vocabulary()["keys"]
    return {
        spelling: column
        for column, text in keys.items()
        if kinds.get(column, "plain") == kind
        for spelling in text.split()
    }


@lru_cache(maxsize=4096)
def column_of(key: str) -> tuple[str, float] | None:
    """Return the column that a logger's key means, and the factor to its unit; None where unknown.

    The unit is read from the key's end: `step_time_ms`, `end_to_end(s)`, `max_mem_mib`. A time
    without a unit is in seconds only where that is the custom (`_runtime`, `batch_time`); plain
    `memory` has none.
    """
    plain = key.strip().lower().lstrip("_").replace("-", "_").replace(" ", "_")
    plain = _PHASE.sub("", re.sub(r"\((\w+)\)$", r"_\1", plain))
    if plain in _spellings("plain"):
        return _spellings("plain")[plain], 1.0
    rate = _PER_DEVICE.sub("", plain)
    per_device = "_per_device" if rate != plain else ""
    if rate == "throughput_tps":  # torchtitan's, which is of one device
        return "tokens_per_s_per_device", 1.0
    stem = _PER_SECOND.sub("", rate)
    if stem != rate:
        column = _spellings("rate").get(stem)
        return None if column is None else (column + per_device, 1.0)
    stem, _, unit = plain.rpartition("_")
    if unit in SECONDS and stem in ("time", "timestamp"):
        return "time_s", SECONDS[unit]
    if unit in SECONDS and stem in _spellings("time"):
        return _spellings("time")[stem], SECONDS[unit]
    if unit in GIGABYTES and stem in _spellings("memory"):
        return "memory_gb", GIGABYTES[unit]
    # A plain `step` counts steps, and was found above.
    return (_spellings("time")[plain], 1.0) if plain in _spellings("time") else None


def put(row: dict[str, float], key: str, value: float) -> None:
    """Add a logged number to a row under its column, in its unit; the first one counts."""
    column, factor = column_of(key) or (key, 1.0)
    if column == "steps_per_s":
        column, value = "step_time_s", 1 / value if value > 0 else float("nan")
    row.setdefault(column, value * factor)
