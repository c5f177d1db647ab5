"""Estimate: money is arithmetic, and lost machines cost what a simulation says they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.estimate import (
    MOST_WALL_FACTOR,
    Estimates,
    estimate_runs,
    preemption_factor,
    preemption_spread,
    steps_to_target,
)
from forerun.domain.objective import Preemption
from forerun.domain.quantiles import spread
from forerun.errors import RequestError

POSITIVE = st.floats(1e-3, 1e6)
STEP = np.array([[0.9, 1.0, 1.3], [1.8, 2.0, 2.2]])
FIT = np.array([1.0, 0.4])


def estimated(**changes: object) -> Estimates:
    """Return the two steps as runs of 3600 steps at 10 dollars an hour and 1 kW, changed."""
    fields: dict[str, object] = {
        "steps": 3600.0, "dollars_per_hour": 10.0, "watts": 1000.0, "carbon_kg_per_kwh": 0.4,
    }  # fmt: skip
    fields.update(changes)
    return estimate_runs(STEP, FIT, fields.pop("steps"), **fields)  # type: ignore[arg-type]


def test_an_hour_at_ten_dollars_is_ten_dollars() -> None:
    run = estimated()[0]
    assert run.run_seconds == pytest.approx((3240.0, 3600.0, 4680.0))
    assert run.dollars == pytest.approx((9.0, 10.0, 13.0))
    assert run.kilowatt_hours == pytest.approx((0.9, 1.0, 1.3))
    assert run.co2_kg == pytest.approx((0.36, 0.4, 0.52))
    assert (run.steps, run.fit_probability, run.spot) == (3600.0, 1.0, False)


@given(POSITIVE, POSITIVE, st.floats(0, 1e4), st.floats(1, 50))
def test_cost_is_time_times_price_and_time_scales_with_steps(
    steps: float, factor: float, price: float, wall: float
) -> None:
    one = estimated(steps=steps, dollars_per_hour=price, wall_factor=wall)
    np.testing.assert_allclose(one.dollars, one.wall_seconds / 3600 * price, rtol=1e-12)
    np.testing.assert_allclose(one.run_seconds, STEP * steps, rtol=1e-12)
    np.testing.assert_allclose(one.wall_seconds, STEP * steps * wall, rtol=1e-12)
    more = estimated(steps=steps * factor, dollars_per_hour=price, wall_factor=wall)
    for name in ("run_seconds", "wall_seconds", "dollars", "kilowatt_hours", "co2_kg"):
        expected = getattr(one, name) * factor
        np.testing.assert_allclose(getattr(more, name), expected, rtol=1e-9)


def test_a_price_that_is_not_known_leaves_time_and_energy() -> None:
    run = estimated(dollars_per_hour=np.array([np.nan, 5.0]))
    assert np.isnan(run.dollars[0]).all()
    assert np.isfinite(run.dollars[1]).all()
    assert np.isfinite(run.run_seconds).all()
    assert np.isfinite(run.kilowatt_hours).all()


def test_columns_are_taken_row_by_row() -> None:
    runs = estimated(spot=np.array([False, True]))
    last = runs.take(np.array([False, True]))
    assert len(last) == 1
    assert last[0] == runs[1]
    assert last[0].spot


def simulated(nodes: int, how: Preemption, segments: int, seed: int) -> float:
    """Return wall time over useful time of a job that loses nodes at random.

    It does one segment after another: train, then write a checkpoint. A loss in between throws
    the segment away; a restart may itself be lost and begun again.
    """
    rng = np.random.default_rng(seed)
    mean_seconds = 3600.0 / (nodes * how.rate_per_node_hour)
    whole = how.checkpoint_interval_seconds + how.checkpoint_seconds
    wall, done, restarting = 0.0, 0, False
    while done < segments:
        need = how.restart_seconds if restarting else whole
        until_loss = rng.exponential(mean_seconds)
        if until_loss < need:
            wall, restarting = wall + until_loss, True
            continue
        wall += need
        done += not restarting
        restarting = False
    return wall / (segments * how.checkpoint_interval_seconds)


@pytest.mark.parametrize(
    ("nodes", "how"),
    [
        (1, Preemption(0.05)),
        (16, Preemption(0.05)),
        (64, Preemption(0.05)),
        (8, Preemption(0.5, 900.0, 60.0, 600.0)),
        (4, Preemption(1.0, 600.0, 10.0, 30.0)),
    ],
)
def test_the_price_of_lost_machines_is_that_of_a_simulation(nodes: int, how: Preemption) -> None:
    expected = simulated(nodes, how, segments=20_000, seed=11)
    assert float(preemption_factor(nodes, how)) == pytest.approx(expected, rel=0.05)


def test_without_losses_only_checkpoints_cost() -> None:
    how = Preemption(0.0, 1800.0, 30.0)
    assert float(preemption_factor(64, how)) == pytest.approx(1830 / 1800, rel=1e-12)
    rare = Preemption(1e-9, 1800.0, 30.0)
    assert float(preemption_factor(1, rare)) == pytest.approx(1830 / 1800, rel=1e-6)


@given(
    st.floats(0, 1), st.floats(60, 7200), st.floats(0, 600), st.floats(0, 1800)
)  # fmt: skip
def test_more_nodes_lose_more_and_never_gain(
    rate: float, interval: float, write: float, restart: float
) -> None:
    factor = preemption_factor([1, 2, 4, 8, 16], Preemption(rate, interval, write, restart))
    ended = factor[np.isfinite(factor)]
    assert np.isinf(factor[len(ended) :]).all(), "more nodes than are hopeless are not hopeless"
    assert np.all(np.diff(ended) >= -1e-9 * ended[1:])
    assert factor[0] >= (interval + write) / interval * (1 - 1e-9)
    if rate > 1e-3:
        assert np.all(np.diff(ended) > 0)


def test_a_hopeless_job_never_ends_rather_than_after_centuries() -> None:
    factor = preemption_factor([1, 10_000], Preemption(0.1, 36_000.0, 300.0, 36_000.0))
    assert np.isfinite(factor[0])
    assert factor[0] <= MOST_WALL_FACTOR
    assert np.isinf(factor[1])
    run = estimate_runs(STEP, FIT, 1e9, dollars_per_hour=1.0, watts=1e3, wall_factor=factor)
    assert np.isfinite(run.wall_seconds[0]).all()
    for values in (run.wall_seconds, run.dollars, run.kilowatt_hours):
        assert np.isinf(values[1]).all()


@pytest.mark.parametrize(
    ("nodes", "hours", "how"),
    [
        (16, 20, Preemption(0.05)),
        (64, 10, Preemption(0.05)),
        (4, 100, Preemption(0.05)),
        (8, 20, Preemption(0.5, 900.0, 60.0, 600.0)),
    ],
)
def test_a_spot_band_is_that_of_a_simulation(nodes: int, hours: float, how: Preemption) -> None:
    """Nine runs in ten of a job with a certain step end within its 5 to 95 % band."""
    segments = round(hours * 3600 / how.checkpoint_interval_seconds)
    useful = segments * how.checkpoint_interval_seconds
    walls = [simulated(nodes, how, segments, seed) * useful for seed in range(1500)]
    run = estimate_runs(
        np.full((1, 3), 1.0), np.ones(1), useful, dollars_per_hour=1.0, watts=1.0,
        wall_factor=preemption_factor(nodes, how), wall_spread_seconds=preemption_spread(nodes, how),
    )[0]  # fmt: skip
    low, middle, high = run.wall_seconds
    assert middle == pytest.approx(np.mean(walls), rel=0.02)
    found = np.quantile(walls, [0.05, 0.95])
    assert [low, high] == pytest.approx(found, rel=0.04)
    assert high - low == pytest.approx(found[1] - found[0], rel=0.2)


def test_losses_widen_the_band_of_an_uncertain_step() -> None:
    how = Preemption(0.2)
    factor, spread = preemption_factor(16, how), preemption_spread(16, how)
    calm = estimated(wall_factor=factor)
    lossy = estimated(wall_factor=factor, wall_spread_seconds=spread)
    np.testing.assert_allclose(lossy.wall_seconds[:, 1], calm.wall_seconds[:, 1], rtol=1e-12)
    assert (lossy.wall_seconds[:, 0] < calm.wall_seconds[:, 0]).all()
    assert (lossy.wall_seconds[:, 2] > calm.wall_seconds[:, 2]).all()
    assert (lossy.wall_seconds[:, 0] >= STEP[:, 0] * 3600.0).all()
    np.testing.assert_allclose(lossy.dollars, lossy.wall_seconds / 3600 * 10.0, rtol=1e-12)


@given(st.integers(1, 64), st.floats(1e-9, 0.2), st.floats(60, 7200), st.floats(0, 600))
def test_the_scatter_of_losses_is_smooth_and_positive(
    nodes: int, rate: float, interval: float, restart: float
) -> None:
    """Where series take over from closed forms nothing jumps."""
    near = [
        float(preemption_spread(nodes, Preemption(r, interval, 30.0, restart)))
        for r in (rate, rate * 1.001)
    ]
    assert near[0] >= 0
    assert near[1] == pytest.approx(near[0], rel=0.05)


def test_without_losses_nothing_scatters() -> None:
    assert float(preemption_spread(64, Preemption(0.0))) == 0.0


@pytest.mark.parametrize(
    "fields",
    [(-1.0,), (np.nan,), (np.inf,), (0.1, 0.0), (0.1, 10.0, -1.0), (0.1, 10.0, 1.0, -1.0)],
)
def test_impossible_preemption_is_refused(fields: tuple[float, ...]) -> None:
    with pytest.raises(RequestError, match="negative or out of range"):
        Preemption(*fields)


def test_a_run_that_ends_at_a_target_is_as_uncertain_as_its_length() -> None:
    """The two are independent, so that their log variances add."""
    step = spread([2.0], [0.3])
    sure_run = estimate_runs(step, np.ones(1), 1000.0, dollars_per_hour=1.0, watts=1.0)
    steps, sigma = steps_to_target(spread([64_000.0], [0.4]), [64.0], 999.0)
    assert (steps[0], sigma[0]) == (1000.0, pytest.approx(0.4))
    run = estimate_runs(
        step, np.ones(1), steps, dollars_per_hour=1.0, watts=1.0, length_sigma=sigma
    )
    assert run.wall_seconds[0, 1] == sure_run.wall_seconds[0, 1]
    np.testing.assert_allclose(run.wall_seconds, spread([2000.0], [0.5]))
    np.testing.assert_allclose(run.dollars, run.wall_seconds / 3600)


def test_errors_of_steps_and_of_lost_time_are_independent() -> None:
    """Their log variances add; no wall ends before its steps."""
    step, cost = spread([2.0], [0.3]), {"dollars_per_hour": 1.0, "watts": 1.0}
    run = estimate_runs(step, np.ones(1), 10.0, **cost, wall_factor=2.0, lost_sigma=0.4)
    np.testing.assert_allclose(run.wall_seconds, spread([40.0], [0.5]))
    run = estimate_runs(step, np.ones(1), 10.0, **cost, wall_factor=1.1, lost_sigma=3.0)
    assert run.wall_seconds[0, 0] == run.run_seconds[0, 0]


def test_where_no_target_is_forecast_the_length_is_sure() -> None:
    rows = np.array([[np.nan] * 3, [640.0, 640.0, 640.0]])
    steps, sigma = steps_to_target(rows, [64.0, 64.0], [5.0, 5.0])
    assert steps.tolist() == [5.0, 10.0]
    assert sigma.tolist() == [0.0, 0.0]
    assert steps_to_target(None, [64.0], [5.0])[0].tolist() == [5.0]
