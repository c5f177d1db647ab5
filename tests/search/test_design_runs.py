"""Whole runs of a design: within the budget, near the bound, and better than a threshold."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import UnsatisfiedError
from forerun.search.design import Problem, optimal_design, whole_runs


def problem(seed: int, n: int, k: int, criterion: str) -> Problem:
    rng = np.random.default_rng(seed)
    x, cost = rng.lognormal(0, 1, (n, k)), rng.lognormal(0, 1, n)
    budget = max(float(cost.sum() * rng.uniform(0.3, 0.7)), float(cost.min()))
    return Problem(x, cost, budget, np.zeros((k, k)), np.eye(k), criterion)


def chosen(of: Problem, count: int | None = None) -> tuple[list[int], float]:
    return whole_runs(of, optimal_design(of).share, count)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from("AD"), st.integers(2, 8))
def test_whole_runs_keep_to_the_budget_and_the_count_and_never_pass_the_bound(
    seed: int, criterion: str, count: int
) -> None:
    of = problem(seed, 20, 3, criterion)
    runs, value = chosen(of, count)
    assert len(runs) == len(set(runs)) <= count
    assert of.c[runs].sum() <= of.budget * (1 + 1e-9)
    bound = optimal_design(of).bound
    assert value >= bound * (1 - 1e-9) if criterion == "A" else value <= bound + 1e-9


@pytest.mark.parametrize("criterion", ["A", "D"])
def test_whole_runs_come_near_the_best_of_all_subsets(criterion: str) -> None:
    ratios = []
    for seed in range(12):
        of = problem(seed, 10, 3, criterion)
        values = []
        for size in range(3, 11):
            for subset in combinations(range(10), size):
                rows = list(subset)
                if of.c[rows].sum() <= of.budget:
                    information = of.x[rows].T @ of.x[rows]
                    values.append(
                        np.trace(np.linalg.inv(information))
                        if criterion == "A"
                        else np.linalg.slogdet(information)[1]
                    )
        if values:
            best = min(values) if criterion == "A" else max(values)
            mine = chosen(of)[1]
            ratios.append(mine / best if criterion == "A" else np.exp((best - mine) / 3))
    assert np.median(ratios) < 1.02
    assert max(ratios) < 1.5


def test_too_few_runs_for_the_law_have_an_endless_variance() -> None:
    of = problem(1, 12, 4, "A")
    assert chosen(of, 3)[1] == np.inf


def test_a_budget_below_the_cheapest_run_names_it() -> None:
    of = problem(2, 12, 3, "A")
    poor = Problem(of.x, of.c, float(of.c.min()) / 2, of.known, of.wanted, "A")
    with pytest.raises(UnsatisfiedError, match="the cheapest candidate costs"):
        whole_runs(poor, np.full(12, 0.1))
