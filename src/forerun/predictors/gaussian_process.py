"""Gaussian processes with a Matern 5/2 kernel and classes: hyper-parameters by marginal likelihood.

y(x) = level + slopes . x + f(x) + noise, cov f = (a^2 + sum_c s_c^2 same_c) M(r) + sum_c o_c^2 same_c;
Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.7, 4.2 and 5.4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import normal_cdf
from forerun.errors import RequestError

# Priors in standardised units (features and values of standard deviation 1): normal in the logs of
# amplitudes and noise, and in the log of each length, which grows with the root of the number of
# features as distances do.
AMPLITUDE, AMPLITUDE_LOG_SD = 1.0, 1.0
CLASS_AMPLITUDE, CLASS_LOG_SD = 0.1, 1.5
NOISE, NOISE_LOG_SD = 0.1, 1.5
LENGTH, LENGTH_LOG_SD = 1.5, 1.2
# Standard deviations of the level and of each slope before anything is measured, by the mean.
MEANS: Mapping[str, tuple[float, float]] = {
    "zero": (0.0, 0.0), "constant": (3.0, 0.0), "linear": (3.0, 1.0),
}  # fmt: skip
LEAST_NOISE = 1e-3
_REACH = 4.0  # standard deviations of its prior that a hyper-parameter may lie off
# Cells of a block of kernel values that are held at a time: some tens of megabytes.
CELLS = 2_000_000
# Degrees of freedom of the readings' errors where some may be far off (Student's t).
FREEDOM = 4.0
ROOT5 = float(np.sqrt(5.0))


def matern(r: FloatArray) -> FloatArray:
    """Return the Matern 5/2 correlation at scaled distances, any shape."""
    s = ROOT5 * r
    result: FloatArray = (1 + s + s**2 / 3) * np.exp(-s)
    return result


def hazard(t: FloatArray) -> FloatArray:
    """Return the mean of a standard normal number above t, any shape: above 3 by Laplace's continued fraction."""
    near = np.clip(t, -8.0, 3.0)
    ratio = np.exp(-0.5 * near * near) / np.sqrt(2 * np.pi) / normal_cdf(-near)
    far = np.maximum(t, 3.0)
    tail = far
    for k in range(12, 0, -1):
        tail = far + k / tail
    return np.where(t > 3.0, tail, ratio)


def _correlation(r: FloatArray, rough: bool) -> tuple[FloatArray, FloatArray]:
    """Return the correlation at scaled distances r, and by how much it falls with half of r^2."""
    if rough:  # Matern 1/2
        fall = np.exp(-r)
        return fall, np.where(r > 0, fall / np.where(r > 0, r, 1.0), 0.0)
    fall = np.exp(-ROOT5 * r)
    return (1 + ROOT5 * r + 5 * r**2 / 3) * fall, (5 / 3) * (1 + ROOT5 * r) * fall


def _distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return Euclidean distances, (m, n): of equal points exactly 0, which a rough kernel needs."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(a, b))


def _cholesky(matrix: FloatArray) -> FloatArray:
    """Return the lower factor, the diagonal raised where rounding left it not positive. Raises RequestError."""
    unit = float(np.mean(np.diag(matrix))) if len(matrix) else 1.0
    for jitter in (0.0, 1e-12, 1e-10, 1e-8, 1e-6):
        try:
            return np.asarray(np.linalg.cholesky(matrix + jitter * unit * np.eye(len(matrix))))
        except np.linalg.LinAlgError:
            continue
    raise RequestError(
        "factoring a covariance", "it is not positive definite", "leave out rows that repeat others"
    )


def _solve(root: FloatArray, values: FloatArray, trans: str = "N") -> FloatArray:
    """Return root^-1 values, or root^-T values with trans "T"."""
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True, trans=trans, check_finite=False))


def same_class(a: IntArray, b: IntArray) -> FloatArray:
    """Return by category whether points are of one class, (c, m, n), of classes (m, c) and (n, c)."""
    return np.asarray(a.T[:, :, None] == b.T[:, None, :], dtype=np.float64)


@dataclass(frozen=True)
class Scales:
    """Hyper-parameters, standardised.

        y(x) = level + slopes . x + f(x) + noise,   cov f = (a^2 + sum_c s_c^2 same_c) M(r) + sum_c o_c^2 same_c
        M(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r),   r^2 = sum_j ((x_j - x'_j) / length_j)^2

    same_c is 1 for two points of one class of category c. amplitude (a), noise, level, slope: standard
    deviations; lengths: of each feature, (d,); shapes (s), offsets (o): of what a class adds, (c,); rough:
    M is Matern 1/2.
    """

    amplitude: float
    noise: float
    lengths: FloatArray
    shapes: FloatArray
    offsets: FloatArray
    level: float
    slope: float
    rough: bool

    def covariance(
        self, a: FloatArray, a_labels: IntArray, b: FloatArray, b_labels: IntArray
    ) -> FloatArray:
        """Return the covariances of y without noise before anything is measured, (m, n)."""
        same = same_class(a_labels, b_labels)
        height = self.amplitude**2 + np.tensordot(self.shapes**2, same, 1)
        alike, _ = _correlation(_distances(a / self.lengths, b / self.lengths), self.rough)
        total: FloatArray = height * alike
        total += self.level**2 + np.tensordot(self.offsets**2, same, 1)
        if self.slope:
            total += self.slope**2 * (a @ b.T)
        return total

    def variance(self, a: FloatArray) -> FloatArray:
        """Return the variances of y without noise before anything is measured, (m,)."""
        own = self.amplitude**2 + self.level**2 + np.sum(self.shapes**2) + np.sum(self.offsets**2)
        return np.asarray(own + self.slope**2 * np.sum(a**2, axis=1))

    def noise_variance(self, ratio: FloatArray) -> FloatArray:
        """Return the variance of readings of such a ratio to the common noise, (n,)."""
        result: FloatArray = (self.noise * ratio) ** 2 + LEAST_NOISE**2
        return result


class Evidence:
    """Log marginal likelihood and priors of the logs of all hyper-parameters.

    They are one vector: amplitude, noise, d lengths, c shapes, c offsets.
    """

    def __init__(
        self, x: FloatArray, labels: IntArray, y: FloatArray, ratio: FloatArray, mean: str,
        within: tuple[float, float] = (0.0, 0.0), rough: bool = False,
    ) -> None:  # fmt: skip
        """Take points (n, d), classes (n, c), values (n,), noise ratios (n,), one of `MEANS`; see `fitted_gp`."""
        self.x, self.y, self.ratio, self.within, self.rough = x, y, ratio, within, rough
        self.level, self.slope = MEANS[mean]
        self.fixed = self.level**2 + self.slope**2 * (x @ x.T)
        self.same = same_class(labels, labels)
        d, c = x.shape[1], 2 * labels.shape[1]
        lengths = np.full(d, np.log(LENGTH * np.sqrt(max(d, 1))))
        head = [np.log(AMPLITUDE), np.log(NOISE)]
        self.centre = np.concatenate([head, lengths, np.full(c, np.log(CLASS_AMPLITUDE))])
        head = [AMPLITUDE_LOG_SD, NOISE_LOG_SD]
        self.sd = np.concatenate([head, np.full(d, LENGTH_LOG_SD), np.full(c, CLASS_LOG_SD)])

    def negative(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Return minus the log evidence and its gradient (equation 5.9), (2 + d + 2 c,)."""
        d, c = self.x.shape[1], len(self.same)
        scaled = self.x / np.exp(theta[2 : 2 + d])
        power, classes = np.exp(2 * theta[0]), np.exp(2 * theta[2 + d :])
        r = _distances(scaled, scaled)
        shape, slope = _correlation(r, self.rough)
        height = power + np.tensordot(classes[:c], self.same, 1)
        total = self.fixed + height * shape + np.tensordot(classes[c:], self.same, 1)
        total[np.diag_indices_from(total)] += (np.exp(theta[1]) * self.ratio) ** 2 + LEAST_NOISE**2
        root = _cholesky(total)
        lower = _solve(root, np.eye(len(self.y)))
        inverse = lower.T @ lower
        alpha = inverse @ self.y
        value = 0.5 * float(self.y @ alpha) + float(np.log(np.diag(root)).sum())
        value += 0.5 * len(self.y) * float(np.log(2 * np.pi))
        noise = float(np.exp(2 * theta[1])) + LEAST_NOISE**2
        free, squares = self.within
        value += 0.5 * (free * float(np.log(noise)) + squares / noise)
        w = inverse - np.outer(alpha, alpha)
        bent = w * shape
        pure = (free - squares / noise) / noise
        gradient = np.empty(len(theta))
        gradient[0] = power * bent.sum()
        gradient[1] = np.exp(2 * theta[1]) * (float(np.diag(w) @ self.ratio**2) + pure)
        gradient[2 + d : 2 + d + c] = classes[:c] * np.tensordot(self.same, bent, 2)
        gradient[2 + d + c :] = classes[c:] * np.tensordot(self.same, w, 2)
        # d M / d log length_j = slope (difference_j / length_j)^2, and sums of w (a - b)^2 need no
        # array of differences.
        w *= height * slope
        gradient[2 : 2 + d] = w.sum(axis=1) @ scaled**2
        gradient[2 : 2 + d] -= np.einsum("ij,ij->j", scaled, w @ scaled)
        away = (theta - self.centre) / self.sd
        return value + 0.5 * float(away @ away), gradient + away / self.sd

    def best(self) -> tuple[Scales, bool]:
        """Return the best hyper-parameters, and whether the search of them converged."""
        from scipy.optimize import minimize

        bounds = np.stack([self.centre - _REACH * self.sd, self.centre + _REACH * self.sd], axis=1)
        done = minimize(
            self.negative, self.centre, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": 100},
        )  # fmt: skip
        d, c = self.x.shape[1], len(self.same)
        values = np.exp(done.x)
        lengths, shapes, offsets = np.split(values[2:], [d, d + c])
        scales = Scales(
            float(values[0]), float(values[1]), lengths, shapes, offsets, self.level, self.slope,
            self.rough,
        )  # fmt: skip
        return scales, bool(done.success)


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process.

    x: points, (n, d), values, (n,), standardised: (given - centre) / scale and (given - middle) / unit.
    labels: class in each category, (n, c). scales: hyper-parameters. ratio: of each reading's noise to
    the common one, (n,). converged: whether the search of the hyper-parameters did.
    """

    x: FloatArray
    labels: IntArray
    values: FloatArray
    centre: FloatArray
    scale: FloatArray
    middle: float
    unit: float
    scales: Scales
    ratio: FloatArray
    converged: bool = True

    @cached_property
    def root(self) -> FloatArray:
        """Lower Cholesky factor of K + noise, (n, n)."""
        covariance = self.scales.covariance(self.x, self.labels, self.x, self.labels)
        covariance[np.diag_indices_from(covariance)] += self.scales.noise_variance(self.ratio)
        return _cholesky(covariance)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise, in units of y."""
        return self.unit * self.scales.noise

    @property
    def lengths(self) -> FloatArray:
        """Length scale of each feature, in units of its standard deviation, (d,)."""
        return self.scales.lengths

    def solved(self, values: FloatArray) -> FloatArray:
        """Return (K + noise)^-1 values, of values (n,) or (n, k)."""
        return _solve(self.root, _solve(self.root, values), "T")

    def inverse_root(self) -> FloatArray:
        """Return the inverse of the Cholesky factor, (n, n)."""
        return _solve(self.root, np.eye(len(self.x)))

    def predict(
        self, x: ArrayLike, labels: ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and sd of y without noise at points (m, d) of classes (m, c), -1 for a new one, each (m,)."""
        mean, sd = self.predict_several(x, self.solved(self.values)[:, None], labels)
        return self.middle + self.unit * mean[:, 0], self.unit * sd

    def predict_several(
        self, x: ArrayLike, weights: FloatArray, labels: ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return standardised means (m, k) of values whose `solved` are weights (n, k), and the sd (m,)."""
        z, classes = self._standardised(x, labels)
        mean, sd = np.empty((len(z), weights.shape[1])), np.empty(len(z))
        step = max(CELLS // max(len(self.x), 1), 1)
        for start in range(0, len(z), step):
            some = slice(start, start + step)
            cross = self.scales.covariance(z[some], classes[some], self.x, self.labels)
            mean[some] = cross @ weights
            left = _solve(self.root, cross.T)
            own = self.scales.variance(z[some])
            sd[some] = np.sqrt(np.maximum(own - np.sum(left**2, axis=0), 0.0))
        return mean, sd

    def joint(self, x: ArrayLike, labels: ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        """Return mean (m,) and covariance (m, m) of y without noise at points (m, d)."""
        z, classes = self._standardised(x, labels)
        cross = self.scales.covariance(z, classes, self.x, self.labels)
        left = _solve(self.root, cross.T)
        covariance = self.scales.covariance(z, classes, z, classes)
        # A class that was not measured is a class of its own: each row shares it with itself.
        covariance[np.diag_indices_from(covariance)] = self.scales.variance(z)
        covariance -= left.T @ left
        mean = self.middle + self.unit * (cross @ self.solved(self.values))
        return mean, self.unit**2 * covariance

    def left_out(self, groups: IntArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Return each measured value less what the others predict, and its deviation, (n,) each (equation 5.12).

        groups: of each point, (n,): those of its group are left out with it.
        """
        lower, weights = self.inverse_root(), self.solved(self.values)
        if groups is None:
            variance = 1.0 / (lower**2).sum(axis=0)
            return self.unit * variance * weights, self.unit * np.sqrt(variance)
        errors, sd = np.empty(len(self.x)), np.empty(len(self.x))
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            errors[rows], sd[rows] = group_left_out(lower[:, rows], weights[rows])
        return self.unit * errors, self.unit * sd

    def doubted(self, rounds: int = 2) -> GaussianProcess:
        """Return the process with far readings less believed: Student's t by expectation-maximisation."""
        now = self
        for _ in range(rounds):
            errors, _ = now.left_out()
            usual = 1.4826 * float(np.median(np.abs(errors))) or 1.0
            less = np.sqrt((FREEDOM + (errors / usual) ** 2) / (FREEDOM + 1.0))
            now = now.given(self.x, self.labels, self.values, self.ratio * less)
        return now

    def given(
        self, x: FloatArray, labels: IntArray, y: FloatArray, ratio: FloatArray
    ) -> GaussianProcess:
        """Return the process of other readings with the same hyper-parameters, all standardised."""
        return replace(self, x=x, labels=labels, values=y, ratio=ratio)

    def _standardised(self, x: ArrayLike, labels: ArrayLike | None) -> tuple[FloatArray, IntArray]:
        z = (np.asarray(x, dtype=np.float64) - self.centre) / self.scale
        none = np.full((len(z), self.labels.shape[1]), -1, dtype=np.int64)
        return z, none if labels is None else np.asarray(labels, dtype=np.int64)


def group_left_out(lower: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what points miss of g left-out ones, (g,) or (g, k), and its standard deviation (g,).

    lower: columns of the inverse Cholesky factor, (n, g); weights: (K + noise)^-1 of values, (g,) or (g, k).
    """
    covariance = np.linalg.inv(lower.T @ lower)
    return covariance @ weights, np.sqrt(np.diag(covariance))


def fitted_gp(
    x: ArrayLike, y: ArrayLike, *, mean: str = "constant", labels: ArrayLike | None = None,
    noise_ratio: ArrayLike | None = None, tuned_on: ArrayLike | None = None,
    within: tuple[float, float] = (0.0, 0.0), rough: bool = False,
) -> GaussianProcess:  # fmt: skip
    """Return the process of n values y (n,) at points x (n, d).

    Args:
        x, y: finite. A feature that never changes has no effect where it keeps its value.
        mean: `zero`, `constant`, or `linear` in all features.
        labels: class of each point in each category, (n, c), from 0.
        noise_ratio: of each value's noise standard deviation to the common one, (n,): below 1 for
            means of several readings, far above for readings that are not to be believed.
        tuned_on: positions of the points that the hyper-parameters are tuned on; all by default.
        within: where values are means of repeated readings, degrees of freedom and sum of squares
            of the readings about them, which say how large the noise is.
        rough: whether values may jump between near points (Matern 1/2 in place of 5/2).
    """
    points, values = np.atleast_2d(np.asarray(x, dtype=np.float64)), np.ravel(y).astype(np.float64)
    n = len(values)
    classes = np.zeros((n, 0), dtype=np.int64) if labels is None else np.asarray(labels, np.int64)
    ratio = np.ones(n) if noise_ratio is None else np.ravel(noise_ratio).astype(float)
    centre, scale = points.mean(axis=0), points.std(axis=0)
    constant = scale <= 1e-12 * np.maximum(np.abs(points).max(axis=0), 1e-300)
    scale = np.where(constant, 1.0, scale)
    middle = 0.0 if mean == "zero" else float(values.mean())
    unit = float(values.std()) or 1.0
    z, standard = (points - centre) / scale, (values - middle) / unit
    some = np.arange(n) if tuned_on is None else np.asarray(tuned_on, dtype=np.int64)
    pure = (within[0], within[1] / unit**2)
    problem = Evidence(z[some], classes[some], standard[some], ratio[some], mean, pure, rough)
    scales, converged = problem.best()
    return GaussianProcess(
        z, classes, standard, centre, scale, middle, unit, scales, ratio, converged
    )
