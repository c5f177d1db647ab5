"""forerun explain, forerun support: where a step's time and memory go, and what is covered."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import units, wire
from forerun.cli import options as shared
from forerun.cli.inputs import FILE, SeveralTables, writable, write_text
from forerun.cli.printing import echo
from forerun.cli.showing import (
    Outputs,
    Screen,
    limit_cells,
    limits_of,
    show_answer,
    show_parts,
    waiting,
)

if TYPE_CHECKING:
    from forerun.advisor import Explanation

_LEAST = 0.01  # share of the variance that is worth a line


@click.command(cls=SeveralTables)
@click.argument("workload", shell_complete=shared.complete_workload)
@shared.job_options(
    shared.partitions_option,
    click.option("--trace", type=FILE, metavar="FILE.json", help="The step as a Chrome trace."),
    cluster_required=True,
)  # fmt: skip
@shared.seeing_options
@shared.server_options
@shared.json_option
def explain(workload: str, trace: Path | None, as_json: bool, **options: Any) -> None:
    """Where a step's time and memory go, and what would change it.

    The parts add up to the median step, and to the median peak of memory. Every line of the
    what-if table is a prediction of its own, with the probability that it is faster than the
    present plan: they share most of their errors. The trace opens in chrome://tracing or Perfetto.
    """
    settings, seen = shared.settings_of(options), Outputs(options, as_json)
    writable(trace, (".json",))
    advisor = shared.answering(settings, options)
    cluster, plan = options.pop("cluster"), shared.plan_of(options)
    question = shared.question_of(settings, options)
    with waiting(f"looks at plans of {workload}, and at what would change them"):
        found = advisor.explain(workload, cluster, plan, **question, **options)
    if trace is not None:
        from forerun.advisor.timeline import chrome_trace

        write_text(trace, wire.dumps(chrome_trace(found.answer), indent=None))
    seen.write(
        Screen(settings), partial(show_explanation, found=found),
        lambda: echo(wire.dumps(found.to_json())), lambda: found.answer.charts,
    )  # fmt: skip
    if trace is not None and not as_json:
        echo(f"trace written to {trace}")


def show_explanation(screen: Screen, found: Explanation) -> None:
    """Write an answer with the parts of its step and memory, what limits it, and what would change it."""
    show_answer(screen, found.answer)
    screen.line()
    show_parts(screen, "the median step", found.parts, units.format_seconds)
    screen.line()
    show_parts(screen, "the median peak of memory", found.memory_parts, units.format_bytes)
    screen.line()
    screen.items("what limits it", found.limits)
    screen.line()
    shares = (f"{units.format_percent(s)} {words}" for words, s in found.uncertainty if s >= _LEAST)
    screen.items("what makes it uncertain (shares of the log variance)", shares)
    screen.line()
    limits = found.answer.limits
    screen.table(
        ("what if", "wall", "faster", "P(faster)", "step", "cost", "memory", "fits",
         *(header for _, header, _ in limits_of(limits))),
        [
            (w.change, units.format_seconds(w.wall_seconds), f"{w.speedup:.2f}x",
             units.format_probability(w.beats["time"]), units.format_seconds(w.step_seconds),
             units.format_dollars(w.dollars), units.format_bytes(w.peak_bytes),
             units.format_probability(w.fit_probability), *limit_cells(w.chance, limits))
            for w in found.what_ifs
            if not w.refused
        ],
    )  # fmt: skip
    screen.items("not legal", (f"{w.change}: {w.refused}" for w in found.what_ifs if w.refused))


@click.command(cls=SeveralTables)
@click.argument("workload", shell_complete=shared.complete_workload)
@shared.workload_options
@shared.predictor_options
@shared.server_options
@shared.json_option
def support(workload: str, as_json: bool, **options: Any) -> None:
    """What is covered for a workload: which answers, which plans, and what is only bounded."""
    settings = shared.settings_of(options)
    changes = {name: options.pop(name) for name in shared.CHANGES}
    with waiting(f"looks at {workload}"):
        found = shared.answering(settings, options).support(workload, **changes)
    if as_json:
        echo(wire.dumps(found.to_json()))
        return
    screen = Screen(settings)
    screen.title(found.workload)
    screen.table(("", ""), found.facts)
    screen.line()
    screen.table(("question", "covered", "remark"), found.covered)
    screen.items("notes", found.notes)
