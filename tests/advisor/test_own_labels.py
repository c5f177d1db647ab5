"""Labels end to end: a campaign's rows teach, and rows that name its workloads are of these."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.advisor.given_runs import model_text
from forerun.domain.job import Job, Run
from forerun.domain.plan import Plan
from forerun.errors import RequestError
from forerun.store import open_store
from forerun.tables import MEASURED, Table, read_table
from forerun.workloads.resolve import workload

STUDY = Path(__file__).parents[2] / "benchmarks/results/ray-study-2026-11-22/runs.csv"
MODELS = ("cnn", "mlp", "transformer")
# What a person leaves out who asks by a label.
UNSAID = (
    "family",
    "params",
    "gmacs",
    "seq_len",
    "image_size",
    "framework",
    "precision",
    "optimizer",
)


@pytest.fixture(scope="module")
def rows() -> Table:
    """Return a real campaign's rows on links of 300 Mbit/s, of all three models."""
    table = read_table(STUDY)
    keep = (table.texts("device") == "lab-300") & (table.numbers("cpus_per_worker") == 0.22)
    return table.take(np.flatnonzero(keep)[::3])


def without(rows: Table, names: Iterable[str]) -> Table:
    """Return the same rows without some columns."""
    left = {name: column for name, column in rows.columns.items() if name not in names}
    return Table(left, len(rows))


def test_questions_by_label_get_the_answers_of_whole_rows(rows: Table, tmp_path: Path) -> None:
    taught = Advisor(predictor="hierarchical").fit(rows)
    whole = without(rows, MEASURED)
    asked = without(whole, UNSAID)
    whole, by_label = taught.predict_table(whole), taught.predict_table(asked)
    assert set(rows.texts("workload")) == set(MODELS)
    assert set(by_label.texts("declined")) == {""}
    np.testing.assert_allclose(
        by_label.numbers("predicted_step_time_s"), whole.numbers("predicted_step_time_s")
    )
    for model, said in zip(
        by_label.texts("workload"), by_label.texts("predicted_note"), strict=True
    ):
        assert f"{model!r} is the workload of " in said
        assert ("not the zoo's mlp-mnist" in said) == (model == "mlp")
    assert set(whole.texts("predicted_note")) == {""}

    saved = tmp_path / "model.json"
    saved.write_text(model_text(taught.predictor, taught.made))
    again = Advisor(fitted=saved).predict_table(asked)
    assert again.texts("predicted_note").tolist() == by_label.texts("predicted_note").tolist()
    np.testing.assert_allclose(
        again.numbers("predicted_step_time_s"), by_label.numbers("predicted_step_time_s")
    )


def test_physics_answers_for_the_graph_that_was_run(tmp_path: Path) -> None:
    advisor = Advisor()
    cluster = advisor.cluster("1x1xt4")
    traced = {
        m: workload(f"examples.lab_models:{m}", optimizer="sgd", precision="fp32").with_(name=m)
        for m in MODELS
    }
    place = str(tmp_path / "runs.db")
    plan = Plan(micro_batch=64, global_batch=64)
    with open_store(place) as store:
        store.add([
            Run(Job(traced[m], cluster, plan), step_seconds=0.01 * (1 + i % 3), origin="lab")
            for i, m in enumerate(MODELS * 2)
        ])  # fmt: skip
    taught = advisor.fit(place)
    table = Table.from_rows([
        {"workload": m, "device": "t4", "devices": 1, "global_batch": 64, "micro_batch": 64}
        for m in MODELS
    ])  # fmt: skip
    found = taught.predict_table(table)
    for i, model in enumerate(MODELS):
        alone = taught.predict(traced[model], cluster, plan)
        assert found.numbers("predicted_step_time_s")[i] == pytest.approx(alone.step_seconds[1])
        by_name = taught.predict(model, cluster, plan)
        assert by_name.step_seconds == pytest.approx(alone.step_seconds)
        assert any(f"{model!r} is the workload of" in note for note in by_name.warnings)
    assert taught.workload("mlp-mnist").name == "mlp-mnist"
    assert taught.workload("examples.lab_models:mlp").name != "mlp"
    with pytest.raises(RequestError, match="image_size 28"):
        taught.workload("mlp", image_size=64)
