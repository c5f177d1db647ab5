"""Memory of tuning against published figures, and states, weights and activations that wait elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import forerun
from forerun.catalog import load_catalog
from forerun.domain.workload import Workload
from forerun.errors import RequestError, UnsatisfiedError
from forerun.tables import Table
from forerun.workloads.columns import workload_from_columns
from forerun.workloads.resolve import workload as workload_of
from forerun.workloads.transformer import TransformerSpec, transformer_workload

A100 = "1x1xa100-sxm-80gb"
DECIDED = "dp=1,tp=1,pp=1,cp=1,ep=1,vpp=1,zero_stage=0,sequence_parallel=false"


def asked(workload: Any, plan: str, cluster: Any = A100, **given: Any) -> forerun.Answer:
    given = {"global_batch": 8, "framework": "pytorch", **given}
    return forerun.predict(workload, cluster, f"{DECIDED},{plan}", **given)


def peak(answer: forerun.Answer) -> float:
    return float(answer.estimate.forecast.peak_bytes[1])


def t5(hidden: int, ffn: int, heads: int, vocab: int) -> Workload:
    """Return a T5 1.1 in fp32, of 64 tokens in and 16 out: the sources state no lengths, and say that texts are short."""
    spec = TransformerSpec(
        layers=24, hidden=hidden, heads=heads, head_dim=64, vocab=vocab, seq_len=64, target_len=16,
        ffn=ffn, gated=True, kind="encoder-decoder", norm="rmsnorm", positions="relative",
        tied=False, bias=False, fused_attention=False, dropout=0.1,
    )  # fmt: skip
    return transformer_workload(spec, "t5", precision="fp32")


T0_3B, MT0_XXL = (2048, 5120, 32, 32128), (4096, 10240, 64, 250112)
QLORA = {"task": "qlora", "lora_rank": 64, "seq_len": 512, "global_batch": 1}
# Dettmers et al. 2023 (QLoRA), figure 6: batch 1, 512 tokens, gradient checkpointing. The table of PEFT's
# README (huggingface/peft, 2023): batch 8, fp32, one A100 of 80 GB.
FIGURES = [
    ("llama-7b", QLORA, 6.9), ("llama-13b", QLORA, 11.3), ("llama-33b", QLORA, 24.7),
    ("llama-65b", QLORA, 45.0),
    (T0_3B, {"task": "finetune"}, 47.14), (T0_3B, {"task": "lora", "lora_rank": 8}, 14.4),
    (MT0_XXL, {"task": "lora", "lora_rank": 8}, 56.0),
    ("bloom-7b1", {"task": "lora", "lora_rank": 8, "seq_len": 64, "precision": "fp32"}, 32.0),
]  # fmt: skip


@pytest.mark.parametrize(("model", "given", "gigabytes"), FIGURES)
def test_published_memory_of_tuning_within_a_tenth(
    model: Any, given: dict[str, Any], gigabytes: float
) -> None:
    one = given.get("global_batch") == 1
    plan = "micro_batch=1,recompute=full" if one else "micro_batch=8,recompute=none"
    found = asked(model if isinstance(model, str) else t5(*model), plan, **given)
    assert peak(found) / 1e9 == pytest.approx(gigabytes, rel=0.1)


def test_a_published_limit_of_offloading_the_optimizer() -> None:
    """Ren et al. 2021 (ZeRO-Offload): 13 billion parameters train on one V100 of 32 GB, 1.4 without."""
    plan = "micro_batch=1,recompute=full"
    given = {"framework": "deepspeed", "precision": "fp16", "seq_len": 1024, "global_batch": 64}
    dgx2 = replace(load_catalog().cluster("1x1xv100-sxm3-32gb"), host_memory_bytes=1.5e12)
    fits = asked("gpt3-13b", f"{plan},offload=optimizer", dgx2, **given)
    assert fits.estimate.fit_probability > 0.5
    assert (
        asked("gpt3-20b", f"{plan},offload=optimizer", dgx2, **given).estimate.fit_probability < 0.1
    )
    assert asked("gpt3-2.7b", plan, dgx2, **given).estimate.fit_probability < 0.1


@pytest.fixture(scope="module")
def levels() -> dict[str, forerun.Answer]:
    return {
        level: asked("llama3-8b", f"micro_batch=1,recompute=full,offload={level}", seq_len=2048)
        for level in ("none", "optimizer", "parameters", "nvme")
    }


def test_the_further_away_the_less_memory_and_the_more_time(
    levels: dict[str, forerun.Answer],
) -> None:
    peaks = [peak(one) for one in levels.values()]
    assert peaks[0] > peaks[1] > peaks[2] == peaks[3]
    seconds = [float(one.estimate.forecast.seconds[1]) for one in levels.values()]
    assert seconds == sorted(seconds)
    parts = [one.estimate.forecast.memory_parts for one in levels.values()]
    assert [one["optimizer"] > 0 for one in parts] == [True, False, False, False]
    assert [one["weights"] > 0 for one in parts] == [True, True, False, False]
    assert any("5 GB/s" in note for note in levels["nvme"].warnings)


def test_activations_that_wait_on_the_host_leave_two_layers() -> None:
    plan = "micro_batch=4,recompute=none"
    here, away = (
        asked("llama3-8b", f"{plan},offload_activations={word}", seq_len=2048, task="lora")
        for word in ("false", "true")
    )
    share = [one.estimate.forecast.memory_parts["activations"] for one in (away, here)]
    assert share[0] == pytest.approx(share[1] * 2 / 32)
    assert away.estimate.forecast.seconds[1] >= here.estimate.forecast.seconds[1]


def test_states_in_8_bits_are_a_quarter_and_pages_leave_where_memory_is_short() -> None:
    given: dict[str, Any] = {"seq_len": 512, "task": "finetune"}
    plan = "micro_batch=1,recompute=full"
    states = {
        name: asked("llama3-8b", plan, optimizer=name, **given).estimate
        for name in ("adamw", "adamw_8bit", "paged_adamw_8bit")
    }
    held = {name: one.forecast.memory_parts["optimizer"] for name, one in states.items()}
    masters = 4.0  # bytes a parameter, beside 8 or 2 of states
    assert held["adamw_8bit"] / held["adamw"] == pytest.approx((2 + masters) / (8 + masters))
    assert held["paged_adamw_8bit"] == held["adamw_8bit"]
    assert states["paged_adamw_8bit"].fit_probability > states["adamw_8bit"].fit_probability


def test_pages_of_states_that_are_on_the_host_already_free_nothing() -> None:
    """Also where they are most of what a device would hold."""
    fits = [
        asked("llama3-8b", "offload=optimizer", optimizer=name).estimate
        for name in ("adamw_8bit", "paged_adamw_8bit")
    ]
    assert fits[0].fit_probability == fits[1].fit_probability


@pytest.mark.parametrize(
    ("plan", "cluster", "words"),
    [
        ("offload=parameters,dp=2,zero_stage=1", "1x2xa100-sxm-80gb", "zero_stage=3"),
        ("offload=optimizer,pp=2", "1x2xa100-sxm-80gb", "pp=1"),
        ("offload=optimizer,sync=ps-sync", A100, "sync=allreduce"),
        ("offload=disk", A100, "no such offload"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(plan: str, cluster: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        forerun.predict("llama3-8b", cluster, plan, seq_len=2048)


def test_frameworks_that_offload_nothing_say_so() -> None:
    with pytest.raises(RequestError, match=r"offloads nothing.*deepspeed"):
        forerun.predict("llama3-8b", A100, "offload=optimizer", framework="ddp")
    with pytest.raises(RequestError, match="parameters with gradients and states, or nothing"):
        forerun.predict("llama3-8b", A100, "offload=optimizer", framework="fsdp")


def test_weights_in_4_bits_need_a_gpu() -> None:
    with pytest.raises(RequestError, match=r"tpu-v4 is no GPU.*--task lora"):
        forerun.predict("llama3-8b", "1x1xtpu-v4", task="qlora")
    with pytest.raises(RequestError, match="no GPU"):
        forerun.recommend(
            "llama3-8b", clusters=["tpu-v4"], task="qlora", length=forerun.Length("steps", 10)
        )
    with pytest.raises(RequestError, match=r"k80 is generation kepler of nvidia.*Pascal"):
        forerun.predict("llama3-8b", "1x1xk80", task="qlora")
    devices = ["tpu-v5e", "m60", "mi100", "p40"]
    rows = {"workload": ["llama3-8b"] * 4, "task": ["qlora"] * 4, "device": devices,
            "devices": [8.0] * 4, "global_batch": [8.0] * 4, "seq_len": [512.0] * 4}  # fmt: skip
    columns = {name: np.array(cells, dtype=object if isinstance(cells[0], str) else float)
               for name, cells in rows.items()}  # fmt: skip
    found = forerun.predict_table(Table(columns, 4))
    refused = [bool(re.search("4 bits.*--task lora", why)) for why in found.texts("declined")]
    assert refused == [True, True, False, False]
    assert np.isfinite(found.columns["predicted_step_time_s"]).tolist() == [not r for r in refused]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("paged_adamw_32bit", "paged_adamw"), ("adamw_bnb_8bit", "adamw_8bit"),
        ("adamw_torch", "adamw"), ("adamw_torch_fused", "adamw"), ("lion_32bit", "lion"),
        ("paged_adamw_8bit", "paged_adamw_8bit"), ("paged_lion_8bit", "paged_lion_8bit"),
    ],
)  # fmt: skip
def test_optimizers_have_the_names_of_the_trainer_too(name: str, meant: str) -> None:
    assert workload_of("gpt2", optimizer=name).optimizer == meant
    row = workload_from_columns({"workload": "gpt2", "optimizer": name})
    assert isinstance(row, Workload)
    assert row.optimizer == meant


def test_an_optimizer_of_the_trainer_without_known_states_is_refused() -> None:
    with pytest.raises(RequestError, match="adamw_torch_4bit"):
        workload_of("gpt2", optimizer="adamw_torch_4bit")


def test_a_host_that_is_too_small_is_named() -> None:
    plan = "dp=8,zero_stage=3,offload=parameters,micro_batch=1,recompute=full"
    large = forerun.predict(
        "llama3.1-405b", "1x8xh100-sxm-80gb", plan, seq_len=1024, global_batch=8
    )
    assert large.estimate.fit_probability < 0.1, "some 6 TB, where 1.3 are assumed"
    assert any("2 times that of its devices" in note for note in large.warnings)
    small = "1xcudo:sapphire-rapids-h100_1x4v8gb"
    with pytest.raises(UnsatisfiedError, match="memory of a node's host"):
        forerun.predict("llama3-8b", small, "offload=optimizer", task="finetune", seq_len=1024)


def test_a_cpu_has_nowhere_to_offload_to() -> None:
    from forerun.domain.job import Job
    from forerun.domain.plan import Plan
    from forerun.testing.samples import tiny_cluster, tiny_device

    device = replace(tiny_device(), kind="cpu")
    cluster = replace(tiny_cluster(1, 1), device=device)
    with pytest.raises(RequestError, match="nowhere else"):
        Job(t5(64, 64, 4, 100), cluster, Plan(offload="optimizer"))


def test_fragments_are_of_what_stays() -> None:
    given: dict[str, Any] = {"seq_len": 2048, "task": "lora"}
    plan = "micro_batch=4,recompute=none,offload_activations=true"
    parts = asked("llama3-8b", plan, **given).estimate.forecast.memory_parts
    held = parts["activations"] + parts["logits"]
    whole = asked(
        "llama3-8b", plan.replace("true", "false"), **given
    ).estimate.forecast.memory_parts
    share = whole["fragmentation"] / (whole["activations"] + whole["logits"])
    assert parts["fragmentation"] == pytest.approx(share * held)
