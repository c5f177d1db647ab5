"""forerun search: which configuration to run next, replayed on a table of runs made before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from forerun.cli import options as shared
from forerun.cli.inputs import DURATION, FILE, WHOLE
from forerun.cli.showing import Screen, small_dollars
from forerun.errors import RequestError
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.units import counted, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.search.replay import Replay, Trail
    from forerun.store.sql_store import SqlStore

# Options that decide what a search asks for next, and so tell one kept search from another.
_DECIDING = ("searcher", "minimize", "deadline", "seed", "no_stop")


@click.command()
@click.option(
    "--replay", "table", type=FILE, metavar="RUNS.csv",
    help="A table of measured runs: each configuration in it can be asked for, and answers with its"
    " run.",
)  # fmt: skip
@click.option(
    "--searcher", default="bayesian", show_default=True,
    help="random, grid, cherrypick, bayesian, or a plug-in's.",
)  # fmt: skip
@click.option("--max-runs", type=WHOLE, default=30, show_default=True, help="Most runs to make.")
@click.option("--minimize", default="cost", show_default=True, help="cost or time.")
@click.option("--deadline", type=DURATION, help="A run's limit, e.g. 2h: only such a run wins.")
@shared.where_option("Only these rows of the table, e.g. dataset_size=60000")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
    help="Search so many times, from --seed upward, and say how the searches compare.",
)  # fmt: skip
@click.option("--no-stop", is_flag=True, help="Go on until --max-runs, whatever the stopping rule.")
@click.option(
    "--keep", "name", default="", metavar="NAME",
    help="Keep the search in the store under a name, run by run; asked again, it goes on from there.",
)  # fmt: skip
@shared.store_option
@shared.catalog_option
@shared.json_option
def search(
    table: Path | None, seed: int, seeds: int, name: str, where: str, as_json: bool, **options: Any
) -> None:
    """Search for the cheapest or fastest configuration, one run at a time.

    With --replay the runs are those of a table: each is shown with its price, why it was asked for
    and the best so far; then why the search stopped, and how it did against the oracle, the best of
    the table. A run that lasts beyond the deadline is stopped and paid for until then. Only a
    measured run that met the deadline is ever recommended.

    With --keep the search is one of the store: the same command goes on with the next run.
    """
    from forerun import registry
    from forerun.evaluate.leaderboard import table_code
    from forerun.search.landscape import Goal
    from forerun.search.replay import Replay, follow
    from forerun.search.searchers import Choosing

    if where and not name:
        raise RequestError("--store without --keep", "nothing is kept", "give the search a name")
    if name and seeds > 1:
        both = f"--keep {name} with --seeds {seeds}"
        raise RequestError(both, "one search has one name", "leave --seeds out")
    kind = registry.load("searchers", options["searcher"])
    if table is None:
        raise RequestError(
            "searching by runs made now", "no runner is installed that could carry a job out",
            "replay a table of measured runs with --replay RUNS.csv; `forerun recommend` chooses by"
            " forecasts, without a run",
        )  # fmt: skip
    goal = Goal(options["minimize"], options["deadline"] or math.inf)
    found = shared.runs_by_table([table], load_settings(), options, options["conditions"])
    box, most = Replay.of(found[table.stem], goal), options["max_runs"]

    def searcher(own_seed: int) -> Any:
        if isinstance(kind, type) and issubclass(kind, Choosing):
            return kind(box.goal, own_seed, not options["no_stop"])
        return kind()  # a plug-in has the protocol alone

    made = 0
    if name:
        deciding = {name: {**options, "seed": seed}[name] for name in _DECIDING}
        spec = {"table": table.name, "content": table_code(box.runs.table), **deciding,
                "where": list(options["conditions"])}  # fmt: skip
        with open_store(where) as store:
            trail, made = _kept(store, name, spec, searcher(seed), box, most)
        trails = [trail]
    else:
        trails = [follow(searcher(seed + i), box, most) for i in range(seeds)]
    unlike = (
        f"the rows differ in {', '.join(box.unlike)}: not all do the same work, so the smallest"
    )
    warnings = [f"{unlike} job may win; choose one with --where"] if box.unlike else []
    if as_json:
        shared.write_json("search", _json(table, trails, warnings))
        return
    screen = Screen()
    if name:
        screen.line(f"kept      as {name!r}; {counted(made, 'run')} of it made before")
    if seeds == 1:
        _show_one(screen, trails[0])
    else:
        _show_many(screen, trails)
    paid = "every run is paid for until its end"
    if not math.isinf(box.goal.deadline_seconds):
        limit = format_seconds(box.goal.deadline_seconds)
        paid = f"a run that lasts beyond {limit} is stopped and paid for until then"
    screen.labelled([("counted", paid)], 10)
    screen.items("warnings", warnings)


def _kept(
    store: SqlStore, name: str, spec: dict[str, Any], searcher: Any, box: Replay, most: int
) -> tuple[Trail, int]:
    from forerun.search.replay import follow
    from forerun.search.searchers import Choice

    points = store.searches.put(name, spec).points
    made = [Choice(int(step.partition(":")[0]), point.note) for step, point in points.items()]

    def keep(choice: Choice) -> None:
        step = f"{choice.at}: {box.land.words(choice.at)}"
        store.searches.mark(name, step, str(box.runs.status[choice.at]), note=choice.reason)

    return follow(searcher, box, most, made=made, on_run=keep), len(made)


def _show_one(screen: Screen, trail: Trail) -> None:
    box, write = trail.replay, _writer(trail.replay)
    screen.title(_title(trail))
    best, spent = trail.best_so_far, trail.spent
    rows = [
        (k + 1, box.land.words(int(i)), _outcome(box, trail, k), small_dollars(box.dollars[i]),
         small_dollars(spent[k]), write(best[k]), trail.reasons[k])
        for k, i in enumerate(trail.at)
    ]  # fmt: skip
    screen.table(("run", "configuration", "took", "price", "spent", "best so far", "why"), rows)
    screen.line()
    recommended = "none: no run met the deadline, so nothing is recommended"
    if trail.recommended >= 0:
        recommended = f"{write(best[-1])} with {box.land.words(trail.recommended)}, measured"
    near = "no run came within 10 % of the oracle"
    if math.isfinite(trail.runs_until_near):
        runs, paid = counted(int(trail.runs_until_near), "run"), trail.dollars_until_near
        near = f"within 10 % of the oracle after {runs} and {small_dollars(paid)}"
    screen.labelled([
        ("stopped", trail.stopped), ("best", recommended), ("oracle", _oracle(box)),
        ("regret", _regret(trail.regret)), ("near", near),
    ], 10)  # fmt: skip


def _show_many(screen: Screen, trails: Sequence[Trail]) -> None:
    screen.title(f"{_title(trails[0])}, {len(trails)} seeds from {trails[0].seed}")
    figures: list[tuple[str, Callable[[Trail], float], Callable[[float], str]]] = [
        ("runs made", len, "{:.0f}".format),
        ("dollars spent", lambda t: t.spent[-1], small_dollars),
        ("runs until within 10 %", lambda t: t.runs_until_near, "{:.0f}".format),
        ("dollars until then", lambda t: t.dollars_until_near, small_dollars),
        ("regret", lambda t: t.regret, _regret),
    ]
    rows = []
    for name, read, write in figures:
        values = np.array([read(trail) for trail in trails], float)
        found = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")
        rows.append((name, *(write(float(v)) if math.isfinite(v) else "never" for v in found)))
    screen.table(("", "25 %", "median", "75 %"), rows)
    reached = sum(math.isfinite(t.runs_until_near) for t in trails)
    screen.line()
    screen.line(f"within 10 % of the oracle: {reached} of {len(trails)} searches")
    if none := sum(t.recommended < 0 for t in trails):
        screen.line(f"found nothing within the deadline: {none}")
    screen.labelled([("oracle", _oracle(trails[0].replay))], 10)


def _title(trail: Trail) -> str:
    box = trail.replay
    limit = box.goal.deadline_seconds
    within = "" if math.isinf(limit) else f" within {format_seconds(limit)}"
    return (
        f"{trail.searcher}: least {box.goal.minimize} of a {box.quantity}{within},"
        f" {counted(len(box), 'configuration')} replayed"
    )


def _writer(box: Replay) -> Callable[[float], str]:
    write = small_dollars if box.goal.minimize == "cost" else format_seconds
    return lambda value: write(value) if math.isfinite(value) else "none"


def _oracle(box: Replay) -> str:
    return f"{_writer(box)(box.oracle)} with {box.land.words(int(box.values.argmin()))}"


def _outcome(box: Replay, trail: Trail, k: int) -> str:
    seconds, status = trail.seen.seconds[k], box.runs.status[trail.at[k]]
    if not math.isfinite(seconds):
        return str(status)
    if trail.seen.late[k]:
        return f"over {format_seconds(min(seconds, box.goal.deadline_seconds))}"
    return format_seconds(seconds) + ("" if status == "ok" else f", {status}")


def _regret(regret: float) -> str:
    return f"{format_percent(regret)} above the oracle" if regret < math.inf else "nothing found"


def _json(path: Path, trails: Sequence[Trail], warnings: list[str]) -> dict[str, Any]:
    box = trails[0].replay
    return {
        "replayed": path.name, "configurations": len(box), "feasible": int(box.feasible.sum()),
        "minimize": box.goal.minimize, "deadline_seconds": box.goal.deadline_seconds,
        "times": box.quantity, "searcher": trails[0].searcher,
        "oracle": {**_configuration(box, int(box.values.argmin())), "value": box.oracle},
        "searches": [_search(trail) for trail in trails], "warnings": warnings,
    }  # fmt: skip


def _search(trail: Trail) -> dict[str, Any]:
    box, best, chosen = trail.replay, trail.best_so_far, trail.recommended
    seconds, status = trail.seen.seconds, box.runs.status[trail.at]
    runs = [
        {**_configuration(box, int(i)), "status": str(status[k]), "seconds": float(seconds[k]),
         "dollars": float(box.dollars[i]), "reason": trail.reasons[k], "best": float(best[k])}
        for k, i in enumerate(trail.at)
    ]  # fmt: skip
    return {
        "seed": trail.seed, "runs": runs, "stopped": trail.stopped,
        "dollars": float(trail.spent[-1]) if len(trail) else 0.0,
        "recommended": None if chosen < 0 else _configuration(box, chosen),
        "regret": trail.regret, "runs_until_within_10_percent": trail.runs_until_near,
        "dollars_until_within_10_percent": trail.dollars_until_near,
    }  # fmt: skip


def _configuration(box: Replay, i: int) -> dict[str, Any]:
    chosen = {name: box.land.table.row(i).get(name) for name in box.land.varied}
    return {
        "configuration": {name: value for name, value in chosen.items() if value is not None},
        "dollars_per_hour": float(box.land.dollars_per_hour[i]),
    }
