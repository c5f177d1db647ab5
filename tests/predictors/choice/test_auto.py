"""Auto: the runs choose who answers, rows that one candidate declines fall to the next, all is told."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.choice import Auto, auto
from forerun.predictors.choice.auto import NAMES
from forerun.tables import Jobs, Runs, read_table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_jobs, tiny_runs
from forerun.workloads.rows import jobs_from_table, runs_from_table
from tests.needs import published
from tests.predictors.choice.rows import catalog, grid_rows, jobs_of, runs_of

FEW = ("analytic", "ernest", "linear-scaling")


@cache
def fitted_to_tiny_runs() -> Auto:
    """Return one fitted to a part of the sample runs: fitting it for each test would take long."""
    runs = tiny_runs()
    return Auto(names=("analytic", "linear-scaling")).fit(runs.take(np.arange(0, len(runs), 3)))


@cache
def fitted_to_grid() -> Auto:
    """Return one fitted to the runs of a law."""
    return Auto(names=FEW).fit(runs_of(grid_rows()))


class TestAutoFitted(PredictorContract):
    def make_predictor(self) -> Predictor:
        return fitted_to_tiny_runs()

    def make_runs(self) -> Runs:
        return runs_of(grid_rows()[:5])


class TestAutoWithoutRuns(PredictorContract):
    def make_predictor(self) -> Predictor:
        return Auto(names=("ernest",))

    def make_runs(self) -> Runs:
        return runs_of(grid_rows())


def test_without_runs_it_answers_as_physics_does() -> None:
    from forerun.predictors.analytic import AnalyticPredictor

    jobs = tiny_jobs()
    np.testing.assert_array_equal(
        Auto().predict(jobs).seconds, AnalyticPredictor().predict(jobs).seconds
    )


def test_each_row_says_who_answered_it() -> None:
    answer = fitted_to_grid().predict(jobs_of(grid_rows()))
    assert answer.by is not None
    assert {str(name).partition(" + ")[0].partition(" (")[0] for name in answer.by} <= {
        f"auto: {n}" for n in FEW
    }
    assert all("(among the runs)" in name for name in answer.by)
    assert answer[0].predictor == answer.by[0]


def test_a_law_that_holds_exactly_is_preferred_to_the_nearest_run() -> None:
    """Between and beyond runs of an Ernest law, Ernest's law carries most of the weight."""
    fitted = Auto(names=FEW).fit(runs_of(grid_rows(machines=(1, 2, 3, 4, 6, 8))))
    asked = grid_rows(machines=(5, 16), batches=(96, 192))
    answer = fitted.predict(jobs_of(asked))
    truth = np.array([row["step_time_s"] for row in asked])
    assert (np.abs(answer.seconds[:, 1] / truth - 1) < 0.03).all()
    assert all("ernest" in name for name in answer.by)  # type: ignore[union-attr]
    assert ((answer.seconds[:, 0] <= truth) & (truth <= answer.seconds[:, 2])).mean() >= 0.75


def test_an_unknown_workload_is_declined_with_what_physics_and_laws_lack() -> None:
    asked = grid_rows(workload="another-net")[:2]
    reason = fitted_to_grid().declines(jobs_of(asked))[0]
    assert reason is not None
    assert reason.startswith("no run of another-net among the 12 runs")
    assert "give at least 3 runs that differ" in reason


def test_a_law_answers_what_physics_cannot_and_physics_what_no_law_can() -> None:
    rows = [*grid_rows(), *grid_rows(workload="resnet50", device="v100-sxm2-16gb")]
    fitted = Auto(names=("analytic", "ernest")).fit(runs_of(rows))
    known = {"workload": "bert-base", "device": "v100-sxm2-16gb", "nodes": 1, "devices": 1,
             "global_batch": 8, "micro_batch": 8, "seq_len": 128}  # fmt: skip
    answer = fitted.predict(jobs_of([*grid_rows()[:1], known]))
    assert answer.by is not None
    assert [name.partition(" (")[0] for name in answer.by] == ["auto: ernest", "auto: analytic"]
    assert answer.by[1].endswith("(of a workload without runs on the device)")
    assert np.isfinite(answer.seconds).all()


class _Broken:
    """A predictor whose fit or predict is defective."""

    name = "broken"

    def __init__(self, at: str) -> None:
        self.at = at

    def fit(self, runs: Runs) -> _Broken:
        if self.at == "fit":
            raise ZeroDivisionError("its own fault")
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        if self.at == "predict":
            raise ZeroDivisionError("its own fault")
        blank = Forecasts.blank(len(jobs), self.name)
        blank.seconds[:] = np.nan if self.at == "nan" else 1e9
        return blank


@pytest.mark.parametrize("at", ["fit", "predict", "nan", "absurd"])
def test_a_defective_candidate_takes_nobody_elses_answers(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.predictors.choice import auto

    usual = auto.started

    def made(name: str, start: str = "") -> Any:
        return _Broken(at) if name == "broken" else usual(name, start)

    monkeypatch.setattr(auto, "started", made)
    runs, jobs = runs_of(grid_rows()), jobs_of(grid_rows())
    with_it = Auto(names=("ernest", "broken")).fit(runs).predict(jobs)
    without = Auto(names=("ernest",)).fit(runs).predict(jobs)
    np.testing.assert_allclose(with_it.seconds[:, 1], without.seconds[:, 1], rtol=1e-9)
    if at == "fit":
        told = " ".join(Auto(names=("ernest", "broken")).fit(runs).reasons)
        assert "broken: not among them: a defect of it: ZeroDivisionError" in told


def test_whole_runs_and_steps_are_both_kept_and_the_step_comes_first() -> None:
    rows = [{**row, "time_to_train_s": 3600.0 / row["devices"]} for row in grid_rows()]
    fitted = Auto(names=("ernest",)).fit(runs_of(rows))
    assert [chosen.quantity for chosen in fitted.chosen] == ["step", "run"]
    step, run = fitted.every_quantity(jobs_of(grid_rows()))
    assert (step.quantity, run.quantity) == ("step", "run")
    devices = np.array([row["devices"] for row in grid_rows()])
    np.testing.assert_allclose(run.seconds[:, 1], 3600.0 / devices, rtol=0.2)


def test_physics_learns_from_epochs_too() -> None:
    """An epoch's time over its steps calibrates physics where no step was timed."""
    row = {"workload": "resnet50", "device": "v100-sxm2-16gb", "nodes": 1, "precision": "fp16",
           "dataset_size": 64_000}  # fmt: skip
    rows = [
        {**row, "devices": n, "global_batch": 64 * n, "micro_batch": 64,
         "epoch_time_s": 1000 / n * 0.12} for n in (1, 2, 4)
    ]  # fmt: skip
    fitted = Auto(names=("analytic",)).fit(runs_of(rows))
    jobs = jobs_of([{**row, "devices": 8, "global_batch": 512, "micro_batch": 64}])
    answer, before = fitted.predict(jobs), Auto().predict(jobs)
    assert (answer.quantity, before.quantity, fitted.fitted_runs) == ("epoch", "step", 3)
    assert abs(answer.seconds[0, 1] / 125 - 0.12) < abs(before.seconds[0, 1] - 0.12) / 2


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [("step_time_s", 0.0, "none that ended"), ("status", "timeout", "were stopped")],
)
def test_runs_without_a_time_are_an_error(column: str, value: Any, said: str) -> None:
    rows = [{**row, column: value} for row in grid_rows()]
    with pytest.raises(RequestError, match=said):
        Auto(names=FEW).fit(runs_of(rows))


def test_one_run_teaches_without_a_trial() -> None:
    fitted = Auto(names=FEW).fit(runs_of(grid_rows()[:1]))
    assert not fitted.chosen[0].verdicts
    assert "left none to judge the candidates by" in " ".join(fitted.reasons)
    answer = fitted.predict(jobs_of(grid_rows()[:1]))
    assert answer.answered.all()


def test_few_runs_leave_what_is_believed_of_the_candidates() -> None:
    """Three runs of a known job on a known device: physics is among those that answer."""
    row = {"workload": "resnet50", "device": "v100-sxm2-16gb", "nodes": 1, "precision": "fp16",
           "micro_batch": 64}  # fmt: skip
    rows = [
        {**row, "devices": n, "global_batch": 64 * n, "step_time_s": 0.2 + 0.003 * n}
        for n in (1, 2, 4)
    ]
    fitted = Auto(names=("analytic", "ernest")).fit(runs_of(rows))
    answer = fitted.predict(jobs_of([{**row, "devices": 16, "nodes": 2, "global_batch": 1024}]))
    assert "analytic" in str(answer.by[0])  # type: ignore[index]


def test_memory_and_floors_are_those_of_physics() -> None:
    jobs, fitted = tiny_jobs(), fitted_to_tiny_runs()
    answer, physics = fitted.predict(jobs), fitted.planner.predict(jobs)
    np.testing.assert_array_equal(answer.peak_bytes, physics.peak_bytes)
    np.testing.assert_array_equal(answer.fit_probability, physics.fit_probability)
    assert (answer.seconds[:, 0] >= physics.floor_seconds * (1 - 1e-9)).all()


class _Wide:
    """A predictor with a band of 10^9 either way."""

    name = "wide"

    def fit(self, runs: Runs) -> _Wide:
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        blank = Forecasts.blank(len(jobs), self.name)
        blank.seconds[:] = [1e-9, 1.0, 1e9]
        return blank


@pytest.mark.parametrize("names", [("wide",), ("wide", "ernest")])
def test_a_band_beyond_a_thousand_is_no_answer_and_the_next_one_answers(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.predictors.choice import auto

    usual = auto.started

    def made(name: str, start: str = "") -> Predictor:
        return _Wide() if name == "wide" else usual(name, start)

    monkeypatch.setattr(auto, "started", made)
    answer = Auto(names=names).fit(runs_of(grid_rows())).predict(jobs_of(grid_rows()))
    assert answer.answered.all() == ("ernest" in names)
    if "ernest" in names:
        assert all("wide" not in name for name in answer.by)  # type: ignore[union-attr]
    else:
        assert "x1,000" in str(answer.declined[0])


def test_few_trials_never_narrow_a_band() -> None:
    """Three runs: the band is no narrower than the law's own, and that of 48 is much narrower."""
    rows = grid_rows(batches=(128,))[:3]
    jobs = jobs_of(grid_rows(machines=(4, 8), batches=(128,)))
    fitted = Auto(names=("ernest", "linear-scaling")).fit(runs_of(rows))
    answer = fitted.predict(jobs)
    own = [one.predict(jobs).seconds for one in fitted.chosen[0].members.fitted.values()]
    assert _width(answer.seconds) >= (1 - 1e-9) * min(_width(seconds) for seconds in own)
    many = Auto(names=("ernest", "linear-scaling")).fit(
        runs_of(grid_rows(machines=(1, 2, 3, 4, 5, 6, 7, 8), batches=(64, 96, 128, 160, 192, 256)))
    )
    assert _width(answer.seconds) > 2 * _width(many.predict(jobs).seconds)


def _width(seconds: np.ndarray[Any, Any]) -> float:
    return float(np.log(seconds[:, 2] / seconds[:, 0]).mean())


def test_runs_in_another_order_give_the_same_answers() -> None:
    rows = grid_rows()
    jobs = jobs_of(grid_rows(machines=(3, 16)))
    one, other = (Auto(names=FEW).fit(runs_of(some)).predict(jobs) for some in (rows, rows[::-1]))
    np.testing.assert_allclose(one.seconds, other.seconds, rtol=1e-9)
    assert list(one.by) == list(other.by)  # type: ignore[arg-type]


@pytest.mark.data
def test_three_runs_of_a_known_job_are_answered_as_well_as_physics_does() -> None:
    """TF benchmarks, resnet50, three runs drawn: within twice the error of calibrated physics."""
    table = read_table(published("tf_benchmarks"))
    table = table.take(np.flatnonzero(table.texts("workload") == "resnet50"))
    order = np.random.default_rng(5).permutation(len(table))
    runs = runs_from_table(table.take(order[:3]), catalog())
    asked = table.take(order[3:])
    fitted = Auto().fit(runs)
    jobs, truth = jobs_from_table(asked, catalog()), asked.numbers("step_time_s")

    def off(answer: Forecasts) -> float:
        return float(np.nanmedian(np.abs(answer.seconds[:, 1] / truth - 1)))

    assert off(fitted.predict(jobs)) < 2 * off(fitted.planner.predict(jobs)) + 0.01


def test_candidates_in_processes_of_their_own_learn_and_judge_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = runs_of([*grid_rows(), *grid_rows(workload="b"), *grid_rows(device="t4")])
    asked = runs.jobs
    alone = Auto().fit(runs)
    monkeypatch.setattr(auto, "MANY_RUNS", 1)
    apart = Auto().fit(runs)
    assert apart.verdicts == alone.verdicts
    assert list(apart.chosen[0].members.fitted) == list(alone.chosen[0].members.fitted)
    assert {*NAMES} - {*alone.chosen[0].members.fitted} == {"residual"}  # physics knows none of it
    one, other = alone.predict(asked), apart.predict(asked)
    assert np.array_equal(one.seconds, other.seconds)
    assert one.by.tolist() == other.by.tolist()


NETWORKS = (
    "resnet18", "resnet34", "resnet50", "resnet101", "vgg11", "vgg16", "densenet121", "densenet169",
    "mobilenet-v2", "alexnet", "squeezenet1-0", "googlenet", "resnet152", "vgg13",
)  # fmt: skip


def network_rows(slow: float) -> list[dict[str, Any]]:
    """Return a run of each network and batch at what physics says, each doubled batch `slow` times slower."""
    rows = [
        {"workload": name, "device": "v100-sxm2-16gb", "nodes": 1, "devices": 1, "global_batch": b,
         "framework": "pytorch", "precision": "fp32"}
        for name in NETWORKS for b in (16, 32, 64, 128)
    ]  # fmt: skip
    said = AnalyticPredictor().predict(jobs_of(rows)).seconds[:, 1]
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.01, len(rows)))
    return [
        {**row, "step_time_s": s * e * slow ** np.log2(row["global_batch"] / 16)}
        for row, s, e in zip(rows, said, noise, strict=True)
    ]


@pytest.mark.parametrize(("slow", "who"), [(1.3, "residual"), (1.0, "analytic")])
def test_a_new_network_is_answered_by_whom_left_out_networks_favour(slow: float, who: str) -> None:
    rows = network_rows(slow)
    taught = [row for row in rows if row["workload"] != "resnet50"]
    fitted = Auto(names=("analytic", "residual")).fit(runs_of(taught))
    asked = [row for row in rows if row["workload"] == "resnet50"]
    answer = fitted.predict(jobs_of(asked))
    words = "of a workload without runs, on a device with some"
    assert set(answer.by) == {f"auto: {who} ({words})"}
    off = np.abs(np.log(answer.seconds[:, 1] / [row["step_time_s"] for row in asked]))
    assert off.max() < 0.1
    verdict = next(one for one in fitted.verdicts if one["question"] == words)
    assert verdict["judged"] == len(taught)
    alone = [row for row in taught if row["workload"] == "vgg16"]  # nothing is left to judge by
    lonely = Auto(names=("analytic", "residual")).fit(runs_of(alone)).predict(jobs_of(asked))
    assert "no run could judge" in lonely.by[0]


def test_a_new_network_is_judged_as_a_new_device_where_no_network_could_be_left_out() -> None:
    rows = [row for row in network_rows(1.0) if row["workload"] == "vgg16"]
    elsewhere = [{**row, "device": "a100-sxm4-40gb"} for row in rows]
    fitted = Auto(names=("analytic", "residual")).fit(runs_of([*rows, *elsewhere]))
    asked = [{**row, "workload": "resnet50"} for row in rows]
    words = "of a workload without runs on the device"
    assert set(fitted.predict(jobs_of(asked)).by) == {f"auto: analytic ({words})"}


def test_the_correction_of_physics_is_the_same_in_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = network_rows(1.3)
    runs = runs_of([row for row in rows if row["workload"] != "resnet50"])
    asked = jobs_of([row for row in rows if row["workload"] == "resnet50"])
    alone = Auto(names=("analytic", "residual", "roofline")).fit(runs)
    monkeypatch.setattr(auto, "MANY_RUNS", 1)
    apart = Auto(names=("analytic", "residual", "roofline")).fit(runs)
    assert apart.verdicts == alone.verdicts
    one, other = alone.predict(asked), apart.predict(asked)
    assert np.array_equal(one.seconds, other.seconds)
    assert set(one.by) == {"auto: residual (of a workload without runs, on a device with some)"}
    assert one.by.tolist() == other.by.tolist()
