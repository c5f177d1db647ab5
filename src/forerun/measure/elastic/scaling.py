"""Scaling: what a sample of another batch is worth, and how the learning rate follows the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

RULES = ("none", "linear", "square_root", "adascale")


def efficiency(batch: Any, reference: float, phi: float) -> Any:
    """Return what a sample teaches at a batch (n,) relative to the reference batch; phi: noise scale, samples.

    (phi + B0) / (phi + B), Pollux (OSDI 2021), equation 6. Nothing known of the noise (NaN) counts as none
    of it, where a larger batch teaches nothing more.
    """
    if math.isinf(phi):
        return np.ones_like(np.asarray(batch, dtype=np.float64))
    known = 0.0 if math.isnan(phi) else phi
    return (known + reference) / (known + np.asarray(batch, dtype=np.float64))


def rate_factor(rule: str, batch: float, reference: float, phi: float) -> float:
    """Return by what the learning rate of the reference batch is multiplied at a batch.

    adascale: AdaScale SGD (Johnson et al., ICML 2020), equation 4, the gain of one step at the batch.
    """
    ratio = batch / reference
    if rule == "linear":
        return ratio
    if rule == "square_root":
        return math.sqrt(ratio)
    return ratio * float(efficiency(batch, reference, phi)) if rule == "adascale" else 1.0
