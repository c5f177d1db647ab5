"""Measurement: the figures of one run and how it ended, joined from the records of its workers."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from forerun.domain.job import STATUSES, Job, Run
from forerun.errors import RequestError
from forerun.measure.noise import gradient_noise
from forerun.measure.step_times import step_times
from forerun.tables import RUN_COLUMNS
from forerun.tables.files import write_whole
from forerun.units import GIGA
from forerun.wire import read

PARTS = ("input", "forward", "backward", "sync", "optimizer")
Record = dict[str, Any]  # what one worker writes

# Fields and their columns of the runs table, in the same unit but for those in GB (1e9 bytes).
_COLUMNS: Mapping[str, str] = {
    "step_seconds": "step_time_s", "step_mean_seconds": "step_mean_s",
    "step_std_seconds": "step_std_s", "steps": "measured_steps", "warmup_steps": "warmup_steps",
    "samples_per_second": "samples_per_s", "epoch_seconds": "epoch_time_s",
    "peak_bytes": "memory_gb", "sync_bytes": "comm_gb", "comm_seconds": "comm_time_s",
    "staleness": "staleness", "staleness_std": "staleness_std",
    "grad_sqr": "grad_sqr", "grad_var": "grad_var", "cpu_share": "cpu_share",
    "gpu_share": "gpu_share", "network_bytes_per_second": "network_bytes_per_s",
    "seconds": "run_time_s",
}  # fmt: skip
_HANGS = "no step for "  # how the reason begins of a run that was ended since no step came
# Unbiased estimates may be below zero, and updates in step have a staleness of none.
_SIGNED = ("grad_sqr", "grad_var", "staleness", "staleness_std")
_MEANS = ("comm_seconds", "cpu_share", "gpu_share", "staleness", "staleness_std")
_SKEW = 0.1  # of the median: a mean further from it is noted
_PACKAGES = ("forerun", "torch", "ray", "transformers", "lightning", "numpy")


@dataclass(frozen=True)
class Measurement:
    """The figures of a run, without its job. What was not measured is None.

    Attributes:
        status: ok, oom, failed, or timeout (then times are lower bounds).
        reason: why it is not ok, or what to know of a run that is.
        step_seconds: median optimizer step of the slowest worker, without `warmup_steps`; `interval`
            is the median's 95 % interval. Where workers update asynchronously, by any of them.
        warmup_steps: as many as were requested, and those after that were slower than what followed.
        parts: mean seconds of a step by part, over steps and workers; sync is exposed communication.
            A part that cannot be separated is missing.
        samples_per_second: of all workers. epoch_seconds: the loader's start included.
        peak_bytes: of the most-loaded device; on CPUs resident memory beyond the loaded libraries.
        sync_bytes: what a worker hands to collectives in a step.
        staleness: updates of others between a worker's pull of weights and its update of them, mean and
            standard deviation; None where workers reduce among themselves.
        comm_seconds: time of a step in which a collective was under way, hidden or not.
        grad_sqr, grad_var: see `noise.gradient_noise` and `gradients.Gradients`; None on made-up data and on
            one worker whose step is one pass, unless norms are asked for.
        cpu_share: cores that a worker kept busy; `gpu_share`: time in which its GPU was busy.
        network_bytes_per_second: sent by the busiest host. seconds: whole run, start of processes too.
    """

    status: str = "ok"
    reason: str = ""
    step_seconds: float | None = None
    step_mean_seconds: float | None = None
    step_std_seconds: float | None = None
    interval: tuple[float, float] | None = None
    steps: int = 0
    warmup_steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    epoch_seconds: float | None = None
    peak_bytes: float | None = None
    sync_bytes: float | None = None
    comm_seconds: float | None = None
    staleness: float | None = None
    staleness_std: float | None = None
    grad_sqr: float | None = None
    grad_var: float | None = None
    cpu_share: float | None = None
    gpu_share: float | None = None
    network_bytes_per_second: float | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for what, given, known in (
            ("status", {self.status}, STATUSES),
            ("parts", set(self.parts), PARTS),
        ):
            if unknown := sorted(given - set(known)):
                asked = f"a measurement with {what} {', '.join(unknown)}"
                raise RequestError(asked, f"no such {what}", f"use one of {', '.join(known)}")

    @property
    def hangs(self) -> bool:
        """Whether the run was ended because no step came within its limit."""
        return self.status == "failed" and self.reason.startswith(_HANGS)

    def row(self) -> dict[str, Any]:
        """Return its columns of the runs table, without those that were not measured."""
        cells: dict[str, Any] = {"status": self.status}
        for name, column in _COLUMNS.items():
            value = getattr(self, name)
            if value is not None and math.isfinite(value) and (value > 0 or name in _SIGNED):
                cells[column] = value / (GIGA if column.endswith("_gb") else 1.0)
        cells |= {f"{part}_time_s": seconds for part, seconds in self.parts.items()}
        if self.interval is not None:
            cells["step_low_s"], cells["step_high_s"] = self.interval
        prints = json.dumps(self.fingerprint, sort_keys=True) if self.fingerprint else ""
        texts = {"note": self.reason, "started": self.started, "fingerprint": prints}
        return {**cells, "repeats": 1, **{name: text for name, text in texts.items() if text}}

    def run(self, job: Job, origin: str) -> Run:
        """Return the run of a job that this measured."""
        cells = self.row()
        known = {
            field: cells[name] * unit
            for field, (name, unit) in RUN_COLUMNS.items() if cells.get(name, 0.0) > 0
        }  # fmt: skip
        origin = f"{origin}: {self.reason}" if self.reason else origin
        return Run(job, self.status, **known, origin=origin)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; what is not a finite number is None."""
        cells = asdict(self).items()
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in cells}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Measurement:
        """Return the measurement of `to_json`; names that it does not know are ignored."""
        known = {f.name: data[f.name] for f in fields(Measurement) if f.name in data}
        found: Measurement = read(Measurement, known)
        return found


def record_path(folder: Path, rank: int) -> Path:
    """Return the file of a worker's record."""
    return folder / f"rank-{rank}.json"


def progress_path(folder: Path, rank: int) -> Path:
    """Return the file of a worker's progress."""
    return folder / f"progress-{rank}"


def write_json(path: Path, data: Mapping[str, Any], indent: int | None = None) -> None:
    """Write JSON, whole or not at all; once this returns, the disk has it. Raises RequestError."""

    def write(name: str) -> None:
        with Path(name).open("w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=indent)
            stream.flush()
            os.fsync(stream.fileno())

    write_whole(path, write)


def read_records(folder: Path) -> list[Record]:
    """Return the records in a folder by rank; those that are not there yet are missing."""
    found = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda record: int(record["rank"]))


def merged(
    records: Sequence[Record], global_batch: float = 0.0, seconds: float = 0.0
) -> Measurement:
    """Return the measurement of workers that all ended well; a `global_batch` of 0 is not known."""

    def values(name: str) -> list[float]:
        return [float(record[name]) for record in records if record.get(name) is not None]

    def mean(name: str) -> float | None:
        return float(np.mean(numbers)) if (numbers := values(name)) else None

    warm = max(int(record["warmup_steps"]) for record in records)
    after = [step_times(r["seconds"][warm - int(r["warmup_steps"]) :]) for r in records]
    times = max((t for t in after if t is not None), key=lambda t: t.median, default=None)
    epochs = [t.median for r in records if (t := step_times(r["epochs"])) is not None]
    shared = set.intersection(*(set(record["parts"]) for record in records))
    batch = global_batch or float(records[0].get("samples") or 0)
    notes = list(dict.fromkeys(note for record in records for note in record["notes"]))
    figures: dict[str, Any] = {n: mean(n) for n in _MEANS}
    for name in ("peak_bytes", "sync_bytes", "network_bytes_per_second"):
        figures[name] = max(values(name), default=None)
    share, alone = 1.0, not records[0].get("in_step", True)
    if times is not None:
        if alone:  # then a step is any worker's update, and their rates add up
            share = 1.0 / (times.mean * sum(1.0 / t.mean for t in after if t is not None))
        samples = batch / int(records[0]["workers"]) if alone else batch
        figures |= {
            "step_seconds": times.median * share, "step_mean_seconds": times.mean * share,
            "step_std_seconds": times.std * share, "steps": times.count,
            "interval": None if times.low is None or times.high is None
            else (times.low * share, times.high * share),
            "samples_per_second": samples / (times.mean * share) if batch else None,
        }  # fmt: skip
        if abs(times.mean - times.median) > _SKEW * times.median:
            notes.append(f"steps vary: mean {times.mean:.4g} s, median {times.median:.4g} s")
    local, both = mean("local_sqr"), mean("mean_sqr")
    compared = int(records[0].get("gradients") or 0)
    noisy = batch and compared > 1 and not any(r["made_up"] for r in records)
    if local is not None and both is not None and noisy:
        sqr, var = gradient_noise(local, both, compared, batch * int(records[0]["batches"]))
        figures |= {"grad_sqr": sqr, "grad_var": var}
    prints: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record["fingerprint"].items():
            if value not in prints.setdefault(name, []):
                prints[name].append(value)
    return Measurement(
        "ok", "; ".join(notes), **figures, warmup_steps=warm,
        parts={
            name: float(np.mean([record["parts"][name] for record in records])) * share
            for name in records[0]["parts"] if name in shared
        },
        epoch_seconds=max(epochs, default=None),
        fingerprint={name: v[0] if len(v) == 1 else v for name, v in prints.items()},
        started=min(record["started"] for record in records),
        seconds=seconds,
    )  # fmt: skip


def fingerprint() -> dict[str, Any]:
    """Return names and versions of the software and hardware of this process, as far as known."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(), "cpu": _cpu_name(), "cores": os.cpu_count(),
    }  # fmt: skip
    with suppress(OSError, ValueError, AttributeError):
        found["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found["usable_cores"] = len(os.sched_getaffinity(0))
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if (torch := sys.modules.get("torch")) is not None:
        found |= {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
        if torch.cuda.is_available():
            device = torch.cuda.get_device_properties(torch.cuda.current_device())
            found |= {"gpu": device.name, "gpu_bytes": device.total_memory}
            found["cuda"] = torch.version.cuda
            with suppress(RuntimeError, AttributeError):
                found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            found["backend"] = str(torch.distributed.get_backend())
    return {name: value for name, value in found.items() if value}


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor()
