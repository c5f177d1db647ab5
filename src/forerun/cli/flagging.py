"""Flagging: what looked wrong in runs, as a short table for a person and a file of every flag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from forerun.cli.kinds import FILE
from forerun.cli.screen import plain_lines

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.tables import Runs
    from forerun.tables.suspects import Flags

_FIRST = 3
flags_option = click.option(
    "--flags", "flags_file", type=FILE, metavar="FILE.csv",
    help="Write every suspect or unused run: file, line, column, what was found and expected.",
)  # fmt: skip


def fitted(advisor: Advisor, files: Sequence[Path], to: Path | None, aside: bool = True) -> Advisor:
    """Return the advisor that has learned from files, and say what looked wrong in them.

    Args:
        advisor: who learns.
        files: of runs.
        to: where every flag is written, if anywhere; also where nothing could be learned.
        aside: on stderr, and only what is suspect; else on stdout, with every row that teaches
            nothing.

    Raises:
        RequestError: a table cannot be read, or its runs cannot teach the predictor.
    """
    from forerun.advisor.learning import LearningError

    try:
        learned = advisor.fit(*files)
    except LearningError as error:
        report(error.flags, to, aside=True, all_kinds=not aside)
        raise
    if learned.flags is not None:
        report(learned.flags, to, aside, all_kinds=not aside)
    if learned.repeated and learned.flags is not None:
        click.echo(
            f"{learned.repeated:,} of {learned.flags.rows:,} runs taught the shipped constants"
            " already, and count twice; --start priors counts them once",
            err=aside,
        )
    return learned


def report_runs(runs: Iterable[Runs], to: Path | None = None) -> None:
    """Say on stderr what looks suspect in runs, and write every flag to a file if one is named."""
    from forerun.advisor.learning import flags_of
    from forerun.evaluate import join_runs

    report(flags_of(join_runs(list(runs))), to)


def report(
    flags: Flags, to: Path | None = None, aside: bool = True, all_kinds: bool = False
) -> None:
    """Say what looked wrong, a few lines of each kind; and write every flag, if a file is named."""
    if to is not None:
        from forerun.tables import write_table

        write_table(flags.as_table(), to)
    for line in flag_lines(flags, all_kinds):
        click.echo(line, err=aside)
    if to is not None:
        click.echo(f"{len(flags):,} flags written to {to}", err=aside)


def flag_lines(flags: Flags, all_kinds: bool = False) -> Iterator[str]:
    """Yield what is shown of flags: a count, what whole columns look like, a table, and examples."""
    from forerun.tables.suspects import KINDS, POLICY

    suspect = int(flags.rows_with(flags.suspect).sum())
    if not suspect and not (all_kinds and len(flags)):
        return
    teach = int(flags.teaches_step.sum())
    yield f"{suspect:,} of {flags.rows:,} runs look wrong; {teach:,} teach a step time"
    yield from flags.wholes
    shown = [k for k in KINDS if all_kinds or flags.suspect[flags.of(k)].any()]
    counts = flags.counts()
    rows = [(k, f"{counts[k]:,}", POLICY[k][1], POLICY[k][0]) for k in shown if k in counts]
    yield from plain_lines(
        ("kind", "runs", "in a fit", "meaning"),
        [[str(cell) for cell in row] for row in rows],
        (False, True, False, False),
    )
    for kind in shown:
        where = np.flatnonzero(flags.of(kind))
        for i in where[:_FIRST]:
            yield f"  {kind}: {flags.text(int(i))}"
        if len(where) > _FIRST:
            yield f"  {kind}: and {len(where) - _FIRST:,} more (all: --flags FILE.csv)"
