"""Catalogue: labels become devices, clusters and prices, every figure with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.catalog.catalog import Catalog, load_catalog
    from forerun.catalog.devices import Instance

__all__ = ["Catalog", "Instance", "load_catalog"]


def __getattr__(name: str) -> Any:
    """Load a public name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("forerun.catalog.catalog"), name)
