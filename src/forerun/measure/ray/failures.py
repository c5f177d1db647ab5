"""Failures on Ray: what Ray's own errors mean, and what workers reported before their run ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.measure.failures import WorkerEnd, cause, is_peer_lost
from forerun.measure.measurement import Record
from forerun.measure.progress import WorkerProgress, slowest_place

# What Ray says of a worker, the status, and what became of it. Where one has merely gone, Ray names
# want of memory among possible reasons.
_ENDS = (
    ("OutOfMemoryError|running low on memory|memory usage threshold", "oom",
     "was killed by Ray, out of memory,"),
    ("node died|node failure|NodeDiedError|unexpected node|its node has died|node was terminated"
     "|node has been marked dead", "failed", "was lost with its node ({error})"),
    ("Actor(Died|Unavailable)Error|actor died|WorkerCrashedError|worker died|SYSTEM_ERROR"
     "|connection error code|unexpectedly", "failed",
     "died without a message (killed, or crashed: Ray does not report which)"),
    ("", "failed", "failed: {error}"),
)  # fmt: skip
# What Ray says where no driver could work on the cluster, why, and what to do.
_UNREACHABLE = (
    ("version mismatch", "the cluster runs another version of Ray or Python ({error}); install the"
     " same: {versions}"),
    ("no module named 'ray'", "the Python of the driver has no Ray; install it there (pip install"
     " 'forerun[ray]'), or start the cluster where the python that has it comes first on the PATH"),
    ("invalid address format", "that is no address of a Ray cluster; write HOST:PORT, auto, local,"
     " ray://HOST:PORT, or http://HEAD:8265 to submit"),
    ("timed out during startup", "a cluster could not be started in time on this machine; try again"
     " when it is less busy, or give the address of one that runs (ray start --head)"),
    ("authentication|token", "the cluster asks for a token ({error}); set RAY_AUTH_MODE=token, and"
     " RAY_AUTH_TOKEN where it is another machine's"),
)  # fmt: skip
_SILENT = re.compile("connectionerror|could not find any running ray instance|timed out"
                     "|(?:failed|unable) to connect to gcs", re.IGNORECASE)  # fmt: skip
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit)\b")  # as a traceback ends
_VERSIONS = re.compile(r"cluster was started with:\s*Ray: (\S+)\s+Python: (\S+)")


def from_ray(text: str) -> tuple[str, str]:
    """Return (status, what became of the worker) from Ray's error about it."""
    status, words = next(end[1:] for end in _ENDS if re.search(end[0], text, re.IGNORECASE))
    return status, words.format(error=_short(text))


def unreachable(output: str) -> str:
    """Return why no driver could work on the cluster, with what to do, from what it wrote."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    text = " ".join(lines[errors[-1] :]) if errors else (lines or [""])[-1]
    theirs = _VERSIONS.search(text)
    versions = f"Python {theirs[2]} with pip install ray=={theirs[1]}" if theirs else "as it has"
    for expression, words in _UNREACHABLE:
        if re.search(expression, text, re.IGNORECASE):
            return words.format(error=_short(text), versions=versions)
    if _SILENT.search(output):
        return f"no Ray cluster answers ({_short(text)}); check the address, or start one: ray start --head"
    return f"Ray could not be used: {_short(text)}"


def failures(error: BaseException) -> dict[str, str]:
    """Return Ray's error about each worker by rank; about the fit as a whole under ""."""
    own: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
    found = {str(rank): in_one_line(one) for rank, one in own.items()}
    return found or {"": in_one_line(error.__cause__ or error)}


def in_one_line(error: BaseException) -> str:
    """Return an exception's kind and words on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


@dataclass
class WorkerReports:
    """What the workers of one task reported: records and progress by rank."""

    records: dict[int, Record] = field(default_factory=dict)
    progress: dict[int, WorkerProgress] = field(default_factory=dict)

    def add(self, message: Mapping[str, Any]) -> None:
        """Take in a worker's progress or record."""
        rank = int(message["rank"])
        if message["kind"] == "record":
            self.records[rank] = message["record"]
            return
        before = self.progress.get(rank)
        seconds = (*(before.seconds if before else ()), *message["seconds"])
        self.progress[rank] = WorkerProgress(message["phase"], message["steps"], message["begun"], message["last"], seconds)  # fmt: skip

    def finished(self, workers: int) -> list[Record] | None:
        """Return the records of all workers where each is ok, else None."""
        found = [self.records[rank] for rank in sorted(self.records)]
        ok = len(found) == workers and all(record["status"] == "ok" for record in found)
        return found if ok else None

    def cause(self, workers: int, failures: Mapping[str, str]) -> tuple[str, str]:
        """Return (status, reason) from the workers' own records, else from Ray's `failures`."""
        ends = [WorkerEnd(rank, None, self.records.get(rank), self.progress.get(rank)) for rank in range(workers)]  # fmt: skip
        wrong = [str(e.record["reason"]) for e in ends if e.record and e.record["status"] != "ok"]
        if wrong and not (failures and all(map(is_peer_lost, wrong))):
            return cause(ends)
        if not failures:
            return "failed", "Ray Train ended without an error"
        silent = (rank for rank in failures if rank == "" or int(rank) not in self.records)
        rank = next(silent, next(iter(failures)))
        status, reason = from_ray(failures[rank])
        if rank == "":
            return status, reason
        place = slowest_place([self.progress.get(int(rank))])
        return status, f"worker {rank} of {workers} {reason} {place}"
