"""Saving of laws by kind: one JSON shape for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from forerun.predictors.saved import read_saved

if TYPE_CHECKING:
    from forerun.predictors.laws.grouped import GroupedLaws

    Grouped = TypeVar("Grouped", bound=GroupedLaws[Any])

_SHARED = ("quantity", "laws", "lacking", "notes")


def text_of_laws(predictor: GroupedLaws[Any]) -> str:
    """Return a predictor's laws, and its own settings, as JSON text."""
    own = {f.name: _plain(getattr(predictor, f.name)) for f in fields(predictor)}
    laws = [
        {"kind": kind, **{f.name: _plain(getattr(law, f.name)) for f in fields(law)}}
        for kind, law in predictor.laws.items()
    ]
    lacking = [[*kind, why] for kind, why in predictor.lacking.items()]
    return json.dumps({
        "predictor": predictor.name, "version": predictor.version, "quantity": predictor.quantity,
        "laws": laws, "lacking": lacking, "notes": list(predictor.notes),
        "settings": {name: value for name, value in own.items() if name not in _SHARED},
    })  # fmt: skip


def saved_laws(kind_of: type[Grouped], text: str) -> Grouped:
    """Return a predictor of a class from its JSON. Raises RequestError as `read_saved` does."""

    def made(saved: Mapping[str, Any]) -> Grouped:
        if saved["predictor"] != kind_of.name:
            raise ValueError(f"it is of {saved['predictor']!r}")
        blank = kind_of(**saved["settings"])
        laws = {tuple(entry.pop("kind")): blank.law_of(entry) for entry in saved["laws"]}
        lacking = {tuple(kind): str(why) for *kind, why in saved["lacking"]}
        notes = tuple(map(str, saved["notes"]))
        return kind_of(str(saved["quantity"]), laws, lacking, notes, **saved["settings"])

    return read_saved(text, f"a saved {kind_of.name} model", kind_of.version, made)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
