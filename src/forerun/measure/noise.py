"""Noise: running estimates of a training's gradient noise, and what they say of other workers and batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from forerun.errors import RequestError

_READINGS = (
    4  # of phi, a memory of the averages apart, from which it is judged whether they are stable
)
_STABLE = 1.1  # the largest of these readings' gamma, as a multiple of the least


def gradient_noise(
    mean_square: float, square_of_mean: float, count: int, batch: float
) -> tuple[float, float]:
    """Return (|G|^2, tr Sigma): squared norm of the true gradient and variance of a sample's, unbiased.

    Pollux (OSDI 2021): of `count` >= 2 independent gradients g_i, of batch/count samples each,
    E|g_i|^2 = |G|^2 + count tr Sigma / batch (`mean_square` is the mean over i), and
    E|g|^2 = |G|^2 + tr Sigma / batch (`square_of_mean`, of their mean g).
    """
    sqr = (count * square_of_mean - mean_square) / (count - 1)
    return sqr, (mean_square - square_of_mean) * batch / (count - 1)


class GradientNoise:
    """Running estimates of a training's gradient noise: averages in which recent steps weigh most.

    Args:
        decay: weight of what is known against a new step, 0 <= decay < 1: the averages remember some
            1 / (1 - decay) steps. Raises RequestError where it is another number.

    Attributes:
        steps: that were observed. `skipped`: those from which nothing could be learned.
    """

    def __init__(self, decay: float = 0.99) -> None:
        if not 0.0 <= decay < 1.0:
            raise RequestError(
                f"gradient noise with decay {decay}", "averages need a weight below 1",
                "choose one from 0 to below 1, such as 0.99",
            )  # fmt: skip
        self._decay = decay
        self.steps = self.skipped = 0
        self._sqr = self._var = 0.0  # averages that begin at zero
        self._count, self._batch = 1, 1.0  # of the last step
        self._readings = [math.nan] * _READINGS  # phi, the latest last

    def observe(self, mean_square: float, square_of_mean: float, count: int, batch: float) -> bool:
        """Learn from a step; return whether anything was learned, as `gradient_noise` takes its arguments.

        Nothing is learned where a figure is NaN or infinite, or of fewer than two gradients.
        """
        sqr = var = math.nan
        if count >= 2 and batch > 0:
            sqr, var = gradient_noise(float(mean_square), float(square_of_mean), count, batch)
        if not (math.isfinite(sqr) and math.isfinite(var)):
            self.skipped += 1
            return False
        self._sqr += (1.0 - self._decay) * (sqr - self._sqr)
        # A mean of squares is no less than the square of the mean, but for rounding.
        self._var += (1.0 - self._decay) * (max(var, 0.0) - self._var)
        self._count, self._batch = count, float(batch)
        self.steps += 1
        if self.steps % round(1.0 / (1.0 - self._decay)) == 0:
            self._readings = [*self._readings[1:], self.phi]
        return True

    @property
    def sqr(self) -> float:
        """Squared norm of the true gradient, NaN before the first step; luck may leave it below zero."""
        return self._sqr / (1.0 - self._decay**self.steps) if self.steps else math.nan

    @property
    def var(self) -> float:
        """Variance of one sample's gradient, summed over parameters; NaN before the first step."""
        return self._var / (1.0 - self._decay**self.steps) if self.steps else math.nan

    @property
    def phi(self) -> float:
        """The gradient noise scale var / sqr, in samples: infinite where sqr <= 0, NaN before the first step."""
        if not self.steps:
            return math.nan
        return self._var / self._sqr if self._sqr > 0 else math.inf

    @property
    def gamma(self) -> float:
        """Scavenger's noise E[mean |g_i|^2] / E|g|^2 of as many gradients and samples as the last step's."""
        return float(self.gamma_at(self._count, self._batch))

    @property
    def stable(self) -> bool:
        """Whether gamma has changed by less than a tenth over three times what the averages remember."""
        gammas = _gamma(np.array(self._readings), self._count, self._batch)
        return bool(gammas.max() < _STABLE * gammas.min())

    def gamma_at(self, workers: Any, batch: Any) -> Any:
        """Return the gamma that many workers would have, of `batch` samples in all; arrays are welcome.

        gamma / K = (B / K + phi) / (B + phi), from 1 / K (no noise) to 1 (nothing but noise): it follows
        from gamma = (sqr + K var / B) / (sqr + var / B), Scavenger (CCGrid 2023), equation 2.
        """
        return _gamma(self.phi, workers, batch)

    def state(self) -> dict[str, float]:
        """Return all that is known, as numbers by name, for `restore`."""
        readings = {f"phi_{i}": phi for i, phi in enumerate(self._readings)}
        return {
            "decay": self._decay, "steps": self.steps, "skipped": self.skipped, "sqr": self._sqr,
            "var": self._var, "count": self._count, "batch": self._batch, **readings,
        }  # fmt: skip

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a `state`, with its decay. Raises RequestError where it is none."""
        if missing := sorted(set(self.state()) - set(state)):
            found = f"it has no {', '.join(missing)}"
            raise RequestError("a state of gradient noise", found, "give what `state` returned")
        self._decay = float(state["decay"])
        self.steps, self.skipped = int(state["steps"]), int(state["skipped"])
        self._sqr, self._var = float(state["sqr"]), float(state["var"])
        self._count, self._batch = int(state["count"]), float(state["batch"])
        self._readings = [float(state[f"phi_{i}"]) for i in range(_READINGS)]


def _gamma(phi: Any, workers: Any, batch: Any) -> Any:
    workers, batch = np.asarray(workers, float), np.asarray(batch, float)
    return workers - (workers - 1.0) * batch / (batch + phi)
