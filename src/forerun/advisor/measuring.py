"""Measuring: a campaign's points are carried out by a runner, and each result goes to the store."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.plan import Plan, PlanColumns
from forerun.domain.quantiles import Z95
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
    time_left,
)  # fmt: skip
from forerun.measure.measurement import Measurement
from forerun.measure.pace import Band, Pace
from forerun.measure.runner import TaskRunner
from forerun.measure.task import OF_SERVERS
from forerun.tables import COLUMNS, Jobs, Table
from forerun.tables.own_columns import read_as
from forerun.tables.table import OwnColumns
from forerun.units import SECONDS_PER_HOUR, counted

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor
    from forerun.catalog import Catalog
    from forerun.domain.hardware import Cluster
    from forerun.domain.workload import Workload
    from forerun.store.sql_store import SqlStore

# Settings of the loop that leave the traced graph of a sample as it is.
_OWN = {"accumulate", "sync", "partitions", *OF_SERVERS}
# What notes of runs say of communication that was not observed, and of a module that had none.
_UNSEEN, _NOTHING = "communication is not measured", "reduced nothing"
_LIMIT = "limit_s"  # in a point's note: the limit that ended its run


@dataclass(frozen=True)
class PointFacts:
    """What is known of a point beyond its row, `placement` as workers on each host; why no more."""

    workload: Workload | None = None
    cluster: Cluster | None = None
    placement: tuple[int, ...] = ()
    why: tuple[str, ...] = ()

    def columns(self) -> dict[str, object]:
        """Return what the row gains by it: nodes, placement, and the workload's totals."""
        row: dict[str, object] = {}
        if self.placement:
            row = {"nodes": len(self.placement), "placement": "-".join(map(str, self.placement))}
            if len(set(self.placement)) == 1:
                row["devices_per_node"] = self.placement[0]
        if self.workload is not None:
            row["params"] = self.workload.params
            row["gmacs"] = self.workload.graph.forward_flops / 2e9
        return row

    def jobs(self, point: Point) -> Jobs | None:
        """Return the point's job as far as it is known whole, None where nothing is."""
        task = point.task
        if self.workload is None and self.cluster is None:
            return None
        micro = max(task.batch // int(task.settings.get("accumulate", 1)), 1)
        plan = Plan(
            dp=task.replicas, micro_batch=micro, global_batch=task.global_batch, sync=task.sync, partitions=task.partitions,
            **{name: task.settings[name] for name in OF_SERVERS if name in task.settings}
            | ({"parameter_servers": task.servers} if task.servers else {}),
        )  # fmt: skip
        workload = self.workload
        if workload is not None and task.dataset_size:
            workload = replace(workload, dataset_size=float(task.dataset_size))
        workloads = () if workload is None else (workload,)
        clusters = () if self.cluster is None else (self.cluster,)
        w, c = (np.array([len(known) - 1], np.int32) for known in (workloads, clusters))
        return Jobs(workloads, clusters, w, c, PlanColumns.of([plan]))


def _facts(points: Sequence[Point], advisor: Advisor, runner: TaskRunner) -> dict[str, PointFacts]:
    """Return what is known of each point, by its key; a module is traced once for each precision."""
    workload_of, cluster_of = cache(partial(_workload, advisor)), cache(partial(_cluster, advisor))
    found = {}
    for point in points:
        task, counts = point.task, runner.placement(point.task)
        odd = ", ".join(sorted({*task.settings} - _OWN))
        opaque = "a script" if task.is_script else odd and f"the settings {odd} may change it"
        workload, unread = workload_of(task.entry, task.precision, task.optimizer, opaque)
        cluster, unknown = cluster_of(str(point.asked.get("device", "")), counts)
        if workload is not None:
            workload = replace(workload, name=str(point.asked["workload"]))
        why = tuple(filter(None, (unread, unknown)))
        found[point.key] = PointFacts(workload, cluster, counts, why)
    return found


def _workload(advisor: Advisor, entry: str, precision: str, optimizer: str, opaque: str) -> tuple[Workload | None, str]:  # fmt: skip
    if not opaque:
        try:
            changes = {"precision": precision, "optimizer": optimizer, "framework": "pytorch"}
            return advisor.workload(entry, **changes), ""
        except ForerunError as error:
            opaque = error.found
    return None, f"{entry} is not traced ({opaque}): its runs are kept by their label alone"


def _cluster(advisor: Advisor, label: str, counts: tuple[int, ...]) -> tuple[Cluster | None, str]:
    if not label:
        return None, (
            "no device is named: runs are kept without one; `forerun probe --out mine.yaml`"
            " makes one of this machine, for --catalog and the campaign's device"
        )
    if not counts:
        return None, ("how workers will lie on the nodes is not known: runs are kept without a placement")  # fmt: skip
    if len(set(counts)) > 1:
        return None, ""
    try:
        return advisor.cluster(f"{len(counts)}x{counts[0]}x{label}"), ""
    except ForerunError as error:
        meant = f" ({error.next_step})" if error.next_step.startswith("did you mean") else ""
        return None, f"{error.asked}: {error.found}{meant}; its runs are kept by that label alone"


class StoreLedger:
    """A campaign's results in a store, each with the state of its point; `begin` replaces its file."""

    def __init__(self, store: SqlStore, campaign: Campaign, known: Mapping[str, PointFacts]) -> None:  # fmt: skip
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
        seconds = np.nan_to_num(runs.numbers("run_time_s"))
        workers = np.nan_to_num(runs.numbers("devices"), nan=1.0).tolist()
        prices = map(self._campaign.dollars_per_hour, workers, runs.texts("instance_type"))
        return Spent(float(seconds.sum()), float(seconds @ [*prices]) / SECONDS_PER_HOUR)

    def keep(self, point: Point, measurement: Measurement) -> None:
        """Keep one result."""
        known = self._known.get(point.key, PointFacts())
        row = {
            **point.asked, **known.columns(), **measurement.row(),
            "source": "forerun profile", "ref": f"campaign {self._campaign.name}",
        }  # fmt: skip
        row.pop("fingerprint", None), row.pop("started", None)
        # What a search reads; no part of the point, whose key a new price must not change.
        task = point.task
        if price := self._campaign.dollars_per_hour(task.workers, task.instance_type):
            row["price_usd_per_hour"] = price
        limit = RunState.of(point.task, measurement).limit_seconds
        self._store.add_table(
            Table.from_rows([row], f"{point}"), known.jobs(point),
            campaign=self._campaign.name, points=[point.key],
            notes=[json.dumps({_LIMIT: limit}) if limit else ""],
            started=measurement.started, fingerprint=dict(measurement.fingerprint),
        )  # fmt: skip


def _limit(note: str) -> float:
    try:
        return float(json.loads(note)[_LIMIT]) if note else 0.0
    except (ValueError, KeyError, TypeError):  # somebody's own words
        return 0.0


@dataclass(frozen=True)
class CampaignPlan:
    """The points left of a campaign, what they will take and earlier ones took; `forecast`: points with one.

    left_seconds: quantiles of what the points left take, None where not each has a forecast.
    """

    campaign: Campaign
    left: tuple[Point, ...]
    outlook: CampaignCost
    forecast: int
    spent: Spent
    notes: tuple[str, ...]
    left_seconds: Band | None


class Profiling:
    """A campaign, its runner and its store, joined; `retry`: points that failed are run again."""

    def __init__(
        self, campaign: Campaign, runner: TaskRunner, store: SqlStore, advisor: Advisor,
        retry: bool = True,
    ) -> None:  # fmt: skip
        self.campaign, self.runner, self.store, self.retry = campaign, runner, store, retry
        self._known = _facts(campaign.points, advisor, runner)
        self._advisor = advisor
        self.ledger = StoreLedger(store, campaign, self._known)

    @property
    def catalog(self) -> Catalog:
        """The catalogue that runs are described by."""
        return self._advisor.catalog

    def planned(self) -> CampaignPlan:
        """Return what is still to be run, and what it is expected to take.

        Raises:
            RequestError: the runner can carry out none of it.
        """
        left = still_open(self.campaign, self.ledger, self.retry)
        refused = Counter(why for p in left if (why := self.runner.refuses(p.task)) is not None)
        check_any(self.campaign, self.runner, len(left) - refused.total(), list(refused))
        reasons = dict.fromkeys(why for known in self._known.values() for why in known.why)
        spent, pace = self.ledger.spent(), Pace(self._prior)
        return CampaignPlan(
            self.campaign, tuple(left), expected_cost(self.campaign, left, self._step_seconds),
            sum(point.key in self._step_seconds for point in left), spent,
            (*self.campaign.notes, *reasons, *(
                f"{counted(count, 'run')} cannot be carried out: {why}"
                for why, count in refused.items()
            )),
            time_left(self.campaign, left, self._step_seconds, pace, spent.seconds),
        )  # fmt: skip

    def carried_out(self, on_run: Callable[[CampaignProgress], None]) -> CampaignOutcome:
        """Run what is open and keep each result; only one process at a time does. Raises RequestError."""
        with self.store.campaigns.alone(self.campaign.name):
            return carry_out(
                self.campaign, self.runner, self.ledger, on_run, self.retry, self._step_seconds, self._prior
            )  # fmt: skip

    def results(self) -> Table:
        """Return every run of the campaign that the store has, of this and earlier sittings, as `results_of`."""
        return results_of(self.campaign, self.store.table(campaign=self.campaign.name))

    @cached_property
    def _step_forecasts(self) -> Mapping[str, FloatArray]:
        """Quantiles of a step's seconds of each point that has a forecast, by its key."""
        found = {}
        for point in self.campaign.points:
            jobs = self._known[point.key].jobs(point)
            if jobs is not None and jobs.resolved[0]:
                seconds = self._advisor.predictor.predict(jobs).seconds[0]
                if np.isfinite(seconds).all():
                    found[point.key] = seconds
        return found

    @cached_property
    def _step_seconds(self) -> Mapping[str, float]:
        return {key: float(seconds[1]) for key, seconds in self._step_forecasts.items()}

    @cached_property
    def _prior(self) -> float:
        """The log standard deviation of forecasts, NaN where not each point has one."""
        known = [np.log(s[2] / s[0]) / (2 * Z95) for s in self._step_forecasts.values()]
        return float(np.median(known)) if len(known) == len(self.campaign.points) else math.nan


def results_of(campaign: Campaign, runs: Table) -> Table:
    """Return a campaign's runs; what it varies is part of a configuration, settings of a user's own too."""
    asked = dict.fromkeys(name for point in campaign.points for name in point.asked)
    return read_as(runs, OwnColumns(tuple(name for name in asked if name not in COLUMNS)))


def apart(table: Table) -> list[str]:
    """Return a warning where workers of one run never exchanged anything, as far as it was observed."""
    several = table.numbers("devices") > 1
    for name, most in (("comm_gb", 0), ("partitions", 1), ("parameter_servers", 0)):
        several &= ~(table.numbers(name) > most)
    # What says why it was not observed is no silence, but for a module that reduced nothing.
    seen = [_UNSEEN not in note or _NOTHING in note for note in table.texts("note")]
    rows = np.flatnonzero(several & seen & (table.texts("status") == "ok"))
    if not len(rows):
        return []
    labels = ", ".join(dict.fromkeys(table.texts("workload")[rows]))
    return [
        f"{counted(len(rows), 'run')} on several workers ({labels}) reduced no gradients: the workers trained"
        " apart, and their times are none of data-parallel training; wrap the module in"
        " DistributedDataParallel (other ways to reduce are not seen)"
    ]


def campaign_json(
    planned: CampaignPlan, outcome: CampaignOutcome | None = None, table: Table | None = None
) -> dict[str, Any]:
    """Return a campaign's plan, how its sitting ended and its runs as JSON data, as far as they are there."""
    found: dict[str, Any] = {
        "campaign": planned.campaign.name, "points": len(planned.campaign.points),
        "left": len(planned.left),
        "outlook": {**vars(planned.outlook), "foreseen": planned.forecast},
        "spent": {"seconds": planned.spent.seconds, "dollars": planned.spent.dollars},
        "notes": list(planned.notes),
    }  # fmt: skip
    if outcome is not None:
        found |= vars(outcome)
    if table is not None:
        found["warnings"] = apart(table)
        found["runs"] = [table.row(i) for i in range(len(table))]
    return found
