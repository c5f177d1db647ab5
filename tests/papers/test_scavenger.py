"""Scavenger: what its page claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.advisor.elastic_choice import forecast_steps
from forerun.catalog import load_catalog
from forerun.measure.noise import GradientNoise
from forerun.predictors.convergence import Convergence
from forerun.search.landscape import Goal
from forerun.search.replay import Replay
from forerun.search.scaling import Scale, whole_forecasts
from forerun.tables import Table, read_table
from forerun.workloads.rows import runs_from_table
from tests.predictors.laws.rows import jobs_of, runs_of

LAB = Path(__file__).parents[2] / "benchmarks" / "results" / "trainings_to_target.csv"


def squares(rng: np.random.Generator, workers: int, batch: int, phi: float) -> tuple[float, float]:
    """Return mean |g_k|^2 and |g|^2 of a step, of gradients whose noise scale is phi samples."""
    size = 400
    true = np.zeros(size)
    true[0] = 1.0
    each = true + rng.standard_normal((workers, size)) * np.sqrt(phi / size * workers / batch)
    return float(np.mean(np.sum(each**2, axis=1))), float(np.sum(each.mean(axis=0) ** 2))


def test_gamma_at_other_workers_and_batches_follows_from_one_measurement() -> None:
    rng, noise, phi = np.random.default_rng(0), GradientNoise(0.999), 300.0
    for _ in range(3000):
        noise.observe(*squares(rng, 4, 128, phi), 4, 128)
    for workers, batch in ((2, 64), (8, 256), (16, 512), (8, 2048)):
        measured = np.mean([squares(rng, workers, batch, phi) for _ in range(800)], axis=0)
        assert noise.gamma_at(workers, batch) == pytest.approx(measured[0] / measured[1], rel=0.1)


def test_steps_at_the_extremes_foretell_those_between() -> None:
    def seconds(workers: int, batch: int) -> float:
        return 0.002 * batch / workers + 0.01 * workers

    extremes = [(8, 384), (8, 1280), (20, 384), (20, 1280)]
    between = [(12, 384), (12, 768), (16, 1024), (8, 640)]
    found = forecast_steps("scavenger", {one: seconds(*one) for one in extremes}, between)
    assert found[:, 1] == pytest.approx([seconds(*one) for one in between], rel=0.04)


def test_a_partial_search_foretells_trainings_of_the_lab() -> None:
    """Real trainings to a held-out loss, on 1 to 8 workers (benchmarks/trainings_to_target.py)."""
    table, errors = read_table(LAB), []
    kept = [n for n in table.columns if n not in ("ref", "note", "source", "grad_sqr", "grad_var")]
    for model in ("digits", "text"):
        mine = (table.texts("workload") == model) & (table.texts("note") == "fixed")
        mine &= table.texts("ref") == "seed 0"
        rows = Table({name: table.columns[name] for name in kept}, len(table)).take(mine)
        box = Replay.of(runs_from_table(rows, load_catalog()), Goal("time"))
        scale = Scale.of(box.land, model)
        points = np.array(scale.extremes(middle=True))
        other = np.setdiff1d(np.arange(12), points)
        found = whole_forecasts(scale, box.seen(points))[other, 1]
        errors += np.abs(found / box.seconds[other] - 1).tolist()
    assert len(errors) == 14
    assert np.mean(errors) < 0.065


def test_samples_fall_or_rise_with_the_batch_as_the_runs_do() -> None:
    batches = 2.0 ** np.arange(5, 12)
    for law in (lambda b: 1e6 * (1 + (200 / b) ** 0.5), lambda b: 1e6 * (1 + b / 500)):
        runs = runs_of(
            workload="net", global_batch=batches.tolist(), samples_to_target=law(batches).tolist()
        )
        beyond = np.array([16.0, 4096.0])
        jobs = jobs_of(workload=["net"] * 2, global_batch=beyond.tolist())
        low, middle, high = Convergence().fit(runs).samples(jobs)[0].T
        assert middle == pytest.approx(law(beyond), rel=0.13)
        assert ((low <= law(beyond)) & (law(beyond) <= high)).all()
