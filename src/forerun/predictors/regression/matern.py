"""Gaussian processes with a Matern 5/2 kernel, as arrays: hyper-parameters by marginal likelihood.

    y(x) = level + slopes . x + f(x) + noise,   f ~ GP(0, amplitude^2 M(r)),
    M(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r),   r^2 = sum_j ((x_j - x'_j) / length_j)^2

The level and the slopes have normal priors and are integrated out (Rasmussen and Williams,
Gaussian Processes for Machine Learning, 2006, sections 2.7, 4.2 and 5.4.1). Far from the data f
falls back to 0, and what is left is the level and the slopes. Inputs are standardised inside, so
that one set of priors serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.errors import RequestError

FloatArray = NDArray[np.float64]

MEANS = ("constant", "linear")
# Priors in standardised units (features and values of standard deviation 1): normal in the logs of
# amplitude and noise, and in the log of each length, which grows with the root of the number of
# features as distances do.
AMPLITUDE, AMPLITUDE_LOG_SD = 1.0, 1.0
NOISE, NOISE_LOG_SD = 0.1, 1.5
LENGTH, LENGTH_LOG_SD = 1.5, 1.2
# Standard deviations of the level and of each slope before anything is measured.
LEVEL_SD, SLOPE_SD = 3.0, 1.0
LEAST_NOISE = 1e-4
# Rows asked at a time: an (m, n) block of kernel values stays within some tens of megabytes.
CELLS = 4_000_000
ROOT5 = float(np.sqrt(5.0))


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process.

    Attributes:
        x: the measured points in standardised units, (n, d).
        weights: of the measured points in the mean, (n,): (K + noise)^-1 (y - middle).
        root: lower Cholesky factor of K + noise, (n, n).
        centre, scale: of each feature, (d,): standardised = (given - centre) / scale.
        middle, unit: of the values: standardised = (given - middle) / unit.
        lengths: of each feature, standardised, (d,).
        amplitude, noise: standard deviations, standardised.
        linear: whether the mean has slopes.
        evidence: log marginal likelihood and log priors at the hyper-parameters.
    """

    x: FloatArray
    weights: FloatArray
    root: FloatArray
    centre: FloatArray
    scale: FloatArray
    middle: float
    unit: float
    lengths: FloatArray
    amplitude: float
    noise: float
    linear: bool
    evidence: float

    def predict(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of y without noise at points (m, d), each (m,)."""
        z = self._standard(x)
        mean, sd = np.empty(len(z)), np.empty(len(z))
        step = max(CELLS // max(len(self.x), 1), 1)
        for start in range(0, len(z), step):
            some = slice(start, start + step)
            cross = self._prior(z[some], self.x)
            mean[some] = cross @ self.weights
            left = _solve_lower(self.root, cross.T)
            sd[some] = np.sqrt(np.maximum(self._own(z[some]) - np.sum(left**2, axis=0), 0.0))
        return self.middle + self.unit * mean, self.unit * sd

    def means(self, x: ArrayLike) -> FloatArray:
        """Return the mean alone at points (m, d), (m,): far cheaper than with its deviation."""
        z = self._standard(x)
        step = max(CELLS // max(len(self.x), 1), 1)
        parts = [
            self._prior(z[s : s + step], self.x) @ self.weights for s in range(0, len(z), step)
        ]
        return self.middle + self.unit * np.concatenate([np.zeros(0), *parts])

    def joint(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return mean (m,) and covariance (m, m) of y without noise at points (m, d)."""
        z = self._standard(x)
        cross = self._prior(z, self.x)
        left = _solve_lower(self.root, cross.T)
        covariance = self._prior(z, z) - left.T @ left
        return self.middle + self.unit * (cross @ self.weights), self.unit**2 * covariance

    def draws(self, x: ArrayLike, count: int, seed: int = 0) -> FloatArray:
        """Return joint samples of y without noise at points (m, d), (count, m)."""
        mean, covariance = self.joint(x)
        jitter = 1e-9 * max(float(np.trace(covariance)) / max(len(mean), 1), self.unit**2 * 1e-6)
        root = _cholesky(covariance + jitter * np.eye(len(mean)))
        normal = np.random.default_rng(seed).standard_normal((count, len(mean)))
        result: FloatArray = mean + normal @ root.T
        return result

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise, in units of y."""
        return self.unit * self.noise

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """Return each measured value less what the others foretell, and its deviation, (n,) each.

        Hyper-parameters are those of all points (Rasmussen and Williams, equation 5.12).
        """
        inverse = _solve_lower(self.root, np.eye(len(self.x)))
        precision = np.sum(inverse**2, axis=0)
        return self.unit * self.weights / precision, self.unit / np.sqrt(precision)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the Cholesky factor is made again on reading."""
        names = [name for name in self.__dataclass_fields__ if name != "root"]
        values = {name: getattr(self, name) for name in names}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        return {**plain, "noise_of": (self.root**2).sum(axis=1).tolist()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> GaussianProcess:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        given = dict(values)
        diagonal = np.array(given.pop("noise_of"), dtype=float)
        for name in ("weights", "centre", "scale", "lengths"):
            given[name] = np.array(given[name], dtype=float)
        given["x"] = np.array(given["x"], dtype=float).reshape(-1, len(given["lengths"]))
        blank = GaussianProcess(**given, root=np.zeros((0, 0)))
        covariance = blank._prior(blank.x, blank.x)
        np.fill_diagonal(covariance, diagonal)
        return GaussianProcess(**given, root=_cholesky(covariance))

    def _standard(self, x: ArrayLike) -> FloatArray:
        z: FloatArray = (np.asarray(x, dtype=np.float64) - self.centre) / self.scale
        return z

    def _prior(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """Return the covariances of y without noise before anything is measured, (m, n)."""
        given = self.amplitude**2 * _matern(_distances(a / self.lengths, b / self.lengths))
        return given + _mean_kernel(a, b, self.linear)

    def _own(self, a: FloatArray) -> FloatArray:
        slopes = SLOPE_SD**2 * np.sum(a**2, axis=1) if self.linear else 0.0
        own: FloatArray = np.full(len(a), self.amplitude**2 + LEVEL_SD**2) + slopes
        return own


def fitted_gp(
    x: ArrayLike,
    y: ArrayLike,
    *,
    mean: str = "constant",
    noise_ratio: ArrayLike | None = None,
    starts: int = 3,
    seed: int = 0,
) -> GaussianProcess:
    """Return the process of n values y (n,) at points x (n, d).

    Args:
        x, y: finite. A feature that never changes has no effect where it keeps its value.
        mean: `constant`, or `linear` in all features.
        noise_ratio: of each value's noise standard deviation to the common one, (n,): below 1 for
            means of several readings, far above for readings that are not to be believed.
        starts: of the search of the hyper-parameters, the prior's mode first.
        seed: of the other starts.

    Raises:
        RequestError: no points, not finite, of unequal lengths, or no such mean.
    """
    points, values = np.atleast_2d(np.asarray(x, dtype=np.float64)), np.ravel(y).astype(np.float64)
    _check(points, values, mean)
    ratio = np.ones(len(values)) if noise_ratio is None else np.ravel(noise_ratio).astype(float)
    centre, scale = points.mean(axis=0), _scale(points)
    middle = float(values.mean())
    unit = float(values.std()) or 1.0
    problem = _Evidence(
        (points - centre) / scale, (values - middle) / unit, ratio, mean == "linear"
    )
    best, evidence = problem.best(starts, seed)
    covariance, _, _ = problem.covariance(best)
    root = _cholesky(covariance)
    half = _solve_lower(root, problem.y)
    return GaussianProcess(
        x=problem.x, weights=_solve_upper(root, half), root=root, centre=centre, scale=scale,
        middle=middle, unit=unit, lengths=np.exp(best[2:]), amplitude=float(np.exp(best[0])),
        noise=float(np.exp(best[1])), linear=mean == "linear", evidence=evidence,
    )  # fmt: skip


class _Evidence:
    """Log marginal likelihood and priors of log amplitude, log noise and log lengths."""

    def __init__(self, x: FloatArray, y: FloatArray, ratio: FloatArray, linear: bool) -> None:
        self.x, self.y, self.ratio = x, y, ratio
        self.fixed = _mean_kernel(x, x, linear)
        lengths = np.full(x.shape[1], np.log(LENGTH * np.sqrt(max(x.shape[1], 1))))
        self.centre = np.concatenate([[np.log(AMPLITUDE), np.log(NOISE)], lengths])
        self.sd = np.full(len(self.centre), LENGTH_LOG_SD)
        self.sd[:2] = AMPLITUDE_LOG_SD, NOISE_LOG_SD

    def covariance(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return covariance of y, distances r, and exp(-sqrt5 r), each (n, n)."""
        scaled = self.x / np.exp(theta[2:])
        r = _distances(scaled, scaled)
        fall = np.exp(-ROOT5 * r)
        total = np.exp(2 * theta[0]) * (1 + ROOT5 * r + 5 * r**2 / 3) * fall + self.fixed
        total[np.diag_indices_from(total)] += (np.exp(theta[1]) * self.ratio) ** 2 + LEAST_NOISE**2
        return total, r, fall

    def negative(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Return minus the log evidence and its gradient (equation 5.9)."""
        total, r, fall = self.covariance(theta)
        root = _cholesky(total)
        inverse_root = _solve_lower(root, np.eye(len(self.y)))
        inverse = inverse_root.T @ inverse_root
        alpha = inverse @ self.y
        value = 0.5 * float(self.y @ alpha) + float(np.log(np.diag(root)).sum())
        value += 0.5 * len(self.y) * float(np.log(2 * np.pi))
        w = inverse - np.outer(alpha, alpha)
        power = np.exp(2 * theta[0])
        gradient = np.empty(len(theta))
        gradient[0] = power * np.sum(w * (1 + ROOT5 * r + 5 * r**2 / 3) * fall)
        gradient[1] = np.exp(2 * theta[1]) * float(np.diag(w) @ self.ratio**2)
        # d k / d log length_j = amplitude^2 5/3 (1 + sqrt5 r) exp(-sqrt5 r) (difference_j / length_j)^2,
        # and sums of w (a - b)^2 need no array of differences.
        w *= power * (5 / 3) * (1 + ROOT5 * r) * fall
        scaled = self.x / np.exp(theta[2:])
        gradient[2:] = w.sum(axis=1) @ scaled**2 - np.einsum("ij,ij->j", scaled, w @ scaled)
        away = (theta - self.centre) / self.sd
        return value + 0.5 * float(away @ away), gradient + away / self.sd

    def best(self, starts: int, seed: int) -> tuple[FloatArray, float]:
        """Return the best hyper-parameters of several starts, and their log evidence."""
        from scipy.optimize import minimize

        rng = np.random.default_rng(seed)
        bounds = np.stack([self.centre - 5 * self.sd, self.centre + 5 * self.sd], axis=1)
        found, least = self.centre, np.inf
        for i in range(max(starts, 1)):
            start = self.centre + (rng.normal(0, 0.7, len(self.sd)) * self.sd if i else 0.0)
            done = minimize(
                self.negative, start, jac=True, method="L-BFGS-B", bounds=bounds,
                options={"maxiter": 100},
            )  # fmt: skip
            if done.fun < least:
                found, least = np.asarray(done.x), float(done.fun)
        return found, -least


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


def _distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return Euclidean distances, (m, n)."""
    square = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2 * (a @ b.T)
    np.maximum(square, 0.0, out=square)
    root: FloatArray = np.sqrt(square)
    return root


def _matern(r: FloatArray) -> FloatArray:
    s = ROOT5 * r
    result: FloatArray = (1 + s + s**2 / 3) * np.exp(-s)
    return result


def _mean_kernel(a: FloatArray, b: FloatArray, linear: bool) -> FloatArray:
    """Return what level and slopes add to the covariances, (m, n)."""
    slopes = SLOPE_SD**2 * (a @ b.T) if linear else np.zeros((len(a), len(b)))
    result: FloatArray = LEVEL_SD**2 + slopes
    return result


def _cholesky(matrix: FloatArray) -> FloatArray:
    """Return the lower factor; the diagonal is raised where rounding left it not positive."""
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


def _solve_lower(root: FloatArray, values: FloatArray) -> FloatArray:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True, check_finite=False))


def _solve_upper(root: FloatArray, values: FloatArray) -> FloatArray:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True, trans="T", check_finite=False))
