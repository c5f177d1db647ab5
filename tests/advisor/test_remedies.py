"""Remedies: what would make a job fit is named, and nothing that would not."""

from __future__ import annotations

import pytest

import forerun
from forerun.errors import UnsatisfiedError


def test_a_plan_that_was_stated_in_full_is_left_to_the_search() -> None:
    plan = "dp=8,tp=1,pp=1,micro_batch=8,zero_stage=0,recompute=none"
    answer = forerun.predict("llama3-8b", "1x8xa100-sxm-40gb", plan, steps=10)
    assert any("does not fit" in words for words in answer.warnings)
    (remedy,) = (words for words in answer.warnings if words.startswith("what fits"))
    assert "without dp,tp,pp,micro_batch,zero_stage,recompute" in remedy
    free = forerun.predict("llama3-8b", "1x8xa100-sxm-40gb", steps=10)
    assert free.estimate.fit_probability >= 0.9


def test_a_framework_s_limits_hold_for_remedies_too() -> None:
    with pytest.raises(UnsatisfiedError) as raised:
        forerun.predict("llama3-8b", "1x2xa100-sxm-40gb", framework="megatron", steps=10)
    assert "lora" not in raised.value.next_step


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_a_target_s_limits_hold_for_remedies_too(target: str) -> None:
    """Their files know neither LoRA nor an optimizer of 8 bits in pages."""
    with pytest.raises(UnsatisfiedError) as raised:
        forerun.predict("llama3-8b", "1x1xa100-sxm-80gb", emit=target, steps=10)
    assert "what fits, the cheapest first: --cluster" in raised.value.next_step
    assert not {"--task", "--optimizer"} & set(raised.value.next_step.split())
    with pytest.raises(UnsatisfiedError, match=r"--task lora.*--optimizer paged_adamw_8bit"):
        forerun.predict("llama3-8b", "1x1xa100-sxm-80gb", steps=10)


def test_where_nothing_fits_the_old_advice_stands() -> None:
    with pytest.raises(UnsatisfiedError, match="use more devices") as raised:
        forerun.predict("mixtral-8x22b", "1x1xrtx-4090", steps=10)
    assert "what fits" not in str(raised.value)


def test_a_job_that_fits_has_no_remedies() -> None:
    answer = forerun.predict("resnet50", "1x1xa100-sxm-80gb", steps=10)
    assert not any("what fits" in words for words in answer.warnings)
