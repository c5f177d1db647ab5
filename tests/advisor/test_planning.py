"""Requests are completed in one way: a job that cannot be has one verdict, however it is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.advisor import Advisor
from forerun.domain.workload import Length
from forerun.errors import RequestError, UnknownNameError, UnsatisfiedError
from forerun.predictors.analytic.constants import FRAMEWORKS
from forerun.workloads.zoo import zoo_workload

SMALL = "1x1xrtx-4090"
WHOLE = "dp=1,tp=1,pp=1,cp=1,ep=1,vpp=1,micro_batch=1,zero_stage=0,recompute=full"


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    """Return an advisor with the packaged catalogue and physics."""
    return Advisor()


@pytest.mark.parametrize("plan", [None, "micro_batch=1", "recompute=full"])
def test_nothing_that_fits_is_told_with_the_nearest_plan(
    advisor: Advisor, plan: str | None
) -> None:
    with pytest.raises(UnsatisfiedError) as caught:
        advisor.predict("llama3-8b", SMALL, plan)
    assert "the nearest (dp=1 micro_batch=1 recompute=full)" in caught.value.found
    assert WHOLE in caught.value.next_step
    assert (plan or "") in caught.value.asked


def test_the_plan_that_is_shown_all_the_same_holds_all_that_was_given(advisor: Advisor) -> None:
    with pytest.raises(UnsatisfiedError, match="sync=ps-async") as caught:
        advisor.predict("llama3-70b", "2x1xrtx-4090", "sync=ps-async,parameter_servers=3")
    shown = caught.value.next_step.partition("--plan ")[2]
    assert {"sync=ps-async", "parameter_servers=3"} <= set(shown.split(","))


def test_a_server_that_was_assumed_is_counted_in_what_to_change(advisor: Advisor) -> None:
    found = advisor.explain("resnet50", "2x1xv100-sxm2-32gb", "sync=ps-sync")
    assert any(w.change == "parameter_servers 1 -> 2" for w in found.what_ifs)


def test_a_whole_plan_that_does_not_fit_is_answered_with_a_warning(advisor: Advisor) -> None:
    found = advisor.predict("llama3-8b", SMALL, WHOLE)
    assert found.estimate.fit_probability < 0.05
    assert any(said.startswith("it does not fit in the 24 GB") for said in found.warnings)


def test_a_plan_field_that_breaks_a_rule_is_told_by_the_rule(advisor: Advisor) -> None:
    with pytest.raises(RequestError, match="layers"):
        advisor.predict("llama3-8b", "1x8xa100-sxm-80gb", "pp=4,vpp=16,dp=2")


@pytest.mark.parametrize("plan", [None, "micro_batch=4"])
def test_a_predictor_without_memory_answers_and_says_so(plan: str | None) -> None:
    found = Advisor(predictor="constant-mfu").predict("resnet50", "1x8xa100-sxm-80gb", plan)
    assert any("does not predict memory" in note for note in found.notes)


def test_bare_devices_have_no_processors_of_the_machine_that_lends_its_price(
    advisor: Advisor,
) -> None:
    cluster = advisor.cluster("1x1xh100-sxm-80gb")
    assert cluster.dollars_per_hour
    assert cluster.vcpus_per_device == 0
    assert advisor.predict("resnet50", cluster).forecast.parts.get("input", 0.0) == 0
    assert advisor.catalog.cluster_for("h100-sxm-80gb", 1, 1).vcpus_per_device == 0
    assert advisor.cluster("1xaws:p5.48xlarge").vcpus_per_device == 192 / 8


def test_an_input_that_limits_is_noted_and_cores_are_a_what_if(advisor: Advisor) -> None:
    few = replace(advisor.cluster("1xaws:p5.48xlarge"), vcpus_per_device=2.0)
    found = advisor.explain("resnet50", few)
    assert any(note.startswith("limited by input: 2 vCPUs") for note in found.answer.notes)
    faster = {what_if.change: what_if.speedup for what_if in found.what_ifs}
    assert faster["host cores 2x"] > 1.2
    plain = advisor.explain("llama3-8b", "1x8xh100-sxm-80gb")
    assert "host cores 2x" not in {what_if.change for what_if in plain.what_ifs}


@pytest.mark.parametrize("limit", [{"deadline": "1h"}, {"budget": 5}])
def test_a_limit_on_a_run_of_unknown_length_is_refused(
    advisor: Advisor, limit: dict[str, object]
) -> None:
    own = zoo_workload("resnet50").with_(length=None)
    with pytest.raises(RequestError, match="--steps"):
        advisor.recommend(own, clusters=["1x8xa100-sxm-80gb"], **limit)  # type: ignore[arg-type]
    found = advisor.recommend(own, clusters=["1x8xa100-sxm-80gb"], length=Length("steps", 10),
                              **limit)  # type: ignore[arg-type]  # fmt: skip
    assert found.best is not None


def test_a_framework_is_a_known_one_and_may_name_its_release(advisor: Advisor) -> None:
    with pytest.raises(UnknownNameError, match="pytorch"):
        advisor.workload("resnet50", framework="pytorh")
    assert advisor.workload("resnet50", framework="PyTorch 2.5").framework == "PyTorch 2.5"
    with pytest.raises(UnknownNameError, match="tuned is any of them with CUDA graphs"):
        advisor.workload("resnet50", framework="caffe")
    assert "tuned" in FRAMEWORKS
    for name in filter(None, FRAMEWORKS):
        assert advisor.workload("resnet50", framework=name).framework == name


def test_a_pair_of_a_module_and_its_inputs_is_a_workload(advisor: Advisor) -> None:
    torch = pytest.importorskip("torch", reason="tracing a module needs torch")
    module, inputs = torch.nn.Linear(8, 4), torch.zeros(2, 8)
    pair = advisor.predict((module, inputs), "1x1xt4")
    assert pair.step_seconds == advisor.predict(module, "1x1xt4", inputs=inputs).step_seconds
