"""Scaling: what a sample of another batch is worth, and the learning rate by each rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.measure.elastic.scaling import efficiency, rate_factor


def test_noise_makes_large_batches_worth_their_samples() -> None:
    batch = np.array([32.0, 64.0, 320.0])
    assert efficiency(batch, 32, 288.0) == pytest.approx([1.0, 320 / 352, 320 / 608])
    assert efficiency(batch, 32, math.inf) == pytest.approx(1.0)
    assert efficiency(batch, 32, 0.0) == pytest.approx([1.0, 0.5, 0.1])
    assert efficiency(batch, 32, math.nan) == pytest.approx([1.0, 0.5, 0.1]), (
        "nothing is known of it"
    )


@pytest.mark.parametrize(
    ("rule", "phi", "factor"),
    [
        ("none", 100.0, 1.0), ("linear", 100.0, 4.0), ("square_root", 100.0, 2.0),
        ("adascale", math.inf, 4.0), ("adascale", 0.0, 1.0), ("adascale", 96.0, 4 * 128 / 224),
    ],
)  # fmt: skip
def test_the_learning_rate_follows_the_batch_by_a_rule(
    rule: str, phi: float, factor: float
) -> None:
    assert rate_factor(rule, 128, 32, phi) == pytest.approx(factor)
