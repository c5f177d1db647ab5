"""A framework that is not stated is a mixture over those that people use; provenance moves nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from forerun.arrays import FloatArray
from forerun.catalog import load_catalog
from forerun.domain.plan import Plan, PlanColumns
from forerun.domain.quantiles import (
    LEVELS,
    log_sigma,
    mixture_quantiles,
    probability_below,
    spread,
)
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants, Framework
from forerun.predictors.analytic.predictor import USUAL, typical, usual_frameworks
from forerun.predictors.residual import ResidualPredictor
from forerun.tables import Jobs, Table
from forerun.workloads.rows import jobs_from_table, runs_from_table
from forerun.workloads.zoo import zoo_workload

WORKLOADS = (
    "resnet50", "mobilenet-v2", "efficientnet-b0", "vit-b-16", "unet", "dlrm", "gnmt", "bert-large",
    "gpt2-xl", "llama3-8b",
)  # fmt: skip
START = {"priors": AnalyticPredictor, "shipped": AnalyticPredictor.shipped}


def jobs_of(workload: Workload, micro_batch: int = 8) -> Jobs:
    """Return one job on eight A100."""
    plan = Plan(dp=8, micro_batch=micro_batch, global_batch=8 * micro_batch)
    cluster = load_catalog().cluster("1x8xa100-sxm-80gb")
    return Jobs.grid(workload, cluster, PlanColumns.of([plan]))


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_band_covers_the_median_of_every_usual_framework(name: str, start: str) -> None:
    """Stating any of them gives a median within the band of not stating one, and the same figure."""
    predictor, workload = START[start](), zoo_workload(name)
    answer = predictor.predict(jobs_of(workload))[0]
    assert set(answer.frameworks) == set(USUAL[usual_frameworks(workload)])
    for framework, median in answer.frameworks.items():
        stated = predictor.predict(jobs_of(replace(workload, framework=framework)))[0]
        assert stated.seconds[1] == pytest.approx(median)
        assert answer.seconds[0] <= 1.000001 * median <= 1.000002 * answer.seconds[2]
        assert not stated.frameworks
    assert sum(answer.parts.values()) == pytest.approx(answer.seconds[1])
    assert sum(answer.memory_parts.values()) == pytest.approx(answer.peak_bytes[1])
    assert sum(answer.causes.values()) == pytest.approx(
        float(log_sigma(np.array(answer.seconds))) ** 2
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_plans_are_scored_near_the_middle_of_the_mixture(name: str) -> None:
    """A search's typical profile lies within a third of what the answer then says."""
    jobs = jobs_of(zoo_workload(name))
    answer = AnalyticPredictor.shipped().predict(jobs).seconds[0, 1]
    scored = AnalyticPredictor.shipped().predict(jobs, detail=False).seconds[0, 1]
    assert scored == pytest.approx(answer, rel=1 / 3)


def test_a_framework_that_nobody_knows_is_the_same_mixture() -> None:
    """A label without a profile is answered as a blank one, rows beside it as they are."""
    workload = zoo_workload("resnet50")
    blank = AnalyticPredictor().predict(jobs_of(workload))[0]
    new = AnalyticPredictor().predict(jobs_of(replace(workload, framework="home-made")))[0]
    assert new == blank
    rows = [replace(workload, framework=name) for name in ("jax", "", "pytorch", "home-made")]
    jobs = jobs_of(workload).take(np.zeros(4, dtype=np.int64))
    jobs = replace(jobs, workloads=tuple(rows), workload_index=np.arange(4, dtype=np.int32))
    together = AnalyticPredictor().predict(jobs)
    assert together[1].seconds == together[3].seconds == blank.seconds
    assert together.seconds[2, 1] == pytest.approx(blank.frameworks["pytorch"])
    assert np.isnan(together.frameworks["jax"]).tolist() == [True, False, True, False]


def test_mixtures_of_one_answer_are_that_answer() -> None:
    """Weights of one, equal parts, and a far-off part: quantiles as they must be."""
    rows = spread(np.array([1.0, 3.0]), np.array([0.2, 0.5]))
    assert mixture_quantiles(rows[None], np.ones(1)) == pytest.approx(rows)
    assert mixture_quantiles(np.stack([rows, rows]), np.array([0.3, 0.7])) == pytest.approx(rows)
    far = mixture_quantiles(np.stack([rows, 100 * rows]), np.array([0.8, 0.2]))
    assert np.all(far[:, 1] < 2 * rows[:, 1])
    assert np.all(far[:, 2] > 50 * rows[:, 1])


def table(n: int = 24, **columns: list[str]) -> Table:
    """Return runs of two networks in PyTorch, or what the columns say."""
    rows = {
        "workload": ["resnet50" if i % 2 else "bert-large" for i in range(n)],
        "framework": ["pytorch"] * n,
        "device": ["a100-sxm-80gb"] * n,
        "devices": [str(2 ** (i % 4)) for i in range(n)],
        "global_batch": [str(2 ** (i % 4) * (8 + 8 * (i // 8))) for i in range(n)],
        "step_time_s": [str(0.05 * (1 + i % 5)) for i in range(n)],
        **columns,
    }
    return Table.from_columns(rows)


@pytest.mark.parametrize("column", ["source", "ref", "note"])
def test_provenance_moves_no_forecast(column: str) -> None:
    """Fitted or not: whatever stands in `source`, `ref` or `note`, the seconds are the same."""
    catalog = load_catalog()
    answers = []
    for values in (["here"] * 24, ["gavel"] * 12 + ["lambda"] * 12, [""] * 24):
        asked = table(**{column: values})
        jobs = jobs_from_table(asked, catalog)
        fitted = AnalyticPredictor().fit(runs_from_table(asked, catalog))
        answers.append((AnalyticPredictor().predict(jobs), fitted.predict(jobs)))
    for plain, fitted_answer in answers[1:]:
        assert np.array_equal(plain.seconds, answers[0][0].seconds, equal_nan=True)
        assert np.array_equal(fitted_answer.seconds, answers[0][1].seconds, equal_nan=True)
    assert np.isfinite(answers[0][1].seconds).all()


def test_runs_without_a_framework_tell_what_it_is() -> None:
    """After such runs a blank means their software; with stated ones it stays a mixture."""
    catalog, blank = load_catalog(), table(framework=[""] * 24)
    jobs = jobs_from_table(blank, catalog)
    for runs, mixture in ((blank, False), (table(), True)):
        fitted = AnalyticPredictor().fit(runs_from_table(runs, catalog))
        assert bool(fitted.predict(jobs).frameworks) == mixture


@pytest.mark.parametrize("key", USUAL)
def test_a_typical_profile_lies_between_those_of_its_frameworks(key: str) -> None:
    """No field that stands for another one's value, and none that is a switch, is averaged as it is."""
    constants = Constants()
    unnamed = typical(constants, USUAL[key]).framework("")
    profiles = [constants.frameworks[name] for name in USUAL[key]]
    for field in fields(Framework):
        values = [getattr(profile, field.name) for profile in profiles]
        if field.name == "half_grad_bytes":
            values = [p.half_grad_bytes or p.grad_bytes for p in profiles]
        value = getattr(unnamed, field.name) / (1.0 + 1e-9)
        assert min(values) / (1.0 + 2e-9) <= value <= max(values), field.name
    assert {unnamed.counts_head, unnamed.wide_weights} <= {0.0, 1.0}


@pytest.mark.parametrize("predictor", [AnalyticPredictor(), ResidualPredictor()])
def test_runs_that_physics_cannot_read_are_refused(predictor: AnalyticPredictor) -> None:
    """Own labels without a figure, and no run at all, are no fit; the message says what to give."""
    rows = [{"workload": "ours", "device": "box", "devices": d, "step_time_s": 1.0} for d in (1, 2)]
    runs = runs_from_table(Table.from_rows(rows), load_catalog())
    for some in (runs, runs.take(np.array([], dtype=np.int64))):
        with pytest.raises(RequestError):
            predictor.fit(some)


def test_many_rows_have_the_quantiles_that_each_has_alone() -> None:
    draw = np.random.default_rng(0)
    medians, sigmas = (
        np.exp(draw.normal(0, 0.3, (3, 5000))),
        np.abs(draw.normal(0.2, 0.1, (3, 5000))),
    )
    rows, shares = spread(medians, sigmas), np.array([0.5, 0.3, 0.2])
    rows[:, 7] = 1.0  # all sure of the same
    whole = mixture_quantiles(rows, shares)
    for i in (0, 7, 2047, 2048, 4999):
        assert (whole[i] == mixture_quantiles(rows[:, i : i + 1], shares)[0]).all()
    assert whole[7].tolist() == pytest.approx([1.0] * 3)


def test_quantiles_of_hostile_mixtures_are_where_their_shares_add_up() -> None:
    """Answers that are far apart, sure, skewed or as good as sure: below each quantile lies its level, to a millionth.

    Where an answer is sure, and nowhere else, the share below may jump over the level.
    """
    draw = np.random.default_rng(3)
    sigmas = np.abs(draw.normal(0, 0.3, (6, 4000))) * (draw.random((6, 4000)) < 0.8)
    rows = spread(
        np.exp(draw.normal(0, 2, (6, 4000))), sigmas, tails=(draw.random((6, 4000)) * 2, 1.0)
    )
    rows[:, 5], shares = np.nan, draw.dirichlet(np.ones(6))
    found = mixture_quantiles(rows, shares)
    assert np.isnan(found[5]).all()
    assert np.isfinite(np.delete(found, 5, axis=0)).all()

    def below(factor: float) -> FloatArray:
        chances = [[probability_below(each, limit * factor) for limit in found.T] for each in rows]
        return np.tensordot(shares, np.array(chances), axes=(0, 0)).T

    short, beyond = below(1.0 - 1e-7), below(1.0 + 1e-7)
    real = np.arange(4000) != 5
    assert (short[real] < np.array(LEVELS) + 1e-6).all()
    assert (beyond[real] > np.array(LEVELS) - 1e-6).all()
