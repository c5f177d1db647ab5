"""Telling: who was chosen for which kind of question, by what error, against whom, and who was not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.choice.chosen import Chosen
from forerun.predictors.choice.questions import WORDS
from forerun.predictors.choice.work import MOST_SECONDS_IN_ALL, MOST_WORK_IN_ALL
from forerun.units import counted, format_percent

_SHOWN = 4  # candidates of one kind of question that are named
_ALL = 0.995  # answered: as good as all


def verdicts(chosen: Chosen) -> list[dict[str, Any]]:
    """Return, for each kind of question that trials asked, how each candidate did, best first.

    Each has `quantity`, `question`, `judged` (runs that stood for it), and `candidates`: name,
    median_ape (percent, of those answered), answered (share), weight (mean over the judged runs).
    """
    trials = chosen.trials
    if not len(trials):
        return []
    weight = chosen.trial_weights()
    told = []
    for kind in np.unique(trials.questions.kind):
        rows = np.flatnonzero(trials.questions.kind == kind)
        held = weight[rows][weight[rows].sum(axis=1) > 0]
        share = held.mean(axis=0) if len(held) else np.zeros(len(trials.names))
        entries = [
            {"name": name, **_figures(trials.error[rows, c]), "weight": float(share[c])}
            for c, name in enumerate(trials.names)
        ]
        entries.sort(key=lambda one: (-one["weight"], one["median_ape"] or np.inf))
        told.append({
            "quantity": chosen.quantity, "question": WORDS[int(kind)], "judged": len(rows),
            "candidates": entries,
        })  # fmt: skip
    return told


def _figures(error: NDArray[np.float64]) -> dict[str, Any]:
    answered = np.isfinite(error)
    off = 100 * np.abs(np.expm1(-error[answered]))
    median = float(np.median(off)) if len(off) else None
    return {"median_ape": median, "answered": float(answered.mean())}


def _entry_words(entry: Mapping[str, Any]) -> str:
    """Return a candidate with its error, its weight, and how much it answers where not all."""
    part = f", answers {format_percent(entry['answered'])}" if entry["answered"] < _ALL else ""
    error = format_percent(entry["median_ape"] / 100, 1)
    return f"{entry['name']} {error} (weight {entry['weight']:.2f}{part})"


def _unjudged(names: list[str]) -> str:
    """Return the words on candidates that answered no judged run, but may answer a row."""
    if not names:
        return ""
    return (
        f"; without an answer there, as fewer runs taught them: {', '.join(names)}; where all runs"
        " teach them one, it counts by its band and what is known of them"
    )


def reasons(chosen: Chosen) -> Iterator[str]:
    """Yield the choice in sentences."""
    trials = chosen.trials
    used, every = trials.runs
    lead = f"choice of the {chosen.quantity}'s time"
    if not len(trials):
        yield (
            f"{lead}: {counted(every, 'run')} {'leaves' if every == 1 else 'leave'} none to judge the candidates by, so what is known"
            f" of them from elsewhere chooses among {', '.join(trials.names) or 'none'}"
        )
    else:
        part = "" if used == every else f" (of {every:,})"
        yield (
            f"{lead}: {counted(len(trials.names), 'candidate')} judged on {counted(used, 'run')}{part}"
            f" left out in {counted(len(trials.folds), 'way')}; an answer is the mean of the best,"
            " weighed by their errors on questions of its kind and, the more the fewer runs judged"
            " them, by the width of their own bands and what is known of them from elsewhere"
        )
    if trials.familiar:
        yield (
            f"{counted(trials.familiar, 'judged run')} {'is' if trials.familiar == 1 else 'are'} of a workload"
            " and device whose runs taught the constants shipped with physics: there it was judged as"
            " it starts from its priors, so that it is not flattered; it answers from the shipped ones"
        )
    if trials.cut:
        why = (
            f"trials had taken {MOST_SECONDS_IN_ALL:.0f} s of this machine's processor, and a faster"
            " one would judge by more"
            if trials.late
            else f"the others count for {MOST_WORK_IN_ALL:.0f} s of work, as on any machine"
        )
        yield f"{counted(trials.cut, 'further way')} to leave runs out not tried: {why}"
    for one in verdicts(chosen):
        best = [entry for entry in one["candidates"] if entry["median_ape"] is not None]
        said = ", ".join(map(_entry_words, best[:_SHOWN])) or "nobody answers"
        more = f" and {len(best) - _SHOWN} more" if len(best) > _SHOWN else ""
        silent = [entry["name"] for entry in one["candidates"] if entry["median_ape"] is None]
        yield (
            f"{one['question']}: median errors on {counted(one['judged'], 'judged run')}: {said}{more}"
            + _unjudged(silent)
        )
    for name, why in trials.dropped.items():
        yield f"{name}: dropped from some trials: {why}"
    for name, why in chosen.members.failed.items():
        yield f"{name}: not among them: {why}"
