"""The fitting loop of laws: a law is an equation, where its parameters start, and how far they may go.

Levenberg-Marquardt (Marquardt 1963) to the maximum a posteriori of all groups at once; errors of log
seconds and priors are Student-t; what a group has alone is eliminated by a Schur complement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import BoolArray, ColumnRows, FloatArray, IntArray, group_medians

DEGREES, PRIOR_DEGREES = 4.0, 6.0  # of freedom, of errors and of priors
MAX_ROUNDS, MOST_TRIALS, LARGEST_STEP = 40, 8, 0.7
LARGE, ROUNDS_OF_LARGE = 1000, 10  # shared parameters, beyond which a round takes long
FEW_ROWS = 400  # up to which a step is solved in the rows, not in the effects
DENSE = 0.1  # share of a matrix's cells that are filled, from which it is solved as a full one
SETTLED, SETTLED_SHARE = 1e-3, 2e-5  # of the cost, a round
SETTLED_STEP = 3e-3  # of any log or exponent
# The scale of a group's errors is drawn to this, as if it were that of so many more runs.
PRIOR_SCALE, PRIOR_COUNT, SMALLEST_SCALE = 0.06, 6.0, 0.02
RESAMPLES, SEED = 200, 0  # of a bootstrap
# A log ratio of measured to fitted beyond this is a row that the law does not describe at all.
MOST_LOG_RATIO = 2.3
NOT_CONVERGED = "the search did not converge; the best parameters found are kept"
_NEVER = -60.0  # log seconds of what does not happen


def bootstrapped(x: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a linear law's parameters, none negative, their covariance, and logs of measured over fitted.

    The covariance is from a bootstrap of the residuals. x: what they are multiplied by, (n, k).
    """
    theta = non_negative(x, seconds[:, None])[0]
    fitted = x @ theta
    with np.errstate(divide="ignore"):
        logs = np.log(seconds) - np.log(fitted)
    logs = np.clip(logs, -MOST_LOG_RATIO, MOST_LOG_RATIO)
    # Residuals are ratios, as errors of timers and of shared machines are.
    drawn = np.random.default_rng(SEED).integers(0, len(logs), (len(logs), RESAMPLES))
    moved = non_negative(x, fitted[:, None] * np.exp(logs - logs.mean())[drawn]) - theta
    return theta, moved.T @ moved / RESAMPLES, logs


def non_negative(matrix: FloatArray, targets: FloatArray) -> FloatArray:
    """Return for each of m right-hand sides (n, m) the x >= 0 of least |matrix x - target|, (m, k)."""
    from scipy.optimize import nnls

    # Of unit length, a column of 1e9 and one of 1e-3 are judged alike.
    lengths = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(lengths > 0, lengths, 1.0)
    found = np.array([nnls(scaled, target)[0] for target in targets.T])
    return np.asarray(found / np.where(lengths > 0, lengths, 1.0))


@dataclass(frozen=True)
class LogTerm:
    """Natural logs of n positive numbers, and their slopes by the parameters that they depend on.

    A product is a sum of logs, a sum is `total`, and slopes, (n,) or one number, follow by the chain rule.
    """

    log: FloatArray
    slopes: Mapping[int, FloatArray | float]

    def __add__(self, other: LogTerm | FloatArray | float) -> LogTerm:
        if not isinstance(other, LogTerm):
            return LogTerm(self.log + other, self.slopes)
        slopes = dict(self.slopes)
        for i, slope in other.slopes.items():
            slopes[i] = slopes[i] + slope if i in slopes else slope
        return LogTerm(self.log + other.log, slopes)

    def __sub__(self, other: LogTerm | FloatArray | float) -> LogTerm:
        return self + (other.scaled(-1.0) if isinstance(other, LogTerm) else -other)

    def scaled(self, by: FloatArray | float) -> LogTerm:
        """Return the logs times `by`: the numbers to this power."""
        return LogTerm(self.log * by, {i: slope * by for i, slope in self.slopes.items()})

    def where(self, happens: BoolArray) -> LogTerm:
        """Return the term where it happens; elsewhere next to nothing."""
        return LogTerm(np.where(happens, self.log, _NEVER), self.slopes)

    def at_most(self, bound: float) -> LogTerm:
        """Return the term, and its bound where it is above."""
        below = self.log < bound
        slopes = {i: np.where(below, slope, 0.0) for i, slope in self.slopes.items()}
        return LogTerm(np.minimum(self.log, bound), slopes)

    def matrix(self, parameters: int) -> FloatArray:
        """Return the slopes by all parameters, (n, parameters)."""
        result = np.zeros((len(self.log), parameters))
        for i, slope in self.slopes.items():
            result[:, i] = slope
        return result


def parameter(theta: FloatArray, at: int, times: FloatArray | float = 1.0) -> LogTerm:
    """Return a parameter of theta (n, p), or a base to its power: `times` is the log of the base."""
    return LogTerm(theta[:, at] * times, {at: times})


def constant(log: FloatArray) -> LogTerm:
    """Return a term without parameters, of its logs (n,)."""
    return LogTerm(log, {})


def either(first: BoolArray, one: LogTerm, other: LogTerm) -> LogTerm:
    """Return one term where `first` is true, (n,), and the other elsewhere."""
    return LogTerm(
        np.where(first, one.log, other.log), _mixed(one, other, first.astype(np.float64))
    )


def total(one: LogTerm, other: LogTerm, power: LogTerm | float = 1.0) -> LogTerm:
    """Return (a^p + b^p)^(1/p): the sum of two terms, or more of the larger for a higher power."""
    p = np.exp(power.log) if isinstance(power, LogTerm) else power
    joined = np.logaddexp(p * one.log, p * other.log) / p
    share = np.exp(p * (one.log - joined))
    slopes = _mixed(one, other, share)
    if isinstance(power, LogTerm):
        leaning = share * one.log + (1.0 - share) * other.log - joined
        for i, slope in power.slopes.items():
            slopes[i] = slopes.get(i, 0.0) + leaning * slope
    return LogTerm(joined, slopes)


def _mixed(one: LogTerm, other: LogTerm, share: FloatArray) -> dict[int, FloatArray | float]:
    rest = 1.0 - share
    slopes: dict[int, FloatArray | float] = {i: share * v for i, v in one.slopes.items()}
    for i, slope in other.slopes.items():
        slopes[i] = slopes[i] + rest * slope if i in slopes else rest * slope
    return slopes


# The log seconds of n rows for parameters theta, (n, p).
Equation = Callable[[FloatArray, Any], LogTerm]


@dataclass(frozen=True)
class Effects:
    """Which effects the p parameters of each of g groups are the sum of.

    members: the groups of b shared effects, (g, b). widths, own: standard deviations of their priors, (b, p),
    and of what is a group's alone, (g, p); what has none is held where it starts.
    """

    members: BoolArray
    widths: FloatArray
    own: FloatArray

    @staticmethod
    def of(
        own: FloatArray, shared: Sequence[tuple[BoolArray, FloatArray]] = (), most: float = np.inf
    ) -> Effects:
        """Return effects; one that a single group has is added to what is its own.

        shared: the groups that have an effect, (g,), and its standard deviations, (p,); but for the `most` that
        most groups have, these too are added to what is a group's own.
        """
        variance, kept = own**2, []
        for i, (groups, widths) in enumerate(sorted(shared, key=lambda one: -one[0].sum())):
            if i < most and groups.sum() > 1:
                kept.append((groups, widths))
            else:
                variance[groups] += widths**2
        g, p = own.shape
        members = np.array([groups for groups, _ in kept], dtype=bool).reshape(-1, g).T
        return Effects(members, np.array([w for _, w in kept]).reshape(-1, p), np.sqrt(variance))


@dataclass(frozen=True)
class Observations:
    """n rows to fit: what the equation reads, the group of each, measured logs, and weights, (n,).

    start: where the parameters of each group start, (g, p).
    """

    x: Any
    group: IntArray
    log_seconds: FloatArray
    start: FloatArray
    weight: FloatArray


@dataclass(frozen=True)
class Precision:
    """A symmetric positive definite matrix (k, k), few of whose cells are filled: values, rows and columns."""

    values: FloatArray
    rows: IntArray
    columns: IntArray
    size: int

    @cached_property
    def inverse(self) -> Callable[[FloatArray], FloatArray]:
        """What multiplies (k, m) by the inverse."""
        from scipy.sparse import csr_array

        places, shape = (self.rows, self.columns), (self.size, self.size)
        return _solver(csr_array((self.values, places), shape=shape), often=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return Precision, (self.values, self.rows, self.columns, self.size)  # factors stay here


@dataclass(frozen=True)
class Posterior:
    """The optimum and its uncertainty.

    theta: of each group, (g, p). shared: the effects, (b, p). active: places among these b p that rows inform;
    precision: of them; the others are as their priors. alone: covariance of a group's own given the effects,
    gain: how far it makes up for them, (g, p, p). residual: of logs, (n,).
    """

    effects: Effects
    theta: FloatArray
    shared: FloatArray
    active: IntArray
    precision: Precision
    alone: FloatArray
    gain: FloatArray
    residual: FloatArray
    converged: bool

    def pulls(self, slopes: FloatArray, i: int, effects: BoolArray | None = None) -> FloatArray:
        """Return how answers follow the shared effects, (m, b p), that follow group i's parameters by slopes (m, p).

        effects: those that make up the parameters, (b,), where these are not the group's own.
        """
        old = self.effects.members[i]
        new = old if effects is None else effects
        found = slopes[:, None] * new[:, None] - (slopes @ self.gain[i])[:, None] * old[:, None]
        return np.asarray(found.reshape(len(slopes), -1))

    def moved_with(self, pulls: FloatArray) -> FloatArray:
        """Return the covariance of the shared effects with what they pull, (b p, m), of pulls (m, b p)."""
        found = self.effects.widths.reshape(-1, 1) ** 2 * pulls.T
        if len(self.active):
            found[self.active] = self.precision.inverse(pulls[:, self.active].T)
        return np.asarray(found)

    def uncertainty(self, i: int, effects: BoolArray | None = None) -> FloatArray:
        """Return the covariance of the parameters (p, p), see `pulls`."""
        pulls = self.pulls(np.eye(self.theta.shape[1]), i, effects)
        return np.asarray(self.alone[i] + pulls @ self.moved_with(pulls))

    def variances(self, slopes: FloatArray, i: int, effects: BoolArray | None = None) -> FloatArray:
        """Return the variance of each answer (m,) that follows the parameters by slopes, (m, p)."""
        if len(slopes) > len(self.alone[i]):
            return np.asarray(np.einsum("ni,ni->n", slopes @ self.uncertainty(i, effects), slopes))
        pulls = self.pulls(slopes, i, effects)
        own = np.einsum("ni,ni->n", slopes @ self.alone[i], slopes)
        return np.asarray(own + np.einsum("ni,in->n", pulls, self.moved_with(pulls)))


def fitted(equation: Equation, rows: Observations, effects: Effects) -> Posterior:
    """Return the posterior of the parameters of all groups, logs and exponents (Marquardt, 1963).

    Errors of log seconds are Student-t with a scale for each group, and priors have heavy tails too. What
    a group has alone is eliminated (a Schur complement), so that only shared effects meet in one matrix.
    """
    search = _Search(equation, rows, effects)
    damping, converged = 1e-3, False
    for _ in range(MAX_ROUNDS if effects.widths.size < LARGE else ROUNDS_OF_LARGE):
        search.linearise()
        here = search.cost(search.out, search.shared, search.own)
        for _ in range(MOST_TRIALS):
            shared, own = search.step(damping)
            moved = max(np.abs(shared).max(initial=0.0), np.abs(own).max())
            shared, own = search.shared + shared, search.own + own
            out = search.seconds(shared, own)
            gained = here - search.cost(out, shared, own)
            if gained > 0:
                break
            damping = max(6.0 * damping, 1e-4)
        else:
            converged = True  # no direction is better: rounding ends the search
            break
        search.shared, search.own, search.out = shared, own, out
        damping = max(damping / 5.0, 1e-7)
        if gained < SETTLED + SETTLED_SHARE * abs(here) or moved < SETTLED_STEP:
            converged = True
            break
    return search.posterior(converged)


class KindFit(NamedTuple):
    """Parameters of one kind of runs (p,), their covariance, log errors of its rows, and notes."""

    theta: FloatArray
    covariance: FloatArray
    errors: FloatArray
    notes: tuple[str, ...]


def fitted_kinds(
    equation: Equation, kinds: Sequence[tuple[ColumnRows, FloatArray]], start: FloatArray,
    effects: Effects,
) -> list[KindFit]:  # fmt: skip
    """Return the fit of each kind of runs: rows and their log seconds; all share one search."""
    rows, logs = zip(*kinds, strict=True)
    group = np.repeat(np.arange(len(kinds)), [len(log) for log in logs])
    observed = Observations(
        type(rows[0]).joined(rows), group, np.concatenate(logs), start, np.ones(len(group))
    )
    found = fitted(equation, observed, effects)
    notes = () if found.converged else (NOT_CONVERGED,)
    return [
        KindFit(found.theta[i], found.uncertainty(i), found.residual[group == i], notes)
        for i in range(len(kinds))
    ]


class _Search:
    """Where a search is: effects, seconds there, the errors' scales, and the normal equations."""

    def __init__(self, equation: Equation, rows: Observations, effects: Effects) -> None:
        from scipy.sparse import csr_array

        self.equation, self.rows, self.effects = equation, rows, effects
        order = np.argsort(rows.group, kind="stable")
        edges = np.searchsorted(rows.group[order], np.arange(1, len(effects.own)))
        self.parts = np.split(order, edges)
        # Two shared effects meet in one block of a matrix where a group has both.
        members = effects.members.T.astype(np.float64)
        first, second = np.nonzero(members @ members.T)
        self.common = csr_array(members[first] * members[second])
        self.places = second, np.searchsorted(first, np.arange(len(members) + 1))
        # What has no width is held fast.
        self.own_precision, self.shared_precision = (
            np.where(width > 0, 1.0 / np.maximum(width, 1e-9) ** 2, 1e18)
            for width in (effects.own, effects.widths)
        )
        self.shared, self.own = np.zeros_like(effects.widths), np.zeros_like(effects.own)
        self.free = np.flatnonzero((effects.own > 0).any(axis=0))
        self.out = self.seconds(self.shared, self.own)

    def theta(self, shared: FloatArray, own: FloatArray) -> FloatArray:
        return np.asarray(self.rows.start + own + self.effects.members @ shared)

    def seconds(self, shared: FloatArray, own: FloatArray) -> LogTerm:
        return self.equation(self.theta(shared, own)[self.rows.group], self.rows.x)

    def cost(self, out: LogTerm, shared: FloatArray, own: FloatArray) -> float:
        error = (self.rows.log_seconds - out.log) / self.scale
        cost = (DEGREES + 1) / 2 * float(self.rows.weight @ np.log1p(error**2 / DEGREES))
        for effect, precision in ((shared, self.shared_precision), (own, self.own_precision)):
            tails = np.log1p(effect**2 * precision / (PRIOR_DEGREES - 1))
            cost += PRIOR_DEGREES / 2 * float(tails.sum())
        return cost

    def linearise(self) -> None:
        groups, p = self.own.shape
        rows, slopes = self.rows, self.out.matrix(p)
        errors = rows.log_seconds - self.out.log
        # About their own middle: a group that is wholly off is no noisy one.
        off = np.abs(errors - group_medians(errors, rows.group, groups).mean(axis=0)[rows.group])
        middle = 1.4826 * group_medians(off, rows.group, groups).mean(axis=0)
        count = np.bincount(rows.group, rows.weight, groups)
        variance = (count * middle**2 + PRIOR_COUNT * PRIOR_SCALE**2) / (count + PRIOR_COUNT)
        self.scale = np.maximum(np.sqrt(variance), SMALLEST_SCALE)[rows.group]
        tails = DEGREES + (errors / self.scale) ** 2
        self.weight = rows.weight * (DEGREES + 1) / tails / self.scale**2
        self.felt = slopes * np.sqrt(self.weight)[:, None]
        self.hessian, self.pull = np.empty((groups, p, p)), np.empty((groups, p))
        for i, part in enumerate(self.parts):
            weighted = slopes[part].T * self.weight[part]
            self.hessian[i], self.pull[i] = weighted @ slopes[part], weighted @ errors[part]
        # Precisions of Student-t priors at the effects.
        self.own_prior, self.shared_prior = (
            precision * PRIOR_DEGREES / (PRIOR_DEGREES - 1 + effect**2 * precision)
            for effect, precision in (
                (self.own, self.own_precision), (self.shared, self.shared_precision),
            )
        )  # fmt: skip
        # An effect that no row depends on stays where its prior has it.
        some = self.effects.members.T.astype(np.int64) @ (np.einsum("gii->gi", self.hessian) > 0)
        self.active = np.flatnonzero((some > 0) & (self.effects.widths > 0))

    def step(self, damping: float) -> tuple[FloatArray, FloatArray]:
        own_pull = self.pull - self.own_prior * self.own
        by_rows = len(self.rows.group) <= FEW_ROWS
        solve = self._solved_by_rows if by_rows else self._solved_by_effects
        shared, own = solve(own_pull, damping)
        limits = -LARGEST_STEP, LARGEST_STEP
        return np.clip(shared, *limits), np.clip(own * (self.effects.own > 0), *limits)

    def _solved_by_rows(
        self, own_pull: FloatArray, damping: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the step by Woodbury's identity, from a matrix of as many rows as there are runs."""
        from scipy.linalg import cho_factor, cho_solve

        group, members = self.rows.group, self.effects.members
        effect, slope = np.divmod(self.active, self.own.shape[1])
        felt = members[group][:, effect] * self.felt[:, slope]
        diagonal = np.einsum("gii->gi", self.hessian)

        def variance(prior: FloatArray, informed: FloatArray) -> FloatArray:
            return np.asarray(1.0 / (prior + damping * (prior + informed)))

        alone = variance(self.own_prior, diagonal)
        common = variance(self.shared_prior, members.T @ diagonal).ravel()[self.active]
        pull = (members.T @ self.pull - self.shared_prior * self.shared).ravel()[self.active]
        root, own_root = felt * np.sqrt(common), self.felt * np.sqrt(alone)[group]
        matrix = root @ root.T + (own_root @ own_root.T) * (group[:, None] == group)
        matrix[np.diag_indices_from(matrix)] += 1.0
        moved = felt @ (common * pull) + (self.felt * (alone * own_pull)[group]).sum(axis=1)
        left = cho_solve(cho_factor(matrix, lower=True, overwrite_a=True), moved)
        shared = np.zeros(self.shared.size)
        shared[self.active] = common * (pull - left @ felt)
        back = np.zeros_like(self.own)
        np.add.at(back, group, self.felt * left[:, None])
        return shared.reshape(self.shared.shape), alone * (own_pull - back)

    def _solved_by_effects(
        self, own_pull: FloatArray, damping: float
    ) -> tuple[FloatArray, FloatArray]:
        inverse = self._own_inverse(damping)
        moved = np.einsum("gij,gj->gi", inverse, own_pull)
        reduced = self.pull - np.einsum("gij,gj->gi", self.hessian, moved)
        pull = self.effects.members.T @ reduced - self.shared_prior * self.shared
        step = np.zeros(self.shared.size)
        matrix = self._shared_matrix(inverse, damping)
        step[self.active] = _solver(matrix)(np.ravel(pull)[self.active])
        shared = step.reshape(self.shared.shape)
        rest = own_pull - np.einsum("gij,gj->gi", self.hessian, self.effects.members @ shared)
        return shared, np.einsum("gij,gj->gi", inverse, rest)

    def posterior(self, converged: bool) -> Posterior:
        self.linearise()
        inverse = self._own_inverse(0.0)
        matrix = self._shared_matrix(inverse, 0.0).tocoo()
        precision = Precision(matrix.data, matrix.coords[0], matrix.coords[1], len(self.active))
        return Posterior(
            self.effects, self.theta(self.shared, self.own), self.shared, self.active, precision,
            inverse, inverse @ self.hessian, self.rows.log_seconds - self.out.log, converged,
        )  # fmt: skip

    def _own_inverse(self, damping: float) -> FloatArray:
        # What every group is held fast in takes no part.
        free = self.free[:, None], self.free
        block = self.hessian[:, *free]
        diagonal = np.einsum("gii->gi", block)  # a view
        diagonal += self.own_prior[:, self.free]
        diagonal *= 1.0 + damping
        inverse = np.zeros_like(self.hessian)
        inverse[:, *free] = np.linalg.inv(block)
        return inverse

    def _shared_matrix(self, inverse: FloatArray, damping: float) -> Any:
        from scipy.sparse import bsr_array

        part, own = self.hessian[:, :, self.free], inverse[:, self.free[:, None], self.free]
        left = self.hessian - part @ own @ part.transpose(0, 2, 1)
        blocks = (self.common @ left.reshape(len(left), -1)).reshape(-1, *left.shape[1:])
        matrix = bsr_array((blocks, *self.places), shape=(self.shared.size,) * 2).tocsr()
        matrix = matrix[self.active][:, self.active]
        prior = self.shared_prior.ravel()[self.active]
        matrix.setdiag((matrix.diagonal() + prior) * (1.0 + damping))
        return matrix


def _solver(matrix: Any, often: bool = False) -> Callable[[FloatArray], FloatArray]:
    """Return what multiplies by the inverse of a sparse positive definite matrix (k, k); often: many (k, m)."""
    from scipy.linalg import cho_factor, cho_solve
    from scipy.sparse.linalg import splu

    if matrix.nnz >= DENSE * matrix.shape[0] ** 2:
        whole = cho_factor(matrix.toarray(order="F"), overwrite_a=True)
        if not often:
            return lambda right: np.asarray(cho_solve(whole, right))
        inverse = cho_solve(whole, np.eye(len(whole[0])))  # one answer reads few effects
        return lambda right: np.asarray(inverse[:, (some := right.any(axis=1))] @ right[some])
    options = {"SymmetricMode": True}
    factors = splu(matrix.T, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return lambda right: np.asarray(factors.solve(right))
