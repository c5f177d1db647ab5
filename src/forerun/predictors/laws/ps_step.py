"""Steps with parameter servers: what workers can do, what servers can take, and which of both limits.

Asynchronous workers push when they are done: the cluster's rate of updates is that of the workers
together or that of the servers, joined by a p-norm. Synchronous ones wait for the slowest of them,
and the servers take all pushes of a step one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

# Logs of seconds a worker takes for an update (fixed, and a sample), and one server for one update;
# how much k servers shorten that, as k^-shard; log of the p-norm; log of how much slower the slowest
# of many workers is; how the updates that a target needs grow with workers, as K^stale.
PARAMETERS = ("worker", "sample", "server", "shard", "norm", "straggle", "stale")
WORKER, SAMPLE, SERVER, SHARD, NORM, STRAGGLE, STALE = range(len(PARAMETERS))


@dataclass(frozen=True)
class Updates:
    """What n jobs with parameter servers are made of, each (n,).

    Attributes:
        micro_batch: samples of a worker's update.
        devices: workers; servers: parameter servers.
        waits: 1 where workers wait for one another (synchronous).
        log_count: log of how many times a worker's share of all updates comes, 0 for one step.
        many: 1 where many updates are timed (an epoch, a run), which workers share.
    """

    micro_batch: FloatArray
    devices: FloatArray
    servers: FloatArray
    waits: FloatArray
    log_count: FloatArray
    many: FloatArray

    def __len__(self) -> int:
        return len(self.devices)

    def columns(self) -> tuple[FloatArray, ...]:
        """Return the columns in the order of the fields."""
        return (self.micro_batch, self.devices, self.servers, self.waits, self.log_count, self.many)

    def take(self, index: NDArray[np.int64]) -> Updates:
        """Return the jobs at the given positions."""
        return Updates(*(column[index] for column in self.columns()))

    @staticmethod
    def joined(parts: Sequence[Updates]) -> Updates:
        """Return the jobs of all parts, in order."""
        return Updates(*map(np.concatenate, zip(*(p.columns() for p in parts), strict=True)))


def log_seconds(theta: FloatArray, jobs: Updates) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log seconds of n jobs, their slopes by parameter, and the workers' share of them.

    Args:
        theta: `PARAMETERS`, (n, 7).
        jobs: n of them.

    Returns:
        (n,), (n, 7) and (n,).
    """
    t = theta.T
    log_k = np.log(jobs.devices)
    fixed, samples = np.exp(t[WORKER]), np.exp(t[SAMPLE]) * jobs.micro_batch
    worker, norm = np.log(fixed + samples), np.exp(t[NORM])
    server = t[SERVER] - t[SHARD] * np.log(jobs.servers)
    # Waiting: the expected maximum of K normal times lies about sqrt(2 ln K) deviations out.
    out = np.sqrt(2.0 * log_k)
    slow = np.exp(t[STRAGGLE]) * out
    waits = jobs.waits > 0
    one = np.where(waits, worker + np.log1p(slow), worker - log_k)
    other = np.where(waits, server + log_k, server)
    power = np.where(waits, 1.0, norm)
    together = np.logaddexp(power * one, power * other) / power
    share = np.exp(power * (one - together))
    slopes = np.zeros((len(jobs), len(PARAMETERS)))
    slopes[:, WORKER] = share * fixed / (fixed + samples)
    slopes[:, SAMPLE] = share - slopes[:, WORKER]
    slopes[:, SERVER] = 1.0 - share
    slopes[:, SHARD] = -slopes[:, SERVER] * np.log(jobs.servers)
    mixed = share * one + (1.0 - share) * other - together
    slopes[:, NORM] = np.where(waits, 0.0, mixed)
    slopes[:, STRAGGLE] = np.where(waits, share * slow / (1.0 + slow), 0.0)
    slopes[:, STALE] = jobs.many * log_k
    # Workers share the updates of an epoch; an asynchronous one is counted by itself already.
    shared = jobs.log_count + jobs.many * (t[STALE] - waits) * log_k
    return together + shared, slopes, share
