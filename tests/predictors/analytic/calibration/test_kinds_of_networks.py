"""A fit to one kind of network says little of how sure physics is of the other."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.uncertainty import evidence
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.rows import jobs_from_table, runs_from_table

NETS = ("resnet18", "resnet50", "vgg11", "vgg16", "densenet121", "alexnet", "googlenet")
TRANSFORMERS = ("bert-base", "bert-large", "gpt2", "gpt2-medium", "vit-b-16")


def jobs(names: tuple[str, ...]) -> tuple[Jobs, Table]:
    """Return jobs of networks at two batches on one device, and their rows."""
    rows = [
        {"workload": name, "device": "v100-sxm2-16gb", "nodes": 1, "devices": 1, "global_batch": batch,
         "framework": "pytorch", "precision": "fp32"}
        for name in names for batch in (8, 16)
    ]  # fmt: skip
    table = Table.from_rows(rows)
    return jobs_from_table(table, load_catalog()), table


def runs(names: tuple[str, ...]) -> Runs:
    """Return runs that take what physics says, within 1 %."""
    asked, table = jobs(names)
    said = AnalyticPredictor().predict(asked).seconds[:, 1]
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.01, len(said)))
    return runs_from_table(table.with_columns(step_time_s=said * noise), load_catalog())


def width(predictor: AnalyticPredictor, name: str) -> float:
    """Return the log of a band's upper over its lower edge, at most."""
    seconds = predictor.predict(jobs((name,))[0]).seconds
    return float(np.log(seconds[:, 2] / seconds[:, 0]).max())


@pytest.mark.parametrize(("taught", "other"), [(NETS, "gpt2-large"), (TRANSFORMERS, "resnet101")])
def test_runs_of_one_kind_of_network_leave_the_other_unsure(
    taught: tuple[str, ...], other: str
) -> None:
    fitted, both = (
        AnalyticPredictor().fit(runs(some)) for some in (taught, (*NETS, *TRANSFORMERS))
    )
    assert width(fitted, other) > 1.5 * width(both, other)
    # A fit to the other kind afterwards speaks of that kind.
    again = fitted.fit(runs(TRANSFORMERS if taught == NETS else NETS))
    assert width(again, other) < width(fitted, other)


def test_another_kind_of_network_is_a_doubling_beyond_how_much_wider_it_is() -> None:
    known = AnalyticPredictor().fit(runs(("gpt2",)))
    asked = jobs(("gpt2", "gpt2-xl"))[0]
    wider = evidence(asked, known.constants)["wider"]
    assert wider[0] == 0.0
    assert wider[-1] > 1.0  # more than twice as wide as what was measured
    after = evidence(asked, known.fit(runs(NETS)).constants)["wider"]
    np.testing.assert_allclose(after, wider + 1.0)
