"""Sources: the keys that stand in the tables, and the facts that they mean."""

from __future__ import annotations

from functools import lru_cache

from forerun.catalog.rows import DATA, read_csv
from forerun.domain.hardware import Fact


@lru_cache(maxsize=1)
def known_sources() -> dict[str, Fact]:
    """Return the packaged sources by key."""
    return {
        row.get("key"): Fact(row.get("source"), row.get("verified") == "true")
        for row in read_csv(DATA / "sources.csv")
    }


def fact_of(text: str) -> Fact:
    """Return the fact of a source key; any other text is a source in a user's own words."""
    return known_sources().get(text) or Fact(text)
