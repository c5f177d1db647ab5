"""forerun recommend: which cluster, plan and batch to use, and why the others are out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from forerun import units, wire
from forerun.cli import inputs, showing
from forerun.cli import options as shared
from forerun.cli.emitting import emit_options
from forerun.cli.group import report_error
from forerun.cli.inputs import FILE, PARTS, PROBABILITY, SPEEDS, WHOLE, SeveralTables
from forerun.cli.printing import echo, visible
from forerun.cli.showing import Screen, limits_of, waiting
from forerun.domain.objective import Limits
from forerun.errors import EXIT_UNSATISFIED, ForerunError, RequestError, UnsatisfiedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forerun.advisor.provisioning import Provision, Provisioned
    from forerun.domain.recommendation import Option, Recommendation
    from forerun.settings import Settings

_ROWS, _OTHERS = 12, 5


@click.command(cls=SeveralTables)
@click.argument("workload", shell_complete=shared.complete_workload)
@shared.candidate_options
@shared.limit_options
@click.option(
    "--minimize", type=click.Choice(["time", "cost", "knee", "energy"]), default="cost",
    show_default=True, help="What is best; knee: where more money stops buying much time.",
)  # fmt: skip
@click.option(
    "--confidence", type=PROBABILITY,
    help="Probability of fitting in memory and keeping deadline and budget, all together (0.5).",
)  # fmt: skip
@click.option("--fit-confidence", type=PROBABILITY, help="Probability of fitting in memory (0.9).")
@click.option("--energy", is_flag=True, help="Add energy to the Pareto front, as a third axis.")
@shared.length_options
@shared.market_options
@shared.workload_options
@shared.predictor_options
@click.option(
    "--provision", "provisions", is_flag=True,
    help="Instead: replicas, cuts of layers over machines, threads and parameter servers for the one machine that"
    " --clusters names; --budget is then dollars an hour.",
)  # fmt: skip
@click.option(
    "--machines", type=WHOLE, help="The most machines, servers included, with --provision."
)
@click.option(
    "--partitions", type=PARTS,
    help="Parts of the most-cut layer, or of layers by name or pattern (fc6=4,conv*=2), with --provision.",
)  # fmt: skip
@click.option("--threads", type=WHOLE, help="Threads of a worker on a CPU, with --provision.")
@click.option(
    "--speeds", type=SPEEDS,
    help="Of unequal machines: each one's over the fastest's, falling (1,1,0.5), with --provision.",
)  # fmt: skip
@click.option("--html", type=FILE, metavar="FILE.html", help="Write a self-contained report.")
@emit_options
@shared.server_options
@shared.json_option
def recommend(workload: str, html: Path | None, as_json: bool, **options: Any) -> int:
    """Which cluster, plan and batch to use under a deadline, a budget and a confidence.

    Shows the best job, the Pareto front of time and cost, and every refused group of plans with
    its reason. Exit code 3 where nothing satisfies the limits; the nearest misses are then shown.
    """
    from forerun.advisor.recommending import recommendation_json
    from forerun.domain.objective import Objective
    from forerun.predictors.options import known_by, known_words

    settings = shared.settings_of(options)
    provisions = options.pop("provisions")
    if provisions:
        context = click.get_current_context()
        for name, todo in _NOT_PROVISIONED.items():
            if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
                raise RequestError(
                    f"--provision with --{name.replace('_', '-')}", "it has no effect there", todo
                )
    names = ("machines", "partitions", "threads", "speeds")
    counts = {name: value for name in names if (value := options.pop(name)) is not None}
    if provisions:
        return _provision(workload, settings, as_json, counts, options)
    for stray in counts:
        raise RequestError(f"--{stray}", "it belongs to --provision", "give --provision too")
    inputs.writable(html, (".html", ".htm"))
    emitting = shared.emission_of(options, {"--json": as_json, "--html": html})
    advisor = shared.answering(settings, options)
    question = shared.question_of(settings, options)
    objective = Objective(
        aim=options.pop("minimize"), deadline_seconds=options.pop("deadline"),
        budget_dollars=options.pop("budget"), confidence=settings.number("confidence"),
        fit_confidence=settings.number("fit_confidence"), market=question.pop("market"),
        preemption=question.pop("preemption"),
    )  # fmt: skip
    with waiting(f"compares clusters, plans and batches of {workload}"):
        found = advisor.recommend(
            workload, max_devices=int(settings["max_devices"]), objective=objective,
            global_batches=options.pop("global_batch"), emit=emitting.target if emitting else "",
            **question, **options,
        )  # fmt: skip
    shown = next(filter(None, (found.best, *found.near_misses)), None)
    name = shown.job.workload.name if shown else workload
    known = known_by(advisor.predictor)
    emitted = emitting.write(found.best) if emitting and found.best else ""
    if html is not None:
        from forerun.cli.report import report_page

        inputs.write_text(html, visible(report_page(name, found)))
    if as_json:
        echo(wire.dumps(recommendation_json(advisor.predictor, name, found)))
    elif emitting is None or emitted or found.best is None:
        show_recommendation(Screen(settings), name, found, known_words(known))
        if html is not None:
            echo(f"report written to {html}")
        if emitted:
            echo(emitted)
    if found.best is None:
        report_error(unsatisfied(name, found))
        return EXIT_UNSATISFIED
    return 0


# What `--provision` has no use for, and what to do.
_NOT_PROVISIONED = {
    "minimize": "leave it out: the least time is sought, and the curve shows what fewer machines take",
    "deadline": "leave it out, and read the fewest machines that keep it off the curve",
    "confidence": "leave it out: choices are compared by their medians",
    "fit_confidence": "leave it out: a choice fits with 95 %",
    "energy": "leave it out",
    "html": "use --json",
    **dict.fromkeys(("emit", "emit_to", "script", "force"), "leave it out: it belongs to plans without --provision"),
    "max_devices": "give --machines",
    **dict.fromkeys(shared.MACHINES, "name the machine with --clusters"),
    **dict.fromkeys(("market", "spot", "preemption_rate", "checkpoint_interval", "goodput", "startup",
                     "least_billed"),
                    "leave it out: prices are on demand, and no time is lost to failures"),
}  # fmt: skip


def _provision(
    workload: str, settings: Settings, as_json: bool, counts: dict[str, Any],
    options: dict[str, Any],
) -> int:  # fmt: skip
    advisor = shared.advisor_of(settings, options)
    question = shared.question_of(settings, options)
    clusters: Sequence[str] = options.pop("clusters") or ()
    batches: Sequence[int] = options.pop("global_batch") or ()
    if len(clusters) != 1 or len(batches) > 1:
        what = "--global-batch" if len(batches) > 1 else "--clusters"
        many = len(batches) if len(batches) > 1 else len(clusters)
        raise RequestError(
            "--provision", f"{many} values of {what}" if many else f"{what} is missing",
            f"name one: {what} {'256' if len(batches) > 1 else 'aws:p3.2xlarge'}",
        )  # fmt: skip
    budget = options.pop("budget")
    if budget is None and "machines" not in counts and not clusters[0][:1].isdigit():
        raise RequestError(
            "--provision", "no limit is given", "give --machines or --budget (dollars an hour)"
        )
    asked = {name: question.pop(name) for name in ("length", "region")}
    changes = {n: v for n, v in question.items() if n not in ("preemption", "market")}
    with waiting(f"divides machines among replicas and servers of {workload}"):
        found = advisor.provision(
            workload, clusters[0], dollars_per_hour=budget, plan=options.pop("plan"),
            global_batch=batches[0] if batches else None, **counts, **asked, **changes,
        )  # fmt: skip
    if as_json:
        shared.write_json("provision", asdict(found))
    else:
        show_provision(Screen(settings), found)
    return 0


def show_provision(screen: Screen, found: Provision) -> None:
    """Write the best use of machines, what the other kinds fall short by, and the curve."""
    best = found.best
    screen.title(f"{found.workload} on up to {found.most_machines} x {found.machine}")
    cost, epoch = best.dollars_per_hour, best.epoch_seconds
    of_one = ", which is one replica's update" if best.step_samples < best.global_batch else ""
    screen.labelled([
        ("best", _words(best)),
        ("batch", f"{best.step_samples:,} in a step{of_one}, {best.micro_batch:,} in a pass"),
        ("step", f"{units.format_seconds(best.step_seconds)}{_range(best)}"),
        ("epoch", units.format_seconds(epoch) if epoch is not None else ""),
        ("run", f"{units.format_seconds(best.run_seconds)} for {found.length}: {best.steps:,.0f} steps"),
        ("cost", f"{_dollars(best)}, {units.format_dollars(cost)} an hour" if cost is not None else ""),
        ("memory", f"{units.format_bytes(best.peak_bytes)} on the fullest device"),
        ("price", f"{units.format_dollars(cost / best.machines)} an hour a machine ({found.price_source})" if cost and found.price_source else ""),
        ("limit", best.why),
    ], 8)  # fmt: skip
    cuts: dict[tuple[int, str], list[str]] = {}
    for layer, parts, way in best.partitions:
        cuts.setdefault((parts, way), []).append(layer)
    for (parts, way), layers in cuts.items():
        more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
        screen.line(f"cut     {parts} parts by {way}: {', '.join(layers[:3])}{more}")
    screen.line()
    headers = ("kind", "machines", "run", "cost", "times the best", "plan", "because")
    if found.runners_up:
        screen.table(headers, [_row(c) for c in found.runners_up], "the best of each other kind")
        screen.line()
    screen.table(
        headers[:-2], [_row(c)[:-2] for c in found.curve[-_ROWS:]], "the best with no more machines"
    )
    screen.items("notes", found.notes)


def _row(choice: Provisioned) -> tuple[Any, ...]:
    run, behind = units.format_seconds(choice.run_seconds), f"{choice.behind:.3g}"
    return choice.kind, choice.machines, run, _dollars(choice), behind, _words(choice), choice.why


def _range(choice: Provisioned) -> str:
    if choice.step_range_seconds is None:
        return " (how sure this is cannot be said: the predictor declines such a plan)"
    low, high = map(units.format_seconds, choice.step_range_seconds)
    return f" (5 to 95 %: {low} to {high})"


def _dollars(choice: Provisioned) -> str:
    return "" if choice.dollars is None else units.format_dollars(choice.dollars)


def _words(choice: Provisioned) -> str:
    counted = units.counted
    words = [counted(choice.replicas, "replica"), choice.sync, counted(choice.machines, "machine")]
    if choice.largest_partition > 1:
        words.insert(1, f"layers in up to {choice.largest_partition} parts")
    if choice.servers:
        words.append(f"{choice.servers} of them servers")
    if choice.threads:
        words.append(f"{counted(choice.threads, 'thread')} a worker")
    return ", ".join(words)


def unsatisfied(name: str, found: Recommendation) -> ForerunError:
    """Return the error for limits that nothing satisfies, with the nearest miss."""
    limits = " ".join(words for _, _, words in limits_of(found.objective.limits))
    reason = f"none of {found.legal:,} legal plans qualifies ({found.fitting:,} fit in memory)"
    if found.near_misses:
        near = found.near_misses[0]
        short = "; ".join(near.misses.values()) or "it misses the limits"
        next_step = f"the nearest is {near.job.cluster.name} ({near.job.plan}): {short}"
    else:
        main = _main_reason(found)
        reason += f"; {main}" if main else ""
        from forerun.search.recommending import ENDLESS, NO_MEMORY, NO_PRICE

        free = "" if found.objective.budget_dollars is None else "drop --budget and "
        priced = f"add a price with --catalog, or {free}use --minimize time"
        if found.objective.market == "spot":
            priced = "add a spot price with --catalog, or use --market on-demand"
        next_step = {
            NO_PRICE: priced, NO_MEMORY: "name another predictor (see `forerun predictors`)",
            ENDLESS: "use --market on-demand, a shorter --checkpoint-interval, or fewer nodes",
        }.get(main, "relax a limit, allow more devices, or name other clusters")  # fmt: skip
    if found.not_searched:
        next_step += f"; {found.not_searched}"
    plain = "as asked" if found.fitting else "in device memory"
    return UnsatisfiedError(f"{name} {limits or plain}", reason, next_step)


def _main_reason(found: Recommendation) -> str:
    """Return why nothing qualifies where no miss is near: no price, else what refused most."""
    from forerun.search.recommending import NO_PRICE

    counts = found.refused_counts
    return NO_PRICE if NO_PRICE in counts else max(counts, key=lambda r: counts[r], default="")


def show_recommendation(
    screen: Screen, name: str, found: Recommendation, constants: str = ""
) -> None:
    """Write a recommendation for a person; `constants`: which ones the predictor has, in words."""
    if found.best is None:
        limited = found.near_misses or found.objective.limits != Limits()
        reason = "" if limited else _main_reason(found)
        screen.title(f"{name}: {reason or 'nothing satisfies the limits'}")
        _table(screen, found, found.near_misses[:_ROWS], "nearest misses")
        for option in found.near_misses[:_ROWS]:
            for limit, words in option.misses.items():
                screen.line(f"  {option.job.cluster.name}: {limit}: {words}")
        if found.not_searched:
            screen.line(found.not_searched)
    else:
        _show_best(screen, found.best, found, constants)
        screen.line()
        _table(screen, found, found.front, "the Pareto front")
        shown = {option.job.cluster.name for option in found.front}
        others = [o for o in found.alternatives if o.job.cluster.name not in shown][:_OTHERS]
        if others:
            screen.line()
        _table(screen, found, others, "the best on other clusters")
    screen.line()
    if found.refused:
        screen.table(
            ("plans", "cluster", "plan", "refused because"),
            [(f"{r.count:,}" if r.count else "", r.cluster, r.plan, r.reason)
             for r in found.refused[:_ROWS]],
            "refused, the nearest first",
        )  # fmt: skip
        screen.line()
    screen.line(
        f"{found.considered:,} plans considered, {found.legal:,} legal, {found.fitting:,} fit in"
        f" memory, {found.qualified:,} qualify; {found.seconds_taken:.2f} s"
    )
    if found.best is not None:
        screen.items("warnings", found.best.warnings)
    screen.items("your own machines", found.own_machines)
    screen.items("assumptions", found.assumptions)
    screen.line(f"prices  {found.prices_as_of}")
    screen.line("Confirm the choice by a short run before renting it for long.")


def _show_best(screen: Screen, best: Option, found: Recommendation, constants: str) -> None:
    job, estimate, forecast = best.job, best.estimate, best.estimate.forecast
    screen.title(f"{job.workload.name}: {job.cluster.name}")
    screen.labelled([
        ("plan", f"{job.plan}, global batch {job.plan.global_batch:,}"),
        ("settings", showing.workload_text(job.workload)),
        ("best", f"{showing.best_text(found)}; tables show {showing.confidence_text(found, '{} quantiles of time and cost') or 'medians'}"),
        ("run", showing.ranged(estimate.run_seconds, units.format_seconds)),
        ("wall", showing.ranged(estimate.wall_seconds, units.format_seconds) if showing.loses(estimate) else ""),
        ("cost", showing.ranged(estimate.dollars, units.format_dollars)),
        ("price", showing.price_text(best, "add one with --catalog")),
        *showing.throughput_lines(job, best.throughput, estimate, found.objective.preemption),
        ("fits", f"probability {units.format_probability(estimate.fit_probability)}"),
        ("limits", showing.limits_text(best.chance, found.objective.limits)),
        *(("beats", f"{rival}: {chance}") for rival, chance in showing.rivals(found)),
        ("source", showing.source_text(forecast, constants) if forecast else ""),
        ("nearer", showing.nearer_text(forecast) if forecast else ""),
    ], 10)  # fmt: skip


def _table(screen: Screen, found: Recommendation, options: Sequence[Option], title: str) -> None:
    if not options:
        return
    limits, best = found.objective.limits, found.best is not None
    at = showing.confidence_text(found, " at {}")
    headers = (
        "cluster", f"wall{at}", f"cost{at}", "MFU", "energy", "peak memory", "fits", *(header for _, header, _ in limits_of(limits)),
        *([f"best {showing.BETTER[found.compared_by]}"] if best else []), "batch", "plan",
    )  # fmt: skip
    rows = []
    for option in options:
        plan, estimate = option.job.plan, option.estimate
        peak = estimate.forecast.peak_bytes[1] if estimate.forecast else float("nan")
        rows.append((
            option.job.cluster.name, units.format_seconds(showing.decisive(estimate.wall_seconds, found)),
            units.format_dollars(showing.decisive(estimate.dollars, found)), showing.share(option.throughput["mfu"]), units.format_kwh(estimate.kilowatt_hours[1]),
            units.format_bytes(peak), units.format_probability(estimate.fit_probability),
            *showing.limit_cells(option.chance, limits),
            *([showing.beaten(option, found)] if best else []), plan.global_batch, plan,
        ))  # fmt: skip
    screen.table(headers, rows, title)
