"""Flagging: what looked wrong in runs, as a short table for a person and a file of every flag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from forerun.cli.inputs import FILE
from forerun.cli.printing import echo
from forerun.cli.showing import plain_lines, waiting
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.tables import Runs
    from forerun.tables.suspects import Flags

_FIRST = 3
flags_option = click.option(
    "--flags", "flags_file", type=FILE, metavar="FILE.csv",
    help="Write every suspect or unused run: file, line, column, what was found and expected.",
)  # fmt: skip


def fitted(
    advisor: Advisor, files: Sequence[Path], to: Path | None, aside: bool = True,
    own_columns: str = "",
) -> Advisor:  # fmt: skip
    """Return the advisor fitted to files of runs; print suspect runs, or with `aside` off all unused."""
    from forerun.advisor.fit_summary import LearningError

    names = ", ".join(path.name for path in files[:_FIRST])
    try:
        with waiting(f"fitting {advisor.predictor.name} to {names}", plain=True):
            learned = advisor.fit(*files, own_columns=own_columns)
    except LearningError as error:
        _report(error.flags, to, all_kinds=not aside)
        raise
    if learned.flags is None:
        return learned
    _report(learned.flags, to, aside, not aside, physics=advisor.predictor.name == "auto")
    if learned.repeated:
        echo(
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
    # Columns of one's own are of interest to `fit` alone; a misspelt one anywhere.
    unread = {n: near for n, near in flags.unread.items() if near or all_kinds}
    lines = (unread_line(unread, flags.own.left_out), own_line(flags.own.factors))
    for line in filter(None, (*lines, *_flag_lines(flags, all_kinds, physics))):
        echo(line, err=aside)
    if to is not None:
        from forerun.tables import write_table

        write_table(flags.as_table(), to)
        echo(f"{counted(len(flags), 'flag')} written to {to}", err=aside)


def own_line(factors: tuple[str, ...]) -> str:
    """Return which of the user's own columns are part of a configuration, "" where none is."""
    from forerun.tables.table import map_words, misspelt_columns

    near = misspelt_columns(factors)
    named = [f"{n} (or is {near[n]} meant?)" if n in near else n for n in factors]
    if not named:
        return ""
    words = f"part of a configuration, of columns of your own: {', '.join(named)}"
    return f"{words} (--own-columns changes this){map_words(near)}"


def unread_line(unread: Mapping[str, str], why: Mapping[str, str] | None = None) -> str:
    """Return which columns nobody reads, with what was likely meant or why; "" where all are read."""
    from forerun.tables.table import map_words

    reasons = why or {}
    named = [
        f"{name!r} (did you mean {near!r}?)" if near
        else f"{name!r} ({reasons[name]})" if name in reasons else repr(name)
        for name, near in sorted(unread.items(), key=lambda item: not item[1])
    ]  # fmt: skip
    word = "column is" if len(named) == 1 else "columns are"
    words = f"{len(named)} {word} not known, and not read: {', '.join(named)}" if named else ""
    return words + map_words(unread)


def _flag_lines(flags: Flags, all_kinds: bool, physics: bool) -> Iterator[str]:
    from forerun.tables.suspects import KINDS, FlagKind

    by_label = flags.teaches_time & ~flags.teaches_step
    if all_kinds and physics and by_label.any():
        runs = counted(flags.rows, "run")
        why = "a workload that is not known nor described"
        yield f"{by_label.sum():,} of {runs} learned by label, not by physics ({why})"
    yield from flags.wholes
    shown = flags.suspect | (all_kinds & ~by_label[flags.row])
    if not shown.any():
        return
    flagged, used = int(flags.rows_with(shown).sum()), int(flags.teaches_time.sum())
    yield (
        f"{flagged:,} of {counted(flags.rows, 'run')} {'is' if flagged == 1 else 'are'} flagged;"
        f" {used:,} {'has' if used == 1 else 'have'}"
        f" {'a step time' if flags.by_label is None else 'a time'} to fit"
    )
    rows, examples = [], []
    for kind in KINDS:
        of_kind = shown & flags.of(kind)
        if not of_kind.any():
            continue
        count, fate = int(flags.rows_with(of_kind).sum()), kind.fate
        unit = kind is FlagKind.UNIT  # only what is certainly wrong is left out
        if unit:
            fate += f" ({int(flags.rows_with(of_kind & flags.void).sum()):,} of {count:,})"
        rows.append([str(kind), f"{count:,}", fate, kind.meaning])
        where = np.flatnonzero(of_kind).tolist()
        for i in where[:_FIRST]:
            kept = "; left out" if flags.void[i] else "; in doubt, so kept"
            examples.append(f"  {kind}: {flags.text(i)}{kept if unit else ''}")
        if len(where) > _FIRST:
            examples.append(f"  {kind}: and {len(where) - _FIRST:,} more (all: --flags FILE.csv)")
    yield from plain_lines(
        ("kind", "runs", "in a fit", "meaning"), rows, (False, True, False, False)
    )
    yield from examples
