"""The generic expression and its two fits: published differential evolution, and a fast way to the same.

Kavarakuntla et al., A generic performance model for deep learning in a distributed environment (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray, taken
from forerun.predictors.laws.fitting import ColumnRows

MODES, PENALTIES = ("fast", "faithful"), ("l1", "l2")
SEED = 0
# Exponents beyond these are no law of training: twice the work takes at most eight times as long.
MOST_EXPONENT = 3.0
# Strengths of the penalty that validation chooses from. Times are divided by what makes them near 1.
STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# With fewer different points than this nothing can be held out, and lambda is this.
LEAST_HELD_OUT, USUAL_STRENGTH = 5, 1e-5
FOLDS = 5
# Rounds and tolerance of a full descent, and of a rough one of many.
FULLY, ROUGHLY = (150, 1e-9), (12, 1e-3)
# The published way: members for each constant, generations, when the costs have come together.
PLAIN_MEMBERS, PLAIN_GENERATIONS, PLAIN_TOLERANCE = 15, 2000, 1e-6
# The most that a coefficient can be over the longest time.
_MOST_COEFFICIENT = 3.0
# Of times near 1: a billionth of them is missed, and less than the rounding of their squares.
_NOTHING = 1e-18
# |x| in the l1 penalty is sqrt(x^2 + this), so that its slope is known everywhere.
_SMOOTH = 1e-12
# Repeats on one machine differ by 1-2 %, so that no fit is surer than that.
REPEAT_SIGMA = 0.02
# A standard deviation over the median distance of a normal error; how many of them are far.
_OF_MEDIAN, _FAR, _ROUNDS = 1.48, 1.5, 2
_LEAST_FITTED = 0.1  # of the measured time, where weights go by the fitted one
_FIRST_DAMPING, _MOST_DAMPING, _EASIER, _HARDER = 1e-3, 1e8, 0.2, 5.0
_MOST_STEP = 1.0  # of any constant in a round


@dataclass(frozen=True)
class FormRows(ColumnRows):
    """n jobs of each of p problems: time = (sum of a_i I_i^p_i) (product of E_j^q_j) + C (5.1).

    intrinsic, extrinsic: logs of I and of E over their references, (p, n, i) and (p, n, j). flags: 1
    where a job has a category, (p, n, c).
    """

    intrinsic: FloatArray
    extrinsic: FloatArray
    flags: FloatArray

    @property
    def exponents(self) -> int:
        """How many exponents the expression has."""
        return int(self.intrinsic.shape[-1] + self.extrinsic.shape[-1])

    def columns(self, exponents: FloatArray) -> FloatArray:
        """Return what the coefficients multiply, (p, n, k), for exponents (p, d)."""
        i = self.intrinsic.shape[-1]
        factor = np.exp(self.extrinsic @ exponents[:, i:, None])  # (5.3)
        terms = np.exp(exponents[:, None, :i] * self.intrinsic) * factor  # (5.2)
        return np.concatenate([terms, self.flags * factor, np.ones_like(factor)], axis=2)

    def slopes(self, columns: FloatArray, coefficients: FloatArray) -> FloatArray:
        """Return the derivative of the time by each exponent, (p, n, d)."""
        i = self.intrinsic.shape[-1]
        parts = columns[:, :, :-1] * coefficients[:, None, :-1]
        scaled = parts.sum(axis=2, keepdims=True) * self.extrinsic
        return np.concatenate([parts[:, :, :i] * self.intrinsic, scaled], axis=2)


@dataclass(frozen=True)
class GenericForm:
    """Which columns the expression has.

    numbers, scaling: I_i and E_j, and what each is divided by. categories: intrinsic columns that are
    texts, and the code of each of their words.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scaling: Mapping[str, float] = field(default_factory=dict)

    @property
    def coefficients(self) -> int:
        """How many constants it has beside exponents: the a_i (at least one), then C."""
        return max(len(self.numbers) + sum(map(len, self.categories.values())), 1) + 1

    @property
    def constants(self) -> int:
        """How many constants it has in all."""
        return self.coefficients + len(self.numbers) + len(self.scaling)

    def rows(self, columns: Mapping[str, FloatArray]) -> FormRows:
        """Return n jobs as the expression reads them, as one problem; numbers are positive."""
        n = len(next(iter(columns.values())))
        logs = [
            np.reshape([np.log(columns[name] / by) for name, by in of.items()], (len(of), n)).T
            for of in (self.numbers, self.scaling)
        ]
        flags = [
            columns[name][:, None] == [*codes.values()] for name, codes in self.categories.items()
        ]
        if not self.numbers and not flags:
            flags = [np.ones((n, 1), dtype=bool)]
        every = np.concatenate([np.zeros((n, 0)), *flags], axis=1)
        return FormRows(logs[0][None], logs[1][None], every[None])


@dataclass(frozen=True)
class GenericCost:
    """The costs (5.4) of p problems of n runs: a mean square and a penalty.

    seconds: measured, divided by what makes them near 1, so that the penalty has no unit, (p, n).
    weights: of the squares, (p, n); those of a problem add up to 1. strength: lambda, (p,).
    """

    rows: FormRows
    seconds: FloatArray
    weights: FloatArray
    penalty: str
    strength: FloatArray

    def fitted(self, constants: FloatArray) -> FloatArray:
        """Return the times of the expression (5.1), (p, n), coefficients first, then exponents."""
        k = constants.shape[1] - self.rows.exponents
        columns = self.rows.columns(constants[:, k:])
        return np.asarray((columns @ constants[:, :k, None])[:, :, 0])

    def of(self, constants: FloatArray) -> FloatArray:
        """Return the cost of all constants (p, m): coefficients first, then exponents, (p,)."""
        missed = np.sum(self.weights * (self.fitted(constants) - self.seconds) ** 2, axis=1)
        return np.asarray(missed + self.strength * self._sizes(constants).sum(axis=1))

    def _sizes(self, constants: FloatArray) -> FloatArray:
        return np.sqrt(constants**2 + _SMOOTH) if self.penalty == "l1" else constants**2

    def derivatives(self, constants: FloatArray) -> FloatArray:
        """Return the slopes of the fitted times, (p, n, m)."""
        k = constants.shape[1] - self.rows.exponents
        columns = self.rows.columns(constants[:, k:])
        return np.concatenate([columns, self.rows.slopes(columns, constants[:, :k])], axis=2)

    def parabola(self, constants: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the costs' slopes (p, m), and Gauss and Newton's curvatures (p, m, m)."""
        slopes = self.derivatives(constants)
        turned = (slopes * self.weights[:, :, None]).transpose(0, 2, 1)
        left = self.seconds - self.fitted(constants)
        pull = (turned @ left[:, :, None])[:, :, 0]
        curvature = turned @ slopes
        drawn = self.strength[:, None] * np.ones_like(constants)
        if self.penalty == "l1":
            drawn = drawn / (2.0 * self._sizes(constants))
        np.einsum("pmm->pm", curvature)[...] += drawn
        return 2.0 * (drawn * constants - pull), 2.0 * curvature

    def only(self, kept: BoolArray) -> GenericCost:
        """Return the costs where some runs (p, n) alone have weight."""
        weights = self.weights * kept
        return replace(self, weights=weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class GenericFit:
    """Constants of p problems, coefficients then exponents, (p, m); and what is of each problem, (p,)."""

    constants: FloatArray
    costs: FloatArray
    converged: BoolArray
    strength: FloatArray


def descend(
    cost: GenericCost, start: FloatArray, rounds: int = FULLY[0], tolerance: float = FULLY[1]
) -> GenericFit:
    """Return the minimum beside each start, (p, m), by damped steps (Marquardt, 1963)."""
    upper = np.full(start.shape[1], np.inf)
    upper[start.shape[1] - cost.rows.exponents :] = MOST_EXPONENT
    lower = np.where(np.isinf(upper), 0.0, -MOST_EXPONENT)
    best = np.clip(start, lower, upper)
    found, converged = cost.of(best), np.zeros(len(best), dtype=bool)
    live, damping = np.arange(len(best)), np.full(len(best), _FIRST_DAMPING)
    some, theta, now = cost, best.copy(), found.copy()
    slope, curvature = some.parabola(theta)
    for _ in range(rounds):
        # A constant at a bound is held while the cost falls beyond it.
        held = ((theta <= lower) & (slope > 0)) | ((theta >= upper) & (slope < 0))
        curved = curvature * ~held[:, :, None] * ~held[:, None, :]
        size = np.einsum("pmm->pm", curved)  # a view
        # Directions in which a cost is flat are damped by its curvature in the others.
        least = 1e-6 * size.max(axis=1, keepdims=True) + 1e-30
        size += damping[:, None] * np.maximum(size, least) + least + held
        pull = slope * ~held
        step = np.linalg.solve(curved, pull[:, :, None])[:, :, 0]
        trial = np.clip(theta - np.clip(step, -_MOST_STEP, _MOST_STEP), lower, upper)
        tried = some.of(trial)
        better = tried < now
        gained = np.where(better, now - tried, np.einsum("pm,pm->p", step, pull) / 2.0)
        done = (gained <= tolerance * now) | (now <= _NOTHING) | (damping > _MOST_DAMPING)
        theta[better], now[better] = trial[better], tried[better]
        damping *= np.where(better, _EASIER, _HARDER)
        best[live], found[live], converged[live] = theta, now, done
        if done.all():
            break
        if done.any():
            stay = np.flatnonzero(~done)
            live, some, damping = live[stay], taken(some, stay), damping[stay]
            theta, now = theta[stay], now[stay]
        slope, curvature = some.parabola(theta)
    return GenericFit(best, found, converged, cost.strength)


def fast(cost: GenericCost) -> GenericFit:
    """Return the minima of costs whose lambda is given, by descent from a regression of logarithms."""
    rows, counted = cost.rows, cost.weights > 0
    # Half of the shortest time is taken to be constant where the descent starts.
    least = np.where(counted, cost.seconds, np.inf).min(axis=1, keepdims=True)
    logs = np.log(np.maximum(cost.seconds - 0.5 * least, 1e-9 * least))
    x = np.concatenate(
        [rows.intrinsic, rows.extrinsic, rows.flags, np.ones_like(logs)[:, :, None]], axis=2
    )
    exponents = _solved(x, logs, cost.weights)[:, : rows.exponents]
    exponents = np.clip(exponents, -MOST_EXPONENT, MOST_EXPONENT)
    coefficients = np.maximum(_solved(rows.columns(exponents), cost.seconds, cost.weights), 1e-3)
    return descend(cost, np.hstack([coefficients, exponents]))


def _solved(x: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the least squares of x (p, n, k) to y (p, n), a little drawn to zero, (p, k)."""
    turned = (x * weights[:, :, None]).transpose(0, 2, 1)
    gram = turned @ x + 1e-6 * np.eye(x.shape[2])
    return np.asarray(np.linalg.solve(gram, turned @ y[:, :, None])[:, :, 0])


def fitted_costs(
    costs: list[GenericCost], points: list[IntArray], relative: bool, mode: str = "fast"
) -> GenericFit:
    """Return the minimum of each cost, one problem of one form; lambda by runs held out.

    points: for each, which distinct point a run was made at, (n,). relative: whether weights become
    those of shares of the fitted times. mode: `faithful` evolves all constants.
    """
    n = max(cost.seconds.shape[1] for cost in costs)

    def padded(values: list[FloatArray], fill: float) -> FloatArray:
        made = np.full((len(values), n, *values[0].shape[2:]), fill)
        for to, value in zip(made, values, strict=True):
            to[: value.shape[1]] = value[0]
        return made

    rows = FormRows(*(
        padded([getattr(cost.rows, name) for cost in costs], 0.0)
        for name in ("intrinsic", "extrinsic", "flags")
    ))  # fmt: skip
    every = GenericCost(
        rows, padded([cost.seconds for cost in costs], 1.0),
        padded([cost.weights for cost in costs], 0.0), costs[0].penalty,
        np.full(len(costs), STRENGTHS[1]),
    )  # fmt: skip
    fit = fast(every)
    for _ in range(_ROUNDS if relative else 0):
        every = replace(every, weights=_relative_weights(every, every.fitted(fit.constants)))
        fit = descend(every, fit.constants, *ROUGHLY)
    every = replace(every, strength=validated_strengths(every, fit.constants, points))
    return plain(every) if mode == "faithful" else descend(every, fit.constants)


def _relative_weights(every: GenericCost, fitted: FloatArray) -> FloatArray:
    """Return weights of errors as shares of the fitted times, (p, n), less for the farthest runs.

    Shares of the measured time favour the runs that were lucky. Weights by distance: Huber (1964).
    """
    counted = every.weights > 0
    fitted = np.maximum(fitted, _LEAST_FITTED * every.seconds)
    missed = np.where(counted, np.abs(every.seconds / fitted - 1.0), np.nan)
    usual = np.maximum(_OF_MEDIAN * np.nanmedian(missed, axis=1, keepdims=True), REPEAT_SIGMA)
    trust = np.minimum(1.0, _FAR * usual / np.maximum(np.nan_to_num(missed), 1e-12))
    weights = trust * fitted**-2.0 * counted
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def validated_strengths(
    every: GenericCost, start: FloatArray, points: list[IntArray]
) -> FloatArray:
    """Return the lambda of each of g problems that does best on runs held out (5.5), (g,)."""
    strength, fold = np.full(len(points), USUAL_STRENGTH), np.full(every.weights.shape, -1)
    for i, of in enumerate(points):
        count = int(of.max()) + 1
        if count >= LEAST_HELD_OUT:
            fold[i, : len(of)] = np.random.default_rng(SEED).permutation(count)[of] % FOLDS
    able = np.flatnonzero((fold >= 0).any(axis=1))
    if not len(able):
        return strength
    at = np.repeat(able, len(STRENGTHS) * FOLDS)
    lambdas = np.tile(np.repeat(STRENGTHS, FOLDS), len(able))
    held = fold[at] == np.tile(np.arange(FOLDS), len(at) // FOLDS)[:, None]
    cost = taken(every, at)
    fits = descend(replace(cost.only(~held), strength=lambdas), start[at], *ROUGHLY)
    missed = np.sum(cost.weights * held * (cost.fitted(fits.constants) - cost.seconds) ** 2, axis=1)
    errors = missed.reshape(len(able), len(STRENGTHS), FOLDS).sum(axis=2)
    strength[able] = np.array(STRENGTHS)[np.argmin(errors, axis=1)]
    return strength


def plain(every: GenericCost) -> GenericFit:
    """Return the minima of costs whose lambda is given, by evolving every constant (5.5)."""
    from scipy.optimize import differential_evolution

    d = every.rows.exponents
    k = every.rows.intrinsic.shape[2] + every.rows.flags.shape[2] + 1
    found = []
    for i in range(len(every.seconds)):
        cost = taken(every, np.array([i]))
        most = _MOST_COEFFICIENT * float(cost.seconds.max())
        found.append(differential_evolution(
            lambda x, cost=cost: cost.of(np.ascontiguousarray(x.T)),
            [(0.0, most)] * k + [(-MOST_EXPONENT, MOST_EXPONENT)] * d,
            strategy="rand1bin", popsize=PLAIN_MEMBERS, maxiter=PLAIN_GENERATIONS,
            tol=PLAIN_TOLERANCE, atol=_NOTHING, mutation=(0.5, 0.9), recombination=0.9,
            polish=False, seed=SEED, vectorized=True, updating="deferred",
        ))  # fmt: skip
    constants, costs, ended = (
        np.array([one[name] for one in found]) for name in ("x", "fun", "success")
    )
    return GenericFit(constants, costs, ended, every.strength)
