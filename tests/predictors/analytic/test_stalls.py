"""Stalls: a forecast's band is that of a mixture of usual and stalled runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.quantiles import spread
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import lay_out
from forerun.predictors.analytic.stalls import BAND, Stalls, mixed, stalled, stalls_of
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster
from tests.predictors.analytic.physics import ask, transformer

NANOTRON = transformer(framework="nanotron")


def of(chance: float, seconds: float) -> Stalls:
    """Return the stalls of one row."""
    return Stalls(np.array([chance]), np.array([seconds]))


def drawn(middle: float, sigma: float, stalls: Stalls, count: int = 200_000) -> np.ndarray:
    """Return steps drawn from the mixture."""
    rng = np.random.default_rng(0)
    late = rng.random(count) < stalls.chance[0]
    return (middle + stalls.seconds[0] * late) * np.exp(rng.normal(0, sigma, count))


@given(st.floats(0.0, 0.98), st.floats(0.02, 0.3))
def test_a_band_of_the_mixture_holds_its_share(chance: float, sigma: float) -> None:
    """Whatever the chance of a stall, about 90 % of the runs lie inside the band."""
    stalls = of(chance, 30.0)
    band = mixed(spread(np.array([1.0]), np.array([sigma])), stalls)[0]
    steps = drawn(1.0, sigma, stalls, 20_000)
    inside = float(((steps >= band[0]) & (steps <= band[2])).mean())
    assert BAND - 0.02 <= inside <= 0.96
    assert band[0] <= band[1] <= band[2]


@given(st.floats(0.0, 0.98), st.floats(0.0, 0.01), st.floats(0.02, 0.3), st.floats(0.1, 50.0))
def test_the_upper_edge_grows_with_the_chance_and_never_jumps(
    chance: float, more: float, sigma: float, lost: float
) -> None:
    """A slightly greater chance of stalls never shortens the band, and lengthens it slightly."""

    def edges(p: float) -> np.ndarray:
        return np.log(mixed(spread(np.array([1.0]), np.array([sigma])), of(p, lost))[0])

    before, after = edges(chance), edges(chance + more)
    assert after[2] >= before[2] - 1e-9
    # From usual runs into the stalls in two hundredths of chance, and never faster.
    steepest = (np.log1p(lost) + 4.0 * sigma) / 0.02
    assert abs(after[2] - before[2]) <= steepest * more + 10.0 * sigma * more**0.5 + 1e-9
    assert abs(after[0] - before[0]) <= 10.0 * sigma * (more / 0.02 + more**0.5) + 1e-9


def test_the_middle_stays_that_of_usual_runs() -> None:
    """Half of the runs that do not stall are faster, however probable a stall is."""
    for chance in (0.05, 0.4, 0.95):
        assert mixed(spread(np.array([2.0]), np.array([0.1])), of(chance, 20.0))[0, 1] == 2.0


def test_rows_that_cannot_stall_keep_their_quantiles() -> None:
    """No chance, no change; and a rare one only widens the usual band."""
    usual = spread(np.array([1.0]), np.array([0.1]))
    assert mixed(usual, of(0.0, 0.0)) == pytest.approx(usual)
    rare = mixed(usual, of(0.06, 100.0))[0]
    assert usual[0, 2] < rare[2] < 1.2 * usual[0, 2]


def test_only_pipelines_of_a_framework_that_stalls_do() -> None:
    """Half a second a micro-batch at two stages and twice that at four; none without a pipeline."""

    def found(framework: str, room: float, nodes: int = 2, **plan: int) -> Stalls:
        shape = Plan(**{"global_batch": 16, **plan})
        cluster = tiny_cluster(nodes, max(shape.world_size // nodes, 1))
        jobs = Jobs.of([Job(transformer(framework=framework), cluster, shape)])
        constants = Constants()
        return stalls_of(lay_out(jobs, constants, {}).rows(constants), np.array([room]))

    assert found("nanotron", 1.0, pp=4).seconds[0] == 2 * found("nanotron", 1.0, pp=2).seconds[0]
    assert found("nanotron", 1.0, pp=2).seconds[0] == pytest.approx(0.56 * 16)
    assert found("nanotron", 1.0, dp=4).chance[0] == found("megatron", 0.1, pp=4).chance[0] == 0
    roomy, full = found("nanotron", 1.0, pp=2), found("nanotron", 0.3, pp=2)
    assert roomy.chance[0] < 0.1
    assert full.chance[0] > 0.7
    whole, sharded = (found("nanotron", 1.0, pp=2, dp=2, zero_stage=z) for z in (0, 1))
    assert whole.chance[0] > sharded.chance[0]
    alone, few, many = (
        found("nanotron", 1.0, nodes=n, dp=4, pp=4, zero_stage=1) for n in (1, 4, 16)
    )
    assert alone.chance[0] == 0 < few.chance[0] < many.chance[0] < 0.1


def test_a_stalled_run_is_told_from_a_slow_one() -> None:
    """Ten times the forecast, as a stall would have it: stalled; a fifth more: not."""
    stalls = Stalls(np.full(3, 0.06), np.full(3, 9.0))
    error = np.log([10.0, 1.2, 3.0])
    told = stalled(error, np.ones(3), stalls, np.full(3, 0.1))
    assert told[0] > 0.99
    assert told[1] < 0.01
    none = stalled(error, np.ones(3), Stalls(np.zeros(3), np.zeros(3)), np.full(3, 0.1))
    assert not none.any()


def test_the_band_of_a_plan_that_hardly_fits_reaches_into_the_stalls() -> None:
    """Its parts still add up to its middle."""
    plan = Plan(pp=4, global_batch=64, micro_batch=16)
    crowded = tiny_cluster(1, 4)
    need = ask(NANOTRON, crowded, plan).peak_bytes[1]
    small = replace(crowded, device=replace(crowded.device, memory_bytes=0.9 * need))
    forecast = ask(NANOTRON, small, plan)
    assert forecast.fit_probability < 0.5
    assert forecast.seconds[2] > forecast.seconds[1] + 4 * 4 * 0.28 / 2
    assert sum(forecast.parts.values()) == pytest.approx(forecast.seconds[1])
