"""Plain differential evolution: it finds a valley among many, keeps to its bounds, and says how it ended."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.predictors.laws.generic_fit import evolve

Array = NDArray[np.float64]
LOW, HIGH = np.full(3, -5.0), np.full(3, 5.0)


def rastrigin(x: Array) -> Array:
    """The usual trap: a valley beside every whole number, the deepest at 1."""
    away = x - 1.0
    result: Array = np.sum(away**2 - 3 * np.cos(2 * np.pi * away) + 3, axis=1)
    return result


def test_the_deepest_of_many_valleys_is_found() -> None:
    found = evolve(
        rastrigin, LOW, HIGH, members=45, generations=500, tolerance=1e-5, nothing=1e-10, seed=0
    )
    assert found.converged
    assert found.population[0, 0] == pytest.approx(np.ones(3), abs=1e-3)
    assert (np.diff(found.costs[0]) >= 0).all()


def test_no_member_leaves_the_bounds_even_where_the_minimum_lies_beyond() -> None:
    seen: list[Array] = []

    def cost(x: Array) -> Array:
        seen.append(x)
        result: Array = np.sum((x - 9.0) ** 2, axis=1)
        return result

    found = evolve(
        cost, LOW, HIGH, members=30, generations=200, tolerance=1e-4, nothing=1e-10, seed=1
    )
    every = np.concatenate(seen)
    assert (every >= LOW).all()
    assert (every <= HIGH).all()
    assert found.population[0, 0] == pytest.approx(HIGH, abs=0.01)


def test_a_search_that_runs_out_of_generations_says_so_and_keeps_its_best() -> None:
    found = evolve(
        rastrigin, LOW, HIGH, members=45, generations=3, tolerance=1e-9, nothing=1e-10, seed=0
    )
    assert not found.converged
    assert found.generations == 3
    assert found.evaluations == 45 * 4
    assert found.costs[0, 0] == pytest.approx(rastrigin(found.population[0])[0])
