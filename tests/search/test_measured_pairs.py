"""Measured pairs: where it is said that one plan beats another, it does about so often."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pair_reliability import claims, measured_rows
from forerun.advisor.given_runs import runs_of
from forerun.catalog import load_catalog
from forerun.predictors.analytic import AnalyticPredictor
from tests.needs import published

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("table", "kind"),
    [("ultrascale", "plan"), ("ultrascale", "cluster"), ("sia", "cluster"), ("llm_foundry", "device"),
     ("vtrain", "cluster")],
)  # fmt: skip
def test_the_favourite_wins_about_as_often_as_is_said(table: str, kind: str) -> None:
    """Bands as they are stated: nothing but the correlation is in question beside them."""
    runs = runs_of([published(table)], load_catalog())
    rows = measured_rows(runs, AnalyticPredictor())
    chance, won = claims(rows, kind, "shared", own=False).T
    assert won.mean() >= chance.mean() - 0.07  # it may claim less than it knows
    sure = chance >= 0.9
    assert won[sure].mean() >= 0.9
    unsure = chance < 0.6
    assert won[unsure].mean() <= 0.8 or np.sum(unsure) < 100
    alone = claims(rows, kind, "independent", own=False)
    assert np.mean((chance - won) ** 2) <= np.mean((alone[:, 0] - alone[:, 1]) ** 2) + 0.005
