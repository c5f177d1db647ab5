"""forerun support: what is covered for a workload, before anything runs."""

from __future__ import annotations

from typing import Any

import click

from forerun import wire
from forerun.cli.inputs import SeveralTables
from forerun.cli.options import (
    advisor_of,
    changes_of,
    complete_workload,
    json_option,
    predictor_options,
    settings_of,
    workload_options,
)
from forerun.cli.screen import Screen


@click.command(cls=SeveralTables)
@click.argument("workload", shell_complete=complete_workload)
@workload_options
@predictor_options
@json_option
def support(workload: str, as_json: bool, **options: Any) -> None:
    """What is covered for a workload: which answers, which plans, and what is only bounded."""
    settings = settings_of(options)
    found = advisor_of(settings, options).support(workload, **changes_of(options))
    if as_json:
        click.echo(wire.dumps(found.to_json()))
        return
    screen = Screen(settings)
    screen.title(found.workload)
    screen.table(("", ""), found.facts)
    screen.line()
    screen.table(("question", "covered", "remark"), found.covered)
    screen.items("notes", found.notes)
