"""PsSaturation: training with parameter servers, whose rate workers can exceed.

More workers help until the servers are saturated; from few workers that point is barely known, and
the band is wide beyond them. After Li et al., Speeding up Deep Learning with Transient Servers (CM-DARE,
ICAC 2019), whose measured rates saturate so; the p-norm is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC, PS_SYNC
from forerun.domain.quantiles import Z95
from forerun.predictors.laws.fitting import (
    ColumnRows,
    Effects,
    LogTerm,
    constant,
    either,
    fitted_kinds,
    parameter,
    total,
)
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    banded,
    doublings,
    interval,
    log_variance,
    percent,
    reach_of,
    stacked,
)
from forerun.predictors.laws.law_rows import GROUP, SETTINGS, LawRows, step_size

# Logs of seconds a worker takes for an update (fixed, and a sample), and one server for one update;
# how much k servers shorten that, as k^-shard; log of the p-norm; log of how much slower the slowest
# of many workers is; how the updates that a target needs grow with workers, as K^stale.
PARAMETERS = ("worker", "sample", "server", "shard", "norm", "straggle", "stale")
WORKER, SAMPLE, SERVER, SHARD, NORM, STRAGGLE, STALE = range(len(PARAMETERS))
TERMS = ("workers", "servers")
# Priors of `PARAMETERS`. Workers and servers are centred on the runs' own times: half of a worker's
# update by samples, a server that takes 16 workers. Servers share evenly; the p-norm is about 4;
# stragglers cost 5 %; many workers need more updates for one target.
SERVED_WORKERS = 16.0
PRIOR_MEAN = {SHARD: 1.0, NORM: float(np.log(4.0)), STRAGGLE: float(np.log(0.05)), STALE: 0.3}
PRIOR_SIGMA = np.array([2.0, 2.0, 1.5, 0.3, 0.3, 1.0, 0.5])
# By how much a parameter that kinds share differs among them nevertheless, as a log standard deviation.
POOL_SIGMA = 0.3
LEAST_SIGMA = 0.02
_INSTANCE = len(GROUP) + SETTINGS.index("instance_type")


@dataclass(frozen=True)
class Updates(ColumnRows):
    """n jobs with parameter servers, each column (n,).

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


def update_seconds(theta: FloatArray, jobs: Updates) -> tuple[LogTerm, FloatArray]:
    """Return the seconds of n jobs, and the workers' share of them, (n,).

    Asynchronous workers push when they are done: the rate of updates is that of the workers together
    or that of the servers, joined by a p-norm. Synchronous ones wait for the slowest of them, and the
    servers take all pushes of a step one after another. theta: `PARAMETERS`, (n, 7).
    """
    of = [parameter(theta, i) for i in range(len(PARAMETERS))]
    one, waits, log_k = constant(np.zeros(len(jobs))), jobs.waits > 0, np.log(jobs.devices)
    worker = total(of[WORKER], of[SAMPLE] + np.log(jobs.micro_batch))
    with np.errstate(divide="ignore"):
        # The expected maximum of K normal times lies about sqrt(2 ln K) deviations out.
        slowest = worker + total(one, of[STRAGGLE] + 0.5 * np.log(2.0 * log_k))
    workers = either(waits, slowest, worker - log_k)
    servers = of[SERVER] - of[SHARD].scaled(np.log(jobs.servers)) + jobs.waits * log_k
    norm = either(waits, one, of[NORM])
    together = total(workers, servers, norm)
    share = np.exp(np.exp(norm.log) * (workers.log - together.log))
    # Workers share the updates of an epoch; an asynchronous one is counted by itself already.
    shared = jobs.log_count - jobs.many * jobs.waits * log_k
    return together + of[STALE].scaled(jobs.many * log_k) + shared, share


def _start(jobs: Updates, log_seconds: FloatArray) -> FloatArray:
    """Return where the parameters of runs start, (7,)."""
    log_k = np.log(jobs.devices)
    alone = jobs.waits * (1.0 - jobs.many) * log_k  # a synchronous step is not shared
    few = jobs.devices == jobs.devices.min()
    update = float(np.median((log_seconds + log_k - alone - jobs.log_count)[few]))
    start = np.array([PRIOR_MEAN.get(i, 0.0) for i in range(len(PARAMETERS))])
    start[WORKER] = update - np.log(2.0)
    start[SAMPLE] = start[WORKER] - float(np.median(np.log(jobs.micro_batch)))
    start[SERVER] = update - np.log(SERVED_WORKERS)
    return start


@dataclass(frozen=True, kw_only=True)
class PsLaw(ParametricLaw):
    """The law of one kind of job: theta are `PARAMETERS`, times as logs."""

    parameters = PARAMETERS

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        text = {i: self.exponential(i) for i in (WORKER, SAMPLE, SERVER, NORM, STRAGGLE)}
        text |= {i: self.power(i) for i in (SHARD, STALE)}
        worker = f"W = {text[WORKER]} s + {text[SAMPLE]} s a sample x micro_batch"
        least, most = self.bounds["micro_batch"]
        if least == most:
            # A worker's update of the one measured micro-batch.
            times = np.exp(self.theta[[WORKER, SAMPLE]]) * (1.0, least)
            value = float(times.sum())
            both = self.covariance[np.ix_([WORKER, SAMPLE], [WORKER, SAMPLE])]
            wide = np.exp(Z95 * float(np.sqrt(times @ both @ times)) / value)
            worker = f"W = {interval(value, value / wide, value * wide)} s"
        server = f"S = {text[SERVER]} s / servers^{text[SHARD]}"
        cases = []
        if self.bounds["waits"][1] > 0:
            cases.append(
                f"W (1 + {text[STRAGGLE]} sqrt(2 log devices)) + devices x S where workers wait"
            )
        if self.bounds["waits"][0] == 0:
            cases.append(f"((W / devices)^p + S^p)^(1/p), p = {text[NORM]}, where they do not")
        lead = ""
        if quantity != "step":
            # What the law divides into updates: the samples, or one of them where none are stated.
            work = self.size or "1 (no dataset_size is stated)"
            share = (
                " / devices" if self.bounds["waits"][0] > 0 else " (/ devices where workers wait)"
            )
            share = share if self.bounds["waits"][1] > 0 else ""
            lead = f"{work} / micro_batch{share} x devices^{text[STALE]} x "
            cases = [f"({case})" for case in cases]
        return f"{lead}{' or '.join(cases)}, {worker}, {server}"

    def limit(self) -> str:
        """Return whether workers or servers limit at the most devices, and what doublings bring."""
        most, waits = self.machines[1], self.bounds["waits"][1]
        counts = np.array([most, 2 * most, 4 * most])
        one = np.ones(3)
        micro = float(np.sqrt(np.prod(self.bounds["micro_batch"])))
        jobs = Updates(
            micro * one, counts, self.bounds["servers"][1] * one, waits * one, 0 * one, 0 * one
        )
        whole, share = update_seconds(np.tile(self.theta, (3, 1)), jobs)
        # A synchronous step of twice the workers does twice the work.
        rate = np.exp(whole.log[0] - whole.log) * np.where(waits > 0, counts / counts[0], 1.0)
        what = "the workers limit" if share[0] > 0.5 else "the servers limit"
        sigma = float(np.sqrt(self.covariance[SERVER, SERVER]))
        known = "" if sigma < 0.4 else "; where servers saturate is not identified by these runs"
        return (
            f"{what} at {most:g} devices ({percent(1 - float(share[0]))} is servers); {counts[1]:g} "
            f"devices do {rate[1]:.2f} times and {counts[2]:g} do {rate[2]:.2f} times as many "
            f"updates a second{known}"
        )


@dataclass(frozen=True)
class PsSaturation(GroupedLaws[PsLaw]):
    """Asynchronous: ((W / K)^p + S^p)^(1/p) an update; synchronous: W (slowest of K) + K S a step.

    W = a + b micro_batch is a worker's update, S one server's share of it; a row that says no
    number of servers has one. An epoch is dataset_size / micro_batch updates, which synchronous
    workers make K at a time; a run to a target needs K^stale times as many, stale learned.
    """

    name = "ps-saturation"
    law = PsLaw
    terms = TERMS
    least_points = 3
    needed = (
        f"at least {least_points} runs with sync ps-async or ps-sync that differ in devices, "
        "parameter_servers or micro_batch, on two numbers of devices or more"
    )

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ."""
        return ("devices", "servers", "size" if self.quantity == "step" else "micro_batch")

    def size_of(self, rows: LawRows) -> str:
        """Return micro_batch for steps, where runs state it; what epochs or runs go through."""
        return step_size(rows, self.quantity)

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return devices, servers and waiting of n jobs, and the micro-batch of epochs and runs."""
        servers = (rows.sync == PS_SYNC) | (rows.sync == PS_ASYNC)
        waits = np.where(servers, (rows.sync == PS_SYNC).astype(np.float64), np.nan)
        columns = {
            "devices": np.where(rows.machines > 0, rows.machines, np.nan),
            "servers": np.where(np.isnan(rows.servers), 1.0, rows.servers),
            "waits": waits,
        }
        if self.quantity != "step":
            columns["micro_batch"] = rows.size("micro_batch")
        return columns

    def missing(self, column: str) -> str:
        """Return why a job is declined that does not state a column."""
        if column == "waits":
            return "the row does not state sync with parameter servers (ps-async or ps-sync)"
        return super().missing(column)

    def fitted(self, groups: Sequence[RunGroup]) -> list[PsLaw]:
        """Return the law of each group of runs, all fitted at once."""
        rows = [(self._updates(g.columns), np.log(g.seconds)) for g in groups]
        start = np.array([_start(*one) for one in rows])
        # How many more updates a target needs is a question of many updates alone.
        many = [float(jobs.many.any()) for jobs, _ in rows]
        own = np.tile(PRIOR_SIGMA, (len(groups), 1))
        own[:, STALE] *= many
        start[:, STALE] *= many
        kinds = [group.kind for group in groups]
        shared = []
        for at, names in (
            # Servers are the same whatever device the workers have.
            (SERVER, [(kind[0], *kind[2:]) for kind in kinds]),
            # How many more updates many workers need depends on the training, not on the machines.
            (STALE, [(kind[0], *kind[2:_INSTANCE], *kind[_INSTANCE + 1 :]) for kind in kinds]),
        ):
            for name in dict.fromkeys(names):
                alike = np.array([other == name for other in names]) & (own[:, at] > 0)
                if alike.sum() > 1:
                    start[alike, at] = start[alike, at].mean()
                    shared.append((alike, PRIOR_SIGMA * (np.arange(len(PARAMETERS)) == at)))
                    own[alike, at] = POOL_SIGMA
        found, errors = fitted_kinds(
            lambda theta, jobs: update_seconds(theta, jobs)[0], rows, start, Effects.of(own, shared)
        )
        note = "the search did not converge; the best parameters found are kept"
        laws = []
        for i, (group, (jobs, _)) in enumerate(zip(groups, rows, strict=True)):
            micro = jobs.micro_batch
            laws.append(PsLaw(
                theta=found.theta[i], covariance=found.uncertainty(i),
                reach=reach_of(errors[i], min(4, len(jobs) - 1), LEAST_SIGMA),
                bounds={
                    **group.bounds("devices", "servers", "waits"),
                    "micro_batch": (float(micro.min()), float(micro.max())),
                },
                size=group.size, runs=len(jobs), notes=() if found.converged else (note,),
            ))  # fmt: skip
        return laws

    def _updates(self, columns: Columns) -> Updates:
        """Return what n jobs are made of."""
        one = np.ones_like(columns["devices"])
        if self.quantity == "step":
            micro, count, many = columns["size"], 0 * one, 0 * one
        else:
            micro, many = columns["micro_batch"], one
            count = np.log(columns["size"] / micro)
        return Updates(micro, columns["devices"], columns["servers"], columns["waits"], count, many)

    def evaluate(self, laws: list[PsLaw], index: IntArray, columns: Columns) -> LawForecasts:
        """Return seconds, the two terms and doublings of n jobs."""
        jobs = self._updates(columns)
        whole, share = update_seconds(stacked(laws, "theta", index), jobs)
        waits = np.array([law.bounds["waits"] for law in laws])[index]
        # Runs of the other kind of synchronisation share the times of workers and servers, no more.
        beyond = ((jobs.waits < waits[:, 0]) | (jobs.waits > waits[:, 1])).astype(np.float64)
        for name in ("devices", "micro_batch", "servers"):
            beyond = beyond + doublings(laws, index, name, getattr(jobs, name))
        middle = np.exp(whole.log)
        parts = np.stack([middle * share, middle * (1.0 - share)], axis=1)
        variance = log_variance(laws, index, whole.matrix(len(PARAMETERS)))
        return LawForecasts(banded(middle, stacked(laws, "reach", index), variance), parts, beyond)
