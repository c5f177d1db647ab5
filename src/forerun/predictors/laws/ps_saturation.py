"""PsSaturation: training with parameter servers, whose rate workers can exceed.

More workers help until the servers take no more; from few workers the point where they stop is
barely known, and the band is wide beyond them. After Li et al., Speeding up Deep Learning with
Transient Servers (CM-DARE, ICAC 2019), whose measured rates saturate so; the p-norm is our own.

PsLaw: worker and server times of one kind of job with parameter servers, and what they say.

The fit of parameter-server laws: most probable parameters, servers pooled over kinds of device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC, PS_SYNC
from forerun.domain.quantiles import Z95
from forerun.predictors.laws.group_words import article, interval, percent
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import (
    Answers,
    Columns,
    Group,
    TooFewError,
    banded,
    doublings,
    laws_of,
    reach_of,
)
from forerun.predictors.laws.law_rows import GROUP, SETTINGS, LawRows, chosen_size
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


LEAST_POINTS = 3
INSTANCE = len(GROUP) + SETTINGS.index("instance_type")


@dataclass(frozen=True)
class PsSaturation(GroupedLaws[PsLaw]):
    """Asynchronous: ((W / K)^p + S^p)^(1/p) an update; synchronous: W (slowest of K) + K S a step.

    W = a + b micro_batch is a worker's update, S one server's share of it; a row that says no
    number of servers has one. An epoch is dataset_size / micro_batch updates, which synchronous
    workers make K at a time; a run to a target needs K^stale times as many, stale learned.
    """

    name = "ps-saturation"
    terms = TERMS
    needed = (
        f"at least {LEAST_POINTS} runs with sync ps-async or ps-sync that differ in devices, "
        "parameter_servers or micro_batch, on two numbers of devices or more"
    )

    def size_of(self, rows: LawRows) -> str:
        """Return micro_batch for steps, where runs state it; what epochs or runs go through."""
        if self.quantity != "step":
            return chosen_size(rows, self.quantity)
        stated = np.isfinite(rows.micro_batch)
        return "micro_batch" if 2 * np.count_nonzero(stated) >= len(stated) else ""

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

    def unsaid(self, column: str) -> str:
        """Return why a job is declined that does not say a column."""
        if column == "waits":
            return "the row says no sync with parameter servers (ps-async or ps-sync)"
        return super().unsaid(column)

    def group_laws(self, groups: Sequence[Group]) -> list[PsLaw | TooFewError]:
        """Return the law of each kind of runs, all fitted at once, or why it has none."""
        micro = "size" if self.quantity == "step" else "micro_batch"
        return laws_of(groups, ("devices", "servers", micro), LEAST_POINTS, self._fitted_to)

    def _fitted_to(self, groups: Sequence[Group]) -> list[PsLaw]:
        jobs = [self._updates(group.columns) for group in groups]
        kinds = [group.kind for group in groups]
        pools = {
            # Servers are the same whatever device the workers have.
            SERVER: [" ".join((kind[0], *kind[2:])) for kind in kinds],
            # How many more updates many workers need hangs on the training, not on the machines.
            STALE: [
                " ".join((kind[0], *kind[2:INSTANCE], *kind[INSTANCE + 1 :])) for kind in kinds
            ],
        }
        found = fitted(jobs, [np.log(group.seconds) for group in groups], pools)
        return [law_of_fit(f, j, g.size) for f, j, g in zip(found, jobs, groups, strict=True)]

    def _updates(self, columns: Columns) -> Updates:
        """Return what n jobs are made of."""
        one = np.ones_like(columns["devices"])
        if self.quantity == "step":
            micro, count, many = columns["size"], 0 * one, 0 * one
        else:
            micro, many = columns["micro_batch"], one
            count = np.log(columns["size"] / micro)
        return Updates(micro, columns["devices"], columns["servers"], columns["waits"], count, many)

    def answers(self, laws: list[PsLaw], index: IntArray, columns: Columns) -> Answers:
        """Return seconds, the two terms and doublings of n jobs."""
        return answers(laws, index, self._updates(columns))

    def law_of(self, entry: Mapping[str, Any]) -> PsLaw:
        """Return a law from its saved fields."""
        shapes = {"theta": (7,), "covariance": (7, 7), "intervals": (7, 2)}
        arrays = {name: np.array(entry[name], dtype=float) for name in shapes}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("a law has seven parameters")
        names = ("reach", "machines", "micro_batches", "servers", "waits")
        pairs = {name: tuple(map(float, entry[name])) for name in names}
        return PsLaw(**{**entry, **pairs, **arrays, "notes": tuple(entry["notes"])})
