"""forerun evaluate, forerun leaderboard: how well predictors forecast runs that they were not fitted to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from forerun import registry
from forerun.cli import options as shared
from forerun.cli.flagging import report_runs
from forerun.cli.inputs import FILE, NAMES, RUNS_OF, SeveralFiles, files_in, writable, write_text
from forerun.cli.printing import echo, visible
from forerun.cli.showing import Outputs, Screen, waiting
from forerun.errors import EXIT_DEFECT, RequestError, UnsatisfiedError
from forerun.settings import load_settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.evaluate import Evaluation
    from forerun.evaluate.leaderboard import Scoreboard
    from forerun.settings import Settings

_NOT_NAMED = ("as_json", "cache", "fresh")  # options that do not change a page
_LEGEND = (
    "mean, median, 90th %: |forecast - measured| / measured; bias: median of forecast over measured,"
    " less one; rank: Kendall's tau, 1 is the measured order; inside: share within the 5-95 % band, in"
    " brackets what so few rows support; width: the band's upper over its lower edge; distance: 0"
    " beside measured runs, 1 physics alone; a table in brackets: below 90 % answered, which does not"
    " count; all figures: --json"
)


_judging_options = shared.together(
    click.option(
        "--runs", type=FILE, multiple=True, required=True, metavar="RUNS.csv [...]",
        help=f"Measured runs to judge on: {RUNS_OF}.",
    ),
    click.option(
        "--predictors", type=NAMES, metavar="NAME[:OPTION=VALUE],...",
        help="Names with commas, with options where wanted (see `forerun predictors`), or all, which"
        " is the leaderboard's default.",
    ),
    shared.system_option(several=True),
    shared.where_option("Only these rows of --runs, e.g. 'tp<=8' or device=t4,v100"),
    click.option(
        "--folds", type=click.IntRange(2), metavar="N",
        help="How many: of random 5, of leave-out and few-shot 10, which more values share;"
        " leave-one-out has one for each value.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
                 help="Seed of folds, shots and ties."),
    click.option(
        "--start", type=click.Choice(shared.STARTS),
        help="What predictors know before they are fitted: shipped, constants that published runs"
        " were used to fit, or priors. Default: shipped, unless a judged row is among those runs.",
    ),
    shared.map_option,
    shared.own_columns_option,
    shared.catalog_option,
    shared.json_option,
)  # fmt: skip


def _predictors(options: dict[str, Any], usual: Sequence[str]) -> tuple[str, ...]:
    from forerun.systems.recipe import predictor_spec

    named = options["predictors"] or ()
    if named == ("all",):
        return tuple(registry.names("predictors"))
    return tuple(dict.fromkeys((*named, *map(predictor_spec, options["systems"])))) or tuple(usual)


@click.command(cls=SeveralFiles)
@_judging_options
@click.option(
    "--fit", "fit_files", type=FILE, multiple=True, metavar="OTHER.csv [...]",
    help=f"Further runs to learn from, never judged (less the judged files): {RUNS_OF}.",
)  # fmt: skip
@click.option(
    "--split", default="whole", show_default=True,
    help="whole (all judged, none fitted), random, holdout (a random fifth), leave-out:COLUMN,"
    " leave-one-out:COLUMN, from:COLUMN=VALUE,... (these are fitted, all others judged),"
    " above:COLUMN=VALUE[..END], larger-clusters, larger-batches,"
    " few-shot:COLUMN=K[:cheapest][:CONDITION] (a value is left out, less K runs, drawn or cheapest), interpolation:COLUMN[=everyN or VALUE,...], between:COLUMN (never the smallest"
    " or largest), extrapolation:COLUMN=VALUE,... (judged above it; half: the middle value). COLUMN may"
    " be workers, batch or resources too; see docs/vocabulary.md.",
)  # fmt: skip
@click.option(
    "--faster-half", type=NAMES, metavar="COLUMN,...",
    help="Of rows that share these columns, fit and judge the times of the faster half alone"
    " (by what was measured).",
)  # fmt: skip
@click.option("--group-by", default="", metavar="COLUMN", help="Scores for each of its values too.")
@shared.seeing_options
@shared.server_options
def evaluate(runs: tuple[Path, ...], fit_files: tuple[Path, ...], as_json: bool, **options: Any) -> None:  # fmt: skip
    """How well predictors forecast measured runs: error, rank, coverage, share answered.

    Every table is divided by itself: a predictor is fitted to one side (and to all --fit tables,
    less the rows of a judged measurement) and is judged on the other. With the split `whole` and
    no --fit it answers as it is; predictors that need runs (laws, regressions) then answer nothing.
    """
    from forerun.evaluate.pages import forecast_chart

    seen, judged = Outputs(options, as_json), files_in(runs, "--runs")
    tables = {path.resolve() for path in judged}
    training_runs = [p for p in files_in(fit_files, "--fit") if p.resolve() not in tables]
    both = [path.name for path in fit_files if path.resolve() in tables]
    if both or (fit_files and not training_runs):
        raise RequestError(
            f"--fit {(both or [fit_files[0].name])[0]}", "it is judged too, so a predictor would be"
            " judged on rows that it was fitted to",
            "name other runs, or let --split divide the table",
        )  # fmt: skip
    settings = load_settings({"own_columns": options["own_columns"]})
    names = _predictors(options, (settings.text("predictor"),))
    sheets: dict[str, Any] = {}
    if shared.service() is None:
        found = _judged_here(settings, options, names, judged, training_runs, sheets)
    else:
        found = _judged_there(settings, {**options, "drawing": bool(seen)}, names, judged, training_runs)  # fmt: skip
    seen.write(
        Screen(settings), partial(_show, found=found),
        lambda: shared.write_json("evaluation", found.as_dict()), lambda: [forecast_chart(sheets)],
    )  # fmt: skip
    if not any(s.answered or s.censored_answered or s.samples_answered for s in found.totals()):
        why, instead = "no row was answered", "see the reasons above; correct the rows"
        if found.split == "whole" and not found.fitted_on:
            why += "; the split `whole` without --fit gives predictors no runs to learn from"
            instead += ("; if they need runs: --split random (or between:devices), or --fit OTHER.csv")  # fmt: skip
        title = f"evaluating {', '.join(found.predictors)}"
        raise UnsatisfiedError(title, why, f"{instead}; or name another predictor")


def _judged_here(
    settings: Settings, options: dict[str, Any], names: Sequence[str], judged: list[Path], fitted: list[Path],
    sheets: dict[str, Any],
) -> Evaluation:  # fmt: skip
    from forerun.evaluate import evaluate as judge
    from forerun.evaluate import parse_split, starting
    from forerun.evaluate.judge import read_alike

    split = parse_split(options["split"])
    runs_judged = shared.runs_by_table(judged, settings, options, options["conditions"])
    fit_runs = shared.runs_by_table(fitted, settings, options)
    runs_judged = read_alike(runs_judged, fit_runs)
    predictors, start = starting(names, options["start"] or "", runs_judged)
    with waiting(f"judges {', '.join(names)}"):
        return judge(
            runs_judged, predictors, split, fit_runs,
            group_by=options["group_by"], seed=options["seed"], parts=options["folds"] or 0,
            faster_half=options["faster_half"] or (), start=start,
            sound=lambda: report_runs((*runs_judged.values(), *fit_runs.values())),
            each=sheets.__setitem__,
        )  # fmt: skip


def _judged_there(
    settings: Settings, options: dict[str, Any], names: Sequence[str], judged: list[Path], fitted: list[Path]
) -> Evaluation:  # fmt: skip
    from forerun.cli.remote import carried_out, own_of, sent_runs
    from forerun.evaluate import Evaluation

    shared.remote(settings, options, "start", "own_columns")
    tables, more = ([{"name": p.stem, **sent_runs([p])} for p in files] for files in (judged, fitted))  # fmt: skip
    if len({one["name"] for one in (*tables, *more)}) < len(judged) + len(fitted):
        raise RequestError("evaluating these tables", "two have one name", "rename one file")
    stated = {n: options[n] for n in ("split", "folds", "seed", "group_by", "faster_half", "start")}
    body = {**stated, **own_of(settings), "tables": tables, "fit": more, "where": options["conditions"], "predictors": names}  # fmt: skip
    body = {name: value for name, value in body.items() if value or value == 0}
    found = carried_out("evaluate", body, f"judges {', '.join(names)}")
    return Evaluation.from_dict(found)


def command_line(predictors: Sequence[str], **resolved: Any) -> str:
    """Return the command that writes a page again; files by their last name, as pages are public."""
    context = click.get_current_context()
    given = {**context.params, **resolved, "predictors": ",".join(predictors), "systems": ()}
    words = [f"forerun {context.info_name}"]
    for option in context.command.params:
        value = given[option.name or ""]
        values = value if isinstance(value, tuple | list) else (value,)
        if value in (None, "", ()) or value is False or option.name in _NOT_NAMED:
            continue
        texts = [quote(v.name if isinstance(v, Path) else str(v)) for v in values]
        words.append(f"{option.opts[0]} {(',' if option.type is NAMES else ' ').join(texts)}")
    return " ".join(words)


def _show(screen: Screen, found: Evaluation) -> None:
    from forerun.evaluate.pages import notes, sections, setting, summary

    screen.title(setting(found))
    for note in notes(found):
        screen.line(note)
    for predictor in found.predictors:
        screen.line(f"{predictor}: {summary(found, predictor).replace('**', '')}")
    for title, _, head, rows in sections(found):
        screen.line()
        screen.table(head, rows, title)
    screen.line()
    screen.line(_LEGEND)


USUAL_SPLITS = ("interpolation:devices", "random", "extrapolation:devices=half")


def _of_times() -> list[str]:
    """Return the predictors that answer times: a leaderboard is of these."""
    names = registry.names("predictors")
    return [n for n in names if getattr(registry.load("predictors", n), "answers_times", True)]


@click.command(cls=SeveralFiles)
@_judging_options
@click.option(
    "--splits", multiple=True, metavar="SPLIT [...]",
    help="As --split of `forerun evaluate` takes them, one table of figures for each. Default:"
    f" {' '.join(USUAL_SPLITS)}.",
)  # fmt: skip
@click.option(
    "--cache", type=FILE, metavar="FILE.jsonl",
    help="Where figures are kept as they come, so that nothing is judged twice and a run that was cut"
    " short goes on. Default: forerun/leaderboard.jsonl in the folder for caches.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Judge again what was judged before.")
@click.option("--page", type=FILE, metavar="FILE.md", help="Write the leaderboard as a page.")
def leaderboard(runs: tuple[Path, ...], page: Path | None, cache: Path | None, as_json: bool, **options: Any) -> None:  # fmt: skip
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
    writable(page, (".md",), (cache,))
    writable(cache, (".jsonl",))
    settings = load_settings({"own_columns": options["own_columns"]})
    predictors = _predictors(options, _of_times())
    texts = options["splits"] or USUAL_SPLITS
    splits = list(dict.fromkeys(str(parse_split(text)) for text in texts))
    kept = EntryFile(cache)
    tables = shared.runs_by_table(files, settings, options, options["conditions"])
    sections = tuple(BoardSection(f"`{text}`", dict.fromkeys(tables, text)) for text in splits)
    entries = []
    with waiting(f"judges {', '.join(predictors)} on {counted(len(tables), 'table')}"):
        for entry, judged_now in filled(
            tables, predictors, sections, kept, seed=options["seed"], folds=options["folds"] or 0,
            start=options["start"] or "", fresh=options["fresh"],
        ):  # fmt: skip
            entries.append(entry)
            if judged_now:
                key, found = entry.key, entry.reason
                if entry.score is not None and entry.score.answered:
                    found = f"{entry.score.median_ape:.1f} %"
                echo(f"{key.table} {key.split} {key.predictor}: {found} ({entry.seconds:.1f} s)", err=True)  # fmt: skip
    board = Scoreboard(sections, predictors, tuple(entries), options["seed"])
    if page is not None:
        command = command_line(predictors, splits=splits)
        made = f"Made on {datetime.now(UTC).date().isoformat()} by forerun {version('forerun')}"
        made += f", seed {board.seed}, with:\n\n```\n{command}\n```"
        write_text(page, visible(board_page(board, (made,))))
    if as_json:
        body = {
            "version": version("forerun"), "seed": board.seed, "predictors": list(board.predictors),
            "sections": [{"title": s.title.strip("`"), "splits": dict(s.splits)} for s in board.sections],
            "entries": [
                {**e.as_dict(), "share": board.shares(e.key.table, e.key.split).get(e.key.predictor),
                 "best": board.best(e.key.table, e.key.split) == e.key.predictor}
                for e in board.entries
            ],
        }  # fmt: skip
        shared.write_json("leaderboard", body)
    else:
        _show_board(Screen(settings), board)
    if broken := [e.key.predictor for e in board.entries if e.defect]:
        names = ", ".join(dict.fromkeys(broken))
        echo(f"{counted(len(broken), 'figure')} missing by a defect of {names}", err=True)
        raise click.exceptions.Exit(EXIT_DEFECT)
    scores = [e.score for e in board.entries if e.score is not None]
    if not any(s.answered or s.censored_answered for s in scores):
        raise UnsatisfiedError(
            f"a leaderboard of {', '.join(board.predictors)}", "no row was answered",
            "see the reasons above; correct the rows, or name other predictors or splits",
        )  # fmt: skip


def _show_board(screen: Screen, board: Scoreboard) -> None:
    from forerun.evaluate.pages import board_notes, board_sections, unfit

    for section in board.sections:
        for title, text, head, rows in board_sections(board, section, "{} *", " ({})"):
            plain = [[cell.strip("*`") for cell in row] for row in rows]
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
