"""Start: a fit begins with the priors, an answer with what is shipped, and the output says which."""

from __future__ import annotations

import pytest

from forerun import registry
from forerun.errors import RequestError, UnknownNameError
from forerun.evaluate import starting
from forerun.predictors.laws.constant_mfu import ConstantMFU


class Taught(ConstantMFU):
    """A predictor that comes with constants."""

    @staticmethod
    def shipped() -> Taught:
        return Taught(mfu=0.9)


@pytest.fixture(autouse=True)
def _guest(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load
    monkeypatch.setattr(
        registry, "load", lambda group, name: Taught if name == "taught" else load(group, name)
    )


@pytest.mark.parametrize(
    ("start", "fitting", "mfu", "said"),
    [
        ("", True, 0.35, "priors"), ("", False, 0.9, "shipped constants of taught"),
        ("priors", False, 0.35, "priors"), ("shipped", True, 0.9, "shipped constants of taught"),
    ],
)  # fmt: skip
def test_a_start_is_chosen_by_whether_there_is_a_fit_or_as_asked(
    start: str, fitting: bool, mfu: float, said: str
) -> None:
    (first, second), text = starting(["taught", "constant-mfu"], start, fitting)
    assert isinstance(first, ConstantMFU)
    assert isinstance(second, ConstantMFU)
    assert (first.mfu, second.mfu, text) == (mfu, 0.35, said)


def test_constants_that_nobody_has_cannot_be_a_start() -> None:
    with pytest.raises(RequestError, match="constant-mfu comes without constants"):
        starting(["constant-mfu"], "shipped")


def test_an_unknown_predictor_is_told() -> None:
    with pytest.raises(UnknownNameError):
        starting(["oracle"])
