"""forerun leaderboard: every predictor on every table by every split, kept as it goes."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import registry
from forerun.cli import options as shared
from forerun.cli.commands.evaluate import command_line, runs_by_table
from forerun.cli.inputs import FILE, NAMES, SeveralFiles, files_in, writable, write_text
from forerun.cli.showing import Screen
from forerun.errors import EXIT_DEFECT, UnsatisfiedError
from forerun.settings import load_settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.evaluate.leaderboard import Scoreboard

USUAL_SPLITS = ("interpolation:devices", "random", "extrapolation:devices=half")
ALL = "all"


@click.command(cls=SeveralFiles)
@shared.judged_runs_option
@click.option(
    "--predictors", type=NAMES, metavar="NAME[:OPTION=VALUE],...",
    help="Names with commas, with options where wanted, or all. Default: all, or those of --system.",
)  # fmt: skip
@shared.system_option(several=True)
@click.option(
    "--splits", multiple=True, metavar="SPLIT [...]",
    help="As --split of `forerun evaluate` takes them, one table of figures for each. Default:"
    f" {' '.join(USUAL_SPLITS)}.",
)  # fmt: skip
@click.option(
    "--folds", type=click.IntRange(2), metavar="N",
    help="Of random (5), leave-out and few-shot (10).",
)  # fmt: skip
@shared.where_option("Only these rows, e.g. 'tp<=8' or device=t4,v100")
@click.option(
    "--start", type=click.Choice(shared.STARTS),
    help="What predictors know before they are fitted: shipped or priors. Default: shipped, unless a"
    " judged row is among the runs that they were fitted to.",
)  # fmt: skip
@shared.fold_seed_option
@click.option(
    "--cache", type=FILE, metavar="FILE.jsonl",
    help="Where figures are kept as they come, so that nothing is judged twice and a run that was cut"
    " short goes on. Default: forerun/leaderboard.jsonl in the folder for caches.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Judge again what was judged before.")
@click.option("--page", type=FILE, metavar="FILE.md", help="Write the leaderboard as a page.")
@shared.catalog_option
@shared.json_option
def leaderboard(
    runs: tuple[Path, ...], page: Path | None, cache: Path | None, as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Every predictor on every table, side by side: one table of figures for each split.

    A table is divided by itself: a predictor learns from one side and is judged on the other.
    The best of a table that answered at least 90 % of its rows is marked with *. Figures are kept
    by the table's content, the predictor, the split, the seed and the code, so that the command can
    be stopped at any moment and started again.
    """
    from forerun.evaluate import parse_split
    from forerun.evaluate.leaderboard import BoardSection, EntryFile, Scoreboard, filled
    from forerun.evaluate.pages import board_page

    files = files_in(runs, "--runs")
    if cache is None:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        cache = Path(base).expanduser() / "forerun" / "leaderboard.jsonl"
        with suppress(OSError):  # `writable` says what is wrong
            cache.parent.mkdir(parents=True, exist_ok=True)
    writable(page, (".md",), (*files, *options["catalog_files"], cache))
    writable(cache, (".jsonl",), files)
    settings = load_settings()
    every, named = registry.names("predictors"), options["predictors"] or ()
    predictors = (
        every if named == (ALL,) else shared.predictors_of(named, options["systems"], every)
    )
    texts = options["splits"] or USUAL_SPLITS
    splits = list(dict.fromkeys(str(parse_split(text)) for text in texts))
    kept = EntryFile(cache)
    tables = runs_by_table(files, settings, options, options["conditions"])
    sections = tuple(BoardSection(f"`{text}`", dict.fromkeys(tables, text)) for text in splits)
    entries = []
    for entry, judged_now in filled(
        tables, predictors, sections, kept, seed=options["seed"], folds=options["folds"] or 0,
        start=options["start"] or "", fresh=options["fresh"],
    ):  # fmt: skip
        entries.append(entry)
        if judged_now:
            key, found = entry.key, entry.reason
            if entry.score is not None and entry.score.answered:
                found = f"{entry.score.median_ape:.1f} %"
            line = f"{key.table} {key.split} {key.predictor}: {found} ({entry.seconds:.1f} s)"
            click.echo(line, err=True)
    board = Scoreboard(sections, predictors, tuple(entries), options["seed"])
    if page is not None:
        command = command_line(predictors, splits=splits)
        made = f"Made on {datetime.now(UTC).date().isoformat()} by forerun {version('forerun')}"
        made += f", seed {board.seed}, with:\n\n```\n{command}\n```"
        write_text(page, board_page(board, (made,)))
    if as_json:
        shared.write_json("leaderboard", _json(board))
    else:
        _show(Screen(settings), board)
    _leave(board)


def _show(screen: Screen, board: Scoreboard) -> None:
    """Write the figures of each split, and why predictors could not answer."""
    from forerun.evaluate.pages import board_notes, board_sections, unfit

    for section in board.sections:
        for title, text, head, rows in board_sections(board, section, "{} *", " ({})"):
            plain = [[text.strip("*`") for text in row] for row in rows]
            screen.table(head, plain, title.strip("`") or text)
        screen.items("note", board_notes(board, section))
        screen.line()
    title, _, head, rows = unfit(board)
    if rows:
        screen.table(head, rows, title)
        screen.line()
    screen.line(
        "median error of the measured time in percent (share within the 5-95 % band); *: best of a"
        " table; [...]: answered below 90 %, so that it does not count"
    )


def _json(board: Scoreboard) -> dict[str, Any]:
    return {
        "version": version("forerun"), "seed": board.seed, "predictors": list(board.predictors),
        "sections": [{"title": s.title.strip("`"), "splits": dict(s.splits)} for s in board.sections],
        "entries": [
            {**e.as_dict(), "share": board.shares(e.key.table, e.key.split).get(e.key.predictor),
             "best": board.best(e.key.table, e.key.split) == e.key.predictor}
            for e in board.entries
        ],
    }  # fmt: skip


def _leave(board: Scoreboard) -> None:
    """End as the entries ask for: well, with a defect, or with nothing answered."""
    broken = [e for e in board.entries if e.defect]
    if broken:
        names = ", ".join(dict.fromkeys(e.key.predictor for e in broken))
        click.echo(f"{counted(len(broken), 'figure')} missing by a defect of {names}", err=True)
        raise click.exceptions.Exit(EXIT_DEFECT)
    scores = [e.score for e in board.entries if e.score is not None]
    if not any(s.answered or s.censored_answered for s in scores):
        raise UnsatisfiedError(
            f"a leaderboard of {', '.join(board.predictors)}", "no row was answered",
            "see the reasons above; correct the rows, or name other predictors or splits",
        )  # fmt: skip
