"""GHN-2 in small on scikit-learn's digits: how well networks that it never saw do with weights that it predicts.

    python benchmarks/hypernetwork.py [--steps 600] [--seeds 5] [--encoder graphormer] [--ship]

Each seed trains anew on networks drawn at random, and predicts the weights of as many others, drawn by
another seed; images are ones that it was not trained on. Chance is one in ten. --ship writes the encoder of
seed 0 into the package, and prints the hash that predictors/graphs/weights.py checks.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from forerun.predictors.graphs.encoder import GATED, Encoder
from forerun.predictors.graphs.graphormer import GRAPHORMER
from forerun.predictors.graphs.hypernetwork import (
    Trained,
    as_tensors,
    drawn_network,
    executed,
    predicted_weights,
    torch_backend,
    trained,
)
from forerun.predictors.graphs.primitives import PrimitiveGraph
from forerun.predictors.graphs.weights import SHIPPED

HELD_OUT, ASIDE, CHANCE = 20, 450, 0.1
RESULTS = Path(__file__).parent / "results"
ENCODERS = {"gated": GATED, "graphormer": GRAPHORMER}


def shipped(weights: Mapping[str, np.ndarray], steps: int) -> str:
    """Write the encoder that comes with the package, with how it was made, and return its hash."""
    save_file(dict(weights), SHIPPED, {
        "encoder": "GatedGNN of GHN-2, 32 numbers a node", "objective": "hypernetwork",
        "data": "scikit-learn digits, 1347 images", "networks": "drawn_network, 4 a step",
        "steps": str(steps), "seed": "0", "date": f"{datetime.datetime.now(datetime.UTC).date()}",
        "command": f"python benchmarks/hypernetwork.py --steps {steps} --ship",
    })  # fmt: skip
    return hashlib.sha256(SHIPPED.read_bytes()).hexdigest()


def accuracy(
    graph: PrimitiveGraph, images: np.ndarray, labels: np.ndarray, learned: Trained, encoder: Encoder = GATED
) -> float:  # fmt: skip
    """Return the share of images that a network classifies rightly with predicted weights."""
    weights = {name: torch.as_tensor(value) for name, value in learned.weights.items()}
    with torch.no_grad():
        found = encoder.states(as_tensors(encoder.batch([graph])), weights, torch_backend())
        logits = executed(
            graph,
            torch.as_tensor(images, dtype=torch.float32),
            predicted_weights(graph, found, weights),
        )
    return float((logits.argmax(dim=1).numpy() == labels).mean())


def main() -> None:
    """Train, judge, and write the report."""
    parser = argparse.ArgumentParser(description="benchmarks/hypernetwork.py: see its first lines")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--encoder", choices=ENCODERS, default="gated")
    parser.add_argument("--ship", action="store_true", help="the encoder is the gated one")
    options = parser.parse_args()
    encoder, own = (
        ENCODERS[options.encoder],
        "" if options.encoder == "gated" else f"-{options.encoder}",
    )
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[:, None] / 16.0 - 0.3).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], digits.target[order]
    networks = [drawn_network(np.random.default_rng((10_000, i))) for i in range(HELD_OUT)]
    lines = [
        "# Weights predicted for networks that were not trained on", "",
        f"`python benchmarks/hypernetwork.py --steps {options.steps} --seeds {options.seeds}"
        f"{f' --encoder {options.encoder}' if own else ''}`, {datetime.datetime.now(datetime.UTC).date()}, {os.cpu_count()} cores. {HELD_OUT} networks and {ASIDE} images"
        " held out; chance is 10 %.", "",
        "| seed | mean accuracy | least | most | of chance | seconds |", "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    means = []
    for seed in range(options.seeds):
        begun = time.perf_counter()
        learned = trained(images[ASIDE:], labels[ASIDE:], seed, options.steps, encoder=encoder)
        seconds = time.perf_counter() - begun
        if options.ship and seed == 0:
            print(shipped(learned.encoder, options.steps))
        found = [
            accuracy(net, images[:ASIDE], labels[:ASIDE], learned, encoder) for net in networks
        ]
        means.append(float(np.mean(found)))
        lines.append(
            f"| {seed} | {np.mean(found):.1%} | {min(found):.1%} | {max(found):.1%} |"
            f" {np.mean(found) / CHANCE:.1f}x | {seconds:.0f} |"
        )
        print(lines[-1], flush=True)
    lines += ["", f"Over the seeds: {np.mean(means) / CHANCE:.1f} times chance, {min(means) / CHANCE:.1f} at least."]  # fmt: skip
    (RESULTS / f"hypernetwork{own}.md").write_text("\n".join(lines) + "\n")
    print(f"hypernetwork_over_chance: {np.mean(means) / CHANCE:.2f}")


if __name__ == "__main__":
    main()
