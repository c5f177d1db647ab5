"""Trails: how a search is shown: its runs one by one, what it ended with, as JSON, and as a page with plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.cli.inputs import write_text
from forerun.cli.printing import visible
from forerun.cli.showing import Screen, small_dollars
from forerun.units import counted, format_seconds
from forerun.wire import clean

if TYPE_CHECKING:
    from forerun.search.following import Trail

Json = Mapping[str, Any]  # a search as `json_of` has it, less what is not finite
Band = tuple[float, float] | None


def title(found: Json, how: str) -> str:
    """Return what was searched for, and how the configurations answered."""
    limit, count = found["deadline_seconds"], counted(found["configurations"], "configuration")
    within = "" if limit is None else f" within {format_seconds(limit)}"
    return f"{found['searcher']}: least {found['minimize']} of a {found['times']}{within}, {count} {how}"


def writer(minimize: str) -> Callable[[float | None], str]:
    """Return what writes the goal's figures, dollars or seconds."""
    write = small_dollars if minimize == "cost" else format_seconds
    return lambda value: "none" if value is None or not math.isfinite(value) else write(value)


def outcome(run: Json) -> str:
    """Return how long a configuration's run took, or how it ended."""
    if run["seconds"] is None:
        return str(run["status"])
    words = format_seconds(run["seconds"])
    return (f"over {words}" if run["late"] else words + f", {run['status']}" * (run["status"] != "ok"))  # fmt: skip


def best_of(trail: Trail, searcher: Any, k: int) -> tuple[str, Band]:
    """Return the best of the first k runs, with what the searcher's model says of it, and that as numbers."""
    from forerun.search.searchers import Choosing

    box, write, band = trail.box, writer(trail.box.goal.minimize), None
    if isinstance(searcher, Choosing):
        band = searcher.band(box.land, box.seen(trail.at[:k]))
    best = write(float(trail.best_so_far[k - 1]))
    return best + ("" if band is None else f" ({write(band[0])} to {write(band[1])})"), band


def show_runs(screen: Screen, found: Json) -> None:
    """Write a line for each run of the first search."""
    rows, spent, write = [], 0.0, writer(found["minimize"])
    for k, run in enumerate(found["searches"][0]["runs"], 1):
        price = math.nan if run["dollars"] is None else run["dollars"]
        spent += price
        figures = (small_dollars(price), small_dollars(spent), write(run["best"]))
        rows.append((k, run["words"], outcome(run), *figures, run["reason"]))
    screen.table(("run", "configuration", "took", "price", "spent", "best so far", "why"), rows)
    screen.line()


def recommended(found: Json, best: str = "") -> str:
    """Return the best measured configuration of the first search in words; best: its figure in words."""
    one = found["searches"][0]
    if one["recommended"] is None:
        why = "every run failed" if all_failed(one) else "no run met the deadline"
        return f"none: {why}, so nothing is recommended"
    best = best or writer(found["minimize"])(one["runs"][-1]["best"])
    return f"{best} with {one['recommended']['words']}, measured"


def all_failed(one: Json) -> bool:
    """Return whether there were runs, and every one failed or ran out of memory, whatever the limits."""
    return len(one["runs"]) > 0 and {run["status"] for run in one["runs"]} <= {"failed", "oom"}


def counting(found: Json) -> str:
    """Return how runs are paid for."""
    if found["deadline_seconds"] is None:
        return "every run is paid for until its end"
    limit = format_seconds(found["deadline_seconds"])
    return f"a run that lasts beyond {limit} is stopped and paid for until then"


def write_page(
    path: Path | None, trail: Trail, searcher: Any, heading: str, facts: Sequence[tuple[str, str]],
    notes: Mapping[str, Sequence[str]],
) -> None:  # fmt: skip
    """Write a page with a plot of cost and time against trials; None writes nothing."""
    if path is None:
        return
    from forerun.cli.report import page
    from forerun.search.following import trail_json

    box, best, spent = trail.box, trail.best_so_far, trail.spent
    bands, told = ([best_of(trail, searcher, k + 1) for k in range(len(trail))], clean(trail_json(trail))["runs"])  # fmt: skip
    runs = [
        {"words": told[k]["words"], "took": outcome(told[k]), "why": trail.reasons[k],
         "price": small_dollars(box.dollars[i]), "spent": small_dollars(spent[k]), "dollars": float(spent[k]),
         "seconds": float(box.seconds[i]), "value": float(box.values[i]), "best": float(best[k]),
         "best_words": bands[k][0], "band": bands[k][1], "wins": int(i) == trail.recommended}
        for k, i in enumerate(trail.at)
    ]  # fmt: skip
    unit = "dollars" if box.goal.minimize == "cost" else "seconds"
    data = {"runs": runs, "unit": unit, "goal": box.goal.minimize, "quantity": box.quantity}
    facts = [*facts, ("stopped", trail.stopped)]
    text = page("search", data, name=heading, facts=facts, runs=runs, notes=notes)
    write_text(path, visible(text))
