"""Words: what laws by kind are called, and why runs taught none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from forerun.domain.plan import SYNC
from forerun.predictors.laws.grouping import AT, MIXED
from forerun.predictors.laws.law_rows import GROUP, SETTINGS, Kind
from forerun.tables import Runs

_TIMES = ("step_time_s", "epoch_time_s", "time_to_train_s")
_MOST_LISTED = 3
_SYNC = len(GROUP) + SETTINGS.index("sync")


def kind_words(kind: Kind, say_sync: bool = True) -> str:
    """Return a kind of job in words: `resnet50 on t4 (pytorch, fp32)`.

    say_sync: whether all-reduce is said, which is also what a row without any word of it has.
    """
    lead = " on ".join(text or "(blank)" for text in kind[: len(GROUP)])
    silent = None if say_sync else _SYNC
    rest = ", ".join(
        text for i, text in enumerate(kind) if text and i >= len(GROUP) and i != silent
    )
    return f"{lead} ({rest})" if rest else lead + ", all settings" * (len(kind) == len(GROUP))


def tells_sync(kinds: Iterable[Kind]) -> bool:
    """Return whether kinds differ in how replicas agree; all-reduce alone is what blanks mean."""
    return {kind[_SYNC] for kind in kinds if len(kind) > _SYNC} - {SYNC[0]} != set()


def what_to_do(lacking: Iterable[str], needed: str) -> str:
    """Return what to do about kinds that have no law, given why: mend units, else give runs."""
    mixed = [why.partition(MIXED)[2].removeprefix(AT) for why in lacking if MIXED in why]
    if not mixed:
        return f"give {needed}"
    where = "; ".join(dict.fromkeys(filter(None, mixed)))
    return f"mend the units of {where or 'those times'} (times are in s), or leave these rows out"


def article(quantity: str) -> str:
    """Return `a step`, `an epoch` or `a run`."""
    return f"an {quantity}" if quantity == "epoch" else f"a {quantity}"


def listed(lacking: Mapping[Kind, str]) -> str:
    """Return why kinds of job have no law, the first few of them by workload and device."""
    told = {kind: why for kind, why in lacking.items() if len(kind) == len(GROUP)} or lacking
    texts = [f"{' on '.join(kind[:2])}: {why}" for kind, why in list(told.items())[:_MOST_LISTED]]
    more = len(told) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def why_no_law(kind: Kind, lacking: Mapping[Kind, str]) -> str:
    """Return what is had of a kind that no law answers: no runs, or runs that cannot teach."""
    what = " on ".join(text or "(blank)" for text in kind[: len(GROUP)])
    why = lacking.get(kind, lacking.get(kind[: len(GROUP)], ""))
    return f"no law of {what}: {why}" if why else f"no runs of {what}"


def left_out(runs: Runs) -> list[str]:
    """Return how many runs have a time that teaches nothing, and why, in words."""
    times = [runs.measured(name) for name in _TIMES]
    stated = np.any([np.isfinite(column) for column in times], axis=0)
    wrong = np.any([column <= 0 for column in times], axis=0)
    counts = {
        "did not end (their times are lower bounds)": int((stated & (runs.status != "ok")).sum()),
        "have a time of 0 or below": int((wrong & (runs.status == "ok")).sum()),
    }
    return [f"{count} {words}" for words, count in counts.items() if count]


def why_no_times(runs: Runs) -> tuple[str, str]:
    """Return what was found of runs of which none that ended has a time, and what to do."""
    found = "none that ended has a time of a step, an epoch or a whole run"
    for note in left_out(runs):
        found += f"; {note}"
    return (
        found, "give runs with step_time_s, samples_per_s, epoch_time_s or time_to_train_s above 0"
    )  # fmt: skip


def interval(value: float, low: float, high: float) -> str:
    """Return a parameter with its 5 to 95 % interval: `0.012 [0.011, 0.013]`."""
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def percent(share: float) -> str:
    """Return a share as whole per cents: `62 %`."""
    return f"{100 * share:.0f} %"


def reading_words(formula: str) -> str:
    """Return how a formula's brackets and logarithms are to be read, for those that it has."""
    said = ["[ ] hold 90 % (5 to 95 %)"] * ("[" in formula) + ["log is natural"] * (
        "log" in formula
    )
    return "".join(f"{text}; " for text in said)


def shortened(notes: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the first of the distinct notes, and how many more there are."""
    distinct = tuple(dict.fromkeys(notes))
    rest = len(distinct) - most
    return (*distinct[:most], f"and {rest:,} more such notes") if rest > 0 else distinct
