"""forerun predict: time, cost and memory of one job, or of every row of a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.flagging import unread_line
from forerun.cli.inputs import FILE, TABLES, WHOLE, SeveralTables, missing, writable
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
from forerun.cli.showing import show_answer
from forerun.errors import RequestError, UnsatisfiedError
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.settings import Settings
    from forerun.tables import Table

_SHOWN = 12  # lines of who answered which kind of question
_ONE_JOB = ("cluster", "plan", "global_batch", "micro_batch", "price", "deadline", "budget",
            "preemption_rate", "checkpoint_interval", "seq_len", "image_size", "precision", "framework", "optimizer",
            "dataset", "dataset_size", "task")  # fmt: skip


@click.command(cls=SeveralTables)
@click.argument("workload", required=False, shell_complete=complete_workload)
@click.option(
    "--cluster",
    help="NODESxDEVICESxDEVICE or NODESxINSTANCE, e.g. 1x8xa100-sxm-80gb.",
    shell_complete=complete_cluster,
)
@click.option("--plan", help="Plan fields to fix, e.g. tp=2,pp=4; the search chooses the rest.")
@click.option("--global-batch", type=WHOLE, help="Samples in an optimizer step.")
@click.option("--micro-batch", type=WHOLE, help="Samples a device does in one pass.")
@click.option("--table", type=FILE, metavar="JOBS.csv", help="Answer every row of a runs table.")
@click.option(
    "--out", type=FILE, metavar="FILE", help="With --table: the .csv, .parquet or .pq to write."
)
@length_options
@price_option
@limit_options
@market_options
@workload_options
@predictor_options
@json_option
def predict(
    workload: str | None, table: Path | None, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Time, cost and memory of one job, with the 5 to 95 % range.

    Plan fields that are not given are chosen by search and printed: recompute and zero_stage too,
    which blank cells of a table's row that states a plan mean as none and 0. How long the job is:
    --steps, --samples, --tokens or --epochs; else the workload's usual length. With --deadline or
    --budget, the probability of keeping it.

    With --table every row is answered, or declined with its reason; --out keeps the rows' order
    and columns and adds the answers (without it they go to stdout as CSV). A row that states no
    plan gets one by search; docs/tables.md tells every column.

    With --fit and no --predictor, the runs choose: every predictor is fitted to them and judged on
    parts of them held out, and each row is answered by those that did best on its kind of question.
    """
    settings = settings_of(options)
    if table is not None:
        _check_table_request(workload, options)
        read = (table, *options["fit_files"], *options["catalog_files"])
        if out is not None and options["flags_file"] == out:
            raise RequestError(f"--out {out} and --flags {out}", "one file", "name two files")
        _predict_table(table, writable(out, "writing", TABLES, read), settings, as_json, options)
        return
    if out is not None:
        raise RequestError(
            f"--out {out} without --table", "only a table of answers is written",
            "use --json and redirect it, or give --table",
        )  # fmt: skip
    cluster = options.pop("cluster")
    if workload is None or cluster is None:
        lacking = {"workload": workload, "cluster": cluster}
        needed = [p for p in predict.params if p.name in lacking and lacking[p.name] is None]
        raise missing("forerun predict", needed, "--table JOBS.csv")
    advisor = advisor_of(settings, options, choose=True)
    answer = advisor.predict(
        workload,
        cluster,
        options.pop("plan"),
        length=length_of(options),
        preemption=preemption_of(options),
        market=settings.text("market"),
        region=settings.text("region"),
        **changes_of(options),
        **options,
    )
    if as_json:
        click.echo(wire.dumps(answer.to_json()))
    else:
        show_answer(Screen(settings), answer)


def _check_table_request(workload: str | None, options: dict[str, Any]) -> None:
    given = [f"--{n.replace('_', '-')}" for n in _ONE_JOB if options.get(n) is not None]
    if workload is not None:
        given.insert(0, f"WORKLOAD {workload}")
    if given:
        raise RequestError(
            f"--table with {', '.join(given)}", "the rows of a table say that themselves",
            "put it in the table's columns, or leave --table out",
        )  # fmt: skip


def _predict_table(
    path: Path, out: Path | None, settings: Settings, as_json: bool, options: dict[str, Any]
) -> None:
    """Answer a table's rows.

    Raises:
        UnsatisfiedError: no row was answered; the file is written all the same.
    """
    from forerun.advisor.tabular import not_fitting
    from forerun.tables import read_table, write_table
    from forerun.tables.table import misspelt_columns

    table = read_table(path)
    unread = unread_line(misspelt_columns(table.columns))
    if unread:
        click.echo(f"warning: {unread}", err=True)
    advisor = advisor_of(settings, options, choose=True)
    length = length_of(options)
    answered = advisor.predict_table(table, length=length, market=settings.text("market"))
    if out is not None:
        write_table(answered, out)
    choice = _choice(advisor, answered)
    reasons = Counter(reason for reason in answered.texts("declined") if reason)
    count = len(answered) - sum(reasons.values())
    unfit = not_fitting(answered)
    if as_json:
        found = _table_json(answered, count, reasons, out)
        from forerun.predictors.starts import known_by

        runs = {} if advisor.flags is None else {"runs": advisor.flags.as_dict()}
        found["not_fitting"] = unfit
        click.echo(wire.dumps({**found, **known_by(advisor.predictor), **runs, **choice}))
    elif out is None:
        _echo_csv(answered)
    else:
        click.echo(f"{count:,} of {counted(len(answered), 'row')} answered, written to {out}")
        for reason, rows in reasons.most_common(5):
            click.echo(f"  declined {rows}: {reason}")
    if choice and not as_json:
        _echo_choice(choice, aside=out is None)
    if unfit and not as_json:
        word = "does" if unfit == 1 else "do"
        click.echo(
            f"  {counted(unfit, 'row')} of them {word} not fit in memory, or probably not"
            " (predicted_fit_probability below 0.5; predicted_note says it)",
            err=out is None,
        )
    if not count:
        raise UnsatisfiedError(
            f"answers for {path}", f"no row was answered; {_why(reasons, out)}",
            "mend the rows, or teach a predictor these labels with --fit",
        )  # fmt: skip


def _choice(advisor: Advisor, answered: Table) -> dict[str, Any]:
    """Return who answered how many rows, and why; empty where a predictor was named."""
    if not hasattr(advisor.predictor, "verdicts"):
        return {}
    who = Counter(name for name in answered.texts("predictor") if name)
    return {
        "answered_by": dict(who.most_common()),
        "choice": advisor.predictor.verdicts,
        "reasons_of_choice": list(getattr(advisor.predictor, "reasons", ())),
    }


def _echo_choice(choice: dict[str, Any], aside: bool) -> None:
    """Say who answered and why, a few lines of each."""
    for name, rows in list(choice["answered_by"].items())[:_SHOWN]:
        click.echo(f"  {name} answered {counted(rows, 'row')}", err=aside)
    for words in choice["reasons_of_choice"]:
        click.echo(f"  {words}", err=aside)


def _why(reasons: Counter[str], out: Path | None) -> str:
    """Return the commonest reason where it stands in a table alone, else a pointer to it."""
    if out is not None:
        return "the reasons are printed above"
    reason, rows = reasons.most_common(1)[0]
    return f"{counted(rows, 'row')}: {reason}"


def _table_json(table: Any, answered: int, reasons: Counter[str], out: Path | None) -> Any:
    from forerun.tables.table import iter_rows

    return {
        "schema": wire.SCHEMA,
        "kind": "table",
        "answered": answered,
        "declined": sum(reasons.values()),
        "reasons": dict(reasons.most_common()),
        **({"rows": list(iter_rows(table))} if out is None else {"out": str(out)}),
    }


def _echo_csv(table: Any) -> None:
    from tempfile import TemporaryDirectory

    from forerun.tables import write_table

    with TemporaryDirectory() as folder:
        path = Path(folder) / "answers.csv"
        write_table(table, path)
        click.echo(path.read_text(encoding="utf-8"), nl=False)
