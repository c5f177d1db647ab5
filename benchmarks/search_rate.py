"""How many plans a second the search scores: Llama-3-70B over every accelerator of the catalogue.

Counted are distinct legal plans, their enumeration included; each gets step and run seconds as
quantiles, peak memory, probability of fitting and dollars. A thousand of them, drawn with a
seed, are asked again one at a time and must agree. The shipped, fitted constants answer. The last line is `plans_per_second: N`.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from forerun.catalog import load_catalog
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.workload import Length
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.score import Scored, score, score_space
from forerun.search.space import Space
from forerun.tables import Jobs
from forerun.workloads.zoo import zoo_workload

DEVICES = (
    "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h100-pcie-80gb", "h200-sxm-141gb",
    "b200-sxm-180gb", "gb200", "mi300x", "mi325x", "l40s", "gaudi2", "v100-sxm2-32gb",
)  # fmt: skip
NODES = (4, 8, 12, 16, 24, 32, 48, 64)
LENGTH = Length("tokens", 1.4e12, "20 tokens a parameter")
OBJECTIVE = Objective(aim="cost")


def clusters() -> list[Cluster]:
    """Return clusters of eight-device nodes of several vendors and sizes."""
    catalog = load_catalog()
    return [catalog.cluster(f"{n}x8x{device}") for device in DEVICES for n in NODES]


def sweep(space: Space, predictor: AnalyticPredictor) -> tuple[int, float, list[Scored]]:
    """Return (plans scored, seconds, one chunk in ten for checking)."""
    kept: list[Scored] = []
    count = 0
    started = time.perf_counter()
    for i, scored in enumerate(score_space(space, predictor, OBJECTIVE, LENGTH, {})):
        count += len(scored)
        if i % 10 == 0:
            kept.append(scored)
    return count, time.perf_counter() - started, kept


def check_distinct(space: Space) -> None:
    """Raise where an enumerated plan appears twice for a cluster."""
    for plans, _, _ in space.worlds():
        columns = np.stack([getattr(plans, name) for name in vars(plans)], axis=1)
        if len(np.unique(columns, axis=0)) != len(plans):
            raise AssertionError("a plan was enumerated twice")


def check_agreement(kept: list[Scored], samples: int, seed: int) -> float:
    """Return the largest relative difference between the sweep and the one-job path."""
    rng = np.random.default_rng(seed)
    alone = AnalyticPredictor.shipped()
    worst = 0.0
    for _ in range(samples):
        chunk = kept[rng.integers(len(kept))]
        i = int(rng.integers(len(chunk)))
        one = score(Jobs.of([chunk.jobs[i]]), alone, OBJECTIVE, LENGTH)
        pairs = (
            (one.forecasts.seconds[0], chunk.forecasts.seconds[i]),
            (one.forecasts.peak_bytes[0], chunk.forecasts.peak_bytes[i]),
            (one.estimates.dollars[0], chunk.estimates.dollars[i]),
            (one.estimates.run_seconds[0], chunk.estimates.run_seconds[i]),
            (one.estimates.fit_probability[:1], chunk.estimates.fit_probability[i : i + 1]),
        )
        for a, b in pairs:
            both = np.isfinite(a) | np.isfinite(b)
            gap = np.abs(a[both] - b[both]) / np.maximum(np.abs(b[both]), 1e-12)
            worst = max(worst, float(np.max(gap, initial=0.0)))
    return worst


def main() -> int:
    """Run the benchmark; return 1 where the two paths disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    space = Space(zoo_workload("llama3-70b"), tuple(clusters()), (512, 1024, 2048))
    check_distinct(space)
    rates = []
    for _ in range(3):
        fresh = Space(space.workload, space.clusters, space.global_batches)
        count, seconds, kept = sweep(fresh, AnalyticPredictor.shipped())
        rates.append(count / seconds)
        print(f"{count:,} legal plans on {len(space.clusters)} clusters in {seconds:.2f} s")
    worst = check_agreement(kept, options.samples, options.seed)
    print(f"{options.samples} plans asked alone: largest relative difference {worst:.1e}")
    print(f"plans_per_second: {np.median(rates):.0f}")
    return int(worst > 1e-9)


if __name__ == "__main__":
    sys.exit(main())
