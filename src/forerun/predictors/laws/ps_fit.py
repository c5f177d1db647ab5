"""The fit of parameter-server laws: most probable parameters, servers pooled over kinds of device.

The rate of a server belongs to the workload and the servers, not to the workers' devices: fast
workers show it where slow ones never reach it. So kinds that differ in the device alone share what
they know of it. Errors have heavy tails, for times to a target have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.many_minima import Minima, minima
from forerun.predictors.laws.one_step import one_step_draws
from forerun.predictors.laws.ps_step import (
    NORM,
    PARAMETERS,
    SAMPLE,
    SERVER,
    SHARD,
    STALE,
    STRAGGLE,
    WORKER,
    Updates,
    log_seconds,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Beliefs about `PARAMETERS` beside the runs. Workers and servers are centred on the runs' own times:
# half of a worker's update by samples, a server that takes 16 workers. Servers share evenly;
# the p-norm is about 4; stragglers cost 5 %; many workers need more updates for one target.
SERVED_WORKERS = 16.0
_CENTRE = {SHARD: 1.0, NORM: float(np.log(4.0)), STRAGGLE: float(np.log(0.05)), STALE: 0.3}
SIGMA = np.array([2.0, 2.0, 1.5, 0.3, 0.3, 1.0, 0.5])
# By how much what kinds share differs among them nevertheless, as a log standard deviation.
POOL_SIGMA = 0.3
TAIL = 4.0  # degrees of freedom of Student's errors
# What repeats of a step and of a whole run differ by before any have shown it, as logs; as four runs.
STEP_NOISE, RUN_NOISE, LEAST_NOISE = 0.03, 0.15, 0.01
NOISE_RUNS = 4.0
# Searches begin as if all errors were large: heavy tails would take half of the runs for outliers.
SEARCH_NOISE = 0.5
_HELD = 1e-9


@dataclass(frozen=True)
class PsFit:
    """What was found of one kind: `PARAMETERS` (7,), draws about them, errors (n,), at rest."""

    theta: FloatArray
    draws: FloatArray
    log_errors: FloatArray
    converged: bool


@dataclass(frozen=True)
class PsCosts:
    """Minus the log posterior of p kinds.

    Attributes:
        jobs, logs: rows of all kinds, in their order, and their log seconds, (n,).
        first: row at which each kind begins, (p,).
        noise: scale of each kind's errors, (p,).
        centre, sigma: of what is believed beforehand, (p, 7).
    """

    jobs: Updates
    logs: FloatArray
    first: IntArray
    noise: FloatArray
    centre: FloatArray
    sigma: FloatArray

    def _owner(self) -> IntArray:
        ends = np.append(self.first[1:], len(self.logs))
        return np.repeat(np.arange(len(self.first)), ends - self.first)

    def take(self, index: IntArray) -> Self:
        """Return the costs of some kinds."""
        lengths = np.diff(np.append(self.first, len(self.logs)))[index]
        first = np.cumsum(np.append(0, lengths[:-1]))[: len(index)]
        rows = np.repeat(self.first[index] - first, lengths) + np.arange(lengths.sum())
        return type(self)(
            self.jobs.take(rows), self.logs[rows], first, self.noise[index], self.centre[index],
            self.sigma[index],
        )  # fmt: skip

    def errors(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log of measured over fitted (n,), and slopes of the fitted (n, 7)."""
        fitted, slopes, _ = log_seconds(theta[self._owner()], self.jobs)
        return self.logs - fitted, slopes

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return costs (p,), slopes (p, 7) and curvatures (p, 7, 7)."""
        errors, slopes = self.errors(theta)
        scale = TAIL * (self.noise**2)[self._owner()]
        half = 0.5 * (TAIL + 1.0)
        cost = np.add.reduceat(half * np.log1p(errors**2 / scale), self.first)
        weight = 2.0 * half / (scale + errors**2)
        slope = -np.add.reduceat((weight * errors)[:, None] * slopes, self.first)
        outer = (weight[:, None] * slopes)[:, :, None] * slopes[:, None, :]
        bend = np.add.reduceat(outer, self.first)
        away = (theta - self.centre) / self.sigma
        bend += np.einsum("pk,kl->pkl", self.sigma**-2, np.eye(theta.shape[1]))
        return cost + 0.5 * (away**2).sum(axis=1), slope + away / self.sigma, bend


def fitted(
    kinds: Sequence[Updates], logs: Sequence[FloatArray], pools: Mapping[int, Sequence[str]]
) -> list[PsFit]:
    """Return the parameters of each kind.

    Args:
        kinds: the runs of each.
        logs: log seconds of each kind's runs.
        pools: by parameter, a name for each kind: those of one name share what they know of it.
    """
    lengths = [len(kind) for kind in kinds]
    centre, sigma = _beliefs(kinds, logs)
    costs = PsCosts(
        Updates.joined(kinds), np.concatenate(logs), np.cumsum([0, *lengths[:-1]]),
        np.full(len(kinds), SEARCH_NOISE), centre, sigma,
    )  # fmt: skip
    before = np.array([RUN_NOISE if kind.many.any() else STEP_NOISE for kind in kinds])
    found = _searched(costs, costs.centre)
    for _ in range(2):
        costs = replace(costs, noise=_noise(costs, found.theta, before))
        found = _searched(costs, found.theta)
    centre, sigma = _pooled(costs, found.theta, pools)
    costs = replace(costs, centre=centre, sigma=sigma)
    found = _searched(costs, found.theta)
    errors, slopes = costs.errors(found.theta)
    results = []
    for i, start in enumerate(costs.first):
        rows = slice(start, start + lengths[i])
        draws = one_step_draws(slopes[rows], errors[rows], costs.sigma[i], float(costs.noise[i]))
        results.append(PsFit(found.theta[i], draws, errors[rows], bool(found.converged[i])))
    return results


def _searched(costs: PsCosts, start: FloatArray) -> Minima:
    reach = np.where(costs.sigma > _HELD, 12.0 * costs.sigma, 0.0)
    return minima(costs, start, costs.centre - reach, costs.centre + reach)


def _beliefs(kinds: Sequence[Updates], logs: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return what is believed of each kind's parameters beforehand, (p, 7) and (p, 7)."""
    centre = np.zeros((len(kinds), len(PARAMETERS)))
    sigma = np.tile(SIGMA, (len(kinds), 1))
    for column, value in _CENTRE.items():
        centre[:, column] = value
    for i, (jobs, log) in enumerate(zip(kinds, logs, strict=True)):
        log_k = np.log(jobs.devices)
        alone = jobs.waits * (1.0 - jobs.many) * log_k  # a synchronous step is not shared
        few = jobs.devices == jobs.devices.min()
        update = float(np.median((log + log_k - alone - jobs.log_count)[few]))
        centre[i, WORKER] = update - np.log(2.0)
        centre[i, SAMPLE] = centre[i, WORKER] - float(np.median(np.log(jobs.micro_batch)))
        centre[i, SERVER] = update - np.log(SERVED_WORKERS)
        if not jobs.many.any():
            centre[i, STALE], sigma[i, STALE] = 0.0, _HELD
    return centre, sigma


def _noise(costs: PsCosts, theta: FloatArray, beliefs: FloatArray) -> FloatArray:
    """Return the scale of each kind's errors, (p,): few runs say little of it."""
    errors = np.abs(costs.errors(theta)[0])
    ends = np.append(costs.first[1:], len(errors))
    scales = []
    for start, end, before in zip(costs.first, ends, beliefs, strict=True):
        seen, n = 1.4826 * float(np.median(errors[start:end])), end - start
        scales.append(np.sqrt((n * seen**2 + NOISE_RUNS * before**2) / (n + NOISE_RUNS)))
    return np.maximum(scales, LEAST_NOISE)


def _pooled(
    costs: PsCosts, theta: FloatArray, pools: Mapping[int, Sequence[str]]
) -> tuple[FloatArray, FloatArray]:
    """Return beliefs in which a parameter of each kind is centred on those of its pool."""
    variances = np.einsum("pkk->pk", np.linalg.inv(costs(theta)[2]))
    centre, sigma = costs.centre.copy(), costs.sigma.copy()
    for column, of in pools.items():
        names, found = np.array(of), theta[:, column]
        weight = 1.0 / (variances[:, column] + POOL_SIGMA**2)
        weight = np.where(costs.sigma[:, column] > _HELD, weight, 0.0)
        for i in np.flatnonzero(weight):
            others = (names == names[i]) & (np.arange(len(names)) != i)
            own = costs.sigma[i, column] ** -2
            total = own + weight[others].sum()
            known = weight[others] @ found[others]
            centre[i, column] = (own * centre[i, column] + known) / total
            sigma[i, column] = np.sqrt(1.0 / total + (POOL_SIGMA**2 if others.any() else 0.0))
    return centre, np.minimum(sigma, costs.sigma)
