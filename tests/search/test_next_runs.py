"""What a run is worth: nothing where one option is surely best, never less than nothing, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.search.suggestion import (
    REPEAT_SIGMA,
    Beliefs,
    Options,
    accuracy_gains,
    chosen_now,
    decision_worth,
    most_accurate,
    most_decisive,
)

NOISE = REPEAT_SIGMA**2


def beliefs(seconds: list[float], covariance: np.ndarray) -> Beliefs:
    return Beliefs(np.log(seconds), np.asarray(covariance, dtype=float), NOISE, "a test")


def options(n: int, latest: float = np.inf) -> Options:
    return Options(np.arange(n), np.ones(n), np.full(n, latest))


def random_beliefs(seed: int, n: int) -> Beliefs:
    rng = np.random.default_rng(seed)
    half = rng.normal(0, 0.2, (n, 3))
    covariance = half @ half.T + np.diag(rng.uniform(0.001, 0.05, n))
    return Beliefs(rng.normal(0, 0.5, n), covariance, NOISE, "a test")


def every(n: int) -> np.ndarray:
    return np.arange(n)


def test_a_run_is_worth_nothing_where_one_cluster_dominates() -> None:
    sure = beliefs([1.0, 50.0, 80.0], 0.04 * np.eye(3))
    worth = decision_worth(sure, every(3), options(3))
    assert worth.changes == pytest.approx(0.0, abs=1e-9)
    assert worth.value == pytest.approx(0.0, abs=1e-9)
    assert most_decisive(sure, every(3), options(3), count=3) == []


def test_a_run_is_worth_nothing_where_all_options_err_together() -> None:
    """If the device is slower than believed, both options are, and the choice stays."""
    together = beliefs([1.0, 1.1], 0.09 * np.ones((2, 2)))
    worth = decision_worth(together, every(2), options(2))
    assert worth.value == pytest.approx(0.0, abs=1e-12)


def test_the_worth_of_a_run_between_two_options_is_the_known_integral() -> None:
    """Of two independent options of equal medians, learning one exactly is worth s phi(0) to first order."""
    sigma = 0.05
    two = Beliefs(np.zeros(2), sigma**2 * np.eye(2), 1e-12, "a test")
    worth = decision_worth(two, np.array([0]), options(2))
    assert worth.value[0] == pytest.approx(sigma / np.sqrt(2 * np.pi), rel=0.05)
    assert worth.changes[0] == pytest.approx(0.5, abs=0.03)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_worth_is_never_negative_and_no_more_than_knowing_everything(seed: int, n: int) -> None:
    some = random_beliefs(seed, n)
    worth = decision_worth(some, every(n), options(n))
    assert (worth.value >= 0).all()
    draws = np.random.default_rng(seed).multivariate_normal(some.middle, some.covariance, 20_000)
    now = np.exp(some.middle + np.diag(some.covariance) / 2).min()
    perfect = now - np.exp(draws).min(axis=1).mean()
    assert worth.value.max() <= perfect + 0.05 * now


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_worth_scales_with_the_objective_and_not_with_the_order(seed: int) -> None:
    some = random_beliefs(seed, 8)
    plain = decision_worth(some, every(8), options(8))
    dear = decision_worth(some, every(8), Options(every(8), np.full(8, 7.0), np.full(8, np.inf)))
    assert dear.value == pytest.approx(7 * plain.value)
    order = np.random.default_rng(seed).permutation(8)
    mixed = Beliefs(some.middle[order], some.covariance[np.ix_(order, order)], NOISE, "a test")
    assert decision_worth(mixed, every(8), options(8)).value == pytest.approx(plain.value[order])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_a_dearer_option_that_never_wins_changes_no_worth(seed: int) -> None:
    some = random_beliefs(seed, 6)
    wider = np.zeros((7, 7))
    wider[:6, :6], wider[6, 6] = some.covariance, 0.01
    more = Beliefs(np.append(some.middle, 20.0), wider, NOISE, "a test")
    first = decision_worth(some, every(6), options(6)).value
    assert decision_worth(more, every(6), options(7)).value == pytest.approx(first, abs=1e-12)


def test_a_deadline_makes_the_cheap_and_late_option_less_wanted() -> None:
    """Option 0 is cheaper; by the deadline it is late every second time, and so paid for again."""
    one = beliefs([1.0, 1.2], np.diag([0.04, 1e-6]))
    free = Options(every(2), np.ones(2), np.full(2, np.inf))
    tight = Options(every(2), np.ones(2), np.array([1.0, 10.0]))
    assert (chosen_now(one, free), chosen_now(one, tight)) == (0, 1)
    assert (
        decision_worth(one, every(2), tight).value[0] > decision_worth(one, every(2), free).value[0]
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_accuracy_gains_are_what_conditioning_takes_away(seed: int) -> None:
    some = random_beliefs(seed, 9)
    asked = np.array([2, 5, 7])
    gains = accuracy_gains(some, every(9), asked)
    for i in range(9):
        before, after = np.diag(some.covariance)[asked], np.diag(some.after(i).covariance)[asked]
        assert gains[i] == pytest.approx((before - after).mean())
        assert (after >= -1e-12).all()


def test_two_runs_that_teach_the_same_are_not_both_picked() -> None:
    covariance = np.zeros((4, 4))
    covariance[:2, :2] = 0.09  # one error: jobs 0 and 1
    covariance[2:, 2:] = 0.04  # another: jobs 2 and 3
    some = beliefs([1.0] * 4, covariance + 1e-5 * np.eye(4))
    picks = most_accurate(some, every(4), every(4), count=2)
    assert {pick.row // 2 for pick in picks} == {0, 1}
    assert picks[0].row // 2 == 0
    assert picks[1].left < picks[0].left


def test_prices_count_and_the_budget_is_kept() -> None:
    covariance = 0.05 * np.eye(3) + 0.04
    some = beliefs([1.0] * 3, covariance)
    cheap = most_accurate(some, every(3), every(3), np.array([10.0, 1.0, 10.0]))
    assert [pick.row for pick in cheap] == [1]
    within = most_accurate(some, every(3), every(3), np.array([10.0, 1.0, 10.0]), budget=11.5)
    assert sum(pick.price for pick in within) <= 11.5
    assert len(within) == 2


def test_with_money_at_stake_a_run_must_be_worth_its_price() -> None:
    some = beliefs([1.0, 1.05], np.diag([0.01, 0.01]))
    value = decision_worth(some, every(2), options(2)).value
    price = np.full(2, 2 * value.max())
    assert most_decisive(some, every(2), options(2), price, net=True) == []
    assert len(most_decisive(some, every(2), options(2), price / 4, net=True)) == 1


def test_after_both_options_are_known_no_third_run_is_wanted() -> None:
    some = beliefs([1.0, 1.05], np.diag([0.04, 0.04]))
    picks = most_decisive(some, every(2), options(2), np.full(2, 1e-4), budget=1.0)
    assert len(picks) == 2
    assert picks[0].gain > 0 < picks[1].gain


def test_jobs_that_the_predictor_declines_are_neither_picked_nor_asked() -> None:
    some = beliefs([1.0, 1.0, 1.0], 0.04 + 0.01 * np.eye(3))
    covariance = some.covariance.copy()
    covariance[0, :] = covariance[:, 0] = np.nan
    part = Beliefs(np.array([np.nan, 0.0, 0.0]), covariance, NOISE, "a test")
    assert [pick.row for pick in most_accurate(part, every(3), every(3))] == [1]
