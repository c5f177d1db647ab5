"""forerun search: which configuration to run next, replayed on a table of runs made before.

What forerun search shows on a screen: every run with price and reason, then against the oracle.

KeptSearch: a search in the store, step by step, so that the same search goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.inputs import DURATION, FILE, WHOLE
from forerun.cli.options import catalog_option, json_option, opened, store_option
from forerun.cli.screen import Screen
from forerun.errors import RequestError, one_of
from forerun.settings import load_settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.search.landscape import Goal
    from forerun.search.replay import Replay, Trail

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerun.search.replay import Replay, Trail
from forerun.units import format_dollars, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.search.replay import Replay
    from forerun.search.searchers import Choice
    from forerun.store.sql_store import SqlStore


@dataclass(frozen=True)
class KeptSearch:
    """One search under a name; every run is kept as soon as it is made.

    Attributes:
        store: that keeps it.
        name: unique among its searches.
        box: the table that answers; its configurations are known by their place.
    """

    store: SqlStore
    name: str
    box: Replay

    def begun(self, spec: Mapping[str, Any]) -> list[Choice]:
        """Return the choices that were made already, none of a new search.

        Args:
            spec: all that decides what is asked for next.

        Raises:
            RequestError: another search has the name.
        """
        from forerun.search.searchers import Choice

        try:
            record = self.store.searches.put(self.name, spec)
        except RequestError:
            known = self.store.searches.get(self.name)
            had = {} if known is None else known.spec
            names = [name for name in {**had, **spec} if had.get(name) != spec.get(name)]
            raise RequestError(
                f"the search {self.name!r} in {self.store.where}",
                f"it was begun with another {' and '.join(names)}",
                "ask as it was begun, or keep this one under another name",
            ) from None
        return [
            Choice(int(step.partition(":")[0]), point.note) for step, point in record.points.items()
        ]

    def keep(self, choice: Choice) -> None:
        """Keep one run that was made, with why it was asked for."""
        step = f"{choice.at}: {self.box.land.words(choice.at)}"
        status = str(self.box.runs.status[choice.at])
        self.store.searches.mark(self.name, step, status, note=choice.reason)


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


@click.command()
@click.option(
    "--replay", "table", type=FILE, metavar="RUNS.csv",
    help="A table of measured runs: each configuration in it can be asked for, and answers with its"
    " run.",
)  # fmt: skip
@click.option(
    "--searcher", default="bayesian", show_default=True,
    help="random, grid, cherrypick, bayesian, or a guest's.",
)  # fmt: skip
@click.option(
    "--max-runs", type=WHOLE, default=30, show_default=True, help="The most runs to make."
)
@click.option(
    "--minimize", default="cost", show_default=True, help="What is minimised: cost or time."
)
@click.option(
    "--deadline", type=DURATION, help="What a run may take, e.g. 300s or 2h: only such a run wins."
)
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only these rows of the table, e.g. dataset_size=60000 (may be repeated).",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what a searcher draws."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Search so many times, from --seed upward, and say how the searches compare.",
)  # fmt: skip
@click.option(
    "--no-stop", is_flag=True, help="Go on until --max-runs, whatever the searcher's stopping rule."
)
@click.option(
    "--to-the-end", is_flag=True,
    help="Let a run go on after the deadline, and pay for it; else it is stopped there.",
)  # fmt: skip
@click.option(
    "--keep", "name", default="", metavar="NAME",
    help="Keep the search in the store under a name, run by run; asked again, it goes on from there.",
)  # fmt: skip
@store_option
@catalog_option
@json_option
def search(
    table: Path | None, seed: int, seeds: int, name: str, where: str, as_json: bool, **options: Any
) -> None:
    """Search for the cheapest or fastest configuration, one run at a time.

    With --replay the runs are those of a table: each run asked for is shown with its price, why it
    was asked for and the best so far; then why the search stopped, and how it did against the
    oracle, the best of the table: runs and money until a run was within 10 % of it, and how much
    worse the recommended one is. A run that lasts beyond the deadline is stopped and paid for until
    then. Only a measured run that met the deadline is ever recommended.

    With --keep the search is one of the store: interrupted, or ended by --max-runs, the same command
    goes on with the next run.
    """
    from forerun.search.replay import follow

    if where and not name:
        raise RequestError("--store without --keep", "nothing is kept", "give the search a name")
    goal = _goal(options)
    make = _searcher(options["searcher"])
    if table is None:
        raise RequestError(
            "searching by runs made now", "no runner is installed that could carry a job out",
            "replay a table of measured runs with --replay RUNS.csv; `forerun recommend` chooses by"
            " forecasts, without a run",
        )  # fmt: skip
    box = _box(table, goal, options)
    if name:
        trails, before = _kept(table, make(goal, seed, not options["no_stop"]), box, seeds, name,
                               where, {**options, "seed": seed})  # fmt: skip
    else:
        before = 0
        trails = [
            follow(make(goal, seed + i, not options["no_stop"]), box, options["max_runs"])
            for i in range(seeds)
        ]
    if as_json:
        click.echo(wire.dumps(_json(table, trails)))
    elif seeds == 1:
        screen = Screen(load_settings())
        if name:
            screen.line(f"kept      as {name!r}; {counted(before, 'run')} of it made before")
        show_one(screen, trails[0])
    else:
        show_many(Screen(load_settings()), trails)


def _kept(
    path: Path, searcher: Any, box: Replay, seeds: int, name: str, where: str,
    options: dict[str, Any],
) -> tuple[list[Trail], int]:  # fmt: skip
    """Return the trail of a search that the store keeps, and how many of its runs it had already.

    Raises:
        RequestError: several searches are asked for, or another one has the name.
    """
    from forerun.evaluate.leaderboard import table_code
    from forerun.search.replay import follow

    if seeds > 1:
        raise RequestError(
            f"--keep {name} with --seeds {seeds}", "one search has one name", "leave --seeds out"
        )
    deciding = ("searcher", "minimize", "deadline", "seed", "no_stop", "to_the_end")
    spec: dict[str, Any] = {"table": path.name, "content": table_code(box.runs.table)}
    spec |= {option: options[option] for option in deciding}
    spec["where"] = list(options["conditions"])
    with opened(where, new=True) as store:
        search = KeptSearch(store, name, box)
        made = search.begun(spec)
        trail = follow(searcher, box, options["max_runs"], made=made, on_run=search.keep)
    return [trail], len(made)


def _goal(options: dict[str, Any]) -> Goal:
    from forerun.search.landscape import AIMS, Goal

    aim = options["minimize"]
    if aim not in AIMS:
        raise RequestError(f"--minimize {aim}", "a search has no such aim", one_of(aim, AIMS))
    return Goal(aim, options["deadline"] or float("inf"))


def _searcher(name: str) -> Any:
    """Return how a searcher is made of a goal, a seed and whether it may stop.

    Raises:
        UnknownNameError: no such searcher.
    """
    from forerun import registry
    from forerun.search.searchers import Choosing

    kind = registry.load("searchers", name)
    if isinstance(kind, type) and issubclass(kind, Choosing):
        return kind
    return lambda goal, seed, stops: kind()  # a guest knows the protocol alone


def _box(path: Path, goal: Goal, options: dict[str, Any]) -> Replay:
    from forerun.advisor.given_runs import runs_of
    from forerun.catalog import load_catalog
    from forerun.evaluate import parse_condition, rows_where
    from forerun.search.replay import Replay

    conditions = [parse_condition(text) for text in options["conditions"]]
    catalog = load_catalog((*load_settings().catalog_files, *options["catalog_files"]))
    runs = rows_where(runs_of([path], catalog), conditions, path.stem)
    return Replay.of(runs, goal, options["to_the_end"])


def _json(path: Path, trails: Sequence[Trail]) -> dict[str, Any]:

    first = trails[0]
    box = first.replay
    oracle = int(box.values.argmin())
    return {
        "schema": wire.SCHEMA,
        "kind": "search",
        "replayed": path.name,
        "configurations": len(box),
        "feasible": int(box.feasible.sum()),
        "minimize": box.goal.minimize,
        "deadline_seconds": wire.clean(box.goal.deadline_seconds),
        "times": box.quantity,
        "searcher": first.searcher,
        "oracle": {**_configuration(box, oracle), "value": box.oracle},
        "searches": [_search(trail) for trail in trails],
        "warnings": warnings(box),
    }


def _search(trail: Trail) -> dict[str, Any]:
    box, best = trail.replay, trail.best_so_far
    chosen = trail.recommended
    runs = [
        {
            **_configuration(box, int(i)),
            "status": str(status),
            "seconds": float(seconds),
            "dollars": float(box.dollars[i]),
            "reason": reason,
            "best": float(best[k]),
        }
        for k, (i, status, seconds, reason) in enumerate(
            zip(trail.at, trail.status, trail.seconds, trail.reasons, strict=True)
        )
    ]
    return {
        "seed": trail.seed,
        "runs": runs,
        "stopped": trail.stopped,
        "dollars": float(trail.spent[-1]) if len(trail) else 0.0,
        "recommended": None if chosen < 0 else _configuration(box, chosen),
        "regret": trail.regret,
        "runs_until_within_10_percent": trail.runs_until_near,
        "dollars_until_within_10_percent": trail.dollars_until_near,
    }


def _configuration(box: Replay, i: int) -> dict[str, Any]:
    """Return what a configuration chose where it could, and its price."""
    chosen = {name: box.land.table.row(i).get(name) for name in box.land.told}
    return {
        "configuration": {name: value for name, value in chosen.items() if value is not None},
        "dollars_per_hour": float(box.land.dollars_per_hour[i]),
    }
