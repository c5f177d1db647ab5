"""Evaluations are honest: nothing declined is hidden, nothing judged teaches, defects are counted."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.evaluate import Evaluation, evaluate, leaderboard
from forerun.evaluate.pages import sections, setting, summary
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.tables import Jobs, Runs
from forerun.tables.jobs import join_runs
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_jobs, tiny_runs, tiny_workload
from tests.needs import published


@dataclass(frozen=True)
class Scripted:
    """Says what the steps truly take, times a factor; declines the jobs of a workload."""

    name: str = "scripted"
    factor: float = 1.0
    band: float = 1.5
    refuses: str = ""
    silent: bool = False
    below_floor: bool = False
    raised: int = 0
    quantity: str = "step"
    fit_chance: float = 1.0
    distance: float = 0.1

    def fit(self, runs: Runs) -> Scripted:
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        names = jobs.per_workload("name")
        return [f"refuses {self.refuses}" if n == self.refuses else None for n in names]

    def predict(self, jobs: Jobs) -> Forecasts:
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        steps = tiny_runs(jobs).step_seconds() * self.factor
        seconds = steps[:, None] * np.array([1 / self.band, 1.0, self.band])
        blank.declined[:] = self.declines(jobs)
        seconds[~blank.answered] = np.nan
        if self.silent:
            seconds[0] = np.nan
        floor = steps * (2.0 if self.below_floor else 0.1)
        return replace(
            blank, seconds=seconds, floor_seconds=floor,
            peak_bytes=np.full((len(jobs), 3), 10e9),
            fit_probability=np.full(len(jobs), self.fit_chance),
            distance=self.distance * np.arange(len(jobs)),
            parts={"floor": np.where(np.arange(len(jobs)) < self.raised, 0.1, 0.0)},
        )  # fmt: skip


def test_a_true_forecast_has_no_error_and_the_right_order() -> None:
    score = evaluate({"tiny": tiny_runs()}, [Scripted()]).of("scripted", "tiny")
    assert score.mape == pytest.approx(0.0, abs=1e-9)
    assert (score.tau, score.coverage, score.share_answered) == (1.0, 1.0, 1.0)
    assert score.bias_log_ratio == pytest.approx(0.0, abs=1e-12)
    assert score.counts


def test_a_forecast_twice_too_high_is_100_percent_off_and_outside_its_band() -> None:
    score = evaluate({"tiny": tiny_runs()}, [Scripted(factor=2.0)]).of("scripted", "tiny")
    assert score.median_ape == pytest.approx(100.0)
    assert score.coverage == 0.0
    assert score.bias_log_ratio == pytest.approx(np.log(2))
    assert score.width == pytest.approx(1.5**2)
    assert score.width_mean == pytest.approx(1.5**2)


def test_what_is_declined_is_counted_with_its_reason_and_stops_the_figure_from_counting() -> None:
    runs = tiny_runs()
    found = evaluate({"tiny": runs}, [Scripted(refuses="tiny-wide")]).of("scripted", "tiny")
    assert found.declined == {"refuses tiny-wide": len(runs) // 2}
    assert found.share_answered == 0.5
    assert not found.counts


def test_an_answer_of_nan_without_a_reason_is_counted_as_silent() -> None:
    score = evaluate({"tiny": tiny_runs()}, [Scripted(silent=True)]).of("scripted", "tiny")
    assert score.silent == 1
    assert score.answered == score.rows - 1
    assert sum(score.declined.values()) == 1


def test_a_forecast_below_its_floor_is_counted_and_so_is_a_measured_time() -> None:
    score = evaluate({"tiny": tiny_runs()}, [Scripted(below_floor=True)]).of("scripted", "tiny")
    assert score.floor_violations == score.rows
    assert score.suspicious == score.rows


def test_out_of_memory_is_scored_where_it_happened() -> None:
    status = np.array(["ok", "oom"] * (len(tiny_jobs()) // 2), dtype=object)
    runs = tiny_runs(status=status)
    score = evaluate({"tiny": runs}, [Scripted(fit_chance=0.1)]).of("scripted", "tiny")
    assert (score.oom_rows, score.oom_happened) == (len(runs), len(runs) // 2)
    assert (score.oom_precision, score.oom_recall) == (0.5, 1.0)
    assert score.comparable == len(runs) // 2
    assert score.not_comparable == {"ended oom: no time": len(runs) // 2}


def test_a_plan_that_is_declined_is_no_memory_foreseen() -> None:
    status = np.array(["ok", "oom"] * (len(tiny_jobs()) // 2), dtype=object)
    found = evaluate({"tiny": tiny_runs(status=status)}, [Scripted(refuses="tiny-wide")])
    score = found.of("scripted")
    assert score.oom_rows == len(status) // 2
    assert score.refused_rows == len(status)


def test_a_failed_run_is_one_that_does_not_run_and_none_that_is_out_of_memory() -> None:
    status = np.array(["ok", "oom", "failed"] * (len(tiny_jobs()) // 3), dtype=object)
    score = evaluate({"tiny": tiny_runs(status=status)}, [Scripted(fit_chance=0.1)]).of("scripted")
    assert (score.oom_rows, score.oom_f1) == (len(status) * 2 // 3, pytest.approx(2 / 3))
    assert (score.refused_rows, score.refused_f1) == (len(status), pytest.approx(0.8))


def test_out_of_memory_is_scored_for_each_workload_too() -> None:
    names = tiny_runs().table.texts("workload")
    status = np.where(names == "tiny-wide", "oom", "ok").astype(object)
    found = evaluate({"tiny": tiny_runs(status=status)}, [Scripted(fit_chance=0.1)])
    recall = {s.group: s.oom_recall for s in found.by_workload}
    assert recall["tiny-wide"] == 1.0
    assert np.isnan(recall["tiny-transformer"])
    assert not evaluate({"tiny": tiny_runs()}, [Scripted()]).by_workload


def test_coverage_and_width_are_told_by_distance_and_add_up() -> None:
    found = evaluate({"tiny": tiny_runs()}, [Scripted(distance=0.11)])
    bins = found.by_distance
    assert [s.group for s in bins][:3] == ["0.00-0.10", "0.10-0.20", "0.20-0.30"]
    assert [s.rows for s in bins][:6] == [1, 1, 1, 1, 1, 2]
    assert sum(s.rows for s in bins) == found.of("scripted").comparable
    assert bins[-1].group == "3.00 and more"
    assert all(s.width == pytest.approx(2.25) for s in bins)


def test_ranks_are_told_within_workloads_within_jobs_and_overall() -> None:
    """Right within each job, and a batch of 128 forecast as if it were the faster one."""
    jobs = tiny_jobs((tiny_cluster(1, 4),), (tiny_workload(),))
    each = np.where(jobs.plans.global_batch == 64, 2.0, 1.0) + jobs.plans.tp / 10
    runs = tiny_runs(jobs, step_time_s=each * jobs.plans.global_batch)

    @dataclass(frozen=True)
    class Turned(Scripted):
        def predict(self, jobs: Jobs) -> Forecasts:
            wrong = np.where(jobs.plans.global_batch == 64, 1.0, 2.0) + jobs.plans.tp / 10
            seconds = (wrong * jobs.plans.global_batch)[:, None] * np.ones(3)
            return replace(super().predict(jobs), seconds=seconds)

    score = evaluate({"tiny": runs}, [Turned()]).of("scripted")
    assert score.tau_plans == 1.0
    assert score.tau < 0
    assert score.tau_overall == score.tau


def test_the_total_detects_only_in_tables_where_some_ran_out() -> None:
    status = np.array(["ok", "oom"] * (len(tiny_jobs()) // 2), dtype=object)
    tables = {"a": tiny_runs(status=status), "b": tiny_runs()}
    assert evaluate(tables, [Scripted()]).of("scripted").oom_rows == len(status)


def test_a_table_in_which_all_ran_has_no_detection_score() -> None:
    assert evaluate({"tiny": tiny_runs()}, [Scripted()]).of("scripted").oom_rows == 0


def test_memory_is_compared_in_bytes() -> None:
    score = evaluate({"tiny": tiny_runs(memory_gb=8.0)}, [Scripted()]).of("scripted", "tiny")
    assert score.memory_median_ape == pytest.approx(25.0)


def test_a_stopped_run_is_no_time_but_a_bound_that_a_forecast_may_break() -> None:
    runs = tiny_runs(status="timeout", time_to_train_s=600.0)
    score = evaluate({"tiny": runs}, [Scripted(quantity="run")]).of("scripted", "tiny")
    assert (score.comparable, score.censored) == (0, len(runs))
    assert score.censored_below == len(runs)


def test_a_fit_sees_only_the_teaching_rows() -> None:
    """The judged device has another share of peak than the training_runs: the error must show it."""
    other = tiny_cluster(1, 4, tiny_device("other-gpu"))
    jobs = tiny_jobs((tiny_cluster(1, 4), other))
    share = np.where(jobs.labels.texts("device") == "other-gpu", 0.1, 0.5)  # type: ignore[union-attr]
    runs = tiny_runs(jobs, step_time_s=tiny_runs(jobs, mfu=1.0).step_seconds() / share)
    blind = evaluate({"tiny": runs}, [ConstantMFU()], "leave-out:device").of("constant-mfu", "tiny")
    seen = evaluate({"tiny": runs}, [ConstantMFU()], "few-shot:device=8").of("constant-mfu", "tiny")
    assert blind.median_ape > 60
    assert seen.median_ape < 60


def test_fit_tables_teach_before_all_rows_are_judged() -> None:
    runs = tiny_runs(mfu=0.2)
    training_runs = tiny_runs(tiny_jobs(global_batches=(256,)), mfu=0.2)
    asked = evaluate({"tiny": runs}, [ConstantMFU()], "whole", {"more": training_runs})
    assert asked.of("constant-mfu").mape == pytest.approx(0.0, abs=1e-6)
    assert asked.fitted_on == ("more",)


def test_a_predictor_that_cannot_be_fitted_declines_with_that_reason() -> None:
    training_runs = tiny_runs(step_time_s=np.nan)
    score = evaluate({"t": tiny_runs()}, [ConstantMFU()], "whole", {"u": training_runs}).of(
        "constant-mfu"
    )
    assert score.answered == 0
    assert all(reason.startswith("cannot be fitted") for reason in score.declined)


def test_groups_are_scored_by_themselves_and_add_up() -> None:
    found = evaluate({"tiny": tiny_runs()}, [Scripted()], group_by="workload")
    groups = [s for s in found if s.group]
    assert {s.group for s in groups} == {"tiny-transformer", "tiny-wide"}
    assert sum(s.rows for s in groups) == found.of("scripted", "tiny").rows


def test_tables_add_up_to_the_total() -> None:
    found = evaluate({"a": tiny_runs(), "b": tiny_runs(mfu=0.1)}, [Scripted()])
    assert found.of("scripted").rows == found.of("scripted", "a").rows * 2
    assert found.of("scripted").median_ape == pytest.approx(37.5)


def test_too_few_forecasts_are_told_as_a_broken_contract() -> None:
    class Short(Scripted):
        def predict(self, jobs: Jobs) -> Forecasts:
            return super().predict(jobs).take(np.arange(1))

    with pytest.raises(RequestError, match="1 forecasts for"):
        evaluate({"tiny": tiny_runs()}, [Short()])


@pytest.mark.parametrize(
    ("tables", "predictors", "group_by"),
    [({}, [Scripted()], ""), ({"t": tiny_runs()}, [], ""),
     ({"t": tiny_runs()}, [Scripted(), Scripted()], ""), ({"t": tiny_runs()}, [Scripted()], "no")],
)  # fmt: skip
def test_an_evaluation_that_makes_no_sense_is_told(
    tables: dict[str, Runs], predictors: list[Any], group_by: str
) -> None:
    with pytest.raises(RequestError):
        evaluate(tables, predictors, group_by=group_by)


def test_the_leaderboard_ranks_by_error_on_what_all_answered() -> None:
    """The one that declines the hard table is not helped by it."""
    jobs = tiny_jobs(workloads=(tiny_workload("tiny-wide", hidden=512),))
    tables = {"easy": tiny_runs(tiny_jobs(workloads=(tiny_workload(),))),
              "hard": tiny_runs(jobs, mfu=0.2)}  # fmt: skip
    picky = Scripted("picky", factor=1.2, refuses="tiny-wide")
    found = leaderboard(evaluate(tables, [picky, Scripted("brave", factor=1.1)]))
    assert [s.predictor for s in found] == ["brave", "picky"]
    assert [(s.tables, s.counted) for s in found] == [(1, 2), (1, 1)]
    assert found[0].median_ape == pytest.approx(10.0)


def test_joined_runs_are_the_runs_of_both_in_order() -> None:
    a, b = tiny_runs(), tiny_runs(tiny_jobs(workloads=(tiny_workload("third"),)))
    both = join_runs([a, b])
    assert len(both) == len(a) + len(b)
    assert np.array_equal(both.step_seconds(), np.r_[a.step_seconds(), b.step_seconds()])
    assert both.jobs[len(a)] == b.jobs[0]
    assert both.jobs[0] == a.jobs[0]


def test_scores_survive_json() -> None:
    found = evaluate({"tiny": tiny_runs()}, [Scripted()])
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["scores"][0]["table"] == "tiny"
    assert Evaluation.from_dict(data).as_dict() == found.as_dict()


def test_the_tables_say_what_does_not_count_and_why_rows_were_declined() -> None:
    found = evaluate({"tiny": tiny_runs()}, [Scripted(refuses="tiny-wide")])
    first, *_, declined = sections(found, "scripted")
    assert [row[0] for row in first.rows] == ["(tiny)"]
    assert declined.title == "Declined"
    assert [row[-1] for row in declined.rows] == ["refuses tiny-wide"]


def test_forecasts_that_were_raised_to_their_floor_are_counted_and_said() -> None:
    found = evaluate({"tiny": tiny_runs()}, [Scripted(raised=2)])
    assert found.of("scripted").floor_clamped == 2
    text = summary(found, "scripted")
    assert "2 forecasts were raised to their physical floor" in text
    assert "lie below" not in text
    broken = evaluate({"tiny": tiny_runs()}, [Scripted(below_floor=True)])
    assert broken.of("scripted").floor_clamped == 0
    assert "forecasts lie below their physical floor: a defect" in summary(broken, "scripted")


def test_a_predictor_without_parts_is_counted_where_its_median_is_its_floor() -> None:
    found = evaluate({"tiny": tiny_runs()}, [ConstantMFU()]).of("constant-mfu")
    assert found.floor_clamped == 0


def test_the_setting_of_a_fit_names_its_split() -> None:
    found = evaluate({"tiny": tiny_runs()}, [Scripted()], "random")
    assert setting(found).startswith("split random, 5 folds, seed 0")
    assert [row[0] for row in sections(found, "scripted")[0].rows] == ["tiny"]


@pytest.mark.data
def test_constant_mfu_on_a_published_table_is_as_bad_as_is_known() -> None:
    """Fitted on vtrain's own rows it errs by 58 %: a harness that says 10 % is broken."""
    from forerun.catalog import load_catalog
    from forerun.tables import read_table
    from forerun.workloads.rows import runs_from_table

    table = read_table(published("vtrain"))
    runs = runs_from_table(table, load_catalog())
    score = evaluate({"vtrain": runs}, [ConstantMFU()], "random").of("constant-mfu", "vtrain")
    assert score.share_answered == 1.0
    assert 40 < score.mape < 75
    assert score.floor_violations == 0
