"""Carrying out a campaign: each result is kept at once; it resumes, and stops at its budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pytest

from forerun.errors import RequestError
from forerun.measure import campaign as campaigns
from forerun.measure.campaign import (
    Campaign,
    CampaignProgress,
    carry_out,
    expected_cost,
    still_open,
)
from forerun.measure.campaign_file import campaign
from forerun.measure.measurement import Measurement
from forerun.measure.task import Task
from tests.measure.conftest import Notes


class Scripted:
    """A carrier whose runs end as told by workers and batch, ok otherwise."""

    name = "scripted"

    def __init__(
        self, ends: Mapping[tuple[int, int], str] | None = None, most: int = 10**9
    ) -> None:
        self.ends, self.most = dict(ends or {}), most
        self.asked: list[Task] = []
        self.starts = self.closed = 0

    def each(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Measurement]]:
        self.starts += 1
        try:
            for i, task in enumerate(tasks):
                if len(self.asked) >= self.most:
                    raise KeyboardInterrupt
                self.asked.append(task)
                status = self.ends.get((task.workers, task.global_batch), "ok")
                yield i, Measurement(status=status, step_seconds=0.1 if status == "ok" else None)
        finally:
            self.closed += 1

    def placement(self, task: Task) -> tuple[int, ...]:
        return (task.workers,)

    def refuses(self, task: Task) -> str | None:
        return "only 4 workers fit" if task.workers > 4 else None


def study(**changes: object) -> Campaign:
    return campaign({
        "workloads": {"mlp": {"entry": "a:b"}},
        "vary": {"workers": [1, 2, 4], "global_batch": [8, 16]}, **changes,
    })  # fmt: skip


def test_every_point_is_run_once_with_one_start_for_each_world_size() -> None:
    runner, notes, told = Scripted(), Notes(), []
    done = carry_out(study(), runner, notes, told.append)
    assert done.made == {"ok": 6}
    assert (done.left, done.stopped) == (0, "")
    assert (runner.starts, runner.closed) == (3, 3)
    assert [one.done for one in told] == [1, 2, 3, 4, 5, 6]
    assert told[-1].seconds_left == 0
    again = carry_out(study(), runner, notes)
    assert (again.made, again.before) == ({}, 6)
    assert len(runner.asked) == 6


@pytest.mark.parametrize("most", range(6))
def test_what_was_finished_before_an_interrupt_is_not_run_again(most: int) -> None:
    notes, first = Notes(), Scripted(most=most)
    with pytest.raises(KeyboardInterrupt):
        carry_out(study(), first, notes)
    assert len(notes.kept) == most
    assert first.closed == first.starts
    second = Scripted()
    done = carry_out(study(), second, notes)
    assert (done.before, done.made) == (most, {"ok": 6 - most})
    assert not set(map(hash, first.asked)) & set(map(hash, second.asked))


def test_failed_runs_are_tried_again_and_those_without_memory_are_not() -> None:
    notes = Notes()
    done = carry_out(study(), Scripted({(2, 8): "failed", (4, 16): "oom"}), notes)
    assert done.made == {"ok": 4, "failed": 1, "oom": 1}
    assert done.left == 1
    assert [(p.task.workers, p.task.global_batch) for p in still_open(study(), notes)] == [(2, 8)]
    assert still_open(study(), notes, retry=False) == []


def test_a_campaign_stops_when_everything_fails() -> None:
    every = {(w, b): "failed" for w in (1, 2, 4) for b in (8, 16)}
    done = carry_out(study(), Scripted(every), Notes())
    assert done.made == {"failed": campaigns.MOST_FAILURES_IN_A_ROW}
    assert "failed one after the other" in done.stopped


def test_what_a_runner_refuses_is_told_and_the_rest_is_run() -> None:
    wide = study(vary={"workers": [4, 8], "global_batch": [8, 16]})
    done = carry_out(wide, Scripted(), Notes())
    assert (done.made, set(done.refused.values())) == ({"ok": 2}, {"only 4 workers fit"})
    assert done.left == 2
    with pytest.raises(RequestError, match="only 4 workers fit"):
        carry_out(study(vary={"workers": 8, "global_batch": 8}), Scripted(), Notes())


def test_no_run_is_begun_that_would_pass_the_budget() -> None:
    price = 3600.0  # dollars an hour: a dollar a second and worker
    foreseen = expected_cost(study(price_usd_per_worker_hour=price), study().points[:1]).dollars
    poor = study(price_usd_per_worker_hour=price, budget={"dollars": foreseen * 0.9})
    runner = Scripted()
    done = carry_out(poor, runner, Notes())
    assert not runner.asked
    assert "money of the budget" in done.stopped
    hasty = study(budget={"time": "2s"})
    assert "time of the budget" in carry_out(hasty, runner, Notes()).stopped
    assert not runner.asked


def test_the_outlook_grows_with_runs_and_workers_and_ends_at_nothing() -> None:
    whole = study(price_usd_per_worker_hour=1.0)
    every, some = expected_cost(whole, whole.points), expected_cost(whole, whole.points[:2])
    assert 0 < some.seconds < every.seconds <= every.most_seconds
    assert 0 < some.dollars < every.dollars <= every.most_dollars
    assert (every.runs, every.starts) == (6, 3)
    assert expected_cost(whole, ()).seconds == 0


@pytest.mark.parametrize("pace", [0.5, 3.0])
def test_seconds_left_follow_what_runs_really_took(
    monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    whole = study()
    assert [len(group) for group in whole.groups()] == [2, 2, 2]

    def expected(first: int, last: int) -> float:  # of two runs the second one needs no start
        return expected_cost(whole, whole.points[first:last], started=first % 2 == 1).seconds

    clock, made = [0.0], [0]
    monkeypatch.setattr(campaigns.time, "monotonic", lambda: clock[0])

    class Paced(Scripted):
        def each(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Measurement]]:
            for done in super().each(tasks):
                clock[0] += pace * expected(made[0], made[0] + 1)
                made[0] += 1
                yield done

    told: list[CampaignProgress] = []
    carry_out(whole, Paced(), Notes(), told.append)
    left = [expected(one.done, len(whole.points)) for one in told]
    assert [one.seconds_left for one in told] == pytest.approx([pace * one for one in left])
    assert left[0] > 0
    assert told[0].left is None, "one run says nothing of how runs differ"
    assert [one.left for one in told[1:]] == [
        pytest.approx((one.seconds_left,) * 3) for one in told[1:]
    ]
    told.clear()
    clock[0], made[0] = 0.0, 0
    carry_out(whole, Paced(), Notes(), told.append, prior=0.5)
    bands = [one.left or (math.nan,) * 3 for one in told]
    assert all(
        low <= one.seconds_left <= high for one, (low, _, high) in zip(told, bands, strict=True)
    )
    widths = [high / low for low, _, high in bands[:-1]]
    assert widths[-1] < widths[0]
    assert bands[-1] == (0.0, 0.0, 0.0)
