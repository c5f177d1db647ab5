"""Recipes: every mechanism can be made, every equation has its code, every claim its test, every page is fresh."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.systems_page import pages
from forerun import registry
from forerun.errors import RequestError, UnknownNameError
from forerun.predictors.options import configured, read_spec
from forerun.systems.recipe import STATUSES, VERDICTS, System, page, predictor_spec, symbol

ROOT = Path(__file__).resolve().parents[2]
NAMES = [entry.name for entry in registry.entries("systems") if entry.origin == "forerun"]


def system(name: str) -> System:
    made = registry.load("systems", name)
    assert isinstance(made, System)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_made_of_mechanisms_that_exist(name: str) -> None:
    recipe = system(name)
    assert recipe.name == name
    assert recipe.parts
    for part in recipe.parts:
        made = part.made()
        assert made is not None
        holder = getattr(made, "settings", made)
        for setting, value in part.settings.items():
            assert getattr(holder, setting) == value


@pytest.mark.parametrize("name", NAMES)
def test_every_equation_names_the_code_that_computes_it(name: str) -> None:
    for equation in system(name).equations:
        assert equation.status in STATUSES
        # Fields of frozen dataclasses are no attributes of their class; all symbols here are code.
        symbol(equation.symbol)


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_has_a_verdict_and_what_is_reproduced_has_a_test(name: str) -> None:
    for claim in system(name).claims:
        assert claim.verdict in VERDICTS
        assert claim.found
        if claim.verdict == "reproduced":
            assert claim.shown, claim.text
        if claim.shown:
            assert_shown(claim.shown)


def assert_shown(shown: str) -> None:
    """Fail where a claim names no test of that name which asserts something, or no benchmark that is there."""
    path, _, name = shown.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    if path.startswith("tests/papers/"):
        tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in tests, shown
        assert any(isinstance(node, ast.Assert) for node in ast.walk(tests[name])), shown


@pytest.mark.parametrize("shown", ["", "::test_that_is_not_there", "::judged"])
def test_a_claim_that_no_test_shows_is_found(shown: str) -> None:
    with pytest.raises(AssertionError):
        assert_shown(f"tests/papers/test_ray_ml.py{shown}::")


def test_the_pages_are_what_their_script_writes() -> None:
    folder = ROOT / "docs" / "systems"
    written = pages()
    assert {path.name for path in folder.iterdir()} == set(written)
    for name, text in written.items():
        assert (folder / name).read_text() == text, f"docs/systems/{name} is stale: run `make docs`"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_citation_the_settings_and_whole_tables(name: str) -> None:
    recipe, text = system(name), page(system(name))
    assert recipe.citation in text
    for part in recipe.parts:
        assert all(f"{key}=" in text for key in part.settings)
        assert part.spec in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    for table in tables:
        counts = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(counts) == 1, table


def test_a_recipe_without_a_role_says_which_it_has() -> None:
    with pytest.raises(RequestError, match="it has predictor, design"):
        system("ernest").part("searcher")


@pytest.mark.parametrize(
    ("name", "spec"),
    [("ernest", "ernest"), ("ray-ml", "ray-ml:search=grid:beyond=winner:errors=absolute"),
     ("generic-model", "generic:mode=faithful:penalty=l2:errors=absolute")],
)  # fmt: skip
def test_a_system_is_its_predictor_with_the_published_settings(name: str, spec: str) -> None:
    assert predictor_spec(name) == predictor_spec(name.replace("-", "_")) == spec
    kind, values = read_spec(spec)
    assert configured(kind, values) == system(name.replace("-", "_")).part("predictor").made()


def test_a_system_without_a_predictor_or_of_no_known_name_is_refused() -> None:
    with pytest.raises(RequestError, match="the predictor of the system cherrypick"):
        predictor_spec("cherrypick")
    with pytest.raises(UnknownNameError, match="did you mean ernest"):
        predictor_spec("ernst")
