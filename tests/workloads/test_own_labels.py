"""Labels of runs: the runs' own workload is meant where it agrees, the zoo's where it is the zoo's."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.catalog import load_catalog
from forerun.domain.workload import Workload
from forerun.tables import Table
from forerun.workloads.own_labels import OwnLabels, meant_note
from forerun.workloads.rows import jobs_from_table

# A perceptron of one's own; `mlp` is a name of the zoo's mlp-mnist (0.67 M parameters), too.
MLP = {"workload": "mlp", "params": 783_778, "gmacs": 0.00078, "image_size": 28, "device": "t4",
       "precision": "fp32", "optimizer": "sgd", "framework": "pytorch"}  # fmt: skip


def labels(*rows: dict[str, Any]) -> OwnLabels:
    """Return the labels of runs."""
    if not rows:
        return OwnLabels()
    return OwnLabels.of(jobs_from_table(Table.from_rows(rows), load_catalog()))


def meant(found: OwnLabels, **cells: Any) -> Workload:
    """Return what a row means."""
    workload = found.read({"workload": "mlp", **cells})
    assert isinstance(workload, Workload), workload
    return workload


def test_a_label_that_runs_use_for_their_own_means_that_and_says_so() -> None:
    workload = meant(labels(MLP, MLP))
    assert (workload.name, workload.params, workload.image_size) == ("mlp", 783_778, 28)
    assert (workload.precision, workload.optimizer) == ("fp32", "sgd")
    said = meant_note(workload)
    assert "783.8k parameters as the given runs have it (2 runs), not the zoo's mlp-mnist" in said
    assert meant(labels()).name == "mlp-mnist"


def test_what_a_row_says_of_training_counts_before_what_the_runs_say() -> None:
    workload = meant(labels(MLP), precision="bf16", optimizer="adam", dataset_size=960)
    assert (workload.precision, workload.optimizer, workload.dataset_size) == ("bf16", "adam", 960)
    assert (workload.params, workload.framework) == (783_778, "pytorch")


def test_where_runs_were_trained_in_several_ways_the_commonest_is_taken_and_said() -> None:
    workload = meant(labels(MLP, MLP, {**MLP, "precision": "bf16"}))
    assert workload.precision == "fp32"
    assert "precision is not stated, and these runs have bf16, fp32: fp32 taken" in workload.notes


@pytest.mark.parametrize("label", ["mlp-mnist", "resnet50"])
def test_other_labels_are_the_zoo_s(label: str) -> None:
    found = labels(MLP).read({"workload": label})
    assert isinstance(found, Workload)
    assert not meant_note(found)


def test_runs_of_the_zoo_s_workload_change_no_answer() -> None:
    found = labels({"workload": "mlp", "device": "t4"}, {**MLP, "params": 669_706, "gmacs": ""})
    assert found.read({"workload": "mlp"}) == labels().read({"workload": "mlp"})
    assert not found.has_own("mlp")


def test_runs_of_both_leave_the_zoo_s_name_to_the_zoo_and_say_so() -> None:
    workload = meant(labels(MLP, {"workload": "mlp", "device": "t4"}))
    assert workload.name == "mlp-mnist"
    assert "of the given runs of 'mlp' some are another workload" in workload.notes[-1]
    assert meant(labels(MLP, {"workload": "mlp", "device": "t4"}), params=783_778).name == "mlp"


def test_of_two_workloads_of_one_label_the_row_says_which() -> None:
    wide = {**MLP, "params": 3e6, "gmacs": 0.003}
    found = labels(MLP, wide)
    reason = found.read({"workload": "mlp"})
    assert isinstance(reason, str)
    assert "2 workloads of that label (params 783778" in reason
    assert "state params or gmacs" in reason
    assert meant(found, params=3e6).params == 3e6
    assert meant(found, gmacs=0.00078).params == 783_778


def test_a_row_of_another_size_is_neither_the_runs_nor_the_zoo_s() -> None:
    reason = labels(MLP).read({"workload": "mlp", "image_size": 64})
    assert isinstance(reason, str)
    assert "the given runs have it with image_size 28" in reason
    assert "write mlp-mnist if the zoo's is meant" in reason
    own = meant(labels(MLP), image_size=64, params=1e6, gmacs=0.001)
    assert (own.name, own.params) == ("mlp", 1e6)


def test_a_label_that_nobody_knows_but_the_runs_is_told_by_them() -> None:
    found = labels({**MLP, "workload": "My-Net"}).read(
        {"workload": "my-net", "dataset_size": "1e4"}
    )
    assert isinstance(found, Workload)
    assert (found.name, found.params, found.dataset_size) == ("My-Net", 783_778, 1e4)


def test_a_cell_that_cannot_be_read_is_the_row_s_reason() -> None:
    assert "precision is 'soft'" in str(labels(MLP).read({"workload": "mlp", "precision": "soft"}))
