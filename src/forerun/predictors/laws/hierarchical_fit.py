"""Fitting the hierarchical law: robust maximum a posteriori by Levenberg-Marquardt, all groups at once.

Errors of log seconds are Student-t with a scale for each group; what a group has alone is eliminated
group by group (a Schur complement), so that only shared effects meet in one matrix. Priors have
heavy tails too: an erratic network is weighed down, not averaged in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.hierarchical_law import COUNT, LawInputs, Outcome, evaluate_law
from forerun.predictors.laws.hierarchical_prior import Tree

DEGREES, PRIOR_DEGREES = 4.0, 6.0
MAX_ROUNDS, MOST_TRIALS, LARGEST_STEP = 25, 8, 0.7
LARGE, ROUNDS_OF_LARGE = 1000, 10  # shared parameters, beyond which a round takes long
SETTLED, SETTLED_SHARE = 1e-3, 2e-5  # of the cost, a round
SETTLED_STEP = 3e-3  # of any log or exponent
FIRST_SCALE, PRIOR_SCALE, PRIOR_COUNT, SMALLEST_SCALE = 0.1, 0.06, 6.0, 0.02
# Micro-batches measured in one session on one placement share its luck: this much of their errors.
SESSION_SHARE = 0.5
# Compute alone (the step less the exposed synchronisation) as a second observation: it is biased where
# communication slows compute, so it speaks softly, and no louder than so many rows of a group.
SYNC_WEIGHT, SYNC_ROWS = 0.1, 15.0


@dataclass(frozen=True)
class Teaching:
    """n rows that teach, sorted by group.

    Attributes:
        x: what the law reads. group: (n,) ascending. session: (n,) which rows share a placement.
        log_seconds: (n,) measured. log_compute: (n,) of compute alone, NaN where not measured.
        start: (g, p) where the parameters of each group start.
    """

    x: LawInputs
    group: IntArray
    session: IntArray
    log_seconds: FloatArray
    log_compute: FloatArray
    start: FloatArray


@dataclass(frozen=True)
class Posterior:
    """The optimum and what is not known about it.

    theta: (g, p). shared: (b, p) effects, covariance of them (b p, b p). alone: (g, p, p) covariance of a
    group's own given the shared; gain: (g, p, p) how far a shared effect is made up for by it. scale:
    (g,) of the errors. residual: (n,) logs of measured over fitted. slopes: (n, p) and weight: (n,) of the
    rows at the optimum. rounds, converged: how the search ended.
    """

    theta: FloatArray
    shared: FloatArray
    covariance: FloatArray
    alone: FloatArray
    gain: FloatArray
    scale: FloatArray
    residual: FloatArray
    slopes: FloatArray
    weight: FloatArray
    rounds: int
    converged: bool

    def uncertainty(self, tree: Tree, i: int) -> FloatArray:
        """Return the covariance of the parameters of group i, (p, p)."""
        rows = tree.shared[i][tree.shared[i] >= 0]
        at = (rows[:, None] * COUNT + np.arange(COUNT)).ravel()
        felt = np.tile(np.eye(COUNT) - self.gain[i], (1, len(rows)))
        return np.asarray(self.alone[i] + felt @ self.covariance[np.ix_(at, at)] @ felt.T)


def fitted(rows: Teaching, tree: Tree) -> Posterior:
    """Return the posterior of the parameters of all groups."""
    return _Search(rows, tree).run()


class _Search:
    def __init__(self, rows: Teaching, tree: Tree) -> None:
        self.rows, self.tree = rows, tree
        self.groups = len(tree.own)
        edges = np.searchsorted(rows.group, np.arange(self.groups + 1))
        self.slices = [slice(a, b) for a, b in pairwise(edges.tolist())]
        _, index, count = np.unique(rows.session, return_inverse=True, return_counts=True)
        crowd = count[index.reshape(-1)] - 1.0
        self.weight = np.asarray(1.0 / (1.0 + SESSION_SHARE * crowd), dtype=np.float64)
        self.known = np.isfinite(rows.log_compute)
        loud = np.bincount(rows.group, self.weight * self.known, self.groups)
        factor = SYNC_WEIGHT * np.minimum(1.0, SYNC_ROWS / np.maximum(loud, 1.0))
        self.second = self.weight * self.known * factor[rows.group]
        self.compute = np.where(self.known, rows.log_compute, 0.0)
        self.shared = np.zeros_like(tree.widths)
        self.own = np.zeros((self.groups, COUNT))
        self.scale = np.full(self.groups, FIRST_SCALE)
        self.second_scale = np.full(self.groups, FIRST_SCALE)
        self.prior_own = _precision(tree.own)
        self.prior_shared = _precision(tree.widths)

    def theta(self, shared: FloatArray, own: FloatArray) -> FloatArray:
        padded = np.vstack([shared, np.zeros((1, COUNT))])
        result: FloatArray = self.rows.start + own + padded[self.tree.shared].sum(axis=1)
        return result

    def run(self) -> Posterior:
        out = self.outcome(self.shared, self.own)
        damping, converged, rounds = 1e-3, False, 0
        for _ in range(MAX_ROUNDS if self.tree.widths.size < LARGE else ROUNDS_OF_LARGE):
            rounds += 1
            first, second = self.errors(out)
            self.scale = self.scales(first, np.ones(len(first), dtype=bool))
            self.second_scale = self.scales(second, self.known)
            here = self.cost(out, self.shared, self.own)
            system = _System(self, self.outcome(self.shared, self.own, slopes=True))
            for _ in range(MOST_TRIALS):
                step_shared, step_own = system.step(damping)
                shared, own = self.shared + step_shared, self.own + step_own
                trial = self.outcome(shared, own)
                there = self.cost(trial, shared, own)
                if there < here:
                    break
                damping = max(6.0 * damping, 1e-4)
            else:
                converged = True  # no direction is better: rounding ends the search
                break
            self.shared, self.own, out, damping = shared, own, trial, max(damping / 5.0, 1e-7)
            moved = max(np.abs(step_shared).max(), np.abs(step_own).max())
            if here - there < SETTLED + SETTLED_SHARE * abs(here) or moved < SETTLED_STEP:
                converged = True
                break
        return self.posterior(rounds, converged)

    def posterior(self, rounds: int, converged: bool) -> Posterior:
        out = self.outcome(self.shared, self.own, slopes=True)
        system = _System(self, out)
        covariance, alone, gain = system.posterior()
        return Posterior(
            self.theta(self.shared, self.own), self.shared, covariance, alone, gain, self.scale,
            self.errors(out)[0], system.slopes, system.weight, rounds, converged,
        )  # fmt: skip

    def outcome(self, shared: FloatArray, own: FloatArray, slopes: bool = False) -> Outcome:
        return evaluate_law(self.theta(shared, own)[self.rows.group], self.rows.x, slopes)

    def errors(self, out: Outcome) -> tuple[FloatArray, FloatArray]:
        first = self.rows.log_seconds - out.log_seconds
        return first, np.where(self.known, self.compute - out.log_compute, 0.0)

    def scales(self, error: FloatArray, of: NDArray[np.bool_]) -> FloatArray:
        """Return a robust scale of each group's errors, (g,), drawn to the usual where few."""
        group, size = self.rows.group[of], np.abs(error[of])
        middle = grouped_medians(size, group, self.groups)
        count = np.bincount(group, self.weight[of], self.groups)
        spread = count * (1.4826 * middle) ** 2 + PRIOR_COUNT * PRIOR_SCALE**2
        return np.maximum(np.sqrt(spread / (count + PRIOR_COUNT)), SMALLEST_SCALE)

    def cost(self, out: Outcome, shared: FloatArray, own: FloatArray) -> float:
        """Negative log posterior but for a constant."""
        first, second = self.errors(out)
        total = 0.0
        for error, scale, weight in (
            (first, self.scale, self.weight), (second, self.second_scale, self.second),
        ):  # fmt: skip
            tails = np.log1p((error / scale[self.rows.group]) ** 2 / DEGREES)
            total += (DEGREES + 1) / 2 * float(weight @ tails)
        for effect, precision in ((shared, self.prior_shared), (own, self.prior_own)):
            tails = np.log1p(effect**2 * precision / (PRIOR_DEGREES - 1))
            total += PRIOR_DEGREES / 2 * float(tails.sum())
        return total


class _System:
    """The normal equations of one round: a block a group, and the shared effects."""

    def __init__(self, search: _Search, out: Outcome) -> None:
        assert out.slopes is not None and out.compute_slopes is not None  # noqa: PT018
        self.search, self.tree = search, search.tree
        group = search.rows.group
        first, second = search.errors(out)
        w = _weights(first, search.scale[group], search.weight)
        v = _weights(second, search.second_scale[group], np.asarray(search.second))
        self.slopes, self.weight = out.slopes, w
        n = search.groups
        self.hessian, self.pull = np.zeros((n, COUNT, COUNT)), np.zeros((n, COUNT))
        for i, part in enumerate(search.slices):
            a, b = out.slopes[part], out.compute_slopes[part]
            wa, vb = a * w[part, None], b * v[part, None]
            self.hessian[i] = wa.T @ a + vb.T @ b
            self.pull[i] = wa.T @ first[part] + vb.T @ second[part]
        self.own_prior = _tailed(search.own, search.prior_own)
        self.shared_prior = _tailed(search.shared, search.prior_shared)
        # An effect that no row feels stays where its prior has it.
        felt = np.zeros(search.tree.widths.shape, dtype=bool)
        here = np.einsum("gii->gi", self.hessian) > 0
        for mine, seen in zip(search.tree.shared, here, strict=True):
            felt[mine[mine >= 0]] |= seen
        self.active = (felt & (search.tree.widths > 0)).ravel()

    def step(self, damping: float) -> tuple[FloatArray, FloatArray]:
        """Return the damped step of the shared effects (b, p) and of each group's own (g, p)."""
        own_pull = self.pull - self.own_prior * self.search.own
        block = self._own_block(damping)
        inverse = np.asarray(np.linalg.inv(block), dtype=np.float64)
        reduced = self.pull - np.einsum("gij,gj->gi", self.hessian @ inverse, own_pull)
        matrix, pull = self._shared_system(inverse, reduced, damping)
        step = np.zeros(self.tree.widths.size)
        step[self.active] = np.linalg.solve(matrix, pull)
        shared = np.clip(step.reshape(self.tree.widths.shape), -LARGEST_STEP, LARGEST_STEP)
        felt = np.vstack([shared, np.zeros((1, COUNT))])[self.tree.shared].sum(axis=1)
        rest = own_pull - np.einsum("gij,gj->gi", self.hessian, felt)
        own = np.einsum("gij,gj->gi", inverse, rest) * (self.tree.own > 0)
        return shared, np.clip(own, -LARGEST_STEP, LARGEST_STEP)

    def posterior(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the covariance of the shared effects, of each group's own, and the gains."""
        inverse = np.asarray(np.linalg.inv(self._own_block(0.0)), dtype=np.float64)
        matrix, _ = self._shared_system(inverse, self.pull, 0.0)
        covariance = np.diag(self.tree.widths.ravel() ** 2)
        covariance[np.ix_(self.active, self.active)] = np.linalg.inv(matrix)
        return covariance, inverse, inverse @ self.hessian

    def _own_block(self, damping: float) -> FloatArray:
        block = self.hessian.copy()
        diagonal = np.einsum("gii->gi", block)  # a view
        diagonal += self.own_prior
        diagonal *= 1.0 + damping
        return block

    def _shared_system(
        self, inverse: FloatArray, reduced: FloatArray, damping: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the matrix and the right-hand side of the active shared effects."""
        count, shared = len(self.tree.widths), self.tree.shared
        left = self.hessian - self.hessian @ inverse @ self.hessian
        matrix = np.zeros((count, COUNT, count, COUNT))
        pull = -self.shared_prior * self.search.shared
        for one in range(shared.shape[1]):
            mine = shared[:, one] >= 0
            np.add.at(pull, shared[mine, one], reduced[mine])
            for other in range(one, shared.shape[1]):
                both = mine & (shared[:, other] >= 0)
                code = shared[both, one] * count + shared[both, other]
                pairs, blocks = summed(left[both], code)
                row, column = np.divmod(pairs, count)
                matrix[row, :, column, :] += blocks
                if other > one:
                    matrix[column, :, row, :] += blocks  # each is symmetric
        active = np.flatnonzero(self.active)
        flat = matrix.reshape(count * COUNT, count * COUNT)[np.ix_(active, active)]
        diagonal = np.einsum("ii->i", flat)
        diagonal += self.shared_prior.ravel()[active]
        diagonal *= 1.0 + damping
        return flat, pull.ravel()[active]


def summed(blocks: FloatArray, code: IntArray) -> tuple[IntArray, FloatArray]:
    """Return the distinct codes and the sum of the blocks of each."""
    if not len(code):
        return code, blocks
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return ordered[first], np.add.reduceat(blocks[order], first, axis=0)


def grouped_medians(values: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the median of each group's values, (g,), 0 of a group without any."""
    ordered = values[np.lexsort((values, group))]
    count = np.bincount(group, minlength=groups)
    start = np.cumsum(count) - count
    low, high = start + (count - 1) // 2, start + count // 2
    known = count > 0
    result = np.zeros(groups)
    result[known] = (ordered[low[known]] + ordered[high[known]]) / 2.0
    return result


def _precision(width: FloatArray) -> FloatArray:
    """Return 1 / width^2; what may not move is held fast."""
    return np.where(width > 0, 1.0 / np.maximum(width, 1e-9) ** 2, 1e18)


def _tailed(effect: FloatArray, precision: FloatArray) -> FloatArray:
    """Return the precision of Student-t priors at the effects."""
    return precision * PRIOR_DEGREES / (PRIOR_DEGREES - 1 + effect**2 * precision)


def _weights(error: FloatArray, scale: FloatArray, weight: FloatArray) -> FloatArray:
    return weight * (DEGREES + 1) / (DEGREES + (error / scale) ** 2) / scale**2
