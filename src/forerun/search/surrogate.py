"""Surrogate: Gaussian processes of the logarithm of a time, a set of them weighted by evidence.

    log t(x) = level + trend(x) + sum_j g_j(x_j) + f(x) + noise,   g_j ~ GP(0, scale_j^2 M(r_j / REACH)),
    f ~ GP(0, amplitude^2 M(r)),   M(r) = (1 + sqrt5 r + 5 r^2 / 3) exp(-sqrt5 r)

M is the Matern 5/2 correlation and r the distance in lengths, one length an axis (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, section 4.2). The g_j say that workers,
machines, batches and learning rates each multiply a time by a factor of their own, as the laws of
scaling do; f says what they do together. A few dozen sets of lengths, scales and noise are drawn
from their priors once, and weighted by marginal likelihood (section 5.4), so no optimizer runs and
three runs cannot be over-fitted. A draw may be rough: its f has the correlation exp(-sum_j |x_j - x'_j| / length_j)
in place of M(r), that of ever more randomised trees (Balog et al., The Mondrian kernel, 2016): what holds of a
corner of the axes alone then says little of its neighbours. A run that was stopped is a lower bound, by expectation
propagation: it says nothing of how far above the bound its time lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import normal_cdf, normal_quantile
from forerun.predictors.gaussian_process import hazard, matern

# Whole matrices of all draws are kept up to so many cells (about 100 MB); rows are made beyond.
CELLS_KEPT = 12_000_000
ROUNDS = 5  # of expectation propagation for lower bounds
VAGUE = 1e4  # variance of a site that says nothing yet
LEAST_WEIGHT = 0.01  # draws with less evidence are passed over


@dataclass(frozen=True)
class Kernels:
    """d draws of what the logarithm of a time may be like over n configurations.

    Attributes:
        features: axes from 0 to 1, (n, k).
        lengths: of f on each axis, (d, k).
        amplitude, noise: standard deviations of f and of the noise, (d,).
        scales: standard deviation of each axis's own factor, (d, k).
        reach: the length of the axes' own factors.
        level_sd: standard deviation of the level.
        trend: what is expected of log t before any run, up to the level, (d, n); nothing by default.
        rough: which draws are rough, (d,); none by default.
    """

    features: FloatArray
    lengths: FloatArray
    amplitude: FloatArray
    noise: FloatArray
    scales: FloatArray
    reach: float = 1.0
    level_sd: float = 3.0
    trend: FloatArray | None = None
    rough: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.amplitude)

    @property
    def expected(self) -> FloatArray:
        """The trend, (d, n), zero where there is none."""
        return np.zeros((len(self), len(self.features))) if self.trend is None else self.trend

    @property
    def own(self) -> FloatArray:
        """Variance of every configuration before any run, (d,)."""
        factors: FloatArray = np.sum(self.scales**2, axis=1)
        return self.amplitude**2 + factors + self.level_sd**2

    def against(self, at: IntArray) -> FloatArray:
        """Return covariances of all configurations with those at positions (m,): (d, n, m)."""
        if self._whole is not None:
            return self._whole[:, :, at]
        return self._between(self.features, self.features[at])

    @cached_property
    def _whole(self) -> FloatArray | None:
        if len(self) * len(self.features) ** 2 > CELLS_KEPT:
            return None
        return self._between(self.features, self.features)

    def _between(self, left: FloatArray, right: FloatArray) -> FloatArray:
        apart = (left[:, None] - right[None]) ** 2  # (n, m, k)
        alone = matern(np.sqrt(apart) / self.reach)
        rough = np.zeros(len(self), dtype=bool) if self.rough is None else self.rough
        together = np.stack([
            np.exp(-np.sum(np.sqrt(apart) / length, axis=2)) if steep
            else matern(np.sqrt(np.sum(apart / length**2, axis=2)))
            for length, steep in zip(self.lengths, rough, strict=True)
        ])  # fmt: skip
        total: FloatArray = np.einsum("dk,nmk->dnm", self.scales**2, alone)
        total += (self.amplitude**2)[:, None, None] * together + self.level_sd**2
        return total

    @staticmethod
    def drawn(
        features: FloatArray, draws: int, length: tuple[float, float], amplitude: float,
        noise: float, scale: float, trend: FloatArray | None = None, rough: BoolArray | None = None,
    ) -> Kernels:  # fmt: skip
        """Return draws from log-normal priors, evenly spread by a Kronecker sequence.

        Args:
            features: (n, k).
            draws: how many.
            length: median, and standard deviation of its logarithm.
            amplitude, noise, scale: medians; their logarithms vary by 0.5, 0.7 and 0.5.
            trend, rough: as of the attributes.
        """
        k = features.shape[1]
        z = _spread_normals(draws, 2 * k + 2)
        return Kernels(
            features,
            lengths=length[0] * np.exp(length[1] * z[:, :k]),
            amplitude=amplitude * np.exp(0.5 * z[:, 2 * k]),
            noise=noise * np.exp(0.7 * z[:, 2 * k + 1]),
            scales=scale * np.exp(0.5 * z[:, k : 2 * k]),
            trend=trend,
            rough=rough,
        )


@dataclass(frozen=True)
class Belief:
    """What is believed of n configurations: a mixture of d normal distributions of log t each.

    Attributes:
        weights: of the mixture, (d,), adding up to 1.
        mean, variance: of log t without noise, (d, n).
        noise: variance of a further run, (d,).
    """

    weights: FloatArray
    mean: FloatArray
    variance: FloatArray
    noise: FloatArray

    def mixed(self, each: FloatArray) -> FloatArray:
        """Return the weighted mean of what holds in each of the mixture, (d, n) to (n,)."""
        return np.asarray(self.weights @ each)

    def below(self, log_limit: float) -> FloatArray:
        """Return the probability that a run stays below a limit, in each of the mixture, (d, n)."""
        if np.isinf(log_limit):
            return np.ones_like(self.mean)
        return normal_cdf((log_limit - self.mean) / np.sqrt(self.variance + self.noise[:, None]))


def believe(
    kernels: Kernels, at: IntArray, values: FloatArray, bound: BoolArray, level: float
) -> Belief:
    """Return what runs tell of all configurations.

    Args:
        kernels: what is believed before.
        at: positions of the m runs.
        values: logarithms of their seconds, (m,).
        bound: which of them are lower bounds, (m,).
        level: where log t is expected before any run.
    """
    cross = kernels.against(at)
    prior, noise = cross[:, at], kernels.noise**2
    expected = kernels.expected + level
    sites = _sites(prior, noise, values - expected[:, at], bound)
    root = np.linalg.cholesky(prior + _diagonal(sites.variance))
    inverse_root = np.linalg.inv(root)
    solved = np.einsum(
        "dji,dj->di", inverse_root, np.einsum("dij,dj->di", inverse_root, sites.mean)
    )
    evidence = sites.evidence - 0.5 * np.sum(sites.mean * solved, axis=1)
    evidence -= np.sum(np.log(np.diagonal(root, axis1=1, axis2=2)), axis=1)
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    kept = weights >= min(LEAST_WEIGHT, weights.max())
    half = cross[kept] @ np.swapaxes(inverse_root[kept], 1, 2)
    left = kernels.own[kept, None] - np.einsum("dnm,dnm->dn", half, half)
    mean = np.einsum("dnm,dm->dn", cross[kept], solved[kept]) + expected[kept]
    weights = weights[kept] / weights[kept].sum()
    return Belief(weights, mean, np.maximum(left, 1e-10), noise[kept])


@dataclass(frozen=True)
class _Sites:
    """Normal stand-ins of what m runs say of their configurations, in each of d draws.

    Attributes:
        mean, variance: (d, m); of a measured run its value and the noise.
        evidence: what the lower bounds add to the log evidence, (d,).
    """

    mean: FloatArray
    variance: FloatArray
    evidence: FloatArray


def _sites(prior: FloatArray, noise: FloatArray, values: FloatArray, bound: BoolArray) -> _Sites:
    """Return values (d, m) as they are, and lower bounds by expectation propagation.

    Source: Rasmussen and Williams 2006, section 3.6: equations 3.56 and 3.59, with the moments of
    a normal distribution cut off below (3.58), all sites at once; and 3.65 for the evidence.
    """
    count = values.shape[1]
    mean = values.copy()
    variance = np.repeat(noise[:, None], count, axis=1)
    evidence = np.zeros(len(noise))
    if not bound.any():
        return _Sites(mean, variance, evidence)
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
    return _Sites(mean, variance, evidence)


def _diagonal(values: FloatArray) -> FloatArray:
    """Return diagonal matrices of values (d, m), (d, m, m)."""
    matrices: FloatArray = values[:, :, None] * np.eye(values.shape[1])
    return matrices


def _spread_normals(count: int, dimensions: int) -> FloatArray:
    """Return evenly spread standard normal numbers (count, dimensions), always the same ones.

    Kronecker's sequence on the powers of the generalised golden ratio.
    """
    ratio = 2.0
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = ratio ** -np.arange(1.0, dimensions + 1)
    u = (0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0
    flat = [normal_quantile(min(max(v, 1e-4), 1 - 1e-4)) for v in u.ravel().tolist()]
    return np.array(flat).reshape(u.shape)
