"""Records: what each worker wrote becomes one Measurement; files are written whole or not at all.

Fingerprint: the software and the hardware that a figure was measured with.

Measurement: what a run told: its step and the parts of it, memory, traffic, and how it ended.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from forerun.domain.job import Job
from forerun.domain.run import STATUSES, Run
from forerun.errors import RequestError
from forerun.measure.communication import gradient_noise
from forerun.measure.step_times import StepTimes, step_times
from forerun.tables.files import write_whole
from forerun.units import GIGA

PARTS = ("input", "forward", "backward", "sync", "optimizer")

# Field of a Measurement -> (column of the runs table, units of the field in one of the column).
_COLUMNS: Mapping[str, tuple[str, float]] = {
    "step_seconds": ("step_time_s", 1.0),
    "step_mean_seconds": ("step_mean_s", 1.0),
    "step_std_seconds": ("step_std_s", 1.0),
    "steps": ("measured_steps", 1.0),
    "warmup_steps": ("warmup_steps", 1.0),
    "samples_per_second": ("samples_per_s", 1.0),
    "epoch_seconds": ("epoch_time_s", 1.0),
    "peak_bytes": ("memory_gb", GIGA),
    "sync_bytes": ("comm_gb", GIGA),
    "comm_seconds": ("comm_time_s", 1.0),
    "grad_sqr": ("grad_sqr", 1.0),
    "grad_var": ("grad_var", 1.0),
    "cpu_share": ("cpu_share", 1.0),
    "gpu_share": ("gpu_share", 1.0),
    "network_bytes_per_second": ("network_bytes_per_s", 1.0),
    "seconds": ("run_time_s", 1.0),
}
_HANGS = "no step for "  # how a reason begins, where a run was ended since no step came
# Unbiased estimates, which noise may carry below zero: without those their means were too high.
_SIGNED = ("grad_sqr", "grad_var")
_PART_COLUMNS = {part: f"{part}_time_s" for part in PARTS}


@dataclass(frozen=True)
class Measurement:
    """A fact, before it is told which job it belongs to. What was not measured is None.

    Attributes:
        status: ok, oom, failed, or timeout (then times are lower bounds).
        reason: why it is not ok, or what to know of one that is.
        step_seconds: median of one optimizer step, over the counted steps; of the workers' steps
            the slowest's, which for synchronous training are the same.
        step_mean_seconds, step_std_seconds: mean and standard deviation of the same steps.
        interval: 95 % interval of `step_seconds`, (low, high).
        steps: counted steps.
        warmup_steps: steps before them that were left out: as many as were asked, and those after
            that were slower than what followed.
        parts: seconds of a step by part (`PARTS`; sync is exposed communication), mean over
            steps and workers; a part that could not be told apart is missing.
        samples_per_second: of all workers.
        epoch_seconds: one pass over the dataset, the loader's start included.
        peak_bytes: of the most-loaded device; on CPUs the resident memory above that of a worker
            which has loaded its libraries.
        sync_bytes: bytes that a worker hands to collectives in a step.
        comm_seconds: of a step, time in which a collective was under way, hidden or not. This and
            sync_bytes are means over the steps that were looked at: all, where a step takes 40 ms
            for each of its buckets of gradients, else a sample, a twentieth of them at the least. The
            part sync is the share of backward that it was in these.
        grad_sqr, grad_var: squared norm of the true gradient and variance of a sample's gradient,
            unbiased estimates (Pollux), either of which may be below zero; None on one worker,
            which has no second gradient of the same weights, on made-up data, and where `reason`
            says why. Means over a sample of the steps, a tenth of them at the most.
        cpu_share: cores that a worker kept busy, mean over workers.
        gpu_share: share of the time in which its GPU was busy, mean over workers.
        network_bytes_per_second: bytes that a host sent, the busiest host's.
        fingerprint: software and hardware, by name.
        started: UTC, ISO 8601.
        seconds: the whole run, start of its processes included.
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
    grad_sqr: float | None = None
    grad_var: float | None = None
    cpu_share: float | None = None
    gpu_share: float | None = None
    network_bytes_per_second: float | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RequestError(
                f"a measurement with status {self.status!r}", "no such status",
                f"use one of {', '.join(STATUSES)}",
            )  # fmt: skip
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown:
            raise RequestError(
                f"a measurement with parts {', '.join(unknown)}", "no such part of a step",
                f"use {', '.join(PARTS)}",
            )  # fmt: skip

    @property
    def hangs(self) -> bool:
        """Whether it was ended since no step came for its limit of that."""
        return self.status == "failed" and self.reason.startswith(_HANGS)

    def row(self) -> dict[str, Any]:
        """Return its columns of the runs table, without those that were not measured.

        `std_s` is left to whoever joins repeats; `step_std_s` is the spread of single steps.
        """
        cells: dict[str, Any] = {"status": self.status}
        for name, (column, unit) in _COLUMNS.items():
            value = getattr(self, name)
            if value is not None and math.isfinite(value) and (value > 0 or name in _SIGNED):
                cells[column] = value / unit
        for part, seconds in self.parts.items():
            cells[_PART_COLUMNS[part]] = seconds
        if self.interval is not None:
            cells["step_low_s"], cells["step_high_s"] = self.interval
        texts = {"note": self.reason, "started": self.started}
        if self.fingerprint:
            texts["fingerprint"] = json.dumps(self.fingerprint, sort_keys=True)
        return {**cells, "repeats": 1, **{name: text for name, text in texts.items() if text}}

    def run(self, job: Job, origin: str) -> Run:
        """Return the run of a job that this measured."""

        def above_zero(value: float | None) -> float | None:
            return value if value is not None and math.isfinite(value) and value > 0 else None

        return Run(
            job, self.status,
            step_seconds=above_zero(self.step_seconds),
            sync_seconds=above_zero(self.parts.get("sync")),
            epoch_seconds=above_zero(self.epoch_seconds),
            samples_per_second=above_zero(self.samples_per_second),
            peak_bytes=above_zero(self.peak_bytes),
            origin=f"{origin}: {self.reason}" if self.reason else origin,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; what is not a finite number is None."""
        data = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in data.items()
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Measurement:
        """Return the measurement of `to_json`; names that it does not know are left aside."""
        known = {f.name for f in fields(Measurement)}
        given = {name: value for name, value in data.items() if name in known}
        if given.get("interval") is not None:
            low, high = given["interval"]
            given["interval"] = (low, high)
        return Measurement(**given)


_PACKAGES = ("forerun", "torch", "ray", "transformers", "lightning", "numpy")


def fingerprint() -> dict[str, Any]:
    """Return names and versions of what this process runs on; what is not known is left out."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": _memory_bytes(),
    }
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if hasattr(os, "sched_getaffinity"):
        found["usable_cores"] = len(os.sched_getaffinity(0))
    return {**{k: v for k, v in found.items() if v}, **_torch()}


def _torch() -> dict[str, Any]:
    """Return what torch knows, where this process has loaded it."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[str, Any] = {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {"gpu": device.name, "gpu_bytes": device.total_memory, "cuda": torch.version.cuda}
        with suppress(RuntimeError, AttributeError):
            found["nccl"] = ".".join(str(n) for n in torch.cuda.nccl.version())
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found["backend"] = str(torch.distributed.get_backend())
    return found


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory_bytes() -> int:
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def joined(prints: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one fingerprint of several workers: a value, or the list of those that differ."""
    names = dict.fromkeys(name for one in prints for name in one)
    result: dict[str, Any] = {}
    for name in names:
        values: list[Any] = []
        for one in prints:
            if name in one and one[name] not in values:
                values.append(one[name])
        result[name] = values[0] if len(values) == 1 else values
    return result


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
