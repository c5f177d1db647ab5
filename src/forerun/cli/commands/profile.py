"""forerun profile: measures the runs of a campaign, one after another, and keeps every one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun import wire
from forerun.cli.interrupting import orderly
from forerun.cli.kinds import FILE, TABLES, writable
from forerun.cli.mistaken import check_kind
from forerun.cli.options import json_option
from forerun.cli.profiled import Bar, show_outcome, show_plan, shown_json
from forerun.cli.screen import Screen
from forerun.cli.waiting import waiting
from forerun.errors import RequestError
from forerun.settings import load_settings

if TYPE_CHECKING:
    from forerun.advisor.measuring import CampaignPlan
    from forerun.measure.hosts import Host
    from forerun.measure.lab import Lab
    from forerun.measure.runner import TaskRunner

RUNNERS = ("local", "ray")


@click.command()
@click.argument("campaign", type=FILE, metavar="CAMPAIGN.yaml")
@click.option(
    "--on", type=click.Choice(RUNNERS),
    help="Who carries runs out: local processes, or Ray Train (the file's `runner`, else local).",
)  # fmt: skip
@click.option("--lab", "lab_name", metavar="LAB", help="On the hosts of a lab that is up.")
@click.option(
    "--address", metavar="ADDRESS",
    help="With --on ray: the cluster's address (auto: the one of this machine; local: a new one;"
    " http://HEAD:8265: a dashboard, by `ray job submit`).",
)  # fmt: skip
@click.option("--hold", is_flag=True, help="With Ray here: hold workers to their cpus_per_worker.")
@click.option("--store", "where", metavar="STORE", help="A file or URL (the setting `store`).")
@click.option("--out", type=FILE, metavar="RUNS.csv", help="Write the campaign's runs as a table.")
@click.option(
    "--catalog", "catalog_files", type=FILE, multiple=True, metavar="FILE",
    help="Your own devices, e.g. what `forerun probe` wrote (may be repeated).",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be run, and its price.")
@click.option("--yes", is_flag=True, help="Begin without asking, whatever it costs.")
@click.option("--no-retry", is_flag=True, help="Leave runs that failed as they are.")
@json_option
@orderly("stopped; every finished run is kept, and the same command goes on from here")
def profile(
    campaign: Path, on: str | None, lab_name: str | None, address: str | None, hold: bool,
    where: str | None, out: Path | None, catalog_files: Sequence[Path], dry_run: bool, yes: bool, no_retry: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure the runs of a campaign, and keep every one as soon as it has ended.

    What it will take is said first: time, and dollars where a price is given. A campaign that was
    interrupted goes on where it stopped, run by run; finished runs are never made again.

    CAMPAIGN.yaml names workloads (package.module:callable, or a script) and what varies: workers,
    global_batch, dataset_size, cpus_per_worker, precision, settings. See docs/campaigns.md.
    """
    from forerun.advisor import Advisor
    from forerun.advisor.measuring import Profiling
    from forerun.measure.campaign_file import read_campaign
    from forerun.store import open_store

    settings = load_settings({})
    check_kind(campaign, f"campaign {str(campaign)!r}", "a campaign", "campaign")
    writable(out, "--out", TABLES, [campaign, *catalog_files])
    asked = read_campaign(campaign)
    asked = asked.on(on or asked.runner)
    runner = _runner(asked.runner, lab_name, address, hold)
    advisor = Advisor(catalog_files=(*settings.catalog_files, *map(str, catalog_files)))
    screen = Screen(settings)
    with open_store(where or "") as store:
        with waiting(_looking(asked.runner, runner)):
            profiling = Profiling(asked, runner, store, advisor, retry=not no_retry)
            planned = profiling.planned()
        if not as_json:
            show_plan(screen, planned, store.where)
        if dry_run:
            if as_json:
                click.echo(wire.dumps(shown_json(planned, None, None)))
            return
        _agreed(planned, yes)
        outcome = None
        if planned.left:
            with Bar(len(asked.points), quiet=as_json) as bar:
                runner.tell = bar.doing
                outcome = profiling.carried_out(bar.told)
        table = profiling.results()
        if out is not None:
            from forerun.tables import write_table

            write_table(table, out)
        if as_json:
            click.echo(wire.dumps(shown_json(planned, outcome, table)))
        else:
            show_outcome(screen, planned, outcome, table, out, where or "")


def _looking(name: str, runner: TaskRunner) -> str:
    """Return what is looked at before anything is run, in words."""
    if name == "ray":
        return f"looks at the modules, and at Ray {runner.where}"
    return "looks at the modules"


def _agreed(planned: CampaignPlan, yes: bool) -> None:
    """Ask before money is spent. Raises RequestError where nobody can be asked."""
    dollars = planned.outlook.most_dollars
    if not planned.left or yes or dollars <= 0:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(f"Spend up to ${dollars:,.2f}?", abort=True, err=True)
        return
    if planned.campaign.budget.dollars is None:
        raise RequestError(
            f"campaign {planned.campaign.name!r}", f"it may cost up to ${dollars:,.2f}",
            "say --yes, or give the campaign a budget in dollars",
        )  # fmt: skip


def _runner(name: str, lab_name: str | None, address: str | None, hold: bool) -> TaskRunner:
    """Return who carries runs out."""
    hosts: Sequence[Host] = ()
    if lab_name is not None:
        from forerun.measure.lab import Lab

        lab = Lab.open(lab_name)
        if name == "ray" and address is None:
            return _on_lab(lab)
        hosts = lab.hosts
    if name == "ray":
        if hosts:
            raise RequestError(
                "--lab with --address", "both say where the Ray cluster is", "leave one of them out"
            )
        from forerun.measure.ray import RayRunner

        if address is not None and address.startswith(("http://", "https://")):
            return RayRunner(submit=address, hold=hold)
        return RayRunner(address=address or "", hold=hold)
    if hold:
        raise RequestError("--hold", f"the {name} runner holds workers by itself", "leave it out")
    if address is not None:
        raise RequestError(
            "--address", "only a Ray cluster has one", "add --on ray, or leave it out"
        )
    from forerun.measure.local import LocalRunner

    return LocalRunner(hosts)


def _on_lab(lab: Lab) -> TaskRunner:
    """Return who carries runs out on a lab's Ray cluster, each worker held to its CPUs."""
    from forerun.measure.lab.raycluster import entrance, has_ray, variables
    from forerun.measure.ray import RayRunner

    if not has_ray(lab):
        raise RequestError(
            f"--on ray with lab {lab.id.name}", "no Ray cluster is on it",
            "start it with one: forerun lab up --ray",
        )  # fmt: skip
    given = variables(lab)
    return RayRunner(
        given["RAY_ADDRESS"], host=entrance(lab), environment=given, hold=True, placement="SPREAD"
    )
