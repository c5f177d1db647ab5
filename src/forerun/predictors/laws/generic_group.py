"""Kinds of runs to generic laws: columns chosen, constants fitted, bootstrap, what was noticed.

Which columns the generic expression of one kind of runs has, and why the others are left out.

Many kinds of runs fitted at once, the fast way: as many numbers in a call as one kind has, and more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.generic_columns import BLANK, EXTRINSIC, INTRINSIC, TEXTS
from forerun.predictors.laws.generic_fit import (
    FOLDS,
    ROUGHLY,
    SEED,
    STRENGTHS,
    USUAL_STRENGTH,
    Fitted,
    folds_of,
    nearest,
    stacked,
    validated,
)
from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost, GenericForm
from forerun.predictors.laws.generic_law import GenericLaw
from forerun.predictors.laws.generic_solve import Solved, descend, problems
from forerun.predictors.laws.grouping import Columns, Group, TooFewError, reach_of

# Repeats on one machine differ by 1-2 %, so that no fit is surer than that.
REPEAT_SIGMA = 0.02
# A standard deviation over the median distance of a normal error; how many of them are far.
_OF_MEDIAN, _FAR, _ROUNDS = 1.48, 1.5, 2
_LEAST_MIDDLE = 0.1  # of the measured time, where weights go by the fitted one


def fitted_many(costs: list[Cost], points: list[IntArray], relative: bool) -> list[Fitted]:
    """Return the minimum of each cost, lambda by runs held out.

    Args:
        costs: of one form; their lambda is not read.
        points: for each, which distinct point a run was made at, (n,).
        relative: whether weights become those of shares of the fitted times.
    """
    near, tried = nearest([replace(cost, strength=STRENGTHS[1]) for cost in costs])
    exponents = near[:, 0]
    every = stacked(costs)
    if relative:
        solved = descend(every, exponents, 0)
        for _ in range(_ROUNDS):
            every = replace(every, weights=_shares(every, _middle(every, solved)))
            solved = descend(every, solved.exponents, *ROUGHLY)
        exponents = solved.exponents
    strength = _strengths(every, exponents, points)
    ended = descend(replace(every, strength=strength), exponents)
    return [
        Fitted(
            ended.coefficients[i], ended.exponents[i], float(ended.costs[i]), float(strength[i]),
            tried, bool(ended.settled[i]),
        )
        for i in range(len(costs))
    ]  # fmt: skip


def _shares(every: Cost, middle: FloatArray) -> FloatArray:
    """Return weights of errors as shares of the fitted times, (p, n), less for the farthest runs.

    Shares of the measured time lean to the runs that were lucky, shares of the fitted do not; and
    a run much farther off than most counts by its distance instead of the square (Huber, 1964).
    """
    counted = every.weights > 0
    middle = np.maximum(middle, _LEAST_MIDDLE * every.seconds)
    missed = np.where(counted, np.abs(every.seconds / middle - 1.0), np.nan)
    usual = np.maximum(_OF_MEDIAN * np.nanmedian(missed, axis=1, keepdims=True), REPEAT_SIGMA)
    trust = np.minimum(1.0, _FAR * usual / np.maximum(np.nan_to_num(missed), 1e-12))
    weights = trust * middle**-2.0 * counted
    shares: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _middle(cost: Cost, solved: Solved) -> FloatArray:
    """Return the times of p problems, (p, n)."""
    columns = cost.rows.columns(solved.exponents)
    times: FloatArray = (columns @ solved.coefficients[:, :, None])[:, :, 0]
    return times


def _strengths(every: Cost, exponents: FloatArray, points: list[IntArray]) -> FloatArray:
    """Return the lambda of each of g problems that does best on runs held out, (g,)."""
    strength = np.full(len(points), USUAL_STRENGTH)
    fold = np.full(every.weights.shape, -1)
    for i, of in enumerate(points):
        parts = folds_of(of)
        if parts is not None:
            fold[i, : len(parts)] = parts
    able = np.flatnonzero((fold >= 0).any(axis=1))
    if not len(able):
        return strength
    tries = len(STRENGTHS) * FOLDS
    at = np.repeat(able, tries)
    lambdas = np.tile(np.repeat(STRENGTHS, FOLDS), len(able))
    held = fold[at] == np.tile(np.arange(FOLDS), len(at) // FOLDS)[:, None]
    cost = problems(every, at)
    weights = cost.weights * ~held
    kept = weights / weights.sum(axis=1, keepdims=True)
    fits = descend(replace(cost, weights=kept, strength=lambdas), exponents[at], *ROUGHLY)
    missed = np.sum(cost.weights * held * (_middle(cost, fits) - cost.seconds) ** 2, axis=1)
    errors = missed.reshape(len(able), len(STRENGTHS), FOLDS).sum(axis=2)
    strength[able] = np.array(STRENGTHS)[np.argmin(errors, axis=1)]
    return strength


def resampled(
    costs: list[Cost], fits: list[Fitted], logs: list[FloatArray], resamples: int
) -> FloatArray:
    """Return constants of the fitted times with what they missed drawn anew, (g, resamples, m).

    Args:
        costs: of g sets of runs, of one form.
        fits: their minima.
        logs: of measured over fitted, (n,) each: errors of timers and shared machines are ratios.
        resamples: how many of each.
    """
    rng = np.random.default_rng(SEED)
    every = stacked([
        replace(cost, strength=fitted.strength) for cost, fitted in zip(costs, fits, strict=True)
    ])  # fmt: skip
    seconds = np.repeat(every.seconds[:, None], resamples, axis=1)
    for i, (cost, fitted, log) in enumerate(zip(costs, fits, logs, strict=True)):
        n = len(log)
        # Runs lie nearer to the law that they made than to the one that made them.
        wider = np.sqrt(n / max(n - fitted.free, 1))
        drawn = wider * (log - log.mean())[rng.integers(0, n, (resamples, n))]
        drawn = drawn + rng.normal(0.0, REPEAT_SIGMA, (resamples, n))
        seconds[i, :, :n] = middle_of(cost, fitted) * np.exp(drawn)
    again = problems(every, np.repeat(np.arange(len(costs)), resamples))
    starts = np.repeat(np.stack([fitted.exponents for fitted in fits]), resamples, axis=0)
    found = descend(
        replace(again, seconds=seconds.reshape(len(starts), -1)), starts, *ROUGHLY
    ).constants
    return found.reshape(len(costs), resamples, -1)


def middle_of(cost: Cost, fitted: Fitted) -> FloatArray:
    """Return the fitted times of the runs of one cost, (n,)."""
    times: FloatArray = cost.rows.columns(fitted.exponents[None])[0] @ fitted.coefficients
    return times


# A column of which the others explain all but this share of its spread says nothing of its own:
# batches are rounded to whole samples a device.
_OWN_SHARE = 0.02
_MOST_CATEGORIES = 12


@dataclass
class Choice:
    """The columns of one kind of runs.

    Attributes:
        form: the expression.
        held: number or text columns that never change, and their value (a text as its code).
        left_out: columns that change and are not in the expression, and why.
    """

    form: GenericForm
    held: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def chosen(
    columns: Mapping[str, FloatArray], texts: Mapping[str, tuple[str, ...]], room: int
) -> Choice:
    """Return the expression of n runs: every column that varies, and that others do not explain.

    Args:
        columns: numbers and coded texts, (n,) each; BLANK where a run does not say.
        texts: the words of each text column.
        room: how many runs differ, which the constants may not outnumber.
    """
    choice = Choice(GenericForm())
    basis = [np.ones(len(columns["devices"]))]
    names: list[tuple[str, ...]] = [()]
    numbers: dict[str, float] = {}
    scaling: dict[str, float] = {}
    categories: dict[str, tuple[str, ...]] = {}
    for name in (*EXTRINSIC, *INTRINSIC, *TEXTS):
        values = columns.get(name)
        if values is None or not _varies(choice, name, values):
            continue
        block = _block(values, name in texts)
        why = _explained(block, basis, names) or _no_room(
            name, block, room, GenericForm(numbers, categories, scaling), name in texts
        )
        if why:
            choice.left_out[name] = why
            continue
        basis += list(block.T)
        names += [(name,)] * block.shape[1]
        if name in texts:
            categories[name] = tuple(texts[name][int(code)] for code in np.unique(values))
        elif name in EXTRINSIC:
            scaling[name] = _reference(values)
        else:
            numbers[name] = _reference(values)
    choice.form = GenericForm(numbers, categories, scaling)
    return choice


def _varies(choice: Choice, name: str, values: FloatArray) -> bool:
    """Return whether a column is stated by all runs and changes; say in the choice where not."""
    blank = int(np.count_nonzero(values == BLANK))
    if blank == len(values):
        return False
    if blank:
        choice.left_out[name] = f"blank in {blank} of {len(values)} runs"
    elif values.min() == values.max():
        choice.held[name] = float(values[0])
    else:
        return True
    return False


def _block(values: FloatArray, text: bool) -> FloatArray:
    """Return what a column adds to the basis: its log, or a flag for each category, (n, b)."""
    if not text:
        return np.log(values)[:, None]
    flags: FloatArray = (values[:, None] == np.unique(values)[None, :]).astype(np.float64)
    return flags


def _explained(block: FloatArray, basis: list[FloatArray], names: list[tuple[str, ...]]) -> str:
    """Return by what a block is explained, in words, or "" where it says something of its own."""
    x = np.stack(basis, axis=1)
    spread = block - block.mean(axis=0)
    weights = np.linalg.lstsq(x, block, rcond=None)[0]
    own = block - x @ weights
    share = np.linalg.norm(own, axis=0) / np.linalg.norm(spread, axis=0)
    if share.max() > _OWN_SHARE:
        return ""
    moves = np.abs(weights) * np.std(x, axis=0)[:, None] > _OWN_SHARE * np.std(block, axis=0)
    by = dict.fromkeys(name for i, of in enumerate(names) for name in of if moves[i].any())
    return f"goes with {' and '.join(by)}"


def _no_room(name: str, block: FloatArray, room: int, form: GenericForm, text: bool) -> str:
    """Return why there are too few different runs for one more column, or ""."""
    if text and block.shape[1] > _MOST_CATEGORIES:
        return f"{block.shape[1]} different words"
    more = block.shape[1] if text else 2 - (name in EXTRINSIC)
    # The first intrinsic column takes the place of the one constant that stands for none.
    more -= int(name not in EXTRINSIC and not form.numbers and not form.categories)
    return f"only {room} different runs" if form.constants + more > room else ""


def _reference(values: FloatArray) -> float:
    """Return the middle one of the measured values."""
    return float(np.sort(values)[len(values) // 2])


ERRORS = ("relative", "absolute")
# Runs that differ: one constant, one exponent and C at the least.
LEAST_POINTS = 3
RESAMPLES = 60
# A ratio of measured to fitted beyond this is a row that the law does not describe at all.
_MOST_LOG_RATIO = 2.3


@dataclass(frozen=True)
class Settings:
    """How laws are fitted: see `generic.Generic`."""

    mode: str
    penalty: str
    errors: str


@dataclass(frozen=True)
class _Kind:
    """The runs of one kind, ready to be fitted.

    Attributes:
        group, columns: the runs. choice: the columns of the expression.
        cost: of seconds over `scale`. points: which distinct point each run was made at, (n,).
    """

    group: Group
    columns: Columns
    choice: Choice
    cost: Cost
    scale: float
    points: IntArray

    @property
    def alike(self) -> tuple[int, ...]:
        """What kinds share that are fitted at once: the form, and about how many runs."""
        rows = self.cost.rows
        shape = (rows.intrinsic.shape[1], rows.extrinsic.shape[1], rows.flags.shape[1])
        return (*shape, int(np.ceil(np.log2(len(rows)))))


def fitted_laws(
    groups: Sequence[Group], texts: Mapping[str, tuple[str, ...]], settings: Settings
) -> list[GenericLaw | TooFewError]:
    """Return the law of the runs of each kind, or why it has none."""
    made: list[_Kind | TooFewError] = [_kind(group, texts, settings) for group in groups]
    batches: dict[tuple[int, ...], list[int]] = {}
    for i, kind in enumerate(made):
        if isinstance(kind, _Kind):
            batches.setdefault(kind.alike, []).append(i)
    laws: dict[int, GenericLaw] = {}
    for batch in batches.values():
        kinds = [kind for kind in map(made.__getitem__, batch) if isinstance(kind, _Kind)]
        laws.update(zip(batch, _laws(kinds, texts, settings), strict=True))
    return [kind if isinstance(kind, TooFewError) else laws[i] for i, kind in enumerate(made)]


def _kind(
    group: Group, texts: Mapping[str, tuple[str, ...]], settings: Settings
) -> _Kind | TooFewError:
    columns = {name: values for name, values in group.columns.items() if name != "size"}
    distinct, points = np.unique(np.stack(list(columns.values())), axis=1, return_inverse=True)
    count = distinct.shape[1]
    if count < LEAST_POINTS:
        return TooFewError(f"only {count} different run{'s' if count != 1 else ''}")
    choice = chosen(columns, texts, count)
    scale = float(np.mean(group.seconds))
    seconds = group.seconds / scale
    weights = 1.0 / seconds**2 if settings.errors == "relative" else np.ones(len(seconds))
    places = {
        name: np.unique(columns[name], return_inverse=True)[1].reshape(-1).astype(np.float64)
        for name in choice.form.categories
    }
    rows = choice.form.rows(columns, places)
    cost = Cost(rows, seconds, weights / weights.sum(), settings.penalty)
    return _Kind(group, columns, choice, cost, scale, points.reshape(-1).astype(np.int64))


def _laws(
    kinds: list[_Kind], texts: Mapping[str, tuple[str, ...]], settings: Settings
) -> list[GenericLaw]:
    """Return the laws of kinds of one form."""
    costs = [kind.cost for kind in kinds]
    if settings.mode == "fast":
        points = [kind.points for kind in kinds]
        fits = fitted_many(costs, points, settings.errors == "relative")
    else:
        fits = [validated(kind.cost, kind.points) for kind in kinds]
    logs = [_logs(cost, fitted) for cost, fitted in zip(costs, fits, strict=True)]
    again = resampled(costs, fits, logs, RESAMPLES)
    return [
        _law(kind, fitted, log, drawn, texts)
        for kind, fitted, log, drawn in zip(kinds, fits, logs, again, strict=True)
    ]


def _logs(cost: Cost, fitted: Fitted) -> FloatArray:
    with np.errstate(divide="ignore"):
        logs = np.log(cost.seconds) - np.log(middle_of(cost, fitted))
    clipped: FloatArray = np.clip(logs, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    return clipped


def _law(
    kind: _Kind, fitted: Fitted, logs: FloatArray, again: FloatArray,
    texts: Mapping[str, tuple[str, ...]],
) -> GenericLaw:  # fmt: skip
    k, form, held = len(fitted.coefficients), kind.choice.form, kind.choice.held
    intervals = np.quantile(again[:, k:], (0.05, 0.95), axis=0).T.reshape(-1, 2)
    units = np.where(np.arange(again.shape[1]) < k, kind.scale, 1.0)
    moved = (again - fitted.constants) * units
    bounds = {
        name: (float(values.min()), float(values.max()))
        for name, values in kind.columns.items()
        if name in {**form.numbers, **form.scaling} or (name in held and name not in TEXTS)
    }
    return GenericLaw(
        numbers=form.numbers, categories=form.categories, scaling=form.scaling,
        coefficients=fitted.coefficients * kind.scale, exponents=fitted.exponents,
        covariance=moved.T @ moved / len(moved), intervals=intervals,
        reach=reach_of(logs, fitted.free, REPEAT_SIGMA), bounds=bounds,
        machines=kind.group.bounds("devices"), runs=len(logs), strength=fitted.strength,
        quantity=kind.group.quantity, left_out=kind.choice.left_out,
        held={name: _word(code, texts[name]) for name, code in held.items() if name in TEXTS},
        notes=_notes(kind.choice, fitted),
    )  # fmt: skip


def _word(code: float, words: tuple[str, ...]) -> str:
    return "" if code == BLANK else words[int(code)]


def _notes(choice: Choice, fitted: Fitted) -> tuple[str, ...]:
    """Return what was noticed: no end to the search, exponents that the bounds hold."""
    notes = []
    if not fitted.converged:
        notes.append("the fit did not converge; this is the best that was found")
    names = [*choice.form.numbers, *choice.form.scaling]
    at_bound = [
        name
        for name, power in zip(names, fitted.exponents, strict=True)
        if abs(power) > MOST_EXPONENT - 1e-6
    ]
    if at_bound:
        notes.append(
            f"the exponent of {' and '.join(at_bound)} is at its bound of {MOST_EXPONENT:g}"
        )
    alike = [name for name, why in choice.left_out.items() if why.startswith("goes with")]
    if alike:
        told = ", ".join(f"{name} {choice.left_out[name]}" for name in alike)
        notes.append(f"these runs cannot tell apart: {told}")
    return tuple(notes)
