"""Advisor: predict, recommend, explain and support, for one catalogue and one predictor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.advisor.answer import Answer, Explanation, Support, answer_of
from forerun.advisor.models import predictor_of
from forerun.advisor.request import (
    batch_for,
    check_divides,
    checked_framework,
    length_to_meet,
    limits_of,
    plan_fields,
    with_count,
)
from forerun.catalog import Catalog, load_catalog
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import FIELDS, Plan
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.predictors.starts import known_by

if TYPE_CHECKING:
    from forerun.advisor.given_runs import MadeRuns, Meanings
    from forerun.tables import Runs, Table
    from forerun.tables.suspects import Flags

PlanLike = str | Mapping[str, Any] | Plan | None


class Advisor:
    """Answers about jobs.

    Args:
        catalog_files: the user's own devices, machines and prices, over the packaged ones.
        predictor: a predictor, or the name of a registered one.
        fitted: a model file that `forerun fit` wrote; it names its own predictor.
        start: what a named predictor knows, see `models.predictor_of`.

    Raises:
        RequestError: a catalogue or model file cannot be read, or there is no such start.
        UnknownNameError: no such predictor.
    """

    def __init__(
        self,
        catalog_files: Iterable[str | Path] = (),
        predictor: str | Predictor = "analytic",
        fitted: str | Path | None = None,
        start: str = "",
    ) -> None:
        self._catalog_files = tuple(str(path) for path in catalog_files)
        self.predictor: Predictor = predictor_of(predictor, fitted, start)
        self._fitted = None if fitted is None or fitted == "" else Path(fitted)
        self._told: Runs | None = None
        self.flags: Flags | None = None
        self.repeated = 0
        self.lessons: tuple[str, ...] = ()

    def fit(self, *runs: str | Path | Table | Any) -> Advisor:
        """Return a new advisor whose predictor has learned from measured runs, less their `flags`.

        `repeated` of them had taught its shipped constants already; `lessons` says what they tell
        as a whole.

        Args:
            *runs: runs tables: files, tables, or data frames. This advisor does not change.

        Raises:
            RequestError: a table cannot be read, or its runs cannot teach the predictor.
        """
        from forerun.advisor.fit_summary import findings, known_already, lessons, taught
        from forerun.advisor.given_runs import runs_of

        given = runs_of(runs, self.catalog)
        learned, flags = taught(self.predictor, given)
        advisor = Advisor(self._catalog_files, learned)
        advisor._told = given
        advisor.flags, advisor.repeated = flags, known_already(self.predictor, given)
        told = lessons(learned, given, flags, findings(learned, self.predictor), self.predictor)
        advisor.lessons = (*getattr(learned, "reasons", ()), *told)
        return advisor

    @cached_property
    def made(self) -> MadeRuns | None:
        """Which jobs taught the predictor: of `fit`, or kept in its file; None where nobody knows.

        Raises:
            RequestError: the file's are of another shape.
        """
        from forerun.advisor.given_runs import MadeRuns, made_of

        if self._told is not None:
            return MadeRuns.of(self._told)
        return None if self._fitted is None else made_of(self._fitted)

    @cached_property
    def meanings(self) -> Meanings:
        """What rows that are asked mean, where they say less than the given runs of their kind."""
        from forerun.advisor.given_runs import Meanings

        return Meanings.of(self._told, self.made, self.catalog)

    @cached_property
    def catalog(self) -> Catalog:
        """Devices, machines and prices; read when first needed."""
        return load_catalog(self._catalog_files)

    def workload(self, workload: Any, inputs: Any = None, **changes: Any) -> Workload:
        """Return a workload from a reference, an nn.Module with example inputs, or itself.

        Args:
            workload: a zoo name, a label of the runs that were given, a file,
                `package.module:callable`, an nn.Module, a pair of an nn.Module and its inputs, a
                Workload.
            inputs: example inputs of an nn.Module (a tensor, or a tuple or mapping of them).
            **changes: see `forerun.workloads.resolve.CHANGES`; None means no change.

        Raises:
            RequestError, UnknownNameError: it cannot be read, or a change cannot be honoured.
        """
        from forerun.workloads import resolve

        checked_framework(changes.get("framework"))
        if isinstance(workload, tuple) and len(workload) == 2 and inputs is None:
            workload, inputs = workload
        if isinstance(workload, str | Path):
            return self._meant(str(workload), changes) or resolve.workload(str(workload), **changes)
        given = resolve.checked_changes(changes)
        if isinstance(workload, Workload):
            return resolve.described(workload, given)
        return resolve.module_workload(workload, inputs, given)

    def _meant(self, name: str, changes: Mapping[str, Any]) -> Workload | None:
        """Return what the given runs mean by a name; None without runs, or where it is none of theirs."""
        if self._told is None and self._fitted is None:
            return None
        from forerun.advisor.given_runs import meant_workload

        return meant_workload(self.meanings.labels, name, changes)

    def cluster(
        self, cluster: str | Cluster, region: str | None = None, price: float | None = None
    ) -> Cluster:
        """Return a cluster from its text, e.g. `4x8xh100-sxm-80gb` or `4xaws:p5.48xlarge`.

        Args:
            cluster: the text, or a Cluster (returned as it is where no price is given).
            region: the region whose price counts.
            price: dollars an hour for the whole cluster, in place of the catalogue's.

        Raises:
            RequestError, UnknownNameError: malformed, or a device that is not known.
        """
        from forerun.advisor.recommending import priced

        if isinstance(cluster, Cluster):
            return priced(cluster, price)
        return priced(self.catalog.cluster(cluster, region=region or None), price)

    def predict(
        self,
        workload: Any,
        cluster: str | Cluster,
        plan: PlanLike = None,
        *,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        length: Length | None = None,
        price: float | None = None,
        region: str | None = None,
        market: str = "on-demand",
        preemption: Preemption | None = None,
        deadline: str | float | None = None,
        budget: str | float | None = None,
        inputs: Any = None,
        **changes: Any,
    ) -> Answer:
        """Return the time, cost and memory of one job.

        Plan fields that nobody fixes are chosen by search, and named in the answer's notes.

        Args:
            workload: see `workload`. cluster: see `cluster`.
            plan: fields as text (`tp=2,pp=4`), a mapping, or a whole Plan.
            global_batch: samples in an optimizer step, over all devices.
            micro_batch: samples a device does in one pass.
            length: how much training; the workload's usual length by default.
            price: dollars an hour for the whole cluster. region: whose prices count.
            market: on-demand, spot, or any. preemption: how spot machines are lost.
            deadline, budget: limits; the answer says with what probability they are met.
            inputs, **changes: see `workload`.

        Raises:
            RequestError: the request is wrong; the message says asked, found, next.
            UnsatisfiedError: nothing fits in memory while a plan field is left to choose, or the
                predictor declines. A whole plan that does not fit is answered, with a warning.
        """
        limits = limits_of(deadline, budget)
        asked = self.workload(workload, inputs, **changes)
        place, long = self.cluster(cluster, region, price), length_to_meet(asked, length, limits)
        fields = with_count(plan_fields(plan), "global_batch", global_batch)
        fields = with_count(fields, "micro_batch", micro_batch)
        job, chosen, notes = self._laid(asked, place, fields)
        answer = answer_of(self.predictor, job, long, market, preemption, chosen, notes, limits)
        return replace(answer, start=known_by(self.predictor))

    def _laid(
        self, workload: Workload, cluster: Cluster, fields: Mapping[str, Any]
    ) -> tuple[Job, tuple[str, ...], tuple[str, ...]]:
        """Return the job with its plan in full, the fields that were chosen, and notes."""
        check_divides(workload, cluster, fields)
        batch, notes = batch_for(workload, cluster.devices, fields)
        if set(fields) >= set(FIELDS):
            return Job(workload, cluster, Plan(**fields)), (), ()
        from forerun.advisor.planning import chosen_plan, planner_of

        fixed = {name: value for name, value in fields.items() if name != "global_batch"}
        plan, said = chosen_plan(planner_of(self.predictor), workload, cluster, fixed, batch)
        chosen = tuple(name for name in FIELDS if name not in fields and name != "global_batch")
        return Job(workload, cluster, plan), chosen, (*notes, *said)

    def predict_table(
        self, table: Table | Any, *, length: Length | None = None, market: str = "on-demand"
    ) -> Any:
        """Return a runs table (or data frame) with the answers as added columns.

        A label that the given runs use for a workload of their own means that one. Row order and every input column stay. A row that cannot be answered carries its reason in
        `declined` and blanks.

        Raises:
            RequestError: the columns are wrong (see `forerun.read_table`).
        """
        from forerun.advisor.tabular import predict_table

        return predict_table(self.predictor, self.catalog, table, length, market, self.meanings)

    def recommend(
        self,
        workload: Any,
        *,
        clusters: Sequence[str | Cluster] | None = None,
        max_devices: int = 512,
        minimize: str = "cost",
        deadline: str | float | None = None,
        budget: str | float | None = None,
        confidence: float = 0.5,
        market: str = "on-demand",
        objective: Objective | None = None,
        length: Length | None = None,
        plan: PlanLike = None,
        global_batches: Sequence[int] | None = None,
        region: str | None = None,
        providers: Sequence[str] | None = None,
        energy: bool = False,
        inputs: Any = None,
        **changes: Any,
    ) -> Recommendation:
        """Return which cluster and plan to use, the Pareto front, and what was refused and why.

        Args:
            workload, inputs, **changes: see `workload`.
            clusters: candidates as text: a whole cluster (`4x8xh100-sxm-80gb`), or a device or
                machine alone (`h100-sxm-80gb`), whose number of nodes is then searched; by
                default the cheapest machine of each kind of accelerator, count and network.
            max_devices: the largest cluster that is searched by itself.
            minimize, deadline, budget, confidence, market: what is best, and the limits (see
                `forerun.advisor.recommending.objective_of`).
            objective: all of these at once; it stands in their place.
            length: how much training; the workload's usual length by default.
            plan: plan fields to hold fixed.
            global_batches: samples in an optimizer step; the best of them is taken.
            region: the region whose prices count; the cheapest of each type by default.
            providers: clouds to choose from; all by default.
            energy: make kWh a third axis of the Pareto front.

        Raises:
            RequestError: the request is wrong.
        """
        from forerun.advisor.recommending import larger_than, objective_of, recommend

        aim = objective or objective_of(minimize, deadline, budget, confidence, market)
        asked = self.workload(workload, inputs, **changes)
        return recommend(
            self.predictor,
            self.candidates(
                clusters,
                max_devices=max_devices,
                region=region,
                providers=providers,
                market=aim.market,
            ),
            asked,
            aim,
            length_to_meet(asked, length, aim),
            plan_fields(plan),
            global_batches,
            energy,
            larger_than(self.catalog, clusters, max_devices, region or None),
        )

    def candidates(
        self,
        clusters: Sequence[str | Cluster] | None = None,
        *,
        max_devices: int = 512,
        region: str | None = None,
        providers: Sequence[str] | None = None,
        market: str = "on-demand",
    ) -> list[Cluster]:
        """Return the clusters that `recommend` considers. Raises as `cluster` does."""
        from forerun.advisor.recommending import candidate_clusters

        return candidate_clusters(
            self.catalog, clusters, max_devices, region or None, providers, market
        )

    def explain(self, workload: Any, cluster: str | Cluster, plan: PlanLike = None,
                **request: Any) -> Explanation:  # fmt: skip
        """Return where the step's time and memory go, what limits it, and what would change it.

        Args:
            workload, cluster, plan, **request: as `predict`.

        Raises:
            RequestError, UnsatisfiedError: as `predict`.
        """
        from forerun.advisor.explaining import explanation_of

        return explanation_of(self.predictor, self.predict(workload, cluster, plan, **request))

    def support(self, workload: Any, *, inputs: Any = None, **changes: Any) -> Support:
        """Return what is covered for a workload, before anything runs. Raises as `workload`."""
        from forerun.advisor.explaining import support_of

        return support_of(self.predictor, self.workload(workload, inputs, **changes))
