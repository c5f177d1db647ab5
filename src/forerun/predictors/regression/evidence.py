"""Evidence: covariances of a Matern process with classes, and the hyper-parameters they make likely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
