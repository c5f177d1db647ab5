"""Saving: what the choice knows as plain values, each member in its own JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.contracts import Predictor
from forerun.predictors.choice.candidates import Members
from forerun.predictors.choice.chosen import Chosen
from forerun.predictors.choice.questions import Extent, Questions, Seen
from forerun.predictors.choice.trials import Trials

_SPANS = ("machines", "nodes", "share", "dataset", "cores", "wire")


def unsaved(chosen: Chosen) -> tuple[str, ...]:
    """Return the members that have no JSON form."""
    return tuple(n for n, one in chosen.members.fitted.items() if not hasattr(one, "to_json"))


def chosen_dict(chosen: Chosen) -> dict[str, Any]:
    """Return plain values of what was learned of one quantity, without members that cannot be saved."""
    gone = unsaved(chosen)
    kept = {n: one for n, one in chosen.members.fitted.items() if n not in gone}
    return {
        "quantity": chosen.quantity,
        "members": {name: json.loads(_text(one)) for name, one in kept.items()},
        "failed": {**chosen.members.failed, **dict.fromkeys(gone, "it has no JSON form")},
        "seen": [_extent_dict(group, one) for group, one in chosen.seen.extents.items()],
        "trials": _trials_dict(chosen.trials, [n for n in chosen.names if n not in gone]),
    }


def chosen_of(saved: Mapping[str, Any]) -> Chosen:
    """Return what `chosen_dict` wrote. Raises KeyError, TypeError or ValueError where it did not."""
    fitted = {}
    for name, text in saved["members"].items():
        kind = registry.load("predictors", text["predictor"])
        fitted[name] = kind.from_json(json.dumps(text))
    seen = Seen({tuple(one["group"]): _extent(one) for one in saved["seen"]})
    failed = {str(name): str(why) for name, why in saved["failed"].items()}
    return Chosen(str(saved["quantity"]), Members(fitted, failed), seen, _trials(saved["trials"]))


def _text(one: Predictor) -> str:
    return str(one.to_json())  # type: ignore[attr-defined]  # those without were left out


def _extent_dict(group: tuple[str, ...], one: Extent) -> dict[str, Any]:
    spans = {name: [_plain(v) for v in getattr(one, name)] for name in _SPANS}
    return {
        "group": group, "configurations": one.configurations, **spans,
        "kinds": sorted(one.kinds), "clusters": sorted(one.clusters),
        "layouts": sorted(layout.hex() for layout in one.layouts),
    }  # fmt: skip


def _extent(saved: Mapping[str, Any]) -> Extent:
    spans: dict[str, Any] = {
        name: tuple(np.nan if v is None else float(v) for v in saved[name]) for name in _SPANS
    }
    return Extent(
        configurations=int(saved["configurations"]),
        kinds=frozenset(tuple(kind) for kind in saved["kinds"]),
        clusters=frozenset(saved["clusters"]),
        layouts=frozenset(bytes.fromhex(text) for text in saved["layouts"]), **spans,
    )  # fmt: skip


def _trials_dict(trials: Trials, names: list[str]) -> dict[str, Any]:
    at = [trials.names.index(name) for name in names]
    asked = trials.questions
    return {
        "names": names, "kins": asked.kins,
        **{name: getattr(asked, name).tolist() for name in ("kind", "doublings", "known", "kin")},
        "error": _listed(trials.error[:, at]), "reach": _listed(trials.reach[:, at]),
        "cell": trials.cell.tolist(), "folds": trials.folds, "dropped": trials.dropped,
        "runs": trials.runs, "cut": trials.cut, "late": trials.late,
        "familiar": trials.familiar, "unit": trials.unit.tolist(),
    }  # fmt: skip


def _trials(saved: Mapping[str, Any]) -> Trials:
    questions = Questions(
        np.array(saved["kind"], dtype=np.int8), np.array(saved["doublings"], dtype=np.float64),
        np.array(saved["known"], dtype=np.float64), np.array(saved["kin"], dtype=np.int64),
        tuple(saved["kins"]),
    )  # fmt: skip
    names, rows = tuple(saved["names"]), len(questions)
    used, every = (int(count) for count in saved["runs"])
    return Trials(
        names, questions,
        np.array(saved["error"], dtype=np.float64).reshape(rows, len(names)),
        np.array(saved["reach"], dtype=np.float64).reshape(rows, len(names), 2),
        np.array(saved["cell"], dtype=np.int64),
        tuple((str(words), int(count)) for words, count in saved["folds"]),
        {str(name): str(why) for name, why in saved["dropped"].items()}, (used, every),
        int(saved.get("cut", 0)), bool(saved.get("late", False)), int(saved.get("familiar", 0)),
        np.array(saved["unit"], dtype=np.int64),
    )  # fmt: skip


def _listed(values: NDArray[np.float64]) -> Any:
    cells = values.astype(object)
    cells[np.isnan(values)] = None
    return cells.tolist()


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value
