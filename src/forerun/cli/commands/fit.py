"""forerun fit: teach a predictor measured runs, and save it as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forerun.cli.kinds import FILE, writable
from forerun.cli.options import settings_of
from forerun.cli.several import SeveralFiles, files_in
from forerun.errors import RequestError


@click.command(cls=SeveralFiles)
@click.option(
    "--runs", type=FILE, multiple=True, required=True, metavar="RUNS.csv [...]",
    help="Measured runs: files, or a folder of them.",
)  # fmt: skip
@click.option("--predictor", help="A name from `forerun predictors`.")
@click.option("--out", type=FILE, required=True, metavar="MODEL.json", help="The file to write.")
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
@click.option(
    "--catalog", "catalog_files", type=FILE, multiple=True, metavar="FILE",
    help="Your own devices, machines and prices (may be repeated).",
)  # fmt: skip
def fit(runs: tuple[Path, ...], out: Path, force: bool, **options: Any) -> None:
    """Teach a predictor measured runs, and save it for `--model`."""
    settings = settings_of(options)
    tables = files_in(runs, "--runs")
    writable(out, "writing", (".json",), (*tables, *options["catalog_files"]))
    if out.exists() and not force:
        raise RequestError(
            f"writing {out}", "the file is there already", "name another, or give --force"
        )
    from forerun.advisor import Advisor
    from forerun.advisor.models import model_text
    from forerun.tables.files import write_whole

    files = (*settings.catalog_files, *map(str, options["catalog_files"]))
    advisor = Advisor(files, settings.text("predictor")).fit(*tables)
    text = model_text(advisor.predictor)
    write_whole(out, lambda name: _write(name, text))
    click.echo(f"{advisor.predictor.name} fitted on {len(tables)} table(s), written to {out}")


def _write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
