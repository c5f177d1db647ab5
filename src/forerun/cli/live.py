"""Live: `forerun search SPACE.yaml`: trials are made now, each is reported, and the same command goes on."""

from __future__ import annotations

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
from forerun.errors import UnsatisfiedError
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.units import counted, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.searching import LiveTrials
    from forerun.search.following import Trail
    from forerun.search.landscape import Goal


def search_space(
    space: Path, goal: Goal, html: Path | None, as_json: bool, options: dict[str, Any]
) -> None:
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
        searcher, why = searcher_of(
            options["searcher"], box, options["seed"], not options["no_stop"], known
        )
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
    facts += [
        ("best", recommended(trail, searcher)),
        ("spent", f"{_spent(box)} for {counted(len(trail), 'trial')}"),
    ]
    notes, heading = notes_of(trail, box), title(trail, f"of {asked.name}")
    write_page(html, trail, searcher, heading, facts, notes)
    if as_json:
        shared.write_json("search", live_json(trail, box, notes))
    else:
        screen.title(heading)
        show_runs(screen, trail)
        screen.labelled([
            ("stopped", trail.stopped), *facts[-2:], ("counted", counting(box)),
            ("wrote", ", ".join(str(path) for path in (html, out) if path is not None)),
            ("next", "" if all_failed(trail) else
             f"forerun fit --runs {source_of(asked.name, out, where)} --predictor auto --out MODEL.json"),
        ], 10)  # fmt: skip
        screen.items("did not end well", notes["did not end well"])
        screen.items("warnings", notes["warnings"])
    if trail.recommended < 0:
        raise _nothing_found(trail, box)


def _nothing_found(trail: Trail, box: LiveTrials) -> UnsatisfiedError:
    found = f"no trial met the limits: {trail.stopped}"
    todo = "see why each ended above; give a later --deadline, or a larger --within or --budget"
    if all_failed(trail):
        first = int(trail.at[0])
        why = f"{box.land.words(first)}: {box.reason[first] or box.status[first]}"
        found = f"every one of {counted(len(trail), 'trial')} failed; the first: {why}"
        todo = "correct what failed, then the same command with --retry"
    return UnsatisfiedError(f"searching {counted(len(box), 'configuration')}", found, todo)


def _facts(box: LiveTrials, why: str, where: str) -> list[tuple[str, str]]:
    budget, runner = box.campaign.budget, box.runner
    limits = ((budget.seconds, format_seconds), (budget.dollars, small_dollars))
    words = [f"{write(most)} in all" for most, write in limits if most is not None]
    made = f"{counted(len(box.made), 'trial')} already, in {where}" if box.made else ""
    space = f"{counted(len(box), 'configuration')} of {box.campaign.name}, on {runner.name} {runner.where}"
    return [("space", space), ("searcher", why), ("limits", ", ".join(words)), ("done", made)]


def _spent(box: LiveTrials) -> str:
    gone = f"{small_dollars(box.spent_dollars)} and " if box.spent_dollars else ""
    return gone + format_seconds(box.spent_seconds)


def _words(trail: Trail, searcher: Any, most: int) -> str:
    box, i, best = trail.box, int(trail.at[-1]), trail.recommended
    price = f", {small_dollars(box.dollars[i])}" if box.dollars[i] > 0 else ""
    found = best_of(trail, searcher, len(trail))[0]
    found += f" with {box.land.words(best)}" if best >= 0 else ""
    done = f"{len(trail)} of at most {most}  {box.land.words(i)}: {outcome(box, i)}{price}"
    return f"{done}; best {found}; spent {_spent(box)}"  # type: ignore[arg-type]
