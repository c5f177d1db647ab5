"""Errors: each says what was asked, what was found and what to do, here and in other processes."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import (
    ForerunError,
    MissingExtraError,
    RequestError,
    UnknownNameError,
    UnsatisfiedError,
    nearest_names,
)

FAMILY = [
    RequestError("a plan", "it is wrong", "mend it"),
    UnsatisfiedError("a deadline", "nothing meets it", "allow more"),
    UnknownNameError("device", "h10", ["h100", "a100"], "or add it"),
    MissingExtraError("reading x.parquet", "pyarrow", "parquet"),
]


@pytest.mark.parametrize("error", FAMILY, ids=lambda e: type(e).__name__)
def test_an_error_says_asked_found_and_next(error: ForerunError) -> None:
    assert str(error) == f"{error.asked}: {error.found}; {error.next_step}"


@pytest.mark.parametrize("error", FAMILY, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("remake", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_keeps_its_kind_and_words_when_it_travels(error: ForerunError, remake) -> None:  # type: ignore[no-untyped-def]
    again = remake(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.exit_code == error.exit_code
    assert vars(again) == vars(error)


def test_a_wrong_request_exits_2_and_an_unsatisfied_one_3() -> None:
    assert [error.exit_code for error in FAMILY] == [2, 3, 2, 2]


def test_an_unknown_name_offers_the_nearest_ones_and_the_hint() -> None:
    error = UnknownNameError("device", "h10", ["h100", "a100", "zebra"], "or add it to your file")
    assert error.nearest[0] == "h100"
    assert "zebra" not in error.nearest
    assert "did you mean h100" in str(error)
    assert str(error).endswith("or add it to your file")


def test_a_name_like_no_other_says_what_is_known_or_how_many() -> None:
    error = UnknownNameError("device", "qqqq", ["h100", "a100"])
    assert error.nearest == []
    assert error.next_step == "known: h100, a100"
    many = UnknownNameError("device", "qqqq", [f"x{i}" for i in range(9)], "or add it")
    assert many.next_step == "9 devices are known; or add it"
    none = UnknownNameError("lab", "qqqq", [], "start one: forerun lab up")
    assert none.next_step == "start one: forerun lab up"


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    assert MissingExtraError("x", "pyarrow", "parquet").next_step.endswith(
        "pip install 'forerun[parquet]'"
    )


@pytest.mark.parametrize("asked", ["H100_SXM-80GB", "h100-sxm-80gb", "h100_sxm_80gb"])
def test_case_and_underscores_do_not_hide_a_name(asked: str) -> None:
    assert nearest_names(asked, ["a100-sxm-80gb", "h100-sxm-80gb"])[0] == "h100-sxm-80gb"


def test_a_part_of_a_name_finds_it_shortest_first() -> None:
    names = ["llama-3.1-405b", "llama-3-8b", "resnet50"]
    assert nearest_names("llama", names)[:2] == ["llama-3-8b", "llama-3.1-405b"]


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=8), st.integers(1, 4))
def test_nearest_names_are_known_distinct_and_few(name: str, known: list[str], count: int) -> None:
    near = nearest_names(name, known, count)
    assert len(near) == len(set(near)) <= count
    assert set(near) <= set(known)
