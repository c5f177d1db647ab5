"""forerun systems: what there is, the page of one, and the nearest name for a slip."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


def test_every_system_is_listed_with_what_it_is(forerun: Run) -> None:
    rows = forerun("systems", "--json").json()["systems"]
    assert {"ernest", "generic_model"} <= {row["name"] for row in rows}
    text = forerun("systems").out
    assert all(row["what it is"] in text for row in rows)


@pytest.mark.parametrize("name", ["ernest", "cherrypick", "generic_model", "ray_ml"])
def test_a_system_is_described_as_its_page_does(forerun: Run, name: str) -> None:
    assert forerun("systems", name).out == (ROOT / "docs" / "systems" / f"{name}.md").read_text()
    told = json.loads(forerun("systems", name, "--json").out)["system"]
    assert told["name"] == name
    assert told["equations"][0]["symbol"].startswith("forerun.")


def test_a_name_that_is_none_is_refused_with_the_nearest(forerun: Run) -> None:
    done = forerun("systems", "ernst")
    assert done.code == 2
    assert "ernest" in done.err
