"""The searchers: each passes the exam, resumes from its runs, and recommends only what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import registry
from forerun.contracts import Searcher
from forerun.search.bayesian import Bayesian
from forerun.search.cherrypick import LEAST_RUNS, CherryPick
from forerun.search.ernest_design import ErnestDesign
from forerun.search.following import follow
from forerun.search.landscape import Goal, ObservedRuns
from forerun.search.replay import Replay
from forerun.search.scavenger import PolluxPolicy, ScavengerFull, ScavengerPartial
from forerun.search.searchers import Choosing, GridSearch, RandomSearch
from forerun.tables import Jobs, Runs
from forerun.testing import SearcherContract
from tests.search.black_boxes import made_up, made_up_rows, measured, runs_of_rows

EVERY = (RandomSearch, GridSearch, CherryPick, Bayesian, ErnestDesign, ScavengerPartial, ScavengerFull, PolluxPolicy)  # fmt: skip


class TestRandom(SearcherContract):
    """Random search under the exam."""

    def make_searcher(self) -> Searcher:
        return RandomSearch()


class TestGrid(SearcherContract):
    """Grid search under the exam."""

    def make_searcher(self) -> Searcher:
        return GridSearch()


class TestCherryPick(SearcherContract):
    """CherryPick under the exam; it would stop by its own rule while jobs are left."""

    def make_searcher(self) -> Searcher:
        return CherryPick(stops=False)


class TestBayesian(SearcherContract):
    """The package's own searcher under the exam."""

    def make_searcher(self) -> Searcher:
        return Bayesian(stops=False)


@pytest.mark.parametrize("kind", EVERY)
def test_every_searcher_is_registered_under_its_name(kind: type[Choosing]) -> None:
    assert registry.load("searchers", kind.name) is kind


@pytest.mark.parametrize("kind", EVERY)
def test_the_same_seed_makes_the_same_runs_and_another_seed_others(kind: type[Choosing]) -> None:
    box = made_up()
    runs = [follow(kind(box.goal, seed, False), box, 12).at.tolist() for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("kind", EVERY)
def test_a_search_resumes_from_its_runs_alone(kind: type[Choosing]) -> None:
    """`suggest`, given jobs and runs as any caller has them, asks for what `choose` asks for."""
    box = made_up()
    searcher = kind(box.goal, 1, False)
    whole = follow(searcher, box, 8).at
    runs: Runs | None = None
    for k, expected in enumerate(whole.tolist()):
        runs = box.ask(box.space.take(whole[:k])) if k else None
        asked = kind(box.goal, 1, False).suggest(box.space, runs)
        assert box.places(asked).tolist() == [expected]


@pytest.mark.parametrize("kind", EVERY)
def test_nothing_is_run_twice_and_in_the_end_everything_is_run(kind: type[Choosing]) -> None:
    rows = made_up_rows()[::4]
    box = Replay.of(runs_of_rows(rows), Goal("cost", 150.0))
    trail = follow(kind(box.goal, 0, False), box, 10_000)
    assert sorted(trail.at.tolist()) == list(range(len(box)))
    assert trail.stopped == "all 24 configurations are measured"
    assert trail.regret == 0


@settings(max_examples=16, deadline=None)
@given(
    seed=st.integers(0, 10_000), limit=st.floats(45, 400), table=st.integers(0, 20),
    runs=st.integers(1, 12), kind=st.sampled_from(EVERY), aim=st.sampled_from(["cost", "time"]),
)  # fmt: skip
def test_what_is_recommended_was_measured_and_met_the_deadline(
    seed: int, limit: float, table: int, runs: int, kind: type[Choosing], aim: str
) -> None:
    box = made_up(table, aim, limit)
    trail = follow(kind(box.goal, seed), box, runs)
    chosen = trail.recommended
    if chosen < 0:
        assert not box.feasible[trail.at].any()
    else:
        assert chosen in trail.at
        assert box.seconds[chosen] <= limit
        assert box.runs.status[chosen] == "ok"
    assert (trail.best_so_far[1:] <= trail.best_so_far[:-1]).all()


def test_cherrypick_stops_at_a_small_gain_and_never_before_six_runs() -> None:
    for seed in range(6):
        box = made_up(seed)
        trail = follow(CherryPick(box.goal, seed), box, 60)
        assert len(trail) >= LEAST_RUNS
        assert "expected improvement" in trail.stopped
        assert "below 10 %" in trail.stopped


def test_bayesian_stops_by_its_rule_near_the_best() -> None:
    trails = [follow(Bayesian(made_up(s).goal, s), made_up(s), 60) for s in range(6)]
    assert all("the gain expected" in trail.stopped for trail in trails)
    assert np.median([trail.regret for trail in trails]) < 0.1
    assert max(len(trail) for trail in trails) < 48, "half of the table is no search"


def test_guided_searchers_need_fewer_runs_than_random_draws() -> None:
    needed = {}
    for kind in (RandomSearch, CherryPick, Bayesian):
        boxes = [made_up(seed) for seed in range(6)]
        trails = [follow(kind(b.goal, i, False), b, 96, True) for i, b in enumerate(boxes)]
        needed[kind.name] = float(np.median([t.runs_until_near for t in trails]))
    assert needed["cherrypick"] < needed["random"]
    assert needed["bayesian"] < needed["random"]


def test_a_search_goes_on_where_the_first_runs_all_failed() -> None:
    """Runs out of memory tell no time; each searcher still asks for another job."""
    land = made_up().land
    at = np.arange(4)
    seen = ObservedRuns.of(at, np.full(4, np.nan), np.array(["oom"] * 4, dtype=object), 100.0)
    for kind in EVERY:
        choice = kind(Goal("cost", 100.0)).choose(land, seen)
        assert choice.at >= 0
        assert choice.at not in at


def test_bayesian_learns_where_runs_do_not_fit() -> None:
    """Every large batch runs out of memory, half of the table: it asks for few of them."""
    rows = [
        {**row, "status": "oom", "time_to_train_s": ""} if row["micro_batch"] == 256 else row
        for row in made_up_rows()
    ]
    box = Replay.of(runs_of_rows(rows), Goal("cost", 400.0))
    failed = [
        box.runs.status[follow(Bayesian(box.goal, seed, False), box, 16).at] == "oom"
        for seed in range(6)
    ]
    assert np.mean(failed) < 0.3, "at random it would be half"


def test_a_guest_that_keeps_the_protocol_alone_is_replayed_too() -> None:
    class First:
        """Suggests the first job that was not run."""

        name = "first"

        def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
            return space.take(np.arange(len(runs) if runs is not None else 0, 5))

    trail = follow(First(), made_up(), 30)
    assert trail.at.tolist() == [0, 1, 2, 3, 4]
    assert trail.stopped == "it asks for no further run"


def test_on_lynceus_ours_is_near_the_oracle_sooner_and_cheaper_than_cherrypick() -> None:
    """Four seeds of what benchmarks/search_replay.py counts on a hundred."""
    box = measured("lynceus", Goal("cost", 300.0))
    found = {}
    for kind in (CherryPick, Bayesian):
        trails = [follow(kind(box.goal, seed, False), box, 40, True) for seed in range(4)]
        found[kind.name] = (
            np.median([t.runs_until_near for t in trails]),
            np.median([t.dollars_until_near for t in trails]),
        )
    assert found["bayesian"][0] < found["cherrypick"][0]
    assert found["bayesian"][1] < 0.7 * found["cherrypick"][1]
