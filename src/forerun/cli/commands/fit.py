"""forerun fit: fit a predictor to measured runs, and save it as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forerun.cli import options as shared
from forerun.cli.flagging import fitted, flags_option
from forerun.cli.inputs import FILE, RUNS_OF, TABLES, SeveralFiles, files_in, writable, write_text
from forerun.cli.learned import show_experiments, show_formulas, show_learned
from forerun.cli.printing import echo
from forerun.cli.showing import Screen
from forerun.units import counted


@click.command(cls=SeveralFiles)
@click.option(
    "--runs", type=FILE, multiple=True, required=True, metavar="RUNS.csv [...]",
    help=f"Measured runs: {RUNS_OF}.",
)  # fmt: skip
@shared.predictor_option
@shared.system_option()
@click.option("--out", type=FILE, required=True, metavar="MODEL.json", help="The file to write.")
@shared.force_option
@shared.start_option
@click.option("--constants", is_flag=True, help="Print every constant, not only the first.")
@shared.map_option
@shared.own_columns_option
@flags_option
@shared.catalog_option
@shared.json_option
def fit(
    runs: tuple[Path, ...], out: Path, force: bool, constants: bool, flags_file: Path | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Fit a predictor to measured runs, and save it for `--model`.

    The default predictor is analytic: constants of physics. --predictor auto fits its candidates
    and prints which answers which kind of question, with its error. Laws are printed as formulas.

    Prints the constants on which the runs bear most: value, 5 to 95 % interval, value before the
    fit, and how many runs inform it. What the runs do not identify stays as it was, and is named.
    Prints too where the fit holds, and which further run would add most. Of regressions that compete
    it prints MAPE, RMSE and R2 on training, selection and test rows; the test rows never choose.

    Runs that look wrong (another unit, faster than physics allows, contradictory) are named with file
    and line; what is certainly wrong is left out.
    """
    settings = shared.settings_of(options)
    tables = files_in(runs, "--runs")
    writable(out, (".json",), replace=force)
    writable(flags_file, TABLES)
    from forerun.advisor import Advisor
    from forerun.advisor.fit_summary import findings, fit_json
    from forerun.advisor.given_runs import model_text
    from forerun.predictors.options import PRIORS, known_by, known_words

    files = (*settings.catalog_files, *map(str, options["catalog_files"]))
    before = Advisor(files, settings.text("predictor"), start=shared.start_of(settings))
    own = shared.own_columns_of(settings)
    advisor = fitted(before, tables, flags_file, aside=as_json, own_columns=own)
    predictor = advisor.predictor
    write_text(out, model_text(predictor, advisor.made))
    found = findings(predictor, before.predictor)
    gone, notes = list(getattr(predictor, "unsaved", ())), list(getattr(predictor, "notes", ()))
    if as_json:
        body = {"tables": [str(path) for path in tables], "out": str(out)}
        shared.write_json("fit", {**fit_json(advisor, before), **body})
        return
    start = known_words(known_by(predictor))
    echo(
        f"{predictor.name} fitted on {counted(len(tables), 'table')}, written to {out}"
        + (f" ({start})" if start else "")
    )
    blank = known_by(before.predictor).get("start") == PRIORS
    screen = Screen(settings)
    show_learned(screen, found, constants, "prior" if blank else "shipped")
    show_formulas(screen, predictor, constants)
    show_experiments(screen, predictor, constants)
    screen.items("notes", notes)
    for line in advisor.fit_summary:
        screen.line(line)
    if gone:
        screen.line(f"left out of {out}, as they have no JSON form: {', '.join(gone)}")
