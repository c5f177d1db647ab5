"""Suggested: the next runs as a table for a person, and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun import wire
from forerun.cli.screen import Screen
from forerun.units import counted, format_dollars, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Suggested


# Below a tenth a price has more digits than cents; what is free counts as next to nothing.
_CENTS, _NOTHING = 0.1, 1e-6


def _amount(value: float, unit: str) -> str:
    from forerun.search.suggestion import SMALLEST_RUNS

    if unit != "dollars":
        one = unit == SMALLEST_RUNS and f"{value:.3g}" == "1"
        return f"{value:.3g} {unit.removesuffix('s') if one else unit}"
    return format_dollars(value) if value >= _CENTS or value < _NOTHING else f"${value:.1g}"


def show_suggestion(screen: Screen, found: Suggested) -> None:
    """Write next runs for a person."""
    suggestion = found.suggestion
    unit = suggestion.unit
    if found.chosen:
        screen.line(f"now     {found.chosen}")
    if not suggestion.runs:
        screen.title(f"no run: {suggestion.stop}")
    else:
        screen.title(
            f"{counted(len(suggestion.runs), 'run')} of {counted(found.considered, 'candidate')},"
            f" {_amount(suggestion.price, unit)} in all"
        )
        counts = found.table.numbers("suggested_run_steps")
        differ = (
            len(set(counts[counts == counts].tolist())) > 1
        )  # where all have as many, that is said below
        steps = [(f"{count:.0f}",) if differ else () for count in counts.tolist()]
        headers = ("", "run", "price", *(["steps"] if differ else []), "time", "why")
        rows = [
            (str(i + 1), found.labels[i], _amount(run.price, unit), *steps[i],
             "" if run.seconds != run.seconds else format_seconds(run.seconds), found.reasons[i])
            for i, run in enumerate(suggestion.runs)
        ]  # fmt: skip
        screen.table(headers, rows)
    if suggestion.error == suggestion.error:
        from forerun.advisor.suggesting import error_words

        of = "the job chosen now" if suggestion.goal == "decision" else "what is asked"
        screen.line(f"error   {error_words(suggestion.error)} now on {of}")
    if suggestion.efficiency == suggestion.efficiency:
        screen.line(
            f"design  {format_percent(suggestion.efficiency)} as good as a bound that no runs for"
            " this budget can pass"
        )
    screen.line(f"by      {suggestion.source}")
    screen.items("assumptions", found.notes)


def suggestion_json(found: Suggested, out: Path | None) -> dict[str, Any]:
    """Return next runs in the wire's shape."""
    from forerun.tables.table import iter_rows

    suggestion = found.suggestion
    runs = [
        {
            "order": i + 1,
            "job": found.labels[i],
            "price": run.price,
            "seconds": run.seconds,
            "steps": row.get("suggested_run_steps"),
            "settles_of_chosen": run.of_chosen,
            "reason": found.reasons[i],
            "gain": run.gain,
            "changes_choice": run.changes,
            "log_error_after": run.error,
            "tells": dict(run.tells),
            "row": row,
        }
        for i, (run, row) in enumerate(zip(suggestion.runs, iter_rows(found.table), strict=True))
    ]
    return {
        "schema": wire.SCHEMA,
        "kind": "suggestion",
        "predictor": found.predictor,
        "goal": suggestion.goal,
        "runs": runs,
        "price": suggestion.price,
        "price_unit": suggestion.unit,
        "considered": found.considered,
        "chosen_now": found.chosen or None,
        "stop": suggestion.stop or None,
        "log_error_now": suggestion.error,
        "design_efficiency": suggestion.efficiency,
        "source": suggestion.source,
        "assumptions": list(found.notes),
        **({} if out is None else {"out": str(out)}),
    }
