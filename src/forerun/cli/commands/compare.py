"""forerun compare: up to eight jobs side by side, and how surely one is faster or cheaper than another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import units, wire
from forerun.cli import options as shared
from forerun.cli import showing
from forerun.cli.inputs import FILE, TABLES, YAML, SeveralFiles
from forerun.cli.printing import echo
from forerun.cli.seeing import Outputs, seeing_options
from forerun.cli.showing import Screen, limit_cells, limits_of
from forerun.errors import ForerunError, RequestError, UnknownNameError

if TYPE_CHECKING:
    from forerun.advisor import Advisor, Answer
    from forerun.advisor.comparing import Comparison
    from forerun.settings import Settings

# Options that may be repeated: every combination is a job.
REPEATED = ("cluster", "plan", "global_batch", "micro_batch", *shared.CHANGES)
_FURTHER = re.compile(r"\d+x|\w+=")  # words that go on with --cluster and --plan


class _SeveralJobs(SeveralFiles):
    """`--cluster A B` is read as `--cluster A --cluster B`, and so are plans."""

    def is_file(self, word: str) -> bool:
        """Return whether a word is one more cluster or plan."""
        return _FURTHER.match(word) is not None


@click.command(cls=_SeveralJobs)
@click.argument("workloads", nargs=-1, shell_complete=shared.complete_workload, metavar="WORKLOAD...")
@shared.job_options(
    shared.partitions_option,
    click.option(
        "--jobs", type=FILE, metavar="JOBS.yaml",
        help="A list of jobs (YAML, or a CSV table): each has these options as fields, and workload.",
    ),
)  # fmt: skip
@seeing_options
@shared.json_option
def compare(workloads: tuple[str, ...], jobs: Path | None, as_json: bool, **options: Any) -> None:
    """Two to eight jobs side by side: time, cost, memory, and which is the fastest and the cheapest.

    Several workloads, clusters, plans, batches, precisions ... may be given; every combination is a
    job: `forerun compare llama3-8b --cluster 1x8xh100-sxm-80gb 4xaws:p5.48xlarge`. With --jobs each
    entry is a job; what it leaves out is as on the command line.

    Jobs share errors, so P(faster) and P(cheaper) are surer than their bands suggest. The fastest
    and the cheapest are among the jobs that fit in memory with probability 0.9.
    """
    from forerun.advisor.comparing import check_number
    from forerun.advisor.comparing import compare as compared

    settings, seen = shared.settings_of(options), Outputs(options, as_json)
    named = {"workload": workloads, **{name: options.pop(name) for name in REPEATED}}
    asked = list(_jobs({name: values for name, values in named.items() if values}, jobs))
    check_number(len(asked))
    advisor = shared.advisor_of(settings, options, choose=True)
    answers, refused = _answered(advisor, settings, asked, options)
    found = compared(*answers) if len(answers) > 1 else None
    if found is None:
        raise refused[0][1]
    reasons = [(words, str(error)) for words, error in refused]

    def write_json() -> None:
        body = {**found.to_json(), "refused": [{"job": w, "reason": r} for w, r in reasons]}
        echo(wire.dumps(body))

    show = partial(show_comparison, found=found, refused=reasons)
    seen.write(Screen(settings), show, write_json, lambda: found.charts)


for _option in compare.params:
    if isinstance(_option, click.Option) and _option.name in REPEATED:
        _option.multiple = True


def _jobs(named: Mapping[str, tuple[Any, ...]], file: Path | None) -> Iterator[dict[str, Any]]:
    for own in [{}] if file is None else _entries(file):
        rest = {name: values for name, values in named.items() if name not in own}
        for combination in product(*rest.values()):
            job = {**dict(zip(rest, combination, strict=True)), **own}
            lacking = [name for name in ("workload", "cluster") if name not in job]
            if lacking:
                raise RequestError(
                    "forerun compare", f"a job has no {' and no '.join(lacking)}",
                    "forerun compare WORKLOAD --cluster A --cluster B (see forerun compare --help)",
                )  # fmt: skip
            yield job


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the jobs of a file by the names of options, their values read as those of options are."""
    from forerun.tables import read_table
    from forerun.tables.table import iter_rows
    from forerun.yaml_files import read_yaml

    asked = f"the jobs in {file}"
    if file.suffix.lower() in TABLES:
        entries: Any = list(iter_rows(read_table(file)))
    elif file.suffix.lower() in YAML:
        entries = read_yaml(file, asked, "give a list of jobs")[0]
    else:
        raise RequestError(asked, "it is neither YAML nor a table", "name a .yaml or .csv file")
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries):
        found = "it is not a list of jobs"
        raise RequestError(asked, found, "write one line a job: - {cluster: 1x8xa100, plan: tp=8}")
    context = click.get_current_context()
    known = {str(p.name): p for p in context.command.params if p.name not in _NOT_OF_A_JOB}
    for entry in entries:
        job: dict[str, Any] = {}
        for name, value in entry.items():
            if value is None or value == "":
                continue
            key = str(name).replace("-", "_").lower()
            if key != "workload" and key not in known:
                raise UnknownNameError("field of a job", key, ["workload", *known])
            text = f"{value:.15g}" if isinstance(value, float) else str(value)
            job[key] = text if key == "workload" else known[key].type.convert(text, known[key], context)
        yield job


_NOT_OF_A_JOB = ("workloads", "jobs", "plot", "html", "as_json", "predictor", "system", "model", "start", "fit_files",
                 "own_columns", "flags_file", "catalog_files", "partitions", "spot")  # fmt: skip


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

    answers, facets = found.answers, [facets_of(one) for one in found.answers]
    common = [facets[0][name] for name in ("workload", "cluster") if name not in found.differs]
    screen.title(f"{', '.join(common)}: {len(answers)} jobs" if common else f"{len(answers)} jobs")
    shared_facets = ("precision", "framework", "task", "optimizer", "prices", "length", "batch", "plan")
    screen.labelled(((n, facets[0][n]) for n in shared_facets if n not in found.differs), 11)
    screen.line()
    rows = [(name, *(each[name] for each in facets)) for name in found.differs]
    rows += [(name, *cells) for name, cells in zip(_FIGURES, zip(*map(_figures, answers), strict=True), strict=True)]
    limits = answers[0].limits
    chances = zip(*(limit_cells(one.chance, limits) for one in answers), strict=True)
    rows += [(f"P({head})", *cells) for (_, head, _), cells in zip(limits_of(limits), chances, strict=True)]
    best_lines = []
    for aim, words in (("time", "fastest"), ("cost", "cheapest")):
        if (best := found.best.get(aim)) is None:
            continue
        sure = [units.format_probability(p) if i != best else "" for i, p in enumerate(found.beats[aim][best])]
        rows.append((f"P({best + 1} is {showing.BETTER[aim]})", *sure))
        best_lines.append((words, f"{best + 1}, {found.names[best]}"))
    screen.side_by_side(("", *map(str, range(1, len(answers) + 1))), rows)
    screen.line()
    screen.labelled(best_lines or [("best", "none: no job fits in memory with probability 0.9")], 11)
    own = [(*one.notes, *(f"warning: {text}" for text in one.warnings)) for one in answers]
    for_all = [text for text in dict.fromkeys(own[0]) if all(text in texts for texts in own)]
    screen.items("notes", [
        *for_all, *(f"{number}: {text}" for number, texts in enumerate(own, 1)
                    for text in texts if text not in for_all),
    ])  # fmt: skip
    screen.items("not answered", (f"{words}: {reason}" for words, reason in refused))


_FIGURES = ("step", "5-95 %", "wall", "5-95 %", "cost", "5-95 %", "memory", "of", "P(fits)", "MFU", "speed",
            "a device", "device-hours", "price an hour", "distance")  # fmt: skip


def _figures(one: Answer) -> tuple[str, ...]:
    estimate, forecast, speed = one.estimate, one.forecast, one.throughput
    kind = "tokens" if speed["tokens_per_second"] > 0 else "samples"
    rate, each = (units.format_count(speed[f"{kind}_per_second{per}"]) for per in ("", "_per_device"))
    price = one.dollars_per_hour
    return (
        *_median_and_band(one.step_seconds, units.format_seconds),
        *_median_and_band(estimate.wall_seconds, units.format_seconds),
        *_median_and_band(estimate.dollars, units.format_dollars),
        units.format_bytes(forecast.peak_bytes[1]), units.format_bytes(one.job.cluster.device.memory_bytes),
        units.format_probability(estimate.fit_probability), showing.share(speed["mfu"]),
        f"{rate} {kind}/s", f"{each} {kind}/s", units.format_count(speed["device_hours"]),
        "unknown" if price is None else units.format_dollars(price), f"{forecast.distance:.2f}",
    )  # fmt: skip


def _median_and_band(row: tuple[float, float, float], write: Any) -> tuple[str, str]:
    return write(row[1]), f"{write(row[0])} to {write(row[2])}"
