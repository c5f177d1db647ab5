"""A search for a launch target looks at the plans and clusters that the target can run, and at no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import forerun
from forerun.advisor import Advisor
from forerun.errors import RequestError, UnknownNameError
from forerun.launch import emit
from forerun.launch.request import LaunchRequest, refused_plans
from forerun.search.space import Space

ADVISOR = Advisor()


@pytest.mark.parametrize(
    ("target", "workload", "cluster", "fixed"),
    [
        ("torchtitan", "mixtral-8x7b", "4x8xh100-sxm-80gb", {"ep": 8}),
        ("torchtitan", "llama3.1-405b", "16x8xh100-sxm-80gb", {"pp": 16, "vpp": 8}),
        ("megatron", "gpt2-xl", "1x5xa100-sxm-80gb", {}),
        ("megatron", "llama3.2-3b", "1x8xa100-sxm-80gb", {}),
        ("deepspeed", "llama3-8b", "1x8xa100-sxm-80gb", {"zero_stage": 2}),
        ("fsdp", "llama3-8b", "1x8xa100-sxm-80gb", {}),
    ],
)
def test_plans_are_those_that_the_target_emits(
    target: str, workload: str, cluster: str, fixed: dict[str, int]
) -> None:
    asked, place = ADVISOR.workload(workload), ADVISOR.cluster(cluster)
    space = Space(asked, (place,), (960,), fixed)
    free, _ = space.plans(place.devices, place.nodes)
    limited, refused = Space(
        asked, (place,), (960,), fixed, lacking=partial(refused_plans, target)
    ).plans(place.devices, place.nodes)
    answer = ADVISOR.predict(workload, cluster, free[0], steps=3)

    def emits(plan: object) -> bool:
        job = forerun.Job(asked, place, plan)  # type: ignore[arg-type]
        try:
            return bool(emit(LaunchRequest(target, job, answer.estimate)))
        except RequestError:
            return False

    every = np.unique(np.linspace(0, len(free) - 1, 40).astype(int))
    can = {str(free[i]) for i in every if emits(free[i])}
    kept = {str(limited[i]) for i in range(len(limited))}
    assert {str(free[i]) for i in every} & kept == can
    assert len(limited) < len(free) or not refused
    assert all(target in why for why in refused if "lacks" in why)


def test_clusters_that_the_target_cannot_start_are_not_recommended() -> None:
    ask = {"clusters": ["1x8xtpu-v5e", "1x8xa100-sxm-80gb"], "epochs": 1}
    with pytest.raises(RequestError, match="a TPU's host has one for all"):
        forerun.recommend("resnet50", **{**ask, "clusters": ["1x8xtpu-v5e"]}, emit="torchrun")
    best = forerun.recommend("resnet50", **ask, emit="torchrun").best
    assert best is not None
    assert best.job.cluster.name == "1x8xa100-sxm-80gb"


def test_a_job_that_the_target_cannot_train_is_refused_before_the_search() -> None:
    with pytest.raises(RequestError, match="task=lora with --emit torchtitan"):
        forerun.recommend(
            "llama3-8b", clusters=["1x8xh100-sxm-80gb"], task="lora", emit="torchtitan"
        )


@pytest.mark.parametrize("ask", [forerun.predict, forerun.explain])
def test_a_target_is_checked_where_it_is_given(ask: Callable[..., object]) -> None:
    """Also where a whole plan leaves nothing to the search."""
    whole = forerun.predict("gpt2", "1x8xa100-sxm-80gb", steps=3).job.plan
    for plan in (whole, None):
        with pytest.raises(UnknownNameError, match="did you mean slurm"):
            ask("gpt2", "1x8xa100-sxm-80gb", plan, emit="slrm")
        with pytest.raises(UnknownNameError, match="did you mean slurm"):
            forerun.recommend("gpt2", clusters="1x8xa100-sxm-80gb", plan=plan, emit="slrm")
    with pytest.raises(RequestError, match="zero_stage=3 with --emit megatron"):
        ask("gpt2", "1x8xa100-sxm-80gb", replace(whole, zero_stage=3), emit="megatron")


def test_the_search_names_the_fields_that_a_target_runs() -> None:
    ask = partial(forerun.predict, "mixtral-8x7b", "8x8xh100-sxm-80gb", emit="torchtitan", steps=3)
    with pytest.raises(RequestError, match=r"fix: zero_stage=2\)"):
        ask("tp=1,ep=8,pp=2,vpp=1")
    assert ask("tp=1,ep=8,pp=2,vpp=1,zero_stage=2").job.plan.zero_stage == 2


def test_an_answer_emits_itself() -> None:
    answer = forerun.predict("resnet50", "1x8xa100-sxm-80gb", epochs=1, emit="slurm")
    text = answer.emit("slurm", script="mine.py")
    assert "#SBATCH --gpus-per-node=8" in text
    assert "mine.py" in text
    with pytest.raises(RequestError, match="trains transformers on sequences alone"):
        answer.emit("megatron")
