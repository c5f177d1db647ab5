"""Campaign order: drawn by chance, every pass whole, starts kept together, and equal when resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.measure.campaign_file import campaign


def fields(**more: Any) -> dict[str, Any]:
    """Return a campaign of two models, 36 points and their repeats."""
    return {
        "workloads": {"mlp": {"entry": "a:mlp"}, "cnn": {"entry": "a:cnn"}},
        "vary": {
            "workers": [1, 2, 4], "cpus_per_worker": [0.1, 0.2], "global_batch": [16, 32, 64],
        },
        "order": "random", **more,
    }  # fmt: skip


def test_every_pass_has_every_point_once_and_an_order_of_its_own() -> None:
    found = campaign(fields(repeats=3))
    passes = [found.points[i : i + 36] for i in range(0, 108, 36)]
    assert [{p.repeat for p in one} for one in passes] == [{0}, {1}, {2}]
    orders = [[str(p).partition(", repeat")[0] for p in one] for one in passes]
    assert len({tuple(sorted(one)) for one in orders}) == 1
    assert len({tuple(one) for one in orders}) == 3


def test_what_one_start_carries_out_stays_together_within_its_pass() -> None:
    found = campaign(fields(repeats=2))
    groups = found.groups()
    assert [p for group in groups for p in group] == list(found.points)
    assert len(groups) == 2 * 3 * 2  # passes, workers, shares
    for group in groups:
        assert len({(p.repeat, p.task.workers, p.task.cpus_per_worker) for p in group}) == 1


def test_an_order_is_the_same_again_until_the_seed_is_another() -> None:
    def keys(seed: int) -> list[str]:
        return [p.key for p in campaign(fields(seed=seed)).points]

    assert keys(1) == keys(1)
    places = [[str(p) for p in campaign(fields(seed=seed)).points] for seed in (1, 2)]
    assert places[0] != places[1]
    assert sorted(places[0]) == sorted(places[1])


def test_a_slow_hour_falls_on_no_value_more_than_on_another() -> None:
    """Over many draws each share stands in the middle of the pass; smallest first it does not."""

    def mean_place(order: str, seed: int) -> float:
        points = campaign(fields(seed=seed, order=order)).points
        at = [i for i, p in enumerate(points) if p.task.workers == 4]
        return float(np.mean(at)) / (len(points) - 1)

    assert mean_place("smallest", 0) > 0.8
    assert np.mean([mean_place("random", seed) for seed in range(200)]) == pytest.approx(
        0.5, abs=0.05
    )


def test_without_an_order_small_runs_come_first_and_repeats_share_a_start() -> None:
    found = campaign(fields(repeats=2, order="smallest"))
    assert [p.task.workers for p in found.points] == sorted(p.task.workers for p in found.points)
    assert len(found.groups()) == 3 * 2
    assert found.points == campaign({**fields(repeats=2), "order": "smallest"}).points


def test_another_order_is_told() -> None:
    with pytest.raises(RequestError, match="order"):
        campaign(fields(order="by chance"))
