"""Records: what each worker wrote becomes one Measurement; files are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.measure.fingerprint import joined
from forerun.measure.intervals import StepTimes, step_times
from forerun.measure.measurement import Measurement
from forerun.measure.traffic import gradient_noise
from forerun.tables.files import write_whole

Record = dict[str, Any]
_APART = 0.1  # of the median: a mean further from it is told, since steps then come in kinds


def record_path(folder: Path, rank: int) -> Path:
    """Return where a worker's record lies."""
    return folder / f"rank-{rank}.json"


def progress_path(folder: Path, rank: int) -> Path:
    """Return where a worker's progress lies."""
    return folder / f"progress-{rank}"


def write_record(folder: Path, record: Record) -> None:
    """Write a worker's record. Raises RequestError where the disk is full."""
    text = json.dumps(record)
    write_whole(record_path(folder, record["rank"]), lambda name: write_synced(name, text))


def write_synced(name: str, text: str) -> None:
    """Write a text to a file; once this returns, the disk has it."""
    with Path(name).open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def read_records(folder: Path) -> list[Record]:
    """Return the records in a folder by rank; those that are not there yet are missing."""
    found = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda record: int(record["rank"]))


def merged(
    records: Sequence[Record], global_batch: float = 0.0, seconds: float = 0.0
) -> Measurement:
    """Return the measurement of workers that all ended well.

    Args:
        records: one a worker.
        global_batch: samples in a step of all workers, 0 where not known.
        seconds: of the whole run.
    """
    warm = max(int(record["warmup_steps"]) for record in records)
    times = _slowest(records, warm)
    batch = global_batch or float(records[0].get("samples") or 0)
    return Measurement(
        "ok", _reason(records, times),
        **_step_fields(times),
        warmup_steps=warm,
        parts=_part_means(records),
        samples_per_second=batch / times.mean if times is not None and batch else None,
        epoch_seconds=_epoch(records),
        peak_bytes=_largest(records, "peak_bytes"),
        sync_bytes=_largest(records, "sync_bytes"),
        comm_seconds=_mean(records, "comm_seconds"),
        **_noise(records, batch),
        cpu_share=_mean(records, "cpu_share"),
        gpu_share=_mean(records, "gpu_share"),
        network_bytes_per_second=_largest(records, "network_bytes_per_second"),
        fingerprint=joined([record["fingerprint"] for record in records]),
        started=min(record["started"] for record in records),
        seconds=seconds,
    )  # fmt: skip


def _slowest(records: Sequence[Record], warm: int) -> StepTimes | None:
    """Return the step times of the worker whose median is the largest, after as many warm-up steps in all."""
    after = [r["seconds"][warm - int(r["warmup_steps"]) :] for r in records]
    known = [times for seconds in after if (times := step_times(seconds)) is not None]
    return max(known, key=lambda times: times.median, default=None)


def _step_fields(times: StepTimes | None) -> dict[str, Any]:
    if times is None:
        return {}
    interval = None if times.low is None or times.high is None else (times.low, times.high)
    return {
        "step_seconds": times.median, "step_mean_seconds": times.mean,
        "step_std_seconds": times.std, "interval": interval, "steps": times.count,
    }  # fmt: skip


def _reason(records: Sequence[Record], times: StepTimes | None) -> str:
    notes = list(dict.fromkeys(note for record in records for note in record["notes"]))
    if times is not None and abs(times.mean - times.median) > _APART * times.median:
        notes.append(f"steps vary: mean {times.mean:.4g} s, median {times.median:.4g} s")
    return "; ".join(notes)


def _part_means(records: Sequence[Record]) -> dict[str, float]:
    """Return the parts that every worker could tell, as means over workers."""
    shared = set.intersection(*(set(record["parts"]) for record in records))
    return {
        name: sum(record["parts"][name] for record in records) / len(records)
        for name in records[0]["parts"] if name in shared
    }  # fmt: skip


def _epoch(records: Sequence[Record]) -> float | None:
    """Return the median epoch of the slowest worker."""
    medians = [times.median for r in records if (times := step_times(r["epochs"])) is not None]
    return max(medians, default=None)


def _values(records: Sequence[Record], name: str) -> list[float]:
    return [float(record[name]) for record in records if record.get(name) is not None]


def _largest(records: Sequence[Record], name: str) -> float | None:
    return max(_values(records, name), default=None)


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = _values(records, name)
    return sum(values) / len(values) if values else None


def _noise(records: Sequence[Record], batch: float) -> dict[str, Any]:
    """Return the gradient's squared norm and variance; nothing of data that was made up."""
    local, mean = _mean(records, "local_sqr"), _mean(records, "mean_sqr")
    if local is None or mean is None or not batch or any(r["made_up"] for r in records):
        return {}
    noise = gradient_noise(local, mean, int(records[0]["workers"]), batch)
    return {} if noise is None else {"grad_sqr": noise[0], "grad_var": noise[1]}
