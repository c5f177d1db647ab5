"""Comparison: P(A beats B) is a probability, and what two answers share decides nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.quantiles import (
    SCOPES,
    correlation,
    log_sigma,
    pairs_in_common,
    probability_less,
    ratio_sigma,
    scope_labels,
    scope_of,
    spread,
    widened,
)
from forerun.testing.samples import tiny_cluster, tiny_workload

MEDIANS = st.floats(1e-3, 1e6)
SIGMAS = st.floats(0.02, 1.0)
CAUSES = (
    "plan",
    "scale",
    "device: compute",
    "device: host",
    "workload: compute",
    "link: data comm",
)
VARIANCES = st.fixed_dictionaries({name: st.floats(0.0, 0.3) for name in CAUSES})
COMMON = st.fixed_dictionaries({name: st.booleans() for name in SCOPES})


def columns(causes: dict[str, float]) -> dict[str, np.ndarray]:
    """Return causes as columns of one row."""
    return {name: np.array([value]) for name, value in causes.items()}


def row(median: float, causes: dict[str, float]) -> np.ndarray:
    """Return the band that has just the causes' variance."""
    return spread([median], [np.sqrt(sum(causes.values()))])


@given(MEDIANS, MEDIANS, VARIANCES, VARIANCES, COMMON)
def test_one_of_two_is_the_smaller(a: float, b: float, va, vb, common) -> None:
    rho = correlation(columns(va), columns(vb), common)
    back = correlation(columns(vb), columns(va), common)
    first, second = row(a, va), row(b, vb)
    less, more = probability_less(first, second, rho), probability_less(second, first, back)
    assert 0 <= rho[0] <= 1
    assert less[0] + more[0] == pytest.approx(1.0, abs=1e-6)
    assert (less[0] >= 0.5 - 1e-6) == (a <= b) or less[0] == pytest.approx(0.5, abs=1e-6)


@given(MEDIANS, VARIANCES, COMMON)
def test_nothing_beats_itself(a: float, va, common) -> None:
    rho = correlation(columns(va), columns(va), common)
    assert probability_less(row(a, va), row(a, va), rho)[0] == pytest.approx(0.5, abs=1e-6)


@given(MEDIANS, st.floats(1.001, 3), st.floats(1.001, 3), VARIANCES, VARIANCES, COMMON)
def test_a_faster_answer_wins_more_often(a, ahead, more, va, vb, common) -> None:
    rho = correlation(columns(va), columns(vb), common)
    rival = row(a * ahead, vb)
    close = probability_less(row(a, va), rival, rho)[0]
    far = probability_less(row(a / more, va), rival, rho)[0]
    assert far >= close - 1e-9


@given(MEDIANS, st.floats(1.01, 3), VARIANCES)
def test_causes_that_are_equal_and_in_common_cancel(a: float, ahead: float, va) -> None:
    """However wrong both may be: what they share does not turn them round."""
    rho = correlation(columns(va), columns(va), {})
    assert ratio_sigma(row(a, va), row(a * ahead, va), rho)[0] == pytest.approx(0.0, abs=1e-6)
    assert probability_less(row(a, va), row(a * ahead, va), rho)[0] > 1 - 1e-6


@given(MEDIANS, st.floats(1.01, 3), VARIANCES, VARIANCES, st.floats(1.0, 4.0))
def test_what_is_known_worse_is_nearer_to_a_coin_toss(a, ahead, va, vb, wider) -> None:
    """Bands that are wider by one factor leave less of what was claimed."""
    rho = correlation(columns(va), columns(vb), {"device": False})
    first, second = row(a, va), row(a * ahead, vb)
    sharp = probability_less(first, second, rho)[0]
    blunt = probability_less(
        spread([a], wider * log_sigma(first)), spread([a * ahead], wider * log_sigma(second)), rho
    )[0]
    assert 0.5 - 1e-6 <= blunt <= sharp + 1e-6


@given(VARIANCES, VARIANCES, st.sampled_from(SCOPES))
def test_less_in_common_is_less_alike(va, vb, scope: str) -> None:
    every = correlation(columns(va), columns(vb), {})[0]
    assert correlation(columns(va), columns(vb), {scope: False})[0] <= every + 1e-12


@given(st.lists(VARIANCES, min_size=2, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_correlations_of_several_answers_belong_to_one_distribution(rows, devices) -> None:
    stacked = {name: np.array([row[name] for row in rows]) for name in CAUSES}
    device = np.array(devices[: len(rows)])
    common = {"device": device[:, None] == device[None, :], "plan": np.eye(len(rows), dtype=bool)}
    matrix = correlation(
        {name: column[:, None] for name, column in stacked.items()},
        {name: column[None, :] for name, column in stacked.items()}, common,
    )  # fmt: skip
    assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_the_chance_is_that_of_log_normals_that_share_an_error() -> None:
    rng = np.random.default_rng(3)
    shared, own = rng.standard_normal((2, 400_000)), rng.standard_normal((2, 400_000))
    error = 0.3 * shared[0]
    a = 10 * np.exp(error + 0.1 * own[0])
    b = 11 * np.exp(error + 0.2 * own[1])
    va, vb = {"device: compute": 0.09, "plan": 0.01}, {"device: compute": 0.09, "plan": 0.04}
    rho = correlation(columns(va), columns(vb), {"plan": False})
    believed = probability_less(row(10, va), row(11, vb), rho)[0]
    assert believed == pytest.approx(np.mean(a < b), abs=0.005)
    apart = probability_less(row(10, va), row(11, vb))[0]
    assert believed > apart + 0.05


def test_what_states_no_causes_shares_nothing_that_is_known() -> None:
    assert correlation({}, columns({"plan": 0.1}), {}) == 0.0
    a, b = spread([10.0], [0.2]), spread([12.0], [0.4])
    assert probability_less(a, b)[0] == pytest.approx(0.6583, abs=1e-3)  # Phi(ln 1.2 / sqrt(.2))


def test_two_sure_numbers_are_compared_for_sure() -> None:
    assert probability_less(spread([1.0], 0.0), spread([2.0], 0.0))[0] == 1.0
    assert probability_less(spread([2.0], 0.0), spread([1.0], 0.0))[0] == 0.0
    assert probability_less(spread([2.0], 0.0), spread([2.0], 0.0))[0] == pytest.approx(0.5)


def test_what_is_not_known_stays_unknown() -> None:
    assert np.isnan(probability_less(np.full((1, 3), np.nan), spread([1.0], 0.0))[0])
    assert np.isnan(probability_less(spread([1.0], 0.0), np.full((1, 3), np.nan))[0])


def test_errors_of_its_own_leave_the_covariance() -> None:
    """Losses of a spot machine widen a run's band, and are shared with no other."""
    step, run = spread([1.0], [0.3]), spread([9.0], [0.5])
    other = spread([1.0], [0.3])
    rho = widened(np.array([0.8]), (step, other), (run, other))
    assert rho[0] * 0.5 * 0.3 == pytest.approx(0.8 * 0.3 * 0.3, rel=1e-6)


def test_jobs_have_in_common_what_is_the_same() -> None:
    plan = Plan(dp=4, global_batch=64)
    one = Job(tiny_workload(), tiny_cluster(1, 4), plan)
    other = Job(one.workload, one.cluster, Plan(dp=2, tp=2, global_batch=64))
    larger = Job(one.workload, tiny_cluster(2, 4), Plan(dp=8, global_batch=64))
    common = {
        scope: pairs[0]
        for scope, pairs in pairs_in_common([*map(scope_labels, (one, other, larger))]).items()
    }
    assert all(column[0] for column in common.values())
    assert common["plan"].tolist() == [True, False, False]
    assert common["device"].tolist() == [True, True, True]
    assert common["link"].tolist() == [True, True, False]  # one node has no network
    assert {scope_of("device: host"), scope_of("scale")} == {"device", "scale"}
