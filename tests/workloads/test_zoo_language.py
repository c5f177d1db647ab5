"""Language models of the zoo have the parameters that their authors published."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.resolve import workload
from forerun.workloads.zoo import zoo_entry, zoo_names, zoo_workload

LANGUAGE = [name for name in zoo_names() if zoo_entry(name).chooses_attention]

# (name, parameters, where they are published). Model cards count with the output layer.
PUBLISHED = (
    ("bert-base", 110e6, "Devlin et al. 2018"),
    ("bert-large", 336.2e6, "model card, with the masked-token head"),
    ("roberta-large", 355e6, "Liu et al. 2019"),
    ("distilbert-base", 67.0e6, "model card"),
    ("albert-base", 11.8e6, "model card"),
    ("electra-large", 335e6, "Clark et al. 2020"),
    ("t5-base", 222.9e6, "model card"),
    ("t5-large", 737.7e6, "model card"),
    ("t5-11b", 11.31e9, "model card"),
    ("flan-t5-xxl", 11.14e9, "model card"),
    ("gpt2", 124.4e6, "model card"),
    ("gpt2-xl", 1557.6e6, "model card"),
    ("gpt3-175b", 174.6e9, "Brown et al. 2020"),
    ("gpt3-22b", 22e9, "Korthikanti et al. 2022"),
    ("gpt-18.4b", 18.4e9, "Narayanan et al. 2021"),
    ("gpt-145.6b", 145.6e9, "Narayanan et al. 2021"),
    ("gpt-1008b", 1008e9, "Narayanan et al. 2021"),
    ("mt-nlg-530b", 529.6e9, "Narayanan et al. 2021"),
    ("gpt-j-6b", 6.05e9, "model card"),
    ("gpt-neox-20b", 20.55e9, "Black et al. 2022"),
    ("opt-6.7b", 6.66e9, "model card"),
    ("opt-66b", 65.7e9, "model card"),
    ("bloom-176b", 176.25e9, "BigScience 2022"),
    ("mpt-7b", 6658859008, "llm-foundry benchmark"),
    ("mpt-70b", 64862437376, "llm-foundry benchmark"),
    ("llama-7b", 6.738e9, "model card"),
    ("llama-65b", 65.29e9, "model card"),
    ("llama2-13b", 13.02e9, "model card"),
    ("llama2-70b", 68.98e9, "model card"),
    ("llama3-8b", 8.03e9, "model card"),
    ("llama3-70b", 70.55e9, "model card"),
    ("llama3.1-405b", 405.85e9, "model card"),
    ("llama3.2-1b", 1.236e9, "model card"),
    ("llama3.2-3b", 3.213e9, "model card"),
    ("mistral-7b", 7.242e9, "model card"),
    ("mixtral-8x7b", 46.70e9, "model card"),
    ("mixtral-8x22b", 140.6e9, "model card"),
    ("qwen2.5-0.5b", 494e6, "Qwen2.5 technical report"),
    ("qwen2.5-7b", 7.616e9, "model card"),
    ("qwen2.5-72b", 72.7e9, "model card"),
    ("qwen3-8b", 8.19e9, "model card"),
    ("qwen3-30b-a3b", 30.53e9, "model card"),
    ("qwen3-235b-a22b", 235.1e9, "model card"),
    ("gemma-2b", 2.506e9, "Gemma technical report"),
    ("gemma2-9b", 9.24e9, "Gemma 2 technical report"),
    ("gemma2-27b", 27.23e9, "Gemma 2 technical report"),
    ("gemma3-1b", 1.0e9, "Gemma 3 technical report"),
    ("deepseek-v3", 671e9, "DeepSeek-V3 technical report"),
    ("deepseek-v2", 236e9, "DeepSeek-V2 technical report"),
    ("deepseek-v2-lite", 15.7e9, "DeepSeek-V2 appendix B"),
    ("phi-2", 2.78e9, "model card"),
    ("phi-3-mini", 3.82e9, "Phi-3 technical report"),
    ("falcon-7b", 6.92e9, "model card"),
    ("nemotron-340b", 341e9, "Nemotron-4 technical report"),
    ("gpt-oss-120b", 116.8e9, "gpt-oss model card"),
    ("gpt-oss-20b", 20.9e9, "gpt-oss model card"),
)


@pytest.mark.parametrize(("name", "params", "source"), PUBLISHED, ids=[p[0] for p in PUBLISHED])
def test_parameters_are_those_published(name: str, params: float, source: str) -> None:
    assert zoo_workload(name).params == pytest.approx(params, rel=0.01), source


@pytest.mark.parametrize("name", LANGUAGE)
def test_every_entry_builds_and_says_how_long_training_usually_is(name: str) -> None:
    workload = zoo_workload(name)
    assert workload.length is not None
    assert workload.length.source
    assert workload.source
    assert workload.default_global_batch > 0
    assert workload.seq_len == zoo_entry(name).default_seq_len > 0
    assert workload.steps(workload.length, workload.default_global_batch) > 0


@pytest.mark.parametrize(
    ("name", "active"), [("mixtral-8x7b", 12.9e9), ("qwen3-235b-a22b", 22.2e9),
                         ("deepseek-v3", 37.5e9), ("gpt-oss-120b", 5.7e9)],
)  # fmt: skip
def test_a_mixture_trains_on_20_tokens_for_each_active_parameter(name: str, active: float) -> None:
    length = zoo_workload(name).length
    assert length is not None
    assert length.count == pytest.approx(20 * active, rel=0.02)


def test_aliases_case_and_underscores_lead_to_the_same_workload() -> None:
    assert zoo_workload("Llama_3-8B") is zoo_workload("llama3-8b")


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("llama-v2-70b", "llama2-70b"), ("llama31-8b", "llama3.1-8b"), ("mixtral8x7b", "mixtral-8x7b"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"), ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"), ("torchvision.resnet50", "resnet50"),
        ("google/vit-base-patch16-224", "vit-b-16"), ("openai-community/gpt2-xl", "gpt2-xl"),
    ],
)  # fmt: skip
def test_a_label_that_differs_by_punctuation_or_maker_is_resolved_and_said(
    label: str, name: str
) -> None:
    found = zoo_workload(label)
    assert found.name == name
    assert found.notes[0] == f"workload {label!r} is taken as {name}"
    assert not any("taken as" in note for note in zoo_workload(name).notes)


def test_a_label_of_several_workloads_lists_them_and_a_folder_is_no_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError) as several:
        workload("llama3")
    assert several.value.nearest[:3] == ["llama3-8b", "llama3-70b", "llama3.1-8b"]
    assert not any(name.startswith("llama-3") for name in several.value.nearest)
    for stranger in ("llama9-8b", "x/y/llama3-8b", "llama3-8b.json"):
        with pytest.raises(RequestError):
            workload(stranger)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai/gpt2").mkdir(parents=True)
    with pytest.raises(RequestError):
        workload("openai/gpt2")


def test_the_sequence_length_changes_work_and_not_parameters() -> None:
    short, long = zoo_workload("llama3-8b"), zoo_workload("llama3-8b", seq_len=16384)
    assert long.params == short.params
    assert long.graph.forward_flops > 2 * short.graph.forward_flops


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="llama3-8b"):
        zoo_workload("llama3-8bb")


@pytest.mark.parametrize("change", [{"seq_len": 0}, {"image_size": 224}, {"precision": "int8"},
                                    {"optimizer": "newton"}])  # fmt: skip
def test_a_change_that_cannot_be_honoured_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        zoo_workload("llama3-8b", **change)  # type: ignore[arg-type]
