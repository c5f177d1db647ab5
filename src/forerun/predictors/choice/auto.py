"""Auto: for each row the predictor that does best on runs held out as the question holds its job out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import BoolArray, FloatArray, IntArray, one_blas_thread, taken, thinned
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.domain.plan import SERVER_SYNCS
from forerun.errors import ForerunError, RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.saving import Learned
from forerun.predictors.choice.quantities import (
    LAYOUT,
    in_quantity,
    only,
    timed_quantities,
    with_steps,
)
from forerun.predictors.choice.questions import (
    DEVICES,
    FEW,
    GIVEN,
    INSIDE,
    MOST_FEW,
    NETWORK,
    OWN,
    SIZE,
    UNSEEN,
    WORDS,
    JobColumns,
    RunSpan,
)
from forerun.predictors.convergence import Convergence
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.options import PRIORS, SHIPPED, started
from forerun.predictors.residual import ResidualPredictor
from forerun.predictors.saved import SavedPredictor, plain
from forerun.tables import Jobs, Runs, configurations, sorted_runs
from forerun.units import counted, format_percent

ANALYTIC, RESIDUAL = "analytic", "residual"
PHYSICS = (ANALYTIC, RESIDUAL)
LAW, OVER_LAW = "hierarchical", "gaussian"
HOME = {OVER_LAW: LAW, RESIDUAL: ANALYTIC}  # whose fits a candidate learns from
NAMES = (ANALYTIC, RESIDUAL, LAW, OVER_LAW, "roofline", "linear-scaling", "ernest")
OF_SERVERS = "ps-saturation"  # a candidate where runs went through parameter servers
OF_RUNS = "whole-run"  # a candidate for whole runs
OF_OWN = "generic"  # a candidate where a user's own columns are part of a configuration


class TrialFold(NamedTuple):
    """Positions of the runs that are fitted and judged; silent: candidates that are not asked there."""

    fit: IntArray
    judge: IntArray
    silent: tuple[str, ...]


@dataclass(frozen=True)
class Members:
    """Fitted candidates by name, and why others could not be fitted."""

    fitted: Mapping[str, Predictor]
    failed: Mapping[str, str]

    def forecasts(self, jobs: Jobs, quantity: str) -> dict[str, Forecasts]:
        """Return each member's forecasts of a quantity for n jobs; who fails declines every row."""
        return {name: _forecast(one, jobs, quantity) for name, one in self.fitted.items()}


@dataclass(frozen=True)
class Learners:
    """Candidates and the runs that they are fitted to, all of them or parts. start: see `options.started`."""

    start: str
    runs: Runs
    quantity: str

    def fitted(self, names: Sequence[str]) -> Members:
        """Return candidates fitted to all runs."""
        found = dict(zip(names, in_processes(self._fitted, names, len(self.runs)), strict=True))
        failed = {name: why for name, (_, why) in found.items() if why}
        return Members({name: one for name, (one, _) in found.items() if one}, failed)

    def _fitted(self, name: str) -> tuple[Predictor | None, str]:
        def fit() -> Predictor:
            if name in PHYSICS:
                physics, kept = self._whole
                corrected = name == RESIDUAL and ResidualPredictor.of(physics, kept)[0]
                return cast("Predictor", corrected or physics)
            return started(name, self._start).fit(self._timed)

        return self._tried(name, fit)

    def logs(self, folds: Sequence[TrialFold], name: str) -> FloatArray:
        """Return the logs of a candidate's quantiles for what folds judge, (r, 3), NaN where it has none.

        It is fitted to each fold's runs in its light form, where it has one.
        """
        found, like = [np.full((len(fold.judge), 3), np.nan) for fold in folds], None

        def fit(part: IntArray) -> Predictor:
            nonlocal like
            if name in PHYSICS:
                physics, kept = self._part(part)
                if name == ANALYTIC:
                    return physics
                corrected, like = ResidualPredictor.of(physics, kept, like)
                return cast("Predictor", corrected)
            return light()(part)

        @cache
        def light() -> Callable[[IntArray], Predictor]:
            one = started(name, self._start)
            if hasattr(one, "light"):
                return cast("Callable[[IntArray], Predictor]", one.light(self._timed))
            return lambda part: one.fit(self._timed.take(part))

        for logs, fold in zip(found, folds, strict=True):
            if name not in fold.silent:
                member = self._tried(name, partial(fit, fold.fit))[0]
                if member:
                    answer = _forecast(member, self.runs.jobs.take(fold.judge), self.quantity)
                    logs[answer.answered] = np.log(answer.seconds[answer.answered])
        return np.concatenate([np.zeros((0, 3)), *found])

    @property
    def _start(self) -> str:
        return PRIORS if self.start == PRIORS else ""

    @cached_property
    def _timed(self) -> Runs:
        """Runs as laws see them: the times of one quantity alone."""
        return only(self.runs, self.quantity)

    # Physics and its correction are fitted once, to steps, however these were reported.
    @cached_property
    def _physics(self) -> AnalyticPredictor:
        return cast("AnalyticPredictor", started(ANALYTIC, self._start))

    @cached_property
    def _whole(self) -> tuple[AnalyticPredictor, Fit | None]:
        return self._physics.fit_kept(with_steps(self._timed))

    @cached_property
    def _light(self) -> Callable[[IntArray], tuple[AnalyticPredictor, Fit]]:
        return self._physics.light_kept(with_steps(self._timed))

    def _part(self, part: IntArray) -> tuple[AnalyticPredictor, Fit]:
        known = self._parts
        return known.get(part.tobytes()) or known.setdefault(part.tobytes(), self._light(part))

    @cached_property
    def _parts(self) -> dict[bytes, tuple[AnalyticPredictor, Fit]]:
        return {}

    def _tried(self, name: str, fit: Callable[[], Predictor]) -> tuple[Predictor | None, str]:
        """Return the fitted candidate and "", or why there is none; physics then answers uncalibrated."""
        try:
            return fit(), ""
        except ForerunError as error:
            # The correction of physics fails as physics does, which says why.
            why = f"{error.found}; {error.next_step}" if name != RESIDUAL else ""
        except Exception as error:  # noqa: BLE001  (one candidate's defect must not take the others' answers)
            why = f"a defect of it: {type(error).__name__}: {error}"
        if name != ANALYTIC:
            return None, why
        return self._physics, f"{why}; it answers uncalibrated"


MANY_RUNS = 300  # from so many on, candidates learn in processes of their own, one a core
Made = TypeVar("Made")


def in_processes(work: Callable[[str], Made], names: Sequence[str], runs: int) -> list[Made]:
    """Return what work makes of each candidate's name; many runs are worth the start of processes."""
    if runs < MANY_RUNS:
        return [work(name) for name in names]
    import joblib

    # What learns from another's fits finds them where they were made.
    places = [HOME.get(name, name) for name in names]
    tasks = [
        [n for n, at in zip(names, places, strict=True) if at == p] for p in dict.fromkeys(places)
    ]
    tasks.sort(key=len, reverse=True)
    parallel = joblib.Parallel(min(len(tasks), joblib.cpu_count()), batch_size=1, max_nbytes=None)
    found = parallel(joblib.delayed(_on_one_thread)(work, task) for task in tasks)
    made = dict(zip(chain.from_iterable(tasks), chain.from_iterable(found), strict=True))
    return [made[name] for name in names]


@one_blas_thread()
def _on_one_thread(work: Callable[[str], Made], names: Sequence[str]) -> list[Made]:
    return [work(name) for name in names]


def _forecast(member: Predictor, jobs: Jobs, quantity: str) -> Forecasts:
    try:
        with np.errstate(all="ignore"):  # a quantile without bounds is checked below
            answer = in_quantity(member.predict(jobs), jobs, quantity)
    except Exception as error:  # noqa: BLE001  (as above)
        answer = Forecasts.blank(len(jobs), member.name, quantity)
        answer.declined[:] = f"a defect of {member.name}: {type(error).__name__}: {error}"
        return answer
    broken = answer.answered & ~(np.isfinite(answer.seconds) & (answer.seconds > 0)).all(axis=1)
    declined = answer.declined.copy()
    declined[broken] = f"{member.name} gave no time above 0"
    return replace(answer, declined=declined)


MOST_RUNS, MOST_JUDGED = 800, 300  # runs of all trials; judged runs of one fold
PARTS = 5  # of runs left out by chance, and of workloads
# Who learn of a workload from runs elsewhere.
POOLED = (*PHYSICS, "hierarchical", "gaussian", "roofline", OF_RUNS)
MOST_PLACES = 2  # devices whose runs are left out in turn, but for few
DEVICE_PARTS = 3  # of the devices, left out in turn
# These know a device, or a workload, by its runs alone: where it is left out, they need no fit.
BY_DEVICE = ("hierarchical", "gaussian", "linear-scaling", "ernest")
BY_WORKLOAD = (*BY_DEVICE, "roofline", OF_SERVERS)
SURE = 0.975  # level of the test, one-sided
# With so few pairs of workload and device the test counts configurations; trials ask beyond one step too.
FEW_GROUPS = 3
SOFT, WORST = 0.01, 2.3  # log errors below the one are noise, beyond the other alike
# Judged runs that count as much as the candidate's own band, and how far it is stretched at most.
_OWN, _MOST_STRETCH = 20, 8.0


def usual_order(kind: int, names: Sequence[str]) -> list[str]:
    """Return candidates in the order in which they answer questions of a kind that was not judged."""
    # Regressions hold inside the runs and along their trend, and physics where something else is new.
    first = ["hierarchical", "gaussian"] if kind in (GIVEN, FEW) else ["gaussian", "hierarchical"]
    first.insert(2 if kind in (INSIDE, SIZE, DEVICES, GIVEN, FEW) else 0, ANALYTIC)
    if kind == UNSEEN:
        first.insert(1, "roofline")
    if kind == OWN:
        first.insert(0, OF_OWN)
    return sorted(names, key=lambda name: first.index(name) if name in first else len(first))


@dataclass(frozen=True)
class CandidateScore:
    """How a candidate did on the judged runs of one kind of question.

    median_ape: percent, None where it answers none; answered: share of the runs; weight: share that it
    answers as the first that can; stretch: of its band, so that 90 % of what was judged lies inside.
    """

    name: str
    median_ape: float | None
    answered: float
    weight: float
    stretch: float


@dataclass(frozen=True)
class Verdict:
    """What trials say of one kind of question: the candidates in the order in which they answer."""

    kind: int
    judged: int
    scores: tuple[CandidateScore, ...]


@dataclass(frozen=True)
class Trials:
    """r judged answers of c candidates.

    kind: what each judged run was to the runs that were fitted, (r,); error: log of measured over
    forecast, (r, c), NaN where a candidate declined; off: the error over how far the band reaches on
    its side, (r, c); cell: what the test counts: how it was left out, workload and device, or configuration, (r,).
    """

    names: tuple[str, ...]
    kind: IntArray
    error: FloatArray
    off: FloatArray
    cell: IntArray

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> Trials:
        """Return the trials on runs, in the order of `tables.sorted_runs`.

        Runs without a time of the quantity are fitted and not judged. start: see `options.started`.
        """
        columns, config = JobColumns.of(runs.jobs, quantity), configurations(runs.table)[1]
        sparse = np.flatnonzero(_configurations(columns, config)[columns.group] <= MOST_FEW)
        # What has few runs keeps them all.
        sparse = sparse if 4 * len(sparse) <= MOST_RUNS else sparse[:0]
        rest = np.setdiff1d(np.arange(len(runs)), sparse)
        kept = np.sort(np.r_[sparse, rest[thinned(config[rest], MOST_RUNS - len(sparse))]])
        runs, columns, config = runs.take(kept), taken(columns, kept), config[kept]
        seconds, rng = measured(runs, quantity), np.random.default_rng(0)
        workloads = np.unique([group[0] for group in columns.groups], return_inverse=True)[1]
        folds, pieces = [], [(np.zeros(0, int), np.zeros(0), np.zeros(0, int))]
        for i, (fit, judge) in enumerate(folds_of(columns, config, np.isfinite(seconds))):
            judge = np.sort(rng.permutation(judge)[:MOST_JUDGED])
            span = RunSpan.of(JobColumns.of(runs.jobs.take(fit), quantity), config[fit])
            kind = span.kinds(JobColumns.of(runs.jobs.take(judge), quantity))
            left = [columns.groups[g] for g in np.unique(columns.group[judge])]
            workload, device = (
                {group[at] for group in left}.isdisjoint(group[at] for group in span.groups)
                for at in range(2)
            )
            silent: tuple[str, ...] = BY_WORKLOAD if workload else (*BY_DEVICE, RESIDUAL)
            if not (workload or device):
                # Physics is corrected where all say little. Where some say much laws are nearer, and what
                # a sound network teaches of few runs misleads on an erratic one (decision 25).
                sparse_runs = i < PARTS and np.mean(kind == FEW) >= 0.5
                silent = () if sparse_runs else (RESIDUAL,)
            way = max(i - PARTS + 1, 0)  # the parts left out by chance are one
            few = len(columns.groups) <= FEW_GROUPS
            # Runs of a workload that is left out share how far it lies off.
            facts = workloads[columns.group] if workload else columns.group
            cell = config[judge] if few else way * len(columns.groups) + facts[judge]
            folds.append(TrialFold(fit, judge, silent))
            pieces.append((kind, np.log(seconds[judge]), cell))
        kind, truth, cell = (np.concatenate(column) for column in zip(*pieces, strict=True))
        judged = partial(Learners(start, runs, quantity).logs, folds)
        log = np.stack(in_processes(judged, names, len(runs)), axis=1)
        error = truth[:, None] - log[..., 1]
        reach = np.where(error > 0, log[..., 2] - log[..., 1], log[..., 1] - log[..., 0])
        return Trials(names, kind, error, np.abs(error) / np.maximum(reach, 1e-9), cell)

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return what the trials say of each kind of question that was judged."""
        answered = np.isfinite(self.error).any(axis=1)
        return tuple(self._verdict(int(kind)) for kind in np.unique(self.kind[answered]))

    def _verdict(self, kind: int) -> Verdict:
        rows = np.flatnonzero(self.kind == kind)
        error, off = self.error[rows], self.off[rows]
        usual = [self.names.index(name) for name in usual_order(kind, self.names)]
        # Few runs cannot carry a law of their own: trials keep other batches of another cluster than the few.
        own = [c for c in usual if kind == FEW and self.names[c] not in POOLED]
        # On new devices runs of the workload elsewhere say more than the correction does (decision 25).
        own += [c for c in usual if kind == UNSEEN and self.names[c] == RESIDUAL]
        own = own if len(own) < len(usual) else []
        order = ranked([c for c in usual if c not in own], error, self.cell[rows]) + own
        scores, left = [], np.ones(len(rows), dtype=bool)
        for c in order:
            answered = np.isfinite(error[:, c])
            ape = 100 * np.abs(np.expm1(-error[answered, c]))
            # Runs on a device share how far it lies off, and of a workload: there each workload counts once.
            new = kind in (NETWORK, UNSEEN)
            count = len(np.unique(self.cell[rows][answered])) if new else len(ape)
            # A trial may widen bands of a device without runs, never narrow them: other workloads ran there.
            scores.append(CandidateScore(
                self.names[c], float(np.median(ape)) if len(ape) else None, float(answered.mean()),
                float((left & answered).mean()),
                max(stretch(off[answered, c], count), float(new)),
            ))  # fmt: skip
            left &= ~answered
        return Verdict(kind, len(rows), tuple(scores))


def ranked(usual: list[int], error: FloatArray, cell: IntArray) -> list[int]:
    """Return the positions of candidates in the order in which they answer; usual: before any run is judged.

    error: log errors, (r, c), NaN where one declined; cell: of each run, (r,): runs of one count as one.
    """
    from scipy.special import stdtrit

    loss = np.log(np.minimum(np.abs(error), WORST) + SOFT)
    leader = next((c for c in usual if np.isfinite(error[:, c]).any()), usual[0])
    best, most = leader, 0.0
    for c in usual:
        gain = loss[:, leader] - loss[:, c]
        both = np.isfinite(gain)
        _, of = np.unique(cell[both], return_inverse=True)
        gains = np.bincount(of, gain[both]) / np.bincount(of)
        if len(gains) < 2 or gains.mean() <= most:
            continue
        if gains.mean() > stdtrit(len(gains) - 1, SURE) * gains.std(ddof=1) / len(gains) ** 0.5:
            best, most = c, float(gains.mean())
    # The best of the others answers what the best declines.
    rest = [c for c in usual if c != best]
    return [best, *(ranked(rest, error, cell) if rest else [])]


def stretch(off: FloatArray, count: int = 0, level: float = 0.9) -> float:
    """Return by how much a band is stretched to hold `level` of errors; few stretch little and never narrow it.

    off: errors over how far the band reaches, (r,). count: of the facts that they are, by default r.
    """
    if not len(off):
        return 1.0
    count = count or len(off)
    found = float(np.quantile(off, level)) ** (count / (count + _OWN))
    return float(np.clip(found, 1.0 if count < _OWN else 0.5, _MOST_STRETCH))


def folds_of(
    columns: JobColumns, config: IntArray, timed: BoolArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield positions of the runs that are fitted and of those that are judged, fold by fold.

    config: number of each run's configuration, (n,): repeats stay together; timed: which can be judged, (n,).
    """
    distinct, of = np.unique(config, return_inverse=True)
    part = (np.random.default_rng(0).permutation(len(distinct)) % PARTS)[of]
    several = columns.numbers["nodes"] > 1
    one_node = np.isin(columns.group, columns.group[columns.numbers["nodes"] <= 1])
    left_out = [part == i for i in range(PARTS)]
    devices = np.array([group[1] for group in columns.groups], dtype=object)[columns.group]
    workloads = np.array([group[0] for group in columns.groups], dtype=object)[columns.group]
    for owners, most in ((devices, DEVICE_PARTS), (workloads, PARTS)):
        names = np.random.default_rng(0).permutation(np.unique(owners.astype(str)))
        parts = min(len(names), most)
        left_out += [np.isin(owners, names[i::parts]) for i in range(parts) if parts > 1]
    for most in (False, True) if len(columns.groups) <= FEW_GROUPS else (False,):
        left_out += [
            _upper(columns.numbers[name], columns.group, most)
            for name in columns.numbers
            if name != "nodes"
        ]
    places = np.unique(devices[several]).tolist()
    for place in places[:MOST_PLACES] if len(places) > 1 else places:
        left_out.append(several & one_node & ((devices == place) | (len(places) == 1)))
    for out in (*left_out, *_almost_out(columns, config, devices)):
        judge, fit = np.flatnonzero(out & timed), np.flatnonzero(~out)
        if len(judge) and timed[fit].any():
            yield fit, judge


def _almost_out(
    columns: JobColumns, config: IntArray, devices: NDArray[np.object_]
) -> Iterator[BoolArray]:
    """Yield which runs are left out, (n,), so that rich groups keep as little as the groups that have few."""
    counts, nodes = _configurations(columns, config), columns.numbers["nodes"]
    few = (counts > 0) & (counts <= MOST_FEW)
    if not few.any() or few.sum() == (counts > 0).sum():
        return
    least, sparse = round(float(np.median(counts[few]))), few[columns.group]
    rng, order = np.random.default_rng(0), np.random.default_rng(0).permutation(config.max() + 1)
    rich = np.unique(devices[~sparse], return_counts=True)
    by_runs = rich[0][np.argsort(-rich[1], kind="stable")].tolist()
    # A new place has few runs of all; on a known one it is some workload that has few.
    new = not np.isin(devices[sparse], rich[0]).all()
    half = rng.permutation(len(counts)) % 2 == 0
    ways = [devices == place for place in by_runs[:MOST_PLACES]] if new else [half[columns.group]]
    one_node = not (nodes[sparse] > 1).any()
    for here in ways:
        out = here & ~sparse
        for group in np.unique(columns.group[out]):
            mine = np.flatnonzero(out & (columns.group == group))
            near = mine[~(nodes[mine] > 1)] if one_node else mine
            kept = sorted(np.unique(config[near]).tolist(), key=lambda c: order[c])[:least]
            out[mine[np.isin(config[mine], kept)]] = False
        yield out


def _configurations(columns: JobColumns, config: IntArray) -> IntArray:
    """Return of how many configurations the runs of each group are, (g,)."""
    pairs = np.unique(np.stack([columns.group, config]), axis=1)
    return np.bincount(pairs[0], minlength=len(columns.groups))


def _upper(values: FloatArray, group: IntArray, most: bool) -> BoolArray:
    """Return which runs have the most, of four values or more, or are in the upper half of their own group, (n,)."""
    out = np.zeros(len(values), dtype=bool)
    for g in np.unique(group):
        mine = np.flatnonzero((group == g) & np.isfinite(values))
        distinct = np.unique(values[mine])
        if len(distinct) > (3 if most else 1):
            out[mine] = values[mine] > distinct[-2 if most else (len(distinct) - 1) // 2]
    return out


_MOST_REACH = 1000.0  # a band that reaches further either way is no answer
_TOO_WIDE = (
    "the band of every candidate reaches further than x1,000 either way; give more runs near it"
)


@dataclass(frozen=True)
class QuantityChoice:
    """Fitted candidates for one quantity (step, epoch or run), and who answers which kind of question.

    verdicts: of the kinds that could be judged; runs: how many were given.
    """

    quantity: str
    members: Members
    span: RunSpan
    verdicts: tuple[Verdict, ...]
    runs: int

    @staticmethod
    def of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> QuantityChoice:
        """Return the candidates fitted to the times of one quantity."""
        fitted = Learners(start, runs, quantity).fitted(names)
        part = runs.take(np.flatnonzero(np.isfinite(measured(runs, quantity))))
        span = RunSpan.of(JobColumns.of(part.jobs, quantity), configurations(part.table)[1])
        alive = tuple(name for name in names if name in fitted.fitted)
        verdicts = Trials.of(alive, start, runs, quantity).verdicts()
        return QuantityChoice(quantity, fitted, span, verdicts, len(runs))

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts, with who answered each row."""
        made = Forecasts.blank(len(jobs), "auto", self.quantity)
        if not len(jobs):
            return made
        answers = self.members.forecasts(jobs, self.quantity)
        columns = JobColumns.of(jobs, self.quantity)
        kinds = self.span.kinds(columns)
        by = np.full(len(jobs), "", dtype=object)
        parts: dict[str, FloatArray] = {}
        for kind in np.unique(kinds).tolist():
            words, order = self._order(kind)
            for name, stretch in order.items():
                answer = answers[name]
                near = (answer.seconds[:, [0, 2]] / answer.seconds[:, [1]]) ** [-1.0, 1.0]
                usable = answer.answered & (near <= _MOST_REACH).all(axis=1)
                rows = np.flatnonzero((kinds == kind) & (by == "") & usable)
                middle = answer.seconds[rows, 1:2]
                made.seconds[rows] = middle * (answer.seconds[rows] / middle) ** stretch
                made.distance[rows] = answer.distance[rows]
                by[rows] = f"auto: {name} ({words})"
                _put_parts(parts, answer, rows)
        ready = by != ""
        if ANALYTIC in answers:  # memory, floors and refusals of physics, where it knows the job
            physics = answers[ANALYTIC]
            floor = np.where(ready, physics.floor_seconds, np.nan)
            raised = np.fmax(made.seconds, floor[:, None])
            share = raised[:, 1] / made.seconds[:, 1]
            parts = {name: values * share for name, values in parts.items()}
            made = replace(
                made, seconds=np.where(ready[:, None], raised, np.nan), floor_seconds=floor,
                peak_bytes=physics.peak_bytes, usable_bytes=physics.usable_bytes,
                fit_probability=physics.fit_probability, memory_parts=physics.memory_parts,
                unmeasured=physics.unmeasured,
            )  # fmt: skip
        made.declined[~ready] = self._why_none(jobs, columns, answers, np.flatnonzero(~ready))
        wide = np.any([answer.answered for answer in answers.values()], axis=0) & ~ready
        made.declined[wide] = _TOO_WIDE
        return replace(made, parts=parts, by=by)

    def _order(self, kind: int) -> tuple[str, dict[str, float]]:
        """Return a kind of question in words, and the candidates in order with their bands' stretch."""
        judged = {one.kind for one in self.verdicts}
        if kind == NETWORK and kind not in judged and UNSEEN in judged:
            kind = UNSEEN  # as new, and more
        for one in self.verdicts:
            if one.kind == kind:
                able = [score for score in one.scores if score.name in self.members.fitted]
                return WORDS[kind], {score.name: score.stretch for score in able}
        words = f"{WORDS[kind]}: no run could judge that"
        return words, dict.fromkeys(usual_order(kind, list(self.members.fitted)), 1.0)

    def _why_none(
        self, jobs: Jobs, columns: JobColumns, answers: Mapping[str, Forecasts], rows: IntArray
    ) -> list[str]:
        """Return why nobody answers some rows, (m,); of a job that physics cannot read, what runs lack comes first."""
        law = next((name for name in answers if name != ANALYTIC), "")
        failed = next((why for name, why in self.members.failed.items() if name != ANALYTIC), "")
        by_label = (jobs.workload_index < 0) | (jobs.cluster_index < 0)
        reasons = []
        for row in rows.tolist():
            physics = str(answers[ANALYTIC].declined[row]) if ANALYTIC in answers else ""
            reason = str(answers[law].declined[row]) if law else failed
            pair = [physics, reason]
            if by_label[row] and law:
                group, known = columns.groups[columns.group[row]], self.span.groups
                if group not in known:
                    workload, device = (text or "(blank)" for text in group)
                    ran_on = sorted(one[1] for one in known if one[0] == group[0])
                    had = ran_on or sorted({one[0] for one in known})
                    found = f"{workload} ran on" if ran_on else "they are of"
                    reason = (
                        f"no run of {workload}{f' on {device}' if ran_on else ''} among the {self.runs:,} runs:"
                        f" {found} {', '.join(had)}; {reason.partition('; ')[2] or 'give runs of it'}"
                    )
                pair = [reason, physics and f"physics does not know it: {physics}"]
            reasons.append("; and ".join(dict.fromkeys(filter(None, pair))))
        return reasons

    def reasons(self) -> Iterator[str]:
        """Yield the choice in sentences."""
        lead = f"choice of the {self.quantity}'s time"
        if self.verdicts:
            yield (
                f"{lead}: candidates judged on left-out runs, each as often as it was left out; the first one"
                " named that can answers: the usual one, or one that surely errs less by a paired test"
            )
        else:
            yield f"{lead}: {counted(self.runs, 'run')} left none to judge the candidates by"
        for one in self.verdicts:
            errors = [
                f"{score.name} {format_percent(score.median_ape / 100, 1)}"
                for score in one.scores if score.median_ape is not None
            ]  # fmt: skip
            yield (
                f"{WORDS[one.kind]}: median errors on {counted(one.judged, 'judgement')}:"
                f" {', '.join(errors)}"
            )
        for name, why in self.members.failed.items():
            yield f"{name}: not among them: {why}"

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that have no JSON form."""
        return tuple(n for n, one in self.members.fitted.items() if not hasattr(one, "to_json"))


def _put_parts(parts: dict[str, FloatArray], answer: Forecasts, rows: IntArray) -> None:
    """Put the parts of some rows' answer into columns: its own where they add up, else its name."""
    middle = answer.seconds[:, 1]
    own = {name: np.asarray(values) for name, values in answer.parts.items()}
    total = sum(own.values(), np.zeros(len(middle)))
    if not (own and np.isclose(total[rows], middle[rows], rtol=1e-5).all()):
        own = {answer.predictor: middle}
    for name, values in own.items() if len(rows) else ():
        parts.setdefault(name, np.zeros(len(middle)))[rows] = values[rows]


@dataclass(frozen=True)
class Auto(SavedPredictor):
    """The candidate that does best on runs held out as the question holds its job out.

    Without runs it is the analytic predictor. With runs, each row is answered by the first candidate, in
    the order of its kind of question (see `trials`), that can.

    Attributes:
        start: which constants physics starts from, see `options.started`.
        names: of the candidates; empty for all that are registered.
        chosen: for each quantity that runs time; the first is answered.
        as_they_were_run: whether most runs state no plan: a job without one is then run as they were.
        target: samples until a target, where runs reached one.
    """

    start: str = PRIORS
    names: tuple[str, ...] = ()
    chosen: tuple[QuantityChoice, ...] = ()
    as_they_were_run: bool = False
    target: Convergence | None = None

    name = "auto"
    version = 8

    @staticmethod
    def shipped() -> Auto:
        """Return it with the shipped constants. Raises as `AnalyticPredictor.shipped`."""
        return Auto(SHIPPED)

    shipped_made = staticmethod(AnalyticPredictor.shipped_made)
    shipped_rows = staticmethod(AnalyticPredictor.shipped_rows)

    def fit(self, runs: Runs) -> Auto:
        """Return one whose candidates have learned from these runs alone; RequestError where none has a time."""
        runs = sorted_runs(runs)
        quantities = timed_quantities(runs)
        if not quantities:
            stopped = int((runs.status == "timeout").sum())
            raise RequestError(
                f"fitting {self.name} on {counted(len(runs), 'run')}",
                "none that ended has a time of a step, an epoch or a whole run"
                + (f"; {stopped:,} were stopped, which are lower bounds alone" if stopped else ""),
                "give runs that ended ok, with step_time_s, samples_per_s, epoch_time_s or"
                " time_to_train_s",
            )
        names, known = self.names, registry.names("predictors")
        if not names:  # those that are registered, those that a setting names, and those that suit
            from forerun.settings import load_settings

            wanted = map(str.strip, load_settings().text("candidates").split(","))
            served = np.isin(runs.jobs.plans.sync, SERVER_SYNCS).any()
            suited = (OF_SERVERS * bool(served), OF_OWN * bool(runs.jobs.cells.own.factors))
            usual = (name for name in NAMES if name in known)
            names = tuple(dict.fromkeys(filter(None, (*usual, *wanted, *suited))))
        more = {} if self.names else {"run": (*dict.fromkeys((*names, OF_RUNS)),)}
        chosen = tuple(
            QuantityChoice.of(more.get(one, names), self.start, runs, one) for one in quantities
        )
        stated = [runs.table.texts(name) != "" for name in LAYOUT if name in runs.table]
        target = Convergence().fit(runs) if Convergence.speaks_of(runs) else None
        as_run = bool(np.any(stated, axis=0).mean() < 0.5)
        return Auto(self.start, self.names, chosen, as_run, target)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of n jobs, in the quantity that most runs time."""
        if not self.chosen:
            return replace(self.planner.predict(jobs), predictor=self.name)
        answer = self.chosen[0].predict(jobs)
        if self.target is None:
            return answer
        until = self.target.predict(jobs)
        warnings = (*answer.warnings, *until.warnings)
        return replace(answer, samples_to_target=until.samples_to_target, warnings=warnings)

    def every_quantity(self, jobs: Jobs) -> list[Forecasts]:
        """Return the forecasts of n jobs in each quantity that runs time, that of `predict` first."""
        return [self.predict(jobs), *(chosen.predict(jobs) for chosen in self.chosen[1:])]

    @cached_property
    def planner(self) -> Predictor:
        """Physics, as these runs have calibrated it: who tells plans of one job apart."""
        for chosen in self.chosen:
            if ANALYTIC in chosen.members.fitted and ANALYTIC not in chosen.members.failed:
                return chosen.members.fitted[ANALYTIC]
        return started(ANALYTIC, PRIORS if self.start == PRIORS else "")

    @property
    def learned(self) -> tuple[Learned, ...]:
        """What runs said of each constant of physics; nothing where none of them spoke of physics."""
        if self.chosen and not self.fitted_runs:
            return ()
        return tuple(getattr(self.planner, "learned", ()))

    @property
    def fitted_runs(self) -> int:
        """How many runs have calibrated physics."""
        return int(getattr(self.planner, "fitted_runs", 0))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The choice in sentences: who, by what error, and who could not be fitted."""
        return tuple(words for chosen in self.chosen for words in chosen.reasons())

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """How candidates did on each kind of question that was judged, see `CandidateScore`, the leader first."""
        return [
            {"quantity": chosen.quantity, "question": WORDS[one.kind], "judged": one.judged,
             "candidates": plain(one.scores)}
            for chosen in self.chosen for one in chosen.verdicts
        ]  # fmt: skip

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Members that `to_json` leaves out, as they have no JSON form."""
        return tuple(dict.fromkeys(name for chosen in self.chosen for name in chosen.unsaved))

    @property
    def formulas(self) -> dict[str, str]:
        """The laws of the candidates that have any, by candidate and kind of job."""
        members = [pair for chosen in self.chosen for pair in chosen.members.fitted.items()]
        found = {
            f"{name}: {kind}": text
            for name, one in members
            for kind, text in getattr(one, "formulas", {}).items()
        }
        target = {} if self.target is None else self.target.formulas
        return found | {
            f"samples until the target of {kind}": text for kind, text in target.items()
        }

    def to_json(self) -> str:
        """Return the members, each in its own JSON, and the verdicts, as JSON text; see `unsaved`."""
        chosen = []
        for one in self.chosen:
            kept = {n: made for n, made in one.members.fitted.items() if n not in one.unsaved}
            failed = {**one.members.failed, **dict.fromkeys(one.unsaved, "it has no JSON form")}
            chosen.append(replace(one, members=Members(kept, failed)))
        return SavedPredictor.to_json(replace(self, chosen=tuple(chosen)))
