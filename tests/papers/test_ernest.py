"""Ernest (NSDI 2016): its published example to its digits, and its design at the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.evaluate import evaluate, parse_split
from forerun.predictors.laws.ernest import Ernest
from forerun.registry import load
from forerun.search.design import column_scaled
from forerun.systems.recipe import System
from forerun.tables.files import read_table
from forerun.workloads.rows import runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import CATALOG, jobs_of, runs_of

# Cores, fraction of the data, seconds: the published example of Ernest's own repository.
GOLDEN = np.array([
    (32, 0.125, 7.945168), (4, 0.015625, 4.720292), (4, 0.021382, 4.876611),
    (12, 0.050164, 6.713765), (12, 0.055921, 6.715194), (12, 0.061678, 6.673972),
    (16, 0.061678, 6.835670),
])  # fmt: skip
THETA = [1.90012687, 162.19821226, 1.58832362, 0.0]  # 1, s/m, log m, m
FORETOLD = {
    4: 44.6515640, 8: 25.4777295, 12: 19.3634805, 16: 16.4412833, 20: 14.7682298, 24: 13.7061637,
    28: 12.9855393,
}  # fmt: skip

SYSTEM: System = load("systems", "ernest")


def test_the_published_example_is_reproduced_to_five_digits() -> None:
    predictor = SYSTEM.part("predictor").made()
    assert isinstance(predictor, Ernest)
    cores, share, seconds = GOLDEN.T
    law = predictor.fit(runs_of(devices=cores, dataset_size=share, time_to_train_s=seconds))
    assert law.laws["sgd-job", "core"].theta == pytest.approx(THETA, rel=1e-5, abs=1e-12)
    answer = law.predict(jobs_of(devices=list(FORETOLD), dataset_size=np.ones(len(FORETOLD))))
    assert answer.seconds[:, 1] == pytest.approx(list(FORETOLD.values()), rel=1e-5)


def test_the_design_is_the_optimum_of_the_trace_criterion_within_the_budget() -> None:
    machines, share = (a.ravel().astype(float) for a in np.meshgrid(
        [1, 2, 4, 6, 8, 10, 12, 14, 16, 20], np.linspace(0.01, 0.1, 10)
    ))  # fmt: skip
    design = SYSTEM.part("design").made()(share, machines)
    cost = share / share.min() / machines
    assert design.share.min() >= 0.0
    assert design.share.max() <= 1.0
    assert design.share @ cost <= 10.0 * (1 + 1e-6)
    x = column_scaled(
        np.stack([np.ones(100), share / machines, np.log(machines), machines], axis=1)
    )

    def trace(weights: np.ndarray) -> float:
        return float(np.trace(np.linalg.inv((x * weights[:, None]).T @ x)))

    assert trace(design.share) == pytest.approx(design.bound, rel=1e-4)
    # No other design within the budget that chance finds is better.
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = np.clip(design.share + rng.normal(0, 0.1, 100), 0.0, 1.0)
        other *= min(1.0, 10.0 / float(other @ cost))
        assert trace(other) >= trace(design.share) * (1 - 1e-4)


def test_only_candidates_of_a_share_above_three_tenths_are_run() -> None:
    machines, share = (
        a.ravel().astype(float) for a in np.meshgrid([1, 2, 4, 8], [0.02, 0.05, 0.1])
    )
    design = SYSTEM.part("design").made()(share, machines)
    assert set(design.kept()) == set(np.flatnonzero(design.share > 0.3))
    assert 0 < len(design.kept()) < len(machines)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "bound", "stated"), [("tf_benchmarks", "4", 2.3), ("sia", "8", 6.9), ("c3o_spark", "half", 48.2)]
)  # fmt: skip
def test_runs_on_few_machines_foretell_those_on_more(name: str, bound: str, stated: float) -> None:
    """Median error, as docs/systems/ernest.md states it: training goes on as it scaled, Spark's jobs do not."""
    runs = runs_from_table(read_table(published(name)), CATALOG)
    split = f"extrapolation:devices={bound}"
    found = evaluate({name: runs}, [Ernest()], parse_split(split)).of("ernest", name)
    assert found.median_ape == pytest.approx(stated, abs=0.1)
