"""Lessons: no judged measurement teaches, whatever table it stands in, and fits are not repeated."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.evaluate import evaluate
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs, Runs, Table
from forerun.tables.fingerprints import content_codes, fingerprints, packed, seen
from forerun.tables.jobs import join_runs
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs, tiny_workload


@dataclass
class Diary:
    """Answers nothing that matters, and notes what it was taught and asked."""

    name: str = "diary"
    taught: list[Runs] = field(default_factory=list)
    asked: list[Jobs] = field(default_factory=list)

    def fit(self, runs: Runs) -> Diary:
        self.taught.append(runs)
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        self.asked.append(jobs)
        blank = Forecasts.blank(len(jobs), self.name)
        blank.seconds[:] = 1.0
        blank.floor_seconds[:] = 0.5
        return blank


def numbered(runs: Runs, first: int = 0) -> Runs:
    """Return the runs with a column of their own that tells each row."""
    numbers = np.arange(first, first + len(runs), dtype=np.float64)
    table = runs.table.with_columns(mark=numbers)
    labels = (runs.jobs.labels or Table({}, len(runs))).with_columns(mark=numbers)
    from dataclasses import replace

    return Runs(replace(runs.jobs, labels=labels), table)


def uneven() -> Runs:
    """Return runs of plausible steps, no two of which took the same time."""
    seconds = AnalyticPredictor().predict(tiny_jobs()).seconds[:, 1]
    return numbered(tiny_runs(step_time_s=seconds * (1.0 + np.arange(len(seconds)) / 7000)))


SPLITS = ["random", "leave-out:workload", "few-shot:workload=3", "above:devices=4",
          "larger-clusters", "from:workload=tiny-wide"]  # fmt: skip


@pytest.mark.parametrize("split", SPLITS)
def test_a_judged_row_is_never_taught_in_its_fold(split: str) -> None:
    diary = Diary()
    evaluate({"tiny": uneven()}, [diary], split)
    assert len(diary.taught) == len(diary.asked) > 0
    for runs, jobs in zip(diary.taught, diary.asked, strict=True):
        assert jobs.labels is not None
        assert not set(runs.table.numbers("mark")) & set(jobs.labels.numbers("mark"))


@pytest.mark.parametrize("split", ["whole", *SPLITS])
def test_a_copy_in_another_table_is_not_taught_in_any_fold(split: str) -> None:
    """The other table holds the judged rows, rounded a little otherwise, and one of its own."""
    judged = uneven()
    copy = Runs(judged.jobs, judged.table.with_columns(
        step_time_s=judged.table.numbers("step_time_s") * (1 + 1e-8),
    ))  # fmt: skip
    own = numbered(tiny_runs(tiny_jobs(global_batches=(999,))), first=1000)
    diary = Diary()
    found = evaluate({"tiny": judged}, [diary], split, {"other": join_runs([copy, own])})
    assert found.identical == {"tiny": {"other": len(judged)}}
    for runs, jobs in zip(diary.taught, diary.asked, strict=True):
        assert jobs.labels is not None
        taught = set(runs.table.numbers("mark"))
        assert not taught & set(jobs.labels.numbers("mark"))
        assert 1000.0 in taught


def test_the_same_lessons_for_several_tables_are_one_fit() -> None:
    tables = {name: tiny_runs(mfu=mfu) for name, mfu in (("a", 0.2), ("b", 0.3), ("c", 0.4))}
    training_runs = tiny_runs(tiny_jobs(global_batches=(999,)))
    diary = Diary()
    evaluate(tables, [diary], "whole", {"other": training_runs})
    assert len(diary.taught) == 1
    assert len(diary.asked) == 3


def test_tables_that_hold_other_rows_of_the_teachers_are_fits_of_their_own() -> None:
    training_runs = uneven()
    tables = {"a": training_runs.take(np.arange(5)), "b": training_runs.take(np.arange(5, 9))}
    diary = Diary()
    evaluate(tables, [diary], "whole", {"other": training_runs})
    assert [len(runs) for runs in diary.taught] == [len(training_runs) - 5, len(training_runs) - 4]


def test_whole_without_other_tables_is_no_fit() -> None:
    diary = Diary()
    evaluate({"tiny": tiny_runs()}, [diary])
    assert not diary.taught


def test_the_slower_half_neither_teaches_nor_is_judged_and_can_still_be_picked() -> None:
    runs = uneven()
    diary = Diary()
    found = evaluate({"tiny": runs}, [diary], "random", faster_half=("workload",))
    score = found.of("diary")
    assert score.comparable == len(runs) // 2
    assert score.regret_groups == evaluate({"tiny": runs}, [Diary()]).of("diary").regret_groups
    for taught in diary.taught:
        names, seconds = taught.table.texts("workload"), runs.step_seconds()
        for name in set(names):
            middle = np.median((seconds / runs.jobs.plans.global_batch)[
                runs.table.texts("workload") == name
            ])  # fmt: skip
            mine = names == name
            each = taught.step_seconds()[mine] / taught.jobs.plans.global_batch[mine]
            assert each.max() <= middle


def test_a_figure_in_another_unit_teaches_nothing_and_is_judged_as_it_stands() -> None:
    """A tenth of the steps in milliseconds: they are blank to the predictor, and not to the judge."""
    runs = uneven()
    wrong = np.arange(len(runs)) % 10 == 0
    seconds = runs.step_seconds() * np.where(wrong, 1000.0, 1.0)
    bad = Runs(runs.jobs, runs.table.with_columns(step_time_s=seconds))
    diary = Diary()
    found = evaluate({"tiny": bad}, [diary], "random")
    assert found.of("diary").comparable == len(runs)
    for taught in diary.taught:
        marks = taught.table.numbers("mark").astype(int)
        assert np.isnan(taught.table.numbers("step_time_s")[wrong[marks]]).all()
        assert np.isfinite(taught.table.numbers("step_time_s")[~wrong[marks]]).all()


def test_all_teachers_among_the_judged_is_told() -> None:
    runs = tiny_runs()
    with pytest.raises(RequestError, match="all of its rows stand in tiny too"):
        evaluate({"tiny": runs}, [Diary()], "whole", {"copy": runs})


def codes(*parts: Runs) -> list[list[int]]:
    return [code.tolist() for code in content_codes(parts)]


def test_one_measurement_has_one_code_in_every_table() -> None:
    runs = uneven()
    rates = runs.table.numbers("step_time_s")
    bare = Runs(runs.jobs, Table({
        "workload": runs.table.columns["workload"],
        "global_batch": runs.table.columns["global_batch"],
        "samples_per_s": runs.table.numbers("global_batch") / rates,
    }, len(runs)))  # fmt: skip
    first, second = codes(runs, bare)
    assert first == second
    assert len(set(first)) == len(runs)


def stating(seconds: np.ndarray, jobs: Jobs | None = None) -> Runs:
    """Return runs of one question each with such steps."""
    jobs = jobs or tiny_jobs((tiny_cluster(1, 4),), (tiny_workload(),), (64,)).take(np.array([0]))
    return tiny_runs(jobs.take(np.zeros(len(seconds), dtype=int)), step_time_s=seconds)


@given(st.lists(st.floats(1e-4, 1e4), min_size=3, max_size=20), st.integers(0, 1))
@settings(deadline=None, max_examples=30)
def test_a_figure_rounded_in_another_table_is_the_same_measurement(
    seconds: list[float], fine: int
) -> None:
    """Five digits in one table and four in another, whichever is judged."""
    exact = np.array([float(f"{s:.4e}") for s in seconds])
    coarse = np.array([float(f"{s:.3e}") for s in exact])
    tables = stating(exact), stating(coarse)
    first, second = (np.array(code) for code in codes(*tables))
    assert (first == second).all()
    judged, taught = tables[fine], tables[1 - fine]
    assert seen(judged, {"taught": packed(fingerprints(taught))}).all()


def test_a_time_near_to_another_is_another_measurement() -> None:
    """What two roundings cannot have made of one number is not one, in four digits or in five."""
    fine = np.array([0.12343, 0.12347, 0.12352, 0.12361])
    coarse = np.array([0.1232, 0.1237, 0.1241])
    first, second = codes(stating(fine), stating(coarse))
    assert len(set(first) | set(second)) == 7
    assert len(set(codes(stating(coarse))[0])) == 3
    for judged, taught in ((fine, coarse), (coarse, fine), (fine[:1], fine[1:])):
        rows = {"taught": packed(fingerprints(stating(taught)))}
        assert not seen(stating(judged), rows).any()


def test_another_time_device_or_workload_is_another_measurement() -> None:
    one = tiny_jobs((tiny_cluster(1, 4),), (tiny_workload(),), (64,)).take(np.arange(1))
    other = tiny_jobs((tiny_cluster(2, 4),), (tiny_workload(),), (64,)).take(np.arange(1))
    named = tiny_jobs((tiny_cluster(1, 4),), (tiny_workload("b"),), (64,)).take(np.arange(1))
    parts = [
        tiny_runs(one, step_time_s=1.0), tiny_runs(one, step_time_s=1.001),
        tiny_runs(other, step_time_s=1.0), tiny_runs(named, step_time_s=1.0),
    ]  # fmt: skip
    assert len({code for (code,) in codes(*parts)}) == 4


def test_runs_out_of_memory_are_one_where_their_whole_plan_is() -> None:
    jobs = tiny_jobs()
    status = np.full(len(jobs), "oom", dtype=object)
    runs = tiny_runs(jobs, step_time_s=np.nan, status=status)
    first, second = codes(runs, runs)
    assert first == second
    assert len(set(first)) == len(jobs)


def test_a_row_with_nothing_measured_is_no_measurement() -> None:
    (code,) = codes(tiny_runs(step_time_s=np.nan))
    assert set(code) == {-1}
