"""Work: what is tried is counted, so that a slow machine chooses as a fast one does, and told."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from forerun import registry
from forerun.predictors.choice import Auto, work
from forerun.predictors.choice.trials import Trials, trials_of
from forerun.predictors.choice.work import COSTS, USUAL, Cost, Ledger, counted_work
from tests.predictors.choice.rows import grid_rows, jobs_of, runs_of

NAMES = ("ernest", "linear-scaling")


def trials() -> Trials:
    runs = runs_of([*grid_rows(), *grid_rows("other-net")])
    return trials_of(NAMES, "priors", runs, "step")


def clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """Let the processor's clock move so many seconds each time that it is read."""
    ticks = count()
    monkeypatch.setattr(work.time, "process_time", lambda: step * next(ticks))


def test_every_predictor_has_a_measured_cost() -> None:
    assert set(COSTS) == set(registry.names("predictors")) - {"auto"}
    assert counted_work("no such one", 1000, 10) == pytest.approx(USUAL.of(1000, 10))
    assert Cost(1.0, 2.0, 3.0).of(500, 100) == pytest.approx(1.0 + 1.0 + 0.3)


def test_a_slower_machine_tries_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = trials()
    clock(monkeypatch, 3.0)
    slow = trials()
    np.testing.assert_array_equal(slow.error, fast.error)
    assert (slow.folds, slow.cut, slow.dropped) == (fast.folds, 0, {})


def test_all_is_stopped_where_it_is_work_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trials()
    monkeypatch.setattr(work, "MOST_WORK_IN_ALL", 0.3)
    found = trials()
    assert 0 < len(found.folds) < len(whole.folds)
    assert found.cut == len(whole.folds) - len(found.folds)
    assert not found.late
    clock(monkeypatch, 3.0)
    assert trials().folds == found.folds
    said = Auto(names=NAMES).fit(runs_of([*grid_rows(), *grid_rows("other-net")])).reasons
    assert any("to leave runs out not tried" in words and "any machine" in words for words in said)


def test_a_clock_far_beyond_stops_it_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_SECONDS", 1e9)
    clock(monkeypatch, 100.0)
    found = trials()
    assert found.cut > 0
    assert found.late
    said = Auto(names=NAMES).fit(runs_of([*grid_rows(), *grid_rows("other-net")])).reasons
    assert any("this machine's processor" in words for words in said)


def test_one_candidate_is_stopped_by_count_or_by_clock_and_told_which() -> None:
    ledger = Ledger()
    with ledger.entry(("generic", "ernest"), 1000, 30_000):
        pass
    assert "of work" in ledger.why_done("generic")
    assert ledger.why_done("ernest") == ""
    ledger.took["ernest"] = work.MOST_SECONDS + 1
    assert "processor" in ledger.why_done("ernest")


def test_the_order_of_runs_neither_moves_draws_nor_what_is_thinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More runs than are tried, of which fewer are judged, repeats and all: each is drawn."""
    from forerun.predictors.choice import trials as module

    monkeypatch.setattr(module, "MOST_RUNS", 24)
    monkeypatch.setattr(module, "MOST_JUDGED", 5)
    rows = [
        {**row, "step_time_s": row["step_time_s"] * (1 + 0.01 * turn)}
        for turn in range(2)
        for row in [*grid_rows("my-net"), *grid_rows("other-net"), *grid_rows(device="my-other")]
    ]
    asked = jobs_of(grid_rows(machines=(1, 3, 16)))
    order = np.random.default_rng(1).permutation(len(rows))
    first, second = (
        Auto(names=NAMES).fit(runs_of(some)).predict(asked)
        for some in (rows, [rows[i] for i in order])
    )
    np.testing.assert_allclose(second.seconds, first.seconds, rtol=1e-9)
    assert list(second.by) == list(first.by)  # type: ignore[arg-type]
