"""Advisor: nouns in every form, plans that are completed, answers that are said in full."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest

import forerun
from forerun.advisor import Advisor
from forerun.advisor.recommending import candidate_clusters
from forerun.domain.forecast import Forecasts
from forerun.domain.objective import Objective
from forerun.domain.plan import Plan
from forerun.domain.workload import Length
from forerun.errors import RequestError, UnsatisfiedError
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.zoo import zoo_workload

A100 = "1x8xa100-sxm-80gb"


class Fixed:
    """A predictor that always says a tenth of a second and a gigabyte, sure."""

    name = "fixed"

    def __init__(self, seconds: float = 0.1, quantity: str = "step", decline: str = "") -> None:
        self.seconds, self.quantity, self.decline = seconds, quantity, decline

    def fit(self, runs: Runs) -> Fixed:
        """Return one that says the first measured step."""
        return Fixed(float(runs.table.numbers("step_time_s")[0]))

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return the reason, if there is one, for every job."""
        return [self.decline or None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return the same answer for every job."""
        answers = Forecasts.blank(len(jobs), self.name, self.quantity)
        if self.decline:
            answers.declined[:] = self.decline
            return answers
        answers.seconds[:] = self.seconds
        answers.peak_bytes[:] = 1e9
        answers.fit_probability[:] = 1.0
        return answers


@pytest.fixture
def advisor() -> Advisor:
    """Return an advisor with the packaged catalogue and physics."""
    return Advisor()


def test_a_workload_is_a_name_a_file_or_itself(advisor: Advisor, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,'
        ' "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}'
    )
    assert advisor.workload("resnet50").name == "resnet50"
    assert advisor.workload(str(path), seq_len=128).seq_len == 128
    assert advisor.workload(tmp_path, seq_len=128) == advisor.workload(path, seq_len=128)
    own = zoo_workload("resnet50")
    assert advisor.workload(own) is own
    assert advisor.workload(own, dataset_size=10.0).dataset_size == 10


def test_a_module_with_inputs_is_a_workload(advisor: Advisor) -> None:
    torch = pytest.importorskip("torch", reason="tracing a module needs torch")
    module = torch.nn.Linear(8, 4)
    found = advisor.workload(module, torch.zeros(2, 8))
    assert found.params == 8 * 4 + 4
    with pytest.raises(RequestError, match="example inputs"):
        advisor.workload(module)


def test_what_is_no_workload_is_told(advisor: Advisor) -> None:
    with pytest.raises(RequestError, match="a workload is"):
        advisor.workload(3)


@pytest.mark.parametrize(
    "plan",
    ["dp=4,tp=2,micro_batch=1", {"dp": 4, "tensor_parallel_size": 2, "mbs": 1}],
)
def test_plan_fields_come_as_text_or_by_name(advisor: Advisor, plan: object) -> None:
    found = advisor.predict("llama3-8b", "1x8xh100-sxm-80gb", plan, global_batch=64)  # type: ignore[arg-type]
    assert (found.job.plan.dp, found.job.plan.tp, found.job.plan.global_batch) == (4, 2, 64)
    assert "micro_batch" not in found.chosen


def test_a_whole_plan_is_taken_as_it_is(advisor: Advisor) -> None:
    plan = Plan(dp=8, micro_batch=4, global_batch=64, zero_stage=1)
    found = advisor.predict("resnet50", A100, plan)
    assert found.job.plan == plan
    assert found.chosen == ()


def test_the_batch_that_nobody_gave_is_said() -> None:
    found = Advisor(predictor=Fixed()).predict("resnet50", A100)
    assert any("global batch" in note for note in found.notes)


def test_a_workload_without_a_usual_length_is_a_thousand_steps_and_says_so() -> None:
    own = zoo_workload("resnet50").with_(length=None)
    found = Advisor(predictor=Fixed()).predict(own, A100)
    assert found.estimate.steps == 1000
    assert any("1,000 steps are assumed" in note for note in found.notes)


def test_a_limit_needs_a_length_that_somebody_said() -> None:
    """A thousand steps that nobody asked for are not what a deadline is about."""
    own, advisor = zoo_workload("resnet50").with_(length=None), Advisor(predictor=Fixed())
    with pytest.raises(RequestError, match="no usual length"):
        advisor.predict(own, A100, deadline="1h")
    found = advisor.predict(own, A100, deadline="1h", length=Length("steps", 100.0))
    assert found.chance["deadline"] == 1.0
    assert advisor.predict("resnet50", A100, budget="$1").chance["budget"] == 0.0


@pytest.mark.parametrize(
    ("quantity", "seconds"), [("step", 0.1), ("epoch", 0.1 * 5004.5), ("run", 0.1 * 450411)]
)
def test_a_step_is_told_whatever_the_predictor_times(quantity: str, seconds: float) -> None:
    advisor = Advisor(predictor=Fixed(seconds, quantity))
    found = advisor.predict("resnet50", A100, Plan(dp=8, global_batch=256))
    assert found.step_seconds[1] == pytest.approx(0.1, rel=1e-3)
    assert found.estimate.run_seconds[1] == pytest.approx(45041, rel=1e-3)


def test_a_predictor_that_declines_is_quoted() -> None:
    with pytest.raises(UnsatisfiedError, match="never heard of it"):
        Advisor(predictor=Fixed(decline="never heard of it")).predict(
            "resnet50", A100, Plan(dp=8, global_batch=256)
        )


def test_fit_returns_a_new_advisor_and_leaves_this_one() -> None:
    advisor = Advisor(predictor=Fixed())
    runs = Table.from_columns(
        {"workload": ["resnet50"], "device": ["t4"], "devices": [1], "step_time_s": [0.7]}
    )
    learned = advisor.fit(runs)
    plan = Plan(dp=8, global_batch=256)
    assert learned.predict("resnet50", A100, plan).step_seconds[1] == 0.7
    assert advisor.predict("resnet50", A100, plan).step_seconds[1] == 0.1


def test_an_answer_has_no_number_that_is_not_json(advisor: Advisor) -> None:
    data = advisor.predict("resnet50", A100).to_json()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        else:
            assert value is None or isinstance(value, str | bool | int | float)
            assert not isinstance(value, float) or math.isfinite(value)

    walk(data)


def test_candidates_are_one_machine_of_each_kind_within_the_limit(advisor: Advisor) -> None:
    found = candidate_clusters(advisor.catalog, None, 16)
    assert found
    assert all(cluster.devices <= 16 and cluster.dollars_per_hour for cluster in found)
    assert all(cluster.device.kind != "cpu" for cluster in found)
    kinds = [(c.device.id, c.devices_per_node, c.nodes, c.inter, c.intra) for c in found]
    assert len(set(kinds)) == len(kinds)


def test_a_bare_name_is_searched_over_nodes_and_a_counted_one_is_itself(advisor: Advisor) -> None:
    names = [c.name for c in candidate_clusters(advisor.catalog, ["a100-sxm-80gb"], 32)]
    assert names == [f"{n}x{d}xa100-sxm-80gb" for n, d in
                     ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8))]  # fmt: skip
    machines = candidate_clusters(advisor.catalog, ["aws:p5.48xlarge"], 32)
    assert [c.nodes for c in machines] == [1, 2, 4]
    whole = candidate_clusters(advisor.catalog, ["3x8xa100-sxm-80gb"], 512)
    assert [c.name for c in whole] == ["3x8xa100-sxm-80gb"]


def test_a_recommendation_says_what_it_assumed(advisor: Advisor) -> None:
    found = advisor.recommend("resnet50", clusters=[A100], objective=Objective(aim="time"),
                              length=Length("steps", 10))  # fmt: skip
    assert found.best is not None
    assert any("global batch" in said for said in found.assumptions)
    assert any("10 steps" in said for said in found.assumptions)


def test_the_best_of_a_recommendation_is_what_predict_says_of_it(advisor: Advisor) -> None:
    best = advisor.recommend("resnet50", clusters=[A100]).best
    assert best is not None
    alone = advisor.predict("resnet50", best.job.cluster, best.job.plan)
    assert alone.estimate.run_seconds == pytest.approx(best.estimate.run_seconds)
    assert alone.estimate.dollars == pytest.approx(best.estimate.dollars)


def test_the_package_answers_without_an_advisor() -> None:
    found = forerun.predict("resnet50", A100)
    assert found.step_seconds[1] > 0
    best = forerun.recommend("resnet50", clusters=[A100], deadline="8h", budget="$1,000").best
    assert best is not None
    assert best.estimate.run_seconds[1] <= 8 * 3600
    assert forerun.explain("resnet50", A100).parts


def test_every_public_name_loads() -> None:
    for name in forerun.__all__:
        assert getattr(forerun, name) is not None
    assert set(forerun.__all__) <= set(dir(forerun))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = forerun.nothing


def test_a_data_frame_goes_in_and_comes_out_with_its_index() -> None:
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    frame = pandas.DataFrame(
        {"workload": ["resnet50", "nobody"], "device": ["t4", "t4"], "devices": [1, 1],
         "global_batch": [32, 32], "mine": ["a", "b"]},
        index=[7, 9],
    )  # fmt: skip
    found = forerun.predict_table(frame)
    assert list(found.index) == [7, 9]
    assert list(found.columns[:5]) == list(frame.columns)
    assert found.loc[7, "predicted_step_time_s"] > 0
    assert found.loc[9, "declined"]
    assert "predictor" not in frame.columns
    with pytest.raises(RequestError, match="no data frame"):
        forerun.predict_table(3)


@pytest.mark.parametrize(
    "name", ["framework", "precision", "optimizer", "dataset", "task", "image_size"]
)
@pytest.mark.parametrize("value", [["a"], b"x", {"a": 1}])
def test_what_is_no_text_or_number_is_refused_by_its_name(
    advisor: Advisor, name: str, value: object
) -> None:
    with pytest.raises(RequestError, match=f"{name}="):
        advisor.predict("resnet50", A100, **{name: value})


def test_one_cluster_may_be_given_as_text(advisor: Advisor) -> None:
    found = advisor.recommend("resnet50", clusters=A100, objective=Objective(aim="time"))
    assert found.best is not None
    assert found.best.job.cluster.name == A100


def test_a_kept_plan_is_the_one_that_a_new_search_chooses() -> None:
    """Of questions that differ in one thing each, all asked of one advisor, and each of a new one."""
    job = {"workload": "gpt2", "cluster": A100, "framework": "pytorch"}
    others: list[dict[str, object]] = [
        {}, {"steps": 10}, {"price": 3.0}, {"deadline": "1h"}, {"global_batch": 64}, {"precision": "fp32"},
        {"cluster": "2x8xa100-sxm-80gb"}, {"plan": "zero_stage=2"}, {"framework": "deepspeed"}, {"seq_len": 256}, {},
    ]  # fmt: skip
    one = Advisor()
    kept = [one.predict(**{**job, **other}) for other in others]  # type: ignore[arg-type]
    new = [Advisor().predict(**{**job, **other}) for other in others]  # type: ignore[arg-type]
    assert [answer.to_json() for answer in kept] == [answer.to_json() for answer in new]
    assert (
        len(one._plans) == len(others) - 4
    )  # nothing, a length, a price and a limit have one search


def test_plans_are_kept_for_the_latest_questions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.advisor.advisor._MOST_PLANS", 3)
    advisor = Advisor()
    for batch in range(8, 48, 8):
        advisor.predict("resnet50", A100, global_batch=batch)
    assert len(advisor._plans) == 3


def test_a_workload_that_nobody_holds_is_let_go() -> None:
    advisor = Advisor()
    workload = replace(advisor.workload("resnet50"), name="mine")
    advisor.predict(workload, A100, global_batch=64)
    held = ref(workload)
    del workload
    gc.collect()
    assert len(advisor._plans) == 1
    assert held() is None


def test_nothing_that_fits_is_looked_for_again() -> None:
    advisor = Advisor()
    for _ in range(2):
        with pytest.raises(UnsatisfiedError):
            advisor.predict("llama3.1-405b", "1x1xt4")
    assert not advisor._plans
