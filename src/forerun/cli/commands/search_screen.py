"""What forerun search shows on a screen: every run with price and reason, then against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from forerun.cli.screen import Screen
from forerun.search.replay import Replay, Trail
from forerun.units import counted, format_dollars, format_percent, format_seconds


def show_one(screen: Screen, trail: Trail) -> None:
    """Write one search: its runs, why it stopped, what it recommends, and the oracle."""
    box = trail.replay
    write = _writer(box)
    screen.title(_title(trail))
    best, spent = trail.best_so_far, trail.spent
    rows = [
        (
            k + 1, box.land.words(int(i)), _outcome(box, trail, k), _price(box.dollars[i]),
            _price(spent[k]), write(best[k]), trail.reasons[k],
        )
        for k, i in enumerate(trail.at)
    ]  # fmt: skip
    screen.table(("run", "configuration", "took", "price", "spent", "best so far", "why"), rows)
    screen.line()
    screen.line(f"stopped   {trail.stopped}")
    if trail.recommended < 0:
        screen.line("best      none: no run met the deadline, so nothing is recommended")
    else:
        words = box.land.words(trail.recommended)
        screen.line(f"best      {write(best[-1])} with {words}, measured")
    screen.line(f"oracle    {write(box.oracle)} with {box.land.words(int(box.values.argmin()))}")
    screen.line(f"regret    {_regret(trail.regret)}")
    screen.line(f"near      {_near(trail)}")
    screen.line(f"counted   {_counted(box)}")
    screen.items("warnings", warnings(box))


def show_many(screen: Screen, trails: Sequence[Trail]) -> None:
    """Write how several searches from several seeds did."""
    box = trails[0].replay
    screen.title(f"{_title(trails[0])}, {len(trails)} seeds from {trails[0].seed}")
    levels = (0.25, 0.5, 0.75)
    rows = [
        ("runs made", *_quantiles([len(t) for t in trails], levels, "{:.0f}".format)),
        ("dollars spent", *_quantiles([t.spent[-1] for t in trails], levels, _price)),
        ("runs until within 10 %",
         *_quantiles([t.runs_until_near for t in trails], levels, "{:.0f}".format)),
        ("dollars until then", *_quantiles([t.dollars_until_near for t in trails], levels, _price)),
        ("regret", *_quantiles([t.regret for t in trails], levels, _regret)),
    ]  # fmt: skip
    screen.table(("", "25 %", "median", "75 %"), rows)
    reached = sum(math.isfinite(t.runs_until_near) for t in trails)
    none = sum(t.recommended < 0 for t in trails)
    screen.line()
    screen.line(
        f"within 10 % of the oracle: {reached} of {counted(len(trails), 'search', 'searches')}"
    )
    if none:
        screen.line(f"found nothing within the deadline: {none}")
    screen.line(
        f"oracle    {_writer(box)(box.oracle)} with {box.land.words(int(box.values.argmin()))}"
    )
    screen.line(f"counted   {_counted(box)}")
    screen.items("warnings", warnings(box))


def warnings(box: Replay) -> list[str]:
    """Return what a person should know before trusting the search."""
    if not box.unlike:
        return []
    return [
        f"the rows differ in {', '.join(box.unlike)}: not all do the same work, so the smallest job"
        " may win; choose one with --where"
    ]


def _title(trail: Trail) -> str:
    box = trail.replay
    limit = box.goal.deadline_seconds
    within = "" if math.isinf(limit) else f" within {format_seconds(limit)}"
    return (
        f"{trail.searcher}: least {box.goal.minimize} of a {box.quantity}{within},"
        f" {counted(len(box), 'configuration')} replayed"
    )


def _writer(box: Replay) -> Callable[[float], str]:
    """Return how the aim is written: dollars or seconds, `none` before a run met the deadline."""
    write = _price if box.goal.minimize == "cost" else format_seconds
    return lambda value: write(value) if math.isfinite(value) else "none"


def _price(dollars: float) -> str:
    """Return dollars; three digits below ten cents, where whole cents would hide a difference."""
    if math.isfinite(dollars) and 0 < abs(dollars) < 0.1:
        return f"${dollars:.3g}"
    return format_dollars(dollars)


def _outcome(box: Replay, trail: Trail, k: int) -> str:
    seconds, status = trail.seconds[k], trail.status[k]
    if not math.isfinite(seconds):
        return str(status)
    if trail.late[k]:
        return f"over {format_seconds(min(seconds, box.goal.deadline_seconds))}"
    return format_seconds(seconds) + ("" if status == "ok" else f", {status}")


def _regret(regret: float) -> str:
    return (
        f"{format_percent(regret)} above the oracle" if math.isfinite(regret) else "nothing found"
    )


def _near(trail: Trail) -> str:
    runs = trail.runs_until_near
    if not math.isfinite(runs):
        return "no run came within 10 % of the oracle"
    return (
        f"within 10 % of the oracle after {counted(int(runs), 'run')} and"
        f" {_price(trail.dollars_until_near)}"
    )


def _counted(box: Replay) -> str:
    if math.isinf(box.goal.deadline_seconds) or box.to_the_end:
        return "every run is paid for until its end"
    limit = format_seconds(box.goal.deadline_seconds)
    return f"a run that lasts beyond {limit} is stopped and paid for until then"


def _quantiles(
    values: Sequence[float], levels: Sequence[float], write: Callable[[float], str]
) -> list[str]:
    found = np.quantile(np.array(values, dtype=float), levels, method="inverted_cdf")
    return [write(float(v)) if math.isfinite(v) else "never" for v in found]
