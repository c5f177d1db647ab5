"""How long `recommend` takes over the whole catalogue, and whether what it leaves out could have won.

`recommend` scores the usual plans of each cluster first (`Space.usual`) and leaves clusters out by them, with the
margin `LEAST_OF_USUAL`. First table: every legal plan of one in so many of the catalogue's clusters is scored; model
by model clusters where any plan fits, the share of plans that are usual, and how many times as long the best usual
plan of the best plan's own degrees takes: the median and the most; and clusters where a plan fits and no usual one of
its degrees does, which must be none; at the end the most, and the most of the best usual plan of all degrees.
Second table: seconds of one question each, and of its process on all cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from forerun.advisor import Advisor
from forerun.advisor.recommending import candidate_clusters
from forerun.arrays import FloatArray
from forerun.catalog import load_catalog
from forerun.domain.objective import Objective
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.batches import usual_batch
from forerun.search.recommending import LEAST_OF_USUAL
from forerun.search.score import grid, predict_briefly
from forerun.search.space import Space, layout_codes
from forerun.tables import Jobs

MODELS = (
    "bert-large", "gpt2-xl", "llama3-8b", "llama3-70b", "llama3.1-405b", "gpt3-175b", "mixtral-8x7b", "vit-l-16",
    "qwen3-30b-a3b", "deepseek-v3",
)  # fmt: skip
# A model, changes of it, its batch (0: the usual one), and plan fields that are fixed.
CASES: tuple[tuple[str, dict[str, Any], int, dict[str, Any]], ...] = (
    *((name, {}, 0, {}) for name in MODELS),
    ("llama3-8b", {"seq_len": 32768}, 16, {}), ("llama3-8b", {"seq_len": 131072}, 4, {}),
    ("llama3-8b", {"framework": "megatron"}, 64, {}), ("llama3-8b", {}, 64, {"zero_stage": 2}),
    ("llama3-8b", {}, 32, {"zero_stage": 2, "pp": 8}), ("mixtral-8x7b", {}, 32, {"pp": 4}),
    ("llama3-70b", {"task": "lora"}, 16, {}), ("llama3-70b", {"task": "qlora"}, 16, {}),
    ("t5-11b", {}, 64, {}), ("bert-large", {"seq_len": 128}, 128, {}),
)  # fmt: skip
QUESTIONS = (
    *((name, {}) for name in ("resnet50", *MODELS)),
    ("gpt3-175b", {"deadline": "7d"}), ("llama3-8b", {"tokens": "1T", "deadline": "1min"}),
    ("mixtral-8x7b", {"minimize": "time"}), ("mixtral-8x7b", {"minimize": "energy"}),
    ("mixtral-8x7b", {"market": "any"}), ("mixtral-8x7b", {"budget": 100.0}),
)  # fmt: skip
FITS = Objective().fit_confidence


def seconds_of(predictor: AnalyticPredictor, jobs: Jobs) -> FloatArray:
    """Return seconds a step over P(fits), (n,), infinite where a plan does not fit."""
    found = predict_briefly(predictor, jobs)
    fits = found.fit_probability
    return np.where(fits >= FITS, found.seconds[:, 1] / np.maximum(fits, FITS), np.inf)


def main() -> int:
    """Print a line for each model; exit 1 where a cluster is judged by its usual plans and must not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one-in", type=int, default=8)
    asked = parser.parse_args()
    predictor, worst, worst_of_all = AnalyticPredictor.shipped(), 0.0, 0.0
    clusters = candidate_clusters(load_catalog(), None, 512)[:: asked.one_in]
    print(
        "| question | clusters | usual | median | most | usual ones do not fit |\n|---|---|---|---|---|---|"
    )
    for name, changes, batch, fixed in CASES:
        network = Advisor().workload(name, **changes)
        batches = (batch or usual_batch(network)[0],)
        space = Space(network, tuple(clusters), batches, fixed, filled=True)
        ratios, of_all, shares = [], [], []
        for plans, positions, _ in space.worlds():
            usual, of = space.usual(plans), layout_codes(plans)
            shares.append((len(usual), len(plans)))
            for cluster in (clusters[i] for i in positions if len(plans)):
                every, few = (
                    seconds_of(predictor, grid(network, [(some, cluster)]))
                    for some in (plans, usual)
                )
                if np.isfinite(best := every.min()):
                    alike = layout_codes(usual) == of[every.argmin()]
                    ratios.append(few[alike].min(initial=np.inf) / best)
                    of_all.append(few.min(initial=np.inf) / best)
        lost = int(np.isinf(ratios).sum())
        part = np.sum(shares, axis=0)
        words = " ".join(
            [name, *(f"{k}={v}" for k, v in {**changes, **fixed}.items()), f"batch {batches[0]}"]
        )
        print(
            f"| {words} | {len(ratios)} | {part[0] / part[1]:.0%} | {np.median(ratios):.3f} | {max(ratios):.3f} | {lost} |",
            flush=True,
        )
        worst, worst_of_all = max(worst, *ratios), max(worst_of_all, *of_all)
    print(
        f"\nmost: {worst:.3f} of the same degrees, {worst_of_all:.3f} of all\n\n| question | s | CPU s | plans | best |\n|---|---|---|---|---|"
    )
    for name, more in QUESTIONS:
        began, used = time.perf_counter(), time.process_time()
        found = Advisor().recommend(name, **more)
        took = f"{time.perf_counter() - began:.1f} | {time.process_time() - used:.1f}"
        best = found.best.job.cluster.name if found.best else "none"
        words = " ".join([name, *(f"--{key} {value}" for key, value in more.items())])
        print(f"| {words} | {took} | {found.legal:,} | {best} |", flush=True)
    return 1 if max(worst, worst_of_all) * LEAST_OF_USUAL > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
