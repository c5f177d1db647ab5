"""Datasets of the package are found by name, and their networks are known where no torch is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from forerun.catalog import load_catalog
from forerun.tables import read_table
from forerun.tables.datasets import dataset, dataset_names
from forerun.workloads.resolve import workload

NAME = "architectures-lab"


def test_a_dataset_says_what_was_measured_on_what_and_when() -> None:
    (name,) = dataset_names()
    found = dataset(name)
    assert found is not None
    table = read_table(found.table)
    assert len(table) == 374
    assert len(set(table.texts("workload"))) == 68
    assert set(table.texts("date")) == {"2026-11-27"}
    assert all("AMD EPYC" in text for text in table.texts("hardware"))
    assert set(table.texts("workload")) == set(found.workloads)
    assert load_catalog([NAME]).device(NAME)[0].measured is not None
    for label, network in found.workloads.items():
        assert network.name == label
        assert network.detailed


def test_its_files_are_small() -> None:
    found = dataset(NAME)
    assert found is not None
    folder = found.table.parent
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1e6


def test_a_file_of_that_name_is_meant_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dataset(NAME) is not None
    (tmp_path / NAME).write_text("")
    assert dataset(NAME) is None
    assert dataset("architectures") is None


@pytest.mark.skipif(find_spec("torchvision") is None, reason="pip install torchvision")
def test_a_network_of_it_is_what_is_traced() -> None:
    found = dataset(NAME)
    assert found is not None
    traced = workload("benchmarks.architectures:shufflenet_v2_x0_5_32", optimizer="sgd")
    saved = found.workloads["shufflenet_v2_x0_5_32"]
    assert saved.graph == traced.graph
    assert (saved.image_size, saved.precision) == (traced.image_size, traced.precision)
