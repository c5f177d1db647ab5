"""Frameworks: any name that people use is read, and a plan that one cannot run is refused with its reason."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.catalog import load_catalog
from forerun.catalog.devices import generations
from forerun.catalog.frameworks import (
    cannot_run,
    checked_framework,
    framework_note,
    framework_of,
    frameworks,
    refuse_plan,
    stated_fields,
)
from forerun.domain.plan import FIELDS, WORDS
from forerun.errors import RequestError, UnknownNameError
from forerun.predictors.analytic.constants import FRAMEWORKS
from forerun.search.space import Space
from forerun.tables import Table
from forerun.workloads.rows import jobs_from_table
from forerun.workloads.zoo import zoo_workload


@pytest.mark.parametrize(
    ("label", "name", "profile"),
    [
        ("transformers", "hf-trainer", "pytorch"), ("HF Trainer", "hf-trainer", "pytorch"),
        ("huggingface accelerate", "hf-trainer", "pytorch"), ("accelerate", "accelerate", "pytorch"),
        ("PyTorch FSDP", "fsdp", "pytorch"), ("PyTorch Lightning", "lightning", "pytorch"),
        ("DDP / PyTorch 2.3.1+cu121", "ddp", "pytorch"), ("MaxText", "maxtext", "jax"),
        ("Megatron-DeepSpeed", "megatron-deepspeed", "deepspeed"), ("Megatron-LM", "megatron", "megatron"),
        ("Composer/llm-foundry (PyTorch FSDP)", "composer", "composer"), ("keras 3", "keras", "tensorflow"),
        ("Horovod / TensorFlow", "tensorflow", "tensorflow"), ("torch 2.4", "pytorch", "pytorch"),
    ],
)  # fmt: skip
def test_a_framework_is_known_by_the_names_people_use(label: str, name: str, profile: str) -> None:
    """A release or a maker may stand beside the name; the nearest profile times it."""
    found = framework_of(label)
    assert found is not None
    assert (found.name, found.profile) == (name, profile)
    checked_framework(label)


def test_every_table_speaks_of_plan_fields_and_of_a_profile() -> None:
    """A slip in the data would leave a plan in that cannot run."""
    for software in frameworks():
        assert software.profile in FRAMEWORKS
        assert framework_of(software.name) is software
        for feature, reason in software.cannot.items():
            name, _, value = feature.partition("=")
            assert name in (*FIELDS, "device", "task")
            assert reason
            if name == "device":
                assert any(generation.startswith(value) for generation in generations())
            else:
                assert value in {**WORDS, "task": ("lora", "qlora")}.get(name, ("", "1", "2", "3"))


def test_a_slip_of_a_name_is_declined_with_the_nearest() -> None:
    """`torchtitn` holds torch, and is no release of PyTorch."""
    with pytest.raises(UnknownNameError, match="did you mean torchtitan"):
        checked_framework("torchtitn")
    with pytest.raises(UnknownNameError, match="no such framework"):
        checked_framework("abacus")


@pytest.mark.parametrize(
    ("label", "fields", "words"),
    [
        ("ddp", {"tp": 2}, "copies the whole model"), ("hf-trainer", {"pp": 4}, "no pipeline"),
        ("megatron", {"zero_stage": 3}, "ZeRO-1"), ("fsdp", {"zero_stage": 1}, "FSDP"),
        ("tensorflow", {"sequence_parallel": True}, "copy the whole model"),
        ("deepspeed", {"vpp": 2}, "one stage"), ("maxtext", {"sync": "ps-async"}, "mesh"),
    ],
)  # fmt: skip
def test_a_plan_that_a_framework_cannot_run_is_refused(
    label: str, fields: dict[str, object], words: str
) -> None:
    """The reason is given, and frameworks that can; without the field nothing is refused."""
    with pytest.raises(RequestError, match=words) as refused:
        refuse_plan(label, fields)
    assert "leave " in refused.value.next_step
    refuse_plan(label, {"dp": 8, **dict.fromkeys(fields, 1 if "zero_stage" not in fields else 0)})
    refuse_plan("", fields)


@pytest.mark.parametrize("label", [software.name for software in frameworks()])
def test_no_plan_is_searched_that_the_framework_cannot_run(label: str) -> None:
    """The space of each framework holds none of what its table excludes, and is not empty."""
    asked = zoo_workload("mixtral-8x7b").with_(framework=label)
    cluster = Advisor().cluster("2x8xh100-sxm-80gb")
    plans, _ = Space(asked, (cluster,), (64,)).plans(16, 2)
    assert len(plans)
    software = framework_of(label)
    assert software is not None
    every = len(Space(asked.with_(framework=""), (cluster,), (64,)).plans(16, 2)[0])
    assert (len(plans) < every) == any(
        not f.startswith(("sync", "device", "task")) for f in cannot_run(label)
    )
    for row in range(0, len(plans), 1 + len(plans) // 200):
        assert software.refusal(plans[row].as_dict()) is None


@pytest.mark.parametrize(
    ("label", "task", "words"),
    [
        ("torchtitan", "qlora", "16 bits"),
        ("megatron", "lora", "nemo"),
        ("nemo", "qlora", "16 bits"),
    ],
)
def test_a_task_that_a_framework_lacks_is_refused_and_named_in_tables(
    label: str, task: str, words: str
) -> None:
    """Alone with the frameworks that have it, in a table as a note of the row."""
    advisor = Advisor()
    for ask in (
        lambda: advisor.predict("llama3-8b", "1x8xh100-sxm-80gb", framework=label, task=task),
        lambda: advisor.recommend("llama3-8b", framework=label, task=task),
    ):
        with pytest.raises(
            RequestError, match=f"task={task} with --framework {label}.*{words}"
        ) as refused:
            ask()
        assert "hf-trainer" in refused.value.next_step
    row = {
        "workload": "llama3-8b",
        "cluster": "1x8xh100-sxm-80gb",
        "framework": label,
        "task": task,
    }
    (note,) = advisor.predict_table(Table.from_rows([row])).texts("predicted_note")
    assert f"{label} does not run {task}: " in note
    advisor.predict("llama3-8b", "1x8xh100-sxm-80gb", framework="hf-trainer", task=task, steps=3)
    assert "task" not in framework_note(label)


@pytest.mark.parametrize(
    ("label", "able"), [("megatron", False), ("nanotron", False), ("nemo", True), ("trl", True)]
)
def test_adapters_under_dpo_need_a_framework_with_lora(label: str, able: bool) -> None:
    """All weights may be trained by DPO everywhere; a rank asks for adapters."""
    advisor = Advisor()
    asked = advisor.workload("llama3-8b", task="dpo", lora_rank=1, framework=label)
    row = {
        "workload": "llama3-8b",
        "cluster": "1x8xh100-sxm-80gb",
        "framework": label,
        "task": "dpo",
        "lora_rank": 1,
    }
    (note,) = advisor.predict_table(Table.from_rows([row])).texts("predicted_note")
    assert ("does not run lora_rank=1: it trains all weights" in note) != able
    for ask in (
        lambda: advisor.predict(asked, "1x8xh100-sxm-80gb", steps=3),
        lambda: advisor.recommend(asked, clusters=["1x8xh100-sxm-80gb"], steps=3),
    ):
        if able:
            ask()
            continue
        with pytest.raises(RequestError, match=r"lora_rank=1 with.*trains all weights") as refused:
            ask()
        assert "leave lora_rank out, or name a framework that can (nemo" in refused.value.next_step
    advisor.predict("llama3-8b", "2x8xh100-sxm-80gb", task="dpo", framework=label, steps=3)


def test_predict_and_recommend_refuse_and_tell() -> None:
    """The same table stands behind both, and the answer says how the label was read."""
    advisor = Advisor()
    for ask in (
        lambda: advisor.predict("gpt2", "1x8xa100-sxm-80gb", "tp=2", framework="accelerate"),
        lambda: advisor.recommend("gpt2", plan="tp=2", framework="accelerate"),
    ):
        with pytest.raises(RequestError, match="no tensor parallelism"):
            ask()
    answer = advisor.predict("gpt2", "1x8xa100-sxm-80gb", framework="hf trainer")
    assert any("timed as pytorch" in note for note in answer.notes)
    explained = advisor.explain("gpt2", "1x8xa100-sxm-80gb", framework="ddp")
    refused = {w.change: w.refused for w in explained.what_ifs if w.refused}
    assert any("tp 1 -> 2" in change and "DDP" in why for change, why in refused.items())


@pytest.mark.parametrize(
    ("label", "cluster", "words"),
    [
        ("megatron", "1x4xtpu-v5p", "kernels"), ("DeepSpeed 0.14", "1x4xtpu-v5p", "Gaudi"),
        ("nemo", "1x8xgaudi2", "CUDA"), ("jax", "1x8xgaudi2", "XLA"),
        *((able, "1x4xtpu-v5p", "") for able in ("maxtext", "hf-trainer", "pytorch", "fsdp")),
        *((able, "1x8xgaudi2", "") for able in ("deepspeed", "megatron-deepspeed", "pytorch")),
        *((able, "1x8xmi300x", "") for able in ("megatron", "torchtitan", "maxtext")),
    ],
)  # fmt: skip
def test_devices_that_a_framework_does_not_run_on_are_refused(
    label: str, cluster: str, words: str
) -> None:
    """A stated cluster is refused, searched ones are left out, and a row of a table is told so."""
    advisor = Advisor()
    device = cluster.split("x", 2)[2]
    table = Table.from_rows(
        [{"workload": "llama-3-8b", "device": device, "devices": 8, "framework": label}]
    )
    note = str(advisor.predict_table(table).texts("predicted_note")[0])
    assert ("does not run on" in note) == bool(words)
    others = ["1x8xh100-sxm-80gb", cluster]
    found = advisor.recommend(
        "gpt2", clusters=others, framework=label, global_batches=[64], minimize="time"
    )
    assert (device in {o.job.cluster.device.id for o in found.alternatives}) == (not words)
    if words:
        for ask in (
            lambda: advisor.predict("gpt2", cluster, framework=label),
            lambda: advisor.recommend("gpt2", clusters=[cluster], framework=label),
        ):
            with pytest.raises(RequestError, match=words) as refused:
                ask()
            assert (
                "choose another device, or name a framework that can (" in refused.value.next_step
            )


@pytest.mark.parametrize(
    ("label", "stage"),
    [
        ("DeepSpeed ZeRO-3", 3),
        ("deepspeed zero2", 2),
        ("DeepSpeed zero stage 1", 1),
        ("deepspeed", None),
    ],
)
def test_a_stage_of_zero_in_a_label_is_a_field_of_the_plan(label: str, stage: int | None) -> None:
    assert stated_fields(label).get("zero_stage") == stage
    if stage is not None:
        answer = Advisor().predict("llama3-8b", "4x8xh100-sxm-80gb", framework=label)
        assert answer.job.plan.zero_stage == stage
        other = Advisor().predict(
            "llama3-8b", "4x8xh100-sxm-80gb", framework=label, plan={"zero_stage": 1, "tp": 2}
        )
        assert other.job.plan.zero_stage == 1, "a plan that is given decides"


def test_rows_of_a_table_read_the_stage_in_a_label_too() -> None:
    table = Table({"framework": np.array(["DeepSpeed ZeRO-3", "DeepSpeed ZeRO-3", "deepspeed", "nemo"], dtype=object),
                   "zero_stage": np.array([np.nan, 1.0, np.nan, np.nan]), "workload": np.full(4, "llama3-8b", dtype=object),
                   "cluster": np.full(4, "1x8xh100-sxm-80gb", dtype=object)}, 4)  # fmt: skip
    assert jobs_from_table(table, load_catalog()).plans.zero_stage.tolist() == [3, 1, 0, 1]


@pytest.mark.parametrize("label", ["megatron", "nemo", "deepspeed", "torchtitan", "composer"])
def test_what_reduces_with_collectives_has_no_servers(label: str) -> None:
    with pytest.raises(RequestError, match="it reduces with collectives"):
        Advisor().predict("gpt2", "2x8xa100-sxm-80gb", "sync=ps-async", framework=label)


def test_a_framework_that_says_nothing_has_no_note() -> None:
    """Its own name, its own profile and no limits."""
    assert framework_note("pytorch") == ""
    assert framework_note("") == ""
    assert "read as maxtext" not in framework_note("MaxText")


def test_a_label_that_only_begins_as_a_framework_is_said() -> None:
    """A letter too much is no name of its own, nor a release."""
    assert framework_note("pytorchh") == "framework 'pytorchh' is read as pytorch"
    for label in ("pytorch2.1", "Pytorch 1.0.0", "NGC PyTorch", "pytorch/xla"):
        assert framework_note(label) == ""
