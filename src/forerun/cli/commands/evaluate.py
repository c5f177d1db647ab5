"""forerun evaluate: how well predictors foresee measured runs, split so that none is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.kinds import FILE, NAMES, writable
from forerun.cli.options import json_option
from forerun.cli.screen import Screen
from forerun.cli.several import SeveralFiles, files_in
from forerun.errors import RequestError, UnsatisfiedError
from forerun.settings import Settings, load_settings

if TYPE_CHECKING:
    from forerun.evaluate import Evaluation, Score
    from forerun.tables import Runs

_HEADERS = ("predictor", "table", "group", "rows", "answered", "error %", "median %", "p90 %",
            "bias", "rank", "inside 5-95 %", "memory error %", "counts")  # fmt: skip
_MOST_REASONS = 12


@click.command(cls=SeveralFiles)
@click.option(
    "--runs", type=FILE, multiple=True, required=True, metavar="RUNS.csv [...]",
    help="Measured runs to judge on: files, or a folder of them.",
)  # fmt: skip
@click.option(
    "--fit", "fit_files", type=FILE, multiple=True, metavar="OTHER.csv [...]",
    help="Further runs to learn from, never judged.",
)  # fmt: skip
@click.option("--predictors", type=NAMES, help="Names with commas; see `forerun predictors`.")
@click.option(
    "--split", default="whole", show_default=True,
    help="whole (all judged, none teach), random, leave-out:COLUMN, above:COLUMN=VALUE or"
    " few-shot:COLUMN=K.",
)  # fmt: skip
@click.option("--group-by", default="", metavar="COLUMN", help="Scores for each of its values too.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the split.")
@click.option(
    "--page", "--markdown", "page", type=FILE, metavar="FILE.md", help="Write the accuracy page."
)
@click.option("--commit", default="", help="The source's commit, for the accuracy page.")
@click.option(
    "--catalog", "catalog_files", type=FILE, multiple=True, metavar="FILE",
    help="Your own devices, machines and prices (may be repeated).",
)  # fmt: skip
@json_option
def evaluate(
    runs: tuple[Path, ...], fit_files: tuple[Path, ...], page: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """How well predictors foresee measured runs: error, rank, coverage, share answered.

    Every table is divided by itself: a predictor learns from one side (and from all --fit
    tables) and is judged on the other. With the split `whole` and no --fit it answers as it is.
    """
    from forerun.evaluate import evaluate as judge
    from forerun.evaluate import parse_split

    judged, teachers = files_in(runs, "--runs"), files_in(fit_files, "--fit")
    writable(page, "writing", (".md",), (*judged, *teachers, *options["catalog_files"]))
    settings = load_settings()
    split = parse_split(options["split"])
    predictors = _predictors(settings, options["predictors"])
    catalog = _catalog(settings, options["catalog_files"])
    _keep_apart(judged, teachers)
    found = judge(
        _runs(judged, catalog), predictors, split, _runs(teachers, catalog),
        group_by=options["group_by"], seed=options["seed"],
    )  # fmt: skip
    if page is not None:
        _write_page(page, found, (runs, fit_files), options)
    if as_json:
        click.echo(wire.dumps({"schema": wire.SCHEMA, "kind": "evaluation", **found.as_dict()}))
    else:
        _show(Screen(settings), found)
    if not found.answered:
        raise UnsatisfiedError(
            f"evaluating {', '.join(found.predictors)}", "no row was answered",
            "see the reasons above; mend the rows, or name another predictor",
        )  # fmt: skip


def _predictors(settings: Settings, names: Sequence[str] | None) -> list[Any]:
    from forerun.advisor.models import predictor_of

    return [predictor_of(name) for name in names or (settings.text("predictor"),)]


def _catalog(settings: Settings, files: tuple[Path, ...]) -> Any:
    from forerun.catalog import load_catalog

    return load_catalog((*settings.catalog_files, *files))


def _runs(files: Sequence[Path], catalog: Any) -> dict[str, Runs]:
    """Return runs by the stem of their file. Raises RequestError where two have one."""
    from forerun.advisor.models import runs_of

    found: dict[str, Runs] = {}
    for path in files:
        if path.stem in found:
            raise RequestError(
                f"evaluating {path}", f"another table is named {path.stem} too", "rename one file"
            )
        found[path.stem] = runs_of([path], catalog)
    return found


def _keep_apart(judged: Sequence[Path], teachers: Sequence[Path]) -> None:
    """Refuse a file on both sides: its rows would be their own teachers."""
    both = {path.resolve() for path in judged} & {path.resolve() for path in teachers}
    if both:
        raise RequestError(
            f"--fit {min(both).name}", "it is judged too, so its rows would be their own teachers",
            "name it once, and let --split divide it",
        )  # fmt: skip


def _show(screen: Screen, found: Evaluation) -> None:
    from forerun.evaluate import leaderboard

    screen.table(_HEADERS, map(_row, found.scores), f"split {found.split}")
    if len(found.predictors) > 1:
        screen.line()
        screen.table(
            ("place", "predictor", "median %", "tables", "counted"),
            [
                (s.place, s.predictor, _number(s.median_ape), s.tables, s.counted)
                for s in leaderboard(found)
            ],
            "on the tables where every predictor answered at least 90 %",
        )
    for predictor in found.predictors:
        total = found.of(predictor)
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
    counted = sorted(reasons.items(), key=lambda item: -item[1])
    lines = [f"{n:,} rows: {reason}" for reason, n in counted[:_MOST_REASONS]]
    rest = counted[_MOST_REASONS:]
    if rest:
        lines.append(f"{sum(n for _, n in rest):,} rows: {len(rest)} rarer reasons (see --json)")
    return lines


def _row(score: Score) -> tuple[str, ...]:
    return (
        score.predictor,
        score.table,
        score.group,
        str(score.rows),
        _number(score.share_answered * 100, "{:.0f} %"),
        _number(score.mape),
        _number(score.median_ape),
        _number(score.p90_ape),
        _number(score.bias_log_ratio, "{:+.2f}"),
        _number(score.tau, "{:.2f}"),
        _number(score.coverage * 100, "{:.0f} %"),
        _number(score.memory_median_ape),
        "yes" if score.counts else "no",
    )


def _number(value: float, form: str = "{:.1f}") -> str:
    return form.format(value) if math.isfinite(value) else ""


def _write_page(
    path: Path, found: Evaluation, files: Sequence[Sequence[Path]], options: dict[str, Any]
) -> None:
    from importlib.metadata import version

    from forerun.evaluate import accuracy_page
    from forerun.tables.files import write_whole

    # Files by their last name only: a page must not tell where somebody keeps them.
    named = " ".join(
        " ".join((option, *(file.name for file in group)))
        for option, group in zip(("--runs", "--fit"), files, strict=True)
        if group
    )
    command = (
        f"forerun evaluate {named} --predictors {','.join(found.predictors)}"
        f" --split {found.split} --seed {options['seed']} --page {path.name}"
    )
    text = accuracy_page(
        found, command=command, version=version("forerun"), commit=options["commit"]
    )
    write_whole(path, lambda name: _write(name, text))


def _write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
