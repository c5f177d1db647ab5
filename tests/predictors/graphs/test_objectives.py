"""Encoders learn targets of graphs and of rows, repeat themselves, and go on where they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.predictors.graphs import hypernetwork, objectives
from forerun.predictors.graphs.encoder import GATED, shapes
from forerun.predictors.graphs.hypernetwork import Descent, Trained, drawn_network
from forerun.predictors.graphs.objectives import trained_encoder
from forerun.progress import progress_to

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


def test_it_repeats_itself_and_goes_on_from_a_file_to_the_last_bit(tmp_path: Path) -> None:
    whole, again = (trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=6) for _ in range(2))
    begun = trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=3)
    begun.save(tmp_path / "begun.pt")
    start = Trained.read(tmp_path / "begun.pt")
    ended = trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=3, start=start)
    for name, value in whole.weights.items():
        np.testing.assert_array_equal(value, again.weights[name])
        np.testing.assert_array_equal(value, ended.weights[name])
    np.testing.assert_array_equal(whole.losses, ended.losses)


@pytest.mark.parametrize("workers", [2, 3])
def test_shares_of_a_loss_add_up_to_it(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    descents: list[Descent] = []

    def keep(descent: Descent) -> Trained:
        descents.append(descent)
        return Trained({}, np.zeros(0), {})

    for module in (objectives, hypernetwork):
        monkeypatch.setattr(module, "descended", keep)
    of, beside = np.repeat(ALL, 4), np.tile(np.arange(4.0), 10)[:, None]
    objectives.trained_encoder(GRAPHS, of, beside, beside, seed=0, steps=1)
    hypernetwork.trained(RNG.normal(size=(64, 1, 8, 8)), np.arange(64) % 10, 0, 1)
    for descent in descents:
        assert descent.parts == 4
        first = hypernetwork.first_weights(0, descent.wanted)
        weights = {name: torch.tensor(value) for name, value in first.items()}

        def share(
            rank: int, count: int, descent: Descent = descent, weights: object = weights
        ) -> float:
            return float(descent.loss_of(weights, np.random.default_rng(5), rank, count))  # type: ignore[arg-type]

        parts = [share(rank, workers) for rank in range(workers)]
        assert sum(parts) == pytest.approx(share(0, 1), rel=1e-5)
        assert min(parts) > 0


def test_progress_is_for_whoever_listens() -> None:
    said: list[str] = []
    with progress_to(said.append):
        trained_encoder(GRAPHS, ALL, NOTHING, SIZES, seed=3, steps=12)
    assert [line.partition(", loss ")[0] for line in said] == [
        "training an encoder: step 10 of 12", "training an encoder: step 12 of 12",
    ]  # fmt: skip
