"""Scavenger's and Pollux's searchers: extremes first, both laws, others' runs, and what none of them may do."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.contracts import Searcher
from forerun.errors import RequestError
from forerun.search.following import Trail, follow, searcher_of
from forerun.search.landscape import Goal
from forerun.search.replay import Replay
from forerun.search.scaling import Scale, step_forecasts, whole_forecasts
from forerun.search.scavenger import (
    PolluxPolicy,
    ScavengerFull,
    ScavengerNone,
    ScavengerPartial,
    universal,
)
from forerun.testing import SearcherContract
from tests.search.black_boxes import runs_of_rows

WORKERS, BATCHES = (1, 2, 4, 6, 8), (32, 64, 128, 256, 512)


class TestPartial(SearcherContract):
    """The partial search under the exam."""

    def make_searcher(self) -> Searcher:
        return ScavengerPartial(stops=False)


class TestPollux(SearcherContract):
    """Pollux's policy under the exam."""

    def make_searcher(self) -> Searcher:
        return PolluxPolicy(stops=False)


def trainings(
    workload: str = "net", critical: float = 300.0, reduction: float = 0.004, seed: int = 0,
    noise: float = 0.0, **more: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return trainings to a target on 1 to 8 workers: Pollux's law of steps, samples by the critical batch."""
    rng, rows = np.random.default_rng(seed), []
    for k, b in product(WORKERS, BATCHES):
        step = 0.005 + 0.0008 * b / k + (reduction * (1 + 0.3 * (k - 2)) if k > 1 else 0.0)
        samples = 40_000 * (1 + b / critical)
        step, samples = (v * np.exp(noise * rng.standard_normal()) for v in (step, samples))
        rows.append({
            "workload": workload, "device": "cpu", "nodes": 1, "devices": k, "global_batch": b,
            "micro_batch": -(-b // k), "step_time_s": step, "samples_to_target": samples,
            "time_to_train_s": step * samples / b, "price_usd_per_hour": 0.1 * k, "status": "ok", **more,
        })  # fmt: skip
    return rows


def box_of(aim: str = "time", limit: float = np.inf, **what: Any) -> Replay:
    return Replay.of(runs_of_rows(trainings(**what)), Goal(aim, limit))


def test_a_partial_search_foretells_the_time_of_trainings_that_it_did_not_make() -> None:
    errors = []
    for seed in range(5):
        box = box_of(seed=seed, noise=0.02)
        scale = Scale.of(box.land, "a search")
        points = np.array(ScavengerPartial().points(scale))
        assert len(points) == 5
        found = whole_forecasts(scale, box.seen(points))
        other = np.setdiff1d(np.arange(len(box)), points)
        errors += np.abs(found[other, 1] / box.seconds[other] - 1).tolist()
        assert np.allclose(found[points, 1], box.seconds[points])
        assert (found[:, 0] <= found[:, 1]).all()
        assert (found[:, 1] <= found[:, 2]).all()
    assert np.mean(errors) < 0.06


def test_a_partial_search_finds_the_best_with_few_trainings() -> None:
    for aim, seed in product(("time", "cost"), range(3)):
        box = box_of(aim, seed=seed, noise=0.02)
        trail = follow(ScavengerPartial(box.goal, seed), box, 30)
        assert trail.regret < 0.05
        assert len(trail) <= 9
        assert trail.stopped == "the laws expect no other configuration to be better"


def test_a_full_search_makes_every_training_once() -> None:
    box = box_of()
    trail = follow(ScavengerFull(box.goal), box, 100)
    assert sorted(trail.at.tolist()) == list(range(25))


def test_each_kind_of_machine_has_its_extremes() -> None:
    rows = trainings() + [
        {**row, "device": "gpu", "price_usd_per_hour": row["devices"]} for row in trainings()
    ]
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    scale = Scale.of(box.land, "a search")
    points = scale.extremes(middle=False)
    assert len(points) == 8
    assert sorted({(scale.workers[i], scale.batch[i]) for i in points}) == [
        (1, 32), (1, 512), (8, 32), (8, 512),
    ]  # fmt: skip


def test_pollux_starts_small_and_never_more_than_doubles_its_workers() -> None:
    for seed in range(4):
        box = box_of(seed=seed, noise=0.02)
        trail = follow(PolluxPolicy(box.goal, seed), box, 30)
        workers = box.land.table.numbers("devices")[trail.at]
        assert workers[0] == 1
        most = np.maximum.accumulate(workers)
        assert (workers[1:] <= np.maximum(2 * most[:-1], 2)).all()
        assert trail.regret < 0.1
        assert len(trail) < 15


def test_without_a_search_the_shape_of_other_workloads_decides() -> None:
    box = box_of(critical=2000.0)
    known = runs_of_rows(
        [
            row
            for name, critical in (("a", 1500.0), ("b", 2500.0))
            for row in trainings(name, critical)
        ]
    )
    trail = follow(searcher_of("scavenger-none", box, known=known)[0], box, 30)
    assert trail.regret < 0.05
    assert len(trail) <= 3, "one training, and those that its level makes look better"
    assert "2 other workloads" in trail.reasons[0]


def test_models_of_a_like_size_count_for_more() -> None:
    far = trainings("far", 50.0, params=1_000_000_000, layers=2, hidden=64)
    near = trainings("near", 3000.0, params=1_000_000, layers=2, hidden=64)
    box = box_of(critical=3000.0, params=1_000_000)
    scale = Scale.of(box.land, "a search")
    table = box.land.table.with_columns(params=np.full(25, 1e6))
    land = box.land.__class__(table, box.land.dollars_per_hour)
    shape, who = universal(runs_of_rows(far + near), land, scale, np.full(25, np.nan))
    truth = np.log(box.seconds) - np.log(box.seconds).mean()
    assert "near most of all" in who
    alone, _ = universal(runs_of_rows(far), land, scale, np.full(25, np.nan))
    assert np.abs(shape - truth).max() < 0.2 * np.abs(alone - truth).max()


@pytest.mark.parametrize("known", [None, "own", "one point", "no batch"])
def test_no_search_without_others_runs_is_refused(known: str | None) -> None:
    box = box_of()
    blank = [{**row, "global_batch": "", "micro_batch": ""} for row in trainings("a")]
    rows = {None: [], "own": trainings(), "one point": trainings("a")[:1], "no batch": blank}[known]
    searcher = ScavengerNone(box.goal, known=runs_of_rows(rows) if rows else None)
    with pytest.raises(
        RequestError, match=r"add --known|no run of another|different run|states its batch"
    ):
        follow(searcher, box, 3)


def test_a_space_without_workers_or_batches_is_refused() -> None:
    rows = [{**row, "global_batch": "", "micro_batch": ""} for row in trainings()[::5]]
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    with pytest.raises(RequestError, match="state no workers or no batch"):
        follow(ScavengerPartial(box.goal), box, 3)


def test_one_number_of_workers_has_a_law_of_the_batch_alone() -> None:
    rows = [row for row in trainings() if row["devices"] == 1]
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    scale = Scale.of(box.land, "a search")
    at = np.array(scale.extremes(middle=True))
    found = whole_forecasts(scale, box.seen(at))
    assert np.allclose(found[:, 1], box.seconds, rtol=0.05)
    steps = step_forecasts("goodput", scale, at[:2], np.array([1.0, 2.0]))
    assert np.isnan(steps[2:]).any()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000), slower=st.floats(0.1, 50.0),
    kind=st.sampled_from([ScavengerPartial, PolluxPolicy, ScavengerFull]),
)  # fmt: skip
def test_the_unit_of_time_decides_nothing_and_nothing_is_run_twice(
    seed: int, slower: float, kind: Any
) -> None:
    def trail(factor: float, runs: int) -> Trail:
        rows = [
            {**row, **{n: row[n] * factor for n in ("step_time_s", "time_to_train_s")}}
            for row in trainings(seed=seed, noise=0.03)
        ]
        box = Replay.of(runs_of_rows(rows), Goal("time"))
        return follow(kind(box.goal, seed), box, runs)

    one, other = trail(1.0, 12), trail(slower, 5)
    assert one.at[:5].tolist() == other.at[:5].tolist()
    assert len(set(one.at.tolist())) == len(one)
    assert one.recommended in one.at


def test_a_table_of_steps_has_the_law_of_steps() -> None:
    rows = [{k: v for k, v in row.items() if k not in ("samples_to_target", "time_to_train_s")} for row in trainings()]  # fmt: skip
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    scale = Scale.of(box.land, "a search")
    points = np.array(scale.extremes(middle=True))
    assert np.allclose(whole_forecasts(scale, box.seen(points))[:, 1], box.seconds, rtol=0.15)
    trail = follow(ScavengerPartial(box.goal), box, 30)
    asked = ScavengerPartial(box.goal).suggest(box.space, box.ask(box.space.take(trail.at[:5])))
    assert box.places(asked).tolist() == trail.at[5:6].tolist()


def test_trainings_of_several_optimizers_have_a_curve_each() -> None:
    rows = trainings(optimizer="sgd")
    rows += [
        {**row, "optimizer": "adam", "samples_to_target": 10 * row["samples_to_target"],
         "time_to_train_s": 10 * row["time_to_train_s"]}
        for row in rows
    ]  # fmt: skip
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    scale = Scale.of(box.land, "a search")
    points = np.array(scale.extremes(middle=True))
    assert len(points) == 10
    found = whole_forecasts(scale, box.seen(points))[:, 1]
    assert np.abs(found / box.seconds - 1).max() < 0.25


def test_a_learning_rate_that_follows_the_batch_makes_no_kinds() -> None:
    rows = [{**row, "learning_rate": 0.001 * row["global_batch"] / 32} for row in trainings()]
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    assert len(Scale.of(box.land, "a search").extremes(middle=True)) == 5
    free = [{**row, "learning_rate": rate} for row in trainings() for rate in (0.1, 0.01)]
    box = Replay.of(runs_of_rows(free), Goal("time"))
    assert len(Scale.of(box.land, "a search").extremes(middle=True)) == 10


def test_a_search_goes_on_where_all_extremes_miss_the_deadline() -> None:
    box = box_of(limit=1.05 * box_of().values.min())
    points = ScavengerPartial(box.goal).points(Scale.of(box.land, "a search"))
    assert not box.feasible[points].all()
    hard = [i for i in points if box.feasible[i]]
    box.status[hard] = "failed"  # none of the first points ends in time
    trail = follow(ScavengerPartial(box.goal), box, 30)
    assert len(trail) > 5
    assert trail.reasons[5].startswith("no law yet")


def test_other_workloads_say_nothing_of_several_machines() -> None:
    rows = trainings() + [
        {**row, "device": "gpu", "price_usd_per_hour": row["devices"]} for row in trainings()
    ]
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    with pytest.raises(RequestError, match="differ in more than workers and batch"):
        follow(ScavengerNone(box.goal, known=runs_of_rows(trainings("a"))), box, 3)


def test_other_workloads_are_read_by_what_is_timed() -> None:
    """Where a run is a step, or all do equally many samples, others' samples until a target do not count."""
    rows = [{k: v for k, v in row.items() if k not in ("samples_to_target", "time_to_train_s")} for row in trainings()]  # fmt: skip
    box = Replay.of(runs_of_rows(rows), Goal("time"))
    trail = follow(ScavengerNone(box.goal, known=runs_of_rows(trainings("a", 50.0))), box, 30)
    assert trail.regret < 0.05
    scale, known = Scale.of(box.land, "a search"), runs_of_rows(trainings("a", 50.0, params=10**30))
    land = box.land.__class__(box.land.table.with_columns(params=np.full(25, 1.0)), box.land.dollars_per_hour)  # fmt: skip
    shape = universal(known, land, scale, None)[0]
    each = np.log(box.seconds / scale.batch)
    assert np.abs(shape - each + each.mean()).max() < 0.1, "also of a model of quite another size"


def test_a_search_that_ends_among_its_first_points_says_so() -> None:
    box = box_of()
    short = follow(ScavengerPartial(box.goal), box, 2).stopped
    assert short.endswith("3 fewer than the first points that scavenger-partial goes by")
    assert follow(ScavengerPartial(box.goal), box, 5).stopped.endswith(
        "the most that it may ask for"
    )
