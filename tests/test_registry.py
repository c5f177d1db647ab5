"""Registry: built-ins and guests through one door, loaded only when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError, UnknownNameError


def guest(name: str, value: str) -> EntryPoint:
    """Return the entry point of a package that is not installed."""
    return EntryPoint(name, value, "forerun.predictors")


@pytest.fixture
def guests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Return a list that stands for the installed packages' entry points."""
    points: list[EntryPoint] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: list(points))
    registry._guests.cache_clear()
    yield points
    registry._guests.cache_clear()


def test_every_built_in_predictor_loads_and_keeps_the_protocol() -> None:
    for name in registry.names("predictors"):
        predictor = registry.load("predictors", name)()
        assert isinstance(predictor, Predictor)
        assert predictor.name == name


@pytest.mark.parametrize("group", registry.GROUPS)
def test_every_built_in_of_every_group_loads(group: str) -> None:
    for entry in registry.entries(group):
        assert registry.load(group, entry.name) is not None
        assert entry.help


def test_a_guest_comes_through_the_same_door(guests: list[EntryPoint]) -> None:
    guests.append(guest("mine", "json:JSONDecoder"))
    import json

    assert "mine" in registry.names("predictors")
    assert registry.load("predictors", "mine") is json.JSONDecoder


def test_a_guest_cannot_take_a_name_that_is_taken(guests: list[EntryPoint]) -> None:
    guests.append(guest("analytic", "json:JSONDecoder"))
    with pytest.raises(RequestError, match="already has that name"):
        registry.names("predictors")


def test_a_guest_that_cannot_be_imported_is_told(guests: list[EntryPoint]) -> None:
    guests.append(guest("broken", "no_such_module_at_all:Thing"))
    with pytest.raises(RequestError, match="uninstall"):
        registry.load("predictors", "broken")


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="analytic"):
        registry.load("predictors", "analitic")
    with pytest.raises(UnknownNameError, match="predictors"):
        registry.load("predictor", "analytic")
