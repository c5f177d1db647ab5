"""forerun leaderboard: every predictor on every table by every split, kept as it goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from forerun import registry, wire
from forerun.cli.commands.evaluate import catalog_of, runs_by_table
from forerun.cli.inputs import FILE, NAMES, SeveralFiles, files_in, writable
from forerun.cli.options import (
    STARTS,
    catalog_option,
    fold_seed_option,
    json_option,
    judged_runs_option,
    predictors_of,
    system_option,
)
from forerun.cli.screen import Screen
from forerun.errors import EXIT_DEFECT, RequestError, UnsatisfiedError
from forerun.settings import load_settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.evaluate.leaderboard import BoardSection, LeaderboardEntry, Scoreboard

USUAL_SPLITS = ("interpolation:devices", "random", "extrapolation:devices=half")
ALL = "all"


@click.command(cls=SeveralFiles)
@judged_runs_option
@click.option(
    "--predictors", type=NAMES, metavar="NAME[:OPTION=VALUE],...",
    help="Names with commas, with options where wanted, or all. Default: all, or those of --system.",
)  # fmt: skip
@system_option(several=True)
@click.option(
    "--splits", multiple=True, metavar="SPLIT [...]",
    help="As --split of `forerun evaluate` takes them, one table of figures for each. Default:"
    f" {' '.join(USUAL_SPLITS)}.",
)  # fmt: skip
@click.option(
    "--folds", type=click.IntRange(2), metavar="N",
    help="Of random (5), leave-out and few-shot (10).",
)  # fmt: skip
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only these rows, e.g. 'tp<=8' or device=t4,v100 (may be repeated).",
)  # fmt: skip
@click.option(
    "--start", type=click.Choice(STARTS),
    help="What predictors know before they are fitted: shipped or priors. Default: shipped, unless a"
    " judged row is among the runs that they were fitted to.",
)  # fmt: skip
@fold_seed_option
@click.option(
    "--cache", type=FILE, metavar="FILE.jsonl",
    help="Where figures are kept as they come, so that nothing is judged twice and a run that was cut"
    " short goes on. Default: forerun/leaderboard.jsonl in the folder for caches.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Judge again what was judged before.")
@click.option("--page", type=FILE, metavar="FILE.md", help="Write the leaderboard as a page.")
@catalog_option
@json_option
def leaderboard(
    runs: tuple[Path, ...], page: Path | None, cache: Path | None, as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Every predictor on every table, side by side: one table of figures for each split.

    A table is divided by itself: a predictor learns from one side and is judged on the other.
    The best of a table that answered at least 90 % of its rows is marked with *. Figures are kept
    by the table's content, the predictor, the split, the seed and the code, so that the command can
    be stopped at any moment and started again.
    """
    from forerun.evaluate import parse_condition, parse_split
    from forerun.evaluate.leaderboard import EntryFile, Scoreboard, filled

    files = files_in(runs, "--runs")
    cache = cache or _usual_cache()
    writable(page, "writing", (".md",), (*files, *options["catalog_files"], cache))
    writable(cache, "--cache", (".jsonl",), files)
    settings = load_settings()
    every = registry.names("predictors")
    named = options["predictors"] or ()
    predictors = every if named == (ALL,) else predictors_of(named, options["systems"], every)
    texts = options["splits"] or USUAL_SPLITS
    conditions = [parse_condition(text) for text in options["conditions"]]
    splits = list(dict.fromkeys(str(parse_split(text)) for text in texts))
    kept = EntryFile(cache)
    tables = runs_by_table(
        files, catalog_of((*settings.catalog_files, *options["catalog_files"])), conditions
    )
    sections = _sections(splits, list(tables))
    entries = []
    for entry, judged_now in filled(
        tables, predictors, sections, kept, seed=options["seed"], folds=options["folds"] or 0,
        start=options["start"] or "", fresh=options["fresh"],
    ):  # fmt: skip
        entries.append(entry)
        if judged_now:
            click.echo(_line(entry), err=True)
    board = Scoreboard(sections, predictors, tuple(entries), options["seed"])
    if page is not None:
        _write_page(page, board, runs, options)
    if as_json:
        click.echo(wire.dumps(_plain(board)))
    else:
        _show(Screen(settings), board)
    _leave(board)


def _usual_cache() -> Path:
    """Return where figures are kept where nobody says; its folder is made."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(base).expanduser() / "forerun" / "leaderboard.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"keeping figures in {path}", f"its folder cannot be made: {error.strerror}",
            "give --cache FILE.jsonl",
        ) from None  # fmt: skip
    return path


def _sections(splits: Sequence[str], tables: Sequence[str]) -> tuple[BoardSection, ...]:
    from forerun.evaluate.leaderboard import BoardSection

    return tuple(BoardSection(f"`{text}`", dict.fromkeys(tables, text)) for text in splits)


def _line(entry: LeaderboardEntry) -> str:
    key = entry.key
    found = entry.reason or ""
    if entry.score is not None and entry.score.answered:
        found = f"{entry.score.median_ape:.1f} %"
    return f"{key.table} {key.split} {key.predictor}: {found} ({entry.seconds:.1f} s)"


def _show(screen: Screen, board: Scoreboard) -> None:
    """Write a table for each split, and why predictors could not answer."""
    from forerun.evaluate.evaluation import ENOUGH_ANSWERED
    from forerun.evaluate.pages import judged, number, percent, reason_lines, stopped_figure

    for section in board.sections:
        rows = []
        for table, split in section.splits.items():
            shares, best = board.shares(table, split), board.best(table, split)
            for name in board.predictors:
                score = board.score_of(name, table, split)
                share = shares.get(name, 0.0)
                if score is None or not (score.answered or score.censored_answered):
                    continue
                counts = "*" if name == best else "" if share >= ENOUGH_ANSWERED else "no"
                inside = number(100 * score.coverage, "{:.0f}")
                error = number(score.median_ape)
                stopped = stopped_figure(score) if score.censored else ""
                rows.append((table, name, judged(board, table, split), error, inside,
                             percent(share), counts, stopped))  # fmt: skip
        used = _HEADERS if any(row[-1] for row in rows) else _HEADERS[:-1]
        screen.table(used, [row[: len(used)] for row in rows], section.title.strip("`"))
        notes = {
            f"{e.key.table}: {note}": None
            for e in board.entries if e.key.split in section.splits.values() for note in e.notes
        }  # fmt: skip
        screen.items("note", notes)
        screen.items("without a figure that counts", reason_lines(board, section))
        screen.line()
    screen.line(
        "median error of the measured time; inside: share within the 5-95 % band; *: best of a table;"
        " no: answered below 90 %, so that it does not count; stopped: answered below their bound"
    )


_HEADERS = ("table", "predictor", "judged", "median %", "inside %", "answered", "counts", "stopped")


def _plain(board: Scoreboard) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "schema": wire.SCHEMA, "kind": "leaderboard", "version": version("forerun"),
        "seed": board.seed, "predictors": list(board.predictors),
        "sections": [{"title": s.title.strip("`"), "splits": dict(s.splits)} for s in board.sections],
        "entries": [
            {**e.as_dict(), "share": board.shares(e.key.table, e.key.split).get(e.key.predictor),
             "best": board.best(e.key.table, e.key.split) == e.key.predictor}
            for e in board.entries
        ],
    }  # fmt: skip


def _write_page(
    path: Path, board: Scoreboard, runs: Sequence[Path], options: dict[str, Any]
) -> None:
    from datetime import UTC, datetime
    from importlib.metadata import version

    from forerun.evaluate.pages import board_page
    from forerun.tables.files import write_whole

    words = [f"--runs {' '.join(p.name for p in runs)}"]
    words.append(f"--predictors {','.join(board.predictors)}")
    words.append(f"--splits {' '.join(quote(s.title.strip('`')) for s in board.sections)}")
    words += [f"--where '{text}'" for text in options["conditions"]]
    words += [f"--{n} {options[n]}" for n in ("folds", "start") if options[n]]
    made = (
        f"Made on {datetime.now(UTC).date().isoformat()} by forerun {version('forerun')}, seed"
        f" {board.seed}, with:\n\n```\nforerun leaderboard {' '.join(words)} --seed {board.seed}"
        f" --page {path.name}\n```"
    )
    text = board_page(board, (made,))
    write_whole(path, lambda name: _write(name, text))


def _write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")


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
            "see the reasons above; mend the rows, or name other predictors or splits",
        )  # fmt: skip
