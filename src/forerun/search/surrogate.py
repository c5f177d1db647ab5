"""Surrogate: Gaussian processes of the logarithm of a time, a set of them weighted by evidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import normal_quantile
from forerun.predictors.gaussian_process import hazard, matern

ROUNDS = 5  # of expectation propagation for lower bounds
VAGUE = 1e4  # variance of a site that says nothing yet
LEAST_WEIGHT = 0.01  # draws with less evidence are passed over


@dataclass(frozen=True)
class Kernels:
    """d draws of what the logarithm of a time may be like over n configurations.

        log t(x) = level + trend(x) + sum_j g_j(x_j) + f(x) + noise,   g_j ~ GP(0, scale_j^2 M(r_j)),
        f ~ GP(0, amplitude^2 M(r)),   M(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r)

    r is the distance in lengths (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
    section 4.2). The f of a rough draw has the correlation exp(-sum_j |x_j - x'_j| / length_j) in place
    of M(r) (Balog et al., The Mondrian kernel, 2016).

    features (n, k) are from 0 to 1; lengths, scales (d, k); amplitude, noise, rough (d,); trend (d, n).
    """

    features: FloatArray
    lengths: FloatArray
    amplitude: FloatArray
    noise: FloatArray
    scales: FloatArray
    level_sd: float = 3.0
    trend: FloatArray | None = None
    rough: BoolArray | None = None

    @property
    def own(self) -> FloatArray:
        """Variance of every configuration before any run, (d,)."""
        return np.asarray(self.amplitude**2 + (self.scales**2).sum(axis=1) + self.level_sd**2)

    def against(self, at: IntArray) -> FloatArray:
        """Return covariances of all configurations with those at positions (m,): (d, n, m)."""
        apart = np.abs(self.features[:, None] - self.features[at][None])  # (n, m, k)
        rough = np.zeros(len(self.noise), dtype=bool) if self.rough is None else self.rough
        together = np.stack([
            np.exp(-np.sum(apart / length, axis=2)) if steep
            else matern(np.sqrt(np.sum((apart / length) ** 2, axis=2)))
            for length, steep in zip(self.lengths, rough, strict=True)
        ])  # fmt: skip
        total = np.einsum("dk,nmk->dnm", self.scales**2, matern(apart))
        total += (self.amplitude**2)[:, None, None] * together + self.level_sd**2
        return np.asarray(total)


@dataclass(frozen=True)
class Belief:
    """What is believed of n configurations: a mixture of d normal distributions of log t each.

    `weights` (d,) add up to 1; `mean` and `variance` (d, n) are without the `noise` of a run, (d,).
    """

    weights: FloatArray
    mean: FloatArray
    variance: FloatArray
    noise: FloatArray

    def mixed(self, each: FloatArray) -> FloatArray:
        """Return the weighted mean of what holds in each of the mixture, (d, n) to (n,)."""
        return np.asarray(self.weights @ each)

    def band(self, i: int, log_weight: float = 0.0) -> tuple[float, float]:
        """Return the 5 to 95 % range of exp(log t + log weight) of one, the mixture as one normal."""
        mean = float(self.weights @ self.mean[:, i])
        variance = self.weights @ (self.variance[:, i] + (self.mean[:, i] - mean) ** 2)
        apart = normal_quantile(0.95) * np.sqrt(float(variance))
        low, high = np.exp(mean + log_weight + apart * np.array([-1.0, 1.0])).tolist()
        return low, high


def believe(
    kernels: Kernels, at: IntArray, values: FloatArray, bound: BoolArray, level: float
) -> Belief:
    """Return what runs at some positions tell of all configurations, given logs of seconds, (m,).

    Draws are weighted by marginal likelihood (Rasmussen and Williams 2006, section 5.4). bound: runs
    that were stopped, lower bounds.
    """
    cross = kernels.against(at)
    noise = kernels.noise**2
    expected = level + (np.zeros(cross.shape[:2]) if kernels.trend is None else kernels.trend)
    sites, variance, evidence = _sites(cross[:, at], noise, values - expected[:, at], bound)
    inverse_root = np.linalg.inv(np.linalg.cholesky(cross[:, at] + _diagonal(variance)))
    solved = np.einsum("dji,djk,dk->di", inverse_root, inverse_root, sites)
    evidence -= 0.5 * np.sum(sites * solved, axis=1)
    evidence += np.sum(np.log(np.diagonal(inverse_root, axis1=1, axis2=2)), axis=1)
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    kept = weights >= min(LEAST_WEIGHT, weights.max())
    half = cross[kept] @ np.swapaxes(inverse_root[kept], 1, 2)
    left = kernels.own[kept, None] - np.einsum("dnm,dnm->dn", half, half)
    mean = np.einsum("dnm,dm->dn", cross[kept], solved[kept]) + expected[kept]
    weights = weights[kept] / weights[kept].sum()
    return Belief(weights, mean, np.maximum(left, 1e-10), noise[kept])


def _sites(
    prior: FloatArray, noise: FloatArray, values: FloatArray, bound: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return normal stand-ins of runs (d, m), and what lower bounds add to the log evidence, (d,).

    Lower bounds by expectation propagation: Rasmussen and Williams 2006, equations 3.56 to 3.65.
    """
    mean = values.copy()
    variance = np.repeat(noise[:, None], values.shape[1], axis=1)
    evidence = np.zeros(len(noise))
    if not bound.any():
        return mean, variance, evidence
    low, extra = values[:, bound], noise[:, None]
    variance[:, bound] = VAGUE
    for last in (*[False] * ROUNDS, True):
        inverse = np.linalg.inv(prior + _diagonal(variance))
        own = np.diagonal(inverse, axis1=1, axis2=2)
        without = (mean - np.einsum("dij,dj->di", inverse, mean) / own)[:, bound]
        spread = np.maximum((1.0 / own - variance)[:, bound], 1e-9)
        noisy = spread + extra
        t = (low - without) / np.sqrt(noisy)
        rate = hazard(t)
        if last:
            apart = noisy - extra + variance[:, bound]
            gap = (without - mean[:, bound]) ** 2
            tail = -0.5 * t * t - np.log(np.sqrt(2 * np.pi) * rate)
            evidence = np.sum(tail + 0.5 * np.log(apart) + 0.5 * gap / apart, axis=1)
            break
        shrunk = spread * (1.0 - spread / noisy * rate * (rate - t))
        moved = without + spread / np.sqrt(noisy) * rate
        precision = np.clip(1.0 / np.maximum(shrunk, 1e-9) - 1.0 / spread, 1.0 / VAGUE, 1e6)
        mean[:, bound] = (moved / np.maximum(shrunk, 1e-9) - without / spread) / precision
        variance[:, bound] = 1.0 / precision
    return mean, variance, evidence


def _diagonal(values: FloatArray) -> FloatArray:
    return np.asarray(values[:, :, None] * np.eye(values.shape[1]))
