"""Suggesting: the next runs among the rows of a table, or for a recommendation, with their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import yaml

from forerun.advisor.advisor import Advisor
from forerun.advisor.answer import MAY_FIT
from forerun.advisor.explaining import CAUSE_WORDS
from forerun.advisor.given_runs import IDENTITY
from forerun.advisor.recommending import LEADING_COUNT, node_counts
from forerun.advisor.tabular import answer_columns, planned
from forerun.arrays import IntArray
from forerun.catalog import Catalog
from forerun.contracts import LinearPredictor, Predictor
from forerun.domain.forecast import Forecasts
from forerun.domain.job import Job, job_problem
from forerun.domain.plan import parse_plan
from forerun.domain.recommendation import Option, Recommendation
from forerun.domain.workload import Length
from forerun.errors import ForerunError, RequestError, UnsatisfiedError
from forerun.measure.campaign_file import campaign
from forerun.predictors.laws.ernest import Ernest
from forerun.predictors.laws.law_rows import LawRows
from forerun.search.design import suggest_by_design
from forerun.search.landscape import dollars_per_hour
from forerun.search.suggestion import (
    DOLLARS,
    NextRun,
    Request,
    Suggestion,
    run_prices,
    suggest_for_accuracy,
    suggest_for_decision,
)
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.tables.jobs import job_columns, join_tables
from forerun.tables.own_columns import read_as
from forerun.tables.table import OwnColumns, iter_rows
from forerun.units import SECONDS_PER_HOUR, counted, format_dollars, format_percent, format_seconds
from forerun.workloads.own_labels import OwnLabels
from forerun.workloads.rows import jobs_from_table

RUN_STEPS = 100
MOST_SECONDS = 600.0
# Machines that start, containers, data and compilation: minutes, whatever the job.
STARTUP_SECONDS = 180.0
_MOST = 1500  # candidates, and wanted jobs, whose errors are looked at together
_MOST_OPTIONS = 24
_LOOKED_AT = 200  # wanted jobs that are looked at for whether any is answered
# What tells jobs apart beside workload, cluster and batch, and how much of it a label shows.
_TELL_APART, _MOST_SHOWN = (
    "dataset_size", "sync", "parameter_servers", "learning_rate", "precision", "framework",
    "seq_len", "image_size", "micro_batch", "tp", "pp", "zero_stage", "recompute",
), 3  # fmt: skip
_TELLING = 0.1  # of the doubt: what a run tells less of is not shown


@dataclass(frozen=True)
class SuggestOptions:
    """What next runs are for, and what they may cost.

    goal: accuracy or decision. criterion: V, A or D, of designs. minimize: time or cost.
    times: how often the chosen job will be run. Others: see `run_prices` and `Request`.
    """

    budget: float = np.inf
    count: int | None = None
    goal: str = "accuracy"
    criterion: str = ""
    run_steps: int = RUN_STEPS
    startup_seconds: float = STARTUP_SECONDS
    most_seconds: float = MOST_SECONDS
    minimize: str = "cost"
    deadline_seconds: float = np.inf
    times: float = 1.0
    length: Length | None = None
    market: str = "on-demand"


@dataclass(frozen=True)
class Suggested:
    """Next runs with their labels, reasons and rows; the option chosen now; the count of candidates."""

    suggestion: Suggestion
    labels: tuple[str, ...]
    reasons: tuple[str, ...]
    chosen: str
    table: Table
    predictor: str
    considered: int
    notes: tuple[str, ...]


class FittedAdvisor(NamedTuple):
    """Who answers, fitted on runs, or before any; `made` are jobs that were run, their times not at hand."""

    advisor: Advisor
    runs: Runs | None = None
    made: Table | None = None
    notes: Sequence[str] = ()


def suggest_from_table(
    who: FittedAdvisor, candidates: Table, wanted: Table | None, options: SuggestOptions
) -> Suggested:
    """Return the next runs among the rows of a table, by default for the answers of the same rows.

    Raises:
        RequestError: no candidates that can be answered, or a criterion where no design is made.
        UnsatisfiedError: all were run already, or none can be paid for.
    """
    for name, table in (("candidates", candidates), ("asked jobs", wanted)):
        if table is not None and not len(table):
            raise RequestError("the next runs", f"the table of {name} has no rows", "give some")
        if table is not None and not any(column in COLUMNS for column in table.columns):
            raise RequestError(
                "the next runs", f"the table of {name} has no column of a job ({', '.join(table.columns)})",
                "give columns such as workload, device, devices and global_batch (docs/tables.md)",
            )  # fmt: skip
    (advisor, runs, made, _), predictor = who, who.advisor.predictor
    own = made.own if made is not None else OwnColumns() if runs is None else runs.table.own
    candidates = read_as(candidates, own)
    wanted = None if wanted is None else read_as(wanted, own)
    rows, notes = _open_rows(candidates, [None if runs is None else runs.jobs.labels, made])
    n, both = len(rows), candidates.take(rows)
    if wanted is not None:
        both = join_tables([both, wanted.take(_evenly(np.arange(len(wanted))))])
        if len(wanted) > _MOST:
            notes.append(f"{_MOST:,} of {len(wanted):,} asked jobs looked at, evenly spread")
    known = None if made is None or not len(made) else jobs_from_table(made, advisor.catalog)
    labels = OwnLabels.of(known if runs is None else runs.jobs)
    jobs = jobs_from_table(both, advisor.catalog, labels.read)
    jobs, chosen, _ = planned(predictor, jobs, both)
    both = both.with_columns(suggested_plan=chosen)
    request, forecasts = _request(predictor, jobs, n, runs, options)
    prices = request.prices
    if np.isfinite(options.budget) and prices.unit != DOLLARS:
        notes.append(
            f"the budget of {options.budget:g} counts {prices.unit}, not dollars: no candidate has a"
            " price (price_usd_per_hour)"
        )
    doomed = forecasts.fit_probability[:n] < MAY_FIT
    if doomed.any():
        notes.append(f"{counted(int(doomed.sum()), 'candidate')} left out: too little memory")
        prices = replace(prices, amount=np.where(doomed, np.nan, prices.amount))
    asked = request.candidates if wanted is None else request.wanted
    request = replace(request, prices=prices, made=known, wanted=asked)
    return _shown(_by_goal(request, forecasts, options), request, both, (*who.notes, *notes))


def _request(
    predictor: Predictor, jobs: Jobs, n: int, runs: Runs | None, options: SuggestOptions
) -> tuple[Request, Forecasts]:
    """Return the request and forecasts of jobs; the first n are candidates, the others wanted."""
    first, forecasts = np.arange(n), predictor.predict(jobs)
    prices = run_prices(
        jobs.take(first), forecasts.take(first), options.run_steps, options.startup_seconds,
        options.most_seconds,
    )  # fmt: skip
    wanted = np.arange(n, len(jobs))
    budget, count = options.budget, options.count
    return Request(predictor, jobs, first, wanted, prices, budget, count, runs), forecasts


def _open_rows(candidates: Table, made: Sequence[Table | None]) -> tuple[IntArray, list[str]]:
    """Return the rows of candidates that are looked at, (m,), and notes on the others.

    A candidate was run already that equals a run in every column that says what a job is.
    """
    done = np.zeros(len(candidates), dtype=bool)
    for had in made:
        if had is None or not len(had) or "workload" not in candidates or "workload" not in had:
            continue
        asked = (*IDENTITY, *candidates.own.factors)
        names = [name for name in asked if name in candidates and name in had]
        # Two tables may say in other columns where a job runs: one that says it otherwise is another
        # job. A candidate of so many devices, which leaves open on how many nodes, was run on any.
        for name in ("cluster", "device", "nodes", "devices"):
            lacking = name not in names and (name in candidates or name in had)
            placed = {"device", "devices"} <= {*names} and name == "nodes" not in candidates
            if lacking and not placed:
                names.append(name)
        known = {*_keys(had, names)}
        done |= np.array([key in known for key in _keys(candidates, names)], dtype=bool)
    if done.all():
        raise UnsatisfiedError(
            f"the next runs among {counted(len(candidates), 'candidate')}",
            "every one of them was run already", "give other candidates",
        )  # fmt: skip
    first: dict[tuple[Any, ...], int] = {}
    names = [name for name in (*IDENTITY, *candidates.own.factors) if name in candidates]
    for i, key in enumerate(_keys(candidates, names)):
        if not done[i]:
            first.setdefault(key, i)
    rows, ran = np.array([*first.values()], dtype=np.int64), int(done.sum())
    left_out = {"run already": ran, "the same job as another": len(done) - ran - len(rows)}
    notes = [f"{counted(n, 'candidate')} left out: {why}" for why, n in left_out.items() if n]
    if len(rows) > _MOST:
        notes.append(f"{_MOST:,} of {len(rows):,} candidates looked at, evenly spread")
    return _evenly(rows), notes


def _evenly(rows: IntArray, most: int = _MOST) -> IntArray:
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)])


def _keys(table: Table, names: list[str]) -> list[tuple[Any, ...]]:
    columns = [
        np.nan_to_num(table.numbers(name), nan=-1.0).tolist()
        if name in COLUMNS and COLUMNS[name].kind == "number"
        else [text.strip().lower() for text in table.texts(name)]
        for name in names
    ]
    return list(zip(*columns, strict=True))


def _by_goal(request: Request, forecasts: Forecasts, options: SuggestOptions) -> Suggestion:
    if options.goal == "decision":
        _refuse_criterion(options, "a choice is made", "leave it out, or use --goal accuracy")
        title = "which run would change the choice"
        jobs, part = request.jobs.take(request.wanted), forecasts.take(request.wanted)
        rows, each = LawRows(jobs), part.seconds[:, 1]
        kinds, index = rows.kinds
        names = sorted({kinds[i][0] for i in index[np.isfinite(each)].tolist()})
        if len(names) > 1:
            raise RequestError(
                title, f"{len(names)} workloads: {', '.join(names[:4])}",
                "give jobs of one workload with --asked, or use --goal accuracy",
            )  # fmt: skip
        columns = answer_columns(jobs, [part], options.length, options.market)
        with np.errstate(divide="ignore", invalid="ignore"):
            times = columns["predicted_wall_time_s"] / each
        if np.isfinite(each).any() and not np.isfinite(times).any():
            raise RequestError(
                title, "it is not known how long the jobs are",
                "say it with --steps, --samples or --epochs, or in columns of the table",
            )  # fmt: skip
        times = np.where(part.fit_probability < MAY_FIT, np.nan, times)
        dollars = dollars_per_hour(jobs) / SECONDS_PER_HOUR
        # Of each wanted job the objective for a second of its forecast, and its latest second.
        scale = times * (1.0 if options.minimize == "time" else dollars)
        latest = options.deadline_seconds / times
        unit = "seconds" if options.minimize == "time" else DOLLARS
        return suggest_for_decision(request, scale, latest, unit, options.times)
    why = f"{request.predictor.name} offers no linear features to design by"
    instead = "name a predictor that does (--predictor ernest)"
    if isinstance(request.predictor, LinearPredictor):
        fitted = bool(getattr(request.predictor, "laws", {}))
        if request.runs is not None or request.made is not None or not fitted:
            return suggest_by_design(request, options.criterion or "V")
        why = "the model was saved without the jobs of the runs it was fitted to"
        instead = "give them with --runs, or fit it again"
    _refuse_criterion(options, why, instead)
    return suggest_for_accuracy(request)


def _refuse_criterion(options: SuggestOptions, why: str, instead: str) -> None:
    if options.criterion:
        found = f"it applies to optimal designs, and {why}"
        raise RequestError(f"--criterion {options.criterion}", found, instead)


def suggest_for_workload(
    who: FittedAdvisor, found: Recommendation, options: SuggestOptions
) -> Suggested:
    """Return the runs that would change the choice among a recommendation's best jobs and front.

    Candidates are short runs of their plans on 1, 2, 4 ... nodes, the batch of each replica as it is.

    Raises:
        RequestError: a criterion of designs is named, or the aim is neither time nor cost.
        UnsatisfiedError: nothing was recommended; or no run can be paid for.
    """
    why = "those are of the rows of a table"
    _refuse_criterion(options, why, "leave it out, or give --candidates")
    if found.best is None:
        raise UnsatisfiedError(
            "the runs that would settle a recommendation", "nothing satisfies the limits",
            "see `forerun recommend` for the nearest misses",
        )  # fmt: skip
    among: list[Option] = []
    for option in (found.best, *found.alternatives, *found.front):
        if len(among) < _MOST_OPTIONS and all(option.job != other.job for other in among):
            among.append(option)
    wanted = [option.job for option in among]
    smaller = list(_smaller(who.advisor.catalog, wanted))
    jobs = Jobs.of([*smaller, *wanted])
    request, _ = _request(who.advisor.predictor, jobs, len(smaller), who.runs, options)
    if options.goal == "accuracy":
        return _shown(suggest_for_accuracy(request), request, job_columns(jobs), who.notes)
    aim, deadline = found.compared_by, found.objective.deadline_seconds
    if aim not in ("cost", "time"):
        raise RequestError(
            f"the runs that would change a choice by {aim}", "it is no sum over the jobs",
            "use --minimize time or cost",
        )  # fmt: skip
    forecasts = [option.estimate.forecast for option in among]
    step = np.array([np.nan if f is None else f.seconds[1] for f in forecasts])
    run, dollars = (
        np.array([getattr(option.estimate, name)[1] for option in among])
        for name in ("wall_seconds", "dollars")
    )
    latest = (np.inf if deadline is None else deadline) * step / run
    scale, unit = (run, "seconds") if aim == "time" else (dollars, DOLLARS)
    answer = suggest_for_decision(request, scale / step, latest, unit, options.times)
    best = f"`forerun recommend` names {found.best.job.cluster.name} ({found.best.job.plan}), which meets the limits"
    note = f"{best}; the job chosen now has the least expected {aim}, a late run counted twice"
    notes = [] if answer.chosen == len(smaller) else [note]
    return _shown(answer, request, job_columns(jobs), (*who.notes, *notes))


def _smaller(catalog: Catalog, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield each job on 1, 2, 4 ... nodes up to its own, its replicas fewer and their batch kept."""
    seen: set[tuple[Any, ...]] = set()
    for job in jobs:
        cluster, plan = job.cluster, job.plan
        text = LEADING_COUNT.sub("", cluster.name)
        whole = cluster.devices // plan.dp
        for nodes in [*node_counts(1, cluster.nodes - 1), cluster.nodes]:
            devices = nodes * cluster.devices_per_node
            batch, rest = divmod(plan.global_batch * devices, cluster.devices)
            if devices % whole or rest:
                continue
            less = replace(plan, dp=devices // whole, global_batch=batch)
            key = (text, nodes, cluster.region, less)
            if key in seen:
                continue
            seen.add(key)
            place = cluster
            if nodes != cluster.nodes:
                place = catalog.cluster(f"{nodes}x{text}", region=cluster.region or None)
            if job_problem(job.workload, place, less) is None:
                yield Job(job.workload, place, less)


def _shown(
    found: Suggestion, request: Request, table: Table, notes: Sequence[str] = ()
) -> Suggested:
    jobs, rows = request.jobs, np.array([run.row for run in found.runs], dtype=np.int64)
    places = np.searchsorted(request.candidates, rows)
    reasons = tuple(_reason(found, run) for run in found.runs)
    added = table.take(rows).with_columns(
        suggested_order=np.arange(1.0, len(rows) + 1),
        suggested_price=np.array([run.price for run in found.runs]),
        suggested_price_unit=np.full(len(rows), found.unit, dtype=object),
        suggested_run_s=request.prices.seconds[places],
        suggested_run_steps=request.prices.steps[places],
        suggested_reason=np.array(reasons, dtype=object),
    )
    return Suggested(
        found, tuple(_label(jobs, int(i), table) for i in rows), reasons,
        _label(jobs, found.chosen, table) if found.chosen >= 0 else "", added,
        request.predictor.name, len(request.candidates), (*notes, *found.notes),
    )  # fmt: skip


def _reason(found: Suggestion, run: NextRun) -> str:
    if found.goal == "design":
        name, times = run.term
        if np.isinf(times):
            return f"without it {name} could not be separated from the other terms"
        return f"without it the variance of {name} would be {times:.2g} times as large"
    of, words = "the answers", []
    if found.goal == "decision":
        of = "the job chosen now"
        saved = format_dollars(run.gain) if found.objective == DOLLARS else format_seconds(run.gain)
        words = [
            f"changes the choice in {format_percent(run.changes)} of what it may show, which saves"
            f" {saved} on average",
            f"settles {format_percent(run.of_chosen)} of the doubt about {of}",
        ]
    telling = [
        f"{CAUSE_WORDS.get(scope, scope)} ({format_percent(part)})"
        for scope, part in run.tells.items() if part >= _TELLING
    ][:2]  # fmt: skip
    if telling:
        words.append(f"informs on {' and '.join(telling)}")
    words.append(f"leaves an error of {error_words(run.error)} on {of}")
    return "; ".join(words)


def error_words(sigma: float) -> str:
    """Return a standard deviation of logs as an error in per cent; no figure beyond x1,000."""
    return format_percent(np.expm1(sigma), 1) if sigma < np.log(1000.0) else "x1,000 or more"


def _label(jobs: Jobs, i: int, table: Table) -> str:
    if jobs.resolved[i]:
        job = jobs[i]
        words = [f"{job.workload.name} on {job.cluster.name}", f"batch {job.plan.global_batch:,}"]
    else:
        rows = LawRows(jobs.take(np.array([i])))
        name, device = rows.kinds[0][0][:2]
        size = rows.size("global_batch")[0]
        place = f"{rows.machines[0]:g} x {device or 'device'}"
        batch = [f"batch {size:,.0f}"] if np.isfinite(size) else []
        words = [f"{name or 'a job'} on {place}", *batch]
    differ = [name for name in _TELL_APART if name in table and len({*table.texts(name)}) > 1]
    cells = ((name, table.texts(name)[i]) for name in differ[:_MOST_SHOWN])
    return ", ".join((*words, *(f"{name} {text}" for name, text in cells if text)))


def why_unanswered(advisor: Advisor, wanted: Table) -> str:
    """Return why an advisor's predictor answers none of the jobs; "" where it answers any."""
    part = wanted.take(_evenly(np.arange(len(wanted)), _LOOKED_AT))
    jobs = jobs_from_table(part, advisor.catalog, advisor.labels.read)
    forecasts = advisor.predictor.predict(planned(advisor.predictor, jobs, part)[0])
    if not len(part) or np.isfinite(forecasts.seconds[:, 1]).any():
        return ""
    return next((str(reason) for reason in forecasts.declined if reason), "it declines them")


def first_runs(
    who: FittedAdvisor, why: str, candidates: Table, catalog_files: Sequence[str]
) -> FittedAdvisor | None:
    """Return an advisor that designs first runs; None where candidates do not state their devices."""
    advisor = Advisor(catalog_files, Ernest.name)
    features = Ernest().linear_features(jobs_from_table(candidates, advisor.catalog))
    if not np.isfinite(features).all(axis=1).any():
        return None
    notes = [
        f"{who.advisor.predictor.name} does not answer yet: {why}",
        f"so these are first runs by the terms of {Ernest.name} (devices and size), which takes"
        f" {Ernest.needed}, for each workload and device",
    ]
    return who._replace(advisor=advisor, notes=notes)


_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# Columns of a row that are fields of a campaign's run, and what each is called there.
_WHOLE = {"devices": "workers", "global_batch": "global_batch", "dataset_size": "dataset_size",
          "threads": "threads"}  # fmt: skip
# Forerun's own loop is data-parallel by all-reduce: the values of plan fields that it has.
_PLAIN = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "vpp"), "1"), "zero_stage": "0", "recompute": "none",
    "sync": "allreduce",
}  # fmt: skip


def campaign_text(
    found: Suggested, entries: Mapping[str, str], catalog: Catalog, name: str,
    budget: float = np.inf,
) -> str:  # fmt: skip
    """Return suggested runs as the text of a campaign file; entries: what to train for a workload.

    Raises:
        RequestError: no run, or one that the campaign cannot carry out.
    """
    table, title = found.table, f"a campaign of {counted(len(found.table), 'suggested run')}"
    if not len(table):
        raise RequestError(title, f"no run is suggested: {found.suggestion.stop}", "leave it out")
    workloads = {}
    for label in dict.fromkeys(table.texts("workload")):
        entry = entries.get(label) or (label if _MODULE.fullmatch(label) else "")
        if not entry:
            raise RequestError(
                title, f"it is not known what to train for {label or 'a row without a workload'}",
                f"say it with --entry {label or 'NAME'}=package.module:callable, or a script (.py)",
            )  # fmt: skip
        workloads[label] = {"entry": entry}
    fields: dict[str, Any] = {"name": name, "workloads": workloads}
    for column in ("device", "node_gbps", "interconnect"):
        text, *others = dict.fromkeys(table.texts(column))
        if others:
            texts = ", ".join(one or "blank" for one in (text, *others))
            raise RequestError(
                title, f"the runs are of several {column}: {texts}",
                "one kind of machine carries a campaign out: give candidates of one, or a campaign each",
            )  # fmt: skip
        if text and column == "device":
            fields["device"] = text
        elif text:
            value = float(text) if column == "node_gbps" else text
            fields.setdefault("asked", {})[column] = value
    gpu = False
    with suppress(ForerunError):  # a label of one's own
        gpu = "device" in fields and catalog.device(fields["device"])[0].kind == "gpu"
    runs = [_run(row, table.own.factors, gpu, title) for row in iter_rows(table)]
    counts = table.numbers("suggested_run_steps")
    if np.isfinite(counts).any():
        fields["steps"] = {"most": int(np.nanmax(counts))}
    hourly = table.numbers("price_usd_per_hour") / table.numbers("devices")
    if np.isfinite(hourly).all() and np.ptp(hourly) <= 1e-6 * hourly.max():
        fields["price_usd_per_worker_hour"] = round(float(hourly[0]), 6)
    if np.isfinite(budget) and found.suggestion.unit == DOLLARS:
        fields["budget"] = {"dollars": float(budget)}
    campaign({**fields, "runs": runs}, name)  # raises what the campaign could not carry out
    lines = [f"# Suggested for {found.predictor}; carry it out: forerun profile THIS_FILE"]
    lines += yaml.safe_dump(fields, sort_keys=False, allow_unicode=True).splitlines()
    lines.append("runs:")
    for run, reason in zip(runs, found.reasons, strict=True):
        flow = yaml.safe_dump(run, sort_keys=False, default_flow_style=True, width=10_000)
        lines += [f"  # {reason}", f"  - {flow.strip()}"]
    return "\n".join(lines) + "\n"


def _run(row: Mapping[str, Any], factors: Sequence[str], gpu: bool, title: str) -> dict[str, Any]:
    cells = {**row, **parse_plan(str(row.get("suggested_plan", "")))}
    odd = [
        f"{name}={cells[name]}" for name, usual in _PLAIN.items()
        if str(cells.get(name, "")).strip().lower().removesuffix(".0") not in ("", usual)
    ]  # fmt: skip
    if odd:
        raise RequestError(
            title, f"{row['workload']} with {', '.join(odd)}: forerun's own loop trains data-parallel"
            " by all-reduce", "fix the plan with --plan, or measure a training script of your own",
        )  # fmt: skip
    run: dict[str, Any] = {"workload": row["workload"]}
    run |= {ours: int(row[name]) for name, ours in _WHOLE.items() if row.get(name)}
    run |= {name: str(row[name]) for name in ("precision", "optimizer") if row.get(name)}
    if row.get("cpus_per_worker"):
        run["cpus_per_worker"] = float(row["cpus_per_worker"])
    if gpu:
        run["gpus_per_worker"] = 1
    micro, batch = float(cells.get("micro_batch") or 0), float(run.get("global_batch", 0))
    if micro and (passes := batch / (micro * run.get("workers", 1))) > 1:
        run["settings"] = {"accumulate": int(passes)}
    # Columns of a user's own are arguments of what is trained.
    own = {name: row[name] for name in factors if name in row}
    whole = {n: int(v) for n, v in own.items() if isinstance(v, float) and v.is_integer()}
    return {**run, "settings": {**run.get("settings", {}), **own, **whole}} if own else run
