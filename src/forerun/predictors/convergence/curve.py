"""Curve: samples until a target by batch, fitted to one training's runs with what other trainings say of its form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray

# S(B) = exp(level) (1 + (B/B_c)^p + (B_s/B)^(1/2)): critical batch (McCandlish et al., 2018, with p = 1), and Scavenger's
# e = e* + theta gamma with gamma ~ B^(-1/2) (Tyagi, CCGrid 2023, equations 6 and 7). The form: ln B_c, ln p, ln B_s.
_SMALL_POWER = 0.5
_STUDENT = 4.0  # degrees of freedom of errors: a run that is far off weighs less


@dataclass(frozen=True)
class Noise:
    """Log standard deviations: of the curve's own bends and their reach in ln B, of what trainings set apart, of a run.

    setting: of runs that share an optimizer; source: of runs that share a framework. cell: of configurations. run: of repeats.
    """

    bend: float = 0.06
    reach: float = 1.5
    setting: float = 0.10
    source: float = 0.05
    cell: float = 0.05
    run: float = 0.04

    @property
    def logs(self) -> FloatArray:
        """The logs of those that are fitted, all but `run`, (5,)."""
        return np.log([self.bend, self.reach, self.setting, self.source, self.cell])

    @staticmethod
    def of(logs: FloatArray, run: float) -> Noise:
        """Return it from `logs`."""
        bend, reach, setting, source, cell = np.exp(logs).tolist()
        return Noise(bend, reach, setting, source, cell, run)


@dataclass(frozen=True)
class Points:
    """m measured points of one training: ln of the batch, codes of setting and source, ln samples, how many runs each is.

    noise: ln of the gradient noise scale in samples that was measured on the way, None where none was.
    """

    batch: FloatArray
    setting: IntArray
    source: IntArray
    samples: FloatArray
    runs: FloatArray
    noise: float | None = None

    @property
    def middle(self) -> float:
        """The middle ln B."""
        return float(np.median(self.batch))


def growth(batch: FloatArray, form: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return ln(1 + (B/B_c)^p + (B_s/B)^(1/2)) of ln B (n,), and its slopes by the form, (n, 3)."""
    critical, power, small = form[0], np.exp(form[1]), form[2]
    off = batch - critical
    terms = np.stack([np.zeros_like(batch), power * off, _SMALL_POWER * (small - batch)])
    total = np.logaddexp.reduce(terms, axis=0)
    large, little = np.exp(terms[1] - total), np.exp(terms[2] - total)
    return total, np.stack([-power * large, power * off * large, _SMALL_POWER * little], axis=1)


def covariance(a: Points, b: Points, noise: Noise) -> FloatArray:
    """Return how what the form leaves of two sets of points goes together, (m, k)."""
    off = (a.batch[:, None] - b.batch) / noise.reach
    bends = noise.bend**2 * np.exp(-0.5 * off**2)
    settings = noise.setting**2 * (a.setting[:, None] == b.setting)
    return np.asarray(
        bends + settings + noise.source**2 * (a.source[:, None] == b.source), dtype=np.float64
    )


@dataclass(frozen=True)
class FormPrior:
    """What is known of the form of a training before its runs speak.

    mean, sigma: of ln B_c against the middle ln B of its runs, of ln p, and of ln B_s against that middle, (3,) each.
    place: log standard deviation of one batch of a training about the middle of all.
    offset, offset_sigma: of ln B_c against the ln of a measured noise scale phi: at B = phi a sample is half as useful as in
    a small batch (Pollux: (phi + B0)/(phi + B)).
    """

    mean: FloatArray
    sigma: FloatArray
    place: float = 1.0
    offset: float = 0.0
    offset_sigma: float = 1.0

    @staticmethod
    def usual() -> FormPrior:
        """Return what is known before any training."""
        return FormPrior(np.array([2.0, 0.2, -4.0]), np.array([1.5, 0.4, 2.0]))

    def of(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Return mean and log standard deviation of the form of points' training, (3,) each."""
        mean = self.mean + np.array([points.middle, 0.0, points.middle])
        unsure = self.place**2 / len(np.unique(points.batch))
        sigma = np.sqrt(self.sigma**2 + unsure * np.array([1.0, 0.0, 1.0]))
        if points.noise is not None:
            weights = sigma[0] ** -2, self.offset_sigma**-2
            told = points.noise + self.offset
            mean[0] = (weights[0] * mean[0] + weights[1] * told) / sum(weights)
            sigma[0] = sum(weights) ** -0.5
        return mean, sigma


@dataclass(frozen=True)
class TargetCurve:
    """A fitted curve: level and form (4,) with their covariance, and what the points leave of it.

    points: those that it was fitted to. weights: of each, below 1 where it lies far off, (m,). centre, before: mean
    and log standard deviations of level and form without the points, (4,).
    """

    points: Points
    weights: FloatArray
    theta: FloatArray
    spread: FloatArray
    centre: FloatArray
    before: FloatArray
    noise: Noise

    @staticmethod
    def of(points: Points, noise: Noise, prior: FormPrior, rounds: int = 3) -> TargetCurve:
        """Return the curve of points."""
        weights = np.ones(len(points.batch))
        mean, sigma = prior.of(points)
        centre = np.append(np.median(points.samples) - np.log(2.0), mean)
        before, theta = np.append(_LEVEL, sigma), centre
        for _ in range(rounds):
            theta, spread = _most_likely(points, weights, (theta, centre), before, noise)
            curve = TargetCurve(points, weights, theta, spread, centre, before, noise)
            off, variance = curve.left_out(np.arange(len(weights)))
            weights = (_STUDENT + 1.0) / (_STUDENT + off**2 / variance)
        return curve

    @property
    def total(self) -> FloatArray:
        """How what level and form leave of the points goes together, (m, m)."""
        own = self.own_variance / self.weights
        return np.asarray(covariance(self.points, self.points, self.noise) + np.diag(own))

    @property
    def own_variance(self) -> FloatArray:
        """The variance of each point alone, (m,)."""
        return np.asarray(self.noise.cell**2 + self.noise.run**2 / self.points.runs)

    def residuals(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Return what level and form leave of points (n,), and the slopes of their answer, (n, 4)."""
        rise, slopes = growth(points.batch, self.theta[1:])
        return points.samples - self.theta[0] - rise, np.column_stack([np.ones(len(rise)), slopes])

    def predict(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Return the mean of ln samples (n,) at points, whose samples are not read, and its variance for a new run."""
        inverse, (left, slopes) = np.linalg.inv(self.total), self.residuals(self.points)
        here, own = self.residuals(points)
        near = covariance(points, self.points, self.noise) @ inverse
        mean = points.samples - here + near @ left
        tilt = own - near @ slopes
        alone = self.noise.bend**2 + self.noise.setting**2 + self.noise.source**2
        variance = alone - np.sum(near * covariance(points, self.points, self.noise), axis=1)
        variance = np.maximum(variance, 0.0) + np.sum(tilt @ self.spread * tilt, axis=1)
        return mean, variance + self.noise.cell**2 + self.noise.run**2

    def left_out(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return what the points of each group are off by where the group is left out, and the variance, (m,) each.

        In closed form, with level and form taken as linear (Rasmussen and Williams 2006, 5.4.2, by blocks).
        """
        left, slopes = self.residuals(self.points)
        # Residuals are about the fitted level and form; about those before the points they would be larger.
        left = left + slopes @ (self.theta - self.centre)
        inverse = np.linalg.inv(self.total + slopes * self.before**2 @ slopes.T)
        scaled = inverse @ left
        off, variance = np.empty_like(left), np.empty_like(left)
        for group in np.unique(groups):
            mine = np.flatnonzero(groups == group)
            block = np.linalg.inv(inverse[np.ix_(mine, mine)])
            off[mine], variance[mine] = block @ scaled[mine], np.diag(block)
        return off, variance


def _most_likely(
    points: Points, weights: FloatArray, starts: tuple[FloatArray, FloatArray], before: FloatArray,
    noise: Noise,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return level and form (4,) that are likeliest after the points, and their covariance (4, 4); the last start is the prior."""
    from scipy.optimize import least_squares

    own = (noise.cell**2 + noise.run**2 / points.runs) / weights
    root = np.linalg.cholesky(covariance(points, points, noise) + np.diag(own))
    centre = starts[-1]

    def errors(theta: FloatArray) -> FloatArray:
        left = points.samples - theta[0] - growth(points.batch, theta[1:])[0]
        return np.concatenate([np.linalg.solve(root, left), (theta - centre) / before])

    def slopes(theta: FloatArray) -> FloatArray:
        by_form = growth(points.batch, theta[1:])[1]
        tilt = np.column_stack([np.ones(len(by_form)), by_form])
        return np.vstack([-np.linalg.solve(root, tilt), np.diag(1.0 / before)])

    found = [least_squares(errors, one, slopes, method="lm") for one in starts]
    best = min(found, key=lambda one: float(one.cost))
    return best.x, np.linalg.inv(best.jac.T @ best.jac)


_LEVEL = 10.0  # log standard deviation of the level before any run: it is free
