"""A row leaves out the resources that all runs of its kind have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.advisor.given_runs import fill_resources, model_text
from forerun.tables import Table

KIND = {"workload": "own-net", "device": "own-cpu"}


def runs(shares: tuple[float, ...] = (0.5,), **cells: Any) -> Table:
    """Return runs on 1 to 8 workers, on links of 0.3 Gbit/s, with some shares of a core."""
    return Table.from_rows([
        {**KIND, "devices": n, "global_batch": b * n, "node_gbps": 0.3, "cpus_per_worker": share,
         "step_time_s": 0.01 * b / share + 0.02 * n, **cells}
        for n in (1, 2, 4, 8) for b in (8, 16) for share in shares
    ])  # fmt: skip


def answered(advisor: Advisor, **cells: Any) -> dict[str, Any]:
    """Return the answer of one row."""
    asked = Table.from_rows([{**KIND, "devices": 4, "global_batch": 32, **cells}])
    return advisor.predict_table(asked).row(0)  # type: ignore[no-any-return]


def test_what_never_varied_need_not_be_said(tmp_path: Path) -> None:
    advisor = Advisor(predictor="gaussian").fit(runs())
    short, whole = answered(advisor), answered(advisor, node_gbps=0.3, cpus_per_worker=0.5)
    assert short["predicted_step_time_s"] == pytest.approx(whole["predicted_step_time_s"])
    assert "node_gbps 0.3 assumed, as all runs of its kind have it" in short["predicted_note"]
    assert "cpus_per_worker 0.5 assumed" in short["predicted_note"]
    assert "node_gbps" not in short
    assert "predicted_note" not in whole
    saved = tmp_path / "model.json"
    saved.write_text(model_text(advisor.predictor, advisor.made))
    again = answered(Advisor(fitted=saved))
    assert again["predicted_note"] == short["predicted_note"]
    assert again["predicted_step_time_s"] == pytest.approx(short["predicted_step_time_s"])


def test_what_varied_is_asked_for_by_its_values() -> None:
    advisor = Advisor(predictor="gaussian").fit(runs((0.25, 0.5)))
    short = answered(advisor)
    assert short["declined"] == "the row does not state cpus_per_worker"
    assert "have cpus_per_worker 0.25 to 0.5: fill it in" in short["predicted_note"]
    assert "predicted_step_time_s" in answered(advisor, cpus_per_worker=0.5)


def test_runs_of_another_kind_or_that_do_not_say_it_fill_nothing() -> None:
    for cells in ({"workload": "other"}, {"device": "t4"}):
        table = Table.from_rows([{**KIND, **cells}])
        assert fill_resources(table, runs())[0] is table
    some = Table.from_rows([{**KIND, "node_gbps": 0.3}, {**KIND, "node_gbps": ""}])
    asked = Table.from_rows([KIND])
    assert fill_resources(asked, some)[0] is asked
    again, notes = fill_resources(asked, runs())
    assert again.numbers("node_gbps").tolist() == [0.3]
    assert notes[0].count("assumed") == 2
    stated = Table.from_rows([{**KIND, "node_gbps": 1.0, "cpus_per_worker": 2.0}])
    np.testing.assert_array_equal(fill_resources(stated, runs())[0].numbers("node_gbps"), [1.0])
