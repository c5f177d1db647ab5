"""forerun fit: fit a predictor to measured runs, and save it as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import options as shared
from forerun.cli.flagging import fitted, flags_option
from forerun.cli.inputs import FILE, RUNS_OF, TABLES, SeveralFiles, files_in, writable, write_text
from forerun.cli.learned import show_experiments, show_formulas, show_learned
from forerun.cli.printing import echo
from forerun.cli.showing import Screen
from forerun.errors import RequestError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.settings import Settings


@click.command(cls=SeveralFiles)
@click.option(
    "--runs", type=FILE, multiple=True, required=True, metavar="RUNS.csv [...]",
    help=f"Measured runs: {RUNS_OF}.",
)  # fmt: skip
@shared.predictor_option
@shared.system_option()
@click.option("--out", type=FILE, required=True, metavar="MODEL.json", help="The file to write, or the model's name in a service.")  # fmt: skip
@shared.force_option
@shared.start_option
@click.option("--constants", is_flag=True, help="Print every constant, not only the first.")
@shared.map_option
@shared.own_columns_option
@flags_option
@shared.catalog_option
@shared.server_options
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
    from forerun.advisor.fit_summary import Finding
    from forerun.predictors.options import PRIORS, known_words

    tables, there = files_in(runs, "--runs"), shared.service() is not None
    if there:
        local = {**options, "flags_file": flags_file}
        found = _fitted_there(settings, local, tables, str(out), force)
    else:
        writable(out, (".json",), replace=force)
        writable(flags_file, TABLES)
        found = _fitted_here(settings, options, tables, out, flags_file, as_json)
    found |= {"tables": [str(path) for path in tables], "out": str(out)}
    if as_json:
        shared.write_json("fit", found)
        return
    screen, start = Screen(settings), known_words(found if found.get("start") else {})
    echo(
        f"{found['predictor']} fitted on {counted(len(tables), 'table')},"
        f" {'kept by the service as' if there else 'written to'} {out}" + (f" ({start})" if start else "")
    )  # fmt: skip
    prior = "prior" if found.get("start") == PRIORS else "shipped"
    show_learned(screen, [Finding.read(one) for one in found["learned"]], constants, prior)
    show_formulas(screen, found["formulas"], constants)
    show_experiments(screen, found["experiments"], constants)
    screen.items("notes", found["notes"])
    for line in found["lessons"]:
        screen.line(line)
    if gone := found["not_saved"]:
        screen.line(f"left out of {out}, as they have no JSON form: {', '.join(gone)}")


def _fitted_here(
    settings: Settings, options: dict[str, Any], tables: list[Path], out: Path, flags_file: Path | None, aside: bool
) -> dict[str, Any]:  # fmt: skip
    from forerun.advisor import Advisor
    from forerun.advisor.fit_summary import fit_json
    from forerun.advisor.given_runs import model_text

    files = (*settings.catalog_files, *map(str, options["catalog_files"]))
    before = Advisor(files, settings.text("predictor"), start=shared.start_of(settings))
    own = shared.own_columns_of(settings)
    advisor = fitted(before, tables, flags_file, aside=aside, own_columns=own)
    write_text(out, model_text(advisor.predictor, advisor.made))
    return fit_json(advisor, before)


def _fitted_there(
    settings: Settings, options: dict[str, Any], tables: list[Path], name: str, force: bool
) -> dict[str, Any]:  # fmt: skip
    from forerun.cli.remote import carried_out, own_of, sent_runs

    client: Any = shared.remote(settings, options, "predictor", "start", "own_columns")
    if not force and any(one["name"] == name for one in client.ask("models")["models"]):
        todo = "name another, or give --force"
        raise RequestError(f"--out {name} with a server", "it has a model of that name", todo)
    body = {"name": name, **sent_runs(tables), **own_of(settings)}
    return carried_out("fit", body, "fits there")
