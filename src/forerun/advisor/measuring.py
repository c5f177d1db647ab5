"""Measuring: a campaign's points are carried out by a runner, and each result goes to the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.domain.plan import Plan, PlanColumns
from forerun.errors import ForerunError
from forerun.measure.campaign import (
    Campaign,
    CampaignCost,
    CampaignOutcome,
    CampaignProgress,
    Point,
    RunState,
    Spent,
    carry_out,
    check_any,
    expected_cost,
    still_open,
)  # fmt: skip
from forerun.measure.measurement import Measurement
from forerun.measure.runner import TaskRunner
from forerun.tables import Jobs, Table
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor
    from forerun.domain.hardware import Cluster
    from forerun.domain.workload import Workload
    from forerun.store.sql_store import SqlStore

_OWN = {"accumulate"}  # settings of the loop that leave the traced graph of a sample as it is
_NAMED = 4  # entries that one note names


class Unknown(NamedTuple):
    """What is not known of a point, an entry or "" where the reason says it all, and why."""

    name: str
    why: str


def _in_words(unknown: Iterable[Unknown]) -> list[str]:
    """Return what is not known as sentences, each once, what shares its reason in one."""
    by_reason: dict[str, dict[str, None]] = {}
    for name, why in unknown:
        by_reason.setdefault(why, {})[name] = None
    sentences = []
    for why, names in by_reason.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        is_, their = ("is", "its") if len(names) == 1 else ("are", "their")
        few = f"{', '.join([*names][:_NAMED])}{more}"
        kept = f"{few} {is_} not traced ({why}): {their} runs are kept by their label alone"
        sentences.append(kept if few else why)
    return sentences


@dataclass(frozen=True)
class PointFacts:
    """What is known of a point beyond its row: the workload traced, and its cluster's figures.

    Attributes:
        workload, cluster: None where they cannot be report, with the reasons in `why`.
        placement: workers on each host that is used.
    """

    workload: Workload | None = None
    cluster: Cluster | None = None
    placement: tuple[int, ...] = ()
    why: tuple[Unknown, ...] = ()

    def columns(self) -> dict[str, object]:
        """Return what the row gains by it: nodes, placement, and the workload's totals."""
        row: dict[str, object] = {}
        if self.placement:
            row["nodes"] = len(self.placement)
            if len(set(self.placement)) == 1:
                row["devices_per_node"] = self.placement[0]
            row["placement"] = "-".join(map(str, self.placement))
        if self.workload is not None:
            row |= {
                "params": self.workload.params,
                "gmacs": self.workload.graph.forward_flops / 2e9,
            }
        return row

    def jobs(self, point: Point) -> Jobs | None:
        """Return the point's job as far as it is known whole, None where nothing is."""
        if self.workload is None and self.cluster is None:
            return None
        task = point.task
        passes = int(task.settings.get("accumulate", 1))
        plan = Plan(
            dp=task.workers,
            micro_batch=max(task.batch // passes, 1),
            global_batch=task.global_batch,
        )
        workload = self.workload
        if workload is not None and task.dataset_size:
            workload = replace(workload, dataset_size=float(task.dataset_size))
        workloads = () if workload is None else (workload,)
        clusters = () if self.cluster is None else (self.cluster,)
        return Jobs(
            workloads, clusters, np.array([len(workloads) - 1], dtype=np.int32),
            np.array([len(clusters) - 1], dtype=np.int32), PlanColumns.of([plan]),
        )  # fmt: skip


def _known_of(
    points: Sequence[Point], advisor: Advisor, runner: TaskRunner
) -> dict[str, PointFacts]:
    """Return what is known of each point, by its key; a module is traced once for each precision."""
    workload_of, cluster_of = cache(partial(_workload, advisor)), cache(partial(_cluster, advisor))
    found = {}
    for point in points:
        task, counts = point.task, runner.placement(point.task)
        odd = sorted({*task.settings} - _OWN)
        opaque = f"the settings {', '.join(odd)} may change it" if odd else ""
        workload = workload_of(
            task.entry, task.precision, task.optimizer, "a script" if task.is_script else opaque
        )
        cluster = cluster_of(str(point.asked.get("device", "")), counts)
        unknown = tuple(one for one in (workload, cluster) if isinstance(one, Unknown))
        if not isinstance(workload, Unknown):
            workload = replace(workload, name=str(point.asked["workload"]))
        found[point.key] = PointFacts(
            None if isinstance(workload, Unknown) else workload,
            None if isinstance(cluster, Unknown) else cluster,
            counts, unknown,
        )  # fmt: skip
    return found


def _workload(
    advisor: Advisor, entry: str, precision: str, optimizer: str, opaque: str
) -> Workload | Unknown:
    """Return the workload of an entry, or why it is not traced."""
    if opaque:
        return Unknown(entry, opaque)
    try:
        return advisor.workload(
            entry, precision=precision, optimizer=optimizer, framework="pytorch"
        )
    except ForerunError as error:
        return Unknown(entry, error.found)


def _cluster(advisor: Advisor, label: str, counts: tuple[int, ...]) -> Cluster | Unknown | None:
    """Return the cluster of a device on which so many workers lie, or why it is not known."""
    if not label:
        return Unknown(
            "", "no device is named: runs are kept without one; `forerun probe --out mine.yaml`"
            " makes one of this machine, for --catalog and the campaign's device",
        )  # fmt: skip
    if not counts:
        return Unknown(
            "", "how workers will lie on the nodes is not known: runs are kept without a placement"
        )
    if len(set(counts)) > 1:
        return None
    try:
        return advisor.cluster(f"{len(counts)}x{counts[0]}x{label}")
    except ForerunError as error:
        meant = f" ({error.next_step})" if error.next_step.startswith("did you mean") else ""
        return Unknown(
            "", f"{error.asked}: {error.found}{meant}; its runs are kept by that label alone"
        )


_LIMIT = "limit_s"  # in a point's note: the limit that ended its run


class StoreLedger:
    """A campaign's results in a store; each is kept, with the state of its point, in one step.

    Nothing is written before `begin`. A campaign of that name which asked for something else gets
    this content then; points that both have keep their results.
    """

    def __init__(
        self, store: SqlStore, campaign: Campaign, known: Mapping[str, PointFacts]
    ) -> None:
        self._store, self._campaign, self._known = store, campaign, known

    def begin(self) -> None:
        """Write down what the campaign asks for."""
        self._store.campaigns.put(self._campaign.name, self._campaign.spec, replace=True)

    def states(self) -> Mapping[str, RunState]:
        """Return the state of every point that was run, by its key."""
        record = self._store.campaigns.get(self._campaign.name)
        points = {} if record is None else record.points
        return {key: RunState(p.status, _limit(p.note)) for key, p in points.items()}

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
        known = self._known.get(point.key, PointFacts())
        row = {
            **point.asked, **known.columns(), **measurement.row(),
            "source": "forerun profile", "ref": f"campaign {self._campaign.name}",
        }  # fmt: skip
        row.pop("fingerprint", None), row.pop("started", None)
        limit = RunState.of(point.task, measurement).limit_seconds
        self._store.add_table(
            Table.from_rows([row], f"{point}"), known.jobs(point),
            campaign=self._campaign.name, points=[point.key],
            notes=[json.dumps({_LIMIT: limit}) if limit else ""],
            started=measurement.started, fingerprint=dict(measurement.fingerprint),
        )  # fmt: skip


def _limit(note: str) -> float:
    """Return the limit of a point's note; 0 where it says none."""
    try:
        return float(json.loads(note)[_LIMIT]) if note else 0.0
    except (ValueError, KeyError, TypeError):  # somebody's own words
        return 0.0


@dataclass(frozen=True)
class CampaignPlan:
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
    outlook: CampaignCost
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
        self, campaign: Campaign, runner: TaskRunner, store: SqlStore, advisor: Advisor,
        retry: bool = True,
    ) -> None:  # fmt: skip
        self.campaign, self.runner, self.store, self.retry = campaign, runner, store, retry
        self._known = _known_of(campaign.points, advisor, runner)
        self._advisor = advisor
        self._believed: dict[str, float] = {}
        self._asked: set[str] = set()
        self.ledger = StoreLedger(store, campaign, self._known)

    def planned(self) -> CampaignPlan:
        """Return what is still to be run, and what it is expected to take.

        Raises:
            RequestError: the runner can carry out none of it.
        """
        left = still_open(self.campaign, self.ledger, self.retry)
        refused = Counter(why for p in left if (why := self.runner.refuses(p.task)) is not None)
        check_any(self.campaign, self.runner, len(left) - refused.total(), list(refused))
        believed = self.believed(left)
        reasons = _in_words(why for known in self._known.values() for why in known.why)
        return CampaignPlan(
            self.campaign, tuple(left), expected_cost(self.campaign, left, believed),
            sum(point.key in believed for point in left), self.ledger.spent(),
            (*self.campaign.notes, *reasons, *(
                f"{counted(count, 'run')} cannot be carried out: {why}"
                for why, count in refused.items()
            )),
        )  # fmt: skip

    def carried_out(self, on_run: Callable[[CampaignProgress], None]) -> CampaignOutcome:
        """Run what is open and keep each result. Raises RequestError as `carry_out` does."""
        believed = self.believed(still_open(self.campaign, self.ledger, self.retry))
        return carry_out(self.campaign, self.runner, self.ledger, on_run, self.retry, believed)

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
