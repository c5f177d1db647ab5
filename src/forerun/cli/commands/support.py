"""forerun support: what is covered for a workload, before anything runs."""

from __future__ import annotations

from typing import Any

import click

from forerun import wire
from forerun.cli import options as shared
from forerun.cli.inputs import SeveralTables
from forerun.cli.showing import Screen


@click.command(cls=SeveralTables)
@click.argument("workload", shell_complete=shared.complete_workload)
@shared.workload_options
@shared.predictor_options
@shared.json_option
def support(workload: str, as_json: bool, **options: Any) -> None:
    """What is covered for a workload: which answers, which plans, and what is only bounded."""
    settings = shared.settings_of(options)
    found = shared.advisor_of(settings, options).support(workload, **shared.changes_of(options))
    if as_json:
        click.echo(wire.dumps(found.to_json()))
        return
    screen = Screen(settings)
    screen.title(found.workload)
    screen.table(("", ""), found.facts)
    screen.line()
    screen.table(("question", "covered", "remark"), found.covered)
    screen.items("notes", found.notes)
