"""Work: what trials cost, counted and not clocked, so that two machines try the same and choose alike.

A fit and the answers of one candidate count for so many seconds, by how many runs teach it and of how
many kinds they are: what a core of the machine took on which they were measured, on average over
twelve published tables. The clock is watched too, far beyond: a candidate's defect must not take
hours, and whoever is stopped by it is told so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

# Counted seconds of all trials of one candidate, and of all, beyond which folds do without.
MOST_WORK, MOST_WORK_IN_ALL = 30.0, 130.0
# Processor seconds of this machine beyond which they do without, whatever they count for.
MOST_SECONDS, MOST_SECONDS_IN_ALL = 90.0, 240.0


class Cost(NamedTuple):
    """Counted seconds: of any fit, of a thousand runs that teach, of a thousand kinds of jobs."""

    fit: float
    runs: float
    kinds: float

    def of(self, runs: int, kinds: int) -> float:
        """Return what a fit to so many runs of so many kinds counts for."""
        return self.fit + (self.runs * runs + self.kinds * kinds) / 1000.0


COSTS: Mapping[str, Cost] = {
    "analytic": Cost(0.12, 0.8, 0.15), "residual": Cost(0.12, 0.8, 0.15),
    "hierarchical": Cost(0.03, 0.1, 2.3), "goodput": Cost(0.1, 0.02, 0.65),
    "ernest": Cost(0.06, 0.08, 0.45), "generic": Cost(0.4, 0.1, 1.0),
    "ps-saturation": Cost(0.05, 0.01, 0.15), "linear-scaling": Cost(0.02, 0.03, 0.45),
    "gaussian": Cost(0.15, 0.3, 2.7), "ray-ml": Cost(0.1, 0.25, 0.35),
    "constant-mfu": Cost(0.005, 0.005, 0.01),
}  # fmt: skip
# Of a guest, who is not known.
USUAL = Cost(0.1, 1.0, 1.0)


def counted_work(name: str, runs: int, kinds: int) -> float:
    """Return the counted seconds of a candidate's fit to so many runs of so many kinds."""
    return COSTS.get(name, USUAL).of(runs, kinds)


@dataclass
class Ledger:
    """What trials have counted for so far, and what they took.

    Attributes:
        counted: seconds of each candidate by the table of costs.
        took: seconds of each on this machine's processor.
    """

    counted: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def entry(self, part: tuple[str, ...], runs: int, kinds: int) -> Iterator[None]:
        """Enter what candidates do meanwhile, who are fitted together, to so many runs and kinds."""
        began = time.process_time()
        yield
        share = (time.process_time() - began) / len(part)
        for name in part:
            self.counted[name] = self.counted.get(name, 0.0) + counted_work(name, runs, kinds)
            self.took[name] = self.took.get(name, 0.0) + share

    def why_done(self, name: str) -> str:
        """Return why a candidate is tried no more, "" where it may go on."""
        if self.counted.get(name, 0.0) > MOST_WORK:
            return f"its trials counted for more than {MOST_WORK:.0f} s of work"
        if self.took.get(name, 0.0) > MOST_SECONDS:
            return (
                f"its trials took more than {MOST_SECONDS:.0f} s of this machine's processor,"
                " and a faster one would judge it by more"
            )
        return ""

    @property
    def spent(self) -> bool:
        """Whether all trials together counted for as much as they may."""
        return sum(self.counted.values()) > MOST_WORK_IN_ALL

    @property
    def late(self) -> bool:
        """Whether all trials together took longer than they may, whatever they counted for."""
        return sum(self.took.values()) > MOST_SECONDS_IN_ALL
