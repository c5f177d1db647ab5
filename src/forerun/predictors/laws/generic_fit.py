"""The generic expression and its two fits: published differential evolution, and a fast way to the same.

Kavarakuntla et al., A generic performance model for deep learning in a distributed environment
(2023): time = (sum of a_i I_i^p_i) (product of E_j^q_j) + C (5.1 to 5.3), judged by the mean square
error and a penalty on its constants (5.4). The form is reconstructed. The published way (5.5) evolves
every constant within bounds. For given exponents the expression is linear in its coefficients, so the
fast way solves these exactly for many exponents at once and descends from the best of them (variable
projection: Golub and Pereyra, Inverse Problems 19, 2003); both minimise the same cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.laws.fitting import ColumnRows, minima

MODES, PENALTIES = ("fast", "faithful"), ("l1", "l2")
SEED = 0
# Exponents beyond these are no law of training: twice the work takes at most eight times as long.
MOST_EXPONENT = 3.0
# Strengths of the penalty that validation chooses from. Times are divided by what makes them near 1.
STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# With fewer different points than this nothing can be held out, and lambda is this.
LEAST_HELD_OUT, USUAL_STRENGTH = 5, 1e-5
FOLDS = 5
# The fast way: rows that candidates are judged on, candidates for each exponent; the best of them that
# are descended from on few rows, and the best of these on all. Of 200 made-up laws of one to five exponents
# none ends higher than with 256 candidates, 32 starts and 8 finalists.
SAMPLED_ROWS, SAMPLES, STARTS, FINALISTS = 192, 64, 4, 2
# Rounds and tolerance of a full descent, of a rough one of many, and of those from `STARTS`.
FULLY, ROUGHLY, NEARLY = (100, 1e-9), (8, 1e-3), (12, 1e-4)
# The published way: members for each constant, generations, when the costs have come together.
PLAIN_MEMBERS, PLAIN_GENERATIONS, PLAIN_TOLERANCE = 15, 2000, 1e-6
# The most that a coefficient can be over the longest time.
_MOST_COEFFICIENT = 3.0
# Of times near 1: a billionth of them is missed, and less than the rounding of their squares.
_NOTHING = 1e-18
# Numbers in the largest array of one pass: enough that calls cost little, few enough for memory.
_MOST_NUMBERS = 4_000_000
# |x| in the l1 penalty is sqrt(x^2 + this), so that its slope is known everywhere.
_SMOOTH = 1e-12
# Of columns scaled to one: below it a coefficient or a gain is rounding; equal columns have one solution.
_TOLERANCE, _RIDGE = 1e-11, 1e-12
_FULL_SWAPS, _MOST_SWAPS = 3, 60
# Repeats on one machine differ by 1-2 %, so that no fit is surer than that.
REPEAT_SIGMA = 0.02
# A standard deviation over the median distance of a normal error; how many of them are far.
_OF_MEDIAN, _FAR, _ROUNDS = 1.48, 1.5, 2
_LEAST_FITTED = 0.1  # of the measured time, where weights go by the fitted one


@dataclass(frozen=True)
class FormRows(ColumnRows):
    """n jobs as the expression reads them, or n of each of p problems.

    Attributes:
        intrinsic: logs of the numbers over their references, (n, i) or (p, n, i).
        extrinsic: the same of the scaling, (n, j) or (p, n, j).
        flags: 1 where a job has a category, (n, c) or (p, n, c).
    """

    intrinsic: FloatArray
    extrinsic: FloatArray
    flags: FloatArray

    def __len__(self) -> int:
        return int(self.flags.shape[-2])

    @property
    def exponents(self) -> int:
        """How many exponents the expression has."""
        return int(self.intrinsic.shape[-1] + self.extrinsic.shape[-1])

    def columns(self, exponents: FloatArray) -> FloatArray:
        """Return what the coefficients multiply, (p, n, k), for p vectors of exponents (p, d)."""
        i = self.intrinsic.shape[-1]
        if self.extrinsic.ndim == 2:
            factor = np.exp(exponents[:, i:] @ self.extrinsic.T)[:, None]  # (5.3)
        else:
            factor = np.exp(self.extrinsic @ exponents[:, i:, None]).transpose(0, 2, 1)
        # The rows of a column are adjacent, so that no loop is as short as a row.
        made = np.empty((len(exponents), i + self.flags.shape[-1] + 1, len(self)))
        if i:
            terms = np.exp(exponents[:, :i, None] * self.intrinsic.swapaxes(-1, -2))  # (5.2)
            np.multiply(terms, factor, out=made[:, :i])
        np.multiply(self.flags.swapaxes(-1, -2), factor, out=made[:, i:-1])
        made[:, -1] = 1.0
        return made.transpose(0, 2, 1)

    def slopes(self, columns: FloatArray, coefficients: FloatArray) -> FloatArray:
        """Return the derivative of the time by each exponent, (p, n, d)."""
        i = self.intrinsic.shape[-1]
        parts = columns[:, :, :-1] * coefficients[:, None, :-1]
        scaled = parts.sum(axis=2, keepdims=True) * self.extrinsic
        return np.concatenate([parts[:, :, :i] * self.intrinsic, scaled], axis=2) if i else scaled


@dataclass(frozen=True)
class GenericForm:
    """Which columns the expression has, and what each number is divided by.

    Attributes:
        numbers: intrinsic columns I_i that are numbers, and their references.
        categories: intrinsic columns that are texts, and the categories of each.
        scaling: extrinsic columns E_j and their references.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scaling: Mapping[str, float] = field(default_factory=dict)

    @property
    def exponents(self) -> int:
        """How many exponents it has: p of the numbers, then q of the scaling."""
        return len(self.numbers) + len(self.scaling)

    @property
    def coefficients(self) -> int:
        """How many constants it has beside: the a_i (at least one), then C."""
        return max(len(self.numbers) + sum(map(len, self.categories.values())), 1) + 1

    @property
    def constants(self) -> int:
        """How many constants it has in all."""
        return self.exponents + self.coefficients

    def rows(self, numbers: Mapping[str, FloatArray], texts: Mapping[str, FloatArray]) -> FormRows:
        """Return n jobs as the expression reads them.

        Args:
            numbers: the columns of `numbers` and `scaling`, positive, (n,) each.
            texts: for each column of `categories`, which category a job has, (n,).
        """
        n = len(next(iter([*numbers.values(), *texts.values()])))
        logs = [
            np.reshape([np.log(numbers[name] / by) for name, by in of.items()], (len(of), n)).T
            for of in (self.numbers, self.scaling)
        ]
        flags = [texts[name][:, None] == np.arange(len(of)) for name, of in self.categories.items()]
        if not self.numbers and not flags:
            flags = [np.ones((n, 1), dtype=bool)]
        return FormRows(logs[0], logs[1], np.concatenate([np.zeros((n, 0)), *flags], axis=1))


@dataclass(frozen=True)
class GenericCost:
    """The cost (5.4) of runs, or of each of p problems: a mean square and a penalty.

    Attributes:
        rows: the runs.
        seconds: measured, divided by what makes them near 1, so that the penalty has no unit, (n,),
            or (p, n) for p problems.
        weights: of the squares, (n,) or (p, n); those of a problem add up to 1.
        penalty: `l1`, the sum of sizes, or `l2`, the sum of squares.
        strength: lambda, one number or (p,).
    """

    rows: FormRows
    seconds: FloatArray
    weights: FloatArray
    penalty: str = "l2"
    strength: FloatArray | float = 0.0

    def penalised(self, constants: FloatArray) -> FloatArray:
        """Return lambda R of constants (p, m), (p,)."""
        squares = constants**2
        sizes = np.sqrt(squares + _SMOOTH) if self.penalty == "l1" else squares
        return np.asarray(self.strength * sizes.sum(axis=1))

    def of(self, constants: FloatArray) -> FloatArray:
        """Return the cost of all constants (p, m): coefficients first, then exponents, (p,)."""
        k = constants.shape[1] - self.rows.exponents
        columns = self.rows.columns(constants[:, k:])
        fitted = (columns @ constants[:, :k, None])[:, :, 0]
        missed = np.sum(self.weights * (fitted - self.seconds) ** 2, axis=1)
        return np.asarray(missed + self.penalised(constants))

    def take(self, index: Any) -> Self:
        """Return the cost of some problems alone, where they differ in anything."""
        strength = (
            self.strength if np.ndim(self.strength) == 0 else np.asarray(self.strength)[index]
        )
        if self.seconds.ndim == 1:
            return replace(self, strength=strength)
        return replace(
            self, rows=self.rows.take(index), seconds=self.seconds[index],
            weights=self.weights[index], strength=strength,
        )  # fmt: skip

    def runs(self, kept: IntArray) -> Self:
        """Return the cost of some runs of one problem."""
        weights = self.weights[kept] / self.weights[kept].sum()
        return replace(self, rows=self.rows.take(kept), seconds=self.seconds[kept], weights=weights)

    def coefficients(self, columns: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the best coefficients (p, k) for columns (p, n, k), their Gram matrix and moment.

        l2 adds lambda to the diagonal of the Gram matrix; l1 takes lambda / 2 from the moment, since
        no coefficient is negative.
        """
        turned = (columns * self.weights[..., None]).transpose(0, 2, 1)
        gram, moment = turned @ columns, (turned @ self.seconds[..., None])[:, :, 0]
        strength = np.reshape(self.strength, (-1, 1))
        if self.penalty == "l1":
            moment = moment - strength / 2
        else:
            np.einsum("pkk->pk", gram)[...] += strength
        return nnls_gram(gram, moment), gram, moment

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return costs (p,) at exponents (p, d), slopes (p, d) and curvatures (p, d, d)."""
        columns = self.rows.columns(theta)
        best, gram, _ = self.coefficients(columns)
        left = self.seconds - (columns @ best[:, :, None])[:, :, 0]
        cost = np.sum(self.weights * left**2, axis=1) + self.penalised(np.hstack([best, theta]))
        slopes = self.rows.slopes(columns, best)
        turned = (slopes * self.weights[..., None]).transpose(0, 2, 1)
        pull = (turned @ left[:, :, None])[:, :, 0]
        # Coefficients above zero follow the exponents: they are eliminated from the curvature.
        free = best > 0
        cross = (turned @ columns) * free[:, None, :]
        gram = np.where(free[:, :, None] & free[:, None, :], gram, np.eye(free.shape[1]))
        np.einsum("pkk->pk", gram)[...] *= 1.0 + 1e-10
        curvature = turned @ slopes - cross @ np.linalg.solve(gram, cross.transpose(0, 2, 1))
        strength = np.reshape(self.strength, (-1, 1)) * np.ones_like(theta)
        if self.penalty == "l1":
            strength = strength / (2 * np.sqrt(theta**2 + _SMOOTH))
        np.einsum("pdd->pd", curvature)[...] += strength
        return cost, 2 * (strength * theta - pull), 2 * curvature


@dataclass(frozen=True)
class GenericFit:
    """Constants of p problems.

    Attributes:
        coefficients: (p, k), not negative. exponents: (p, d). costs: (5.4), (p,).
        converged: whether the search of each ended before its rounds did, (p,).
        strength: lambda of each, (p,). evaluations: how often a cost was worked out in a search.
    """

    coefficients: FloatArray
    exponents: FloatArray
    costs: FloatArray
    converged: BoolArray
    strength: FloatArray
    evaluations: int = 0

    @property
    def constants(self) -> FloatArray:
        """Coefficients, then exponents, (p, k + d)."""
        return np.hstack([self.coefficients, self.exponents])

    @staticmethod
    def joined(fits: list[GenericFit]) -> GenericFit:
        """Return the problems of several fits."""
        return GenericFit(
            np.concatenate([fit.coefficients for fit in fits]),
            np.concatenate([fit.exponents for fit in fits]),
            np.concatenate([fit.costs for fit in fits]),
            np.concatenate([fit.converged for fit in fits]),
            np.concatenate([fit.strength for fit in fits]),
        )

    def take(self, index: Any) -> GenericFit:
        """Return some problems."""
        return GenericFit(
            self.coefficients[index], self.exponents[index], self.costs[index],
            self.converged[index], self.strength[index], self.evaluations,
        )  # fmt: skip

    def seconds(self, cost: GenericCost) -> FloatArray:
        """Return the fitted times of the runs of p problems, (p, n)."""
        columns = cost.rows.columns(self.exponents)
        return np.asarray((columns @ self.coefficients[:, :, None])[:, :, 0])


def descend(
    cost: GenericCost, exponents: FloatArray, rounds: int = FULLY[0], tolerance: float = FULLY[1]
) -> GenericFit:
    """Return the minimum beside each start, (p, d), of one problem or of p."""
    size = max(_MOST_NUMBERS // max(len(cost.rows) * 8, 1), 1)
    parts: list[GenericFit] = []
    for at in range(0, len(exponents), size):
        some = cost.take(slice(at, at + size))
        start = exponents[at : at + size]
        bound = np.full(start.shape, MOST_EXPONENT)
        found = minima(
            some, start, -bound, bound, rounds=rounds, tolerance=tolerance, nothing=_NOTHING,
            most_step=1.0,
        )  # fmt: skip
        solved = some.coefficients(some.rows.columns(found.theta))[0]
        strength = np.broadcast_to(some.strength, len(start))
        parts.append(GenericFit(solved, found.theta, found.cost, found.converged, strength))
    return GenericFit.joined(parts)


def nnls_gram(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the x >= 0 that minimises x G x - 2 h x for each of p problems, (p, k).

    For least squares |A x - b|^2 the Gram matrix is A^T A and the moment is A^T b. A column of
    zeros has the coefficient 0. All problems change sides together (block principal pivoting):
    SciPy's `nnls`, one after another, takes 4.6 times as long for 5,000 problems of four columns.

    Args:
        gram: (p, k, k), positive semi-definite.
        moment: (p, k).
    """
    size = np.sqrt(np.einsum("pkk->pk", gram))
    size = np.where(size == 0, 1.0, size)
    scaled = gram / (size[:, :, None] * size[:, None, :])
    np.einsum("pkk->pk", scaled)[...] += _RIDGE
    wanted = moment / size
    reach = np.maximum(np.abs(wanted).max(axis=1, initial=0.0), 1e-300)[:, None]
    wanted = wanted / reach
    # Most problems have no coefficient at 0, so all of them start free.
    solution = np.linalg.solve(scaled, wanted[:, :, None])[:, :, 0]
    some = (solution < -_TOLERANCE).any(axis=1)
    if some.any():
        solution[some] = _pivoted(scaled[some], wanted[some], solution[some])
    return np.asarray(np.maximum(solution, 0.0) * reach / size)


def _pivoted(scaled: FloatArray, wanted: FloatArray, solution: FloatArray) -> FloatArray:
    """Return the minimum by changing sides, (p, k), from the solution with every column free."""
    count, k = wanted.shape
    free = np.ones((count, k), dtype=bool)
    gain = np.zeros((count, k))
    fewest, swaps = np.full(count, k + 1), np.full(count, _FULL_SWAPS)
    for _ in range(_MOST_SWAPS):
        wrong = np.where(free, solution < -_TOLERANCE, gain > _TOLERANCE)
        many = wrong.sum(axis=1)
        if not many.any():
            break
        swaps = np.where(many < fewest, _FULL_SWAPS, swaps - 1)
        fewest = np.minimum(fewest, many)
        # Where full swaps gain nothing, only the last wrong column changes sides: that ends.
        last = wrong & (np.cumsum(wrong[:, ::-1], axis=1)[:, ::-1] == 1)
        free ^= np.where((swaps < 0)[:, None], last, wrong)
        both = free[:, :, None] & free[:, None, :]
        solution = np.linalg.solve(
            np.where(both, scaled, np.eye(k)), np.where(free, wanted, 0.0)[:, :, None]
        )[:, :, 0]
        gain = wanted - (scaled @ solution[:, :, None])[:, :, 0]
    return solution


def fast(cost: GenericCost) -> GenericFit:
    """Return the minimum of a cost whose lambda is given, by descent from sampled exponents."""
    near, tried = nearest([cost])
    ended = descend(cost, near[0][:FINALISTS])
    best = ended.take(slice(np.argmin(ended.costs), np.argmin(ended.costs) + 1))
    return replace(best, evaluations=tried)


def nearest(costs: list[GenericCost]) -> tuple[FloatArray, int]:
    """Return exponents near the minimum of each of g costs, (g, s, d), the best of s first.

    And how often a cost was worked out. The costs are of one form.
    """
    g, d = len(costs), costs[0].rows.exponents
    thin = np.random.default_rng(SEED)
    some = stacked_costs([
        cost if len(cost.rows) <= SAMPLED_ROWS
        else cost.runs(np.sort(thin.permutation(len(cost.rows))[:SAMPLED_ROWS]))
        for cost in costs
    ])  # fmt: skip
    # A Latin hypercube: each member has a slice of every exponent for itself.
    rng = np.random.default_rng(SEED)
    members = max(SAMPLES * d, STARTS)
    slices = rng.permuted(np.tile(np.arange(members), (d, 1)), axis=1).T
    tried = MOST_EXPONENT * (2 * (slices + rng.random((members, d))) / members - 1)
    found = np.empty((g, members))
    size = max(_MOST_NUMBERS // max(len(some.rows) * members * 8, 1), 1)
    for at in range(0, g, size):
        part = slice(at, at + size)
        here = np.repeat(np.arange(g)[part], members)
        now, every = some.take(here), np.tile(tried, (len(here) // members, 1))
        best, _, moment = now.coefficients(now.rows.columns(every))
        # The best x that is not negative has x (h - G x) = 0: its cost is that of none less h x.
        none = np.sum(now.weights * now.seconds**2, axis=-1)
        missed = np.maximum(none - np.einsum("pk,pk->p", best, moment), 0.0)
        found[part] = (missed + now.penalised(every)).reshape(-1, members)
    starts = tried[np.argsort(found, axis=1)[:, :STARTS]]
    ended = descend(some.take(np.repeat(np.arange(g), STARTS)), starts.reshape(-1, d), *NEARLY)
    order = np.argsort(ended.costs.reshape(g, STARTS), axis=1)
    exponents = ended.exponents.reshape(g, STARTS, d)
    return np.take_along_axis(exponents, order[:, :, None], axis=1), members


def stacked_costs(costs: list[GenericCost]) -> GenericCost:
    """Return the costs of g sets of runs as g problems; shorter ones get rows of no weight."""
    n = max(len(cost.rows) for cost in costs)

    def padded(values: list[FloatArray], fill: float) -> FloatArray:
        made = np.full((len(values), n, *values[0].shape[1:]), fill)
        for to, value in zip(made, values, strict=True):
            to[: len(value)] = value
        return made

    rows = FormRows(*(
        padded([getattr(cost.rows, name) for cost in costs], 0.0)
        for name in ("intrinsic", "extrinsic", "flags")
    ))  # fmt: skip
    return GenericCost(
        rows, padded([cost.seconds for cost in costs], 1.0),
        padded([cost.weights for cost in costs], 0.0), costs[0].penalty,
        np.array([float(cost.strength) for cost in costs]),
    )  # fmt: skip


def fitted_fast(costs: list[GenericCost], points: list[IntArray], relative: bool) -> GenericFit:
    """Return the minimum of each cost, lambda by runs held out.

    Args:
        costs: of one form; their lambda is not read.
        points: for each, which distinct point a run was made at, (n,).
        relative: whether weights become those of shares of the fitted times.
    """
    near, tried = nearest([replace(cost, strength=STRENGTHS[1]) for cost in costs])
    exponents = near[:, 0]
    every = stacked_costs(costs)
    if relative:
        solved = descend(every, exponents, 0)
        for _ in range(_ROUNDS):
            every = replace(every, weights=_relative_weights(every, solved.seconds(every)))
            solved = descend(every, solved.exponents, *ROUGHLY)
        exponents = solved.exponents
    strength = _strengths(every, exponents, points)
    return replace(descend(replace(every, strength=strength), exponents), evaluations=tried)


def _relative_weights(every: GenericCost, fitted: FloatArray) -> FloatArray:
    """Return weights of errors as shares of the fitted times, (p, n), less for the farthest runs.

    Shares of the measured time favour the runs that were lucky, shares of the fitted do not; and
    a run much farther off than most counts by its distance instead of the square (Huber, 1964).
    """
    counted = every.weights > 0
    fitted = np.maximum(fitted, _LEAST_FITTED * every.seconds)
    missed = np.where(counted, np.abs(every.seconds / fitted - 1.0), np.nan)
    usual = np.maximum(_OF_MEDIAN * np.nanmedian(missed, axis=1, keepdims=True), REPEAT_SIGMA)
    trust = np.minimum(1.0, _FAR * usual / np.maximum(np.nan_to_num(missed), 1e-12))
    weights = trust * fitted**-2.0 * counted
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _strengths(every: GenericCost, exponents: FloatArray, points: list[IntArray]) -> FloatArray:
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
    at = np.repeat(able, len(STRENGTHS) * FOLDS)
    lambdas = np.tile(np.repeat(STRENGTHS, FOLDS), len(able))
    held = fold[at] == np.tile(np.arange(FOLDS), len(at) // FOLDS)[:, None]
    cost = every.take(at)
    kept = cost.weights * ~held
    kept = kept / kept.sum(axis=1, keepdims=True)
    fits = descend(replace(cost, weights=kept, strength=lambdas), exponents[at], *ROUGHLY)
    missed = np.sum(cost.weights * held * (fits.seconds(cost) - cost.seconds) ** 2, axis=1)
    errors = missed.reshape(len(able), len(STRENGTHS), FOLDS).sum(axis=2)
    strength[able] = np.array(STRENGTHS)[np.argmin(errors, axis=1)]
    return strength


def folds_of(points: IntArray) -> IntArray | None:
    """Return in which of `FOLDS` parts each run is, (n,), None where too few points differ."""
    count = int(points.max()) + 1
    if count < LEAST_HELD_OUT:
        return None
    return np.random.default_rng(SEED).permutation(count)[points] % FOLDS


def plain(cost: GenericCost) -> GenericFit:
    """Return the minimum of a cost whose lambda is given, by evolving every constant (5.5)."""
    from scipy.optimize import differential_evolution

    d = cost.rows.exponents
    k = cost.rows.intrinsic.shape[1] + cost.rows.flags.shape[1] + 1
    most = _MOST_COEFFICIENT * float(cost.seconds.max())
    found = differential_evolution(
        lambda x: cost.of(np.ascontiguousarray(x.T)),
        [(0.0, most)] * k + [(-MOST_EXPONENT, MOST_EXPONENT)] * d,
        strategy="rand1bin", popsize=PLAIN_MEMBERS, maxiter=PLAIN_GENERATIONS, tol=PLAIN_TOLERANCE,
        atol=_NOTHING, mutation=(0.5, 0.9), recombination=0.9, polish=False, seed=SEED,
        vectorized=True, updating="deferred",
    )  # fmt: skip
    return GenericFit(
        found.x[None, :k], found.x[None, k:], np.array([found.fun]), np.array([found.success]),
        np.array([cost.strength]), int(found.nfev) * PLAIN_MEMBERS * (k + d),
    )  # fmt: skip


def fitted_plain(cost: GenericCost, points: IntArray) -> GenericFit:
    """Return the minimum by plain evolution with the lambda that does best on a part held out.

    Args:
        cost: its lambda is not read.
        points: which distinct point each run was made at, (n,): repeats are held out together.
    """
    fold = folds_of(points)
    if fold is None:
        return plain(replace(cost, strength=USUAL_STRENGTH))
    held, kept = cost.runs(np.flatnonzero(fold == 0)), cost.runs(np.flatnonzero(fold != 0))
    fits = [plain(replace(kept, strength=strength)) for strength in STRENGTHS]
    missed = [float(held.of(fit.constants)[0]) for fit in fits]
    return plain(replace(cost, strength=STRENGTHS[int(np.argmin(missed))]))


def resampled(
    costs: list[GenericCost], fits: GenericFit, logs: list[FloatArray], resamples: int
) -> FloatArray:
    """Return constants of the fitted times with their errors drawn anew, (g, resamples, m).

    Args:
        costs: of g sets of runs, of one form.
        fits: their minima.
        logs: of measured over fitted, (n,) each: errors of timers and shared machines are ratios.
        resamples: how many of each.
    """
    rng = np.random.default_rng(SEED)
    every = replace(stacked_costs(costs), strength=fits.strength)
    fitted = fits.seconds(every)
    seconds = np.repeat(every.seconds[:, None], resamples, axis=1)
    free = np.count_nonzero(fits.coefficients, axis=1) + fits.exponents.shape[1]
    for i, log in enumerate(logs):
        n = len(log)
        # Runs lie nearer to the law fitted to them than to the one that made them.
        wider = np.sqrt(n / max(n - free[i], 1))
        drawn = wider * (log - log.mean())[rng.integers(0, n, (resamples, n))]
        drawn = drawn + rng.normal(0.0, REPEAT_SIGMA, (resamples, n))
        seconds[i, :, :n] = fitted[i, :n] * np.exp(drawn)
    at = np.repeat(np.arange(len(costs)), resamples)
    again = replace(every.take(at), seconds=seconds.reshape(len(at), -1))
    found = descend(again, fits.exponents[at], *ROUGHLY).constants
    return found.reshape(len(costs), resamples, -1)
