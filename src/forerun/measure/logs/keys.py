"""Keys: what loggers call their numbers, as columns of a series in the series' units."""

from __future__ import annotations

import re
from functools import lru_cache

# A column's spellings, without their unit, prefix and punctuation.
_NAMES = {
    "step": "step global_step iteration iter trainer/global_step num_updates update batch_step it",
    "epoch": "epoch epochs_done current_epoch",
    "time_s": "time timestamp wall_time walltime ts datetime date created_at",
    "elapsed_s": "runtime elapsed elapsed_time time_elapsed relative_time",
    "step_time_s": "step_time time_per_step time_per_iteration elapsed_time_per_iteration"
    " iteration_time iter_time batch_time seconds_per_step dt step_duration time_per_batch"
    " train_step_time end_to_end time_metrics/end_to_end step",
    "data_time_s": "data_time input_time data_loading time_metrics/data_loading input_wait",
    "sync_time_s": "sync_time comm_time exposed_comm_time",
    "samples": "samples consumed_samples samples_seen num_samples examples_seen",
    "tokens": "tokens consumed_tokens tokens_seen num_tokens num_input_tokens_seen n_tokens",
    "samples_per_s": "samples images imgs img examples throughput_samples train_samples",
    "tokens_per_s": "tokens token words throughput_tokens train_tokens",
    "steps_per_s": "steps it iters iterations batches train_steps",
    "global_batch": "global_batch global_batch_size total_batch_size batch_size_global"
    " effective_batch_size total_train_batch_size",
    "memory_gb": "memory max_memory peak_memory memory_allocated max_mem max_memory_allocated"
    " memory/max_reserved memory/max_active cuda_max_memory_reserved max_memory_reserved peak",
    "loss": "loss train_loss training_loss lm_loss lm loss/train train/loss_step loss_step"
    " batch_loss epoch_loss loss_metrics/global_avg_loss train_inner/loss total_loss",
    "eval_seconds": "eval_runtime eval_time",
    "total_steps": "total total_steps max_steps num_training_steps train_iters",
    "total_epochs": "epochs total_epochs num_epochs max_epochs num_train_epochs",
    "steps_per_epoch": "per_epoch steps_per_epoch iters_per_epoch",
    "in_epoch": "in_epoch",
    "devices": "devices world_size num_gpus num_devices",
}  # fmt: skip
_RATES = ("samples_per_s", "tokens_per_s", "steps_per_s")
_TIMES = ("step_time_s", "data_time_s", "sync_time_s", "eval_seconds", "elapsed_s")
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0,
    "seconds": 1.0, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0,
    "millis": 1e-3, "milliseconds": 1e-3,
}  # fmt: skip
_GIGABYTES = {
    "bytes": 1e-9, "b": 1e-9, "kb": 1e-6, "kib": 1024e-9, "mb": 1e-3, "m": 1024**2 / 1e9,
    "mib": 1024**2 / 1e9, "gb": 1.0, "gib": 1024**3 / 1e9, "g": 1024**3 / 1e9,
}  # fmt: skip
_PLAIN = {spelling: name for name, text in _NAMES.items() for spelling in text.split()
          if name not in (*_RATES, *_TIMES, "memory_gb")}  # fmt: skip
_RATED = {spelling: name for name in _RATES for spelling in _NAMES[name].split()}
_TIMED = {spelling: name for name in _TIMES for spelling in _NAMES[name].split()}
_MEMORY = set(_NAMES["memory_gb"].split())
_PER_DEVICE = re.compile(r"[_/]per[_/](?:device|gpu)$")


@lru_cache(maxsize=4096)
def column_of(key: str) -> tuple[str, float] | None:
    """Return the column that a logger's key means, and the factor to its unit; None where unknown.

    The unit is read from the key's end: `step_time_ms`, `end_to_end(s)`, `max_mem_mib`. A time or
    a memory whose key has no unit is taken in seconds or in bytes only where that is the custom
    (`_runtime`, `batch_time`); plain `memory` has none.
    """
    plain = _plain(key)
    if plain in _PLAIN:
        return _PLAIN[plain], 1.0
    rate = _rate(plain)
    if rate is not None:
        return rate, 1.0
    stem, unit = _split_unit(plain, _SECONDS)
    if stem in _TIMED and stem != "step":
        return _TIMED[stem], _SECONDS.get(unit, 1.0)
    if stem == "step" and unit:
        return "step_time_s", _SECONDS[unit]
    if stem in ("time", "timestamp") and unit:
        return "time_s", _SECONDS[unit]
    stem, unit = _split_unit(plain, _GIGABYTES)
    if stem in _MEMORY and unit:
        return "memory_gb", _GIGABYTES[unit]
    return None


def _plain(key: str) -> str:
    """Return a key in lower case, its prefixes of the training phase and its marks left out."""
    plain = key.strip().lower().lstrip("_").replace("-", "_").replace(" ", "_")
    plain = re.sub(r"\((\w+)\)$", r"_\1", plain)
    return re.sub(r"^(?:train|training|perf|performance|throughput|timers?)[/.]", "", plain)


def _rate(plain: str) -> str | None:
    """Return the rate that a key means: samples, tokens or steps in a second."""
    per_device = _PER_DEVICE.search(plain)
    stem = _PER_DEVICE.sub("", plain)
    if stem == "throughput_tps":  # torchtitan's, which is of one device
        return "tokens_per_s_per_device"
    match = re.search(r"_?(?:per_(?:second|sec|s)|/s(?:ec(?:ond)?)?)$", stem)
    if match is None:
        return None
    name = _RATED.get(stem[: match.start()])
    if name is None:
        return None
    return f"{name}_per_device" if per_device else name


def _split_unit(plain: str, units: dict[str, float]) -> tuple[str, str]:
    """Return a key without its unit, and the unit ("" where it has none)."""
    stem, _, unit = plain.rpartition("_")
    return (stem, unit) if stem and unit in units else (plain, "")


def seconds_in(unit: str) -> float:
    """Return the seconds in a unit of time as loggers write it; raises KeyError."""
    return _SECONDS[unit.lower()]


def gigabytes_in(unit: str) -> float:
    """Return the 1e9 bytes in a unit of memory as loggers write it; raises KeyError."""
    return _GIGABYTES[unit.lower()]
