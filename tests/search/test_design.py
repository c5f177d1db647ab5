"""Optimal designs: Ernest's own one again, proofs of how good they are, and what must not change them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.predictors.laws.ernest import features
from forerun.search.design import (
    OptimalDesign,
    Problem,
    column_scaled,
    ernest_design,
    optimal_design,
)

# (cores, share of the data) of the runs in the example that Ernest's authors give.
GOLDEN = [(4, 0.015625), (4, 0.021382), (12, 0.050164), (12, 0.055921), (12, 0.061678),
          (16, 0.061678), (32, 0.125)]  # fmt: skip


def grid(parts: tuple[int, int], total: int, machines: int, cores: int) -> np.ndarray:
    """Return Ernest's candidates: 20 shares, on as many machines as the partitions fill, (2, n)."""
    shares = np.linspace(parts[0] / total, parts[1] / total, 20)
    pairs = [
        (s, m) for s in shares for m in range(1, machines + 1) if round(s * total) >= cores * m
    ]
    return np.array(pairs).T


def trace(x: np.ndarray, share: np.ndarray) -> float:
    return float(np.trace(np.linalg.inv((x.T * share) @ x)))


def designed(
    x: np.ndarray, cost: np.ndarray, budget: float, criterion: str = "A", *,
    known: np.ndarray | None = None, wanted: np.ndarray | None = None, tolerance: float = 1e-6,
) -> OptimalDesign:  # fmt: skip
    """Return the design of a problem without earlier runs, unless they are given."""
    k = x.shape[1]
    had, want = (
        np.zeros((k, k)) if known is None else known,
        np.eye(k) if wanted is None else wanted,
    )
    return optimal_design(Problem(x, cost, budget, had, want, criterion), tolerance)


def random_problem(seed: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(seed)
    x, cost = rng.lognormal(0, 1, (n, k)), rng.lognormal(0, 1, n)
    return x, cost, float(cost.sum() * rng.uniform(0.05, 0.6))


def test_ernest_s_own_example_is_designed_again() -> None:
    scale, machines = grid((4, 32), 256, 16, 4)
    design = ernest_design(scale, machines)
    kept = design.kept()
    assert [(int(4 * machines[i]), round(float(scale[i]), 6)) for i in kept] == GOLDEN
    assert design.share @ (scale / scale.min() / machines) == pytest.approx(10.0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_general_convex_solver_finds_the_same_optimum(seed: int) -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    scale, machines = rng.uniform(0.02, 1.0, 40), rng.integers(1, 17, 40).astype(float)
    x, cost = column_scaled(features(scale, machines)), scale / scale.min() / machines
    budget = 0.3 * float(cost.sum())

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        inverse = np.linalg.inv((x.T * w) @ x)
        return float(np.trace(inverse)), -((x @ inverse) ** 2).sum(axis=1)

    # From a point of its own, well inside: the solver knows nothing of ours.
    start = np.full(len(x), 0.9 * budget / cost.sum())
    limit = {"type": "ineq", "fun": lambda w: budget - cost @ w, "jac": lambda _: -cost}
    other = minimize(
        loss, start, jac=True, bounds=[(1e-9, 1.0)] * len(x), constraints=[limit], method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    )  # fmt: skip
    design = designed(x, cost, budget)
    assert design.value == pytest.approx(other.fun, rel=1e-4)
    assert design.value <= other.fun * (1 + 1e-6)
    assert design.bound <= other.fun * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 120), st.integers(1, 6), st.sampled_from("AD"))
def test_a_design_stays_within_its_budget_and_its_own_bound(
    seed: int, n: int, k: int, criterion: str
) -> None:
    x, cost, budget = random_problem(seed, n, k)
    design = designed(x, cost, budget, criterion)
    assert design.gap <= 2e-6
    assert (design.share >= 0).all()
    assert (design.share <= 1).all()
    assert design.share @ cost <= budget * (1 + 1e-9)
    if criterion == "A":
        assert design.bound <= design.value == pytest.approx(trace(x, design.share), rel=1e-6)
    else:
        assert design.value <= design.bound
        sign, log_det = np.linalg.slogdet((x.T * design.share) @ x)
        assert (sign, log_det) == (1.0, pytest.approx(design.value, rel=1e-6, abs=1e-6))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from("AD"))
def test_no_design_within_the_budget_passes_the_bound(seed: int, criterion: str) -> None:
    x, cost, budget = random_problem(seed, 30, 4)
    design = designed(x, cost, budget, criterion)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        share = rng.random(30) ** 4
        share = np.minimum(share * budget / float(share @ cost), 1.0)
        information = (x.T * share) @ x
        if criterion == "A":
            assert np.trace(np.linalg.inv(information)) >= design.bound * (1 - 1e-9)
        else:
            assert np.linalg.slogdet(information)[1] <= design.bound + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from("AD"))
def test_one_more_candidate_never_worsens_a_design(seed: int, criterion: str) -> None:
    x, cost, budget = random_problem(seed, 30, 3)
    few = designed(x[:-1], cost[:-1], budget, criterion)
    more = designed(x, cost, budget, criterion)
    better = few.value - more.value if criterion == "A" else more.value - few.value
    assert better >= -3e-6 * max(1.0, abs(few.value))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from("AD"))
def test_the_order_of_the_candidates_changes_nothing(seed: int, criterion: str) -> None:
    x, cost, budget = random_problem(seed, 25, 4)
    order = np.random.default_rng(seed).permutation(25)
    plain = designed(x, cost, budget, criterion, tolerance=1e-8)
    mixed = designed(x[order], cost[order], budget, criterion, tolerance=1e-8)
    assert mixed.value == pytest.approx(plain.value, rel=1e-6, abs=1e-6)
    assert mixed.share == pytest.approx(plain.share[order], abs=2e-2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_units_of_features_change_no_share_and_units_of_cost_no_value(
    seed: int, unit: float, currency: float
) -> None:
    """The D criterion does not see units; the A one does, unless features are divided by means."""
    x, cost, budget = random_problem(seed, 25, 3)
    other = x * np.array([unit, 1.0, 1.0 / unit])
    for criterion, first, second in (
        ("D", x, other),
        ("A", column_scaled(x), column_scaled(other)),
    ):
        plain = designed(first, cost, budget, criterion)
        scaled = designed(second, cost * currency, budget * currency, criterion)
        moved = 0.0 if criterion == "A" else np.linalg.slogdet(np.diag([unit, 1.0, 1.0 / unit]))[1]
        assert scaled.value == pytest.approx(plain.value + 2 * moved, rel=1e-5, abs=1e-5)


def test_more_money_never_worsens_a_design() -> None:
    x, cost, _ = random_problem(3, 40, 4)
    values = [designed(x, cost, b).value for b in np.geomspace(0.5, 2 * cost.sum(), 12)]
    assert all(a >= b * (1 - 3e-6) for a, b in pairwise(values))


def test_runs_that_were_made_count_and_leave_the_rest_to_the_design() -> None:
    x, cost, budget = random_problem(5, 40, 4)
    known = 1e6 * np.outer(x[0], x[0]) + 1e6 * np.outer(x[1], x[1])
    with_runs = designed(x, cost, budget, known=known)
    without = designed(x, cost, budget)
    assert with_runs.value < without.value
    assert with_runs.gap <= 2e-6


def test_asked_jobs_steer_the_design_towards_what_they_are_made_of() -> None:
    """Where only the slope is asked for, candidates at both ends are run, and none in between."""
    m = np.arange(1.0, 11.0)
    x = np.stack([np.ones(10), m], axis=1)
    design = designed(x, np.ones(10), 2.0, wanted=np.diag([0.0, 1.0]))
    assert set(np.flatnonzero(design.share > 0.5)) == {0, 9}
    assert design.gap <= 2e-6


def test_a_budget_for_everything_runs_everything() -> None:
    x, cost, _ = random_problem(7, 12, 3)
    design = designed(x, cost, float(cost.sum()) * 2)
    assert (design.share == 1.0).all()
    assert design.gap == 0.0
