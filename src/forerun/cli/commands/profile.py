"""forerun profile: measures the runs of a campaign, one after another, and keeps every one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import options as shared
from forerun.cli.inputs import FILE, TABLES, at_most_one, check_kind, writable
from forerun.cli.interrupting import orderly
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, waiting
from forerun.errors import RequestError
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.units import counted, format_dollars, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.measuring import Profiling
    from forerun.measure.campaign import Campaign, CampaignOutcome, CampaignProgress
    from forerun.measure.runner import TaskRunner
    from forerun.tables import Table

RUNNERS = ("local", "ray")
_VARIED = ("workload", "devices", "placement", "global_batch", "dataset_size", "cpus_per_worker",
           "precision", "optimizer")  # fmt: skip

EXIT_FAILED = 1  # every run that was made failed

runner_options = shared.together(
    click.option(
        "--on", type=click.Choice(RUNNERS),
        help="Who carries runs out: local processes, or Ray Train (the file's `runner`, else local).",
    ),
    click.option("--lab", "lab_name", metavar="LAB", help="On the hosts of a lab that is up."),
    click.option(
        "--address", metavar="ADDRESS",
        help="With --on ray: the cluster's address (auto: the one of this machine; local: a new one;"
        " http://HEAD:8265: a dashboard, by `ray job submit`).",
    ),
    click.option("--hold", is_flag=True, help="With Ray here: hold workers to their cpus_per_worker."),
)  # fmt: skip


@click.command()
@click.argument("campaign", type=FILE, metavar="CAMPAIGN.yaml")
@runner_options
@shared.store_option
@click.option("--out", type=FILE, metavar="RUNS.csv", help="Write the campaign's runs as a table.")
@shared.catalog_option
@click.option("--dry-run", is_flag=True, help="Only say what would be run, and its price.")
@click.option("--yes", is_flag=True, help="Begin without asking, whatever it costs.")
@click.option("--no-retry", is_flag=True, help="Leave runs that failed as they are.")
@shared.server_options
@shared.json_option
@orderly("stopped; every finished run is kept, and the same command goes on from here")
def profile(
    campaign: Path, on: str | None, lab_name: str | None, address: str | None, hold: bool,
    where: str, out: Path | None, catalog_files: Sequence[Path], dry_run: bool, yes: bool, no_retry: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure the runs of a campaign, and keep every one as soon as it has ended.

    What it will take is printed first: time, and dollars where a price is given. A campaign that was
    interrupted goes on where it stopped, run by run; finished runs are never made again.

    CAMPAIGN.yaml names workloads (package.module:callable, or a script) and what varies: workers,
    global_batch, dataset_size, cpus_per_worker, precision, settings. See docs/campaigns.md. Exit code 1
    where every run that was made failed.
    """
    from forerun.advisor import Advisor
    from forerun.advisor.measuring import Profiling, campaign_json, results_of
    from forerun.client import answered_rows
    from forerun.measure.campaign_file import read_campaign
    from forerun.tables import write_table

    settings = load_settings({})
    check_kind(campaign, f"campaign {str(campaign)!r}", "a campaign", "campaign")
    writable(out, TABLES)
    asked = read_campaign(campaign)
    asked = replace(asked, runner=on or asked.runner)
    screen, there = Screen(settings), shared.service() is not None
    if there:
        from forerun.cli.remote import carried_out

        shared.remote(settings, {"lab_name": lab_name, "address": address, "hold": hold, "where": where, "catalog_files": catalog_files, "dry_run": dry_run})  # fmt: skip
        own = {"name": asked.name, "runner": asked.runner, "yes": yes, "retry": not no_retry}
        body = carried_out("campaign", {**asked.spec, **own}, f"runs {asked.name} there")
        table = results_of(asked, answered_rows(body["runs"]))
        if not as_json:
            _show_plan(screen, asked, body, "the store of the service")
    else:
        runner = runner_of(asked.runner, lab_name, address, hold)
        advisor = Advisor(catalog_files=(*settings.catalog_files, *map(str, catalog_files)))
        with open_store(where) as store:
            with waiting(f"looks at the modules and at the {asked.runner} runner {runner.where}"):
                profiling = Profiling(asked, runner, store, advisor, retry=not no_retry)
                planned = profiling.planned()
            body = campaign_json(planned)
            if not as_json:
                _show_plan(screen, asked, body, store.where)
            if dry_run:
                return shared.write_json("profile", body) if as_json else None
            if planned.left and not yes:
                limit = asked.budget.dollars
                confirm_dollars(f"campaign {asked.name!r}", planned.outlook.most_dollars, limit)
            outcome = _profiled_here(profiling, as_json) if planned.left else None
            table = profiling.results()
            body = campaign_json(planned, outcome, table)
    if out is not None:
        write_table(table, out)
    if as_json:
        shared.write_json("profile", body)
    else:
        _show_outcome(screen, body, table, out, source_of(asked.name, out, "" if there else where))
    if set(body.get("made", ())) == {"failed"}:
        click.get_current_context().exit(EXIT_FAILED)
    return None


def _profiled_here(profiling: Profiling, quiet: bool) -> CampaignOutcome:
    with waiting("starts workers", plain=not quiet) as doing:
        profiling.runner.tell = doing
        return profiling.carried_out(lambda one: None if quiet else echo(_words(one), err=True))


def confirm_dollars(asked: str, dollars: float, limit: float | None) -> None:
    """Ask on a terminal before dollars are spent; elsewhere raise RequestError where no limit is given."""
    if dollars <= 0:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(f"Spend up to ${dollars:,.2f}?", abort=True, err=True)
    elif limit is None:
        raise RequestError(asked, f"it may cost up to ${dollars:,.2f}", "add --yes, or give a budget in dollars")  # fmt: skip


def runner_of(name: str, lab_name: str | None, address: str | None, hold: bool) -> TaskRunner:
    """Return the runner that the options name. Raises RequestError where they do not go together."""
    from forerun.measure.lab import Lab

    lab = None if lab_name is None else Lab.open(lab_name)
    if name != "ray":
        from forerun.measure.local import LocalRunner

        for option, given, found in (
            ("--hold", hold, f"the {name} runner holds workers by itself"),
            ("--address", address is not None, "only a Ray cluster has one"),
        ):
            if given:
                raise RequestError(option, found, "add --on ray, or leave it out")
        return LocalRunner(() if lab is None else lab.hosts)
    from forerun.measure.ray import RayRunner

    at_most_one("both say where the Ray cluster is", {"--lab": lab, "--address": address})
    if lab is None:
        if address is not None and address.startswith(("http://", "https://")):
            return RayRunner(submit=address, hold=hold)
        return RayRunner(address=address or "", hold=hold)
    cluster = lab.ray()
    if not cluster.pids():
        raise RequestError(
            f"--on ray with lab {lab.id.name}", "no Ray cluster is on it",
            "start it with one: forerun lab up --ray",
        )  # fmt: skip
    return RayRunner(cluster.address, host=cluster.head, environment=cluster.environment, hold=True, placement="SPREAD")  # fmt: skip


def _show_plan(screen: Screen, campaign: Campaign, found: Mapping[str, Any], where: str) -> None:
    ahead, spent, points = found["outlook"], found["spent"], found["points"]
    done = found.get("before", points - found["left"])
    screen.title(f"campaign {campaign.name}: {counted(points, 'run')}")
    if done:
        screen.line(f"done    {counted(done, 'run')} already, in {where}")
    if done < points:
        how = f"as forecast for {ahead['foreseen']} of them" if ahead["foreseen"] else "a guess"
        price = "none (price_usd_per_worker_hour is not given)"
        if ahead["most_dollars"]:
            most = format_dollars(ahead["most_dollars"])
            price = f"about {format_dollars(ahead['dollars'])}, at most {most}"
        budget = [
            f"{write(gone)} of {write(most)} spent"
            for most, gone, write in (
                (campaign.budget.seconds, spent["seconds"], format_seconds),
                (campaign.budget.dollars, spent["dollars"], format_dollars),
            )
            if most
        ]
        runs, starts = counted(ahead["runs"], "run"), counted(ahead["starts"], "start")
        screen.labelled([
            ("left", f"{runs} in {starts} of workers on {campaign.runner}"),
            ("time", f"about {format_seconds(ahead['seconds'])} ({how}), at most"
                     f" {format_seconds(ahead['most_seconds'])}"),
            ("price", price),
            ("budget", "; ".join(budget)),
        ])  # fmt: skip
    screen.items("notes", found["notes"])


def _words(one: CampaignProgress) -> str:
    found = one.measurement
    words = f"{format_seconds(found.step_seconds) if found.step_seconds else 'no step time'} a step"
    if found.status != "ok":
        words = f"{found.status}: {found.reason}"
    elif found.interval is not None and found.step_seconds:
        low, high = found.interval
        words += f" ± {50 * (high - low) / found.step_seconds:.1f} %"
    left = format_seconds(one.seconds_left) if one.seconds_left else "nothing"
    return f"{one.done} of {one.total}  {one.point}: {words}; {left} left"


def _show_outcome(screen: Screen, found: Mapping[str, Any], table: Table, out: Path | None, source: str) -> None:  # fmt: skip
    if len(table):
        from forerun.measure.campaign import join_repeats

        rows = join_repeats(table)
        names = [
            name for name in (*_VARIED, *rows.own.factors)
            if name in rows and (name in _VARIED[:2] or len(set(rows.texts(name))) > 1)
        ]  # fmt: skip
        figures = (rows.numbers(name) for name in ("step_time_s", "repeats", "std_s", "samples_per_s", "sync_time_s"))  # fmt: skip
        cells = [
            (*(rows.texts(name)[i] for name in names), format_seconds(step) if step > 0 else "-",
             f"{repeats:.0f}", f"{100 * std / step:.1f} %" if std >= 0 and step > 0 else "-",
             f"{rate:,.1f}" if rate > 0 else "-", format_seconds(sync) if sync > 0 else "-",
             rows.texts("status")[i] or "ok")
            for i, (step, repeats, std, rate, sync) in enumerate(zip(*figures, strict=True))
        ]  # fmt: skip
        heads = (*(name.replace("_", " ") for name in names), "step", "repeats", "spread", "samples/s",
                 "exposed sync", "status")  # fmt: skip
        screen.table(heads, cells)
    screen.items("warnings", found["warnings"])
    if "made" in found:
        made = ", ".join(f"{count} {status}" for status, count in sorted(found["made"].items()))
        unsure = sum("wider than requested" in note for note in table.texts("note"))
        screen.labelled([
            ("made", f"{made or 'no run'} in {format_seconds(max(found['seconds'], 1e-3))}"),
            ("unsure", f"{unsure} of {len(table)} runs ended before their step time was as sure as"
                       " asked; their notes say why (forerun runs show KEY)" if unsure else ""),
            ("stopped", found["stopped"]),
            ("left", f"{counted(found['left'], 'run')}; the same command goes on from here"
                     if found["left"] else ""),
        ])  # fmt: skip
        screen.items("refused", dict.fromkeys(found["refused"].values()))
    fit = f"forerun fit --runs {source} --predictor auto --out MODEL.json"
    ended = set(table.texts("status").tolist()) - {"failed"}
    screen.labelled([("wrote", str(out or "")), ("next", fit if ended else "")])


def source_of(campaign: str, out: Path | None, store: str) -> str:
    """Return what names the campaign's runs for `--runs`, as a shell takes it."""
    if out is None and store and not Path(store).suffix:
        return "RUNS.csv (with --out RUNS.csv)"  # a database on a server
    return shlex.quote(str(out or store or f"store:campaign={campaign}"))
