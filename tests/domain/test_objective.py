"""Objective: limits that no job can meet by their form are refused at once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forerun.domain.objective import AIMS, MARKETS, Objective
from forerun.errors import RequestError


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"aim": "fun"}, "time, cost, knee, energy"),
        ({"market": "black"}, "on-demand, spot, any"),
        ({"deadline_seconds": 0}, "deadline seconds 0"),
        ({"deadline_seconds": -3.0}, "positive number"),
        ({"deadline_seconds": math.inf}, "finite"),
        ({"budget_dollars": math.nan}, "budget dollars nan"),
        ({"confidence": 0.0}, "0.01 to 0.999"),
        ({"confidence": 1.0}, "0.01 to 0.999"),
        ({"fit_confidence": math.nan}, "fit confidence nan"),
    ],
)
def test_an_impossible_objective_says_what_is_possible(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Objective(**change)


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("market", MARKETS)
def test_every_aim_goes_with_every_market(aim: str, market: str) -> None:
    assert Objective(aim, 1e-9, 1e-9, 0.01, 0.999, market).aim == aim
