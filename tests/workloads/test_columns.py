"""Rows of a runs table become workloads, or say why not; never another structure silently."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from forerun.domain.graph import Phase
from forerun.domain.workload import Workload
from forerun.workloads.backward import graph_from_totals
from forerun.workloads.columns import WORKLOAD_COLUMNS, workload_from_columns
from forerun.workloads.resolve import workload
from forerun.workloads.zoo import zoo_workload
from tests.needs import published

ULTRASCALE = {
    "workload": "llama-like-1b", "framework": "nanotron", "precision": "bf16", "params": "1.34e9",
    "layers": "16", "hidden": "2048", "heads": "32", "kv_heads": "32", "ffn": "8192",
    "vocab": "131072", "seq_len": "4096",
}  # fmt: skip


def _read(**row: Any) -> Workload:
    found = workload_from_columns(row)
    assert isinstance(found, Workload), found
    return found


def _reason(**row: Any) -> str:
    found = workload_from_columns(row)
    assert isinstance(found, str), found
    return found


def test_a_name_of_the_zoo_is_found_with_its_sequence_length_and_precision() -> None:
    found = _read(workload="llama3-8b", seq_len=4096.0, precision="float8", device="h100")
    assert found.graph is zoo_workload("llama3-8b", seq_len=4096, precision="fp8").graph
    assert (found.seq_len, found.precision) == (4096, "fp8")


def test_blank_cells_are_no_cells() -> None:
    found = _read(workload="gpt2", seq_len="", precision="nan", params=float("nan"), layers=None)
    assert found.params == zoo_workload("gpt2").params
    assert any("precision is not stated" in note for note in found.notes)


def test_megatron_of_2021_writes_its_scores_to_memory_and_megatron_bridge_does_not() -> None:
    assert not _read(workload="gpt3-175b", framework="Megatron-LM").fused_attention
    assert _read(workload="gpt3-175b", framework="Megatron-Bridge").fused_attention


def test_a_dataset_tells_the_sequence_length_or_the_task() -> None:
    assert _read(workload="bert-base", dataset="Wikipedia seq128").seq_len == 128
    assert _read(workload="bert-base", dataset="SQuAD").task == "finetune"


def test_shape_columns_serve_where_the_zoo_has_no_such_name() -> None:
    found = _read(workload="gpt-h2048-l16", layers=16, hidden=2048, heads=16, ffn=8192,
                  vocab=51200, seq_len=1024, precision="fp16")  # fmt: skip
    assert found.params == pytest.approx(16 * 12 * 2048**2 + (51200 + 1024) * 2048, rel=0.002)
    assert found.shape.layers == 16


def test_stated_parameters_decide_whether_embeddings_are_tied() -> None:
    found = _read(**ULTRASCALE)
    assert found.params == pytest.approx(1.34e9, rel=0.01)
    assert any("gated=True and tied=True" in note for note in found.notes)


def test_shape_columns_that_contradict_the_zoo_win_and_it_is_noted() -> None:
    found = _read(workload="gpt2", layers=24, hidden=1024, heads=16, seq_len=1024)
    assert found.shape.layers == 24
    assert any("not taken as gpt2" in note for note in found.notes)


def test_a_contradiction_that_nothing_resolves_is_a_reason() -> None:
    assert "layers is 4" in _reason(workload="llama3-8b", layers=4)


def test_a_small_difference_of_parameters_is_noted_and_no_reason() -> None:
    found = _read(workload="llama3-8b", params=9.5e9)
    assert any("params is 9.5e+09" in note for note in found.notes)


def test_totals_serve_last_and_are_not_detailed() -> None:
    found = _read(workload="newnet50", params="25.6e6", gmacs=4.1, mactivations=11.1,
                  image_size=224)  # fmt: skip
    assert not found.detailed
    assert found.graph.total("writes", Phase.FORWARD) == pytest.approx(3 * 11.1e6)
    assert found.graph.backward_flops == pytest.approx(2 * 8.2e9, rel=0.02)


def test_activations_are_assumed_and_noted_where_they_are_not_stated() -> None:
    graph = graph_from_totals(25.6e6, 4.1)
    assert graph.activations == pytest.approx(3 * 11.1e6, rel=0.05)
    assert any("activations" in note for note in _read(params=1e6, gmacs=1).notes)


def test_lora_keeps_the_structure_and_says_what_is_left_out() -> None:
    found = _read(workload="llama2-7b", task="lora")
    assert found.task == "lora"
    assert any("LoRA" in note for note in found.notes)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "names no workload"),
        ({"workload": "unheard-of"}, "not in the zoo"),
        ({"workload": "16b-dense", "params": 1.6e10}, "not in the zoo"),
        ({"workload": "gpt2", "precision": "int3"}, "precision"),
        ({"workload": "gpt2", "seq_len": "-5"}, "seq_len"),
        ({"workload": "gpt2", "seq_len": "many"}, "seq_len"),
        ({"workload": "gpt2", "seq_len": 1e30}, "seq_len"),
        ({"workload": "gpt2", "optimizer": "newton"}, "optimizer"),
        ({"workload": "gpt2", "task": "sleep"}, "task"),
        ({"workload": "x", "layers": 4, "hidden": 100, "heads": 7, "seq_len": 8}, "heads"),
        ({"workload": "x", "layers": 1e9, "hidden": 64, "seq_len": 8}, "layers"),
    ],
)
def test_a_row_that_cannot_be_answered_says_why(row: dict[str, Any], said: str) -> None:
    assert said in _reason(**row)


def test_a_blank_precision_is_the_command_line_s_and_is_noted() -> None:
    for name, framework in (("llama3-8b", "Megatron-LM"), ("resnet50", "pytorch"), ("gpt2", "")):
        found = _read(workload=name, framework=framework)
        assert found.precision == workload(name).precision
        assert f"precision is not stated: {found.precision} assumed" in found.notes


def test_optimizer_none_is_a_step_without_an_update() -> None:
    assert _read(workload="resnet18", optimizer="none").optimizer == "none"
    assert _read(workload="resnet18").optimizer == workload("resnet18").optimizer


# Tables whose workloads are all transformers of known structure.
RESOLVING = ("vtrain", "ultrascale", "llm_foundry", "korthikanti2022", "narayanan2021", "mtnlg",
             "nvidia_nemo", "torchtitan", "libai", "dlperf_gpt")  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("table", RESOLVING)
def test_every_row_of_a_table_of_transformers_has_its_workload(table: str) -> None:
    path = published(table)
    with path.open(encoding="utf-8") as file:
        rows = {
            tuple(row.get(c, "") for c in WORKLOAD_COLUMNS): row for row in csv.DictReader(file)
        }
    for row in rows.values():
        found = workload_from_columns(row)
        assert isinstance(found, Workload), found
        stated = float(row.get("params") or 0)
        assert not stated or found.params == pytest.approx(stated, rel=0.04)


def test_a_tuned_run_fuses_attention_whatever_its_framework() -> None:
    assert not _read(workload="gpt3-175b", framework="NGC PyTorch").fused_attention
    assert _read(workload="gpt3-175b", framework="tuned NGC PyTorch 22.05").fused_attention


@pytest.mark.parametrize(
    ("workload", "column", "value"),
    [("llama3-8b", "heads", 7), ("llama3-8b", "kv_heads", 3), ("llama3-8b", "ffn", 999),
     ("llama3-8b", "vocab", 50000), ("llama3-8b", "image_size", 224), ("resnet50", "seq_len", 128)],
)  # fmt: skip
def test_a_column_that_contradicts_the_zoo_is_no_silent_matter(
    workload: str, column: str, value: int
) -> None:
    reason = workload_from_columns({"workload": workload, column: value})
    assert isinstance(reason, str)
    assert f"{column} is {value}" in reason


def test_a_padded_vocabulary_is_the_zoo_s() -> None:
    workload = workload_from_columns({"workload": "gpt2", "vocab": 50304})
    assert not isinstance(workload, str)
    assert not any("vocab" in note for note in workload.notes)
