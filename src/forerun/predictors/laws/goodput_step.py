"""The step of Pollux: seconds of n steps from seven parameters, and how each of them moves it.

Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (OSDI 2021),
section 3.2: passes accumulate gradients, the last of them overlaps with the reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

# a_c, b_c: a pass and each of its samples; a_n, b_n: a reduction between nodes, and each device
# beyond two of them; a_r, b_r: the same within a node; gamma: how well both overlap.
PARAMETERS = ("a_c", "b_c", "a_n", "b_n", "a_r", "b_r", "gamma")
A_C, B_C, A_N, B_N, A_R, B_R, GAMMA = range(len(PARAMETERS))
# The reduction of two devices is a_n or a_r alone, of which the logarithm must still be known.
_LEAST = 1e-12


@dataclass(frozen=True)
class Steps:
    """What n steps are made of, each (n,).

    Attributes:
        micro_batch: samples of a pass; passes: in a step, 1 or more.
        devices: that take part.
        between: 1 where they lie on several nodes, evenly or not, else 0.
        speed, rate: of a device and of the network over that of the middle run, 1 where nothing is said.
    """

    micro_batch: FloatArray
    passes: FloatArray
    devices: FloatArray
    between: FloatArray
    speed: FloatArray
    rate: FloatArray

    def __len__(self) -> int:
        return len(self.devices)

    def take(self, index: NDArray[np.int64]) -> Steps:
        """Return the steps at the given positions."""
        return Steps(*(column[index] for column in self.columns))

    @property
    def columns(self) -> tuple[FloatArray, ...]:
        """The columns in order, each (n,)."""
        return (
            self.micro_batch, self.passes, self.devices, self.between, self.speed, self.rate,
        )  # fmt: skip

    @staticmethod
    def joined(parts: Sequence[Steps]) -> Steps:
        """Return the steps of all parts, in order."""
        columns = [one.columns for one in parts]
        return Steps(*(np.concatenate(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class Timed:
    """Seconds of n steps by part, each (n,): a pass, its network, and the last pass with it."""

    accumulation: FloatArray
    network: FloatArray
    last: FloatArray
    step: FloatArray


def timed(theta: FloatArray, steps: Steps) -> Timed:
    """Return the seconds of n steps.

    Args:
        theta: the seven parameters, (7,) or (n, 7), in seconds but for gamma.
        steps: n of them.
    """
    t = theta.T
    accumulation = (t[A_C] + t[B_C] * steps.micro_batch) / steps.speed
    farther = np.maximum(steps.devices - 2.0, 0.0)
    network = np.where(steps.between > 0, t[A_N] + t[B_N] * farther, t[A_R] + t[B_R] * farther)
    network = np.where(steps.devices > 1, np.maximum(network / steps.rate, _LEAST), 0.0)
    longer = np.maximum(accumulation, network)
    shorter = np.minimum(accumulation, network)
    # (x^g + y^g)^(1/g) without overflow: the longer of both, drawn out.
    last = longer * np.exp(np.log1p((shorter / longer) ** t[GAMMA]) / t[GAMMA])
    return Timed(accumulation, network, last, (steps.passes - 1.0) * accumulation + last)


def log_slopes(theta: FloatArray, steps: Steps, parts: Timed) -> FloatArray:
    """Return d log(step) / d (log of the six times, gamma), (n, 7)."""
    t = theta.T
    gamma = t[GAMMA]
    farther = np.maximum(steps.devices - 2.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_network = np.where(parts.network > 0, (parts.network / parts.last) ** (gamma - 1.0), 0.0)
        share = (parts.network / parts.last) ** gamma
        log_network = np.where(parts.network > 0, np.log(parts.network), 0.0)
    by_pass = (steps.passes - 1.0) + (parts.accumulation / parts.last) ** (gamma - 1.0)
    mixed = (1.0 - share) * np.log(parts.accumulation) + share * log_network
    slopes = np.empty((len(steps), len(PARAMETERS)))
    by_pass, by_network = by_pass / steps.speed, by_network / steps.rate
    between = np.where(steps.between > 0, by_network, 0.0)
    within = by_network - between
    slopes[:, A_C] = by_pass * t[A_C]
    slopes[:, B_C] = by_pass * t[B_C] * steps.micro_batch
    slopes[:, A_N], slopes[:, B_N] = between * t[A_N], between * t[B_N] * farther
    slopes[:, A_R], slopes[:, B_R] = within * t[A_R], within * t[B_R] * farther
    slopes[:, GAMMA] = parts.last * (mixed - np.log(parts.last)) / gamma
    result: FloatArray = slopes / parts.step[:, None]
    return result
