"""Needs: a test that lacks what it needs skips and says what, and fails where it must not lack it.

The environment variable FORERUN_REQUIRE names what must be there, words apart by commas: `root`,
`ray`, `dashboard` (Ray's), `postgres`, `lab`, `cgroups`, `transformers`, `lightning`, `data`
(measured runs; also required where FORERUN_DATA is set), `packages` (an index that pip installs
from), `accelerate`, `shellcheck`, `kubernetes-validate`, `chromium` (Debian's, and playwright), `npm`, `hadolint`, `check-jsonschema`. Whoever runs the whole suite sets it, so that nothing passes unseen.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WORDS = (
    "root", "ray", "dashboard", "postgres", "lab", "cgroups", "transformers", "lightning", "data",
    "packages", "accelerate", "shellcheck", "kubernetes-validate", "chromium", "npm", "hadolint",
    "check-jsonschema",
)  # fmt: skip
# Read once, when tests are collected: fixtures that clear FORERUN_ variables come later.
REQUIRED = frozenset(
    word.strip() for word in os.environ.get("FORERUN_REQUIRE", "").split(",") if word.strip()
) | ({"data"} if os.environ.get("FORERUN_DATA") else set())
_DATA = os.environ.get("FORERUN_DATA", "")


def require(name: str, available: bool, missing: str) -> None:
    """Go on where something is available; else skip the test, or fail it where it is required.

    May be called in a test, in a fixture, or at the top of a test file.

    Args:
        name: one of `WORDS`.
        available: whether it is there.
        missing: what is missing and how it is had, for the person who reads the skip.
    """
    if name not in WORDS:
        raise ValueError(f"a need is one of {', '.join(WORDS)}, not {name!r}")
    if available:
        return
    if name in REQUIRED:
        pytest.fail(f"FORERUN_REQUIRE names {name}, and it is not there: {missing}", pytrace=False)
    pytest.skip(f"needs {name}: {missing}", allow_module_level=True)


def require_root() -> None:
    """Go on as root; else skip or fail as `require` does."""
    require("root", os.geteuid() == 0, "run the tests as root")


def published(name: str = "") -> Path:
    """Return the file of a published table, or the folder of all; else skip or fail as above."""
    path = Path(_DATA, "runs", f"{name}.csv" if name else "")
    found = f"FORERUN_DATA={_DATA} has no {path}" if _DATA else "set FORERUN_DATA to their folder"
    require("data", bool(_DATA) and path.exists(), found)
    return path
