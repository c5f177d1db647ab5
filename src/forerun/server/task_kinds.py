"""Task kinds: what long work may be asked for, how its request is checked, and how a process carries it out."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, conlist

from forerun import registry
from forerun.advisor import Advisor
from forerun.advisor.answer import limits_of
from forerun.errors import ForerunError, RequestError, UnsatisfiedError
from forerun.measure import builtin, campaign_file
from forerun.measure.cgroups import usable_cores
from forerun.measure.elastic import job as elastic_job
from forerun.measure.pace import Band, Pace
from forerun.measure.runner import TaskRunner
from forerun.progress import TrainingStep, progress_to
from forerun.server.questions import (
    MODEL,
    RECOMMEND,
    ROWS,
    SERVED,
    Fields,
    Questions,
    check_predictor,
    closed,
    has_table,
    printed,
)
from forerun.systems.recipe import predictor_spec
from forerun.tables import Runs
from forerun.units import counted, parse_duration
from forerun.wire import SCHEMA, clean
from forerun.yaml_files import Section

_REPORT_SECONDS = 0.5
_NAME = r"^[A-Za-z0-9][\w.-]{0,79}$"  # of a model
_MOST_POINTS = 2000  # of a campaign: they are made while its sender waits
_WORKERS_A_CORE = 4
_YES = 'or "yes": true'
_WHERE: Fields = {**ROWS, "where": (conlist(str, max_length=20), [])}
_CAMPAIGN = closed("Campaign", {
    **dict.fromkeys(campaign_file.TOP, (Any, None)), "name": (str, Field(min_length=1, max_length=200)),
    "workloads": (dict[str, dict[str, Any]], ...), "retry": (bool, True), "yes": (bool, False),
})  # fmt: skip
_SEARCH = closed("Search", {
    **_WHERE, "space": (dict[str, Any] | None, None), "searcher": (str, "bayesian"), "minimize": (str, "cost"),
    "max_runs": (int, Field(30, ge=1)), "seed": (int, Field(0, ge=0)), "no_stop": (bool, False),
    "retry": (bool, False), "parallel": (int, Field(1, ge=1)), "price": (float | None, Field(None, ge=0)), "yes": (bool, False),
    **dict.fromkeys(("deadline", "within", "budget"), (str | float | None, None)),
})  # fmt: skip
_PART: Any = closed("Part", {**_WHERE, "name": (str, Field(max_length=200))})
_LEARN: Fields = {**_WHERE, "start": (str, ""), "own_columns": (str, "")}
_NAMED: Fields = {**_LEARN, "name": (str, Field(pattern=_NAME))}
_FIT = closed("Fit", {
    **_NAMED, **dict.fromkeys(("predictor", "system"), (str | None, None)), "encoder": (str | None, None),
})  # fmt: skip
_OWN_ENCODERS = ("digits", "quantities", "residual")  # words of an option of predictddl
_QUANTITIES = "predictddl:encoder=quantities"
_TRAINED = r"predictddl:(.*:)?encoder=(graphormer-)?(quantities|residual)(:.*)?"
_ENCODER = closed("Encoder", {
    **_NAMED, "predictor": (str, Field(_QUANTITIES, pattern=f"^{_TRAINED}$")),
})  # fmt: skip
_EVALUATE = closed("Evaluate", {
    **_LEARN, "predictors": (conlist(str, min_length=1, max_length=50), ...), "split": (str, "random"),
    "folds": (int, Field(0, ge=0, le=100)), "seed": (int, Field(0, ge=0)), "group_by": (str, ""),
    "faster_half": (list[str], []), "table": (str, "runs"),
    **dict.fromkeys(("tables", "fit"), (conlist(_PART, max_length=100) | None, None)),
})  # fmt: skip
_OUTSIDE = ("earlier", "known")  # fields of a training job that name files
_TRAIN = closed("Train", {
    **{name: (Any, None) for name in elastic_job.FIELDS if name not in _OUTSIDE}, "entry": (str, ...),
})  # fmt: skip


class Report:
    """What a task says of itself while it is carried out. store: of the task. by: whose turn it is."""

    def __init__(self, store: Any, key: str, by: str) -> None:
        self._store, self.task, self._by = store, key, by
        self.place = ""  # where it is carried out, behind each note
        self._done: tuple[int, int | None] = (0, None)
        self._last = -math.inf

    def note(self, words: str) -> None:
        """Report what is done now; of many notes, some a second are kept."""
        if time.monotonic() - self._last > _REPORT_SECONDS:
            self.count(*self._done, words)

    def count(
        self, done: int, of: int | None, note: str, runs: Iterable[Fields] = (), eta: Band | None = None
    ) -> None:  # fmt: skip
        """Report how far it is, runs, and seconds until its end. Raises RequestError where it is another's task now."""
        self._done, self._last, rows = (done, of), time.monotonic(), clean(list(runs))
        note += self.place
        if not self._store.tasks.report(self.task, self._by, done, of, note, rows, eta):
            raise RequestError(f"the task {self.task}", "another process has it by now", "leave it")


@dataclass(frozen=True)
class Bench:
    """What a task is carried out with. ray: the cluster of its runs, "" for this machine. folder: for its files."""

    questions: Questions
    report: Report
    ray: str
    folder: Path

    @property
    def advisor(self) -> Advisor:
        """Who answers questions of the service."""
        return self.questions.advisor

    @property
    def store(self) -> Any:
        """Where runs and models are kept."""
        return self.questions.store()

    def runner(self, asked: Mapping[str, Any], points: Iterable[Any] = ()) -> TaskRunner:
        """Return who carries runs out: the cluster of the service, else this machine. Raises RequestError."""
        name = asked.get("runner") or ("ray" if self.ray else "local")
        if name == "ray" and not self.ray:
            todo = "leave the runner out, or start the service with --ray ADDRESS"
            raise RequestError("the runner ray", "the service has no cluster", todo)
        if name == "local":
            _check_workers(max((point.task.workers for point in points), default=1))
        place = {"submit" if self.ray.startswith("http") else "address": self.ray}
        runner: TaskRunner = registry.load("runners", name)(**(place if name == "ray" else {}))
        runner.tell = self.report.note
        return runner

    def cluster(self) -> str:
        """Return the address of the cluster if it takes functions, else "", and let notes say where is computed."""
        takes = not self.ray.startswith("http")
        where = "on the Ray cluster {}" if takes else "on this machine: {} takes runs alone"
        self.report.place = f" ({where.format(self.ray)})" if self.ray else self.report.place
        return self.ray if takes else ""

    def computed(self, words: str, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what a function returns: on the cluster of the service where that takes functions, else here."""
        address = self.cluster()
        self.report.count(0, None, words)
        if not address:
            return work(*given, **named)
        runner, here = self.runner({"runner": "ray"}), partial(work, *given, **named)
        found, problem = runner.in_workers(partial(_on_worker, here), 1, self.report.note, True)[0]  # type: ignore[attr-defined]
        if problem is not None:
            raise problem[0](*problem[1:])
        return found

    def runs(self, body: Fields) -> tuple[Runs, list[str]]:
        """Return the runs of a body, or those of the store that meet its conditions, and the keys of these."""
        runs = self.questions.measured(body)
        if has_table(body):
            return runs, []
        kept = self.store.table(where=tuple(body.get("where") or ()), provenance=True)
        return runs, kept.texts("run_key").tolist()

    def last_run(self, campaign: str) -> list[Fields]:
        """Return the run of a campaign that was kept last, as a row."""
        table = self.store.table(campaign=campaign, limit=1, newest=True)
        return [table.row(0)] if len(table) else []


Found = tuple[Fields, ForerunError | None]  # an answer, and what it lacks to be one


def _on_worker(work: Callable[[], Any], rank: int, workers: int, tell: Callable[[str], None]) -> Any:  # fmt: skip
    """Return what a function returns in a worker of a cluster, and what it refuses."""
    try:
        with progress_to(tell):
            return work(), None
    except ForerunError as error:
        kind = UnsatisfiedError if isinstance(error, UnsatisfiedError) else RequestError
        return None, (kind, error.asked, error.found, error.next_step)


def _check_entries(entries: Iterable[Any], modules: bool, known: Sequence[str]) -> None:
    for entry in entries:
        if not modules and entry not in known:
            raise RequestError(
                f"the entry {str(entry)[:80]!r}", "a service runs no code of others unless its administrator allows it",
                f"use one of {', '.join(known)}, or start: forerun serve --allow-modules",
            )  # fmt: skip


def _check_workers(most: int) -> None:
    """Raise RequestError where this machine has not cores enough."""
    if most > (limit := _WORKERS_A_CORE * len(usable_cores())):
        found = f"this machine runs {limit} at most"
        raise RequestError(f"{most:,} workers", found, "ask for fewer, or serve with --ray ADDRESS")


def _campaign_fields(body: Fields) -> Fields:
    return {name: value for name, value in body.items() if name not in ("retry", "yes")}


def _check_campaign(body: Fields, modules: bool) -> None:
    asked = campaign_file.campaign(_campaign_fields(body), "the campaign", _MOST_POINTS)
    _check_entries((point.task.entry for point in asked.points), modules, builtin.ENTRIES[:-1])


def _check_search(body: Fields, modules: bool) -> None:
    if (body.get("space") is None) == (not has_table(body) and not body.get("where")):
        todo = "give space to make runs, or rows, columns or where to replay them"
        raise RequestError("a search", "not one of space and runs", todo)
    if (space := body.get("space")) is not None:
        if not isinstance(name := space.get("name"), str) or not name:
            raise RequestError("the space of a search", "it has no name", "give one")
        _check_campaign(space, modules)
        limit = body.get("budget") or (space.get("budget") or {}).get("dollars") or body.get("yes")
        if (body.get("price") or space.get("price_usd_per_worker_hour")) and not limit:
            todo = f"give a budget, {_YES}"
            raise RequestError("a search that costs dollars", "it has no limit", todo)
    if (name := body.get("searcher", "auto")) != "auto":
        registry.load("searchers", name)


def _check_predictors(body: Fields, modules: bool) -> None:
    for name in (*body.get("predictors", ()), body.get("predictor") or ""):
        check_predictor(name)
        if "encoder=" in name and "features=quantities" in name:
            raise RequestError(f"the predictor {name[:80]!r}", "it has no encoder", "leave out the features")  # fmt: skip
    if body.get("encoder") and body.get("predictor"):
        found, todo = "it has the options of its training", "leave out the predictor"
        raise RequestError("a predictor beside an encoder", found, todo)
    if body.get("system"):
        predictor_spec(body["system"])
    for name in (body.get("name"), body.get("encoder")):
        if name == SERVED or str(name).removeprefix("graphormer-") in _OWN_ENCODERS:
            raise RequestError(f"a model named {name!r}", "it means one of forerun's own", "take another")  # fmt: skip


def _check_training(body: Fields, modules: bool) -> None:
    _check_entries([body["entry"]], modules, builtin.ENTRIES[-1:])
    job = elastic_job.training_job(Section(Path("the training"), "", body, {}))
    _check_workers(max(job.workers))


def _campaign(body: Fields, bench: Bench) -> Found:
    """Measure the runs of a campaign (docs/campaigns.md); each is kept as soon as it has ended."""
    from forerun.advisor.measuring import Profiling, campaign_json

    campaign = campaign_file.campaign(_campaign_fields(body), "the campaign")
    runner, store, report = bench.runner(body, campaign.points), bench.store, bench.report
    profiling = Profiling(campaign, runner, store, bench.advisor, retry=body.get("retry", True))
    planned = profiling.planned()
    dollars = planned.outlook.most_dollars
    if planned.left and dollars > 0 and campaign.budget.dollars is None and not body.get("yes"):
        found = f"it may cost up to ${dollars:,.2f}"
        raise RequestError(f"the campaign {campaign.name!r}", found, f"give a budget of dollars, {_YES}")  # fmt: skip
    total, at = len(campaign.points), f"on {runner.name} {runner.where}"
    report.count(total - len(planned.left), total, at, eta=planned.left_seconds)
    outcome = None
    if planned.left:
        outcome = profiling.carried_out(lambda one: report.count(
            one.done, one.total, f"{one.point}: {one.measurement.status}", bench.last_run(campaign.name), one.left,
        ))  # fmt: skip
    body_found, problem = campaign_json(planned, outcome, profiling.results()), None
    if outcome is not None and set(outcome.made) == {"failed"}:
        words = f"every run of {outcome.made['failed']} failed"
        problem = RequestError(f"the campaign {campaign.name!r}", words, "see the notes of its runs")  # fmt: skip
    return {"kind": "profile", **body_found}, problem


def _search(body: Fields, bench: Bench) -> Found:
    """Search for the best configuration by runs made now (space), or among measured runs."""
    from forerun.advisor.searching import LiveTrials, live_json, notes_of, search_live
    from forerun.search.following import Trail, follow, searcher_of, warnings_of
    from forerun.search.landscape import Goal
    from forerun.search.replay import Replay, replay_json

    limits = limits_of(body.get("deadline"), body.get("budget"))
    deadline, space = limits.deadline_seconds or math.inf, body.get("space")
    minimize, seed, most = (body.get(n, u) for n, u in (("minimize", "cost"), ("seed", 0), ("max_runs", 30)))  # fmt: skip
    name, stops = body.get("searcher", "bayesian"), not body.get("no_stop", False)

    pace, ended = Pace(), time.monotonic()

    def heed(trail: Trail) -> None:
        nonlocal ended
        words = f"{trail.box.land.words(int(trail.at[-1]))}: {trail.reasons[-1]}"
        if space is None:
            return bench.report.count(len(trail), most, words)
        pace.count((now := time.monotonic()) - ended)
        ended, box = now, trail.box
        assert isinstance(box, LiveTrials)
        left = float(min(most, len(box)) - len(trail))
        # When its stopping rule holds is not known: each number of further runs counts alike.
        counts = np.arange(left + 1) if stops and trail.searcher != "grid" else np.array([left])
        rest = (box.campaign.budget.seconds or math.inf) - box.spent_seconds
        eta = pace.left(counts, 1 / np.maximum(counts, 1), rest)
        return bench.report.count(len(trail), most, words, bench.last_run(space["name"]), eta)

    if space is None:
        box = Replay.of(bench.runs(body)[0], Goal(minimize, deadline))
        chooser, _ = searcher_of(name, box, seed, stops)
        trail = follow(chooser, box, most, on_run=heed)
        warnings = warnings_of(box, "choose one with where")
        return {"kind": "search", **replay_json("the request", box, [trail], warnings)}, None
    within, points = body.get("within"), campaign_file.campaign(space, "the space").points
    trail = search_live(
        space, bench.runner(space, points), bench.questions.place, name, minimize, deadline, most, body.get("price"),
        parse_duration(within, "within") if isinstance(within, str) else within, limits.budget_dollars,
        body.get("parallel", 1), seed, body.get("retry", False), on_run=heed, advisor=bench.advisor, stops=stops,
    )  # fmt: skip
    box_made: Any = trail.box
    return {"kind": "search", **live_json(trail, box_made, notes_of(trail, box_made))}, None


def _fit(body: Fields, bench: Bench) -> Found:
    """Fit a predictor to measured runs, and keep it as a model by its name."""
    from forerun.advisor.fit_summary import fit_json
    from forerun.advisor.given_runs import model_text
    from forerun.predictors.graphs.predictddl import PredictDDL
    from forerun.systems.predictddl import OfflineTrainer

    named = body.get("predictor") or (predictor_spec(body["system"]) if body.get("system") else "analytic")  # fmt: skip
    runs, keys = bench.runs(body)
    before = Advisor(bench.advisor.catalog_files, named, start=body.get("start", ""))
    if (name := body.get("encoder")) is not None:  # trained before, with options that hold here too
        kept = {one.name: one.digest for one in bench.store.artifacts.every(MODEL)}
        text = bench.store.artifacts.read(kept[name]).decode() if name in kept else ""
        if json.loads(text or "{}").get("predictor") != PredictDDL.name:
            found, todo = "no task trained it", "train it: POST /v1/tasks/encoder"
            raise RequestError(f"the encoder {name[:80]!r}", found, todo)
        again: Any = replace(PredictDDL.from_json(text), encoder=name)
        named, before = f"the encoder {name}", Advisor(bench.advisor.catalog_files, again)
    learned = bench.computed(
        f"fits {named} to {len(runs):,} runs", before.fit, runs, own_columns=body.get("own_columns", "")
    )  # fmt: skip
    about = {"predictor": learned.predictor.name, "runs": len(runs), "task": bench.report.task}
    text = model_text(learned.predictor, learned.made)
    bench.store.artifacts.put(body["name"], text, MODEL, keys, command=json.dumps(about))
    if isinstance(learned.predictor, PredictDDL):
        OfflineTrainer(bench.store).keep(learned.predictor, keys)
    return {"kind": "fit", **fit_json(learned, before), "out": body["name"]}, None


def _encoder(body: Fields, bench: Bench) -> Found:
    """Train an encoder of graphs on the networks of measured runs, and keep it, with a model that has it, by its name."""
    from forerun.predictors.graphs.hypernetwork import REPORT_EVERY

    begun, ended, pace, losses = time.monotonic(), math.nan, Pace(), list[float]()

    def heed(words: str) -> None:
        nonlocal ended
        if not isinstance(words, TrainingStep):
            return bench.report.note(words)
        if (now := time.monotonic()) >= ended:  # the first steps wait for what is loaded
            pace.count(now - ended)
        ended, left = now, (words.of - words.done) / REPORT_EVERY
        losses.append(words.loss)
        row = {"steps": words.done, "seconds": now - begun, "loss": words.loss}
        eta = pace.left(left, 1 / max(left, 1.0))
        return bench.report.count(words.done, words.of, f"loss {words.loss:.3g}", [row], eta)

    if address := bench.cluster():
        os.environ["RAY_ADDRESS"] = address  # workers of Ray Train share its steps
    with progress_to(heed):
        found, _ = _fit({"predictor": _QUANTITIES, **body}, replace(bench, ray=""))
    return {**found, "kind": "encoder", "losses": losses}, None


def _evaluate(body: Fields, bench: Bench) -> Found:
    """Judge predictors on measured runs that they were not fitted to."""
    from forerun.advisor.given_runs import runs_of
    from forerun.evaluate import evaluate, parse_split, starting
    from forerun.evaluate.judge import read_alike

    def read(parts: Sequence[Fields], *where: str) -> dict[str, Runs]:
        asked = ((one["name"], {**one, "where": [*one.get("where", ()), *where]}) for one in parts)
        found = ((name, bench.questions.measured(part)) for name, part in asked)
        own = body.get("own_columns", "")
        return {name: runs_of([runs], bench.advisor.catalog, own) for name, runs in found}

    one = {"name": body.get("table", "runs"), **{name: body.get(name) for name in ROWS}}
    more = read(body.get("fit") or ())
    tables = read_alike(read(body.get("tables") or [one], *body.get("where", ())), more)
    predictors, start = starting(body["predictors"], body.get("start", ""), tables)
    found = bench.computed(
        f"judges {counted(len(predictors), 'predictor')}", evaluate, tables, predictors, parse_split(body.get("split", "random")), more, group_by=body.get("group_by", ""),
        seed=body.get("seed", 0), parts=body.get("folds", 0), faster_half=body.get("faster_half", ()), start=start,
    )  # fmt: skip
    return {"kind": "evaluation", **found.as_dict()}, None


def _recommend(body: Fields, bench: Bench) -> Found:
    """Choose cluster, plan and batch, as POST /v1/recommend does, without its limit of time."""
    by = partial(bench.computed, "looks for the best")
    return json.loads(bench.questions.of(body).recommend(body, by)), None


def _train(body: Fields, bench: Bench) -> Found:
    """Train an elastic job (docs/elastic.md): it chooses workers and batch while it learns."""
    from forerun.advisor.elastic import ElasticTraining

    job = elastic_job.training_job(Section(Path("the training"), "", body, {}))
    seen = 0

    def tell(words: str) -> None:
        nonlocal seen
        done, (workers, batch) = training.progress, training.current
        new, seen = done.metrics[seen:], len(done.metrics)
        metric = {job.target.metric: new[-1][-1]} if job.target and new else {}
        row = {
            "workload": job.entry, "steps": done.steps, "samples": done.position, "effective_samples": done.effective,
            "seconds": done.seconds, "dollars": done.dollars, "noise_scale": done.phi, "workers": workers,
            "global_batch": batch, "note": words, **metric,
        }  # fmt: skip
        bench.report.count(done.steps, None, words, [row], training.seconds_left())

    training = ElasticTraining(job, bench.folder, tell)
    ended = training.run()
    return {"kind": "training", **training.to_json(ended)}, None


@dataclass(frozen=True)
class TaskKind:
    """A kind of task: the model of its body, what checks that, what carries it out, and an example.

    resumes: begun anew after its process died, it goes on where it was.
    """

    model: Any
    check: Callable[[Fields, bool], None]
    carry: Callable[[Fields, Bench], Found]
    example: Fields
    resumes: bool = False


_SPACE = {
    "name": "night", "workloads": {"mlp": {"entry": builtin.ENTRIES[0], "settings": {"width": [64, 128]}}},
    "vary": {"workers": 1, "global_batch": [16, 32]}, "steps": {"warmup": 1, "least": 3, "most": 6, "seconds": "5s"},
}  # fmt: skip
_RUNS = [
    {"workload": "resnet50", "device": "v100-sxm2-16gb", "devices": n, "global_batch": 64 * n, "micro_batch": 64,
     "precision": "fp16", "step_time_s": 0.08 * (1 + 0.05 * n), "price_usd_per_hour": 3.0 * n}
    for n in (1, 2, 4, 8)
]  # fmt: skip
NETWORKS = [
    {"workload": name, "device": "v100-sxm2-16gb", "devices": n, "global_batch": 16 * n, "micro_batch": 16,
     "step_time_s": seconds}
    for name, seconds in (("resnet18", 0.02), ("resnet50", 0.05), ("vgg11", 0.07), ("alexnet", 0.01))
    for n in (1, 2, 4)
]  # fmt: skip
KINDS: Mapping[str, TaskKind] = {
    "campaign": TaskKind(_CAMPAIGN, _check_campaign, _campaign, _SPACE, resumes=True),
    "search": TaskKind(
        _SEARCH, _check_search, _search, {"space": _SPACE, "searcher": "grid", "minimize": "time", "max_runs": 4},
        resumes=True,
    ),
    "fit": TaskKind(_FIT, _check_predictors, _fit, {"name": "ours", "predictor": "analytic", "rows": _RUNS}),
    "encoder": TaskKind(_ENCODER, _check_predictors, _encoder, {"name": "graphs", "rows": NETWORKS}),
    "evaluate": TaskKind(
        _EVALUATE, _check_predictors, _evaluate,
        {"predictors": ["analytic", "linear-scaling"], "split": "whole", "rows": _RUNS},
    ),
    "recommend": TaskKind(
        RECOMMEND, lambda body, modules: None, _recommend,
        {"workload": "resnet50", "clusters": ["1x8xa100-sxm-80gb"], "framework": "pytorch", "epochs": 90},
    ),
    "train": TaskKind(
        _TRAIN, _check_training, _train,
        {"entry": builtin.ENTRIES[-1], "workers": [1, 2], "global_batch": [32, 64], "epochs": 2, "within": "2min"},
        resumes=True,
    ),
}  # fmt: skip


def carry_out(questions: Questions, key: str, by: str, ray: str, modules: bool) -> None:
    """Carry out a task that was begun for this process, and write down what it found or why not."""
    store, what = questions.store(), questions.store().tasks.turn(key).what
    report = Report(store, key, by)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    state, found, problem = "done", None, None
    try:
        body, kind = store.tasks.asked(key), KINDS[what]
        kind.check(body, modules)
        bench = Bench(questions, report, ray, cache / "forerun" / "tasks" / key)
        with progress_to(report.note):
            answer, lacks = kind.carry(body, bench)
        found = json.loads(printed({"schema": SCHEMA, **answer}))
        if lacks is not None:
            state, problem = "failed", problem_of(lacks)
    except ForerunError as error:
        state, problem = "failed", problem_of(error)
    store.tasks.end(key, by, state, found, problem)


def problem_of(error: ForerunError) -> Fields:
    """Return what was asked, what was found, what to do next and its kind, as a task keeps it."""
    kind = "UnsatisfiedError" if isinstance(error, UnsatisfiedError) else "RequestError"
    return {"asked": error.asked, "found": error.found, "next": error.next_step, "error": kind}
