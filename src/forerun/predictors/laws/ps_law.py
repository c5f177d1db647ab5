"""PsLaw: worker and server times of one kind of job with parameter servers, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import Z95
from forerun.predictors.laws.group_words import article, interval, percent
from forerun.predictors.laws.grouping import Answers, banded, doublings, reach_of
from forerun.predictors.laws.ps_fit import PsFit
from forerun.predictors.laws.ps_step import (
    NORM,
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

TERMS = ("workers", "servers")
LEAST_SIGMA = 0.02


@dataclass(frozen=True)
class PsLaw:
    """The law of one kind of job.

    Attributes:
        theta: `ps_step.PARAMETERS`, times as logs, (7,).
        covariance: of theta, (7, 7).
        intervals: 5 % and 95 % of each by a bootstrap, (7, 2).
        reach: how far below and above the 5 % and 95 % residual lies, as logs.
        machines, micro_batches, servers: least and most that a run had.
        waits: least and most of whether workers wait, 0 or 1.
        size: micro_batch, or the dataset's size; "" where none is stated.
        runs: how many taught it.
        notes: what was noticed while fitting.
    """

    theta: FloatArray
    covariance: FloatArray
    intervals: FloatArray
    reach: tuple[float, float]
    machines: tuple[float, float]
    micro_batches: tuple[float, float]
    servers: tuple[float, float]
    waits: tuple[float, float]
    size: str
    runs: int
    notes: tuple[str, ...] = ()

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        logs = np.column_stack([self.theta, self.intervals])
        plain = np.exp(logs)
        said = {i: interval(*plain[i]) for i in (WORKER, SAMPLE, SERVER, NORM, STRAGGLE)}
        said |= {i: interval(*logs[i]) for i in (SHARD, STALE)}
        worker = f"W = {said[WORKER]} s + {said[SAMPLE]} s a sample x micro_batch"
        if self.micro_batches[0] == self.micro_batches[1]:
            worker = f"W = {self._update()} s"
        server = f"S = {said[SERVER]} s / servers^{said[SHARD]}"
        texts = []
        if self.waits[1] > 0:
            texts.append(
                f"W (1 + {said[STRAGGLE]} sqrt(2 log devices)) + devices x S where workers wait"
            )
        if self.waits[0] == 0:
            texts.append(f"((W / devices)^p + S^p)^(1/p), p = {said[NORM]}, where they do not")
        lead = f"seconds of {article(quantity)} = "
        if quantity != "step":
            # What the law divides into updates: the samples, or one of them where none are stated.
            work = self.size or "1 (no dataset_size is stated)"
            share = " / devices" if self.waits[0] > 0 else " (/ devices where workers wait)"
            share = share if self.waits[1] > 0 else ""
            lead += f"{work} / micro_batch{share} x devices^{said[STALE]} x "
            texts = [f"({text})" for text in texts]
        return f"{lead}{' or '.join(texts)}, {worker}, {server}"

    def _update(self) -> str:
        """Return a worker's update of the one measured micro-batch, with its interval."""
        times = np.exp(self.theta[[WORKER, SAMPLE]]) * (1.0, self.micro_batches[0])
        shares = times / times.sum()
        spread = self.covariance[np.ix_([WORKER, SAMPLE], [WORKER, SAMPLE])]
        reach = Z95 * float(np.sqrt(shares @ spread @ shares))
        value = float(times.sum())
        return interval(value, value * np.exp(-reach), value * np.exp(reach))

    def limit(self) -> str:
        """Return whether workers or servers limit at the most devices, and what doublings bring."""
        most = self.machines[1]
        counts = np.array([most, 2 * most, 4 * most])
        one = np.ones(3)
        micro = float(np.sqrt(self.micro_batches[0] * self.micro_batches[1]))
        jobs = Updates(
            micro * one, counts, self.servers[1] * one, self.waits[1] * one, 0 * one, 0 * one
        )
        logs, _, share = log_seconds(np.tile(self.theta, (3, 1)), jobs)
        # A synchronous step of twice the workers does twice the work.
        rate = np.exp(logs[0] - logs) * np.where(self.waits[1] > 0, counts / counts[0], 1.0)
        what = "the workers limit" if share[0] > 0.5 else "the servers limit"
        sigma = float(np.sqrt(self.covariance[SERVER, SERVER]))
        known = "" if sigma < 0.4 else "; where servers saturate is not identified by these runs"
        return (
            f"{what} at {most:g} devices ({percent(1 - float(share[0]))} is servers); {counts[1]:g} "
            f"devices do {rate[1]:.2f} times and {counts[2]:g} do {rate[2]:.2f} times as many "
            f"updates a second{known}"
        )


def law_of_fit(found: PsFit, jobs: Updates, size: str) -> PsLaw:
    """Return the law of one kind from its fit."""
    low, high = np.quantile(found.theta + found.draws, (0.05, 0.95), axis=0)
    spent = min(4, len(jobs) - 1)
    note = "the search did not come to rest; the best parameters found are kept"
    bounds = {
        name: (float(values.min()), float(values.max()))
        for name, values in (
            ("machines", jobs.devices), ("micro_batches", jobs.micro_batch),
            ("servers", jobs.servers), ("waits", jobs.waits),
        )
    }  # fmt: skip
    return PsLaw(
        theta=found.theta,
        covariance=found.draws.T @ found.draws / len(found.draws),
        intervals=np.stack([low, high], axis=1),
        reach=reach_of(found.log_errors, spent, LEAST_SIGMA),
        size=size,
        runs=len(jobs),
        notes=() if found.converged else (note,),
        **bounds,
    )


def answers(laws: list[PsLaw], index: IntArray, jobs: Updates) -> Answers:
    """Return what laws say of n jobs.

    Args:
        laws: those that answer.
        index: which of them each job is answered by, (n,).
        jobs: n of them.
    """
    theta = np.stack([law.theta for law in laws])[index]
    logs, slopes, share = log_seconds(theta, jobs)
    spread = np.stack([law.covariance for law in laws])
    variance = np.einsum("ni,nij,nj->n", slopes, spread[index], slopes)
    beyond = np.zeros(len(jobs))
    for name, values in (
        ("machines", jobs.devices), ("micro_batches", jobs.micro_batch), ("servers", jobs.servers),
    ):  # fmt: skip
        bounds = np.array([getattr(law, name) for law in laws])
        beyond += doublings(bounds, index, values)
    waits = np.array([law.waits for law in laws])[index]
    # Runs of the other kind of synchronisation share the times of workers and servers, no more.
    beyond += (jobs.waits < waits[:, 0]) | (jobs.waits > waits[:, 1])
    middle = np.exp(logs)
    reach = np.array([law.reach for law in laws])[index]
    parts = np.stack([middle * share, middle * (1.0 - share)], axis=1)
    return Answers(banded(middle, reach, variance), parts, beyond)
