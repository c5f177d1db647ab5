"""Priors and fit of the hierarchical law: robust maximum a posteriori, all groups at once.

The parameters of one app on one cluster are a sum of effects: all + workload + app + cluster + their own.
Widths are wide where machines differ (rates, compute) and narrow where networks of all kinds agree
(exponents); decision 0015 says on which splits they were chosen. Errors of log seconds are Student-t
with a scale for each group; what a group has alone is eliminated group by group (a Schur complement),
so that only shared effects meet in one matrix. Priors have heavy tails too: an erratic network gets
little weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.laws.hierarchical_law import (
    AT,
    COUNT,
    KNOTS,
    LawInputs,
    LawTimes,
    evaluate_law,
)
from forerun.predictors.laws.law_rows import BESIDE_POWER, CORES_POWER, SHARE_POWER

LEVELS = ("all", "workload", "app", "cluster", "own")
# Log standard deviations (or of an exponent) at each level, in the order of LEVELS.
WIDTHS: dict[str, tuple[float, float, float, float, float]] = {
    "fixed": (0.0, 1.0, 1.1, 0.7, 0.3),
    "sample": (0.0, 1.0, 1.1, 0.7, 0.25),
    "host_fixed": (0.1, 0.07, 0.07, 0.1, 0.15),
    "host_sample": (0.02, 0.02, 0.02, 0.03, 0.03),
    "single": (0.05, 0.03, 0.03, 0.05, 0.15),
    "share": (0.08, 0.05, 0.03, 0.05, 0.05),
    "cores": (0.2, 0.1, 0.1, 0.1, 0.1),
    "volume": (0.0, 0.7, 0.5, 0.0, 0.2),
    "intra": (0.0, 0.0, 0.0, 0.6, 0.25),
    "intra_growth": (0.2, 0.07, 0.07, 0.15, 0.1),
    "inter": (0.3, 0.0, 0.0, 0.4, 0.25),
    "rate": (0.05, 0.0, 0.0, 0.05, 0.03),
    "node_size": (0.1, 0.04, 0.03, 0.1, 0.05),
    "node_count": (0.1, 0.04, 0.03, 0.1, 0.05),
    "two_nodes": (0.05, 0.04, 0.03, 0.4, 0.1),
    "hop": (0.3, 0.1, 0.1, 0.5, 0.1),
    "overlap": (0.2, 0.25, 0.15, 0.1, 0.1),
    **{f"shape_{i}": (0.0, 0.05, 0.03, 0.0, 0.06) for i in range(KNOTS)},
}
# Where nothing is known of a workload's size its gradients may be anything.
UNKNOWN_VOLUME = 1.5
# Shared effects meet in one matrix, and a table of hundreds of workloads would fill it.
MOST_WORKLOADS, MOST_EFFECTS = 30, 60
MEANS = {
    "intra": -np.log(0.25), "intra_growth": 0.5, "inter": -np.log(0.7), "node_size": 0.25,
    "node_count": 0.1, "two_nodes": 0.1, "overlap": 0.7,
}  # fmt: skip
# Of what computes on a processor (1), is not known (0), and computes on another device (-1): powers of a
# part of a core and of whole cores, and seconds that a core takes for one message (NCCL's are tens of
# microseconds, those of gloo on TCP half a millisecond). Where messages take that long, they are what grows
# with the nodes.
BY_PROCESSOR: Mapping[int, Mapping[str, float]] = {
    1: {"share": 1.0, "cores": 0.85, "hop": float(np.log(5e-4)), "node_count": 0.0, "two_nodes": 0.0},
    0: {"share": SHARE_POWER, "cores": CORES_POWER, "hop": float(np.log(5e-5))},
    -1: {"share": BESIDE_POWER, "cores": BESIDE_POWER, "hop": float(np.log(5e-5))},
}  # fmt: skip
# PyTorch reduces gradients in buckets: the first of 1 MiB, the others of 25 (its documentation of
# DistributedDataParallel). The last one starts when nothing is left to compute. On devices that leave
# sending to others this was no gain (decision 20), so that it applies to processors alone.
ONE_BUCKET_GB, ONE_BUCKET_OVERLAP = 26 * 2**20 / 1e9, -0.7

DEGREES, PRIOR_DEGREES = 4.0, 6.0  # of freedom, of errors and of priors
MAX_ROUNDS, MOST_TRIALS, LARGEST_STEP = 25, 8, 0.7
LARGE, ROUNDS_OF_LARGE = 1000, 10  # shared parameters, beyond which a round takes long
SETTLED, SETTLED_SHARE = 1e-3, 2e-5  # of the cost, a round
SETTLED_STEP = 3e-3  # of any log or exponent
FIRST_SCALE, PRIOR_SCALE, PRIOR_COUNT, SMALLEST_SCALE = 0.1, 0.06, 6.0, 0.02
# Micro-batches measured in one session on one placement share its luck: this much of their errors.
SESSION_SHARE = 0.5
# Compute alone (the step less the exposed synchronisation) as a second observation: it is biased where
# communication slows compute, so it has little weight, and no more than so many rows of a group.
SYNC_WEIGHT, SYNC_ROWS = 0.1, 15.0


@dataclass(frozen=True)
class EffectTree:
    """Which effects the parameters of each group (an app on a cluster) are the sum of.

    Attributes:
        members: (g, b) which groups have each shared effect.
        widths: (b, p) standard deviations of the shared effects.
        own: (g, p) of what is a group's alone.
        cluster_effect: (c,) the effect of each cluster, -1 where there is one cluster.
    """

    members: BoolArray
    widths: FloatArray
    own: FloatArray
    cluster_effect: IntArray


def effect_tree(
    workload: IntArray, app: IntArray, cluster: IntArray, known: BoolArray
) -> EffectTree:
    """Return the effects of groups: one that only one group has is that group's own.

    Args:
        workload, app, cluster: of each group, (g,).
        known: which apps have gradients of known size, (apps,).
    """
    width = np.zeros((len(LEVELS), COUNT))
    for name, of_levels in WIDTHS.items():
        width[:, AT[name]] = of_levels
    members, widths = [np.ones(len(app), dtype=bool)], [width[0].copy()]
    own = np.repeat(width[4][None] ** 2, len(app), axis=0)

    def add(mine: BoolArray, wide: FloatArray, share: bool) -> None:
        if share and mine.sum() > 1:
            members.append(mine)
            widths.append(wide)
        else:
            own[mine] += wide**2

    unknown = np.where(known[app], 0.0, UNKNOWN_VOLUME)
    values, counts = np.unique(workload, return_counts=True)
    common = set(values[np.argsort(-counts, kind="stable")][:MOST_WORKLOADS].tolist())
    for value in values:
        mine = workload == value
        apps = np.unique(app[mine])
        several = value in common and len(apps) > 1
        wide = width[1].copy() if several else np.hypot(width[1], width[2])
        wide[AT["volume"]] = np.hypot(wide[AT["volume"]], unknown[mine].max())
        add(mine, wide, value in common)
        for one in apps if several else ():
            add(app == one, width[2], len(widths) < MOST_EFFECTS)
    count = int(cluster.max()) + 1
    effects = np.full(count, -1, dtype=np.int64)
    if count == 1:
        widths[0] = np.hypot(widths[0], width[3])
    else:
        effects = len(widths) + np.arange(count)
        members += [cluster == i for i in range(count)]
        widths += [width[3]] * count
    return EffectTree(np.stack(members, axis=1), np.array(widths), np.sqrt(own), effects)


def prior_means(
    start: FloatArray, volume: FloatArray, processor: IntArray, known: FloatArray | None = None
) -> FloatArray:
    """Return where the parameters of each group start, (g, p).

    Args:
        start: (g, 2) log seconds of the fixed and of the per-sample compute.
        volume: (g,) log gigabytes of gradients.
        processor: (g,) 1 where it computes on a processor, -1 where on another device, else 0.
        known: (g,) the volume where it is known, NaN elsewhere.
    """
    table = np.zeros((len(start), COUNT))
    for name, value in MEANS.items():
        table[:, AT[name]] = value
    for kind, changes in BY_PROCESSOR.items():
        for name, value in changes.items():
            table[processor == kind, AT[name]] = value
    table[:, AT["fixed"]], table[:, AT["sample"]] = start.T
    table[:, AT["volume"]] = volume
    if known is not None:
        small = (known < np.log(ONE_BUCKET_GB)) & (processor == 1)
        table[small, AT["overlap"]] = ONE_BUCKET_OVERLAP
    return table


@dataclass(frozen=True)
class FitRows:
    """n rows to fit, sorted by group.

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
    """The optimum and its uncertainty.

    theta: (g, p). shared: (b, p) effects, covariance of them (b p, b p). alone: (g, p, p) covariance of a
    group's own given the shared; gain: (g, p, p) how far a shared effect is made up for by it.
    residual: (n,) logs of measured over fitted. slopes: (n, p) and weight: (n,) of the rows at the optimum.
    rounds, converged: how the search ended.
    """

    theta: FloatArray
    shared: FloatArray
    covariance: FloatArray
    alone: FloatArray
    gain: FloatArray
    residual: FloatArray
    slopes: FloatArray
    weight: FloatArray
    rounds: int
    converged: bool

    def uncertainty(self, members: BoolArray, i: int) -> FloatArray:
        """Return the covariance of the parameters of group i, (p, p)."""
        effects = np.flatnonzero(members[i])
        at = (effects[:, None] * COUNT + np.arange(COUNT)).ravel()
        felt = np.tile(np.eye(COUNT) - self.gain[i], (1, len(effects)))
        return np.asarray(self.alone[i] + felt @ self.covariance[np.ix_(at, at)] @ felt.T)


def maximum_posterior(rows: FitRows, tree: EffectTree) -> Posterior:
    """Return the posterior of the parameters of all groups, by Levenberg and Marquardt's steps."""
    problem = _Problem(rows, tree)
    shared, own = np.zeros_like(tree.widths), np.zeros_like(tree.own)
    damping, converged, rounds = 1e-3, False, 0
    out = problem.times(shared, own)
    for _ in range(MAX_ROUNDS if tree.widths.size < LARGE else ROUNDS_OF_LARGE):
        rounds += 1
        problem.rescale(out)
        here = problem.cost(out, shared, own)
        system = _NormalEquations(problem, shared, own)
        for _ in range(MOST_TRIALS):
            step_shared, step_own = system.step(damping)
            trial = problem.times(shared + step_shared, own + step_own)
            there = problem.cost(trial, shared + step_shared, own + step_own)
            if there < here:
                break
            damping = max(6.0 * damping, 1e-4)
        else:
            converged = True  # no direction is better: rounding ends the search
            break
        shared, own, out = shared + step_shared, own + step_own, trial
        damping = max(damping / 5.0, 1e-7)
        moved = max(np.abs(step_shared).max(), np.abs(step_own).max())
        if here - there < SETTLED + SETTLED_SHARE * abs(here) or moved < SETTLED_STEP:
            converged = True
            break
    system = _NormalEquations(problem, shared, own)
    covariance, alone, gain = system.posterior()
    return Posterior(
        problem.theta(shared, own), shared, covariance, alone, gain, system.errors, system.slopes,
        system.weight, rounds, converged,
    )  # fmt: skip


class _Problem:
    """The cost that the fit minimises: errors of rows, and what effects cost by their priors."""

    def __init__(self, rows: FitRows, tree: EffectTree) -> None:
        self.rows, self.tree, self.groups = rows, tree, len(tree.own)
        _, index, count = np.unique(rows.session, return_inverse=True, return_counts=True)
        crowd = count[index.reshape(-1)] - 1.0
        self.weight = np.asarray(1.0 / (1.0 + SESSION_SHARE * crowd), dtype=np.float64)
        self.known = np.isfinite(rows.log_compute)
        total = np.bincount(rows.group, self.weight * self.known, self.groups)
        factor = SYNC_WEIGHT * np.minimum(1.0, SYNC_ROWS / np.maximum(total, 1.0))
        self.compute_weight = self.weight * self.known * factor[rows.group]
        self.compute = np.where(self.known, rows.log_compute, 0.0)
        self.scale = self.compute_scale = np.full(self.groups, FIRST_SCALE)
        # What has no width is held fast.
        self.own_precision, self.shared_precision = (
            np.where(width > 0, 1.0 / np.maximum(width, 1e-9) ** 2, 1e18)
            for width in (tree.own, tree.widths)
        )

    def theta(self, shared: FloatArray, own: FloatArray) -> FloatArray:
        return np.asarray(self.rows.start + own + self.tree.members @ shared)

    def times(self, shared: FloatArray, own: FloatArray, slopes: bool = False) -> LawTimes:
        return evaluate_law(self.theta(shared, own)[self.rows.group], self.rows.x, slopes)

    def errors(self, out: LawTimes) -> tuple[FloatArray, FloatArray]:
        whole = self.rows.log_seconds - out.log_seconds
        return whole, np.where(self.known, self.compute - out.log_compute, 0.0)

    def rescale(self, out: LawTimes) -> None:
        """Set the robust scale of each group's errors, drawn to the usual where rows are few."""
        every = np.ones(len(self.known), dtype=bool)
        self.scale, self.compute_scale = (
            self._scales(error, of)
            for error, of in zip(self.errors(out), (every, self.known), strict=True)
        )

    def _scales(self, error: FloatArray, of: BoolArray) -> FloatArray:
        group, size = self.rows.group[of], np.abs(error[of])
        count = np.bincount(group, self.weight[of], self.groups)
        middle = grouped_medians(size, group, self.groups)
        spread = count * (1.4826 * middle) ** 2 + PRIOR_COUNT * PRIOR_SCALE**2
        return np.maximum(np.sqrt(spread / (count + PRIOR_COUNT)), SMALLEST_SCALE)

    def cost(self, out: LawTimes, shared: FloatArray, own: FloatArray) -> float:
        """Return the negative log posterior but for a constant."""
        whole, compute = self.errors(out)
        total = 0.0
        for error, scale, weight in (
            (whole, self.scale, self.weight), (compute, self.compute_scale, self.compute_weight),
        ):  # fmt: skip
            tails = np.log1p((error / scale[self.rows.group]) ** 2 / DEGREES)
            total += (DEGREES + 1) / 2 * float(weight @ tails)
        for effect, precision in ((shared, self.shared_precision), (own, self.own_precision)):
            tails = np.log1p(effect**2 * precision / (PRIOR_DEGREES - 1))
            total += PRIOR_DEGREES / 2 * float(tails.sum())
        return total


class _NormalEquations:
    """The normal equations of one round: a block a group, and the shared effects."""

    def __init__(self, problem: _Problem, shared: FloatArray, own: FloatArray) -> None:
        out = problem.times(shared, own, slopes=True)
        assert out.slopes is not None and out.compute_slopes is not None  # noqa: PT018
        group, self.tree, self.shared, self.own = problem.rows.group, problem.tree, shared, own
        self.slopes = out.slopes
        self.errors, compute = problem.errors(out)
        self.weight = _student_weights(self.errors, problem.scale[group], problem.weight)
        other = _student_weights(compute, problem.compute_scale[group], problem.compute_weight)
        self.hessian = np.zeros((problem.groups, COUNT, COUNT))
        self.pull = np.zeros((problem.groups, COUNT))
        edges = np.searchsorted(group, np.arange(problem.groups + 1))
        for i, part in enumerate(slice(a, b) for a, b in pairwise(edges.tolist())):
            a, b = out.slopes[part], out.compute_slopes[part]
            wa, vb = a * self.weight[part, None], b * other[part, None]
            self.hessian[i] = wa.T @ a + vb.T @ b
            self.pull[i] = wa.T @ self.errors[part] + vb.T @ compute[part]
        # Precisions of Student-t priors at the effects.
        self.own_prior, self.shared_prior = (
            precision * PRIOR_DEGREES / (PRIOR_DEGREES - 1 + effect**2 * precision)
            for effect, precision in (
                (own, problem.own_precision), (shared, problem.shared_precision),
            )
        )  # fmt: skip
        # An effect that no row depends on stays where its prior has it.
        felt = self.tree.members.T.astype(np.int64) @ (np.einsum("gii->gi", self.hessian) > 0)
        self.active = np.flatnonzero((felt > 0) & (self.tree.widths > 0))

    def step(self, damping: float) -> tuple[FloatArray, FloatArray]:
        """Return the damped step of the shared effects (b, p) and of each group's own (g, p)."""
        own_pull = self.pull - self.own_prior * self.own
        inverse = np.asarray(np.linalg.inv(self._own_block(damping)), dtype=np.float64)
        reduced = self.pull - np.einsum("gij,gj->gi", self.hessian @ inverse, own_pull)
        pull = self.tree.members.T @ reduced - self.shared_prior * self.shared
        step = np.zeros(self.shared.size)
        matrix = self._shared_matrix(inverse, damping)
        step[self.active] = np.linalg.solve(matrix, np.ravel(pull)[self.active])
        shared = np.clip(step.reshape(self.shared.shape), -LARGEST_STEP, LARGEST_STEP)
        rest = own_pull - np.einsum("gij,gj->gi", self.hessian, self.tree.members @ shared)
        own = np.einsum("gij,gj->gi", inverse, rest) * (self.tree.own > 0)
        return shared, np.clip(own, -LARGEST_STEP, LARGEST_STEP)

    def posterior(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the covariance of the shared effects, of each group's own, and the gains."""
        inverse = np.asarray(np.linalg.inv(self._own_block(0.0)), dtype=np.float64)
        covariance = np.diag(self.tree.widths.ravel() ** 2)
        matrix = self._shared_matrix(inverse, 0.0)
        covariance[np.ix_(self.active, self.active)] = np.linalg.inv(matrix)
        return covariance, inverse, inverse @ self.hessian

    def _own_block(self, damping: float) -> FloatArray:
        block = self.hessian.copy()
        diagonal = np.einsum("gii->gi", block)  # a view
        diagonal += self.own_prior
        diagonal *= 1.0 + damping
        return block

    def _shared_matrix(self, inverse: FloatArray, damping: float) -> FloatArray:
        """Return the matrix of the active shared effects, the groups' own eliminated."""
        left = self.hessian - self.hessian @ inverse @ self.hessian
        members = self.tree.members.astype(np.float64)
        matrix: FloatArray = np.stack([
            np.tensordot(members[mine], left[mine], axes=(0, 0)).transpose(1, 0, 2)
            for mine in self.tree.members.T
        ])  # fmt: skip
        matrix = matrix.reshape(self.shared.size, -1)[np.ix_(self.active, self.active)]
        diagonal = np.einsum("ii->i", matrix)
        diagonal += self.shared_prior.ravel()[self.active]
        diagonal *= 1.0 + damping
        return matrix


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


def _student_weights(error: FloatArray, scale: FloatArray, weight: FloatArray) -> FloatArray:
    return weight * (DEGREES + 1) / (DEGREES + (error / scale) ** 2) / scale**2
