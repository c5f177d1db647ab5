"""Advisor: predict, recommend, explain and support, for one catalogue and one predictor.

The functions of the same names use the advisor that the settings choose.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, get_type_hints
from weakref import ref

from forerun.advisor import answer
from forerun.catalog import Catalog, load_catalog
from forerun.catalog.frameworks import checked_framework, refuse_plan, stated_fields
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job, refuse_quantized
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import FIELDS, Plan
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.launch.request import place_fields, refuse, refused_plans
from forerun.predictors.options import PRIORS, SHIPPED, known_by, started
from forerun.settings import load_settings
from forerun.units import parse_bytes, parse_dollars

if TYPE_CHECKING:
    from forerun.advisor.provisioning import Provision
    from forerun.measure.campaign import CampaignProgress
    from forerun.measure.runner import TaskRunner
    from forerun.tables import Runs, Table
    from forerun.tables.suspects import Flags
    from forerun.workloads.own_labels import OwnLabels

DOLLARS_PER_HOUR_LIMIT = 1e9
_MOST_PLANS = 4096  # that were chosen, and are kept for the next question
PlanLike = str | Mapping[str, Any] | Plan | None
P = ParamSpec("P")
R = TypeVar("R")


def _asked_as(model: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return what gives a function the arguments of another."""

    def given(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = signature(model)  # type: ignore[attr-defined]
        return function

    return given


class Advisor:
    """Answers about jobs.

    Args:
        catalog_files: the user's own devices, machines and prices, over the packaged ones.
        predictor: a predictor, or the name of a registered one.
        fitted: a model file that `forerun fit` wrote; it names its own predictor.
        start: what a named predictor starts from: `shipped`, its shipped constants; `priors`,
            nothing that was measured; or "", shipped constants where it has any.

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
        self.catalog_files = tuple(str(path) for path in catalog_files)
        self._kept: Table | None = None
        if fitted:
            from forerun.advisor.given_runs import load_model

            predictor, self._kept = load_model(Path(fitted))
        self.predictor = started(predictor, start) if isinstance(predictor, str) else predictor
        self.runs: Runs | None = None
        self.flags: Flags | None = None
        self.repeated = 0
        self.fit_summary: tuple[str, ...] = ()
        self._plans: OrderedDict[Any, tuple[ref[Workload], tuple[Plan, str]]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: plans that are kept belong to objects of this one."""
        return {**vars(self), "_plans": OrderedDict()}

    def fit(self, *runs: str | Path | Table | Any, own_columns: str = "") -> Advisor:
        """Return a new advisor, fitted to runs tables (files, tables, data frames) less their `flags`.

        own_columns: columns of one's own that are part of a configuration: `auto`, `none`, or names
        with commas; "" is the setting.

        Raises:
            RequestError: a table cannot be read, or the predictor cannot be fitted to its runs.
        """
        from forerun.advisor.fit_summary import findings, fit_summary, fitted
        from forerun.advisor.given_runs import runs_of
        from forerun.evaluate.judge import seen_by

        given = runs_of(runs, self.catalog, own_columns)
        learned, flags = fitted(self.predictor, given)
        advisor = Advisor(self.catalog_files, learned)
        advisor.runs = given
        advisor.flags = flags
        if known_by(self.predictor).get("start") == SHIPPED:
            advisor.repeated = seen_by(type(self.predictor), given) or 0
        found = findings(learned, self.predictor)
        summary = fit_summary(learned, given, flags, found, self.predictor)
        advisor.fit_summary = (*getattr(learned, "reasons", ()), *summary)
        return advisor

    @cached_property
    def made(self) -> Table | None:
        """The jobs that the predictor was fitted to, as given or kept in its file; None where unknown."""
        from forerun.advisor.given_runs import configurations_of

        return self._kept if self.runs is None else configurations_of(self.runs)

    @cached_property
    def labels(self) -> OwnLabels:
        """The workloads that labels of the runs behind the predictor stand for."""
        from forerun.workloads.own_labels import OwnLabels
        from forerun.workloads.rows import jobs_from_table

        if self.runs is not None:
            return OwnLabels.of(self.runs.jobs)
        made = None if self.made is None else jobs_from_table(self.made, self.catalog)
        return OwnLabels.of(made)

    @cached_property
    def catalog(self) -> Catalog:
        """Devices, machines and prices; read when first needed."""
        return load_catalog(self.catalog_files)

    def workload(self, workload: Any, inputs: Any = None, **changes: Any) -> Workload:
        """Return a workload.

        Args:
            workload: a zoo name, a label of the given runs, a file, `package.module:callable`, a
                Workload, an nn.Module, or a pair of an nn.Module and its example inputs.
            **changes: see `forerun.workloads.resolve.CHANGES`.

        Raises:
            RequestError: it cannot be read, or a change cannot be honoured.
        """
        from forerun.workloads import resolve

        given = resolve.checked_changes(changes)
        if framework := given.get("framework"):
            checked_framework(framework)
        if isinstance(workload, tuple) and len(workload) == 2 and inputs is None:
            workload, inputs = workload
        if isinstance(workload, str | Path):
            return self._own_workload(str(workload), changes) or resolve.workload(
                str(workload), **changes
            )
        if isinstance(workload, Workload):
            return resolve.described(workload, given)
        return resolve.module_workload(workload, inputs, given)

    def _own_workload(self, name: str, changes: Mapping[str, Any]) -> Workload | None:
        if self.runs is None and self._kept is None:
            return None
        from forerun.workloads import resolve
        from forerun.workloads.own_labels import meant_note

        if not self.labels.has_own(name) or not resolve.is_name(name):
            return None
        found = self.labels.read({"workload": name.strip(), **resolve.checked_changes(changes)})
        if isinstance(found, str):
            raise RequestError(
                f"workload {name!r}", found, "ask rows that state it: --table JOBS.csv"
            )
        return found if meant_note(found) else None

    def cluster(
        self, cluster: str | Cluster, region: str | None = None, price: float | str | None = None,
        market: str = "on-demand",
    ) -> Cluster:  # fmt: skip
        """Return a cluster from its text, e.g. `4x8xh100-sxm-80gb`; price: dollars an hour for all of it.

        Raises:
            RequestError: malformed, a device that is not known, or no spot price where that is the market.
        """
        if not isinstance(cluster, Cluster):
            cluster = self.catalog.cluster(cluster, region=region or None, market=market)
        if market == "spot" and cluster.spot_dollars_per_hour is None and price is None:
            raise self.catalog.no_spot_price(cluster)
        if price is None:
            return cluster
        price = parse_dollars(price, "price") if isinstance(price, str) else price
        if not 0 <= price <= DOLLARS_PER_HOUR_LIMIT:
            raise RequestError(
                f"a price of {price} dollars an hour", "negative, or not a price",
                "give dollars an hour for the whole cluster",
            )  # fmt: skip
        spot = float(price) if market == "spot" else cluster.spot_dollars_per_hour
        return replace(
            cluster, dollars_per_hour=float(price), spot_dollars_per_hour=spot,
            price_source="given with the request",
        )  # fmt: skip

    def predict(
        self,
        workload: Any,
        cluster: str | Cluster,
        plan: PlanLike = None,
        *,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        length: Length | None = None,
        price: float | str | None = None,
        region: str | None = None,
        market: str = "on-demand",
        preemption: Preemption | None = None,
        goodput: float | None = None,
        deadline: str | float | None = None,
        budget: str | float | None = None,
        emit: str = "",
        inputs: Any = None,
        **request: Unpack[answer.JobRequest],
    ) -> answer.Answer:
        """Return the time, cost and memory of one job; open plan fields are chosen by search.

        Args:
            workload, inputs, seq_len ... task: see `workload`. cluster, price, region: see `cluster`.
            plan: fields as text (`tp=2,pp=4`), a mapping, or a whole Plan.
            global_batch: samples in a step, over all devices. micro_batch: in one pass of a device.
            steps, samples, tokens, epochs: how long the job is, as a number or text such as `15T`; or length,
                such as `Length("tokens", 15e12)`. By default the workload's usual one.
            goodput: the share of the wall time that is steps; by default as published failures leave it.
            preemption: what time is lost, with the start-up and the least that is billed.
            deadline, budget: seconds or text such as `24h`; dollars or text such as `$5,000`.
            emit: a launch target such as `slurm`, of whose plans one is chosen (then `Answer.emit`).

        Raises:
            RequestError: the request is wrong.
            UnsatisfiedError: nothing fits in memory while a plan field is open, or the predictor
                declines.
        """
        limits = answer.limits_of(deadline, budget)
        if goodput is not None:
            preemption = replace(preemption or Preemption(), goodput=goodput)
        length, changes = answer.taken_apart(length, request)
        asked = self.workload(workload, inputs, **changes)
        place = self.cluster(cluster, region, price, answer.checked_market(market))
        long = answer.length_to_meet(asked, length, limits)
        fields = answer.with_count(answer.plan_fields(plan), "global_batch", global_batch)
        fields = answer.with_count(fields, "micro_batch", micro_batch)
        if asked.framework:
            fields = {**stated_fields(asked.framework), **fields}
            given = {**vars(asked), **fields, "device": place.device.generation}
            refuse_plan(asked.framework, given)
        refuse_quantized(asked, place)
        if emit:
            refuse(emit, {**fields, **place_fields(asked, place)})
        batch, notes = answer.batch_for(asked, place.devices, fields)
        unstated = preemption is None or preemption.startup_seconds is None
        if price is None and place.price_source and not place.rented and unstated:
            notes = (
                *notes,
                "the price is that of rented machines, whose start-up is not counted (--startup)",
            )
        taught = [] if self.runs is None else [w.framework for w in self.runs.jobs.workloads]
        if taught and asked.framework and not any(taught):
            why = f"the runs state no framework, so that they teach little of {asked.framework}"
            notes = (*notes, f"{why}: leave --framework out, or fill their column framework")

        def what_fits() -> str:
            from forerun.advisor.explaining import remedies

            return remedies(self.predictor, asked, place, fields, emit)

        chosen: tuple[str, ...] = ()
        if set(fields) >= set(FIELDS):
            whole = Plan(**fields)
        else:
            fixed = {name: value for name, value in fields.items() if name != "global_batch"}
            whole, note = self._best_plan(asked, place, fixed, batch, emit, what_fits)
            if note:
                notes = (*notes, note)
                chosen = tuple(n for n in FIELDS if n not in fields and n != "global_batch")
        job = Job(asked, place, whole)
        found = answer.answer_of(
            self.predictor, job, long, market, preemption, chosen, notes, limits
        )
        if found.estimate.fit_probability < answer.MAY_FIT:
            found = replace(found, warnings=(*found.warnings, *filter(None, [what_fits()])))
        return found

    def _best_plan(
        self, workload: Workload, cluster: Cluster, fixed: Mapping[str, Any], batch: int, emit: str,
        what_fits: Callable[[], str],
    ) -> tuple[Plan, str]:  # fmt: skip
        """Return what `best_plan` does, kept for the latest questions: no length, price or limit moves it."""
        from forerun.search.score import best_plan

        priceless = {"dollars_per_hour": None, "spot_dollars_per_hour": None, "price_source": ""}
        unpriced = replace(cluster, **priceless)  # type: ignore[arg-type]
        # Named workloads are one object each. Others are let go: their ids may come again.
        key = (id(self.predictor), id(workload), unpriced, tuple(fixed.items()), batch, emit)
        known, found = self._plans.get(key, (None, None))
        if found is None or known is None or known() is not workload:
            found = best_plan(
                workload, cluster, self.predictor, fixed=fixed, global_batch=batch,
                lacking=partial(refused_plans, emit) if emit else None, what_fits=what_fits,
            )  # fmt: skip
            self._plans[key] = ref(workload), found
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        return found

    def predict_table(
        self, table: Table | Any, *, length: Length | None = None, market: str = "on-demand",
        goodput: float | None = None, preemption: Preemption | None = None,
    ) -> Any:  # fmt: skip
        """Return a runs table (or data frame) with the answers as added columns; arguments as of `predict`.

        Raises:
            RequestError: the columns are wrong (see `forerun.read_table`).
        """
        from forerun.advisor.tabular import predict_table

        lost = preemption or Preemption()
        lost = lost if goodput is None else replace(lost, goodput=goodput)
        return predict_table(self, table, length, market, lost)

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
        goodput: float | None = None,
        objective: Objective | None = None,
        length: Length | None = None,
        plan: PlanLike = None,
        global_batches: int | Sequence[int] | None = None,
        region: str | None = None,
        providers: Sequence[str] | None = None,
        devices: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        min_ram: str | float | None = None,
        min_vcpus: float | None = None,
        energy: bool = False,
        emit: str = "",
        inputs: Any = None,
        **request: Unpack[answer.JobRequest],
    ) -> Recommendation:
        """Return which cluster and plan to use, the Pareto front, and what was refused and why.

        Args:
            clusters: whole clusters (`4x8xh100-sxm-80gb`), or devices or machines alone
                (`h100-sxm-80gb`), whose number of nodes is then searched; by default the cheapest
                machine of each kind of accelerator, count and network.
            minimize: time, cost, knee or energy.
            confidence: probability of fitting and meeting deadline and budget, all together.
            objective: replaces minimize, deadline, budget, confidence, market and goodput (as in `predict`).
            plan: fields to hold fixed. global_batches: samples in a step, of which one is chosen.
            length, steps, samples, tokens, epochs: as in `predict`. inputs, seq_len ... task: see `workload`.
            providers: clouds; devices: names, families (`h100`), makers or kinds (`gpu`); exclude: these, machines
                or regions; min_ram: of a machine's host, GB or text such as `1.5TiB`; min_vcpus: of a machine.
            energy: make kWh a third axis of the Pareto front. emit: a launch target, which limits clusters and plans.

        Raises:
            RequestError: the request is wrong.
        """
        from forerun.advisor.recommending import MachineChoice, recommend

        aim = objective or Objective(
            aim=minimize, confidence=confidence, market=market, **vars(answer.limits_of(deadline, budget)),
            preemption=Preemption(goodput=goodput),
        )  # fmt: skip
        length, changes = answer.taken_apart(length, request)
        asked, fixed = self.workload(workload, inputs, **changes), answer.plan_fields(plan)
        fixed = {**stated_fields(asked.framework), **fixed}
        refuse_plan(asked.framework, {**vars(asked), **fixed})
        return recommend(
            self.predictor, self.catalog, asked, aim, answer.length_to_meet(asked, length, aim),
            fixed, answer.items_of(global_batches), answer.items_of(clusters) if clusters else clusters, max_devices, region or None,
            MachineChoice(
                answer.items_of(providers), answer.items_of(devices), answer.items_of(exclude),
                0.0 if min_ram is None else parse_bytes(min_ram), min_vcpus or 0.0,
            ), energy, emit,
        )  # fmt: skip

    def provision(
        self,
        workload: Any,
        machine: str | Cluster,
        *,
        machines: int | None = None,
        dollars_per_hour: float | None = None,
        length: Length | None = None,
        plan: PlanLike = None,
        global_batch: int | None = None,
        partitions: int | Mapping[str, int] | None = None,
        threads: int | None = None,
        speeds: Sequence[float] = (),
        region: str | None = None,
        inputs: Any = None,
        **request: Unpack[answer.JobRequest],
    ) -> Provision:
        """Return replicas, cuts of layers, threads and servers that end soonest on so many machines.

        Args:
            machine: one node, as an instance or device; of a whole cluster its nodes, all of them by default.
            machines: the most of them, servers included. dollars_per_hour: of them all, instead.
            length: by default the workload's usual one, else an epoch.
            plan: of dp, sync, parameter_servers, stale_bound, gradient_bits, micro_batch and memory_format what is
                fixed. With a micro_batch and no global batch each replica has so many samples a step.
            partitions: parts of the most-cut layer, or of layers by name, {"fc6": 4, "conv*": 2}; by default what is best.
            threads: of a worker on a CPU; by default what is best.
            speeds: of each machine over the fastest, by falling speed; those that are used are the fastest, and
                replicas take as long as the slowest of them.

        Raises:
            RequestError: the request is wrong. UnsatisfiedError: nothing fits in memory.
        """
        from forerun.advisor.provisioning import (
            ProvisionRequest,
            machine_of,
            machines_for,
            provisioned,
        )

        length, changes = answer.taken_apart(length, request)
        asked = self.workload(workload, inputs, **changes)
        node, most = machine_of(self.catalog, machine, region)
        if dollars_per_hour is not None:
            paid = machines_for(dollars_per_hour, node)
            machines = paid if machines is None else min(machines, paid)
        fixed = answer.with_count(answer.plan_fields(plan), "global_batch", global_batch)
        if length is None and asked.length is None and asked.dataset_size > 0:
            length = Length("epochs", 1, "assumed")
        long, _ = answer.length_to_meet(asked, length, answer.limits_of(None, None))
        many = most if machines is None else machines
        cuts = (partitions, tuple(speeds), threads)
        return provisioned(self.predictor, ProvisionRequest(asked, node, many, long, fixed, *cuts))

    @_asked_as(predict)
    def explain(
        self, workload: Any, cluster: str | Cluster, plan: PlanLike = None, **request: Any
    ) -> answer.Explanation:
        """Return where time and memory go, and what would change them; takes and raises as `predict`."""
        from forerun.advisor.explaining import explanation_of

        return explanation_of(self.predictor, self.predict(workload, cluster, plan, **request))

    def support(self, workload: Any, *, inputs: Any = None, **changes: Any) -> answer.Support:
        """Return what is covered for a workload, before anything runs. Raises as `workload`."""
        from forerun.advisor.explaining import support_of

        return support_of(self.predictor, self.workload(workload, inputs, **changes))


def usual_advisor() -> Advisor:
    """Return the advisor that the settings choose."""
    settings = load_settings()
    # Shipped constants are the usual start, and not all predictors have any.
    start = PRIORS if settings.text("start") == PRIORS else ""
    name, model = settings.text("predictor"), settings.text("model")
    return Advisor(settings.catalog_files, name, model, start)


# What names of other tools, and of the command line, mean.
_MEANT = {
    "spot": ("market='spot'",), "batch_size": ("global_batch", "global_batches"),
    "gpus": ("cluster='1x8xa100'", "clusters='1x8xa100'", "machine='1x8xa100'"),
}  # fmt: skip


def _by_settings(method: Callable[Concatenate[Advisor, P], R]) -> Callable[P, R]:
    """Return a method as a function: that of the advisor that the settings choose, each argument by its name."""

    @wraps(method)
    def call(*args: P.args, **named: P.kwargs) -> R:
        for name in named.keys() - signature(call).parameters.keys():
            known, hint = signature(call).parameters, f"(see help(forerun.{method.__name__}))"
            meant = [words for words in _MEANT.get(name, ()) if words.partition("=")[0] in known]
            raise UnknownNameError("argument", name, known, hint, meant or None)
        return method(usual_advisor(), *args, **named)

    _, *parameters = signature(method).parameters.values()
    if "JobRequest" in str(parameters[-1].annotation):
        parameters[-1:] = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in get_type_hints(answer.JobRequest).items()
        ]
    call.__signature__ = signature(method).replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


predict = _by_settings(Advisor.predict)
recommend = _by_settings(Advisor.recommend)
provision = _by_settings(Advisor.provision)
explain = _by_settings(Advisor.explain)
predict_table = _by_settings(Advisor.predict_table)


def profile(
    campaign: str | Path | Mapping[str, Any], runner: TaskRunner | None = None, store: str = "",
    told: Callable[[CampaignProgress], None] = lambda progress: None,
) -> Table:  # fmt: skip
    """Measure the runs of a campaign (file or fields) that the store lacks, and return all of them.

    store: a file or URL; blank is the setting `store`. told: called with the progress after each run.

    Raises:
        RequestError: a field that cannot be, or no run of it can be carried out.
    """
    from forerun.advisor.measuring import Profiling
    from forerun.measure.campaign_file import campaign as campaign_of
    from forerun.measure.campaign_file import read_campaign
    from forerun.registry import load
    from forerun.store import open_store

    asked = campaign_of(campaign) if isinstance(campaign, Mapping) else read_campaign(campaign)
    carrier = runner or load("runners", asked.runner)()
    with open_store(store) as opened:
        profiling = Profiling(asked, carrier, opened, usual_advisor())
        profiling.carried_out(told)
        return profiling.results()
