"""Measuring: a campaign's points are carried out by a runner, and each result goes to the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerun.advisor.measuring_known import Known, in_words, known_of
from forerun.measure.campaign import Campaign, Outlook, Point, outlook
from forerun.measure.carrying import (
    Carrier,
    Outcome,
    Progress,
    Spent,
    State,
    carry_out,
    check_any,
    still_open,
)  # fmt: skip
from forerun.measure.measurement import Measurement
from forerun.tables import Table
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor
    from forerun.store.sql_store import SqlStore

_LIMIT = "limit_s"  # in a point's note: the limit that ended its run


class StoreLedger:
    """A campaign's results in a store; each is kept, with the state of its point, in one step.

    Nothing is written before `begin`. A campaign of that name which asked for something else gets
    this content then; points that both have keep their results.
    """

    def __init__(self, store: SqlStore, campaign: Campaign, known: Mapping[str, Known]) -> None:
        self._store, self._campaign, self._known = store, campaign, known

    def begin(self) -> None:
        """Write down what the campaign asks for."""
        self._store.campaigns.put(self._campaign.name, self._campaign.spec, replace=True)

    def states(self) -> Mapping[str, State]:
        """Return the state of every point that was run, by its key."""
        record = self._store.campaigns.get(self._campaign.name)
        points = {} if record is None else record.points
        return {key: State(p.status, _limit(p.note)) for key, p in points.items()}

    def spent(self) -> Spent:
        """Return what all runs of the campaign took, as the store has them."""
        runs = self._store.table(campaign=self._campaign.name)
        if not len(runs):
            return Spent()
        seconds = np.nan_to_num(runs.numbers("run_time_s"))
        workers = np.nan_to_num(runs.numbers("devices"), nan=1.0)
        return Spent(float(seconds.sum()), float(seconds @ workers))

    def keep(self, point: Point, measurement: Measurement) -> None:
        """Keep one result."""
        known = self._known.get(point.key, Known())
        row = {
            **point.asked, **known.columns(), **measurement.row(),
            "source": "forerun profile", "ref": f"campaign {self._campaign.name}",
        }  # fmt: skip
        row.pop("fingerprint", None), row.pop("started", None)
        self._store.add_table(
            Table.from_rows([row], f"{point}"), known.jobs(point),
            campaign=self._campaign.name, points=[point.key],
            notes=[_note(State.of(point.task, measurement))],
            started=measurement.started, fingerprint=dict(measurement.fingerprint),
        )  # fmt: skip


def _note(state: State) -> str:
    """Return what a point's record says of the limit that ended its run, "" where none did."""
    return json.dumps({_LIMIT: state.limit_seconds}) if state.limit_seconds else ""


def _limit(note: str) -> float:
    """Return the limit that `_note` wrote down; 0 where it says none."""
    try:
        return float(json.loads(note)[_LIMIT]) if note else 0.0
    except (ValueError, KeyError, TypeError):  # somebody's own words
        return 0.0


@dataclass(frozen=True)
class Planned:
    """A campaign before it is carried out.

    Attributes:
        campaign: it.
        left: points without a final result.
        outlook: what they are expected to take.
        forecast: how many of them somebody foresaw, so that the outlook is more than a guess.
        spent: what earlier sittings took.
        notes: what a person should know.
    """

    campaign: Campaign
    left: tuple[Point, ...]
    outlook: Outlook
    forecast: int
    spent: Spent
    notes: tuple[str, ...]


class Profiling:
    """A campaign, its runner and its store, joined.

    Args:
        campaign: what to measure.
        runner: who carries it out.
        store: who keeps it.
        advisor: knows workloads and devices, so that runs are kept with their whole jobs.
        retry: whether points that failed are run again.
    """

    def __init__(
        self, campaign: Campaign, runner: Carrier, store: SqlStore, advisor: Advisor,
        retry: bool = True,
    ) -> None:  # fmt: skip
        self.campaign, self.runner, self.store, self.retry = campaign, runner, store, retry
        self._known = known_of(campaign.points, advisor, runner)
        self._advisor = advisor
        self._believed: dict[str, float] = {}
        self._asked: set[str] = set()
        self.ledger = StoreLedger(store, campaign, self._known)

    def planned(self) -> Planned:
        """Return what is still to be run, and what it is expected to take.

        Raises:
            RequestError: the runner can carry out none of it.
        """
        left = still_open(self.campaign, self.ledger, self.retry)
        refused = Counter(why for p in left if (why := self.runner.refuses(p.task)) is not None)
        check_any(self.campaign, self.runner, len(left) - refused.total(), list(refused))
        believed = self.believed(left)
        reasons = in_words(why for known in self._known.values() for why in known.why)
        return Planned(
            self.campaign, tuple(left), outlook(self.campaign, left, believed),
            sum(point.key in believed for point in left), self.ledger.spent(),
            (*self.campaign.notes, *reasons, *(
                f"{counted(count, 'run')} cannot be carried out: {why}"
                for why, count in refused.items()
            )),
        )  # fmt: skip

    def carried_out(self, told: Callable[[Progress], None]) -> Outcome:
        """Run what is open and keep each result. Raises RequestError as `carry_out` does."""
        believed = self.believed(still_open(self.campaign, self.ledger, self.retry))
        return carry_out(self.campaign, self.runner, self.ledger, told, self.retry, believed)

    def results(self) -> Table:
        """Return every run of the campaign that the store has, of this and earlier sittings."""
        return self.store.table(campaign=self.campaign.name)

    def believed(self, points: Sequence[Point]) -> Mapping[str, float]:
        """Return the seconds of a step that the advisor's predictor believes, by the point's key.

        What is shown, what the budget is judged by and the time left all rest on these.
        """
        for point in points:
            known = self._known[point.key]
            if point.key in self._asked or known.workload is None or known.cluster is None:
                continue
            self._asked.add(point.key)
            jobs = known.jobs(point)
            assert jobs is not None
            seconds = float(self._advisor.predictor.predict(jobs).seconds[0, 1])
            if np.isfinite(seconds):
                self._believed[point.key] = seconds
        return self._believed
