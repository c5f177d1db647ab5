"""Searching live: a made-up runner stands for the machines, so that each limit can be seen to hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.advisor.measuring import Profiling
from forerun.advisor.searching import LiveTrials, search_live, with_limits
from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.measure.campaign import Campaign
from forerun.measure.campaign_file import campaign
from forerun.measure.measurement import Measurement
from forerun.measure.runner import TaskRunner
from forerun.measure.task import Task
from forerun.search.bayesian import Bayesian
from forerun.search.following import follow, searcher_of
from forerun.search.landscape import Goal, landscape_of
from forerun.store import open_store
from forerun.tables import Table
from forerun.workloads.rows import runs_from_table

PRICE = 36.0  # a cent a second for each worker


class Machines(TaskRunner):
    """Steps of 8 s of work divided by workers, and 0.5 s for each worker; runs last ten steps."""

    name = "local"

    def __init__(self, fails: int = 0, room: int = 99) -> None:
        super().__init__("", {}, None, 600.0)
        self.asked: list[Task] = []
        self.fails, self.room = fails, room

    def _refuses(self, task: Task) -> str | None:
        return None

    def lacks(self, *tasks: Task) -> str:
        return f"{self.room} workers at most" if tasks[-1].workers > self.room else ""

    def placement(self, task: Task) -> tuple[int, ...]:
        return (task.workers,)

    @property
    def where(self) -> str:
        return "nowhere"

    def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
        for task in tasks:
            self.asked.append(task)
            step = 8.0 / task.workers + 0.5 * task.workers
            lasts = min(10 * step, task.timeout_seconds)
            if task.workers == self.fails:
                yield Measurement("failed", "no such layer", seconds=1.0)
                return
            if lasts < 10 * step:
                yield Measurement("timeout", "too long", step_seconds=step, seconds=lasts)
                return
            yield Measurement(step_seconds=step, seconds=lasts, steps=10)


def space(**changes: Any) -> Campaign:
    """Return a space of six numbers of workers."""
    return campaign({
        "name": "space", "workloads": {"mlp": {"entry": "a:b"}}, "price_usd_per_worker_hour": PRICE,
        "vary": {"workers": [1, 2, 4, 8, 16, 32], "global_batch": 32}, **changes,
    })  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    with open_store(str(tmp_path / "runs.db")) as store:
        yield store


def box_of(
    opened: Any, asked: Campaign, runner: TaskRunner, goal: Goal, **given: Any
) -> LiveTrials:
    return LiveTrials(Profiling(asked, runner, opened, Advisor()), goal, **given)


def test_the_fastest_and_the_cheapest_are_found_by_trials_that_are_kept(opened: Any) -> None:
    runner = Machines()
    box = box_of(opened, space(), runner, Goal("time"))
    trail = follow(searcher_of("grid", box)[0], box, 30)
    assert box.land.words(trail.recommended) == "devices=4 at $144/h"
    assert box.dollars[trail.at].sum() == pytest.approx(
        sum(10 * (8 + 0.5 * n**2) * PRICE / 3600 for n in (1, 2, 4, 8, 16, 32))
    )
    rows = opened.table(campaign="space")
    assert sorted(rows.numbers("price_usd_per_hour") / PRICE) == [1, 2, 4, 8, 16, 32]
    cheapest = box_of(opened, space(), runner, Goal("cost"))
    assert len(cheapest.made) == 6
    trail = follow(searcher_of("grid", cheapest)[0], cheapest, 30, made=cheapest.made)
    assert cheapest.land.words(trail.recommended) == "devices=1 at $36/h"
    assert len(runner.asked) == 6, "what the store has is not measured again"


def test_a_trial_beyond_the_deadline_is_stopped_paid_for_and_never_recommended(opened: Any) -> None:
    box = box_of(opened, space(), Machines(), Goal("cost", 50.0))
    trail = follow(searcher_of("grid", box)[0], box, 30)
    by_workers = dict(zip([1, 2, 4, 8, 16, 32], box.status, strict=True))
    assert by_workers == {
        1: "timeout",
        2: "ok",
        4: "ok",
        8: "ok",
        16: "timeout",
        32: "timeout",
    }
    assert box.lasted.tolist() == [50, 50, 40, 50, 50, 50]
    assert box.land.words(trail.recommended) == "devices=2 at $72/h"
    longer = box_of(opened, space(), Machines(), Goal("cost", 70.0))
    assert len(longer.made) == 3, "what a shorter deadline ended is asked for again"


def test_a_failed_configuration_is_never_asked_for_again_unless_that_is_asked(opened: Any) -> None:
    runner = Machines(fails=4)
    box = box_of(opened, space(), runner, Goal("time"))
    trail = follow(searcher_of("random", box)[0], box, 30)
    assert box.land.words(trail.recommended) == "devices=8 at $288/h"
    assert [task.workers for task in runner.asked].count(4) == 1
    again = box_of(opened, space(), runner, Goal("time"))
    assert len(again.made) == 6
    assert any("1 configuration did not end well before" in note for note in again.notes)
    retried = box_of(opened, space(), Machines(), Goal("time"), retry=True)
    trail = follow(searcher_of("grid", retried)[0], retried, 30, made=retried.made)
    assert retried.land.words(trail.recommended) == "devices=4 at $144/h"


def test_money_and_time_of_the_whole_search_end_it_in_all_sittings(opened: Any) -> None:
    asked = with_limits(space(), dollars=2.0)
    box = box_of(opened, asked, Machines(), Goal("cost"))
    trail = follow(searcher_of("grid", box)[0], box, 30)
    assert len(trail) < 6
    assert box.spent_dollars <= 2.0 + 1e-9
    assert "of the search" in trail.stopped or "is left" in trail.stopped
    again = box_of(opened, asked, Machines(), Goal("cost"))
    more = follow(searcher_of("grid", again)[0], again, 30, made=again.made)
    assert len(more) <= len(trail)
    assert again.spent_dollars <= 2.0 + 1e-9
    timed = with_limits(space(name="timed"), seconds=100.0)
    box = box_of(opened, timed, Machines(), Goal("cost"))
    box._before = box._before.__class__(95.0, 0.0)  # of an earlier sitting
    trail = follow(searcher_of("grid", box)[0], box, 30)
    assert trail.box.lasted.max() <= 5.0
    assert len(trail) == 6 or "left" in trail.stopped or "used" in trail.stopped


def test_five_failures_in_a_row_stop_a_search(opened: Any) -> None:
    class Broken(Machines):
        def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
            yield Measurement("failed", "no torch", seconds=1.0)

    box = box_of(opened, space(), Broken(), Goal("time"))
    trail = follow(searcher_of("grid", box)[0], box, 30)
    assert trail.stopped == "5 trials failed one after the other"
    assert trail.recommended == -1


def test_trials_that_the_machines_have_no_room_for_are_named_and_the_rest_is_done(
    opened: Any,
) -> None:
    box = box_of(opened, space(), Machines(room=8), Goal("time"))
    assert len(box) == 4
    assert box.notes == ["2 trials cannot be made: 8 workers at most"]
    with pytest.raises(RequestError, match="no trial of it can be made"):
        box_of(opened, space(), Machines(room=0), Goal("time"))


def test_what_cannot_be_searched_is_refused_with_a_way_out(opened: Any) -> None:
    with pytest.raises(RequestError, match="give --price USD"):
        box_of(opened, space(price_usd_per_worker_hour=0.0), Machines(), Goal("cost"))
    one = space(vary={"workers": 1, "global_batch": 32})
    with pytest.raises(RequestError, match="one configuration"):
        box_of(opened, one, Machines(), Goal("time"))
    with pytest.raises(RequestError, match="at once with the local runner"):
        box_of(opened, space(), Machines(), Goal("time"), width=2)


def test_each_instance_type_has_its_price(opened: Any) -> None:
    prices = {"small": 1.0, "big": 5.0}
    vary = {"workers": [1, 2], "global_batch": 8, "instance_type": ["small", "big"]}
    box = box_of(
        opened, space(price_usd_per_worker_hour=prices, vary=vary), Machines(), Goal("cost")
    )
    assert sorted(box.land.dollars_per_hour) == [1.0, 2.0, 5.0, 10.0]
    trail = follow(searcher_of("auto", box)[0], box, 30)
    assert trail.searcher == "grid"
    assert "instance_type=small" in box.land.words(trail.recommended)


def test_configurations_of_unequal_batches_are_compared_by_equal_work(opened: Any) -> None:
    vary = {"workers": [1, 2], "global_batch": [8, 32]}
    box = box_of(opened, space(vary=vary), Machines(), Goal("time"))
    trail = follow(searcher_of("grid", box)[0], box, 30)
    assert box.quantity == "pass over 32 samples"
    assert box.land.words(trail.recommended).startswith("devices=2 global_batch=32")
    whole = box_of(
        opened, space(name="d", vary={**vary, "dataset_size": 64}), Machines(), Goal("time")
    )
    assert whole.quantity == "pass over the dataset"


def targets(opened: Any, workload: str = "mlp") -> Any:
    """Return runs that reached a target: twice the samples at a batch of 32 that they took at 8."""
    rows = [
        {"workload": workload, "device": "cpu", "global_batch": b, "devices": 1, "samples_to_target": n, "step_time_s": 1}
        for b, n in ((8, 1000), (16, 1330), (32, 2000), (64, 3340))
    ]  # fmt: skip
    return runs_from_table(Table.from_rows(rows), load_catalog())


def test_where_earlier_runs_reached_the_target_a_trial_is_worth_a_whole_training(
    opened: Any,
) -> None:
    vary = {"workers": [1, 2], "global_batch": [8, 32]}
    box = box_of(opened, space(vary=vary), Machines(), Goal("time"), known=targets(opened))
    trail = follow(searcher_of("scavenger-partial", box)[0], box, 30)
    assert box.quantity == "training to its target"
    batch = box.land.table.numbers("global_batch")
    assert box.samples is not None
    assert np.allclose(box.samples, np.where(batch == 8, 1000, 2000), rtol=0.05)
    steps = 8.0 / box.land.table.numbers("devices") + 0.5 * box.land.table.numbers("devices")
    assert np.allclose(box.seconds, steps * box.samples / batch)
    assert box.land.words(trail.recommended).startswith("devices=2 global_batch=32")
    assert not box.notes
    other = box_of(opened, space(name="b", vary=vary), Machines(), Goal("time"), known=targets(opened, "other"))  # fmt: skip
    assert other.quantity == "pass over 32 samples"
    assert other.notes[0].startswith("times are not those until a target: no run of mlp")


def test_repeats_are_one_configuration_and_their_median_counts(opened: Any) -> None:
    runner = Machines()
    box = box_of(opened, space(repeats=3), runner, Goal("time"))
    follow(searcher_of("grid", box)[0], box, 2)
    assert (len(box), len(runner.asked)) == (6, 6)


def test_trials_run_side_by_side_where_there_is_room(opened: Any) -> None:
    class Cluster(Machines):
        name = "ray"

        def lacks(self, *tasks: Task) -> str:
            return "full" if sum(task.workers for task in tasks) > 40 else ""

    box = box_of(opened, space(runner="ray"), Cluster(), Goal("cost"), width=3)
    trail = follow(searcher_of("random", box)[0], box, 30)
    assert sorted(trail.at.tolist()) == [0, 1, 2, 3, 4, 5]
    assert opened.count() == 6
    assert box.land.words(trail.recommended) == "devices=1 at $36/h"


def test_in_python_a_cost_goal_knows_the_rows_of_a_campaign(opened: Any, tmp_path: Path) -> None:
    """Each suggestion is new, from rows of `profile`, with their prices or without."""
    asked = space()
    box = box_of(opened, asked, Machines(), Goal("cost"))
    follow(searcher_of("grid", box)[0], box, 3)
    runs = opened.runs(campaign="space")
    searcher, made = Bayesian(Goal("cost")), set(box.land.places(landscape_of(runs.jobs)))
    assert len(made - {-1}) == 3
    for stated in (runs.table, runs.table.with_columns(price_usd_per_hour=np.full(3, np.nan))):
        jobs = runs.jobs.__class__(**{**vars(runs.jobs), "labels": stated})
        suggested = searcher.suggest(box.space, runs.__class__(jobs, stated))
        assert len(suggested) == 1
        assert landscape_of(box.space).places(landscape_of(suggested))[0] not in made


def test_the_python_search_does_what_the_command_does(tmp_path: Path) -> None:
    fields = {
        "name": "py", "workloads": {"mlp": {"entry": "a:b"}},
        "vary": {"workers": [1, 2, 4], "global_batch": 8},
    }  # fmt: skip
    seen: list[int] = []
    trail = search_live(
        fields, Machines(), str(tmp_path / "r.db"), searcher="cherrypick", price=PRICE, max_runs=2,
        on_run=lambda trail: seen.append(int(trail.at[-1])),
    )  # fmt: skip
    assert trail.at.tolist() == seen
    assert len(seen) == 2


@pytest.mark.parametrize("searcher", ["random", "grid", "cherrypick", "bayesian", "ernest-design"])
def test_every_searcher_searches_live(opened: Any, searcher: str) -> None:
    vary = {"workers": [1, 2, 4, 8, 16, 32], "global_batch": [32, 64]}
    box = box_of(opened, space(vary=vary), Machines(), Goal("time"))
    chooser, _ = searcher_of(searcher, box)
    trail = follow(chooser, box, 30)
    assert box.land.words(trail.recommended).startswith("devices=4")
    if searcher == "ernest-design":
        assert len(trail) == 10, "a law of four terms for each batch, five runs each"
        assert trail.stopped == "the laws expect no other configuration to be better"
    band = chooser.band(box.land, trail.seen)  # type: ignore[attr-defined]
    assert (band is not None) == (searcher in ("cherrypick", "bayesian"))
    if band is not None:
        assert band[0] <= box.values.min() <= band[1]


@pytest.mark.parametrize("searcher", ["scavenger-full", "scavenger-partial", "pollux"])
def test_scavengers_searchers_search_live(opened: Any, searcher: str) -> None:
    class Sharing(Machines):
        """Steps of 0.25 s for each sample of a worker, and a reduction that grows with workers."""

        def _carry(self, tasks: Sequence[Task]) -> Iterator[Measurement]:
            for task in tasks:
                k = task.workers
                step = 0.25 * int(task.global_batch or 0) / k + (0.5 + 0.4 * (k - 2)) * (k > 1)
                yield Measurement(step_seconds=step, seconds=10 * step, steps=10)

    vary = {"workers": [1, 2, 4, 8, 16, 32], "global_batch": [32, 64, 128]}
    box = box_of(opened, space(vary=vary), Sharing(), Goal("time"))
    chooser, _ = searcher_of(searcher, box)
    trail = follow(chooser, box, 30)
    assert box.land.words(trail.recommended).startswith("devices=8 global_batch=128")
    assert len(trail) == 18 if searcher == "scavenger-full" else len(trail) <= 9


def test_a_suggested_campaign_is_a_space(opened: Any) -> None:
    """What `suggest --campaign` writes: runs one by one, with a price and a budget."""
    runs = [{"workload": "mlp", "workers": n, "global_batch": 32} for n in (1, 4, 8)]
    asked = space(runs=runs, vary={}, budget={"dollars": 100})
    box = box_of(opened, asked, Machines(), Goal("time"))
    trail = follow(searcher_of("cherrypick", box)[0], box, 30)
    assert box.land.words(trail.recommended) == "devices=4 at $144/h"
    assert opened.table(campaign="space").numbers("step_time_s").tolist()
