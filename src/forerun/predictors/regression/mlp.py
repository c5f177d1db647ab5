"""MLP: a small network of dense layers, relu and dropout, trained by Adam on the squared error."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Arrays = tuple[FloatArray, ...]

BATCH = 32
# Kingma and Ba, Adam (2015), section 2.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def trained(
    x: FloatArray,
    y: FloatArray,
    hidden: tuple[int, ...],
    dropout: float,
    learning_rate: float,
    epochs: int,
    seed: int,
) -> tuple[Arrays, Arrays]:
    """Return weights and biases of the layers.

    Args:
        x, y: (n, k) and (n,), best standardised.
        hidden: width of each hidden layer.
        dropout: share of a hidden layer that is left out of a step.
        learning_rate, epochs: of Adam.
        seed: of first weights, order and dropout.
    """
    rng = np.random.default_rng(seed)
    sizes = (x.shape[1], *hidden, 1)
    values: list[FloatArray] = []
    for n_in, n_out in pairwise(sizes):
        bound = np.sqrt(6.0 / (n_in + n_out))  # Glorot and Bengio 2010, equation 16
        values += [rng.uniform(-bound, bound, (n_in, n_out)), np.zeros(n_out)]
    first = [np.zeros_like(v) for v in values]
    second = [np.zeros_like(v) for v in values]
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            slopes = _slopes(values, x[rows], y[rows], dropout, rng)
            step += 1
            rate = learning_rate * np.sqrt(1 - BETA2**step) / (1 - BETA1**step)
            for v, a, b, g in zip(values, first, second, slopes, strict=True):
                a += (1 - BETA1) * (g - a)
                b += (1 - BETA2) * (g * g - b)
                v -= rate * a / (np.sqrt(b) + EPSILON)
    return tuple(values[0::2]), tuple(values[1::2])


def _slopes(
    values: list[FloatArray],
    x: FloatArray,
    y: FloatArray,
    dropout: float,
    rng: np.random.Generator,
) -> list[FloatArray]:
    """Return the gradient of the mean squared error in each weight and bias, by the chain rule."""
    layers = len(values) // 2
    inputs, masks = [x], []
    for i in range(layers - 1):
        h = inputs[-1] @ values[2 * i] + values[2 * i + 1]
        kept = (rng.random(h.shape) >= dropout) / (1.0 - dropout)
        masks.append(kept * (h > 0))
        inputs.append(h * masks[-1])
    out = inputs[-1] @ values[-2] + values[-1]
    delta = 2.0 * (out - y[:, None]) / len(x)
    slopes: list[FloatArray] = []
    for i in reversed(range(layers)):
        slopes = [inputs[i].T @ delta, delta.sum(axis=0), *slopes]
        if i:
            delta = (delta @ values[2 * i].T) * masks[i - 1]
    return slopes
