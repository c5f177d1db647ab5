"""Sittings of a campaign: one budget and one forecast for all of them, and limits that can be raised."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from forerun.advisor import Advisor
from forerun.advisor.measuring import PointFacts, Profiling, StoreLedger
from forerun.measure.campaign import (
    STARTUP_SECONDS,
    Campaign,
    CampaignProgress,
    carry_out,
    expected_cost,
    still_open,
)
from forerun.measure.campaign_file import campaign
from forerun.measure.local import LocalRunner
from forerun.measure.measurement import Measurement
from forerun.measure.processes import RUNNER
from forerun.measure.task import Task
from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.workloads.rows import parse_placement
from tests.measure.entries import ENTRIES

EACH_SECONDS = 100.0


class Told:
    """A carrier whose runs took 100 s each, as they say, and end as asked, by the global batch."""

    name = "told"

    def __init__(self, ends: Mapping[int, Measurement] | None = None) -> None:
        self.ends = dict(ends or {})
        self.asked: list[int] = []

    def each(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Measurement]]:
        for i, task in enumerate(tasks):
            self.asked.append(task.global_batch)
            usual = Measurement(step_seconds=0.1, seconds=EACH_SECONDS)
            yield i, self.ends.get(task.global_batch, usual)

    def placement(self, task: Task) -> tuple[int, ...]:
        return (task.workers,)

    def refuses(self, task: Task) -> str | None:
        return None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with open_store(str(tmp_path / "runs.db")) as opened:
        yield opened


def study(entry: str = "a:b", **changes: object) -> Campaign:
    return campaign({
        "name": "study", "workloads": {"mlp": {"entry": entry}},
        "vary": {"workers": 2, "global_batch": [8, 16, 32]}, **changes,
    })  # fmt: skip


def test_a_budget_is_one_for_all_sittings(store: SqlStore) -> None:
    price = 36.0  # a run of 100 s on 2 workers costs 2 dollars
    for limit, said in (({"time": "250s"}, "time"), ({"dollars": 5}, "money")):
        asked = study(name=said, budget=limit, price_usd_per_worker_hour=price)
        ledger = StoreLedger(store, asked, {})
        for sitting, point in enumerate(asked.points[:2]):
            ledger.begin()
            ledger.keep(point, Measurement(seconds=EACH_SECONDS, step_seconds=0.1))
            assert ledger.spent().seconds == pytest.approx((sitting + 1) * EACH_SECONDS)
        assert ledger.spent().dollars == pytest.approx(4 * EACH_SECONDS * price / 3600)
        runner = Told()
        slow = {point.key: 60.0 for point in asked.points}  # seconds of a step
        done = carry_out(asked, runner, ledger, step_seconds=slow)
        assert not runner.asked, f"what is left of the {said} does not suffice for a third run"
        assert f"would pass the {said} of the budget" in done.stopped
        more = study(
            name=said, budget={"time": "1d", "dollars": 500}, price_usd_per_worker_hour=price
        )
        assert carry_out(more, runner, ledger, step_seconds=slow).made == {"ok": 1}
        used = study(name=said, budget=limit, price_usd_per_worker_hour=price, repeats=2)
        assert f"the {said} of the budget" in carry_out(used, runner, ledger).stopped
        assert runner.asked == [32]


def test_of_runs_that_share_a_start_none_goes_on_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SqlStore
) -> None:
    """Real processes: the second run would take an hour, so they end after the first."""
    (tmp_path / "toys.py").write_text(ENTRIES)
    monkeypatch.chdir(tmp_path)
    asked = study(
        "toys:mlp", vary={"workers": 1, "global_batch": [8, 16, 32]}, budget={"time": "30min"},
        steps={"warmup": 1, "least": 5, "most": 10, "seconds": "2h", "half_width": "50%"},
    )  # fmt: skip
    assert len(asked.groups()) == 1
    believed = {asked.points[0].key: 0.001, asked.points[1].key: 3600.0}
    ledger = StoreLedger(store, asked, {})
    done = carry_out(asked, LocalRunner(folder=tmp_path / "runs"), ledger, step_seconds=believed)
    assert done.made == {"ok": 1}
    assert "the next run would pass the time of the budget" in done.stopped
    assert [p.task.global_batch for p in still_open(asked, ledger)] == [16, 32]
    assert not workers_of_this_process()
    assert list((tmp_path / "runs").iterdir()) == []


def workers_of_this_process() -> list[str]:
    """Return the workers that a runner of this process started and that still run."""
    mark, found = f"{RUNNER}={os.getpid()}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_a_start_that_is_made_already_is_not_counted_again() -> None:
    asked = study(vary={"workers": [1, 2], "global_batch": [8, 16]})
    whole, rest = (expected_cost(asked, asked.points, started=started) for started in (False, True))
    assert whole.seconds - rest.seconds == pytest.approx(STARTUP_SECONDS["local"])
    first, second = (expected_cost(asked, asked.points[i : i + 1], {}, i > 0) for i in (0, 1))
    assert first.seconds - second.seconds == pytest.approx(STARTUP_SECONDS["local"])


def test_price_budget_and_time_left_rest_on_the_advisor_s_forecast(store: SqlStore) -> None:
    """An MLP takes a T4 far less than the usual guess of a step: its runs fit, and are begun."""
    asked = study(
        "examples.lab_models:mlp", device="t4", budget={"time": "12s"},
        vary={"workers": 1, "global_batch": [8, 16, 32]},
    )  # fmt: skip
    runner, told = Told(), list[CampaignProgress]()
    profiling = Profiling(asked, runner, store, Advisor())
    planned = profiling.planned()
    assert planned.forecast == 3
    assert planned.outlook.seconds < 12
    done = profiling.carried_out(told.append)
    assert done.made == {"ok": 3}, done.stopped
    assert told[0].seconds_left < 12
    low, middle, high = planned.left_seconds or (math.nan,) * 3
    assert 0 < low < middle < high <= 12, "no more than the budget"


def test_nothing_is_stored_of_a_campaign_that_is_only_planned(store: SqlStore) -> None:
    asked = study(device="t4")
    Profiling(asked, Told(), store, Advisor()).planned()
    assert store.campaigns.get("study") is None
    Profiling(asked, Told(), store, Advisor()).carried_out(lambda progress: None)
    stored = store.campaigns.get("study")
    assert stored is not None
    other = study(device="t4", repeats=3)
    Profiling(other, Told(), store, Advisor()).planned()
    again = store.campaigns.get("study")
    assert again is not None
    assert again.spec == stored.spec, "a plan alone replaced what was asked for"


def test_a_run_that_its_limit_ended_is_open_again_with_a_larger_one(store: SqlStore) -> None:
    late = Told({16: Measurement("timeout", "ended", seconds=60)})
    short = study(timeout="1min")
    ledger = StoreLedger(store, short, {})
    assert carry_out(short, late, ledger).made == {"ok": 2, "timeout": 1}
    for same in ("1min", "30s"):
        assert still_open(study(timeout=same), ledger) == []
    longer = study(timeout="2min")
    [point] = still_open(longer, ledger)
    assert point.task.global_batch == 16
    assert carry_out(longer, late, ledger).made == {"timeout": 1}
    assert still_open(longer, ledger) == [], "the limit that is kept is the last one"
    assert carry_out(study(timeout="3min"), Told(), ledger).made == {"ok": 1}
    assert still_open(study(timeout="1h"), ledger) == []


def test_a_run_that_hung_is_open_again_with_more_patience_also_without_retries(
    store: SqlStore,
) -> None:
    hung = Told({8: Measurement("failed", "no step for 60 s: it hangs at step 3"),
                 16: Measurement("failed", "killed by signal 9")})  # fmt: skip
    short = study(hang="1min")
    ledger = StoreLedger(store, short, {})
    carry_out(short, hung, ledger)
    assert still_open(short, ledger, retry=False) == []
    assert [p.task.global_batch for p in still_open(short, ledger)] == [8, 16]
    for longer in (study(hang="2min"), study()):  # without `hang` there is no such limit
        assert [p.task.global_batch for p in still_open(longer, ledger, retry=False)] == [8]


@pytest.mark.parametrize("counts", [(1, 1), (2,), (12, 12), (11,), (3, 2)])
def test_a_placement_is_read_again_as_it_was_also_with_many_workers_a_node(
    counts: tuple[int, ...],
) -> None:
    row = PointFacts(placement=counts).columns()
    assert parse_placement(str(row["placement"]), sum(counts), len(counts)) == counts
    assert PointFacts(placement=(1, 1)).columns()["placement"] == "1-1"
