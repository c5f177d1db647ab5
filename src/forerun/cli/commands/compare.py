"""forerun compare: up to eight jobs side by side, and how surely one is faster or cheaper than another."""

from __future__ import annotations

from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import click

from forerun import units, wire
from forerun.cli import options as shared
from forerun.cli import showing
from forerun.cli.inputs import SeveralTables, missing
from forerun.cli.printing import echo
from forerun.cli.showing import Outputs, Screen, limit_cells, limits_of
from forerun.errors import ForerunError, UnknownNameError

if TYPE_CHECKING:
    from forerun.advisor import Advisor, Answer
    from forerun.advisor.comparing import Comparison
    from forerun.settings import Settings

# Options that may be repeated: every combination is a job.
REPEATED = ("cluster", "plan", "global_batch", "micro_batch", *shared.CHANGES)


@click.command(cls=SeveralTables)
@click.argument("workloads", nargs=-1, shell_complete=shared.complete_workload)
@shared.job_options(shared.partitions_option)
@shared.seeing_options
@shared.server_options
@shared.json_option
def compare(workloads: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Two to eight jobs side by side: time, cost, memory, and which is the fastest and the cheapest.

    Several workloads, clusters, plans, batches, precisions ... may be given; every combination is a
    job: `forerun compare llama3-8b --cluster 1x8xh100-sxm-80gb 4xaws:p5.48xlarge`. One that cannot be,
    such as a plan that does not divide, is listed with its reason.

    Jobs share errors, so P(faster) and P(cheaper) are surer than their bands suggest. The fastest
    and the cheapest are among the jobs that fit in memory with probability 0.9.
    """
    from forerun.advisor.comparing import check_number, side_by_side

    settings, seen = shared.settings_of(options), Outputs(options, as_json)
    varied = {"workload": workloads, **{name: options.pop(name) for name in REPEATED}}
    varied["cluster"] = [c for text in varied["cluster"] for c in text.split(",") if c.strip()]
    given = [name for name, values in varied.items() if values]
    if not varied["workload"] or not varied["cluster"]:
        named = {"workloads": workloads, "cluster": varied["cluster"]}
        lacking = [p for p in compare.params if not named.get(str(p.name), True)]
        raise missing("forerun compare", lacking)
    asked = [dict(zip(given, job, strict=True)) for job in product(*(varied[n] for n in given))]
    check_number(len(asked))
    advisor = shared.answering(settings, options, choose=True)
    answers, refused = _answered(advisor, settings, asked, options)
    if not answers:
        raise refused[0][1]
    found = side_by_side(answers)
    reasons = [(words, str(error)) for words, error in refused]

    def write_json() -> None:
        body = {**found.to_json(), "refused": [{"job": w, "reason": r} for w, r in reasons]}
        echo(wire.dumps(body))

    show = partial(show_comparison, found=found, refused=reasons)
    seen.write(Screen(settings), show, write_json, lambda: found.charts)


for _option in compare.params:
    if isinstance(_option, click.Option) and _option.name in REPEATED:
        _option.multiple, _option.callback = True, None


def _answered(
    advisor: Advisor, settings: Settings, asked: list[dict[str, Any]], options: dict[str, Any]
) -> tuple[list[Answer], list[tuple[str, ForerunError]]]:
    """Return the answers, and the jobs that cannot be with why; a name that is not known is an error of all."""
    from forerun.advisor.answer import plan_fields

    answers, refused, workloads = list[Any](), list[tuple[str, ForerunError]](), dict[str, Any]()
    for job in asked:
        spec: dict[str, Any] = {"plan": None, **options, **job}
        spec["plan"] = shared.plan_of(spec)
        plan_fields(spec["plan"])
        question = {**shared.question_of(settings, spec), **spec}
        changes = {name: question.pop(name) for name in shared.CHANGES}
        name, place = question.pop("workload"), question.pop("cluster")
        key = repr((name, changes))
        if key not in workloads:
            workloads[key] = advisor.workload(name, **changes)
        advisor.cluster(place, region=question["region"])
        try:
            answers.append(advisor.predict(workloads[key], place, **question))
        except UnknownNameError:
            raise
        except ForerunError as error:
            words = [str(value) for key, value in job.items() if key in ("workload", *REPEATED)]
            refused.append((", ".join(words), error))
    return answers, refused


def show_comparison(screen: Screen, found: Comparison, refused: list[tuple[str, str]]) -> None:
    """Write jobs side by side, which is best and how surely, and the notes in which they differ."""
    from forerun.advisor.comparing import facets_of
    from forerun.search.score import CHOSEN

    answers, facets = found.answers, [facets_of(one) for one in found.answers]
    common = [facets[0][name] for name in ("workload", "cluster") if name not in found.differs]
    number_of = units.counted(len(answers), "job")
    screen.title(f"{', '.join(common)}: {number_of}" if common else number_of)
    rest = {name: text for name, text in facets[0].items() if name not in found.differs}
    screen.labelled([
        ("settings", ", ".join(text for name in _SETTINGS if (text := rest.get(name)))),
        *((name, rest.get(name, "")) for name in ("length", "batch", "plan")),
    ], 10)  # fmt: skip
    screen.line()
    rows = [(name, *(each[name] for each in facets)) for name in found.differs]
    figures = zip(*(_figures(one) for one in answers), strict=True)
    rows += [(name, *cells) for name, cells in zip(_FIGURES, figures, strict=True)]
    for i, (_, head, _) in enumerate(limits_of(answers[0].limits)):
        rows.append((f"P({head})", *(limit_cells(one.chance, one.limits)[i] for one in answers)))
    best_lines = []
    for aim, best in found.best.items():
        sure = map(units.format_probability, found.beats[aim][best])
        cells = ("" if i == best else text for i, text in enumerate(sure))
        if len(answers) > 1:
            rows.append((f"P({best + 1} is {showing.BETTER[aim]})", *cells))
        best_lines.append((f"{showing.BEST[aim]}", f"{best + 1}, {found.names[best]}"))
    screen.side_by_side(("", *map(str, range(1, len(answers) + 1))), rows)
    screen.line()
    screen.labelled(best_lines or [("best", "none fits in memory with probability 0.9")], 12)
    notes: dict[str, list[str]] = {}
    for number, one in enumerate(answers, 1):
        own = (text for text in one.notes if not text.startswith(CHOSEN))  # the table has the plan
        for text in (*own, *(f"warning: {words}" for words in one.warnings)):
            notes.setdefault(text, []).append(str(number))
    work = [one.estimate.steps * one.job.plan.step_samples for one in answers]
    if "workload" in found.differs or max(work) > _SAME_WORK * min(work):
        screen.line("The jobs do different work: faster and cheaper are those of whole runs.")
    screen.items("notes", (
        text if len(jobs) == len(answers) else f"{', '.join(jobs)}: {text}" for text, jobs in notes.items()
    ))  # fmt: skip
    screen.items("not answered", (f"{words}: {reason}" for words, reason in refused))


_SAME_WORK = 1.01  # samples of one job over another's, which batches round up
_SETTINGS = ("precision", "framework", "task", "optimizer", "prices")
_FIGURES = ("step", "5-95 %", "wall", "5-95 %", "cost", "5-95 %", "memory", "device has", "P(fits)", "MFU", "speed",
            "a device", "device-hours", "price an hour", "distance")  # fmt: skip


def _figures(one: Answer) -> tuple[str, ...]:
    run, forecast, speed, price = one.estimate, one.forecast, one.throughput, one.dollars_per_hour
    kind = "tokens" if speed["tokens_per_second"] > 0 else "samples"
    rate, each = (units.format_count(speed[f"{kind}_per_second{n}"]) for n in ("", "_per_device"))
    bands = ((one.step_seconds, units.format_seconds), (run.wall_seconds, units.format_seconds),
             (run.dollars, units.format_dollars))  # fmt: skip
    return (
        *chain(*((write(q[1]), f"{write(q[0])} to {write(q[2])}") for q, write in bands)),
        units.format_bytes(forecast.peak_bytes[1]), units.format_bytes(one.job.cluster.device.memory_bytes),
        units.format_probability(run.fit_probability), showing.share(speed["mfu"]),
        f"{rate} {kind}/s", f"{each} {kind}/s", units.format_count(speed["device_hours"]),
        "unknown" if price is None else units.format_dollars(price), f"{forecast.distance:.2f}",
    )  # fmt: skip
