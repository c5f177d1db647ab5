"""How long `recommend` takes over the whole catalogue, and whether what it leaves out could have won.

`recommend` scores the usual plans of each cluster first (`Space.usual`) and leaves clusters out by them, with the
margin `LEAST_OF_USUAL`. First table: every legal plan of one in so many of the catalogue's clusters is scored; model
by model clusters where any plan fits, the share of plans that are usual, and how many times as long the best usual
plan takes: the median and the most; and clusters where a plan fits and no usual one does, which must be none.
Second table: seconds of one question each, and of its process on all cores.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from forerun.advisor import Advisor
from forerun.advisor.recommending import candidate_clusters
from forerun.catalog import load_catalog
from forerun.domain.objective import Objective
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.batches import usual_batch
from forerun.search.recommending import LEAST_OF_USUAL
from forerun.search.score import grid, predict_briefly
from forerun.search.space import Space
from forerun.workloads.resolve import workload

MODELS = (
    "bert-large", "gpt2-xl", "llama3-8b", "llama3-70b", "llama3.1-405b", "gpt3-175b", "mixtral-8x7b", "vit-l-16",
    "qwen3-30b-a3b", "deepseek-v3",
)  # fmt: skip
QUESTIONS = (
    *((name, {}) for name in ("resnet50", *MODELS)),
    ("gpt3-175b", {"deadline": "7d"}), ("llama3-8b", {"tokens": "1T", "deadline": "1min"}),
    ("mixtral-8x7b", {"minimize": "time"}), ("mixtral-8x7b", {"minimize": "energy"}),
    ("mixtral-8x7b", {"market": "any"}), ("mixtral-8x7b", {"budget": 100.0}),
)  # fmt: skip
FITS = Objective().fit_confidence


def main() -> int:
    """Print a line for each model; exit 1 where a cluster is judged by its usual plans and must not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--one-in", type=int, default=8)
    asked = parser.parse_args()
    predictor, worst = AnalyticPredictor.shipped(), 0.0
    clusters = candidate_clusters(load_catalog(), None, 512)[:: asked.one_in]
    print(
        "| model | clusters | usual | median | most | usual ones do not fit |\n|---|---|---|---|---|---|"
    )
    for name in asked.models:
        network = workload(name)
        space = Space(network, tuple(clusters), (usual_batch(network)[0],), filled=True)
        ratios, usual_plans, all_plans = [], 0, 0
        for plans, positions, _ in space.worlds():
            usual = space.usual(plans)
            usual_plans, all_plans = usual_plans + len(usual), all_plans + len(plans)
            for cluster in (clusters[i] for i in positions if len(plans)):
                best = []
                for some in (plans, usual):
                    of = predict_briefly(predictor, grid(network, [(some, cluster)]))
                    fits = of.fit_probability >= FITS
                    best.append(
                        (of.seconds[fits, 1] / of.fit_probability[fits]).min(initial=np.inf)
                    )
                if np.isfinite(best[0]):
                    ratios.append(best[1] / best[0])
        lost = int(np.isinf(ratios).sum())
        share = f"{usual_plans / max(all_plans, 1):.0%}"
        print(
            f"| {name} | {len(ratios)} | {share} | {np.median(ratios):.3f} | {max(ratios):.3f} | {lost} |",
            flush=True,
        )
        worst = max(worst, *ratios)
    print(f"\nmost: {worst:.3f}\n\n| question | s | CPU s | plans | best |\n|---|---|---|---|---|")
    for name, more in QUESTIONS:
        began, used = time.perf_counter(), time.process_time()
        found = Advisor().recommend(name, **more)
        took = f"{time.perf_counter() - began:.1f} | {time.process_time() - used:.1f}"
        best = found.best.job.cluster.name if found.best else "none"
        words = " ".join([name, *(f"--{key} {value}" for key, value in more.items())])
        print(f"| {words} | {took} | {found.legal:,} | {best} |", flush=True)
    return 1 if worst * LEAST_OF_USUAL > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
