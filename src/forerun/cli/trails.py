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

if TYPE_CHECKING:
    from forerun.search.following import BlackBox, Trail

Band = tuple[float, float] | None


def title(trail: Trail, how: str) -> str:
    """Return what was searched for, and how the configurations answered."""
    box, limit = trail.box, trail.box.goal.deadline_seconds
    within = "" if math.isinf(limit) else f" within {format_seconds(limit)}"
    found = counted(len(box), "configuration")
    return f"{trail.searcher}: least {box.goal.minimize} of a {box.quantity}{within}, {found} {how}"


def writer(box: BlackBox) -> Callable[[float], str]:
    """Return what writes the goal's figures, dollars or seconds."""
    write = small_dollars if box.goal.minimize == "cost" else format_seconds
    return lambda value: write(value) if math.isfinite(value) else "none"


def outcome(box: BlackBox, i: int) -> str:
    """Return how long a configuration's run took, or how it ended."""
    seconds, status, limit = float(box.seconds[i]), box.status[i], box.goal.deadline_seconds
    if not math.isfinite(seconds):
        return str(status)
    if seconds > limit or (status == "timeout" and seconds >= limit):
        return f"over {format_seconds(min(seconds, limit))}"
    return format_seconds(seconds) + ("" if status == "ok" else f", {status}")


def best_of(trail: Trail, searcher: Any, k: int) -> tuple[str, Band]:
    """Return the best of the first k runs, with what the searcher's model says of it, and that as numbers."""
    from forerun.search.searchers import Choosing

    box, write, band = trail.box, writer(trail.box), None
    if isinstance(searcher, Choosing):
        band = searcher.band(box.land, box.seen(trail.at[:k]))
    best = write(float(trail.best_so_far[k - 1]))
    return best + ("" if band is None else f" ({write(band[0])} to {write(band[1])})"), band


def show_runs(screen: Screen, trail: Trail) -> None:
    """Write a line for each run."""
    box, write = trail.box, writer(trail.box)
    best, spent = trail.best_so_far, trail.spent
    rows = [
        (k + 1, box.land.words(int(i)), outcome(box, int(i)), small_dollars(box.dollars[i]),
         small_dollars(spent[k]), write(best[k]), trail.reasons[k])
        for k, i in enumerate(trail.at)
    ]  # fmt: skip
    screen.table(("run", "configuration", "took", "price", "spent", "best so far", "why"), rows)
    screen.line()


def recommended(trail: Trail, searcher: Any = None) -> str:
    """Return the best measured configuration in words."""
    if trail.recommended < 0:
        why = "every run failed" if all_failed(trail) else "no run met the deadline"
        return f"none: {why}, so nothing is recommended"
    best = best_of(trail, searcher, len(trail))[0]
    return f"{best} with {trail.box.land.words(trail.recommended)}, measured"


def all_failed(trail: Trail) -> bool:
    """Return whether there were runs, and every one failed or ran out of memory, whatever the limits."""
    return len(trail) > 0 and {*trail.box.status[trail.at]} <= {"failed", "oom"}


def counting(box: BlackBox) -> str:
    """Return how runs are paid for."""
    if math.isinf(box.goal.deadline_seconds):
        return "every run is paid for until its end"
    limit = format_seconds(box.goal.deadline_seconds)
    return f"a run that lasts beyond {limit} is stopped and paid for until then"


def write_page(
    path: Path | None, trail: Trail, searcher: Any, heading: str, facts: Sequence[tuple[str, str]],
    notes: Mapping[str, Sequence[str]],
) -> None:  # fmt: skip
    """Write a page with a plot of cost and time against trials; None writes nothing."""
    if path is None:
        return
    from forerun.cli.report import page

    box, best, spent = trail.box, trail.best_so_far, trail.spent
    bands = [best_of(trail, searcher, k + 1) for k in range(len(trail))]
    runs = [
        {"words": box.land.words(int(i)), "took": outcome(box, int(i)), "why": trail.reasons[k],
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
