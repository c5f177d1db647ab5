"""Registry: built-ins and plug-ins are found the same way, imported only when used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError, UnknownNameError


def plugin(name: str, value: str) -> EntryPoint:
    """Return the entry point of a package that is not installed."""
    return EntryPoint(name, value, "forerun.predictors")


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Return a list that stands for the installed packages' entry points."""
    points: list[EntryPoint] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: list(points))
    registry._plugins.cache_clear()
    yield points
    registry._plugins.cache_clear()


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


def test_a_plugin_is_found_the_same_way(plugins: list[EntryPoint]) -> None:
    plugins.append(plugin("mine", "json:JSONDecoder"))
    import json

    assert "mine" in registry.names("predictors")
    assert registry.load("predictors", "mine") is json.JSONDecoder


def test_a_plugin_cannot_take_a_name_that_is_taken(plugins: list[EntryPoint]) -> None:
    plugins.append(plugin("analytic", "json:JSONDecoder"))
    with pytest.raises(RequestError, match="already has that name"):
        registry.names("predictors")


def test_a_plugin_that_cannot_be_imported_is_named(plugins: list[EntryPoint]) -> None:
    plugins.append(plugin("broken", "no_such_module_at_all:Thing"))
    with pytest.raises(RequestError, match="uninstall"):
        registry.load("predictors", "broken")


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="analytic"):
        registry.load("predictors", "analitic")
    with pytest.raises(UnknownNameError, match="predictors"):
        registry.load("predictor", "analytic")
