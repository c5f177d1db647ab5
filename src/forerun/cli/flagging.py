"""Flagging: what looked wrong in runs, as a short table for a person and a file of every flag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from forerun.cli.inputs import FILE
from forerun.cli.showing import plain_lines, waiting
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.tables import Runs
    from forerun.tables.suspects import FlagKind, Flags

_FIRST = 3
flags_option = click.option(
    "--flags", "flags_file", type=FILE, metavar="FILE.csv",
    help="Write every suspect or unused run: file, line, column, what was found and expected.",
)  # fmt: skip


def fitted(advisor: Advisor, files: Sequence[Path], to: Path | None, aside: bool = True) -> Advisor:
    """Return the advisor fitted to files of runs, and print what looked wrong in them.

    `to`: where every flag is written. `aside`: on stderr, and only what is suspect; else on stdout,
    with every row that is not used.
    """
    from forerun.advisor.fit_summary import LearningError

    names = ", ".join(path.name for path in files[:_FIRST])
    try:
        with waiting(f"fitting {advisor.predictor.name} to {names}"):
            learned = advisor.fit(*files)
    except LearningError as error:
        _report(error.flags, to, all_kinds=not aside)
        raise
    if learned.flags is not None:
        # A law or a regression uses no physics, so that what physics lacks is no news.
        _report(learned.flags, to, aside, not aside, physics=advisor.predictor.name == "auto")
    if learned.flags is not None and learned.repeated:
        click.echo(
            f"{learned.repeated:,} of {learned.flags.rows:,} runs are among those that the"
            " shipped constants were fitted to already, and count twice; --start priors counts"
            " them once",
            err=aside,
        )
    return learned


def report_runs(runs: Iterable[Runs]) -> None:
    """Print on stderr what looks suspect in runs."""
    from forerun.advisor.fit_summary import flags_of
    from forerun.tables.jobs import join_runs

    _report(flags_of(join_runs(list(runs))))


def _report(
    flags: Flags, to: Path | None = None, aside: bool = True, all_kinds: bool = False,
    physics: bool = True,
) -> None:  # fmt: skip
    # Columns of one's own are for whoever asks what was learned; a slip is worth a word anywhere.
    unread = {n: near for n, near in flags.unread.items() if near or all_kinds}
    for line in filter(None, (unread_line(unread), *_flag_lines(flags, all_kinds, physics))):
        click.echo(line, err=aside)
    if to is not None:
        from forerun.tables import write_table

        write_table(flags.as_table(), to)
        click.echo(f"{counted(len(flags), 'flag')} written to {to}", err=aside)


def unread_line(unread: Mapping[str, str]) -> str:
    """Return which columns nobody reads, with what was likely meant; "" where all are read."""
    named = [
        f"{name!r} (did you mean {near!r}?)" if near else repr(name)
        for name, near in sorted(unread.items(), key=lambda item: not item[1])
    ]
    word = "column is" if len(named) == 1 else "columns are"
    return f"{len(named)} {word} not known, and not read: {', '.join(named)}" if named else ""


def _flag_lines(flags: Flags, all_kinds: bool, physics: bool) -> Iterator[str]:
    """Yield what is shown of flags: a count, what whole columns look like, a table, and examples."""
    from forerun.tables.suspects import KINDS, POLICY, FlagKind

    counts = flags.counts()
    shown = [
        k for k in KINDS if str(k) in counts and (all_kinds or flags.suspect[flags.of(k)].any())
    ]
    by_label = [k for k in shown if _learned_by_label(flags, k)]
    if by_label and physics:
        rows = int((flags.rows_with(flags.of(*by_label)) & flags.teaches_time).sum())
        kinds = ", ".join(POLICY[k][0] for k in by_label)
        yield f"{rows:,} of {counted(flags.rows, 'run')} learned by label, not by physics ({kinds})"
    shown = [k for k in shown if k not in by_label]
    flagged = int(flags.rows_with(flags.of(*shown)).sum())
    if not flagged:
        return
    used = int(flags.teaches_time.sum())
    what = "a step time" if flags.by_label is None else "a time"
    yield (
        f"{flagged:,} of {counted(flags.rows, 'run')} {'is' if flagged == 1 else 'are'} flagged;"
        f" {used:,} {'has' if used == 1 else 'have'} {what} to fit"
    )
    yield from flags.wholes
    rows_of = []
    for kind in shown:
        fate = POLICY[kind][1]
        if learned := flags.learned_by_label(kind):
            fate = f"{learned:,} of {counts[kind]:,} learned by label; else {fate}"
        elif kind is FlagKind.UNIT:
            out = int(flags.rows_with(flags.of(kind) & flags.void).sum())
            fate = f"{fate} ({out:,} of {counts[kind]:,})"
        rows_of.append([str(kind), f"{counts[kind]:,}", fate, POLICY[kind][0]])
    heads = ("kind", "runs", "in a fit", "meaning")
    yield from plain_lines(heads, rows_of, (False, True, False, False))
    for kind in shown:
        where = np.flatnonzero(flags.of(kind)).tolist()
        for i in where[:_FIRST]:
            fate = ""
            if kind is FlagKind.UNIT:  # only what is certainly wrong is left out
                fate = "; left out" if flags.void[i] else "; in doubt, so kept"
            yield f"  {kind}: {flags.text(i)}{fate}"
        if len(where) > _FIRST:
            yield f"  {kind}: and {len(where) - _FIRST:,} more (all: --flags FILE.csv)"


def _learned_by_label(flags: Flags, kind: FlagKind) -> bool:
    rows = flags.rows_with(flags.of(kind))
    other = flags.rows_with(flags.suspect & flags.void)
    return flags.learned_by_label(kind) > 0 and bool((flags.teaches_time | other)[rows].all())
