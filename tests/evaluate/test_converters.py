"""Converters: what a published table means is in its columns, and names that it gives are answered."""

from __future__ import annotations

import pytest
from converters import converted_rows, rules

from forerun.workloads.zoo import find_entry


def test_a_rule_fills_blanks_and_leaves_what_is_stated() -> None:
    rows = [
        {"workload": "resnet50", "precision": ""},
        {"workload": "resnet50", "precision": "bf16"},
    ]
    columns, found = converted_rows("pollux", rows)
    assert columns == ["workload", "precision", "cluster"]
    assert [row["precision"] for row in found] == ["fp32", "bf16"]
    assert rows[0]["precision"] == ""


def test_a_rule_meets_the_rows_that_it_names() -> None:
    rows = [{"workload": "gpt-174.6b", "note": note, "tp": ""} for note in ("PTD-P", "ZeRO-3")]
    columns, found = converted_rows("narayanan2021", rows)
    assert columns == ["workload", "note", "tp", "pp", "cluster"]
    assert [(row["tp"], row.get("pp", "")) for row in found] == [("8", "12"), ("", "")]


def test_rows_without_a_cluster_s_name_were_made_in_one_place() -> None:
    rows = [{"workload": "resnet50", "cluster": "x"}, {"workload": "resnet50", "cluster": ""}]
    assert [row["cluster"] for row in converted_rows("own", rows)[1]] == ["x", "own"]


@pytest.mark.parametrize("table", ["profet", "nvidia_dle"])
def test_networks_of_other_names_are_the_zoo_s(table: str) -> None:
    for rule in rules()[table]:
        for name in rule["rename"].values():
            assert find_entry(name) is not None, name


@pytest.mark.parametrize("table", ["lambda", "dlperf"])
def test_what_counts_in_other_units_or_is_not_described_has_a_name_of_its_own(table: str) -> None:
    for rule in rules()[table]:
        for name in rule.get("rename", {}).values():
            assert find_entry(name) is None, name
