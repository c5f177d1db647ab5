"""PsSaturation: training with parameter servers, whose rate workers can exceed.

More workers help until the servers are saturated; from few workers that point is barely known, and
the band is wide beyond them. After Li et al., Speeding up Deep Learning with Transient Servers (CM-DARE,
ICAC 2019), whose measured rates saturate so; the p-norm is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC, PS_SYNC
from forerun.domain.quantiles import Z95
from forerun.predictors.laws.fitting import (
    ColumnRows,
    Minima,
    Segments,
    minima,
    one_step_bootstrap,
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
TAIL = 4.0  # degrees of freedom of Student's errors
# What repeats of a step and of a whole run differ by before any run shows it, as logs; as four runs.
STEP_NOISE, RUN_NOISE, LEAST_NOISE, NOISE_RUNS = 0.03, 0.15, 0.01, 4.0
# Searches begin as if all errors were large: heavy tails would take half of the runs for outliers.
SEARCH_NOISE = 0.5
LEAST_SIGMA = 0.02
_FIXED_SIGMA = 1e-9
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


def log_seconds(theta: FloatArray, jobs: Updates) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log seconds of n jobs (n,), their slopes by parameter (n, 7), and the workers' share (n,).

    Asynchronous workers push when they are done: the rate of updates is that of the workers together
    or that of the servers, joined by a p-norm. Synchronous ones wait for the slowest of them, and the
    servers take all pushes of a step one after another. theta: `PARAMETERS`, (n, 7).
    """
    t = theta.T
    log_k = np.log(jobs.devices)
    fixed, samples = np.exp(t[WORKER]), np.exp(t[SAMPLE]) * jobs.micro_batch
    worker, norm = np.log(fixed + samples), np.exp(t[NORM])
    server = t[SERVER] - t[SHARD] * np.log(jobs.servers)
    # Waiting: the expected maximum of K normal times lies about sqrt(2 ln K) deviations out.
    slow = np.exp(t[STRAGGLE]) * np.sqrt(2.0 * log_k)
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


@dataclass(frozen=True)
class PsCosts:
    """Minus the log posterior of p kinds.

    Attributes:
        jobs, logs: rows of all kinds, in their order, and their log seconds, (n,).
        segments: which rows are of which kind.
        noise: scale of each kind's errors, (p,).
        mean, sigma: of the priors, (p, 7).
    """

    jobs: Updates
    logs: FloatArray
    segments: Segments
    noise: FloatArray
    mean: FloatArray
    sigma: FloatArray

    def take(self, index: IntArray) -> Self:
        """Return the costs of some kinds."""
        segments, rows = self.segments.take(index)
        return type(self)(
            self.jobs.take(rows), self.logs[rows], segments, self.noise[index], self.mean[index],
            self.sigma[index],
        )  # fmt: skip

    def errors(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log of measured over fitted (n,), and slopes of the fitted (n, 7)."""
        fitted, slopes, _ = log_seconds(theta[self.segments.owner], self.jobs)
        return self.logs - fitted, slopes

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return costs (p,), slopes (p, 7) and curvatures (p, 7, 7)."""
        errors, slopes = self.errors(theta)
        sums, scale = self.segments.sums, TAIL * (self.noise**2)[self.segments.owner]
        cost = sums(0.5 * (TAIL + 1.0) * np.log1p(errors**2 / scale))
        weight = (TAIL + 1.0) / (scale + errors**2)
        slope = -sums((weight * errors)[:, None] * slopes)
        curvature = sums((weight[:, None] * slopes)[:, :, None] * slopes[:, None, :])
        away = (theta - self.mean) / self.sigma
        curvature += np.einsum("pk,kl->pkl", self.sigma**-2, np.eye(theta.shape[1]))
        return cost + 0.5 * (away**2).sum(axis=1), slope + away / self.sigma, curvature

    def minimum(self, start: FloatArray) -> Minima:
        """Return the most probable parameters near a start, (p, 7)."""
        reach = np.where(self.sigma > _FIXED_SIGMA, 12.0 * self.sigma, 0.0)
        return minima(self, start, self.mean - reach, self.mean + reach)


def fitted_kinds(
    kinds: Sequence[Updates], logs: Sequence[FloatArray], pools: Mapping[int, Sequence[str]]
) -> tuple[PsCosts, Minima]:
    """Return the costs of all kinds and their minima.

    Args:
        kinds: the runs of each.
        logs: log seconds of each kind's runs.
        pools: by parameter, a name for each kind: those of one name share it.
    """
    mean, sigma = _priors(kinds, logs)
    costs = PsCosts(
        Updates.joined(kinds), np.concatenate(logs), Segments(np.array([len(k) for k in kinds])),
        np.full(len(kinds), SEARCH_NOISE), mean, sigma,
    )  # fmt: skip
    usual = np.array([RUN_NOISE if kind.many.any() else STEP_NOISE for kind in kinds])
    found = costs.minimum(mean)
    for _ in range(2):
        costs = replace(costs, noise=_noise(costs, found.theta, usual))
        found = costs.minimum(found.theta)
    costs = _pooled(costs, found.theta, pools)
    return costs, costs.minimum(found.theta)


def _priors(kinds: Sequence[Updates], logs: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return the mean and sigma of the prior of each kind's parameters, (p, 7) and (p, 7)."""
    mean = np.zeros((len(kinds), len(PARAMETERS)))
    sigma = np.tile(PRIOR_SIGMA, (len(kinds), 1))
    for column, value in PRIOR_MEAN.items():
        mean[:, column] = value
    for i, (jobs, log) in enumerate(zip(kinds, logs, strict=True)):
        log_k = np.log(jobs.devices)
        alone = jobs.waits * (1.0 - jobs.many) * log_k  # a synchronous step is not shared
        few = jobs.devices == jobs.devices.min()
        update = float(np.median((log + log_k - alone - jobs.log_count)[few]))
        mean[i, WORKER] = update - np.log(2.0)
        mean[i, SAMPLE] = mean[i, WORKER] - float(np.median(np.log(jobs.micro_batch)))
        mean[i, SERVER] = update - np.log(SERVED_WORKERS)
        if not jobs.many.any():
            mean[i, STALE], sigma[i, STALE] = 0.0, _FIXED_SIGMA
    return mean, sigma


def _noise(costs: PsCosts, theta: FloatArray, usual: FloatArray) -> FloatArray:
    """Return the scale of each kind's errors, (p,), drawn to the usual where runs are few."""
    errors = np.split(np.abs(costs.errors(theta)[0]), costs.segments.first[1:])
    seen = np.array([1.4826 * float(np.median(one)) for one in errors])
    n = costs.segments.lengths
    pooled = np.sqrt((n * seen**2 + NOISE_RUNS * usual**2) / (n + NOISE_RUNS))
    return np.asarray(np.maximum(pooled, LEAST_NOISE))


def _pooled(costs: PsCosts, theta: FloatArray, pools: Mapping[int, Sequence[str]]) -> PsCosts:
    """Return costs whose priors of shared parameters are centred on the other kinds of the pool."""
    variances = np.einsum("pkk->pk", np.linalg.inv(costs(theta)[2]))
    mean, sigma = costs.mean.copy(), costs.sigma.copy()
    for column, of in pools.items():
        names, found = np.array(of), theta[:, column]
        weight = 1.0 / (variances[:, column] + POOL_SIGMA**2)
        weight = np.where(costs.sigma[:, column] > _FIXED_SIGMA, weight, 0.0)
        for i in np.flatnonzero(weight):
            others = (names == names[i]) & (np.arange(len(names)) != i)
            own = costs.sigma[i, column] ** -2
            total = own + weight[others].sum()
            mean[i, column] = (own * mean[i, column] + weight[others] @ found[others]) / total
            sigma[i, column] = np.sqrt(1.0 / total + (POOL_SIGMA**2 if others.any() else 0.0))
    return replace(costs, mean=mean, sigma=np.minimum(sigma, costs.sigma))


@dataclass(frozen=True, kw_only=True)
class PsLaw(ParametricLaw):
    """The law of one kind of job: theta are `PARAMETERS`, times as logs."""

    parameters = PARAMETERS

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        logs = np.column_stack([self.theta, self.intervals])
        plain = np.exp(logs)
        text = {i: interval(*plain[i]) for i in (WORKER, SAMPLE, SERVER, NORM, STRAGGLE)}
        text |= {i: interval(*logs[i]) for i in (SHARD, STALE)}
        worker = f"W = {text[WORKER]} s + {text[SAMPLE]} s a sample x micro_batch"
        least, most = self.bounds["micro_batch"]
        if least == most:
            # A worker's update of the one measured micro-batch.
            times = np.exp(self.theta[[WORKER, SAMPLE]]) * (1.0, least)
            value = float(times.sum())
            both = self.covariance[np.ix_([WORKER, SAMPLE], [WORKER, SAMPLE])]
            reach = Z95 * float(np.sqrt(times @ both @ times)) / value
            worker = f"W = {interval(value, value * np.exp(-reach), value * np.exp(reach))} s"
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
        logs, _, share = log_seconds(np.tile(self.theta, (3, 1)), jobs)
        # A synchronous step of twice the workers does twice the work.
        rate = np.exp(logs[0] - logs) * np.where(waits > 0, counts / counts[0], 1.0)
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
            return "the row says no sync with parameter servers (ps-async or ps-sync)"
        return super().missing(column)

    def fitted(self, groups: Sequence[RunGroup]) -> list[PsLaw]:
        """Return the law of each group of runs, all fitted at once."""
        jobs = [self._updates(group.columns) for group in groups]
        kinds = [group.kind for group in groups]
        pools = {
            # Servers are the same whatever device the workers have.
            SERVER: [" ".join((kind[0], *kind[2:])) for kind in kinds],
            # How many more updates many workers need depends on the training, not on the machines.
            STALE: [
                " ".join((kind[0], *kind[2:_INSTANCE], *kind[_INSTANCE + 1 :])) for kind in kinds
            ],
        }
        costs, found = fitted_kinds(jobs, [np.log(group.seconds) for group in groups], pools)
        errors, slopes = costs.errors(found.theta)
        note = "the search did not converge; the best parameters found are kept"
        laws = []
        for i, (group, job) in enumerate(zip(groups, jobs, strict=True)):
            rows = costs.segments.take(np.array([i]))[1]
            noise = float(costs.noise[i])
            draws = one_step_bootstrap(slopes[rows], errors[rows], costs.sigma[i], noise)
            micro = job.micro_batch
            laws.append(PsLaw(
                theta=found.theta[i], covariance=draws.T @ draws / len(draws),
                intervals=np.quantile(found.theta[i] + draws, (0.05, 0.95), axis=0).T,
                reach=reach_of(errors[rows], min(4, len(job) - 1), LEAST_SIGMA),
                bounds={
                    **group.bounds("devices", "servers", "waits"),
                    "micro_batch": (float(micro.min()), float(micro.max())),
                },
                size=group.size, runs=len(job), notes=() if found.converged[i] else (note,),
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
        logs, slopes, share = log_seconds(stacked(laws, "theta", index), jobs)
        waits = np.array([law.bounds["waits"] for law in laws])[index]
        # Runs of the other kind of synchronisation share the times of workers and servers, no more.
        beyond = ((jobs.waits < waits[:, 0]) | (jobs.waits > waits[:, 1])).astype(np.float64)
        for name in ("devices", "micro_batch", "servers"):
            beyond = beyond + doublings(laws, index, name, getattr(jobs, name))
        middle = np.exp(logs)
        parts = np.stack([middle * share, middle * (1.0 - share)], axis=1)
        variance = log_variance(laws, index, slopes)
        return LawForecasts(banded(middle, stacked(laws, "reach", index), variance), parts, beyond)
