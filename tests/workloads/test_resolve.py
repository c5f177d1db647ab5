"""Resolve: each form of a reference goes to its reader, and a wrong one is told all forms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forerun.domain.workload import Length
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads import resolve
from forerun.workloads.transformer import TransformerSpec, transformer_workload


def test_a_zoo_name_or_alias_is_the_zoo_s() -> None:
    assert resolve.workload("resnet50").name == "resnet50"
    assert resolve.workload(" ResNet50 ").name == "resnet50"


def test_an_unknown_name_is_told_the_nearest_and_the_forms() -> None:
    with pytest.raises(UnknownNameError) as told:
        resolve.workload("resnet51")
    assert "resnet50" in told.value.nearest
    for form in ("zoo name", "package.module:callable", ".onnx", "config.json", ".yaml"):
        assert form in str(told.value)


@pytest.mark.parametrize("name", ["none.onnx", "none.yaml", "none.json"])
def test_a_file_that_is_not_there_is_told(name: str) -> None:
    with pytest.raises(RequestError, match="no such file"):
        resolve.workload(name)


def test_a_python_file_is_told_how_a_module_is_named() -> None:
    with pytest.raises(RequestError, match=r"examples\.resnet50:build"):
        resolve.workload("examples/resnet50.py:build")


def test_changes_reach_the_workload() -> None:
    found = resolve.workload("llama3-8b", seq_len=2048, precision="fp16", framework="nanotron",
                             dataset_size=1e6, task="finetune")  # fmt: skip
    assert (found.seq_len, found.precision, found.framework) == (2048, "fp16", "nanotron")
    assert (found.dataset_size, found.task) == (1e6, "finetune")


def test_tuning_is_as_long_as_tuning_usually_is() -> None:
    spec = TransformerSpec(layers=2, hidden=64, heads=4, ffn=256, vocab=1000, seq_len=128)
    for task in ("finetune", "lora"):
        for found in (
            resolve.workload("llama3-8b", task=task), transformer_workload(spec, "own", task=task),
        ):  # fmt: skip
            assert found.length is not None
            assert (found.length.unit, found.length.count) == ("samples", 156_006)
            assert f"assumed for {task}" in found.length.source
    whole = resolve.workload("llama3-8b").length
    assert whole is not None
    assert whole.unit == "tokens"
    given = transformer_workload(spec, "own", task="lora", length=Length("steps", 7))
    assert given.length == Length("steps", 7)


@pytest.mark.parametrize(
    "changes",
    [{"seq_len": 0}, {"seq_len": 10**12}, {"dataset_size": float("nan")}, {"task": "guess"},
     {"colour": "red"}, {"precision": "fp12"}],
)  # fmt: skip
def test_a_change_that_cannot_be_is_told(changes: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        resolve.workload("llama3-8b", **changes)


def test_a_spec_states_its_own_sizes_and_takes_another_precision(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "transformer: {hidden: 256, layers: 2, heads: 4, ffn: 512, vocab: 1000}\nseq_len: 128\n"
    )
    assert resolve.workload(str(path)).seq_len == 128
    assert resolve.workload(str(path), precision="fp32").precision == "fp32"
    with pytest.raises(RequestError, match="write seq_len in the file"):
        resolve.workload(str(path), seq_len=64)


def test_a_folder_with_a_config_json_is_that_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,'
        ' "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}'
    )
    by_folder = resolve.workload(str(tmp_path), seq_len=64)
    assert by_folder == resolve.workload(str(tmp_path / "config.json"), seq_len=64)
    with pytest.raises(RequestError, match="no image_size"):
        resolve.workload(str(tmp_path), image_size=64)


def test_a_zoo_name_loads_no_torch() -> None:
    code = (
        "import sys; from forerun.workloads import resolve; resolve.workload('resnet50');"
        "sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_module_reference_is_traced() -> None:
    pytest.importorskip("torch", reason="a module reference needs torch")
    found = resolve.workload("examples.resnet50:build", dataset_size=1_281_167)
    assert found.params == pytest.approx(25.56e6, rel=0.01)
    assert found.dataset_size == 1_281_167
