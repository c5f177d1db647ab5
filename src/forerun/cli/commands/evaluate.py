"""forerun evaluate: how well predictors foresee measured runs, split so that none is known.

What forerun evaluate shows on a screen: errors, memory and choice, distance, reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.flagging import report_runs
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
from forerun.errors import RequestError, UnsatisfiedError
from forerun.settings import load_settings

if TYPE_CHECKING:
    from forerun.evaluate import Condition, Evaluation
    from forerun.tables import Runs

from collections.abc import Iterable, Mapping

from forerun.evaluate import ALL_TABLES, Evaluation, Score, leaderboard
from forerun.evaluate.pages import (
    STOPPED,
    Column,
    answered,
    bias_percent,
    inside,
    number,
    percent,
    quantities,
)
from forerun.units import counted

_MOST_REASONS = 12
_LEGEND = (
    "error: mean of |forecast - measured| / measured; bias: median of forecast over measured, less"
    " one; rank: Kendall's tau, 1 is the measured order; inside: share within the 5-95 % band, in"
    " brackets what so few rows support; width: the band's upper over its lower edge; distance: 0"
    " beside measured runs, 1 physics alone"
)


def show(screen: Screen, found: Evaluation) -> None:
    """Write an evaluation."""
    alone = len(found.tables) == 1
    scores = [s for s in found.scores if not (alone and s.table == ALL_TABLES)]
    _columns(screen, scores, _TIME, _title(found))
    uncounted = [s for s in scores if s.comparable and not s.counts]
    if uncounted:
        screen.line("below 90 % answered a line does not count")
    for table, dropped in found.identical.items():
        named = ", ".join(f"{rows:,} of {other}" for other, rows in dropped.items())
        screen.line(f"not fitted, since {table} holds the same measurement: {named} rows")
    for table, notes in found.notes.items():
        for note in notes:
            screen.line(f"{table}: {note}" if not alone else note)
    _standings(screen, found)
    stopped = [s for s in scores if s.censored]
    _columns(screen, stopped, (*_NAMED, *STOPPED[1:]), _STOPPED_TITLE)
    chosen = [s for s in scores if s.memory_rows or s.oom_rows or s.regret_groups]
    _columns(screen, chosen, _PLAN, "memory, and the plan that would have been chosen")
    _columns(
        screen, [s for s in found.by_workload if s.oom_rows], _OOM, "out of memory by workload"
    )
    _columns(screen, found.by_distance, _DISTANCE, "by distance from what was measured")
    for predictor in found.predictors:
        _reasons(screen, found.of(predictor))
    screen.line()
    screen.line(_LEGEND)


def _title(found: Evaluation) -> str:
    folds = sorted(set(found.folds.values()))
    text = f"split {found.split}, {' or '.join(map(str, folds))} fold"
    text += "s" if folds != [1] else ""
    text += f", seed {found.seed}, start from {found.start or 'the predictors as given'}"
    if found.fitted_on:
        text += f"; fitted on {', '.join(found.fitted_on)} too"
    if found.faster_half:
        text += f"; times of the faster half by {', '.join(found.faster_half)}"
    return text


def _columns(
    screen: Screen, scores: Iterable[Score], columns: Sequence[Column], title: str
) -> None:
    """Write scores as a table, less the columns that are blank in all rows."""
    scores = list(scores)
    cells = [[read(score) for score in scores] for _, read in columns]
    used = [i for i, column in enumerate(cells) if any(column)]
    rows = zip(*(cells[i] for i in used), strict=True)
    if not scores:
        return
    if columns is not _TIME:
        screen.line()
    screen.table([columns[i][0] for i in used], rows, title)


def _standings(screen: Screen, found: Evaluation) -> None:
    if len(found.predictors) < 2:
        return
    screen.line()
    screen.table(
        ("place", "predictor", "median %", "tables", "counted"),
        [
            (s.place, s.predictor, number(s.median_ape), s.tables, s.counted)
            for s in leaderboard(found)
        ],
        "on the tables where every predictor answered at least 90 %",
    )


def _reasons(screen: Screen, total: Score) -> None:
    predictor = total.predictor
    screen.items(f"declined by {predictor}", _lines(total.declined))
    screen.items("not comparable", _lines(total.not_comparable))
    if total.floor_clamped:
        screen.line(f"{predictor}: {total.floor_clamped:,} forecasts raised to their floor")
    if total.floor_violations or total.silent:
        screen.line(
            f"{predictor} breaks its contract: {total.floor_violations} forecasts below their"
            f" floor, {total.silent} without answer or reason"
        )


def _lines(reasons: Mapping[str, int]) -> list[str]:
    """Return reasons with their counts, most frequent first; the rare ones are added up."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    lines = [f"{counted(n, 'row')}: {reason}" for reason, n in ranked[:_MOST_REASONS]]
    rest = ranked[_MOST_REASONS:]
    if rest:
        lines.append(
            f"{counted(sum(n for _, n in rest), 'row')}: {counted(len(rest), 'rarer reason')} (see --json)"
        )
    return lines


_NAMED: tuple[Column, ...] = (
    ("predictor", lambda s: s.predictor),
    ("table", lambda s: s.table),
    ("group", lambda s: s.group),
)
_TIME: tuple[Column, ...] = (
    *_NAMED,
    ("judged by", lambda s: "" if set(s.quantities) <= {"step"} else quantities(s)),
    ("rows", lambda s: f"{s.comparable:,}"),
    ("answered", answered),
    ("error %", lambda s: number(s.mape)),
    ("median %", lambda s: number(s.median_ape)),
    ("p90 %", lambda s: number(s.p90_ape)),
    ("bias %", bias_percent),
    ("rank", lambda s: number(s.tau, "{:.2f}")),
    ("of plans", lambda s: number(s.tau_plans, "{:.2f}")),
    ("inside 5-95 %", inside),
    ("width", lambda s: number(s.width, "{:.2f}x")),
    ("mean width", lambda s: number(s.width_mean, "{:.2f}x")),
    ("counts", lambda s: "" if s.counts else "no"),
)
_STOPPED_TITLE = (
    "runs that were stopped: their time is a lower bound, an answer below it is wrong; none is in a"
    " figure above"
)
_DETECTION: tuple[Column, ...] = (
    ("out of memory", lambda s: f"{s.oom_happened:,} of {s.oom_rows:,}" if s.oom_rows else ""),
    ("precision", lambda s: number(s.oom_precision, "{:.2f}")),
    ("recall", lambda s: number(s.oom_recall, "{:.2f}")),
    ("F1", lambda s: number(s.oom_f1, "{:.2f}")),
    ("F1 runs at all", lambda s: number(s.refused_f1, "{:.2f}") if s.refused_rows else ""),
)
_OOM: tuple[Column, ...] = (*_NAMED[:2], ("workload", lambda s: s.group), *_DETECTION)
_PLAN: tuple[Column, ...] = (
    *_NAMED,
    ("peaks", lambda s: f"{s.memory_rows:,}" if s.memory_rows else ""),
    ("memory error %", lambda s: number(s.memory_median_ape)),
    *_DETECTION,
    ("jobs", lambda s: f"{s.regret_groups:,}" if s.regret_groups else ""),
    ("picked", lambda s: f"{s.regret_picked:,}" if s.regret_groups else ""),
    ("crashed", lambda s: f"{s.regret_crashed:,}" if s.regret_groups else ""),
    ("regret median", lambda s: percent(s.regret_median)),
    ("mean", lambda s: percent(s.regret_mean)),
    ("worst", lambda s: percent(s.regret_worst)),
)
_DISTANCE: tuple[Column, ...] = (
    *_NAMED[:2],
    ("distance", lambda s: s.group),
    *(column for column in _TIME if column[0] in ("rows", "median %", "inside 5-95 %", "width",
                                                   "mean width")),
)  # fmt: skip


SHOTS = ("random", "cheapest")  # those of forerun.evaluate, which is not loaded for help


@click.command(cls=SeveralFiles)
@judged_runs_option
@click.option(
    "--fit", "fit_files", type=FILE, multiple=True, metavar="OTHER.csv [...]",
    help="Further runs to learn from, never judged: files, or a folder, less the judged files.",
)  # fmt: skip
@click.option(
    "--predictors", type=NAMES, metavar="NAME[:OPTION=VALUE],...",
    help="Names with commas, with options where wanted; see `forerun predictors`.",
)  # fmt: skip
@system_option(several=True)
@click.option(
    "--split", default="whole", show_default=True,
    help="whole (all judged, none teach), random, holdout (a random fifth), leave-out:COLUMN, from:COLUMN=VALUE,... (these"
    " teach, all others are judged), above:COLUMN=VALUE[..END], larger-clusters, larger-batches"
    " (the upper half of each workload's), few-shot:COLUMN=K (a value is left out, less K runs that"
    " teach; few-shot:cluster/workload=3 leaves a cluster out, less 3 runs of each workload),"
    " leave-one-out:COLUMN, interpolation:COLUMN (every 2nd sorted value is judged, from the first, so"
    " that the smallest is always judged, which is extrapolation; =every3, or =VALUE,... to name"
    " them), between:COLUMN (every 2nd value, never the smallest or largest) or"
    " extrapolation:COLUMN=VALUE,... (judged where any column is above its value; half for the middle"
    " of its distinct values). COLUMN may be workers, batch or resources too.",
)  # fmt: skip
@click.option(
    "--shots", type=click.Choice(SHOTS),
    help="Which runs few-shot gives: drawn by the seed, or those that cost least (price x time where"
    " all rows state a price, else device-seconds). Exact repeats of a shot are never judged.",
)  # fmt: skip
@click.option(
    "--shots-where", "shot_conditions", multiple=True, metavar="CONDITION",
    help="Only such rows may be shots, e.g. nodes=1 (may be repeated).",
)  # fmt: skip
@click.option(
    "--folds", type=click.IntRange(2), metavar="N",
    help="Of random (5), leave-out and few-shot (10): more values than folds share them;"
    " leave-one-out has a fold for each.",
)  # fmt: skip
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only these rows of --runs, e.g. 'tp<=8' or device=t4,v100 (may be repeated).",
)  # fmt: skip
@click.option(
    "--faster-half", type=NAMES, metavar="COLUMN,...",
    help="Of rows that share these columns, teach and judge the times of the faster half alone"
    " (by what was measured).",
)  # fmt: skip
@click.option(
    "--start", type=click.Choice(STARTS),
    help="What predictors know before they are fitted: shipped, constants that published runs"
    " were used to fit, or priors. Default: shipped, unless a judged row is among those runs.",
)  # fmt: skip
@click.option("--group-by", default="", metavar="COLUMN", help="Scores for each of its values too.")
@fold_seed_option
@click.option(
    "--page", "--markdown", "page", type=FILE, metavar="FILE.md", help="Write the accuracy page."
)
@click.option("--commit", default="", help="The source's commit, for the accuracy page.")
@catalog_option
@json_option
def evaluate(
    runs: tuple[Path, ...], fit_files: tuple[Path, ...], page: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """How well predictors foresee measured runs: error, rank, coverage, share answered.

    Every table is divided by itself: a predictor learns from one side (and from all --fit
    tables, less the rows that tell of a judged measurement) and is judged on the other. With the
    split `whole` and no --fit it answers as it is.
    """
    from forerun.evaluate import evaluate as judge
    from forerun.evaluate import parse_condition, parse_split, starting, with_shots

    judged = files_in(runs, "--runs")
    training_runs = _training_runs(judged, fit_files)
    writable(page, "writing", (".md",), (*judged, *training_runs, *options["catalog_files"]))
    settings = load_settings()
    split = with_shots(
        parse_split(options["split"]), options["shots"] or "", options["shot_conditions"]
    )
    conditions = [parse_condition(text) for text in options["conditions"]]
    catalog = catalog_of((*settings.catalog_files, *options["catalog_files"]))
    runs_judged, fit_runs = (
        runs_by_table(judged, catalog, conditions),
        runs_by_table(training_runs, catalog),
    )
    predictors, start = starting(
        predictors_of(
            options["predictors"] or (), options["systems"], (settings.text("predictor"),)
        ),
        options["start"] or "",
        runs_judged,
    )
    found = judge(
        runs_judged, predictors, split, fit_runs,
        group_by=options["group_by"], seed=options["seed"], parts=options["folds"] or 0,
        faster_half=options["faster_half"] or (), start=start,
        sound=lambda: report_runs((*runs_judged.values(), *fit_runs.values())),
    )  # fmt: skip
    if page is not None:
        _write_page(page, found, _command(found, (runs, fit_files), options, page), options)
    if as_json:
        click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": "evaluation", **found.as_dict()}))
    else:
        show(Screen(settings), found)
    if not found.answered and not any(s.censored_answered for s in found.totals()):
        raise UnsatisfiedError(
            f"evaluating {', '.join(found.predictors)}", "no row was answered",
            "see the reasons above; mend the rows, or name another predictor",
        )  # fmt: skip


def catalog_of(files: Sequence[str | Path]) -> Any:
    """Return the catalogue with these files. Raises RequestError where one cannot be read."""
    from forerun.catalog import load_catalog

    return load_catalog(files)


def runs_by_table(
    files: Sequence[Path], catalog: Any, conditions: Sequence[Condition] = ()
) -> dict[str, Runs]:
    """Return runs by the stem of their file. Raises RequestError where two have one."""
    from forerun.advisor.given_runs import runs_of
    from forerun.evaluate import rows_where

    found: dict[str, Runs] = {}
    for path in files:
        if path.stem in found:
            raise RequestError(
                f"evaluating {path}", f"another table is named {path.stem} too", "rename one file"
            )
        found[path.stem] = rows_where(runs_of([path], catalog), conditions, path.stem)
    return found


def _training_runs(judged: Sequence[Path], fit_files: Sequence[Path]) -> list[Path]:
    """Return the files to learn from; of a folder all but the judged ones.

    Raises:
        RequestError: a judged file is named: its rows would be their own training runs.
    """
    tables = {path.resolve() for path in judged}
    both = tables & {path.resolve() for path in fit_files}
    if both:
        raise RequestError(
            f"--fit {min(both).name}", "it is judged too, so its rows would be their own teachers",
            "name it once, and let --split divide it",
        )  # fmt: skip
    kept = [p for p in files_in(fit_files, "--fit") if p.resolve() not in tables]
    if fit_files and not kept:
        raise RequestError(
            f"--fit {fit_files[0].name}", "it holds no table but the judged ones",
            "name other runs, or let --split divide the table",
        )  # fmt: skip
    return kept


def _command(
    found: Evaluation, files: Sequence[Sequence[Path]], options: dict[str, Any], page: Path
) -> str:
    """Return the command line that writes the page again."""
    # Files by their last name only: a page must not tell where somebody keeps them.
    words = [
        " ".join((option, *(file.name for file in group)))
        for option, group in zip(("--runs", "--fit"), files, strict=True)
        if group
    ]
    words += [f"--predictors {','.join(found.predictors)}", f"--split {quote(found.split)}"]
    words += [f"--where '{text}'" for text in options["conditions"]]
    for name in ("folds", "start", "group_by"):
        if options[name]:
            words.append(f"--{name.replace('_', '-')} {options[name]}")
    if found.faster_half:
        words.append(f"--faster-half {','.join(found.faster_half)}")
    return f"forerun evaluate {' '.join(words)} --seed {found.seed} --page {page.name}"


def _write_page(path: Path, found: Evaluation, command: str, options: dict[str, Any]) -> None:
    from importlib.metadata import version

    from forerun.evaluate import accuracy_page
    from forerun.tables.files import write_whole

    text = accuracy_page(
        found, command=command, version=version("forerun"), commit=options["commit"]
    )
    write_whole(path, lambda name: _write(name, text))


def _write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
