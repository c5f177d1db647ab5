"""forerun search: which configuration to run next, replayed on a table of runs made before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.kinds import DURATION, FILE, WHOLE
from forerun.cli.options import catalog_option, json_option
from forerun.cli.screen import Screen
from forerun.cli.stored import opened, store_option
from forerun.errors import RequestError, one_of
from forerun.settings import load_settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.search.landscape import Goal
    from forerun.search.replay import Replay, Trail


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
    from forerun.cli.commands.search_screen import show_many, show_one
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
    from forerun.cli.kept_search import KeptSearch
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
    from forerun.cli.commands.search_screen import warnings

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
