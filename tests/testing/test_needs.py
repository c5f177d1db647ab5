"""What a test needs: it skips with the reason where that is missing, and fails where it must not."""

from __future__ import annotations

import pytest

from tests import needs


def test_what_is_there_lets_a_test_go_on() -> None:
    needs.require("ray", True, "pip install ray")


def test_what_is_missing_skips_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "REQUIRED", frozenset())
    with pytest.raises(pytest.skip.Exception, match="needs ray: pip install ray"):
        needs.require("ray", False, "pip install ray")


def test_what_is_missing_and_required_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "REQUIRED", frozenset({"ray"}))
    with pytest.raises(pytest.fail.Exception, match=r"FORERUN_REQUIRE names ray.*pip install ray"):
        needs.require("ray", False, "pip install ray")


def test_a_need_that_nobody_knows_is_a_mistake_of_the_test() -> None:
    with pytest.raises(ValueError, match="not 'rya'"):
        needs.require("rya", True, "")
