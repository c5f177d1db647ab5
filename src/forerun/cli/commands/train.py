"""forerun train: trains a job for real, with workers and a batch that it changes as it learns what they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli.inputs import FILE, TABLES, check_kind, writable
from forerun.cli.interrupting import orderly
from forerun.cli.options import json_option, write_json
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, small_dollars
from forerun.errors import RequestError, UnsatisfiedError
from forerun.units import counted, format_seconds

if TYPE_CHECKING:
    from forerun.advisor.elastic import ElasticTraining


@click.command()
@click.argument("job", type=FILE, metavar="JOB.yaml")
@click.option("--elastic", is_flag=True, help="Choose among the file's workers and batches while it trains.")  # fmt: skip
@click.option("--folder", type=FILE, metavar="DIR", help="Keep states and decisions here (JOB-training).")  # fmt: skip
@click.option("--out", type=FILE, metavar="RUNS.csv", help="Write the observed configurations as runs.")  # fmt: skip
@click.option(
    "--lab", metavar="LAB", help="On the hosts of a lab that is up; else on this machine."
)
@json_option
@orderly("stopped; the state is kept, and the same command goes on from here")
def train(
    job: Path, elastic: bool, folder: Path | None, out: Path | None, lab: str | None, as_json: bool
) -> None:
    """Train on processes of this machine, or of a lab, until a target is met or a limit is reached.

    With --elastic it observes some of the workers and global batches that JOB.yaml allows, each for
    some 20 steps of the training itself, forecasts the others, and goes on with what is best for time,
    cost or the knee of both. It decides again as the gradient noise changes. No step is thrown away.

    A worker that dies is replaced, and training goes on with the others. The same command goes on
    after a crash or an interruption. JOB.yaml names the training function; see docs/elastic.md.
    """
    from forerun.advisor.elastic import ElasticTraining
    from forerun.measure.elastic.job import read_training_job
    from forerun.measure.lab import Lab
    from forerun.tables import write_table

    asked = f"training {str(job)!r}"
    check_kind(job, asked, "a training job", "training")
    writable(out, TABLES)
    what = read_training_job(job)
    if not elastic and len(what.configurations) > 1:
        found = f"{len(what.configurations)} configurations, and only --elastic chooses"
        raise RequestError(asked, found, "add --elastic, or leave one of workers and global_batch")
    where = folder or Path(f"{job.stem}-training")
    hosts = Lab.open(lab).hosts if lab else ()
    training = ElasticTraining(
        what, where, lambda words: None if as_json else echo(words, err=True), hosts
    )
    ended = training.run()
    if out is not None and training.progress.observed:
        write_table(training.table(), out)
    if as_json:
        write_json("training", training.to_json(ended))
    else:
        _show(training, ended, where, out)
    target, seen = what.target, training.progress.metrics
    if target is not None and not training.is_target_met:
        last = f"it is {seen[-1][-1]:.4g}" if seen else "none was reported"
        raise UnsatisfiedError(
            f"training until {target.metric} is {target.bound}", f"{ended}; {last}",
            "raise the limit, and the same command goes on",
        )  # fmt: skip


def _show(training: ElasticTraining, ended: str, where: Path, out: Path | None) -> None:
    screen, done = Screen(), training.progress
    screen.title(f"training {training.job.entry}")
    rows = [
        (k, b, format_seconds(seconds), f"{b / seconds:,.0f}", len(done.seconds_of[k, b]))
        for (k, b), seconds in sorted(done.observed.items())
    ]
    screen.table(("workers", "batch", "step", "samples/s", "last steps"), rows)
    skipped = f", {counted(done.skipped, 'step')} skipped" if done.skipped else ""
    moves = f"{counted(done.decisions, 'decision')}, {counted(len(done.pauses), 'move')}"
    longest = f", a pause of {format_seconds(max(done.pauses))} at most" if done.pauses else ""
    screen.labelled([
        ("ended", ended), ("time", format_seconds(done.seconds)),
        ("price", small_dollars(done.dollars) if training.job.dollars_per_worker_hour else ""),
        ("samples", f"{done.position:,} in {counted(done.steps, 'step')}{skipped}"),
        ("moves", f"{moves}{longest}; see {where / 'trail.jsonl'}"), ("wrote", str(out or "")),
    ], 10)  # fmt: skip
