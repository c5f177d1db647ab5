"""Labels: names of datasets match in any spelling, and are shown as they were first written."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.evaluate import evaluate, parse_condition
from forerun.evaluate.splits import folds_of, parse_split
from forerun.predictors.convergence.predictor import Convergence
from forerun.tables import Runs, Table
from forerun.tables.table import configurations
from forerun.workloads.rows import runs_from_table

NAMES = ("CIFAR-10", "cifar10", "Cifar 10", "SVHN", "svhn")


def runs() -> Runs:
    rows = [
        {"workload": "mlp", "dataset": name, "device": "own", "devices": 1 + i, "target": "acc 0.9",
         "time_to_train_s": 100.0 / (1 + i), "global_batch": 2**i, "samples_to_target": 1000.0 + i}
        for i, name in enumerate(NAMES)
    ]  # fmt: skip
    return runs_from_table(Table.from_rows(rows), Advisor().catalog)


def test_rows_are_grouped_by_what_a_dataset_is() -> None:
    table = runs().table
    first, group = table.groups(["dataset"])
    assert [table.texts("dataset")[i] for i in first] == ["CIFAR-10", "SVHN"]
    assert group.tolist() == [0, 0, 0, 1, 1]
    assert table.texts("dataset").tolist() == list(NAMES)  # the cells stay
    alike = Table.from_rows([{"dataset": "a-b", "devices": 1}, {"dataset": "AB", "devices": 1}])
    assert configurations(alike)[0] == 1
    other = Table.from_rows([{"workload": "a-b"}, {"workload": "AB"}])
    assert configurations(other)[0] == 2


@pytest.mark.parametrize("text", ["dataset=cifar_10", "dataset!=svhn", "dataset=CIFAR10,nothing"])
def test_conditions_and_splits_match_any_spelling(text: str) -> None:
    assert parse_condition(text).holds(runs().table).tolist() == [True, True, True, False, False]
    fold = folds_of(parse_split("from:dataset=cifar10"), runs().table)[0]
    assert (fold.train.tolist(), fold.test.tolist()) == ([0, 1, 2], [3, 4])


def test_scores_of_groups_are_named_as_the_first_row_writes_them() -> None:
    found = evaluate(
        {"t": runs()}, [Advisor(predictor="linear-scaling").predictor], "whole", group_by="dataset"
    )
    assert {s.group for s in found.scores if s.group} == {"CIFAR-10", "SVHN"}


def test_a_whole_run_is_learned_from_any_spelling_of_its_dataset() -> None:
    fitted = Advisor(predictor="whole-run").fit(runs().table)
    asked = [
        {"workload": "new", "dataset": name, "devices": 2}
        for name in ("cifar_10", "CIFAR 10", "SVHN", "mnist")
    ]
    rows = fitted.predict_table(Table.from_rows(asked))
    times = rows.numbers("predicted_time_to_train_s")
    # One workload says nothing of another one, so ask for the one that ran.
    assert np.isnan(times).all()
    same = fitted.predict_table(Table.from_rows([{**row, "workload": "mlp"} for row in asked]))
    a, b, c, d = same.numbers("predicted_time_to_train_s")
    assert a == b
    assert len({round(float(x), 6) for x in (a, c, d)}) == 3


def test_samples_to_a_target_are_named_by_the_runs_own_labels() -> None:
    """`mlp` is an alias of the zoo's mlp-mnist, and is not called so."""
    found = Convergence().fit(runs())
    assert set(found.formulas) == {"mlp CIFAR-10 acc 0.9", "mlp SVHN acc 0.9"}
    asked = runs_from_table(
        Table.from_rows([{"workload": "mlp", "dataset": "cifar 10", "target": "acc 0.99", "global_batch": 8}]),
        Advisor().catalog,
    )  # fmt: skip
    why = found.samples(asked.jobs)[1][0]
    assert "runs of mlp reached other targets (CIFAR-10 acc 0.9; SVHN acc 0.9)" in why
    loaded = Convergence.from_json(found.to_json())
    assert loaded.formulas == found.formulas
