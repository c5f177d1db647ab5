"""Start: shipped constants judge only runs that did not teach them, and the output says which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from forerun import registry
from forerun.errors import RequestError, UnknownNameError
from forerun.evaluate import starting
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.predictors.options import started
from forerun.tables import Runs
from forerun.tables.fingerprints import fingerprints, packed
from forerun.testing.samples import tiny_runs

_TINY = tiny_runs()
_SECONDS = _TINY.step_seconds() * (1 + np.arange(len(_TINY)) / 1000)
RUNS = Runs(_TINY.jobs, _TINY.table.with_columns(step_time_s=_SECONDS))
TAUGHT, UNSEEN = RUNS.take(np.arange(5)), RUNS.take(np.arange(5, len(RUNS)))


class Taught(ConstantMFU):
    """A predictor that comes with constants."""

    name = "taught"

    @staticmethod
    def shipped() -> Taught:
        return Taught(mfu=0.9)

    @staticmethod
    def shipped_rows() -> Mapping[str, str]:
        return {"tiny": packed(fingerprints(TAUGHT))}


class Silent(ConstantMFU):
    """One that does not say who taught it."""

    name = "silent"

    @staticmethod
    def shipped() -> Silent:
        return Silent(mfu=0.9)


class Bare(Taught):
    """One whose package holds no constants after all."""

    name = "bare"

    @staticmethod
    def shipped_made() -> Mapping[str, Any] | None:
        return None


@pytest.fixture(autouse=True)
def _guests(monkeypatch: pytest.MonkeyPatch) -> None:
    load, guests = registry.load, {kind.name: kind for kind in (Taught, Silent, Bare)}
    monkeypatch.setattr(registry, "load", lambda group, name: guests.get(name) or load(group, name))


@pytest.mark.parametrize(
    ("start", "judged", "mfu", "said"),
    [
        ("", UNSEEN, 0.9, "shipped constants of taught"),
        ("", RUNS, 0.35, f"priors (the shipped constants were fitted to 5 of {len(RUNS)} judged rows)"),
        ("priors", UNSEEN, 0.35, "priors"), ("priors", RUNS, 0.35, "priors"),
        ("shipped", UNSEEN, 0.9, "shipped constants of taught"),
        ("shipped", TAUGHT, 0.9, "shipped constants of taught (the shipped constants were"
                                 " fitted to 5 of 5 judged rows: not blind)"),
    ],
)  # fmt: skip
def test_a_start_is_chosen_by_who_is_judged_or_as_asked(
    start: str, judged: Any, mfu: float, said: str
) -> None:
    found, text = starting(["taught", "constant-mfu"], start, {"t": judged})
    first, second = found.values()
    assert isinstance(first, ConstantMFU)
    assert isinstance(second, ConstantMFU)
    assert (first.mfu, second.mfu, text) == (mfu, 0.35, said)


def test_one_seen_row_in_one_of_several_tables_is_enough() -> None:
    found, text = starting(["taught"], "", {"a": UNSEEN, "b": TAUGHT.take(np.arange(1))})
    (first,) = found.values()
    assert isinstance(first, ConstantMFU)
    assert first.mfu == 0.35
    assert f"1 of {len(UNSEEN) + 1} judged rows" in text


def test_constants_of_unknown_teachers_are_not_taken_for_blind() -> None:
    found, text = starting(["silent"], "", {"t": UNSEEN})
    (first,) = found.values()
    assert isinstance(first, ConstantMFU)
    assert first.mfu == 0.35
    assert "does not say which runs its shipped constants were fitted to" in text


def test_a_package_without_constants_starts_from_the_priors() -> None:
    assert starting(["bare"], "", {"t": UNSEEN})[1] == "priors"
    with pytest.raises(RequestError, match="bare comes without constants"):
        starting(["bare"], "shipped")


def test_constants_that_nobody_has_cannot_be_a_start() -> None:
    with pytest.raises(RequestError, match="constant-mfu comes without constants"):
        starting(["constant-mfu"], "shipped")


def test_an_unknown_predictor_is_told() -> None:
    with pytest.raises(UnknownNameError):
        starting(["oracle"])


@pytest.mark.parametrize(
    ("name", "start", "mfu"),
    [("taught", "", 0.9), ("taught", "priors", 0.35), ("taught", "shipped", 0.9), ("bare", "", 0.35),
     ("constant-mfu", "", 0.35), ("constant-mfu", "priors", 0.35)],
)  # fmt: skip
def test_an_answer_starts_from_what_is_shipped_unless_told(
    name: str, start: str, mfu: float
) -> None:
    made = started(name, start)
    assert isinstance(made, ConstantMFU)
    assert made.mfu == mfu


@pytest.mark.parametrize(("name", "start"), [("constant-mfu", "shipped"), ("taught", "sideways")])
def test_a_start_that_there_is_not_is_told(name: str, start: str) -> None:
    with pytest.raises(RequestError):
        started(name, start)
