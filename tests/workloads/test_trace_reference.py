"""A reference package.module:callable is imported, called and traced, or refused in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")

from forerun.errors import RequestError
from forerun.workloads.trace import workload_from_reference

SOURCE = """
import torch
from torch import nn

answer = 42
net = nn.Linear(4, 4)

def pair(): return nn.Linear(4, 4), torch.zeros(2, 4)
def mapping():
    return {"module": nn.Linear(4, 4), "inputs": torch.zeros(2, 4), "name": "mine",
            "dataset_size": 100, "optimizer": "sgd"}
def alone(): return nn.Linear(4, 4)
def sized(seq_len=3): return nn.Embedding(9, 4), torch.zeros(2, seq_len, dtype=torch.long)
def nothing(): return 3
def strange(): return {"module": nn.Linear(4, 4), "input": torch.zeros(2, 4)}
def raising(): raise KeyError("no such file")
def needs(path): return path
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with importable files, forgotten afterwards."""
    before = set(sys.modules)
    (tmp_path / "models_here.py").write_text(SOURCE)
    (tmp_path / "broken_here.py").write_text("1 / 0")
    (tmp_path / "needy_here.py").write_text("import a_package_nobody_has")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("_here"):
            del sys.modules[name]


def test_a_pair_of_module_and_inputs_is_traced(here: Path) -> None:
    workload = workload_from_reference("models_here:pair")
    assert (workload.name, workload.params) == ("models_here:pair", 20)


def test_a_mapping_names_and_describes_its_workload(here: Path) -> None:
    workload = workload_from_reference("models_here:mapping", precision="bf16", optimizer=None)
    assert (workload.name, workload.dataset_size) == ("mine", 100)
    assert (workload.optimizer, workload.precision) == ("sgd", "bf16")


def test_the_length_of_a_sequence_is_passed_on(here: Path) -> None:
    assert workload_from_reference("models_here:sized").seq_len == 3
    assert workload_from_reference("models_here:sized", seq_len=7).seq_len == 7
    with pytest.raises(RequestError, match="no argument seq_len"):
        workload_from_reference("models_here:pair", seq_len=7)


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("nowhere_here:build", "no such module"),
        ("models_here", "names no callable"),
        ("models_here:pear", "no attribute 'pear'; did you mean pair"),
        ("models_here:answer", "a int is not callable"),
        ("models_here:raising", "raised KeyError"),
        ("models_here:needs", "raised TypeError"),
        ("models_here:nothing", "returned int, not a torch.nn.Module"),
        ("models_here:strange", "unknown keys"),
        ("models_here:alone", "no example inputs were given"),
        ("models_here:net", "no example inputs were given"),
        ("broken_here:build", "importing broken_here raised ZeroDivisionError"),
        ("needy_here:build", "imports 'a_package_nobody_has'"),
    ],
)
def test_each_way_to_fail_is_told_apart(here: Path, reference: str, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        workload_from_reference(reference)


def test_the_import_path_is_put_back(here: Path) -> None:
    before = list(sys.path)
    workload_from_reference("models_here:pair")
    assert sys.path == before
