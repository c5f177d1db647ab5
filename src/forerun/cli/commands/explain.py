"""forerun explain: where a step's time and memory go, what limits it, what would change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forerun import wire
from forerun.cli.inputs import FILE, WHOLE, SeveralTables, writable
from forerun.cli.options import (
    advisor_of,
    changes_of,
    complete_cluster,
    complete_workload,
    json_option,
    length_of,
    length_options,
    limit_options,
    market_options,
    predictor_options,
    preemption_of,
    price_option,
    settings_of,
    workload_options,
)
from forerun.cli.screen import Screen
from forerun.cli.showing import limit_cells, limit_headers, show_answer, show_parts
from forerun.units import (
    format_bytes,
    format_dollars,
    format_percent,
    format_probability,
    format_seconds,
)

_LEAST = 0.01


@click.command(cls=SeveralTables)
@click.argument("workload", shell_complete=complete_workload)
@click.option(
    "--cluster", required=True, help="NODESxDEVICESxDEVICE or NODESxINSTANCE, e.g. 1x8xa100-sxm-80gb.",
    shell_complete=complete_cluster,
)  # fmt: skip
@click.option("--plan", help="Plan fields to fix, e.g. tp=2,pp=4; the search chooses the rest.")
@click.option("--global-batch", type=WHOLE, help="Samples in an optimizer step.")
@click.option("--micro-batch", type=WHOLE, help="Samples a device does in one pass.")
@click.option(
    "--trace", type=FILE, metavar="FILE.json", help="Write the predicted step as a Chrome trace."
)
@length_options
@price_option
@limit_options
@market_options
@workload_options
@predictor_options
@json_option
def explain(workload: str, trace: Path | None, as_json: bool, **options: Any) -> None:
    """Where a step's time and memory go, and what would change it.

    The parts add up to the median step, and to the median peak of memory. Every line of the
    what-if table is a prediction of its own, with the probability that it is faster than the
    present plan: they share most of their errors. The trace opens in chrome://tracing or Perfetto.
    """
    settings = settings_of(options)
    writable(trace, "writing", (".json",), (*options["fit_files"], *options["catalog_files"]))
    advisor = advisor_of(settings, options)
    found = advisor.explain(
        workload,
        options.pop("cluster"),
        options.pop("plan"),
        length=length_of(options),
        preemption=preemption_of(options),
        market=settings.text("market"),
        region=settings.text("region"),
        **changes_of(options),
        **options,
    )
    if trace is not None:
        _write_trace(trace, found.answer)
    if as_json:
        click.echo(wire.dumps(found.to_json()))
        return
    screen = Screen(settings)
    show_answer(screen, found.answer)
    screen.line()
    show_parts(screen, "the median step", found.parts, format_seconds)
    screen.line()
    show_parts(screen, "the median peak of memory", found.memory_parts, format_bytes)
    screen.line()
    screen.items("what limits it", found.limits)
    screen.line()
    show_uncertainty(screen, found.uncertainty)
    limits = found.answer.limits
    screen.table(
        (
            "what if",
            "run",
            "faster",
            "P(faster)",
            "step",
            "cost",
            "memory",
            "fits",
            *limit_headers(limits),
        ),
        [
            (
                w.change,
                format_seconds(w.run_seconds),
                f"{w.speedup:.2f}x",
                format_probability(w.beats["time"]),
                format_seconds(w.step_seconds),
                format_dollars(w.dollars),
                format_bytes(w.peak_bytes),
                format_probability(w.fit_probability),
                *limit_cells(w.chance, limits),
            )
            for w in found.what_ifs
            if not w.refused
        ],
    )
    refused = [f"{w.change}: {w.refused}" for w in found.what_ifs if w.refused]
    if refused:
        screen.items("not legal", refused)
    if trace is not None:
        screen.line(f"trace written to {trace}")


def show_uncertainty(screen: Screen, uncertainty: tuple[tuple[str, float], ...]) -> None:
    """Write what makes the step uncertain; nothing where the predictor does not say."""
    shown = [f"{format_percent(share)} {words}" for words, share in uncertainty if share >= _LEAST]
    if shown:
        screen.items("what makes it uncertain (shares of the log variance)", shown)
        screen.line()


def _write_trace(path: Path, answer: Any) -> None:
    from forerun.advisor.timeline import chrome_trace
    from forerun.tables.files import write_whole

    text = wire.dumps(chrome_trace(answer), indent=None)
    write_whole(path, lambda name: _write(name, text))


def _write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
