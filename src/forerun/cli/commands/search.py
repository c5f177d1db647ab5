"""forerun search: which configuration to run next, by a run made now or replayed on a table of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from forerun import registry
from forerun.cli import options as shared
from forerun.cli.commands.profile import runner_options
from forerun.cli.inputs import DOLLARS, DURATION, FILE, WHOLE, writable
from forerun.cli.interrupting import orderly
from forerun.cli.showing import Screen, small_dollars, waiting
from forerun.cli.trails import (
    best_of,
    counting,
    recommended,
    show_runs,
    title,
    write_page,
    writer,
)  # fmt: skip
from forerun.errors import RequestError
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.units import counted, format_percent
from forerun.wire import clean

if TYPE_CHECKING:
    from forerun.search.following import Trail
    from forerun.search.landscape import Goal
    from forerun.search.replay import Replay
    from forerun.store.sql_store import SqlStore

# Options that decide what a search asks for next, and so tell one kept search from another.
_DECIDING = ("searcher", "minimize", "deadline", "seed", "no_stop")
# Options of one way to search alone.
_OF_REPLAY = ("conditions", "name", "seeds")
_UNTIL = ("runs_until_within_10_percent", "dollars_until_within_10_percent")
_OF_SPACE = ("on", "lab_name", "address", "hold", "within", "budget", "price", "parallel", "retry", "yes", "out")  # fmt: skip


@click.command()
@click.argument("space", type=FILE, required=False, metavar="[SPACE.yaml]")
@click.option(
    "--replay", "table", type=FILE, metavar="RUNS.csv",
    help="A table of measured runs: each configuration in it can be asked for, and answers with its"
    " run.",
)  # fmt: skip
@click.option(
    "--searcher", default="bayesian", show_default=True,
    help="random, grid, cherrypick, bayesian, ernest-design, scavenger-full, scavenger-partial, scavenger-none,"
    " pollux, auto, or a plug-in's.",
)  # fmt: skip
@click.option(
    "--known", type=FILE, metavar="RUNS.csv",
    help="Earlier runs: those of other workloads are what scavenger-none goes by; those that reached SPACE's target"
    " make its times those of a whole training.",
)  # fmt: skip
@click.option("--max-runs", type=WHOLE, default=30, show_default=True, help="Most runs to make.")
@click.option("--minimize", default="cost", show_default=True, help="cost or time.")
@click.option(
    "--deadline", type=DURATION,
    help="A run's limit, e.g. 2h: it is stopped there, and only a run within it wins.",
)  # fmt: skip
@runner_options
@click.option("--within", type=DURATION, help="Of SPACE: limit of the whole search, e.g. 3h.")
@click.option("--budget", type=DOLLARS, help="Of SPACE: what all its runs may cost, in dollars.")
@click.option("--price", type=DOLLARS, help="Of SPACE: dollars of a worker-hour (the file's).")
@click.option(
    "--parallel", type=WHOLE, default=1, show_default=True, metavar="N",
    help="Of SPACE, with Ray: up to N trials at once, which Ray places where there is room.",
)  # fmt: skip
@click.option(
    "--retry", is_flag=True, help="Of SPACE: ask again for what failed in an earlier sitting."
)
@click.option("--yes", is_flag=True, help="Of SPACE: begin without asking, whatever it costs.")
@click.option("--out", type=FILE, metavar="RUNS.csv", help="Of SPACE: write its runs as a table.")
@shared.map_option
@shared.where_option("Only these rows of the table, e.g. dataset_size=60000")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
    help="Search so many times, from --seed upward, and say how the searches compare.",
)  # fmt: skip
@click.option("--no-stop", is_flag=True, help="Go on until --max-runs, whatever the stopping rule.")
@click.option(
    "--keep", "name", default="", metavar="NAME",
    help="Keep a replay in the store under a name, run by run; asked again, it goes on from there.",
)  # fmt: skip
@click.option(
    "--html", type=FILE, metavar="FILE.html", help="Write a page with a plot of the search."
)
@shared.store_option
@shared.catalog_option
@shared.server_options
@shared.json_option
@orderly("stopped; every finished trial is kept, and the same command goes on from here")
def search(space: Path | None, table: Path | None, html: Path | None, as_json: bool, **options: Any) -> None:  # fmt: skip
    """Search for the cheapest or fastest configuration, one run at a time.

    SPACE.yaml is a campaign file (docs/campaigns.md): each of its configurations is a candidate, and
    each trial is a run made now. It is kept in the store as soon as it has ended: the same command,
    killed or not, goes on from there. With --replay the runs are those of a table.

    Each run is shown with its price, why it was asked for and the best so far; then why the search
    stopped, and of a replay how it did against the oracle, the best of the table. A run that lasts
    beyond the deadline is stopped and paid for until then. Only a measured run that met the deadline is
    ever recommended.
    """
    from forerun.search.landscape import Goal

    if options["searcher"] != "auto":
        registry.load("searchers", options["searcher"])  # a wrong name is reported first
    if (space is None) == (table is None):
        found = "neither SPACE.yaml nor --replay is given" if space is None else "both are given"
        raise RequestError(
            "forerun search", found,
            "give a campaign file (forerun search SPACE.yaml) to make runs now, or a table of measured"
            " runs (--replay RUNS.csv); `forerun recommend` chooses by forecasts, without a run",
        )  # fmt: skip
    way, other = ("SPACE.yaml", "--replay") if table is None else ("--replay", "SPACE.yaml")
    names = _OF_REPLAY if table is None else _OF_SPACE
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise RequestError(f"{option.opts[0]} with {way}", f"it belongs to {other}", "leave it out")  # fmt: skip
    writable(html, (".html", ".htm"))
    goal = Goal(options["minimize"], options["deadline"] or math.inf)
    if shared.service() is not None:
        from forerun.cli.live import search_there

        several = {"seeds": options["seeds"] > 1, "html": html}
        shared.remote(load_settings(), {**options, **several})
        way_there: Any = search_there if space is not None else _replayed_there
        way_there(space or table, as_json, options)
    elif space is not None:
        from forerun.cli.live import search_space

        search_space(space, goal, html, as_json, options)
    elif table is not None:
        _replayed(table, goal, html, as_json, options)


def _replayed(table: Path, goal: Goal, html: Path | None, as_json: bool, options: dict[str, Any]) -> None:  # fmt: skip
    from forerun.evaluate.leaderboard import table_code
    from forerun.search.following import follow, reads_known, searcher_of, warnings_of
    from forerun.search.replay import Replay, replay_json

    name, where, seed, seeds = (options[key] for key in ("name", "where", "seed", "seeds"))
    if where and not name:
        raise RequestError("--store without --keep", "nothing is kept", "give the search a name")
    if seeds > 1 and (name or html):
        both = f"{'--keep' if name else '--html'} {name or html} with --seeds {seeds}"
        raise RequestError(both, "one search has one name and one page", "leave --seeds out")
    found = shared.runs_by_table([table], load_settings(), options, options["conditions"])
    box, most = Replay.of(found[table.stem], goal), options["max_runs"]

    known = shared.known_runs(options)
    if known is not None and not reads_known(options["searcher"]):
        raise RequestError(
            f"--known with --replay and {options['searcher']}",
            "it reads no other runs, and the times of a replay are those of its table", "leave it out",
        )  # fmt: skip

    def searcher(own_seed: int) -> Any:
        return searcher_of(options["searcher"], box, own_seed, not options["no_stop"], known)[0]

    made = 0
    words = f"replays {counted(seeds, 'search')} on {table.name}"
    if name:
        deciding = {key: options[key] for key in _DECIDING}
        spec = {"table": table.name, "content": table_code(box.runs.table), **deciding,
                "where": list(options["conditions"])}  # fmt: skip
        if known is not None:
            spec["known"] = table_code(known.table)
        with open_store(where) as store, waiting(words):
            trail, made = _kept(store, name, spec, searcher(seed), box, most)
        trails = [trail]
    else:
        with waiting(words):
            trails = [follow(searcher(seed + i), box, most) for i in range(seeds)]
    found = clean(replay_json(table.name, box, trails, warnings_of(box, "choose one with --where")))
    one, why = searcher_of(options["searcher"], box, seed, known=known)
    best = best_of(trails[0], one, len(trails[0]))[0] if trails[0].recommended >= 0 else ""
    facts = [("searcher", why), ("best", recommended(found, best)), ("oracle", _oracle(found))]
    write_page(html, trails[0], one, title(found, "replayed"), facts, {"Warnings": found["warnings"]})  # fmt: skip
    if as_json:
        shared.write_json("search", found)
        return
    screen = Screen()
    screen.labelled([("searcher", why)], 10)
    if name:
        screen.line(f"kept      as {name!r}; {counted(made, 'run')} of it made before")
    if seeds == 1:
        _show_one(screen, found)
    else:
        _show_many(screen, trails, found)
    screen.labelled([("counted", counting(found)), ("wrote", str(html or ""))], 10)
    screen.items("warnings", found["warnings"])


def _replayed_there(table: Path, as_json: bool, options: dict[str, Any]) -> None:
    from forerun.cli.remote import carried_out, sent_runs

    sent = sent_runs([table])
    where = [*sent.pop("where", ()), *options["conditions"]]
    limit = options["deadline"]
    stated = {n: options[n] for n in ("searcher", "minimize", "max_runs", "seed", "no_stop")}
    body = {**sent, **stated, "where": where, "deadline": None if limit is None else f"{limit!r}s"}
    found = carried_out("search", body, f"replays a search on {table.name} there")
    found["replayed"] = table.name
    if as_json:
        shared.write_json("search", found)
        return
    _show_one(screen := Screen(), found)
    screen.labelled([("counted", counting(found))], 10)
    screen.items("warnings", found["warnings"])


def _kept(store: SqlStore, name: str, spec: dict[str, Any], searcher: Any, box: Replay, most: int) -> tuple[Trail, int]:  # fmt: skip
    from forerun.search.following import follow
    from forerun.search.searchers import Choice

    points = store.searches.put(name, spec).points
    made = [Choice(int(step.partition(":")[0]), point.note) for step, point in points.items()]

    def keep(trail: Trail) -> None:
        at = int(trail.at[-1])
        step = f"{at}: {box.land.words(at)}"
        store.searches.mark(name, step, str(box.status[at]), note=trail.reasons[-1])

    return follow(searcher, box, most, made=made, on_run=keep), len(made)


def _show_one(screen: Screen, found: dict[str, Any]) -> None:
    screen.title(title(found, "replayed"))
    show_runs(screen, found)
    one = found["searches"][0]
    near, until, paid = "no run came within 10 % of the oracle", *map(one.get, _UNTIL)
    if until is not None:
        near = f"within 10 % of the oracle after {counted(int(until), 'run')} and {small_dollars(math.nan if paid is None else paid)}"
    screen.labelled([
        ("stopped", one["stopped"]), ("best", recommended(found)), ("oracle", _oracle(found)),
        ("regret", _regret(one["regret"])), ("near", near),
    ], 10)  # fmt: skip


def _show_many(screen: Screen, trails: Sequence[Trail], found: dict[str, Any]) -> None:
    what = title(found, "replayed")
    screen.title(f"{what}, {len(trails)} seeds from {trails[0].seed}")
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
        quartiles = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")
        rows.append((name, *(write(float(v)) if math.isfinite(v) else "never" for v in quartiles)))
    screen.table(("", "25 %", "median", "75 %"), rows)
    reached = sum(math.isfinite(t.runs_until_near) for t in trails)
    screen.line()
    screen.line(f"within 10 % of the oracle: {reached} of {len(trails)} searches")
    if none := sum(t.recommended < 0 for t in trails):
        screen.line(f"found nothing within the deadline: {none}")
    screen.labelled([("oracle", _oracle(found))], 10)


def _oracle(found: dict[str, Any]) -> str:
    return f"{writer(found['minimize'])(found['oracle']['value'])} with {found['oracle']['words']}"


def _regret(regret: float | None) -> str:
    return "nothing found" if regret is None else f"{format_percent(regret)} above the oracle"
