"""Weights of an encoder: read from a file that holds arrays alone, checked by name and shape, never executed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError, optional
from forerun.predictors.graphs import graphormer
from forerun.predictors.graphs.encoder import GATED, NEAR, RELEASED, WIDTH, Encoder
from forerun.predictors.graphs.graphormer import GRAPHORMER
from forerun.predictors.graphs.primitives import CHANNELS, CLASSES

SHIPPED = Path(__file__).with_name("ghn2-digits.safetensors")
# Of the file above: how it was made stands in its header.
SHIPPED_HASH = "703a2ed471e742f03265cfdfe7fdf221eaff85fd4af70adc6ce53b73f704504e"
MOST_WEIGHT = 1e6
# What the option `encoder` names beside files.
DIGITS, QUANTITIES, RESIDUAL, GHN3 = "digits", "quantities", "residual", "graphormer-"
NAMED = (DIGITS, QUANTITIES, RESIDUAL, GHN3 + QUANTITIES, GHN3 + RESIDUAL)
_TORCH = (".pt", ".pth")
_FEW = 4  # names that a message has


def read_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Return an encoder's weights by name; others in the file (of a decoder) are left.

    Raises RequestError where it is no such file, or one of another encoder.
    """
    with optional("read an encoder of graphs", "safetensors", "learn"):
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    asked = f"reading the encoder {path}"
    todo = f"give a file of an encoder, a GatedGNN or a Graphormer, or one of {', '.join(NAMED)}"
    try:
        found = _torch_arrays(path) if path.suffix in _TORCH else load_file(path)
    except (OSError, SafetensorError) as error:
        raise RequestError(
            asked, f"it is no {'file of weights' if path.suffix in _TORCH else 'safetensors file'}: {error}",
            todo,
        ) from None  # fmt: skip
    except (AttributeError, KeyError, TypeError) as error:
        # NumPy has no such type (bfloat16, float8).
        raise RequestError(
            asked, f"it holds types of numbers that are not read ({error})", f"save them as float32; {todo}"
        ) from None  # fmt: skip
    # Published checkpoints have these prefixes.
    named = {n.removeprefix("gnn.").removeprefix("module."): array for n, array in found.items()}
    if any(name.startswith("gnn.mlp_ve.") for name in found):
        named[NEAR] = np.ones(1, dtype=np.float32)
    wanted = shapes_of(named)
    for name, shape in wanted.items():
        has = named[name].shape if name in named else None
        if has != shape:
            held = (f"; the file has {', '.join([*found][:_FEW])}{' ...' if len(found) > _FEW else ''}")  # fmt: skip
            raise RequestError(
                asked, f"{name} is {f'not there{held}' if has is None else f'of shape {has}'}, and has to be of {shape}", todo
            )  # fmt: skip
        is_float = named[name].dtype.kind == "f"
        if not is_float or not (np.abs(named[name].astype(np.float64)) <= MOST_WEIGHT).all():
            raise RequestError(
                asked, f"{name} has numbers that no weight is ({named[name].dtype}; beyond {MOST_WEIGHT:g}, or none)", todo
            )  # fmt: skip
    kinds = {name: np.promote_types(named[name].dtype, np.float32) for name in wanted}
    return {name: named[name].astype(kind) for name, kind in kinds.items()}


def encoder_of(weights: Mapping[str, Any]) -> Encoder:
    """Return the kind of encoder that weights are of, by their names."""
    if any(name.startswith("layers.") for name in weights):
        return GRAPHORMER
    return RELEASED if NEAR in weights else GATED


def shapes_of(weights: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape that each weight of an encoder must have, by the width, layers and heads that it shows."""
    kind = encoder_of(weights)
    width, heads = (
        max(weights[name].shape[-1], 1) if name in weights and weights[name].ndim else usual
        for name, usual in (("embed.weight", WIDTH), ("edge_embed.weight", graphormer.HEADS))
    )
    if width % 4 or (kind is GRAPHORMER and width % heads):
        width, heads = WIDTH, graphormer.HEADS
    if kind is not GRAPHORMER:
        return kind.shapes(width)
    layers = {name.split(".")[1] for name in weights if name.startswith("layers.")}
    return graphormer.shapes(width, len(layers), heads)


def _torch_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file of torch, in which nothing is executed; of a checkpoint, those of its model.

    GHN-2's code keeps beside them for how many classes the model was made: a size of channels that has a code.
    """
    from forerun.predictors.graphs.hypernetwork import load_torch

    torch = load_torch("read a file of torch")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        tensors = saved.get("state_dict", saved)
        found = {
            n: (t.float() if t.is_floating_point() else t).numpy()
            for n, t in tensors.items() if isinstance(t, torch.Tensor)
        }  # fmt: skip
        classes = int(saved.get("config", {}).get("num_classes", CLASSES))
    except Exception as error:  # noqa: BLE001  (torch raises many kinds)
        kind = type(error).__name__
        raise OSError(f"torch finds damage, or more than tensors ({kind})") from None
    theirs = np.unique([*CHANNELS[CHANNELS != CLASSES], classes])
    rows = [*np.abs(theirs - CHANNELS[:, None]).argmin(axis=1), len(theirs)]
    return {n: a[rows] if n.endswith("embed_channel.weight") and len(a) == len(theirs) + 1 else a for n, a in found.items()}  # fmt: skip


@cache
def shipped_weights() -> dict[str, NDArray[Any]]:
    """Return the encoder that comes with the package. Raises RequestError where its file is not the one that was shipped."""
    if hashlib.sha256(SHIPPED.read_bytes()).hexdigest() != SHIPPED_HASH:
        raise RequestError(
            "the encoder of graphs that comes with forerun", f"{SHIPPED.name} has been changed",
            "install forerun again",
        )  # fmt: skip
    return read_weights(SHIPPED)
