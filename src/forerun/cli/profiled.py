"""Profiled: what a campaign will take, how far it is, and what it told, on the screen or as JSON."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.screen import Screen
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

    def told(self, one: CampaignProgress) -> None:
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
