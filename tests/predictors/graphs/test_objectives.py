"""Encoders learn targets of graphs and of rows, repeat themselves, and go on where they were."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.predictors.graphs.encoder import GATED, shapes
from forerun.predictors.graphs.hypernetwork import drawn_network
from forerun.predictors.graphs.objectives import trained_encoder

pytest.importorskip("torch")
RNG = np.random.default_rng(0)
GRAPHS = [drawn_network(RNG) for _ in range(10)]
SIZES = np.log2([[len(graph), graph.depth.max()] for graph in GRAPHS])
ALL, NOTHING = np.arange(10), np.zeros((10, 0))


def test_what_is_learned_lies_in_the_embedding() -> None:
    learned = trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=0, steps=120)
    assert learned.losses[-20:].mean() < 0.5 * learned.losses[:20].mean()
    assert learned.encoder.keys() == shapes().keys()
    found = GATED.embeddings(GRAPHS, learned.encoder)
    centred = found - found.mean(axis=0)
    size = SIZES[:, 0] - SIZES[:, 0].mean()
    most = np.linalg.svd(centred, full_matrices=False)[0][:, 0]
    assert abs(np.corrcoef(most, size)[0, 1]) > 0.7


def test_rows_of_one_graph_differ_by_what_stands_beside() -> None:
    of, beside = np.repeat(ALL, 4), np.tile(np.arange(4.0), 10)[:, None]
    learned = trained_encoder(GRAPHS, of, beside, beside, seed=0, steps=120)
    assert learned.losses[-20:].mean() < 0.1 * learned.losses[:20].mean()


def test_it_repeats_itself_and_goes_on_to_the_last_bit() -> None:
    whole, again = (trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=6) for _ in range(2))
    begun = trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=3)
    ended = trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=3, start=begun)
    for name, value in whole.weights.items():
        np.testing.assert_array_equal(value, again.weights[name])
        np.testing.assert_array_equal(value, ended.weights[name])
    np.testing.assert_array_equal(whole.losses, ended.losses)
