"""forerun recommend: which cluster, plan and batch to use, and why the others are out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.kinds import BUDGET, DURATION, FILE, NAMES, PROBABILITY, WHOLE, WHOLES, writable
from forerun.cli.options import (
    advisor_of,
    changes_of,
    json_option,
    length_of,
    length_options,
    market_options,
    predictor_options,
    preemption_of,
    settings_of,
    workload_options,
)
from forerun.cli.screen import Screen
from forerun.cli.several import SeveralTables
from forerun.cli.showing import ranged
from forerun.errors import EXIT_UNSATISFIED, ForerunError, UnsatisfiedError
from forerun.units import format_bytes, format_dollars, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forerun.domain.objective import Objective
    from forerun.domain.recommendation import Option, Recommendation, Refusal
    from forerun.settings import Settings

_ROWS = 12


@click.command(cls=SeveralTables)
@click.argument("workload")
@click.option(
    "--clusters", type=NAMES,
    help="Candidates with commas: whole clusters, or devices and instances alone, whose number"
    " of nodes is then searched. By default the cheapest instance of each kind.",
)  # fmt: skip
@click.option("--providers", type=NAMES, help="Clouds to choose from, e.g. aws,gcp; all of them.")
@click.option("--max-devices", type=WHOLE, help="The largest cluster to search by itself (512).")
@click.option("--deadline", type=DURATION, help="The run must end within, e.g. 24h or 1d12h.")
@click.option("--budget", type=BUDGET, help="The run must cost at most, in dollars, e.g. 5000.")
@click.option(
    "--minimize", type=click.Choice(["time", "cost", "knee", "energy"]), default="cost",
    show_default=True, help="What is best; knee: where more money stops buying much time.",
)  # fmt: skip
@click.option(
    "--confidence", type=PROBABILITY, help="Probability of meeting deadline and budget (0.5)."
)
@click.option("--fit-confidence", type=PROBABILITY, help="Probability of fitting in memory (0.9).")
@click.option("--global-batch", type=WHOLES, help="Samples in a step; several with commas.")
@click.option("--plan", help="Plan fields to hold fixed, e.g. tp=8,zero_stage=1.")
@click.option("--energy", is_flag=True, help="Add energy to the Pareto front, as a third axis.")
@length_options
@market_options
@workload_options
@predictor_options
@click.option("--html", type=FILE, metavar="FILE.html", help="Write a self-contained report.")
@json_option
def recommend(workload: str, html: Path | None, as_json: bool, **options: Any) -> int:
    """Which cluster, plan and batch to use under a deadline, a budget and a confidence.

    Shows the best job, the Pareto front of time and cost, and every refused group of plans with
    its reason. Exit code 3 where nothing satisfies the limits; the nearest misses are then shown.
    """
    settings = settings_of(options)
    writable(html)
    advisor = advisor_of(settings, options)
    objective = _objective(settings, options)
    energy = options.pop("energy")
    found = advisor.recommend(
        workload,
        energy=energy,
        clusters=options.pop("clusters"),
        providers=options.pop("providers"),
        max_devices=int(settings["max_devices"]),
        objective=objective,
        length=length_of(options),
        plan=options.pop("plan"),
        global_batches=options.pop("global_batch"),
        region=settings.text("region"),
        **changes_of(options),
    )
    name = found.best.job.workload.name if found.best else workload
    if html is not None:
        from forerun.cli.report import write_report

        write_report(html, name, found)
    if as_json:
        data = {"schema": wire.SCHEMA, "kind": "recommendation", "workload": name}
        click.echo(wire.dumps({**data, **wire.recommendation_to_wire(found)}))
    else:
        show_recommendation(Screen(settings), name, found)
        if html is not None:
            click.echo(f"report written to {html}")
    if found.best is None:
        from forerun.cli.group import tell

        tell(unsatisfied(name, found))
        return EXIT_UNSATISFIED
    return 0


def _objective(settings: Settings, options: dict[str, Any]) -> Objective:
    from forerun.domain.objective import Objective

    aim = options.pop("minimize")
    return Objective(
        aim=aim,
        deadline_seconds=options.pop("deadline"),
        budget_dollars=options.pop("budget"),
        confidence=settings.number("confidence"),
        fit_confidence=settings.number("fit_confidence"),
        market=settings.text("market"),
        preemption=preemption_of(options),
    )


def unsatisfied(name: str, found: Recommendation) -> ForerunError:
    """Return the error for limits that nothing satisfies, with the nearest miss."""
    objective = found.objective
    limits = []
    if objective.deadline_seconds is not None:
        limits.append(f"within {format_seconds(objective.deadline_seconds)}")
    if objective.budget_dollars is not None:
        limits.append(f"for at most {format_dollars(objective.budget_dollars)}")
    reason = f"none of {found.legal:,} legal plans qualifies ({found.fitting:,} fit in memory)"
    next_step = "relax a limit, allow more devices, or name other clusters"
    if found.near_misses:
        near = found.near_misses[0]
        short = "; ".join(near.misses.values()) or "it misses the limits"
        next_step = f"the nearest is {near.job.cluster.name} ({near.job.plan}): {short}"
    elif found.refused:
        next_step = found.refused[0].reason
    return UnsatisfiedError(f"{name} {' '.join(limits) or 'in device memory'}", reason, next_step)


def show_recommendation(screen: Screen, name: str, found: Recommendation) -> None:
    """Write a recommendation for a person."""
    if found.best is None:
        screen.title(f"{name}: nothing satisfies the limits")
        screen.table(_HEADERS, map(_row, found.near_misses[:_ROWS]), "nearest misses")
        for option in found.near_misses[:_ROWS]:
            for limit, words in option.misses.items():
                screen.line(f"  {option.job.cluster.name}: {limit}: {words}")
    else:
        best = found.best
        screen.title(f"{name}: {best.job.cluster.name}")
        screen.line(f"plan    {best.job.plan}, global batch {best.job.plan.global_batch:,}")
        screen.line(f"run     {ranged(best.estimate.run_seconds, format_seconds)}")
        screen.line(f"cost    {ranged(best.estimate.dollars, format_dollars)}")
        screen.line(f"fits    probability {best.estimate.fit_probability:.2f}")
        for limit, chance in best.chance.items():
            if limit == "fits":
                continue
            screen.line(f"chance  of meeting the {limit}: {chance:.2f}")
        screen.line()
        screen.table(_HEADERS, map(_row, found.front), "the Pareto front")
        shown = {option.job.cluster.name for option in found.front}
        others = [o for o in found.alternatives if o.job.cluster.name not in shown][:_OTHERS]
        if others:
            screen.line()
            screen.table(_HEADERS, map(_row, others), "the best on other clusters")
    screen.line()
    if found.refused:
        screen.table(_REFUSED, _refused(found.refused[:_ROWS]), "refused, the nearest first")
        screen.line()
    screen.line(
        f"{found.considered:,} plans considered, {found.legal:,} legal, {found.fitting:,} fit in"
        f" memory, {found.qualified:,} qualify; {found.seconds_taken:.2f} s"
    )
    screen.items("assumptions", found.assumptions)
    screen.line(f"prices  {found.prices_as_of}")
    screen.line("Confirm the choice by a short run before renting it for long.")


_HEADERS = ("cluster", "run", "cost", "energy", "peak memory", "fits", "batch", "plan")
_REFUSED = ("plans", "cluster", "plan", "refused because")
_OTHERS = 5


def _refused(refused: Sequence[Refusal]) -> list[tuple[str, ...]]:
    """Return rows in which each reason's count of plans stands once, beside its first example."""
    rows: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for refusal in refused:
        reason = refusal.reason.split(":")[0]
        count = "" if reason in seen else f"{refusal.count:,}"
        seen.add(reason)
        rows.append((count, refusal.cluster, refusal.plan, refusal.reason))
    return rows


def _row(option: Option) -> tuple[str, ...]:
    estimate = option.estimate
    peak = estimate.forecast.peak_bytes[1] if estimate.forecast else float("nan")
    return (
        option.job.cluster.name,
        format_seconds(estimate.run_seconds[1]),
        format_dollars(estimate.dollars[1]),
        f"{estimate.kilowatt_hours[1]:,.4g} kWh",
        format_bytes(peak),
        f"{estimate.fit_probability:.2f}",
        str(option.job.plan.global_batch),
        str(option.job.plan),
    )
