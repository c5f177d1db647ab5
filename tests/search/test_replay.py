"""Replay: a table answers as the black box, a run is stopped and paid for until the deadline."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.errors import RequestError, UnsatisfiedError
from forerun.search.following import follow
from forerun.search.landscape import Goal, landscape_of, seen_of
from forerun.search.replay import Replay
from forerun.search.searchers import RandomSearch
from tests.search.black_boxes import made_up, made_up_rows, measured, runs_of_rows


def row(devices: int, seconds: float, status: str = "ok", price: float = 36.0) -> dict[str, object]:
    return {
        "workload": "made-up", "device": "cpu", "nodes": devices, "devices": devices,
        "price_usd_per_hour": price, "time_to_train_s": seconds, "status": status,
    }  # fmt: skip


def test_a_run_is_stopped_at_the_deadline_and_paid_for_until_then() -> None:
    box = Replay.of(runs_of_rows([row(1, 500), row(2, 90), row(4, 40)]), Goal("cost", 100.0))
    assert box.dollars == pytest.approx([1.0, 0.9, 0.4])  # a cent a second
    assert box.feasible.tolist() == [False, True, True]
    asked = box.ask(box.space)
    assert asked.status.tolist() == ["timeout", "ok", "ok"]
    assert asked.table.numbers("time_to_train_s").tolist() == [100, 90, 40]
    assert box.oracle == pytest.approx(0.4)


def test_a_run_that_ended_below_its_target_is_not_feasible() -> None:
    box = Replay.of(runs_of_rows([row(1, 50, "timeout"), row(2, 90)]), Goal("cost", 100.0))
    assert box.feasible.tolist() == [False, True]
    seen = seen_of(box.land, box.ask(box.space), box.goal)
    assert seen.late.tolist() == [False, False]
    assert seen.feasible.tolist() == [False, True]


def test_of_repeats_the_median_run_counts() -> None:
    runs = runs_of_rows([row(1, s) for s in (70, 50, 60)] + [row(2, 99)])
    box = Replay.of(runs, Goal("time"))
    assert box.seconds.tolist() == [60, 99]


def test_what_is_seen_through_runs_is_what_the_box_says() -> None:
    box = made_up()
    at = np.array([5, 60, 17, 95])
    direct, read = box.seen(at), seen_of(box.land, box.ask(box.space.take(at)), box.goal)
    for name in ("at", "seconds", "feasible", "late", "unknown"):
        assert getattr(direct, name).tolist() == getattr(read, name).tolist()


def test_the_axes_are_what_varies_from_zero_to_one_and_say_each_thing_once() -> None:
    land = made_up().land
    assert set(land.axes) == {
        "nodes",
        "machine price",
        "micro_batch",
        "learning_rate",
        "sync=ps-sync",
    }  # devices repeat nodes
    assert land.features.min() == 0
    assert land.features.max() == 1


def test_runs_of_unknown_jobs_teach_nothing() -> None:
    box = made_up()
    other = runs_of_rows([row(3, 10.0)])
    assert len(seen_of(box.land, other, box.goal)) == 0
    with pytest.raises(RequestError, match="no run of it"):
        box.places(other.jobs)


def test_prices_are_told_apart() -> None:
    """The same machines at another price are another configuration."""
    land = landscape_of(runs_of_rows([row(1, 50), row(1, 50, price=18.0)]).jobs)
    assert len(set(land.keys)) == 2


def test_bad_tables_are_refused_with_a_way_out() -> None:
    with pytest.raises(
        UnsatisfiedError, match=r"nearest: 40 s with nodes=4 devices=4; 90 s"
    ) as miss:
        Replay.of(runs_of_rows([row(1, 500), row(2, 90), row(4, 40)]), Goal("cost", 10.0))
    assert "--deadline" in miss.value.next_step
    with pytest.raises(UnsatisfiedError, match="2 timeout"):
        Replay.of(runs_of_rows([row(1, 50, "timeout"), row(2, 60, "timeout")]), Goal("cost", 10.0))
    with pytest.raises(RequestError, match="one configuration"):
        Replay.of(runs_of_rows([row(1, 50), row(1, 51)]), Goal("cost", 100.0))
    unpriced = [{k: v for k, v in row(n, 50).items() if k != "price_usd_per_hour"} for n in (1, 2)]
    with pytest.raises(RequestError, match="2 of 2 configurations have no price"):
        Replay.of(runs_of_rows(unpriced), Goal("cost", 100.0))
    assert Replay.of(runs_of_rows(unpriced), Goal("time", 100.0)).oracle == 50
    timeless = [{k: v for k, v in row(n, 50).items() if k != "time_to_train_s"} for n in (1, 2)]
    with pytest.raises(RequestError, match="none of them states a time"):
        Replay.of(runs_of_rows(timeless), Goal("cost", 100.0))


def test_a_goal_that_means_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="no such aim"):
        Goal("money")
    with pytest.raises(RequestError, match="not above zero"):
        Goal("cost", 0.0)


def test_how_many_runs_and_dollars_it_took_is_counted_to_the_first_near_one() -> None:
    box = made_up()
    order = np.argsort(-np.where(np.isfinite(box.values), box.values, 1e9), kind="stable")
    trail = follow(RandomSearch(box.goal, 2), box, 96, until_near=True)
    near = box.values[trail.at] <= 1.1 * box.oracle
    assert near.tolist() == [False] * (len(trail) - 1) + [True]
    assert trail.runs_until_near == len(trail)
    assert trail.dollars_until_near == pytest.approx(box.dollars[trail.at].sum())
    assert box.values[order[-1]] == box.oracle


def test_the_measured_tables_have_the_oracles_that_are_known() -> None:
    """2 of 384 and 1 of 288 (the whole data set) lie within 10 % of the oracle."""
    for table, where, count, near in (
        ("lynceus", {}, 384, 2), ("trimtuner", {"dataset_size": 60000.0}, 288, 1),
    ):  # fmt: skip
        box = measured(table, Goal("cost", 300.0), **where)
        assert len(box) == count
        assert int((box.values <= 1.1 * box.oracle).sum()) == near


def test_rows_of_another_seed_are_another_table() -> None:
    assert made_up_rows(0) != made_up_rows(1)
