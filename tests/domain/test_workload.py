"""Workload: lengths in steps, samples, tokens and epochs agree, or say what is missing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.graph import Graph
from forerun.domain.workload import (
    ACTIVATION_BYTES,
    OPERAND_BYTES,
    PRECISIONS,
    Length,
    Workload,
)
from forerun.errors import RequestError

BATCHES = st.integers(1, 10**6)
COUNTS = st.floats(1e-3, 1e15)
SENTENCES = Workload("s", Graph(()), seq_len=1000, dataset_size=500.0)


@given(COUNTS, BATCHES)
def test_every_unit_of_length_gives_the_same_training(count: float, batch: int) -> None:
    samples = count * batch
    for unit, amount in (
        ("steps", count),
        ("samples", samples),
        ("tokens", samples * 1000),
        ("epochs", samples / 500),
    ):
        length = Length(unit, amount)
        assert SENTENCES.steps(length, batch) == pytest.approx(count, rel=1e-9)
        assert SENTENCES.samples(length, batch) == pytest.approx(samples, rel=1e-9)


def test_tokens_are_refused_where_samples_have_none() -> None:
    with pytest.raises(RequestError, match=r"no tokens.*--samples"):
        Workload("image", Graph(())).steps(Length("tokens", 1e9), 8)


def test_epochs_are_refused_where_the_dataset_is_not_known() -> None:
    with pytest.raises(RequestError, match=r"dataset is not known.*--dataset-size"):
        Workload("image", Graph(())).samples(Length("epochs", 3))


@pytest.mark.parametrize("count", [0, -1, math.nan, math.inf])
def test_a_length_is_above_zero_and_finite(count: float) -> None:
    with pytest.raises(RequestError, match="above zero and finite"):
        Length("steps", count)


def test_a_length_has_a_known_unit() -> None:
    with pytest.raises(RequestError, match="steps, samples, tokens, epochs"):
        Length("hours", 3)


def test_a_length_says_who_says_so() -> None:
    assert str(Length("tokens", 1.5e13, "20 tokens a parameter")) == (
        "15T tokens (20 tokens a parameter)"
    )


@pytest.mark.parametrize(("field", "value"), [("precision", "int8"), ("optimizer", "adamax")])
def test_an_unknown_precision_or_optimizer_is_refused_with_the_known_ones(
    field: str, value: str
) -> None:
    with pytest.raises(
        RequestError, match=rf"{field} '{value}': no such {field}; (did you mean \w+\? )?use one of"
    ):
        Workload("w", Graph(()), **{field: value})


def test_a_changed_copy_is_checked_too_and_leaves_the_original() -> None:
    assert SENTENCES.with_(precision="fp32").precision == "fp32"
    assert SENTENCES.precision == "bf16"
    with pytest.raises(RequestError, match="precision"):
        SENTENCES.with_(precision="fp12")


def test_operands_are_never_wider_than_activations() -> None:
    assert set(OPERAND_BYTES) == set(ACTIVATION_BYTES) == set(PRECISIONS)
    assert all(OPERAND_BYTES[p] <= ACTIVATION_BYTES[p] for p in PRECISIONS)
