"""Regions: the carbon intensity of the grid that a cloud's region draws from."""

from __future__ import annotations

from functools import lru_cache

from forerun.catalog.rows import DATA, Limits, read_csv

_CARBON = Limits(0, 2, "kg CO2 a kWh")


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str], float]:
    return {
        (row.get("provider"), row.get("region").lower()): row.number("carbon_kg_per_kwh", _CARBON)
        for row in read_csv(DATA / "regions.csv")
    }


def carbon_kg_per_kwh(provider: str, region: str) -> float | None:
    """Return kg CO2 a kWh in a region, rounded and unverified; None where not known."""
    table = _table()
    return table.get((provider, region.lower()), table.get((provider, "*")))
