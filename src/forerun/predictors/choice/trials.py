"""Trials: every candidate judged on runs that it was not shown, question by question.

Blind: which runs shipped constants know already, so that trials on them do not flatter physics.

Folds: the runs divided as a question divides them from its job: within, beyond, apart, few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.predictors.choice.candidates import members
from forerun.predictors.choice.columns import JobColumns
from forerun.predictors.choice.questions import DEVICE, WORKLOAD, Questions, Seen
from forerun.predictors.choice.work import Ledger
from forerun.predictors.laws.law_rows import GROUP, Kind, measured
from forerun.predictors.starts import PRIORS, has_shipped
from forerun.tables import Runs, configurations
from forerun.tables.fingerprints import seen

WITHIN, PARTS = 3, 3
# Runs that are left of a workload on a device, to see who answers from few.
FEW = (2, 5)
_FEWEST = 2  # questions without which nothing can be divided


@dataclass(frozen=True)
class Fold:
    """Positions of the runs that teach and of those that are judged; `words` says how divided."""

    words: str
    teach: IntArray
    judge: IntArray


def folds_of(columns: JobColumns, config: IntArray, timed: BoolArray) -> list[Fold]:
    """Return the folds of n runs; none where too few are timed.

    Args:
        columns: of their jobs.
        config: number of each run's question, (n,): repeats share it and stay together.
        timed: which runs can be judged, (n,). The others only teach.
    """
    rng = np.random.default_rng(0)
    families: dict[str, list[Fold]] = {}
    for words, out in _outs(columns, config, timed, rng):
        judge, teach = np.flatnonzero(out & timed), np.flatnonzero(~out)
        if len(judge) and timed[teach].any():
            families.setdefault(words, []).append(Fold(words, teach, judge))
    # In turn, so that who is stopped early has been seen at every kind of question.
    turns = range(max(map(len, families.values()), default=0))
    return [family[turn] for turn in turns for family in families.values() if turn < len(family)]


def _outs(
    columns: JobColumns, config: IntArray, timed: BoolArray, rng: np.random.Generator
) -> Iterator[tuple[str, BoolArray]]:
    """Yield (words, which runs are left out), of each fold."""
    questions = np.unique(config[timed])
    if len(questions) < _FEWEST:
        return
    parts = WITHIN if len(questions) >= 2 * WITHIN else len(questions)
    dealt = rng.permutation(int(config.max()) + 1)
    rank = np.argsort(np.argsort(dealt[questions], kind="stable"), kind="stable")
    part = np.full(int(config.max()) + 1, -1)
    part[questions] = rank % parts
    for i in range(parts):
        yield "runs left out by chance", part[config] == i
    groups, group = columns.groups
    cores, wire = columns.given
    for name, values in (("devices", columns.machines), ("samples a device", columns.share),
                         ("samples of an epoch", columns.dataset), ("cores of a worker", cores),
                         ("rates of the network", wire)):  # fmt: skip
        for words, bound in (("the upper half", 0.5), ("the most", 1.0)):
            out = _upper(values, group, len(groups), bound)
            if out.any():
                yield f"{words} of {name} left out", out
    workloads = np.array([g[0] for g in groups], dtype=object)[group]
    devices = np.array([g[1] for g in groups], dtype=object)[group]
    apart = [("workload", workloads), ("device", devices)]
    if not _same(columns.cluster, devices):
        apart.append(("cluster", columns.cluster))
    for name, labels in apart:
        distinct, label = np.unique(labels.astype(str), return_inverse=True)
        count = len(distinct)
        if count < 2 or (name == "cluster" and "" in distinct):
            continue
        share = rng.permutation(count)[label.reshape(-1)] % min(PARTS, count)
        for i in range(min(PARTS, count)):
            yield f"every {name} of a part left out", share == i
    yield from _few(config, group, devices if len(set(devices)) > 1 else workloads, timed, rng)


def _upper(values: FloatArray, group: IntArray, groups: int, bound: float) -> BoolArray:
    """Return which runs are above, in their own group, the lower half of distinct values (n,).

    bound: 0.5 for the lower half, 1.0 for all values but the largest.
    """
    out = np.zeros(len(values), dtype=bool)
    told = np.isfinite(values)
    for g in range(groups):
        mine = np.flatnonzero((group == g) & told)
        distinct = np.unique(values[mine])
        if len(distinct) < 2 or (bound == 1.0 and len(distinct) < 3):
            continue
        last = len(distinct) - 2 if bound == 1.0 else (len(distinct) - 1) // 2
        out[mine] = values[mine] > distinct[last]
    return out


def _few(
    config: IntArray, group: IntArray, places: NDArray[np.object_], timed: BoolArray,
    rng: np.random.Generator,
) -> Iterator[tuple[str, BoolArray]]:  # fmt: skip
    """Yield folds in which half of the places keep only a few runs of each of their groups."""
    distinct, place = np.unique(places.astype(str), return_inverse=True)
    place = place.reshape(-1)
    if len(distinct) < 2:
        return
    half = rng.permutation(len(distinct)) < (len(distinct) + 1) // 2
    drawn = rng.permutation(int(config.max()) + 1)[config]
    for turn, count in enumerate(FEW):
        thin = half[place] if turn % 2 == 0 else ~half[place]
        out = np.zeros(len(config), dtype=bool)
        for g in np.unique(group[thin]):
            mine = np.flatnonzero((group == g) & thin)
            keep = np.unique(drawn[mine[timed[mine]]])[:count]
            out[mine] = ~np.isin(drawn[mine], keep)
        yield "all but a few runs of a workload and device left out", out


def _same(a: NDArray[np.object_], b: NDArray[np.object_]) -> bool:
    """Whether two labels divide the runs alike."""
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def thinned(config: IntArray, group: IntArray, most: int) -> IntArray:
    """Return positions of at most `most` runs (m,): repeats go first, then evenly of all groups.

    config, group: number of each run's question, and of its workload and device, (n,).
    """
    if len(config) <= most:
        return np.arange(len(config))
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(config))
    repeat, turn = np.empty((2, len(config)), dtype=np.int64)
    repeat[shuffled] = _rank_within(config[shuffled])
    turn[shuffled] = _rank_within(group[shuffled])
    return np.sort(np.lexsort((turn, repeat))[:most])


def _rank_within(labels: IntArray) -> IntArray:
    """Return how many rows before each have the same label, (n,)."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, len(labels)])
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return rank


def bringers(names: tuple[str, ...], start: str) -> tuple[str, ...]:
    """Return the candidates that start from constants shipped with them."""
    if start == PRIORS:
        return ()
    return tuple(name for name in names if has_shipped(registry.load("predictors", name)))


def known_already(names: tuple[str, ...], start: str, runs: Runs, columns: JobColumns) -> BoolArray:
    """Return which runs are of a workload and device whose runs taught shipped constants, (n,).

    All of them where a candidate does not say which runs taught its own.

    Args:
        names: of the candidates. start: see `starts.started`.
        runs: facts. columns: of their jobs.

    Raises:
        RequestError: the fingerprints of the runs that taught cannot be read.
    """
    taught = np.zeros(len(runs), dtype=bool)
    looked_up = []
    for name in bringers(names, start):
        kind = registry.load("predictors", name)
        if not hasattr(kind, "shipped_rows"):
            return np.ones(len(runs), dtype=bool)
        rows = kind.shipped_rows()
        if rows not in looked_up:  # several candidates may bring the same ones
            taught |= seen(runs, rows)
            looked_up.append(rows)
    _, group = columns.groups
    return np.isin(group, group[taught])


# Runs that trials use at most; judged runs of one fold at most.
MOST_RUNS, MOST_JUDGED = 1000, 400
# Decimals of logs that are kept: a saved choice has to be the one that was fitted.
_DIGITS = 5


@dataclass(frozen=True)
class Trials:
    """r judged answers of c candidates.

    Attributes:
        names: of the candidates, c.
        questions: what each judged run was to the runs that taught, r.
        error: log of measured over forecast, (r, c), NaN where a candidate declined.
        reach: logs by which the 5 % and 95 % quantile lie off the median, (r, c, 2).
        cell: fold, workload and device of each, (r,); runs of one cell are alike.
        folds: what was left out in each fold, and how many runs were judged in it.
        dropped: candidates whose trials were stopped, and why.
        runs: how many were used of how many.
        cut: ways to leave runs out that were not tried, as the others were work enough.
        late: whether that was by this machine's clock, and not by the count of work.
        familiar: of the judged runs, those like which taught constants shipped with a candidate: on
            them it was judged as it starts from its priors.
        unit: number of what is new in each question, (r,): its workload, its device, or both; its
            workload on its device where nothing is. Runs of one unit err together.
    """

    names: tuple[str, ...]
    questions: Questions
    error: FloatArray
    reach: FloatArray
    cell: IntArray
    folds: tuple[tuple[str, int], ...]
    dropped: dict[str, str]
    runs: tuple[int, int]
    cut: int = 0
    late: bool = False
    familiar: int = 0
    unit: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.unit):
            object.__setattr__(self, "unit", self.cell)
        if len(self.unit) != len(self.error):
            raise ValueError(f"{len(self.unit)} units of {len(self.error)} trials")

    def __len__(self) -> int:
        return len(self.error)


def trials_of(names: tuple[str, ...], start: str, runs: Runs, quantity: str) -> Trials:
    """Return the trials of candidates on runs.

    Args:
        names: of the candidates; those that cannot be fitted on a fold decline its runs.
        start: see `starts.started`. Runs that constants shipped with a candidate know already judge
            it as it starts from its priors.
        runs: facts, in the order of `tables.sorted_runs`; rows without a time of the quantity only
            teach.
        quantity: step, epoch or run.
    """
    every = len(runs)
    timed = np.isfinite(measured(runs, quantity))
    used = thinned(
        configurations(runs.table)[1], JobColumns(runs.jobs, quantity).groups[1], MOST_RUNS
    )
    runs, timed = runs.take(used), timed[used]
    columns, config = JobColumns(runs.jobs, quantity), configurations(runs.table)[1]
    folds = folds_of(columns, config, timed)
    log = np.log(measured(runs, quantity))
    bring, known = bringers(names, start), known_already(names, start, runs, columns)
    ledger = Ledger()
    judged, asked, error, reach = [], [], [], []
    kept: list[Fold] = []
    silent: set[tuple[str, str]] = set()
    for fold in folds:
        if ledger.spent or ledger.late:
            break
        judge = _some(fold.judge)
        told, question = runs.take(fold.teach), runs.take(judge).jobs
        teaching = JobColumns(told.jobs, quantity)
        kinds = len(np.unique(teaching.kinds[1]))
        answers: dict[str, Forecasts] = {}
        for part in _parts(names):
            if any(ledger.why_done(name) for name in part):
                continue
            if all((fold.words, name) in silent for name in part):
                continue  # it has nothing to say of such questions
            blind = known[judge] & any(name in bring for name in part)
            for begin, rows in ((start, ~blind), (PRIORS, blind)):
                if not rows.any():
                    continue
                with ledger.entry(part, len(told), kinds):
                    fitted = members(part, begin, told, quantity)
                    said = fitted.forecasts(question.take(rows), quantity)
                answers |= {n: _put(answers.get(n), said[n], rows) for n in said}
            for name in part:
                if name in answers and not answers[name].answered.any():
                    silent.add((fold.words, name))
        one = [_errors(answers.get(name), log[judge]) for name in names]
        error.append(np.stack([e for e, _ in one], axis=1))
        reach.append(np.stack([w for _, w in one], axis=1))
        seen = Seen.of(teaching, config[fold.teach])
        asked.append(seen.questions(JobColumns(question, quantity)))
        judged.append(judge)
        kept.append(fold)
    groups, group = columns.groups
    at = _joined(judged).astype(np.int64)
    number = np.repeat(np.arange(len(kept)), [len(one) for one in judged])
    dropped = {name: ledger.why_done(name) for name in names}
    questions = _stacked(asked)
    return Trials(
        names=names, questions=questions,
        error=_rounded(error, (0, len(names))),
        reach=_rounded(reach, (0, len(names), 2)),
        cell=number * max(len(groups), 1) + group[at],
        folds=tuple((fold.words, len(one)) for fold, one in zip(kept, judged, strict=True)),
        dropped={name: why for name, why in dropped.items() if why},
        runs=(len(runs), every),
        cut=len(folds) - len(kept),
        late=len(kept) < len(folds) and not ledger.spent,
        familiar=int(known[np.unique(at)].sum()), unit=_units(questions.kind, groups, group[at]),
    )  # fmt: skip


def _parts(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the candidates one by one, those of physics together: they share a calibration."""
    together = tuple(name for name in names if name in ("analytic", "residual"))
    return [*filter(None, [together]), *((name,) for name in names if name not in together)]


def _units(kind: NDArray[np.int8], groups: Sequence[Kind], group: IntArray) -> IntArray:
    """Return the number of what is new in each of r questions, (r,), see `Trials.unit`."""
    names = np.array(groups, dtype=object).reshape(len(groups), len(GROUP))
    numbers = [np.unique(column.astype(str), return_inverse=True)[1] for column in names.T]
    workload, device = (column.reshape(-1)[group].astype(np.int64) for column in numbers)
    new = np.select([kind == WORKLOAD, kind == DEVICE], [workload, device], group)
    return np.asarray(new, dtype=np.int64)


def _some(rows: IntArray) -> IntArray:
    """Return at most `MOST_JUDGED` of the rows, by chance."""
    if len(rows) <= MOST_JUDGED:
        return rows
    return np.sort(np.random.default_rng(0).permutation(rows)[:MOST_JUDGED])


def _put(answer: Forecasts | None, part: Forecasts, rows: BoolArray) -> Forecasts:
    """Return the answers with those of some rows put in; before there are any, others are declined."""
    if rows.all():
        return part
    if answer is None:
        answer = Forecasts.blank(len(rows), part.predictor, part.quantity)
        answer.declined[:] = "not asked"
    answer.seconds[rows], answer.declined[rows] = part.seconds, part.declined
    return answer


def _errors(answer: Forecasts | None, log: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log measured over forecast (m,), and the reach of the bands (m, 2)."""
    if answer is None:
        return np.full(len(log), np.nan), np.full((len(log), 2), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        quantiles = np.log(np.where(answer.answered[:, None], answer.seconds, np.nan))
    middle = quantiles[:, 1]
    return log - middle, np.stack([middle - quantiles[:, 0], quantiles[:, 2] - middle], axis=1)


def _rounded(pieces: Sequence[FloatArray], empty: tuple[int, ...]) -> FloatArray:
    joined = np.concatenate([np.empty(empty), *pieces])
    return np.asarray(np.round(joined, _DIGITS), dtype=np.float64)


def _joined(pieces: Sequence[IntArray]) -> IntArray:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def _stacked(pieces: Sequence[Questions]) -> Questions:
    """Return the questions of all pieces, with one list of kin."""
    kins = tuple(dict.fromkeys(kin for piece in pieces for kin in piece.kins))
    place = {kin: i for i, kin in enumerate(kins)}
    kin = [np.array([place[k] for k in piece.kins], dtype=np.int64)[piece.kin] for piece in pieces]
    kind = [np.empty(0, dtype=np.int8), *(piece.kind for piece in pieces)]
    away = [np.empty(0), *(piece.doublings for piece in pieces)]
    known = [np.empty(0), *(piece.known for piece in pieces)]
    return Questions(
        np.concatenate(kind), np.concatenate(away), np.concatenate(known), _joined(kin), kins
    )
