"""Parameter servers: what steps take whose gradients workers push to servers, and how stale updates are.

Equation 2.8 of Yan et al. 2015 (KDD; reconstructed) with both sides' links and the servers' own work.
Asynchronous workers are customers of a closed queueing network: mean value analysis (Reiser and
Lavenberg 1980), with Schweitzer's (1979) approximation for many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, taken
from forerun.domain.plan import PS_ASYNC, PS_STALE
from forerun.domain.quantiles import Z95, normal_quantile
from forerun.predictors.analytic.communication import p_norm
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import Rows, total
from forerun.predictors.analytic.measured import rested_seconds, rested_work, update_overhead
from forerun.predictors.analytic.memory import gradient_bytes, replica_groups

# Parts of a step that servers add to what a worker computes, beside the wait for the slowest.
SERVER_PARTS = ("worker link", "server link", "server compute")
# Customers up to which the recursion is exact; rounds of the approximation beyond.
EXACT, ROUNDS = 128, 100
_INDEX_BYTES = 8.0  # of each row of a table that is sent
_COPIES = 2.0  # passes over a message between a socket and a tensor
_ADDED_BYTES = 12.0  # moved where a number is added to another: two are read, one is written
_TABLE_KINDS = 16.0  # of operations in which a worker exchanges one table by rows
_MERGED_KINDS = 6.0  # more of a server that joins a table's rows and adds them
_UPDATE_KINDS = 3.0  # of a server's own: gradients are added, it steps, weights are copied
# Of how far workers drift apart before a bound makes them wait, over the bound (see `_in_step`).
_DRIFT = 1.5
# Of how much times vary, over the busiest station's: how much of the queues is left.
_QUEUES = 1.3


@dataclass(frozen=True)
class Interval:
    """What one worker's update takes where no other is there: columns (n,), seconds but for the counts.

    work: a worker's own for a step, at its share of a processor; compute, spread: what it takes after
    the wait for weights, and its standard deviation from step to step.
    latency: of the messages there and back. own: a transfer, one way, on the worker's link.
    link: on a server's, of one shard; local: on the same link for the workers beside that server.
    add, update: a server's work to add one gradient to another, and to update its shard.
    behind, ahead: compute that may hide a push, and a pull, where transfers go layer by layer.
    overlap: the share that goes so. spared: of a transfer, what a link lets through at once after a
    rest. power: of the norm that joins what hides. incast: share by which many transfers at once slow a
    server's link. stagger: share of the others' pulls beside which a worker is on its next step.
    sooner, rested: work after a pause is done sooner by that share of it, and at most by so much.
    variability: standard deviation of a server's times over their mean. packed: bytes of a push over those of a
    pull, where gradients are compressed. parts: of a model that workers hold one each, whose gradients are
    not added to one another's.
    """

    workers: FloatArray
    servers: FloatArray
    work: FloatArray
    compute: FloatArray
    spread: FloatArray
    latency: FloatArray
    own: FloatArray
    link: FloatArray
    local: FloatArray
    add: FloatArray
    update: FloatArray
    behind: FloatArray
    ahead: FloatArray
    overlap: FloatArray
    spared: FloatArray
    sooner: FloatArray
    rested: FloatArray
    power: float
    incast: float
    stagger: float
    variability: float
    packed: FloatArray | float = 1.0
    parts: FloatArray | float = 1.0

    def exposed(self, push: FloatArray, pull: FloatArray) -> FloatArray:
        """Return seconds of transfers that no compute hides, (n,)."""
        hidden = total(
            behind + sent - p_norm(behind, sent, self.power)
            for behind, sent in ((self.behind, push), (self.ahead, pull))
        )
        return np.asarray(push + pull - self.overlap * hidden)

    @property
    def late(self) -> FloatArray:
        """How far the slowest of the workers lies behind their mean, (n,)."""
        return np.asarray(self.spread * slowest_of(self.workers))

    def transfer(self, count: FloatArray | float) -> FloatArray:
        """Return seconds of `count` workers' transfers at once over rested links, (n,): of the slowest shard's."""
        late = self.variability * slowest_of(self.servers) * np.sqrt(np.maximum(count, 1.0))
        taken = np.maximum(self.own, self.link * (count + late))
        return np.asarray(np.maximum(taken - self.spared, 0.0))

    def after_rest(self, work: FloatArray) -> FloatArray:
        """Return seconds that work takes after a pause, (n,)."""
        return np.asarray(work - np.minimum(self.sooner * work, self.rested))

    @property
    def updated(self) -> FloatArray:
        """Seconds of the slowest shard's update, (n,)."""
        return np.asarray(self.update * (1.0 + self.variability * slowest_of(self.servers)))


def slowest_of(count: FloatArray) -> FloatArray:
    """Return the expected greatest of `count` standard normal numbers, (n,) (Blom 1958)."""
    distinct, place = np.unique(count, return_inverse=True)
    found = [normal_quantile((k - 0.375) / (k + 0.25)) if k > 1 else 0.0 for k in distinct.tolist()]
    return np.array(found)[place.reshape(-1)]


def synchronous(one: Interval) -> dict[str, FloatArray]:
    """Return what a step adds to compute in which all push, the servers update, and all pull, (n,) each."""
    others = one.workers - 1.0
    # Pulls end one after another, and who has its weights goes on while links of both directions are free.
    push = one.packed * one.transfer(one.workers + one.incast * others)
    pull = one.transfer(one.workers - one.stagger * others)
    serving = (one.workers - one.parts) * one.add + one.parts * one.updated
    sent, server = one.exposed(push, pull), one.after_rest(serving)
    by_worker = one.own >= one.workers * one.link
    # Whatever passes at once, no link and no processor carries more in the long run than its rate.
    linked, worked = np.maximum(one.own, one.workers * one.link), np.maximum(one.work, serving)
    more = np.maximum(np.maximum(linked, worked) - (one.compute + one.latency + sent + server), 0.0)
    return {
        "worker link": one.latency + np.where(by_worker, sent, 0.0),
        "server link": np.where(by_worker, 0.0, sent) + more * (linked >= worked),
        "server compute": server + more * (linked < worked), "straggler": one.late,
    }  # fmt: skip


def asynchronous(one: Interval) -> dict[str, FloatArray]:
    """Return what a worker's cycle adds to compute where none waits for another, by part, (n,) each.

    A worker computes, then passes a server's link, its processor, and its link again. An update visits
    all shards at once: they are one station of a shard's time, and the slowest's lateness is a delay.
    The more regular all times are, the more workers keep out of one another's way: of the queues,
    so much is left as times vary over that of the busiest station.
    """
    alone = one.transfer(1.0)
    sent = one.exposed(one.packed * alone, alone)
    late = one.after_rest(one.updated) - one.after_rest(one.update)
    rested = np.maximum(one.link - one.spared, 0.0)
    slower = np.where(one.workers > 1, 1.0 + one.incast, 1.0)
    full = (one.link + one.local) * slower
    link = np.maximum(full - one.spared, 0.0)
    outside = one.compute + one.latency + sent - (1.0 + one.packed) * rested + late
    stations = (one.packed * link, one.after_rest(one.update), link)
    _, rate = closed_network(one.workers, outside, stations, one.variability)
    busiest = np.maximum(full, one.update)
    # Whatever passes at once, no link and no processor carries more in the long run than its rate.
    bound = np.maximum(one.workers * busiest, np.maximum(one.own, one.work))
    least = np.maximum(outside + total(stations), bound)
    varies = np.sqrt(one.spread**2 + one.variability**2 * total(time**2 for time in stations))
    left = np.minimum(_QUEUES * varies / np.maximum(busiest, 1e-300), 1.0)
    cycle = least + left * np.maximum(one.workers / rate - least, 0.0)
    waited = cycle - (one.compute + one.latency + sent + one.after_rest(one.updated))
    by_worker, by_link = one.own >= one.link, full >= one.update
    return {
        "worker link": one.latency + np.where(by_worker, sent, 0.0),
        "server link": np.where(by_worker, 0.0, sent) + waited * by_link,
        "server compute": one.after_rest(one.updated) + waited * ~by_link,
        "straggler": np.zeros_like(sent),
    }


def closed_network(
    customers: FloatArray, delay: FloatArray, demands: Sequence[FloatArray], variability: float
) -> tuple[FloatArray, FloatArray]:
    """Return seconds at each of m stations, waits included, (m, n), and cycles a second, (n,).

    Exact where services are exponential (`variability` 1); others find half as much left of the one
    being served as it is regular (Reiser 1979). delay: seconds of a cycle outside the stations.
    """
    # Those with most customers first: they are followed longest.
    order = np.argsort(-customers, kind="stable")
    service, customers, delay = np.array(demands)[:, order], customers[order], delay[order]
    least, most = 0.5 * (1.0 - variability**2), np.maximum(service.max(axis=0), 1e-300)
    waiting, busy = np.zeros((2, *service.shape))
    seconds, rate = service.copy(), np.zeros(len(delay))

    def grown(
        count: FloatArray | float, waiting: FloatArray, busy: FloatArray, reached: FloatArray
    ) -> tuple[FloatArray, ...]:
        """Return (seconds, rate, waiting, busy) of the first n where a newcomer finds so many waiting and busy.

        No more customers pass less often than fewer, which approximations do not see to.
        """
        n = len(reached)
        seconds = service[:, :n] * (1.0 + waiting - least * busy)
        inside = np.maximum(seconds.sum(axis=0), 1e-300)
        rate = np.maximum(np.minimum(count / (delay[:n] + inside), 1.0 / most[:n]), reached)
        seconds = seconds * np.clip((count / rate - delay[:n]) / inside, 0.0, 1.0)
        return seconds, rate, rate * seconds, rate * service[:, :n]

    for count in range(1, int(min(customers.max(initial=1.0), EXACT)) + 1):
        n = int(np.searchsorted(-customers, -count, side="right"))
        found = grown(float(count), waiting[:, :n], busy[:, :n], rate[:n])
        seconds[:, :n], rate[:n], waiting[:, :n], busy[:, :n] = found
    if many := int(np.searchsorted(-customers, -EXACT)):
        customers, reached = customers[:many], rate[:many]
        others, waiting = (customers - 1.0) / customers, waiting[:, :many] * (customers / EXACT)
        busy = busy[:, :many]
        for _ in range(ROUNDS):
            found = grown(customers, others * waiting, others * busy, reached)
            waiting, busy = 0.5 * (waiting + found[2]), found[3]
        seconds[:, :many], rate[:many] = found[:2]
    place = np.argsort(order)
    return seconds[:, place], rate[place]


def _in_step(one: Interval, cycle: FloatArray, bound: FloatArray) -> FloatArray:
    """Return how much of a wait in lock-step a bound on staleness leaves, 1 to 0, (n,).

    Ho et al. 2013 (stale synchronous parallel). Workers drift apart by `late` a step, a random walk
    between the slowest and the bound: it meets the bound the less often the farther that is.
    """
    drift = one.late / np.maximum(cycle, 1e-300)
    with np.errstate(invalid="ignore"):
        share = drift / (drift + _DRIFT * bound)
    return np.where(bound > 0, share, 1.0)


def step_of(one: Interval, sync: NDArray[Any], bound: FloatArray) -> dict[str, FloatArray]:
    """Return what servers add to one step, by part, (n,) each; a step is as `domain.plan.Plan` says.

    That of ps-async is one worker's update: all parts of its cycle are divided by the workers.
    """
    joint = synchronous(one)
    apart, alone = joint, np.flatnonzero(np.isin(sync, (PS_ASYNC, PS_STALE)))
    if len(alone):
        apart = {name: seconds.copy() for name, seconds in joint.items()}
        for name, seconds in asynchronous(taken(one, alone)).items():
            apart[name][alone] = seconds
    share = np.where(sync == PS_ASYNC, 0.0, 1.0)
    if np.any(sync == PS_STALE):
        cycle = one.compute + total(apart.values())
        share = np.where(sync == PS_STALE, _in_step(one, cycle, bound), share)
    each = np.where(sync == PS_ASYNC, 1.0 / one.workers, 1.0)
    return {n: each * (share * joint[n] + (1.0 - share) * apart[n]) for n in joint}


def staleness_of(one: Interval, sync: NDArray[Any], bound: FloatArray) -> dict[str, FloatArray]:
    """Return mean, p05, p50 and p95 of the updates by others between a pull and its update, (n,) each.

    Among K alike, each other makes one update a cycle on average: K - 1. In a window that varies
    by c of itself others' updates vary by c, together and each. Waiting for a bound above 0, as in
    lock-step, the others come before in half of all cases. Log-normal, in whole steps. The parts of a model
    make one update.
    """
    apart = asynchronous(one)
    cycle = np.maximum(one.compute + total(apart.values()), 1e-300)
    workers = one.workers / one.parts
    others = workers - 1.0
    served = one.variability**2 * ((1.0 + one.packed**2) * one.link**2 + one.update**2)
    c = np.sqrt(one.spread**2 + served) / cycle
    tied = np.where(sync == PS_STALE, _in_step(one, cycle, bound), 0.0)
    mean = others * (1.0 - 0.5 * tied)
    variance = (1.0 - tied) * others * (workers * c**2 + c) + tied * (workers**2 - 1) / 12
    sigma = np.sqrt(np.log1p(variance / np.where(mean > 0, mean, 1.0) ** 2))
    most = np.where(sync == PS_STALE, others * (2.0 * bound + 1.0), np.inf)
    middle = mean * np.exp(-0.5 * sigma**2)
    found = {
        name: np.minimum(np.round(middle * np.exp(z * Z95 * sigma)), most)
        for name, z in (("p05", -1.0), ("p50", 0.0), ("p95", 1.0))
    }
    stale = ((sync == PS_ASYNC) | ((sync == PS_STALE) & (bound > 0))) & (others > 0)
    return {n: np.where(stale, v, 0.0) for n, v in {"mean": mean, **found}.items()}


def interval_of(rows: Rows, parts: Mapping[str, FloatArray], constants: Constants) -> Interval:
    """Return the interval of n jobs whose own work takes the parts of a step without servers, (n,) each."""
    plan, node, work, soft = rows.plan, rows.node, rows.work, rows.software
    workers, servers = np.maximum(plan["dp"], 1.0), np.maximum(plan["parameter_servers"], 1.0)
    beside = plan["servers_with_workers"] > 0
    away = (node["nodes"] > 1) | ~beside
    rate = np.where(away, node["inter_rate"], node["intra_rate"])
    whole = np.where(away, rate * node["node_devices"], rate)  # of a server's node
    # Shares of the model beside a worker, and of the workers beside a server.
    held = np.where(beside, np.ceil(servers / node["nodes"]) / servers, 1.0 / servers)
    near = np.where(beside & away, 1.0 / node["nodes"], 0.0)
    kept = np.where(beside & away & (servers >= node["nodes"]), held, 0.0)
    on_cpu = node["is_gpu"] == 0
    served = np.minimum(constants.server_bytes_per_second, np.where(
        on_cpu, node["memory_rate"], np.inf
    ))  # fmt: skip
    touched, size, packed = _touched(rows)
    # Whoever packs or unpacks reads it in one form and writes it in the other.
    unpacked = np.where(packed < 1, (1.0 + packed) * size, 0.0)
    copied = _COPIES * size * held / served
    add = _ADDED_BYTES * touched * held / served
    updated = touched * work["optimizer_bytes_per_param"] * work["trained_share"] / served
    # Each server gets a message, and one more where rows are looked up, which cost both sides' hosts.
    call, message, own = soft["host_seconds"], np.zeros(len(rows)), parts["optimizer"]
    sooner, rested, fixed, cold, served_cold = (message,) * 5
    # Rows of a table are looked up, sorted and summed by operations that a dense gradient does not need.
    sorting, merging = _TABLE_KINDS * work["tables"], _MERGED_KINDS * work["tables"]
    if rows.has_probed:
        known = node["measured"] > 0
        call = np.where(known, node["forward_call_seconds"] * node["slowdown"], call)
        message = np.where(known, node["message_seconds"] * node["slowdown"], 0.0)
        copied = np.where(
            known & (node["message_byte_seconds"] > 0),
            size * held * node["message_byte_seconds"] * node["slowdown"], copied,
        )  # fmt: skip
        (sooner, rested), fixed = rested_work(rows), update_overhead(rows)
        # After each wait, for weights or for gradients, a processor's caches hold what others left there.
        cold = np.where(known, node["cold_call_seconds"] * node["slowdown"], 0.0)
        cold, served_cold = (
            cold * (kinds + np.minimum(of_tables, most)) for kinds, of_tables, most in (
                (work["kinds"], sorting, _TABLE_KINDS), (_UPDATE_KINDS, merging, _MERGED_KINDS)
            )
        )  # fmt: skip
        trained = np.maximum(work["params"] * work["trained_share"], 1.0)
        own = (own - fixed) * np.where(known, np.minimum(touched / trained, 1.0), 1.0)
    # Each server's optimizer has a start of its own, and its share of the numbers.
    update = merging * call + served_cold + np.where(
        on_cpu, fixed + held * np.maximum(own, updated), updated * held
    )  # fmt: skip
    messages = np.where(work["sparse_params"] > 0, 2.0, 1.0)
    handled = messages * (message + constants.message_calls * call)
    # Each gradient is unpacked, whether it is added to others or the one that they are added to.
    add, update = (each + handled + unpacked * held / served for each in (add, update))
    # A server beside a worker takes its processor.
    taken = np.where(beside & on_cpu, workers * ((1.0 + packed) * copied + add) + update, 0.0)
    taken = taken + unpacked / node["memory_rate"]
    own_work = _own_work(parts) + handled * servers + sorting * call + cold + taken
    compute = own_work - np.minimum(sooner * own_work, rested)
    spread, spared = constants.worker_spread * compute, np.zeros(len(rows))
    if rows.has_probed:
        jitter = np.minimum(node["jitter_seconds"], compute)
        spread = np.where(node["measured"] > 0, jitter, spread)
        spared = rested_seconds(rows, size)
    ahead = np.minimum(parts["forward"], compute)
    latency = np.where(away, node["inter_latency"], node["intra_latency"])
    return Interval(
        workers, servers, own_work, compute, spread, 2.0 * latency, size * (1.0 - kept) / rate,
        np.maximum(size * held * (1.0 - near) / whole, copied),
        near * size * (1.0 - held) / whole, add, update,
        np.minimum(rows.key["layer_backward_span"], compute - ahead), ahead,
        soft["push_overlap"], spared, sooner, rested, constants.overlap_power, constants.incast_share,
        constants.stagger_share, constants.server_variability, packed, plan.get("parts", 1.0),
    )  # fmt: skip


def _touched(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return numbers that a worker's step pushes, bytes with their indices, and the share that compression leaves, (n,) each.

    Of tables with sparse gradients, rows that a batch looks up, once each where they are drawn evenly.
    """
    work, samples = rows.work, rows.plan["global_batch"] / rows.plan["dp"]
    dense = total(group.params for group in replica_groups(rows)) * work["trained_share"]
    tables = np.maximum(work["sparse_params"], 1e-300)
    looked_up = tables * -np.expm1(-samples * work["looked_up"] / tables)
    looked_up = np.where(work["sparse_params"] > 0, looked_up, 0.0)
    stated = work["sparse_fraction"] * (dense + work["sparse_params"])
    rows_sent = looked_up / np.maximum(work["table_width"], 1.0)
    touched = np.where(stated > 0, stated, dense + looked_up)
    number, bits = gradient_bytes(rows), rows.plan["gradient_bits"]
    size = touched * number + np.where(stated > 0, 0.0, _INDEX_BYTES * rows_sent)
    spared = touched * np.where(bits > 0, np.maximum(number - bits / 8.0, 0.0), 0.0)
    return touched, size, 1.0 - spared / np.maximum(size, 1e-300)


def with_servers(
    rows: Rows, parts: dict[str, FloatArray], constants: Constants
) -> dict[str, FloatArray]:
    """Return the parts of a step, (n,) each, with those of servers where a plan has them.

    Servers update in the workers' place; an asynchronous step is one worker's update, of which the
    cluster makes K in each cycle.
    """
    through = rows.served
    one = interval_of(rows, parts, constants)
    added = step_of(one, rows.sync, rows.plan["stale_bound"])
    each = np.where(rows.sync == PS_ASYNC, 1.0 / one.workers, 1.0)
    pace = each * one.compute / np.maximum(one.work, 1e-300)
    worked = {n: np.zeros_like(v) if n == "optimizer" else v * pace for n, v in parts.items()}
    # What messages, and a server beside a worker, take of its processor.
    taken = pace * (one.work - _own_work(parts))
    added["server compute"] = added["server compute"] + taken
    return {n: np.where(through, (worked | added)[n], v) for n, v in parts.items()}


def _own_work(parts: Mapping[str, FloatArray]) -> FloatArray:
    return total(v for name, v in parts.items() if name not in ("optimizer", "straggler"))
