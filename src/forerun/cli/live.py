"""Live: `forerun search SPACE.yaml`: trials are made now, each is reported, and the same command goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.cli import options as shared
from forerun.cli.commands.profile import confirm_dollars, runner_of, source_of
from forerun.cli.inputs import TABLES, check_kind, writable
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, small_dollars, waiting
from forerun.cli.trails import (
    Band,
    banded,
    counting,
    json_of,
    outcome,
    recommended,
    show_runs,
    title,
    warnings_of,
    write_page,
    writer,
)
from forerun.errors import UnsatisfiedError
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.units import counted, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.searching import LiveTrials
    from forerun.search.following import Trail
    from forerun.search.landscape import Goal
    from forerun.search.searchers import Choice


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
    from forerun.advisor.searching import LiveTrials, with_limits
    from forerun.measure.campaign_file import read_campaign
    from forerun.search.following import follow, searcher_of
    from forerun.tables import write_table

    most = options["max_runs"]
    check_kind(space, f"the space {str(space)!r}", "a campaign", "campaign")
    writable(options["out"], TABLES)
    settings, screen = load_settings({}), Screen()
    asked = with_limits(
        read_campaign(space), options["price"], options["within"], options["budget"]
    )
    ways = (options["lab_name"], options["address"], options["hold"])
    runner = runner_of(options["on"] or asked.runner, *ways)
    advisor = Advisor((*settings.catalog_files, *map(str, options["catalog_files"])))
    with open_store(options["where"]) as store, store.campaigns.alone(asked.name):
        with waiting(f"looks at the modules and at the {runner.name} runner {runner.where}"):
            profiling = Profiling(asked, runner, store, advisor)
            box = LiveTrials(profiling, goal, options["parallel"], options["retry"])
        searcher, why = searcher_of(
            options["searcher"], box, options["seed"], not options["no_stop"]
        )
        facts = _facts(box, why, store.where)
        if not as_json:
            screen.labelled(facts, 10)
            screen.items("notes", box.notes)
        if not options["yes"]:
            dollars = box.most_dollars(most - len(box.made))
            confirm_dollars(f"the search of {asked.name!r}", dollars, asked.budget.dollars)
        progress = _Progress(box, searcher, most, quiet=as_json)
        with waiting("starts workers", plain=not as_json) as doing, runner.started():
            runner.tell = doing
            trail = follow(searcher, box, most, made=box.made, on_run=progress.add)
        if options["out"] is not None:
            write_table(profiling.results(), options["out"])
    _show(
        screen, trail, box, facts, progress.bands, (html, options["out"]), as_json, options["where"]
    )
    if trail.recommended < 0:
        raise UnsatisfiedError(
            f"searching {counted(len(box), 'configuration')}", f"no trial met the limits: {trail.stopped}",
            "see why each ended above; give a later --deadline, or a larger --within or --budget",
        )  # fmt: skip


def _show(
    screen: Screen, trail: Trail, box: LiveTrials, facts: list[tuple[str, str]], bands: list[Band],
    files: tuple[Path | None, Path | None], as_json: bool, where: str,
) -> None:  # fmt: skip
    html, out = files
    warnings = warnings_of(box, "leave the others out of the space")
    failed = [
        f"{box.land.words(int(i))}: {box.status[i]}, {box.reason[i]}; it is not asked for again"
        for i in trail.at if box.status[i] != "ok"
    ]  # fmt: skip
    band = bands[-1] if bands else None
    facts = [*facts, ("best", recommended(trail, band)), ("spent", _spent(box, trail))]
    notes = {"Did not end well": failed, "Notes": box.notes, "Warnings": warnings}
    heading = title(trail, f"of {box.campaign.name}")
    write_page(html, trail, heading, facts, bands, notes)
    if as_json:
        shared.write_json("search", _json(box, trail, [*box.notes, *failed, *warnings]))
    else:
        screen.title(heading)
        show_runs(screen, trail)
        source = source_of(box.campaign.name, out, where)
        screen.labelled([
            ("stopped", trail.stopped), *facts[-2:], ("counted", counting(box)),
            ("wrote", ", ".join(str(path) for path in (html, out) if path is not None)),
            ("next", f"forerun fit --runs {source} --predictor auto --out MODEL.json"),
        ], 10)  # fmt: skip
        screen.items("did not end well", failed)
        screen.items("warnings", warnings)


def _facts(box: LiveTrials, why: str, where: str) -> list[tuple[str, str]]:
    """Return what is searched, in labelled words."""
    budget = box.campaign.budget
    limits = [] if budget.seconds is None else [f"{format_seconds(budget.seconds)} in all"]
    limits += [] if budget.dollars is None else [f"{small_dollars(budget.dollars)} in all"]
    made = f"{counted(len(box.made), 'trial')} already, in {where}" if box.made else ""
    return [
        ("space", f"{counted(len(box), 'configuration')} of {box.campaign.name}, on {box.runner.name}"
                  f" {box.runner.where}"),
        ("searcher", why), ("limits", ", ".join(limits)), ("done", made),
    ]  # fmt: skip


def _spent(box: LiveTrials, trail: Trail) -> str:
    times = f"{format_seconds(box.spent_seconds)} and {counted(len(trail), 'trial')}"
    dollars = box.spent_dollars
    return f"{small_dollars(dollars)} in {times}" if dollars else times


@dataclass
class _Progress:
    """Reports each trial as it ends; `bands`: what the searcher's model says of the best after each."""

    box: LiveTrials
    searcher: Any
    most: int
    quiet: bool
    bands: list[Band] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._at: list[int] = []
        for choice in self.box.made:
            self._count(choice)

    def _count(self, choice: Choice) -> None:
        import numpy as np

        from forerun.search.searchers import Choosing

        self._at.append(choice.at)
        band = None
        if isinstance(self.searcher, Choosing):
            seen = self.box.seen(np.array(self._at, dtype=np.int64))
            band = self.searcher.band(self.box.land, seen)
        self.bands.append(band)

    def add(self, choice: Choice) -> None:
        """Count a trial that has ended, and write a line about it."""
        self._count(choice)
        if self.quiet:
            return
        box, i = self.box, choice.at
        write = writer(box)
        first = min(self._at, key=lambda at: box.values[at])
        best = banded(float(box.values[first]), self.bands[-1], write)
        best += f" with {box.land.words(first)}" if math.isfinite(box.values[first]) else ""
        price = f", {small_dollars(box.dollars[i])}" if box.dollars[i] > 0 else ""
        gone = f"{small_dollars(box.spent_dollars)} and " if box.spent_dollars else ""
        echo(
            f"{len(self._at)} of at most {self.most}  {box.land.words(i)}: {outcome(box, i)}{price}; best"
            f" {best}; spent {gone}{format_seconds(box.spent_seconds)}", err=True,
        )  # fmt: skip


def _json(box: LiveTrials, trail: Trail, notes: list[str]) -> dict[str, Any]:
    return {
        "campaign": box.campaign.name, "configurations": len(box), "minimize": box.goal.minimize,
        "deadline_seconds": box.goal.deadline_seconds, "times": box.quantity,
        "searcher": trail.searcher, "spent_seconds": box.spent_seconds,
        "spent_dollars": box.spent_dollars, "searches": [json_of(trail)], "warnings": notes,
    }  # fmt: skip
