"""PsSaturation: training with parameter servers, whose rate workers can exceed.

After Li et al., Speeding up Deep Learning with Transient Servers (CM-DARE, ICAC 2019); the p-norm is ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.arrays import ColumnRows, FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC, PS_SYNC
from forerun.predictors.laws.fitting import (
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
    reach_of,
)
from forerun.predictors.laws.law_rows import GROUP, SETTINGS, Kind, LawRows
from forerun.predictors.laws.roofline import PRIORS, log_rates

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
# From this log standard deviation on the time of a server is a guess.
UNIDENTIFIED = 0.4
# Of a worker's update on a device that its workload never ran on: a part goes with products, a part with
# memory traffic, as those of an unknown workload do; and the log standard deviation of that.
PRODUCTS, MEMORY, CONVOLVED = (
    np.exp(PRIORS["products"][0]), np.exp(PRIORS["memory"][0]), PRIORS["convolved"][0],
)  # fmt: skip
ELSEWHERE_SIGMA = 0.3
# By how much workloads differ in that: what is left of it once some ran on both devices.
WORKLOAD_SIGMA = 0.12
_INSTANCE = len(GROUP) + SETTINGS.index("instance_type")


def _anywhere(kind: Kind) -> Kind:
    """Return a kind of job but for its device and machine."""
    return tuple(text for i, text in enumerate(kind) if i not in (1, _INSTANCE))


def _log_slower(columns: Columns, run: Mapping[str, float]) -> FloatArray:
    """Return by how much a worker's update takes longer on the devices of n jobs than on a run's, as a log, (n,)."""
    fixed = 1.0 - PRODUCTS - MEMORY
    found = np.log(
        PRODUCTS * np.exp(run["products"] - columns["products"])
        + MEMORY * np.exp(run["memory"] - columns["memory"])
        + fixed
    )
    known = (columns["products"] > 0) & (run["products"] > 0)
    same = (columns["products"] == run["products"]) & (columns["memory"] == run["memory"])
    return np.where(known & ~same, found, 0.0)


def _worker(law: PsLaw, jobs: Updates) -> float:
    """Return the log seconds of a worker's update by a law, of one job."""
    sampled = law.theta[SAMPLE] + np.log(jobs.micro_batch[0])
    return float(np.logaddexp(law.theta[WORKER], sampled))


@dataclass(frozen=True)
class Updates(ColumnRows):
    """n jobs with parameter servers, each column (n,); waits: 1 where workers do.

    log_count: log of timed updates. many: 1 for an epoch or a run, whose updates workers share.
    """

    micro_batch: FloatArray
    devices: FloatArray
    servers: FloatArray
    waits: FloatArray
    log_count: FloatArray
    many: FloatArray


def update_seconds(theta: FloatArray, jobs: Updates) -> tuple[LogTerm, FloatArray]:
    """Return the seconds of n jobs, and the workers' share of them, (n,); theta: `PARAMETERS`, (n, 7).

    Asynchronous updates come at the rate of the workers together or of the servers, joined by a p-norm.
    Synchronous workers wait for the slowest, and the servers take all pushes one after another.
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
    equation = (
        "W (1 + {straggle} sqrt(2 log devices)) + devices x S where workers wait, else "
        "((W / devices)^p + S^p)^(1/p), p = {norm}, W = {worker} s + {sample} s a sample x micro_batch, "
        "S = {server} s / servers^{shard}"
    )

    def printed(self, theta: FloatArray) -> FloatArray:
        """Return seconds, and powers as they are."""
        powers = np.isin(np.arange(len(theta)), (SHARD, STALE))
        return np.where(powers, theta, np.exp(theta))

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        text = super().formula(quantity)
        if quantity == "step":
            return text
        work = self.size or "1 (no dataset_size is stated)"
        share = " (/ devices where workers wait)" * (self.bounds["waits"][1] > 0)
        return f"{work} / micro_batch{share} x devices^{self.theta[STALE]:.3g} x ({text})"


@dataclass(frozen=True)
class PsSaturation(GroupedLaws[PsLaw]):
    """Asynchronous: ((W / K)^p + S^p)^(1/p) an update; synchronous: W (slowest of K) + K S a step.

    W = a + b micro_batch is a worker's update, S a server's share of it (one server where none is stated). An
    epoch is dataset_size / micro_batch updates; a run to a target needs K^stale times as many.
    """

    name = "ps-saturation"
    law = PsLaw
    terms = TERMS
    least_points = 3
    reads_micro_batch = True
    unstated = ("waits", "sync with parameter servers (ps-async or ps-sync)")
    needed = (
        f"at least {least_points} runs with sync ps-async or ps-sync that differ in devices, "
        "parameter_servers or micro_batch, on two numbers of devices or more"
    )

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ."""
        return ("devices", "servers", self.micro_batch)

    def works_alone(self, law: PsLaw) -> bool:
        """Return whether more devices do more: workers that wait for one another take a step together."""
        return self.quantity == "step" and law.bounds["waits"][1] > 0

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return servers and waiting of n jobs, and logs of FLOP/s and bytes/s of devices; 0 where not known."""
        servers = (rows.sync == PS_SYNC) | (rows.sync == PS_ASYNC)
        waits = np.where(servers, (rows.sync == PS_SYNC).astype(np.float64), np.nan)
        rates = [log_rates(cluster.device, "fp32") for cluster in rows.jobs.clusters]
        table = np.array([*rates, np.zeros(4)])[rows.jobs.cluster_index]
        products = (1.0 - CONVOLVED) * table[:, 0] + CONVOLVED * table[:, 1]
        return {
            "servers": np.where(np.isnan(rows.servers), 1.0, rows.servers), "waits": waits,
            "products": products, "memory": table[:, 2],
        }  # fmt: skip

    def able(self, groups: Sequence[RunGroup], points: Sequence[int]) -> list[bool]:
        """Return which groups can be fitted: beside one with enough points, also those with fewer."""
        alone = super().able(groups, points)
        return [True] * len(alone) if any(alone) else alone

    def _chosen(self, rows: LawRows) -> IntArray:
        """Return the law of each job: of its workload on another device where there is none, (n,)."""
        kinds, index = rows.kinds
        elsewhere: dict[Kind, int] = {}
        for i in sorted(range(len(self.laws)), key=lambda i: -[*self.laws.values()][i].runs):
            elsewhere.setdefault(_anywhere([*self.laws][i]), i)
        other = [
            elsewhere.get(_anywhere(kind), elsewhere.get(_anywhere(kind[: len(GROUP)]), -1))
            for kind in kinds
        ]
        chosen, known = super()._chosen(rows), rows.jobs.cluster_index >= 0
        moved = np.array([*other, -1], dtype=np.int64)[index]
        return np.where((chosen < 0) & known, moved, chosen)

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
        fits = fitted_kinds(
            lambda theta, jobs: update_seconds(theta, jobs)[0], rows, start, Effects.of(own, shared)
        )
        note = "where servers saturate is not identified by these runs"
        spans = [group.bounds["devices"] for group in groups]
        span = (min(low for low, _ in spans), max(high for _, high in spans))
        return [
            PsLaw(
                theta=fit.theta, covariance=fit.covariance,
                # How updates scale, others say where a kind's runs are on one number of devices.
                bounds={"devices": span} if low == high else {},
                reach=reach_of(fit.errors, min(4, len(fit.errors) - 1), LEAST_SIGMA),
                notes=(*fit.notes, *((note,) if fit.covariance[SERVER, SERVER] > UNIDENTIFIED**2 else ())),
            )
            for fit, (low, high) in zip(fits, spans, strict=True)
        ]  # fmt: skip

    def _updates(self, columns: Columns) -> Updates:
        many = np.full(len(columns["devices"]), float(self.quantity != "step"))
        micro = columns[self.micro_batch]
        count = np.where(many > 0, np.log(columns["size"] / micro), 0.0)
        return Updates(micro, columns["devices"], columns["servers"], columns["waits"], count, many)

    def evaluate(self, law: PsLaw, columns: Columns) -> LawForecasts:
        """Return seconds, the two terms and doublings of n jobs."""
        jobs = self._updates(columns)
        theta = np.tile(law.theta, (len(jobs), 1))
        slower, unsure = _log_slower(columns, law.largest), np.zeros(len(columns["devices"]))
        for to in np.unique(columns["products"][slower != 0]).tolist():
            here = (columns["products"] == to) & (slower != 0)
            known = self._both.get((law.largest["products"], to), [])
            # The mean of what workloads show, drawn to what the rates say.
            held = (WORKLOAD_SIGMA / ELSEWHERE_SIGMA) ** 2
            left = held / (len(known) + held)
            slower[here] += sum(known) / (len(known) + held)
            unsure[here] = np.hypot(ELSEWHERE_SIGMA * np.sqrt(left), WORKLOAD_SIGMA)
        theta[:, [WORKER, SAMPLE]] += slower[:, None]
        whole, share = update_seconds(theta, jobs)
        # Runs of the other kind of synchronisation share the times of workers and servers, no more.
        low, high = law.bounds["waits"]
        beyond = ((jobs.waits < low) | (jobs.waits > high)).astype(np.float64)
        sizes = {self.micro_batch: jobs.micro_batch, "servers": jobs.servers}
        beyond += law.doublings(devices=jobs.devices, **sizes)
        parts = np.exp(whole.log)[:, None] * np.stack([share, 1.0 - share], axis=1)
        variance = law.variance(whole.matrix(len(PARAMETERS))) + (share * unsure) ** 2
        return law.forecasts(parts, variance, beyond + (unsure > 0))

    @cached_property
    def _both(self) -> Mapping[tuple[float, float], list[float]]:
        """Of workloads that ran on two devices, by these: how much slower than by the catalogue's rates, as logs."""
        found: dict[tuple[float, float], list[float]] = {}
        whole = [(kind[0], law) for kind, law in self.laws.items() if len(kind) == len(GROUP)]
        for (workload, one), (other, law) in itertools.permutations(whole, 2):
            to = {name: np.array([law.largest[name]]) for name in ("products", "memory")}
            by_rates = float(_log_slower(to, one.largest)[0])
            if workload == other and by_rates != 0:
                jobs = self._updates({n: np.array([v]) for n, v in one.largest.items()})
                took = _worker(law, jobs) - _worker(one, jobs)
                key = one.largest["products"], law.largest["products"]
                found.setdefault(key, []).append(took - by_rates)
        return found
