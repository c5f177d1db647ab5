"""forerun profile: measures the runs of a campaign, one after another, and keeps every one.

Profiled: what a campaign will take, how far it is, and what it told, on the screen or as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun import wire
from forerun.cli.inputs import FILE, TABLES, check_kind, writable
from forerun.cli.interrupting import orderly
from forerun.cli.options import json_option
from forerun.cli.screen import Screen, waiting
from forerun.errors import RequestError
from forerun.settings import load_settings

if TYPE_CHECKING:
    from forerun.advisor.measuring import CampaignPlan
    from forerun.measure.hosts import Host
    from forerun.measure.lab import Lab
    from forerun.measure.runner import TaskRunner

import shlex
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forerun.measure.campaign import HOUR, join_repeats
from forerun.tables import Table
from forerun.units import counted, format_dollars, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.measuring import CampaignPlan
    from forerun.measure.campaign import CampaignOutcome, CampaignProgress


_ROWS = 40  # configurations that the screen shows


def show_plan(screen: Screen, planned: CampaignPlan, where: str) -> None:
    """Write what is to be run and its price, before anything is run."""
    campaign, ahead = planned.campaign, planned.outlook
    done = len(campaign.points) - len(planned.left)
    screen.title(f"campaign {campaign.name}: {counted(len(campaign.points), 'run')}")
    if done:
        screen.line(f"done    {counted(done, 'run')} already, in {where}")
    if planned.left:
        how = (
            f"as foreseen for {planned.forecast} of them" if planned.forecast
            else "a guess: nobody knows these jobs yet"
        )  # fmt: skip
        screen.line(
            f"left    {counted(ahead.runs, 'run')} in {counted(ahead.starts, 'start')} of workers on"
            f" {campaign.runner}"
        )
        screen.line(
            f"time    about {format_seconds(ahead.seconds)} ({how}), at most"
            f" {format_seconds(ahead.most_seconds)}"
        )
        screen.line(f"price   {_price(planned)}")
        budget = campaign.budget
        limits = [
            *([format_seconds(budget.seconds)] if budget.seconds else []),
            *([format_dollars(budget.dollars)] if budget.dollars else []),
        ]  # fmt: skip
        if limits:
            screen.line(
                f"budget  {' and '.join(limits)} for all sittings{_spent(planned)}; no run is begun"
                " that would pass it"
            )
    screen.items("notes", planned.notes)


def _spent(planned: CampaignPlan) -> str:
    """Return what earlier sittings took of the budget, in words; "" where nothing."""
    budget, spent = planned.campaign.budget, planned.spent
    if not spent.seconds:
        return ""
    price = planned.campaign.dollars_per_worker_hour / HOUR
    parts = [
        *([format_seconds(spent.seconds)] if budget.seconds else []),
        *([format_dollars(spent.worker_seconds * price)] if budget.dollars else []),
    ]  # fmt: skip
    return f", of which {' and '.join(parts)} spent"


def _price(planned: CampaignPlan) -> str:
    ahead = planned.outlook
    if not planned.campaign.dollars_per_worker_hour:
        return "none (price_usd_per_worker_hour is not given)"
    return f"about {format_dollars(ahead.dollars)}, at most {format_dollars(ahead.most_dollars)}"


class Bar:
    """How far a campaign is: a bar with the time left on a terminal, a line a run elsewhere."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total, self._quiet = total, quiet
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            self._progress = Progress(
                SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[left]} left"),
                TextColumn("{task.description}", markup=False), console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._progress.add_task("starting", total=self._total, left="-")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def doing(self, words: str) -> None:
        """Show what is being done before a run has ended: the start of a cluster takes long."""
        if self._quiet:
            return
        if self._progress is not None:
            self._progress.update(self._task, description=words)
        else:
            click.echo(words, err=True)

    def progressed(self, one: CampaignProgress) -> None:
        """Show one run that has ended."""
        if self._quiet:
            return
        left = format_seconds(one.seconds_left) if one.seconds_left else "nothing"
        if self._progress is not None:
            self._progress.update(
                self._task, completed=one.done, description=_words(one), left=left
            )
            if one.measurement.status != "ok":
                self._progress.console.print(_words(one), highlight=False)
            return
        click.echo(f"{one.done} of {one.total}  {_words(one)}; {left} left", err=True)


def _words(one: CampaignProgress) -> str:
    found = one.measurement
    if found.status != "ok":
        return f"{one.point}: {found.status}: {found.reason}"
    spread = ""
    if found.interval is not None and found.step_seconds:
        low, high = found.interval
        spread = f" ± {50 * (high - low) / found.step_seconds:.1f} %"
    step = format_seconds(found.step_seconds) if found.step_seconds else "no step time"
    return f"{one.point}: {step} a step{spread}"


def _notes(table: Table) -> list[str]:
    return list(map(str, table.texts("note"))) if "note" in table.columns else []


def show_outcome(
    screen: Screen, planned: CampaignPlan, outcome: CampaignOutcome | None, table: Table, out: Path | None,
    store: str = "",
) -> None:  # fmt: skip
    """Write what was measured, what is left and why, and what can be done with it.

    store: where runs are kept, as it was named; "" is the setting `store`.
    """
    if len(table):
        _show_runs(screen, join_repeats(table))
    if outcome is not None:
        made = ", ".join(f"{count} {status}" for status, count in sorted(outcome.made.items()))
        screen.line(f"made    {made or 'no run'} in {format_seconds(max(outcome.seconds, 1e-3))}")
        unsure = sum("wider than requested" in note for note in _notes(table))
        if unsure:
            screen.line(
                f"unsure  {unsure} of {len(table)} runs ended before their step time was as sure as"
                " asked; their notes say why (forerun runs show KEY)"
            )
        if outcome.stopped:
            screen.line(f"stopped {outcome.stopped}")
        if outcome.left:
            screen.line(
                f"left    {counted(outcome.left, 'run')}; the same command goes on from here"
            )
        screen.items("refused", dict.fromkeys(outcome.refused.values()))
    if out is not None:
        screen.line(f"wrote   {out}")
    if len(table):
        runs = _source(planned.campaign.name, out, store)
        screen.line(f"next    forerun fit --runs {runs} --predictor auto --out MODEL.json")


def _source(campaign: str, out: Path | None, store: str) -> str:
    """Return what names the campaign's runs for `--runs`, as a shell takes it."""
    if out is not None:
        return shlex.quote(str(out))
    if not store:
        return shlex.quote(f"store:campaign={campaign}")
    if Path(store).suffix.lower() in (".db", ".sqlite", ".sqlite3"):
        return shlex.quote(store)
    return "RUNS.csv (with --out RUNS.csv)"


def _show_runs(screen: Screen, rows: Table) -> None:
    """Write a table of configurations: the columns that vary, and what was measured."""
    names = [
        name for name in ("workload", "devices", "placement", "global_batch", "dataset_size",
                          "cpus_per_worker", "precision", "optimizer")
        if name in rows and (name in ("workload", "devices") or len(set(rows.texts(name))) > 1)
    ]  # fmt: skip
    shown = [_row(rows, names, i) for i in range(min(len(rows), _ROWS))]
    heads = [*(n.replace("_", " ") for n in names), "step", "repeats", "spread", "samples/s",
             "exposed sync", "status"]  # fmt: skip
    screen.table(heads, shown)
    if len(rows) > _ROWS:
        screen.line(f"and {len(rows) - _ROWS:,} configurations more (--out has them all)")


def _row(rows: Table, names: list[str], i: int) -> list[str]:
    step, std = rows.numbers("step_time_s")[i], rows.numbers("std_s")[i]
    sync, rate = rows.numbers("sync_time_s")[i], rows.numbers("samples_per_s")[i]
    return [
        *(str(rows.texts(name)[i]) for name in names),
        format_seconds(float(step)) if step > 0 else "-",
        f"{rows.numbers('repeats')[i]:.0f}",
        f"{100 * std / step:.1f} %" if std >= 0 and step > 0 else "-",
        f"{rate:,.1f}" if rate > 0 else "-",
        format_seconds(float(sync)) if sync > 0 else "-",
        str(rows.texts("status")[i]) or "ok",
    ]


def shown_json(
    planned: CampaignPlan, outcome: CampaignOutcome | None, table: Table | None
) -> dict[str, Any]:
    """Return the same as plain data."""
    ahead = planned.outlook
    found: dict[str, Any] = {
        "campaign": planned.campaign.name,
        "points": len(planned.campaign.points),
        "left": len(planned.left),
        "outlook": {
            "seconds": ahead.seconds, "most_seconds": ahead.most_seconds,
            "dollars": ahead.dollars, "most_dollars": ahead.most_dollars,
            "runs": ahead.runs, "starts": ahead.starts, "foreseen": planned.forecast,
        },
        "spent": {
            "seconds": planned.spent.seconds,
            "dollars": planned.spent.worker_seconds
            * planned.campaign.dollars_per_worker_hour / HOUR,
        },
        "notes": list(planned.notes),
    }  # fmt: skip
    if outcome is not None:
        found["made"] = dict(outcome.made)
        found["left"] = outcome.left
        found["refused"] = dict(outcome.refused)
        found["stopped"] = outcome.stopped
        found["seconds"] = outcome.seconds
        found["dollars"] = outcome.dollars
    if table is not None:
        found["runs"] = [table.row(i) for i in range(len(table))]
    return found


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

    What it will take is printed first: time, and dollars where a price is given. A campaign that was
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
                outcome = profiling.carried_out(bar.progressed)
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
