"""The hypernetwork runs what it draws, learns, repeats itself, and its weights come back from a file."""

from __future__ import annotations

import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.predictors.graphs.encoder import GATED, GraphBatch, shapes, states
from forerun.predictors.graphs.hypernetwork import (
    CLASSES,
    as_tensors,
    drawn_network,
    executed,
    first_weights,
    predicted_weights,
    torch_backend,
    trained,
)
from forerun.predictors.graphs.primitives import CHANNELS, CODE
from forerun.predictors.graphs.weights import (
    encoder_of,
    read_weights,
    shipped_weights,
)

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.numpy").save_file
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "hypernetwork.py"


def digits() -> tuple[np.ndarray, np.ndarray]:
    found = pytest.importorskip("sklearn.datasets").load_digits()
    return (found.images[:, None] / 16.0 - 0.3).astype(np.float32), found.target


def test_drawn_networks_run_and_every_product_has_weights_of_its_size() -> None:
    images = torch.randn(4, 1, 8, 8)
    made = first_weights(0, shapes())
    from forerun.predictors.graphs.hypernetwork import decoder_shapes

    weights = {
        n: torch.as_tensor(w) for n, w in (made | first_weights(1, decoder_shapes())).items()
    }
    for seed in range(12):
        graph = drawn_network(np.random.default_rng(seed))
        found = states(as_tensors(GraphBatch.of([graph])), weights, torch_backend())
        decoded = predicted_weights(graph, found, weights)
        for node, code in enumerate(graph.primitive):
            if code in (CODE["conv"], CODE["sep_conv"], CODE["dil_conv"]):
                assert tuple(decoded[node].shape) == tuple(graph.sizes[node])
        assert tuple(executed(graph, images, decoded).shape) == (4, CLASSES)


def test_torch_and_numpy_agree() -> None:
    weights = first_weights(0, shapes())
    batch = GraphBatch.of([drawn_network(np.random.default_rng(s)) for s in range(3)])
    with torch.no_grad():
        found = states(
            as_tensors(batch), {n: torch.as_tensor(w) for n, w in weights.items()}, torch_backend()
        )
    np.testing.assert_allclose(found.numpy(), states(batch, weights), atol=1e-5)


def test_it_learns_and_repeats_itself_and_goes_on_where_it_was() -> None:
    images, labels = digits()
    first = trained(images, labels, 0, 30, networks=2, samples=32)
    again = trained(images, labels, 0, 30, networks=2, samples=32)
    assert np.array_equal(first.losses, again.losses)
    assert first.losses[-5:].mean() < first.losses[:5].mean()
    half = trained(images, labels, 0, 15, networks=2, samples=32)
    whole = trained(images, labels, 0, 15, networks=2, samples=32, start=half)
    assert np.array_equal(whole.losses, first.losses)
    net = drawn_network(np.random.default_rng(99))
    accuracy = runpy.run_path(str(BENCHMARK))["accuracy"]
    assert 0.0 <= accuracy(net, images[:100], labels[:100], first) <= 1.0


def test_weights_come_back_from_a_file(tmp_path: Path) -> None:
    weights = first_weights(0, shapes())
    path = tmp_path / "encoder.safetensors"
    save_file({f"gnn.{n}": w for n, w in weights.items()}, path, {"seed": "0"})
    found = read_weights(path)
    assert all(np.array_equal(found[n], w) for n, w in weights.items())


def test_a_checkpoint_of_the_released_code_is_read_as_it_was_trained(tmp_path: Path) -> None:
    theirs = np.unique([*CHANNELS[CHANNELS != CLASSES], 1000])
    weights, path = first_weights(0, shapes()), tmp_path / "ghn2_imagenet.pt"
    table = weights["shape_enc.embed_channel.weight"]
    table[:] = np.append(theirs, -1)[:, None]
    inside = ("gru.", "mlp.", "mlp_ve.")
    state = {
        f"gnn.{n}" if n.startswith(inside) else n: torch.tensor(w) for n, w in weights.items()
    } | {"decoder.fc.weight": torch.ones(3), "steps": torch.tensor(7)}
    torch.save({"state_dict": state, "epoch": 299, "config": {"num_classes": 1000}}, path)
    found = read_weights(path)
    expected = np.where(CHANNELS == CLASSES, 8, CHANNELS)
    np.testing.assert_array_equal(
        found["shape_enc.embed_channel.weight"][:, 0], [*expected, -1], "1,000 has a code, 10 none"
    )
    graph = drawn_network(np.random.default_rng(0))
    near = states(GraphBatch.of([graph], near=True), found).mean(axis=0)
    np.testing.assert_allclose(encoder_of(found).embeddings([graph], found)[0], near, atol=1e-5)
    assert np.abs(GATED.embeddings([graph], found)[0] - near).max() > 1e-3


def test_a_file_of_torch_is_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "encoder.pt"
    torch.save({"state_dict": _Opened(tmp_path / "opened")}, path)
    for content in (path.read_bytes(), path.read_bytes()[:90], b"", pickle.dumps([1.0])):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=r"reading the encoder .* it is no file of weights"):
            read_weights(path)
    assert not (tmp_path / "opened").exists()


class _Opened:
    """What would make a file, were it unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_of_other_names_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save({f"blocks.{i}.weight": torch.ones(2) for i in range(9)}, path)
    words = (
        "embed.weight is not there; the file has blocks.0.weight, blocks.1.weight, .* [.]{3},"
        r" and has to be of \(15, 32\)"
    )
    with pytest.raises(RequestError, match=words):
        read_weights(path)


@pytest.mark.parametrize("harm", ["text", "shape", "lacking"])
def test_foreign_files_are_refused(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "encoder.safetensors"
    weights = first_weights(0, shapes())
    if harm == "text":
        path.write_text("no weights")
    else:
        if harm == "shape":
            weights["embed.weight"] = weights["embed.weight"][:, :16].copy()
        else:
            del weights["gru.bias_hh"]
        save_file(weights, path)
    with pytest.raises(RequestError, match="reading the encoder"):
        read_weights(path)


def test_the_shipped_encoder_is_whole_and_tells_networks_apart() -> None:
    weights = shipped_weights()
    graphs = [drawn_network(np.random.default_rng(s)) for s in range(4)]
    found = GATED.embeddings(graphs, weights)
    apart = np.abs(found[:, None] - found[None]).max(axis=2)
    assert (apart[~np.eye(4, dtype=bool)] > 1e-3).all()
