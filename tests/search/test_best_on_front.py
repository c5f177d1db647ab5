"""The best is the least by what was asked, and stands on the front that is shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective, Preemption
from forerun.domain.quantiles import at_probability
from forerun.domain.recommendation import Option
from forerun.domain.workload import Length
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.recommending import recommend
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_workload

WORKLOAD = tiny_workload()
LENGTH = Length("samples", 1e6)
OFFERS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4]),  # nodes
        # Prices and speeds that are near one another, so that some are as good as equal.
        st.sampled_from([None, 1.0, 1.003, 1.03, 2.0]),  # dollars an hour and node
        st.sampled_from([None, 0.9, 0.91, 2.0]),  # on the spot market
        st.sampled_from([1.0, 1.003, 1.1, 0.3]),  # speed
        st.sampled_from([3e9, 3.1e9, 80e9]),  # memory: it fits by chance, or surely
        st.sampled_from([0.0, 60.0, 3600.0]),  # billed at least
    ),
    min_size=2,
    max_size=5,
)


def cluster_of(i: int, offer: tuple) -> Cluster:
    """Return a random offer as a cluster."""
    nodes, plain, spot, speed, memory, least = offer
    usual = tiny_device()
    device = tiny_device(
        f"gpu-{i}", memory_bytes=memory,
        peak_flops={name: rate * speed for name, rate in usual.peak_flops.items()},
    )  # fmt: skip
    return replace(
        tiny_cluster(nodes, 2, device), name=f"offer-{i}", dollars_per_hour=plain and plain * nodes,
        spot_dollars_per_hour=spot and spot * nodes, rented=least > 0, least_billed_seconds=least,
    )  # fmt: skip


def figures(option: Option, confidence: float, energy: bool) -> list[float]:
    """Return seconds, dollars (and kWh) at the confidence; an unknown price counts as the highest."""
    estimate = option.estimate
    rows = [estimate.wall_seconds, estimate.dollars]
    rows += [estimate.kilowatt_hours] if energy else []
    return np.nan_to_num(at_probability(np.array(rows), confidence), nan=1e300).tolist()


@settings(max_examples=25)
@given(
    OFFERS,
    st.sampled_from(["time", "cost", "knee", "energy"]),
    st.sampled_from([0.5, 0.8, 0.95]),
    st.sampled_from(["on-demand", "spot", "any"]),
    st.sampled_from([None, 0.0, 600.0]),
    st.one_of(st.none(), st.floats(500.0, 1e5)),
)
def test_the_best_is_on_the_front_and_nothing_on_it_is_better(
    offers: list[tuple], aim: str, confidence: float, market: str, startup: float | None,
    deadline: float | None,
) -> None:  # fmt: skip
    objective = Objective(
        aim=aim, confidence=confidence, market=market, deadline_seconds=deadline,
        fit_confidence=0.5,
        preemption=Preemption(startup_seconds=startup),
    )  # fmt: skip
    clusters = [cluster_of(i, offer) for i, offer in enumerate(offers)]
    found = recommend(WORKLOAD, clusters, objective, LENGTH, AnalyticPredictor(), global_batches=[64],
                      max_front=1000)  # fmt: skip
    if found.best is None:
        assert not found.front
        return
    assert sum(option is found.best for option in found.front) == 1
    energy = aim == "energy"
    shown = [figures(option, confidence, energy) for option in found.front]
    for one in shown:
        assert not any(
            all(a <= b for a, b in zip(other, one, strict=True)) and other != one for other in shown
        )
    assert [one[0] for one in shown] == sorted(one[0] for one in shown)
    if aim == "knee":
        return
    axis = {"time": 0, "cost": 1, "energy": 2}[aim]
    fits = [option.estimate.forecast.fit_probability for option in found.front]
    aims = [one[axis] / chance for one, chance in zip(shown, fits, strict=True)]
    best = next(i for i, option in enumerate(found.front) if option is found.best)
    assert aims[best] == min(aims)
    every = [figures(o, confidence, energy)[axis] / o.estimate.forecast.fit_probability
             for o in found.alternatives]  # fmt: skip
    assert aims[best] <= min(every)
