"""Told: what the workers of one run told by letters, and the cause of its end where that was bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.measure.causes import Ended, cause
from forerun.measure.failing import is_secondhand
from forerun.measure.progress import Seen
from forerun.measure.ray.words import from_ray

Letter = dict[str, Any]


@dataclass
class Told:
    """What was told of one task: records and progress by rank."""

    records: dict[int, Letter] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)

    def progress(self, letter: Letter) -> None:
        """Take in how far a worker has come."""
        rank = int(letter["rank"])
        before = self.seen.get(rank)
        seconds = (*(before.seconds if before else ()), *letter["seconds"])
        self.seen[rank] = Seen(
            letter["phase"], letter["steps"], letter["begun"], letter["last"], seconds
        )

    @property
    def state(self) -> tuple[tuple[int, int, int], ...]:
        """What changes as long as anything moves."""
        return tuple((rank, one.phase, one.steps) for rank, one in sorted(self.seen.items()))

    def hindmost(self, workers: int) -> str:
        """Return where the worker was that had come least far."""
        if len(self.seen) < workers:
            return "while starting"
        return min(self.seen.values(), key=lambda one: one.steps).place()

    def cause(self, workers: int, failures: Mapping[str, str]) -> tuple[str, str]:
        """Return (status, reason) from the workers' own records, else from what Ray says of them.

        Args:
            workers: how many there were.
            failures: Ray's words about each worker, by its rank; about all under "".
        """
        ends = [
            Ended(rank, None, self.records.get(rank), self.seen.get(rank))
            for rank in range(workers)
        ]
        spoken = [e for e in ends if e.record is not None and e.record["status"] != "ok"]
        firsthand = [e for e in spoken if e.record and not is_secondhand(str(e.record["reason"]))]
        if firsthand or (spoken and not failures):
            return cause(ends)
        silent = {r: w for r, w in failures.items() if r == "" or self.records.get(int(r)) is None}
        for rank, words in (silent or dict(failures)).items():
            status, reason = from_ray(words)
            if rank == "":
                return status, reason
            seen = self.seen.get(int(rank))
            place = "while starting" if seen is None else seen.place()
            return status, f"worker {rank} of {workers} {reason} {place}"
        return "failed", "Ray Train ended without a word"
