"""YAML specs become workloads, and a wrong one is told with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.workloads.spec import workload_from_spec
from forerun.workloads.zoo import zoo_workload

TRANSFORMER = """\
name: mine
transformer:
  layers: 12
  hidden: 768
  heads: 12
  vocab: 50257
  seq_len: 1024
  dropout: 0.1
precision: fp16
dataset: {name: web, size: 1000}
length: {unit: epochs, count: 3}
global_batch: 64
"""
OPERATIONS = """\
operations:
  - {name: stem, kind: conv, flops: 2.4e8, reads: 150528, writes: 802816, params: 9408,
     dims: [12544, 64, 147], saved: 150528}
  - {name: fc, kind: matmul, flops: 4096000, reads: 2048, writes: 1000, params: 2049000}
image_size: 224
optimizer: momentum
"""
TOTALS = """\
totals: {params: 25.6e6, gmacs: 4.1, mactivations: 11.1}
image_size: 224
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "work.yaml"
    path.write_text(text)
    return path


def test_a_transformer_is_described_by_its_shape(tmp_path: Path) -> None:
    found = workload_from_spec(_write(tmp_path, TRANSFORMER))
    assert found.params == zoo_workload("gpt2").params
    assert (found.name, found.dataset_size, found.default_global_batch) == ("mine", 1000, 64)
    assert found.length is not None
    assert found.samples(found.length) == 3000


def test_operations_get_their_backward_and_optimizer(tmp_path: Path) -> None:
    found = workload_from_spec(_write(tmp_path, OPERATIONS))
    assert found.params == 9408 + 2049000
    assert found.graph.backward_flops == 2.4e8 + 2 * 4096000
    assert (found.name, found.sample, found.image_size) == ("work", "image", 224)


def test_totals_are_kept_and_marked_as_not_detailed(tmp_path: Path) -> None:
    found = workload_from_spec(_write(tmp_path, TOTALS))
    assert found.params == pytest.approx(25.6e6)
    assert found.graph.forward_flops == pytest.approx(8.2e9)
    assert not found.detailed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRANSFORMER.replace("heads: 12", "heads: 7"), r"work\.yaml, line 5, transformer\.heads"),
        (TRANSFORMER.replace("hidden", "hiden"), r"line 4, transformer\.hiden.*hidden"),
        (TRANSFORMER.replace("  vocab: 50257\n", ""), "vocab"),
        (TRANSFORMER.replace("fp16", "int3"), r"line 9, precision"),
        (OPERATIONS.replace("12544", "9" * 400), r"line 3, operations\[0\]\.dims.*from 1 to 2\^53"),
        (TRANSFORMER + TOTALS, "transformer and totals"),
        (
            TRANSFORMER.replace("global_batch: 64", "global_batch: 1.0e+18"),
            r"line 12, global_batch",
        ),
        ("name: x\n", "none of them"),
        (OPERATIONS.replace("kind: matmul", "kind: magic"), r"operations\[1\]\.kind"),
        (OPERATIONS.replace("4096000", "-1"), r"line 4, operations\[1\]\.flops"),
        (TOTALS.replace("4.1", ".nan"), r"line 1, totals\.gmacs"),
        (TOTALS.replace("gmacs: 4.1, ", ""), "gmacs"),
        (TRANSFORMER.replace("count: 3", "count: 0"), r"line 11, length"),
        ("[1, 2]", "not a mapping"),
        ("a: [", "not YAML"),
        ("", "not a mapping"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        workload_from_spec(_write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        workload_from_spec(tmp_path / "none.yaml")


def test_aliases_that_multiply_do_not_take_long(tmp_path: Path) -> None:
    text = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    with pytest.raises(RequestError, match="its aliases make"):
        workload_from_spec(_write(tmp_path, text))
