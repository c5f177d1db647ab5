"""Parameter servers: closed forms of queueing networks, a simulation, and what no physics may break."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.flat import total
from forerun.predictors.analytic.servers import (
    EXACT,
    Interval,
    asynchronous,
    closed_network,
    staleness_of,
    step_of,
    synchronous,
)
from forerun.tables import Jobs
from tests.predictors.analytic.physics import UNNAMED, ask, faster_links, tiny_cluster, transformer

SYNC, ASYNC, STALE = 1, 2, 4
SLACK = 1.0 + 1e-9


def one(value: float) -> Any:
    """Return a column of one row."""
    return np.array([float(value)])


def interval(**given: Any) -> Interval:
    """Return intervals of one row for each value of the columns given; the others are usual."""
    usual = {
        "workers": 1.0, "servers": 1.0, "compute": 1.0, "spread": 0.0, "latency": 0.0, "own": 0.1,
        "link": 0.1, "local": 0.0, "add": 0.01, "update": 0.05, "behind": 0.6, "ahead": 0.3,
        "overlap": 0.0, "spared": 0.0, "work": 0.0, "sooner": 0.0, "rested": 0.0,
    }  # fmt: skip
    scalars = {"power": 2.5, "incast": 0.2, "stagger": 0.45, "variability": 0.5}
    columns = np.broadcast_arrays(*(np.atleast_1d(float(v) if np.isscalar(v) else v)
                                    for v in (usual | {n: v for n, v in given.items() if n in usual}).values()))  # fmt: skip
    held = dict(zip(usual, (np.array(c, dtype=float) for c in columns), strict=True))
    return Interval(**held, **(scalars | {n: v for n, v in given.items() if n in scalars}))


def seconds(one: Interval, sync: int, bound: float = 0.0) -> Any:
    """Return the seconds of a step, of all workers' updates also where it is asynchronous."""
    n = len(one.workers)
    added = total(step_of(one, np.full(n, sync), np.full(n, float(bound))).values())
    return one.compute + added * (one.workers if sync == ASYNC else 1.0)


@pytest.mark.parametrize("sync", [SYNC, ASYNC, STALE])
def test_work_after_a_pause_is_done_sooner_and_no_processor_does_more_than_its_share(
    sync: int,
) -> None:
    given = {"workers": 3.0, "own": 0.001, "link": 0.001, "add": 0.3, "update": 0.4, "work": 1.0}
    plain = interval(**given)
    sooner = interval(**given, sooner=0.8, rested=0.2)
    assert seconds(sooner, sync, 1.0) < seconds(plain, sync, 1.0)
    least = 0.4 * 3 if sync == ASYNC else 0.3 * 2 + 0.4
    for rested in (0.2, 1.0, 10.0):
        quick = interval(**{**given, "compute": 0.1}, sooner=1.0, rested=rested)
        assert seconds(quick, sync, 1.0) * SLACK >= max(least, 1.0)


@pytest.mark.parametrize("stations", [1, 2, 5])
@pytest.mark.parametrize("customers", [1, 2, 7, EXACT])
def test_a_balanced_network_has_its_closed_form(stations: int, customers: int) -> None:
    """K customers among M stations of D seconds pass at K / (K + M - 1) / D."""
    _, rate = closed_network(one(customers), one(0.0), (one(0.2),) * stations, 1.0)
    assert rate[0] == pytest.approx(customers / (customers + stations - 1) / 0.2)


@pytest.mark.parametrize("customers", [1, 3, 20])
def test_one_exponential_station_is_the_machine_repair_model(customers: int) -> None:
    """Throughput is (1 - P(idle)) / D, P(idle) = 1 / sum over k of K! / (K - k)! (D / Z)^k (M/M/1//K)."""
    delay, service = 2.0, 0.3
    weights = np.cumprod([1.0, *((customers - k) * service / delay for k in range(customers))])
    (_,), rate = closed_network(one(customers), one(delay), (one(service),), 1.0)
    assert rate[0] == pytest.approx((1.0 - 1.0 / weights.sum()) / service)


def test_many_customers_go_on_from_where_the_exact_recursion_ends() -> None:
    """Throughput neither falls nor jumps where the approximation takes over, and ends at the station's."""
    count = np.array([EXACT - 1, EXACT, EXACT + 1, EXACT + 2, 4 * EXACT, 1e6])
    for delay in (0.5, 1.0, 1.5, 4.0):  # about the knee, at a service of 0.01, and beyond
        _, rate = closed_network(count, np.full(6, delay), (np.full(6, 0.01),), 0.7)
        assert (np.diff(rate) >= -1e-9).all()
        assert rate[2] < 1.03 * rate[1]
        assert rate[-1] == pytest.approx(100.0, rel=1e-3)


def simulated(
    workers: int, service: float, spread: float, variability: float, bound: float = np.inf
) -> tuple[float, float, float]:
    """Return cycle seconds, mean and deviation of staleness of workers that compute 1 s and queue for a server."""
    rng, steps = np.random.default_rng(0), 1500

    def drawn(mean: float, relative: float) -> float:
        sigma = np.sqrt(np.log1p(relative**2))
        return float(mean * np.exp(sigma * rng.standard_normal() - 0.5 * sigma**2))

    events = [(drawn(1.0, spread), i, False) for i in range(workers)]
    heapq.heapify(events)
    clock, pulled, version, free = [0] * workers, [0] * workers, 0, 0.0
    stale, times, waiting = [], [], []
    while version < steps * workers:
        now, i, served = heapq.heappop(events)
        if not served:
            free = max(now, free) + drawn(service, variability)
            heapq.heappush(events, (free, i, True))
            continue
        stale.append(version - pulled[i])
        times.append(now)
        version, clock[i] = version + 1, clock[i] + 1
        waiting.append(i)
        go = [j for j in waiting if clock[j] - min(clock) <= bound]
        waiting = [j for j in waiting if j not in go]
        for j in go:
            pulled[j] = version
            heapq.heappush(events, (now + drawn(1.0, spread), j, False))
    half = version // 2
    cycle = (times[-1] - times[half]) / (version - 1 - half) * workers
    return cycle, float(np.mean(stale[half:])), float(np.std(stale[half:]))


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("service", [0.05, 0.15, 0.3, 0.6])
def test_workers_that_queue_take_as_long_as_in_a_simulation(workers: int, service: float) -> None:
    """Below the knee, at it and beyond: within 6 %; staleness is K - 1, with its deviation."""
    spread, variability = 0.3, 0.3
    asked = interval(
        workers=workers, update=service, own=0, link=0, spread=spread, variability=variability
    )
    cycle, mean, deviation = simulated(workers, service, spread, variability)
    assert seconds(asked, ASYNC)[0] == pytest.approx(cycle, rel=0.06)
    found = staleness_of(asked, np.array([ASYNC]), one(0))
    assert found["mean"][0] == pytest.approx(mean, abs=0.1) == workers - 1
    assert found["p05"][0] <= mean <= found["p95"][0]
    assert found["p95"][0] - found["p05"][0] == pytest.approx(3.3 * deviation, abs=1.5)


@pytest.mark.parametrize("bound", [1, 2, 4, 8])
def test_a_bound_costs_and_spares_staleness_as_in_a_simulation(bound: int) -> None:
    """Eight workers whose steps vary by a tenth or by a third."""
    for spread in (0.1, 0.3):
        asked = interval(workers=8, update=0.05, own=0, link=0, add=0, spread=spread)
        cycle, mean, _ = simulated(8, 0.05, spread, 0.5, bound)
        assert seconds(asked, STALE, bound)[0] == pytest.approx(cycle, rel=0.05)
        found = staleness_of(asked, np.array([STALE]), one(bound))["mean"][0]
        assert found == pytest.approx(mean, abs=0.6)


COLUMNS = st.fixed_dictionaries({
    **dict.fromkeys(("own", "link", "add", "update", "latency"), st.floats(0.0, 2.0)),
    "compute": st.sampled_from([0.9, 1.0, 5.0]),
    "spread": st.floats(0.0, 0.5), "overlap": st.floats(0.0, 1.0), "spared": st.floats(0.0, 0.5), "variability": st.floats(0.0, 1.0),
    "servers": st.integers(1, 20),
})  # fmt: skip


@settings(max_examples=150)
@given(COLUMNS)
def test_one_worker_waits_for_none(columns: dict[str, float]) -> None:
    """Alone, in step or not is the same, and nothing is stale."""
    alone = interval(**columns)
    for sync in (ASYNC, STALE):
        assert seconds(alone, sync)[0] == pytest.approx(seconds(alone, SYNC)[0])
        assert staleness_of(alone, np.array([sync]), one(3))["p95"][0] == 0


@settings(max_examples=150)
@given(COLUMNS)
def test_more_workers_never_make_fewer_updates(columns: dict[str, float]) -> None:
    """Asynchronous throughput grows with workers until the busiest station binds, never beyond it."""
    workers = np.array([1, 2, 3, 5, 8, 30, EXACT, EXACT + 1, 300, 3000])
    asked = interval(workers=workers, **columns)
    rate = workers / seconds(asked, ASYNC)
    assert (np.diff(rate) >= -1e-9 * rate[1:]).all()
    busiest = max(columns["link"], columns["update"])
    assert rate[-1] * busiest <= 1 + 1e-9
    assert min(v.min() for v in asynchronous(asked).values()) >= -1e-9
    assert min(v.min() for v in synchronous(asked).values()) >= -1e-9


@settings(max_examples=150)
@given(COLUMNS, st.integers(2, 40))
def test_a_looser_bound_lies_between_in_step_and_not(columns: dict[str, float], k: int) -> None:
    """A step's seconds go one way from ps-sync (bound 0) to ps-async; staleness only grows."""
    bounds = (0, 1, 2, 4, 64, 10**9)
    asked = interval(workers=k, **columns)
    took = [seconds(asked, STALE, bound)[0] for bound in bounds]
    assert took[0] == pytest.approx(seconds(asked, SYNC)[0])
    assert took[-1] == pytest.approx(seconds(asked, ASYNC)[0], rel=1e-6)
    steps = np.diff(took)
    assert (steps <= 1e-9).all() or (steps >= -1e-9).all()
    stale = [staleness_of(asked, np.array([STALE]), one(bound)) for bound in bounds]
    assert (np.diff([s["mean"][0] for s in stale]) >= -1e-9).all()
    assert stale[0]["mean"][0] == stale[0]["p95"][0] == 0 < stale[1]["mean"][0]


PLANS = ("ps-sync", "ps-async", "ps-stale")


@pytest.mark.parametrize("sync", PLANS)
@pytest.mark.parametrize("beside", [False, True])
def test_more_servers_are_slower_by_their_messages_alone_and_faster_links_never(
    sync: str, beside: bool
) -> None:
    """Whatever binds: workers' links, servers' links, their memory, or nothing of theirs; one a host."""
    workload, cluster = transformer(layers=2), tiny_cluster(8, 1)
    counts = (1, 2, 4, 8) if beside else (1, 2, 4, 8, 64, 1024)
    plan = Plan(dp=8, global_batch=64, micro_batch=8, sync=sync, servers_with_workers=beside)
    plans = [replace(plan, parameter_servers=n) for n in counts]
    jobs, free = Jobs.of([Job(workload, cluster, p) for p in plans]), {"message_calls": 0.0}
    found, without = (
        AnalyticPredictor(replace(UNNAMED, **changes)).predict(jobs).seconds[:, 1]
        for changes in ({}, free)
    )
    assert (np.diff(found)[:3] <= 1e-9).all()
    assert (np.diff(without) <= 1e-9).all()
    assert (np.diff(found - without)[2:] > 0).all()
    faster = ask(workload, faster_links(cluster, 4.0), plans[0])
    assert faster.seconds[1] <= found[0] * SLACK


def test_servers_hold_the_optimizer_and_sparse_updates_send_little() -> None:
    """Workers keep no states; a tenth of the parameters costs about a tenth of the traffic."""
    workload, cluster = transformer(layers=2), tiny_cluster(8, 1)
    plan = Plan(dp=8, global_batch=64, micro_batch=8)
    served = replace(plan, sync="ps-sync", parameter_servers=2)
    whole = ask(workload, cluster, served)
    assert (
        whole.memory_parts["optimizer"]
        == 0
        < ask(workload, cluster, plan).memory_parts["optimizer"]
    )
    assert whole.parts["optimizer"] == whole.parts["data comm"] == 0
    few = ask(workload.with_(sparse_fraction=0.1), cluster, served)
    links = ("worker link", "server link")
    least, most = (sum(f.parts[name] for name in links) for f in (few, whole))
    assert 0.08 * most < least < 0.15 * most


def test_compressed_gradients_shorten_pushes_and_are_unpacked_by_servers() -> None:
    """A push of 8 of 32 bits takes a quarter as long, a pull as long as ever; without servers nothing changes."""
    one = interval(workers=4.0, own=0.1, link=0.1, add=0.0, update=0.0, incast=0.0)
    whole, packed = synchronous(one), synchronous(replace(one, packed=0.25))
    saved = whole["server link"] - packed["server link"]
    assert saved == pytest.approx(0.75 * one.transfer(4.0))
    workload, cluster = transformer(layers=2), tiny_cluster(8, 1)
    plan = Plan(dp=8, global_batch=64, micro_batch=8)
    for sync in ("ps-sync", "ps-async"):
        served = replace(plan, sync=sync, parameter_servers=8)
        found = [ask(workload, cluster, replace(served, gradient_bits=b)) for b in (1, 8, 0)]
        assert ask(workload, cluster, replace(served, gradient_bits=32)) == found[-1]
        assert sorted(found, key=lambda forecast: forecast.seconds[1]) == found
        one_bit, eight, none = (forecast.parts["server compute"] for forecast in found)
        assert none < one_bit < eight  # more is read to be unpacked
    plain = ask(workload, cluster, plan)
    assert ask(workload, cluster, replace(plan, gradient_bits=8)) == plain


@pytest.mark.parametrize("sync", PLANS)
def test_the_next_batch_is_read_beside_what_servers_do(sync: str) -> None:
    """A worker's cycle is the longer of reading and of all else: computing, sending, waiting, updating."""
    cluster = replace(tiny_cluster(8, 1), vcpus_per_device=4.0)
    plan = Plan(dp=8, global_batch=64, micro_batch=8, sync=sync)
    each = 8 if sync == "ps-async" else 1  # a step of ps-async is one worker's update
    unread = ask(transformer(layers=2), cluster, plan)
    rest = unread.seconds[1] - unread.parts["overhead"] - unread.parts["straggler"]
    computed = sum(unread.parts[name] for name in ("forward", "backward"))
    reading = UNNAMED.decode_seconds_per_byte * 8 / 4.0  # for a byte of each of a worker's samples
    for share in (0.9, 2.0):
        found = ask(transformer(layers=2, input_bytes=share * rest * each / reading), cluster, plan)
        assert share * rest > computed
        longer = max(share - 1.0, 0.0) * rest
        assert found.parts["input"] == pytest.approx(longer, abs=1e-9)
        assert found.seconds[1] - unread.seconds[1] == pytest.approx(longer, rel=1e-6, abs=1e-9)


def test_a_forecast_says_how_stale_updates_are() -> None:
    """K - 1 where none waits, less where a bound makes workers wait, none in step or with all-reduce."""
    workload, cluster = transformer(layers=2), tiny_cluster(8, 1)
    plan = Plan(dp=8, global_batch=64, micro_batch=8, parameter_servers=2)
    asked = {"ps-async": 0, "ps-stale": 2, "ps-sync": 0}
    found = {
        s: ask(workload, cluster, replace(plan, sync=s, stale_bound=bound)).staleness
        for s, bound in asked.items()
    }
    assert (
        found["ps-async"]["mean"] == 7 > found["ps-stale"]["mean"] > found["ps-sync"]["mean"] == 0
    )
    assert ask(workload, cluster, replace(plan, sync="ps-stale")).staleness == found["ps-sync"]
    assert not ask(workload, cluster, plan).staleness
