"""What tests of Ray share: Ray itself, and no cluster that is named outside."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.needs import require


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on where Ray is installed, with a cluster of one's own."""
    require("ray", find_spec("ray") is not None, "pip install 'forerun[ray]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
