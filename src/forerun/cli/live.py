"""Live: `forerun search SPACE.yaml`: trials are made now, each is reported, and the same command goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.cli import options as shared
from forerun.cli.commands.profile import confirm_dollars, runner_of, source_of
from forerun.cli.inputs import TABLES, check_kind, writable
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, small_dollars, waiting
from forerun.cli.trails import (
    all_failed,
    best_of,
    counting,
    outcome,
    recommended,
    show_runs,
    title,
    write_page,
)  # fmt: skip
from forerun.errors import RequestError, UnsatisfiedError
from forerun.search.following import trail_json
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.units import counted, format_seconds
from forerun.wire import clean

if TYPE_CHECKING:
    from forerun.advisor.searching import LiveTrials
    from forerun.search.following import Trail
    from forerun.search.landscape import Goal


def search_space(space: Path, goal: Goal, html: Path | None, as_json: bool, options: dict[str, Any]) -> None:  # fmt: skip
    """Search the configurations of a campaign file by runs made now, and show what was found.

    Raises:
        RequestError: the file, the runner or the store cannot be used, or no trial can be made.
        UnsatisfiedError: no trial met the deadline.
    """
    from forerun.advisor import Advisor
    from forerun.advisor.measuring import Profiling
    from forerun.advisor.searching import LiveTrials, live_json, notes_of, with_limits
    from forerun.measure.campaign_file import read_campaign
    from forerun.search.following import follow, searcher_of
    from forerun.tables import write_table

    out, most, where = options["out"], options["max_runs"], options["where"]
    check_kind(space, f"the space {str(space)!r}", "a campaign", "campaign")
    writable(out, TABLES)
    settings, screen = load_settings({}), Screen()
    price, within, budget, *ways = (
        options[name] for name in ("price", "within", "budget", "lab_name", "address", "hold")
    )
    asked = with_limits(read_campaign(space), price, within, budget)
    runner, known = runner_of(options["on"] or asked.runner, *ways), shared.known_runs(options)
    with open_store(where) as store, store.campaigns.alone(asked.name):
        with waiting(f"looks at the modules and at the {runner.name} runner {runner.where}"):
            advisor = Advisor((*settings.catalog_files, *map(str, options["catalog_files"])))
            profiling = Profiling(asked, runner, store, advisor)
            box = LiveTrials(profiling, goal, options["parallel"], options["retry"], known)
        searcher, why = searcher_of(options["searcher"], box, options["seed"], not options["no_stop"], known)  # fmt: skip
        facts = _facts(box, why, store.where)
        if not as_json:
            screen.labelled(facts, 10)
            screen.items("notes", box.notes)
        if not options["yes"]:
            most_dollars = box.most_dollars(most - len(box.made))
            confirm_dollars(f"the search of {asked.name!r}", most_dollars, asked.budget.dollars)
        with waiting("starts workers", plain=not as_json) as doing, runner.started():
            runner.tell = doing
            trail = follow(
                searcher, box, most, made=box.made,
                on_run=lambda one: None if as_json else echo(_words(one, searcher, most), err=True),
            )  # fmt: skip
        if out is not None:
            write_table(profiling.results(), out)
    notes = notes_of(trail, box)
    found = clean(live_json(trail, box, notes))
    best = best_of(trail, searcher, len(trail))[0] if trail.recommended >= 0 else ""
    facts += [("best", recommended(found, best)), ("spent", _spent(found))]
    write_page(html, trail, searcher, title(found, f"of {asked.name}"), facts, notes)
    if as_json:
        shared.write_json("search", found)
    else:
        source = source_of(asked.name, out, where)
        show_found(screen, found, best, source, {**notes, "notes": []}, html, out)
    if trail.recommended < 0:
        first = int(trail.at[0]) if len(trail) else 0
        raise nothing_found(found, box.reason[first])


def search_there(space: Path, as_json: bool, options: dict[str, Any]) -> None:
    """Have a service search the configurations of a campaign file, and show what it found. Raises as `search_space`."""
    from forerun.cli.remote import carried_out
    from forerun.measure.campaign_file import read_campaign

    if options["out"] is not None:
        todo = "leave it out, and write them with: forerun runs export"
        raise RequestError("--out of a search with a server", "its runs stay in the service's store", todo)  # fmt: skip
    asked = read_campaign(space)
    names = ("searcher", "minimize", "max_runs", "seed", "no_stop", "retry", "parallel", "price", "budget", "yes")  # fmt: skip
    fields = {**asked.spec, "name": asked.name, "runner": options["on"] or asked.runner}
    body = {name: options[name] for name in names} | {"space": fields}
    body |= {n: f"{options[n]!r}s" for n in ("deadline", "within") if options[n] is not None}
    found = carried_out("search", body, f"searches {asked.name} there")
    if as_json:
        shared.write_json("search", found)
    else:
        notes = {"warnings": found["warnings"]}
        show_found(Screen(), found, "", source_of(asked.name, None, ""), notes, None)
    if found["searches"][0]["recommended"] is None:
        raise nothing_found(found, "")


def show_found(
    screen: Screen, found: dict[str, Any], best: str, source: str, notes: Mapping[str, Sequence[str]], *written: Path | None
) -> None:  # fmt: skip
    """Write what a search found for a person; best: its figure in words."""
    screen.title(title(found, f"of {found['campaign']}"))
    show_runs(screen, found)
    fit = f"forerun fit --runs {source} --predictor auto --out MODEL.json"
    screen.labelled([
        ("stopped", found["searches"][0]["stopped"]), ("best", recommended(found, best)), ("spent", _spent(found)),
        ("counted", counting(found)), ("wrote", ", ".join(str(path) for path in written if path is not None)),
        ("next", "" if all_failed(found["searches"][0]) else fit),
    ], 10)  # fmt: skip
    for heading, lines in notes.items():
        screen.items(heading, lines)


def nothing_found(found: dict[str, Any], reason: str) -> UnsatisfiedError:
    """Return the error for a search that recommends nothing; reason: why its first run failed."""
    one, runs = found["searches"][0], found["searches"][0]["runs"]
    why = f"no trial met the limits: {one['stopped']}"
    todo = "see why each ended above; give a later --deadline, or a larger --within or --budget"
    if all_failed(one):
        first = f"{runs[0]['words']}: {reason or runs[0]['status']}"
        why = f"every one of {counted(len(runs), 'trial')} failed; the first: {first}"
        todo = "correct what failed, then the same command with --retry"
    return UnsatisfiedError(f"searching {counted(found['configurations'], 'configuration')}", why, todo)  # fmt: skip


def _spent(found: dict[str, Any]) -> str:
    trials = counted(len(found["searches"][0]["runs"]), "trial")
    return f"{_amount(found['spent_dollars'], found['spent_seconds'])} for {trials}"


def _facts(box: LiveTrials, why: str, where: str) -> list[tuple[str, str]]:
    budget, runner = box.campaign.budget, box.runner
    limits = ((budget.seconds, format_seconds), (budget.dollars, small_dollars))
    words = [f"{write(most)} in all" for most, write in limits if most is not None]
    made = f"{counted(len(box.made), 'trial')} already, in {where}" if box.made else ""
    space = f"{counted(len(box), 'configuration')} of {box.campaign.name}, on {runner.name} {runner.where}"
    return [("space", space), ("searcher", why), ("limits", ", ".join(words)), ("done", made)]


def _amount(dollars: float, seconds: float) -> str:
    gone = f"{small_dollars(dollars)} and " if dollars else ""
    return gone + format_seconds(seconds)


def _words(trail: Trail, searcher: Any, most: int) -> str:
    box: Any = trail.box
    i, best = int(trail.at[-1]), trail.recommended
    price = f", {small_dollars(box.dollars[i])}" if box.dollars[i] > 0 else ""
    found = best_of(trail, searcher, len(trail))[0]
    found += f" with {box.land.words(best)}" if best >= 0 else ""
    run = clean(trail_json(trail)["runs"][-1])
    done = f"{len(trail)} of at most {most}  {run['words']}: {outcome(run)}{price}"
    return f"{done}; best {found}; spent {_amount(box.spent_dollars, box.spent_seconds)}"
