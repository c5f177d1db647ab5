"""Gaussian processes with a Matern 5/2 kernel, as arrays: hyper-parameters by marginal likelihood.

    y(x) = level + slopes . x + f(x) + noise,   cov f = (a^2 + sum_c s_c^2 same_c) M(r) + sum_c o_c^2 same_c
    M(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r),   r^2 = sum_j ((x_j - x'_j) / length_j)^2

where same_c is 1 for two points of one class of a category c (a workload, a device, a session in
which they were measured): each class has an offset and a shape of its own, as far as the evidence
wants it. The level and the slopes have normal priors and are integrated out (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, sections 2.7, 4.2 and 5.4.1). Far from the
data f falls back to 0, and what is left is the level and the slopes. Inputs are standardised
inside, so that one set of priors serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.errors import RequestError
from forerun.predictors.regression.evidence import (
    Evidence,
    Scales,
    cholesky,
    prior,
    prior_variance,
    solve_lower,
    solve_upper,
)

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

    def means(self, x: ArrayLike, labels: ArrayLike | None = None) -> FloatArray:
        """Return the mean alone at points (m, d), (m,): far cheaper than with its deviation."""
        z, classes = self._asked(x, labels)
        mean = np.empty(len(z))
        for some in self._blocks(len(z)):
            cross = prior(self.scales, z[some], classes[some], self.x, self.labels)
            mean[some] = cross @ self.weights
        return self.middle + self.unit * mean

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

    def draws(
        self, x: ArrayLike, count: int, seed: int = 0, labels: ArrayLike | None = None
    ) -> FloatArray:
        """Return joint samples of y without noise at points (m, d), (count, m)."""
        mean, covariance = self.joint(x, labels)
        jitter = 1e-9 * max(float(np.trace(covariance)) / max(len(mean), 1), self.unit**2 * 1e-6)
        root = cholesky(covariance + jitter * np.eye(len(mean)))
        normal = np.random.default_rng(seed).standard_normal((count, len(mean)))
        result: FloatArray = mean + normal @ root.T
        return result

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
