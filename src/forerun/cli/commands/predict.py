"""forerun predict: time, cost and memory of one job, or of every row of a table."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli import options as shared
from forerun.cli.emitting import emit_options
from forerun.cli.flagging import unread_line
from forerun.cli.inputs import FILE, TABLES, SeveralTables, missing, writable
from forerun.cli.printing import echo
from forerun.cli.showing import Outputs, Screen, show_answer, waiting
from forerun.errors import RequestError, UnsatisfiedError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.charts import Chart
    from forerun.settings import Settings
    from forerun.tables import Table

_SHOWN = 12  # lines of who answered how many rows
_ONE_JOB = ("cluster", "plan", "global_batch", "micro_batch", "partitions", "price", "deadline", "budget",
            "preemption_rate", "plot", "html", "checkpoint_interval", "emit", "emit_to", "script", "force",
            *shared.CHANGES)  # fmt: skip


@click.command(cls=SeveralTables)
@click.argument("workload", required=False, shell_complete=shared.complete_workload)
@shared.job_options(
    shared.partitions_option,
    click.option("--table", type=FILE, metavar="JOBS.csv", help="Answer every row of a table."),
    click.option("--out", type=FILE, metavar="FILE", help="With --table: what to write."),
)
@shared.seeing_options
@emit_options
@shared.server_options
@shared.json_option
def predict(
    workload: str | None, table: Path | None, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Time, cost and memory of one job, with the 5 to 95 % range.

    Plan fields that are not given are chosen by search and printed. How long the job is: --steps,
    --samples, --tokens or --epochs; else the workload's usual length. With --deadline or --budget,
    the probability of keeping it.

    With --table every row is answered, or declined with its reason; --out keeps the rows' order
    and columns and adds the answers (without it they go to stdout as CSV). A row that states no plan
    gets one by search; in one that does, blank cells mean the defaults (docs/tables.md).

    With --fit and no --predictor, cross-validation chooses (`auto`): each row is answered by the
    candidate that did best on its kind of question in parts of the runs that were held out.

    --plot draws how the rate scales with nodes, with the measured runs of --fit on it.
    """
    settings = shared.settings_of(options)
    if table is not None:
        given = [
            f"--{n.replace('_', '-')}" for n in _ONE_JOB
            if (value := options.get(n)) is not None and value is not False
        ]  # fmt: skip
        given[:0] = [] if workload is None else [f"WORKLOAD {workload}"]
        if given:
            raise RequestError(
                f"--table with {', '.join(given)}", "the rows of a table say that themselves",
                "put it in the table's columns, or leave --table out",
            )  # fmt: skip
        writable(out, TABLES)
        _predict_table(table, out, settings, as_json, options)
        return
    if out is not None:
        raise RequestError(
            f"--out {out} without --table", "only a table of answers is written",
            "use --json and redirect it, or give --table",
        )  # fmt: skip
    outputs = {"--json": as_json, "--plot": options["plot"], "--html": options["html"]}
    emitting = shared.emission_of(options, outputs)
    seen = Outputs(options, as_json)
    cluster, plan = options.pop("cluster"), shared.plan_of(options)
    if workload is None or cluster is None:
        named = {"workload": workload, "cluster": cluster}
        needed = [p for p in predict.params if named.get(str(p.name), "") is None]
        raise missing("forerun predict", needed, "--table JOBS.csv")
    advisor = shared.answering(settings, options, choose=True)
    if seen and shared.service() is not None:
        found = "it draws other numbers of nodes, which take many questions"
        todo = "leave it out, use `forerun explain --plot`, or give --server ''"
        raise RequestError("--plot or --html with a server", found, todo)
    question = shared.question_of(settings, options)
    with waiting(f"looks at plans of {workload}"):
        answer = advisor.predict(
            workload, cluster, plan, emit=emitting.target if emitting else "", **question, **options
        )
    # What cannot be emitted is refused before anything is shown.
    emitted = "" if emitting is None else emitting.write(answer)
    if emitting is not None and not emitted:
        return

    def charts() -> list[Chart]:
        from forerun.advisor.scaling import scaling_chart

        with waiting("predicting other numbers of nodes"):
            curve = scaling_chart(
                advisor, answer, plan, options["global_batch"], options["micro_batch"]
            )
        return [curve, *answer.charts]

    seen.write(
        Screen(settings), partial(show_answer, answer=answer),
        lambda: echo(wire.dumps(answer.to_json())), charts,
    )  # fmt: skip
    if emitted and not as_json:
        echo(emitted)


def _warn_of_unread(table: Table, read: tuple[str, ...]) -> None:
    from forerun.tables.table import misspelt_columns

    if unread := unread_line(misspelt_columns(n for n in table.columns if n not in read)):
        echo(f"warning: {unread}", err=True)


def _predict_table(
    path: Path, out: Path | None, settings: Settings, as_json: bool, options: dict[str, Any]
) -> None:
    from forerun.advisor.tabular import summary_of
    from forerun.tables import read_table, write_table

    table = read_table(path)
    advisor = shared.answering(settings, options, choose=True)
    _warn_of_unread(table, () if advisor.made is None else advisor.made.own.factors)
    question = shared.question_of(settings, options)
    with waiting(f"answers {counted(len(table), 'row')}"):
        answered = advisor.predict_table(
            table, **{name: question[name] for name in ("length", "market", "preemption")}
        )
    if out is not None:
        write_table(answered, out)
    summary = summary_of(advisor, answered, None if out is None else str(out))
    count, reasons, unfit = (summary[n] for n in ("answered", "reasons", "not_fitting"))
    if as_json:
        shared.write_json("table", summary)
    else:
        lines = [f"note: {note}" for note in summary["notes"]]
        if out is None:
            with TemporaryDirectory() as folder:
                answers = Path(folder) / "answers.csv"
                write_table(answered, answers)
                # A file or a pipe gets the cells as they are.
                (echo if sys.stdout.isatty() else click.echo)(
                    answers.read_text(encoding="utf-8"), nl=False
                )
        else:
            echo(f"{count:,} of {counted(len(answered), 'row')} answered, written to {out}")
            lines[:0] = [f"declined {n}: {reason}" for reason, n in [*reasons.items()][:5]]
        unnamed = (answered.texts("framework") == "") & (answered.texts("predictor") == "analytic")
        if blank := int(unnamed.sum()):
            lines.append(f"{counted(blank, 'row')} without a framework: bands cover the usual ones")
        if "choice" in summary:
            who = [*summary["answered_by"].items()][:_SHOWN]
            lines += [f"{name} answered {counted(n, 'row')}" for name, n in who]
            lines += summary["reasons_of_choice"]
        if unfit:
            lines.append(
                f"{counted(unfit, 'row')} of them {'does' if unfit == 1 else 'do'} not fit in memory, or"
                " probably not (predicted_fit_probability below 0.5)"
            )
        for line in lines:
            echo(f"  {line}", err=out is None)
    if not count:
        why = "the reasons are printed above"
        if out is None:
            reason, rows = next(iter(reasons.items()))
            why = f"{counted(rows, 'row')}: {reason}"
        raise UnsatisfiedError(
            f"answers for {path}", f"no row was answered; {why}",
            "correct the rows, or fit a predictor to runs with these labels: --fit",
        )  # fmt: skip
