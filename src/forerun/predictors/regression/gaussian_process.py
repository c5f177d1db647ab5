"""Gaussian processes with a Matern 5/2 kernel, as arrays: hyper-parameters by marginal likelihood.

    y(x) = level + slopes . x + f(x) + noise,   cov f = (a^2 + sum_c s_c^2 same_c) M(r) + sum_c o_c^2 same_c
    M(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r),   r^2 = sum_j ((x_j - x'_j) / length_j)^2

where same_c is 1 for two points of one class of a category c (a workload, a device, a session in
which they were measured): each class has an offset and a shape of its own, as far as the evidence
wants it. The level and the slopes have normal priors and are integrated out (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, sections 2.7, 4.2 and 5.4.1). Far from the
data f falls back to 0, and what is left is the level and the slopes. Inputs are standardised
inside, so that one set of priors serves all.

Evidence: covariances of a Matern process with classes, and the hyper-parameters they make likely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.errors import RequestError

# Priors in standardised units (features and values of standard deviation 1): normal in the logs of
# amplitudes and noise, and in the log of each length, which grows with the root of the number of
# features as distances do.
AMPLITUDE, AMPLITUDE_LOG_SD = 1.0, 1.0
CLASS_AMPLITUDE, CLASS_LOG_SD = 0.1, 1.5
NOISE, NOISE_LOG_SD = 0.1, 1.5
LENGTH, LENGTH_LOG_SD = 1.5, 1.2
# Standard deviations of the level and of each slope before anything is measured.
LEVEL_SD, SLOPE_SD = 3.0, 1.0
LEAST_NOISE = 1e-3
_REACH = 4.0  # standard deviations of its prior that a hyper-parameter may lie off
ROOT5 = float(np.sqrt(5.0))


@dataclass(frozen=True)
class Scales:
    """Hyper-parameters, standardised.

    Attributes:
        amplitude, noise: standard deviations.
        lengths: of each feature, (d,).
        shapes, offsets: standard deviations of what a class of each category adds, (c,).
        linear: whether the mean has slopes.
    """

    amplitude: float
    noise: float
    lengths: FloatArray
    shapes: FloatArray
    offsets: FloatArray
    linear: bool

    def noise_variance(self, ratio: FloatArray) -> FloatArray:
        """Return the variance of readings of such a ratio to the common noise, (n,)."""
        result: FloatArray = (self.noise * ratio) ** 2 + LEAST_NOISE**2
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Scales:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        arrays = {k: np.array(values[k], dtype=float) for k in ("lengths", "shapes", "offsets")}
        return Scales(
            float(values["amplitude"]), float(values["noise"]), **arrays,
            linear=bool(values["linear"]),
        )  # fmt: skip


def prior(
    scales: Scales, a: FloatArray, a_labels: IntArray, b: FloatArray, b_labels: IntArray
) -> FloatArray:
    """Return the covariances of y without noise before anything is measured, (m, n)."""
    total = matern(distances(a / scales.lengths, b / scales.lengths))
    height = (
        np.full(total.shape, scales.amplitude**2) if len(scales.shapes) else scales.amplitude**2
    )
    added = LEVEL_SD**2 * np.ones((1, 1))
    for c, (shape, offset) in enumerate(zip(scales.shapes, scales.offsets, strict=True)):
        same = a_labels[:, c][:, None] == b_labels[:, c][None, :]
        height = height + shape**2 * same
        added = added + offset**2 * same
    total *= height
    total += added
    if scales.linear:
        total += SLOPE_SD**2 * (a @ b.T)
    return total


def prior_variance(scales: Scales, a: FloatArray) -> FloatArray:
    """Return the variances of y without noise before anything is measured, (m,)."""
    own = scales.amplitude**2 + LEVEL_SD**2 + np.sum(scales.shapes**2) + np.sum(scales.offsets**2)
    slopes = SLOPE_SD**2 * np.sum(a**2, axis=1) if scales.linear else 0.0
    return np.full(len(a), float(own)) + slopes


class Evidence:
    """Log marginal likelihood and priors of the logs of all hyper-parameters.

    They are one vector: amplitude, noise, d lengths, c shapes, c offsets.
    """

    def __init__(
        self,
        x: FloatArray,
        labels: IntArray,
        y: FloatArray,
        ratio: FloatArray,
        linear: bool,
        within: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Take points (n, d), classes (n, c), values (n,), noise ratios (n,), whether slopes.

        within: of readings merged into these values, degrees of freedom and sum of squares.
        """
        self.x, self.y, self.ratio, self.linear = x, y, ratio, linear
        self.within = within
        self.fixed = LEVEL_SD**2 + (SLOPE_SD**2 * (x @ x.T) if linear else np.zeros((len(y),) * 2))
        self.same = [
            (labels[:, c][:, None] == labels[:, c][None, :]).astype(np.float64)
            for c in range(labels.shape[1])
        ]
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
        r = distances(scaled, scaled)
        fall = np.exp(-ROOT5 * r)
        shape = (1 + ROOT5 * r + 5 * r**2 / 3) * fall
        height = np.full(r.shape, power)
        total = self.fixed.copy()
        for same, bend, offset in zip(self.same, classes[:c], classes[c:], strict=True):
            height += bend * same
            total += offset * same
        total += height * shape
        total[np.diag_indices_from(total)] += (np.exp(theta[1]) * self.ratio) ** 2 + LEAST_NOISE**2
        value, w = self._likelihood(total)
        noise = float(np.exp(2 * theta[1])) + LEAST_NOISE**2
        free, squares = self.within
        value += 0.5 * (free * float(np.log(noise)) + squares / noise)
        bent = w * shape
        gradient = np.empty(len(theta))
        gradient[0] = power * bent.sum()
        pure = (free - squares / noise) / noise
        gradient[1] = np.exp(2 * theta[1]) * (float(np.diag(w) @ self.ratio**2) + pure)
        for i, same in enumerate(self.same):
            gradient[2 + d + i] = classes[i] * np.vdot(bent, same)
            gradient[2 + d + c + i] = classes[c + i] * np.vdot(w, same)
        # d M / d log length_j = 5/3 (1 + sqrt5 r) exp(-sqrt5 r) (difference_j / length_j)^2, and
        # sums of w (a - b)^2 need no array of differences.
        w *= height * (5 / 3) * (1 + ROOT5 * r) * fall
        gradient[2 : 2 + d] = w.sum(axis=1) @ scaled**2
        gradient[2 : 2 + d] -= np.einsum("ij,ij->j", scaled, w @ scaled)
        away = (theta - self.centre) / self.sd
        return value + 0.5 * float(away @ away), gradient + away / self.sd

    def _likelihood(self, total: FloatArray) -> tuple[float, FloatArray]:
        """Return minus the log likelihood and K^-1 - alpha alpha^T, (n, n)."""
        root = cholesky(total)
        lower = solve_lower(root, np.eye(len(self.y)))
        inverse = lower.T @ lower
        alpha = inverse @ self.y
        value = 0.5 * float(self.y @ alpha) + float(np.log(np.diag(root)).sum())
        value += 0.5 * len(self.y) * float(np.log(2 * np.pi))
        return value, inverse - np.outer(alpha, alpha)

    def best(self, starts: int, seed: int) -> tuple[Scales, float, bool]:
        """Return the best hyper-parameters of several starts, their log evidence, and whether the
        search that found them converged."""  # noqa: D205, D209
        from scipy.optimize import minimize

        rng = np.random.default_rng(seed)
        low, high = self.centre - _REACH * self.sd, self.centre + _REACH * self.sd
        found, least, converged = self.centre, np.inf, False
        for i in range(max(starts, 1)):
            start = self.centre + (rng.normal(0, 0.7, len(self.sd)) * self.sd if i else 0.0)
            done = minimize(
                self.negative, np.clip(start, low, high), jac=True, method="L-BFGS-B",
                bounds=np.stack([low, high], axis=1), options={"maxiter": 100},
            )  # fmt: skip
            if done.fun < least:
                found, least = np.asarray(done.x), float(done.fun)
                converged = bool(done.success)
        return self._scales(found), -least, converged

    def _scales(self, theta: FloatArray) -> Scales:
        d, c = self.x.shape[1], len(self.same)
        values = np.exp(theta)
        shapes, offsets = values[2 + d : 2 + d + c], values[2 + d + c :]
        return Scales(
            float(values[0]), float(values[1]), values[2 : 2 + d], shapes, offsets, self.linear
        )


def distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return Euclidean distances, (m, n)."""
    square = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2 * (a @ b.T)
    np.maximum(square, 0.0, out=square)
    root: FloatArray = np.sqrt(square)
    return root


def matern(r: FloatArray) -> FloatArray:
    """Return the Matern 5/2 correlation at scaled distances, (m, n)."""
    s = ROOT5 * r
    result: FloatArray = (1 + s + s**2 / 3) * np.exp(-s)
    return result


def cholesky(matrix: FloatArray) -> FloatArray:
    """Return the lower factor; the diagonal is raised where rounding left it not positive.

    Raises:
        RequestError: it is not positive definite by more than rounding.
    """
    unit = float(np.mean(np.diag(matrix))) if len(matrix) else 1.0
    for jitter in (0.0, 1e-12, 1e-10, 1e-8, 1e-6):
        try:
            raised = matrix + jitter * unit * np.eye(len(matrix))
            return np.asarray(np.linalg.cholesky(raised), dtype=np.float64)
        except np.linalg.LinAlgError:
            continue
    raise RequestError(
        "factoring a covariance", "it is not positive definite", "leave out rows that repeat others"
    )


def solve_lower(root: FloatArray, values: FloatArray) -> FloatArray:
    """Return root^-1 values."""
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True, check_finite=False))


def solve_upper(root: FloatArray, values: FloatArray) -> FloatArray:
    """Return root^-T values."""
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True, trans="T", check_finite=False))


MEANS = ("constant", "linear")
# Cells of a block of kernel values that are held at a time: some tens of megabytes.
CELLS = 2_000_000
# Degrees of freedom of the readings' errors where some may be far off (Student's t).
FREEDOM = 4.0


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process.

    Attributes:
        x: the measured points in standardised units, (n, d).
        labels: their class in each category, (n, c).
        weights: of the measured points in the mean, (n,): (K + noise)^-1 (y - middle).
        root: lower Cholesky factor of K + noise, (n, n).
        centre, scale: of each feature, (d,): standardised = (given - centre) / scale.
        middle, unit: of the values: standardised = (given - middle) / unit.
        scales: the hyper-parameters, standardised.
        ratio: of each reading's noise to the common one, (n,).
        evidence: log marginal likelihood and log priors at the hyper-parameters.
        converged: whether the search of the hyper-parameters did.
    """

    x: FloatArray
    labels: IntArray
    weights: FloatArray
    root: FloatArray
    centre: FloatArray
    scale: FloatArray
    middle: float
    unit: float
    scales: Scales
    ratio: FloatArray
    evidence: float
    converged: bool = True

    def predict(
        self, x: ArrayLike, labels: ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of y without noise at points (m, d), each (m,).

        labels: their classes (m, c); a class that was not measured is -1.
        """
        z, classes = self._asked(x, labels)
        mean, sd = np.empty(len(z)), np.empty(len(z))
        for some in self._blocks(len(z)):
            cross = prior(self.scales, z[some], classes[some], self.x, self.labels)
            mean[some] = cross @ self.weights
            left = solve_lower(self.root, cross.T)
            own = prior_variance(self.scales, z[some])
            sd[some] = np.sqrt(np.maximum(own - np.sum(left**2, axis=0), 0.0))
        return self.middle + self.unit * mean, self.unit * sd

    def joint(self, x: ArrayLike, labels: ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        """Return mean (m,) and covariance (m, m) of y without noise at points (m, d)."""
        z, classes = self._asked(x, labels)
        cross = prior(self.scales, z, classes, self.x, self.labels)
        left = solve_lower(self.root, cross.T)
        covariance = prior(self.scales, z, classes, z, classes)
        # A class that was not measured is a class of its own: each row shares it with itself.
        covariance[np.diag_indices_from(covariance)] = prior_variance(self.scales, z)
        covariance -= left.T @ left
        return self.middle + self.unit * (cross @ self.weights), self.unit**2 * covariance

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise, in units of y."""
        return self.unit * self.scales.noise

    @property
    def lengths(self) -> FloatArray:
        """Length scale of each feature, in units of its standard deviation, (d,)."""
        return self.scales.lengths

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """Return each measured value less what the others foretell, and its deviation, (n,) each.

        Hyper-parameters are those of all points (Rasmussen and Williams, equation 5.12).
        """
        inverse = solve_lower(self.root, np.eye(len(self.x)))
        precision = np.sum(inverse**2, axis=0)
        return self.unit * self.weights / precision, self.unit / np.sqrt(precision)

    def classes_left_out(self, category: int) -> tuple[FloatArray, FloatArray]:
        """Return the same with all points of a point's class left out together, (n,) each."""
        lower = solve_lower(self.root, np.eye(len(self.x)))
        errors, sd = np.empty(len(self.x)), np.empty(len(self.x))
        for label in np.unique(self.labels[:, category]):
            rows = np.flatnonzero(self.labels[:, category] == label)
            covariance = np.linalg.inv(lower[:, rows].T @ lower[:, rows])
            errors[rows] = covariance @ self.weights[rows]
            sd[rows] = np.sqrt(np.diag(covariance))
        return self.unit * errors, self.unit * sd

    def doubted(self, rounds: int = 2) -> GaussianProcess:
        """Return the process with readings less believed the farther the others say they are off.

        Weights of Student's t by expectation-maximisation, with the errors of left-out readings.
        """
        now = self
        for _ in range(rounds):
            errors, _ = now.left_out()
            usual = 1.4826 * float(np.median(np.abs(errors))) or 1.0
            less = np.sqrt((FREEDOM + (errors / usual) ** 2) / (FREEDOM + 1.0))
            now = now.given(self.x, self.labels, now.values, self.ratio * less)
        return now

    @property
    def values(self) -> FloatArray:
        """The measured values in standardised units, (n,)."""
        result: FloatArray = self.root @ (self.root.T @ self.weights)
        return result

    def given(
        self, x: FloatArray, labels: IntArray, y: FloatArray, ratio: FloatArray
    ) -> GaussianProcess:
        """Return the process of other readings with the same hyper-parameters, all standardised."""
        covariance = prior(self.scales, x, labels, x, labels)
        covariance[np.diag_indices_from(covariance)] += self.scales.noise_variance(ratio)
        root = cholesky(covariance)
        weights = solve_upper(root, solve_lower(root, y))
        return replace(self, x=x, labels=labels, weights=weights, root=root, ratio=ratio)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the Cholesky factor is made again on reading."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "root"}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        return {**plain, "scales": self.scales.to_dict(), "values": self.values.tolist()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> GaussianProcess:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        given = dict(values)
        y = np.array(given.pop("values"), dtype=float)
        scales = Scales.from_dict(given.pop("scales"))
        for name in ("weights", "centre", "scale", "ratio"):
            given[name] = np.array(given[name], dtype=float)
        x = np.array(given.pop("x"), dtype=float).reshape(len(y), len(scales.lengths))
        labels = np.array(given.pop("labels"), dtype=np.int64).reshape(len(y), -1)
        if labels.shape[1] != len(scales.offsets):
            raise ValueError("one amplitude a category")
        blank = GaussianProcess(**given, x=x, labels=labels, scales=scales, root=np.zeros((0, 0)))
        return blank.given(x, labels, y, blank.ratio)

    def _asked(self, x: ArrayLike, labels: ArrayLike | None) -> tuple[FloatArray, IntArray]:
        z = (np.asarray(x, dtype=np.float64) - self.centre) / self.scale
        none = np.full((len(z), self.labels.shape[1]), -1, dtype=np.int64)
        return z, none if labels is None else np.asarray(labels, dtype=np.int64)

    def _blocks(self, m: int) -> list[slice]:
        step = max(CELLS // max(len(self.x), 1), 1)
        return [slice(start, start + step) for start in range(0, m, step)]


def fitted_gp(
    x: ArrayLike,
    y: ArrayLike,
    *,
    mean: str = "constant",
    labels: ArrayLike | None = None,
    noise_ratio: ArrayLike | None = None,
    starts: int = 3,
    seed: int = 0,
    tuned_on: ArrayLike | None = None,
    within: tuple[float, float] = (0.0, 0.0),
) -> GaussianProcess:
    """Return the process of n values y (n,) at points x (n, d).

    Args:
        x, y: finite. A feature that never changes has no effect where it keeps its value.
        mean: `constant`, or `linear` in all features.
        labels: class of each point in each category, (n, c), from 0.
        noise_ratio: of each value's noise standard deviation to the common one, (n,): below 1 for
            means of several readings, far above for readings that are not to be believed.
        starts: of the search of the hyper-parameters, the prior's mode first.
        seed: of the other starts.
        tuned_on: positions of the points that the hyper-parameters are tuned on; all by default.
        within: where values are means of repeated readings, degrees of freedom and sum of squares
            of the readings about them, which say how large the noise is.

    Raises:
        RequestError: no points, not finite, of unequal lengths, or no such mean.
    """
    points, values = np.atleast_2d(np.asarray(x, dtype=np.float64)), np.ravel(y).astype(np.float64)
    _check(points, values, mean)
    n = len(values)
    classes = np.zeros((n, 0), dtype=np.int64) if labels is None else np.asarray(labels, np.int64)
    ratio = np.ones(n) if noise_ratio is None else np.ravel(noise_ratio).astype(float)
    centre, scale = points.mean(axis=0), _scale(points)
    middle = float(values.mean())
    unit = float(values.std()) or 1.0
    z, standard = (points - centre) / scale, (values - middle) / unit
    some = np.arange(n) if tuned_on is None else np.asarray(tuned_on, dtype=np.int64)
    pure = (within[0], within[1] / unit**2)
    problem = Evidence(z[some], classes[some], standard[some], ratio[some], mean == "linear", pure)
    scales, evidence, converged = problem.best(starts, seed)
    blank = GaussianProcess(
        x=z[:0], labels=classes[:0], weights=standard[:0], root=np.zeros((0, 0)), centre=centre,
        scale=scale, middle=middle, unit=unit, scales=scales, ratio=ratio[:0], evidence=evidence,
        converged=converged,
    )  # fmt: skip
    return blank.given(z, classes, standard, ratio)


def _check(x: FloatArray, y: FloatArray, mean: str) -> None:
    asked = f"fitting a Gaussian process to {len(y)} values"
    if mean not in MEANS:
        raise RequestError(asked, f"there is no mean {mean!r}", f"give one of {', '.join(MEANS)}")
    if not len(y) or x.shape[0] != len(y):
        raise RequestError(asked, f"points of shape {x.shape}", "give one row of features a value")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise RequestError(asked, "some values are not finite", "leave these rows out")


def _scale(x: FloatArray) -> FloatArray:
    sd = x.std(axis=0)
    return np.where(sd > 1e-12 * np.maximum(np.abs(x).max(axis=0), 1e-300), sd, 1.0)
