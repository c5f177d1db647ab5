"""Learning: a predictor is shown runs, less what looks wrong in them, and every such row is named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES, Forecasts
from forerun.domain.quantiles import scope_of
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.options import PRIORS, SHIPPED, known_by, started
from forerun.tables import Runs
from forerun.tables.suspects import KINDS, POLICY, FlagKind, Flags, cleaned, suspects
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.predictors.analytic.calibration import Learned


# Who learns from runs of workloads and devices that are known alone; the others go by labels.
_BY_PHYSICS = ("analytic", "residual", "constant-mfu")


class LearningError(RequestError):
    """No run can be fitted; `flags` gives the reason of each row."""

    def __init__(self, asked: str, found: str, next_step: str, flags: Flags) -> None:
        super().__init__(asked, found, next_step)
        self.flags = flags


def flags_of(runs: Runs, predictor: Predictor | None = None) -> Flags:
    """Return what looks wrong in runs, against what physics expects of them.

    Args:
        runs: facts, as they were given.
        predictor: whose physics counts, where it is analytic; else that of the priors, which have
            seen no run.
    """
    if predictor is None or predictor.name != "analytic":
        predictor = started("analytic", PRIORS)
    return suspects(runs, predictor.predict(runs.jobs))


def fitted(predictor: Predictor, runs: Runs) -> tuple[Predictor, Flags]:
    """Return the predictor that has learned from the runs, and what was flagged in them.

    Figures that a flag leaves out are not shown to the predictor (see `suspects.POLICY`).

    Raises:
        LearningError: it cannot be fitted to the runs; where none has a usable time, the flags say why.
    """
    flags = flags_of(runs, predictor)
    clean = cleaned(runs, flags)
    by_label = predictor.name not in _BY_PHYSICS
    if by_label:
        timed = [np.isfinite(measured(clean, quantity)) for quantity in QUANTITIES]
        flags = replace(flags, by_label=np.any(timed, axis=0))
    try:
        return predictor.fit(clean), flags
    except RequestError as error:
        if by_label or flags.teaches_step.any():
            raise LearningError(error.asked, error.found, error.next_step, flags) from None
        raise _nothing_learned(runs, flags) from None


def _nothing_learned(runs: Runs, flags: Flags) -> LearningError:
    """Return why no row is left, by what was found first in each."""
    why = "; ".join(flags.wholes)
    if not why:
        out = flags.out_step
        first = np.unique(flags.row[out], return_index=True)[1]
        kinds = Counter(KINDS[kind] for kind in flags.kind[out][first])
        why = ", ".join(f"{n:,} {kind} ({POLICY[kind][0]})" for kind, n in kinds.most_common())
    next_step = (
        "correct the rows: `forerun fit --flags FILE.csv` lists every one with its reason; or use a"
        " predictor that learns from labels alone: --predictor auto"
    )
    if flags.rows_with(flags.of(FlagKind.ENDED)).all():
        next_step = (
            "add a run that ended ok, with step_time_s; runs out of memory show where memory ends,"
            " and no time"
        )
    title, found = (
        f"learning from {counted(len(runs), 'run')}",
        f"none of them has a step time to fit: {why}",
    )
    return LearningError(title, found, next_step, flags)


def known_already(predictor: Predictor, runs: Runs) -> int:
    """Return how many runs a predictor's shipped constants were fitted to already: they count twice."""
    from forerun.evaluate.judge import seen_by

    if known_by(predictor).get("start") != SHIPPED:
        return 0
    return seen_by(type(predictor), runs) or 0


_SUREST = 1e-9  # nothing is surer, so that nothing is divided by zero


@dataclass(frozen=True)
class Finding:
    """One constant after a fit.

    Attributes:
        entry: its value, interval, prior and sources.
        gain: what the runs added, in nats: from the belief before the fit to that after it.
        identified: whether they narrowed it enough.
        words: what it is called.
    """

    entry: Learned
    gain: float
    identified: bool
    words: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **self.entry.to_dict(), "identified": self.identified, "gain_nats": self.gain,
            "words": self.words,
        }  # fmt: skip


def findings(predictor: Predictor, before: Predictor | None = None) -> tuple[Finding, ...]:
    """Return what a predictor learned from runs, the best informed first.

    Args:
        predictor: one whose `learned` says so; nothing of others.
        before: what it was fitted from; constants of which the runs could not speak are left out.
            None is for all that it has ever learned.
    """
    known = {entry.name: entry for entry in getattr(before, "learned", ())}
    entries: Iterable[Learned] = getattr(predictor, "learned", ())
    found = [_finding(entry) for entry in entries if known.get(entry.name) != entry]
    return tuple(sorted(found, key=lambda finding: -finding.gain))


def _finding(entry: Learned) -> Finding:
    from forerun.predictors.analytic.families import constant_words
    from forerun.predictors.analytic.saving import UNIDENTIFIED

    free = max(entry.prior_log_sd, _SUREST)
    narrowed = max(entry.log_sd / free, _SUREST)
    shift = math.log(entry.value / entry.prior) / free if entry.value and entry.prior else 0.0
    # Of two normals: the Kullback-Leibler divergence.
    gain = 0.5 * (narrowed**2 + shift**2 - 1.0) - math.log(narrowed)
    identified = entry.runs > 0 and narrowed <= UNIDENTIFIED
    return Finding(entry, gain, identified, constant_words(entry.name))


def open_questions(found: Sequence[Finding]) -> tuple[str, ...]:
    """Return the constants that the runs do not identify, each family in one piece of text.

    First those of which most runs spoke, without telling them apart from others.
    """
    from forerun.predictors.analytic.families import family_words, key_words

    families: dict[str, list[str]] = {}
    for finding in sorted(found, key=lambda finding: (-finding.entry.runs, finding.words)):
        if not finding.identified:
            name = finding.entry.name
            families.setdefault(family_words(name), []).append(key_words(name))
    return tuple(
        f"{family} ({', '.join(keys)})" if any(keys) else family
        for family, keys in families.items()
    )


_FEW = 2
_MOST = 256  # runs whose forecasts and open causes are looked at
_SOURCES = 3
_PECULIAR = "machines, software versions, network, tuning"


def fit_summary(
    predictor: Predictor, runs: Runs, flags: Flags, found: Sequence[Finding], before: Predictor
) -> tuple[str, ...]:
    """Return what runs say as a whole, in sentences; none for predictors that name no constants.

    Args:
        predictor: what was fitted.
        runs, flags: what it was fitted on, and which rows were not used.
        found: what it learned.
        before: what it was fitted from.
    """
    rows = np.flatnonzero(flags.teaches_step & runs.jobs.resolved)
    if not found or not len(rows):
        return ()
    some = runs.take(rows[np.unique(np.linspace(0, len(rows) - 1, _MOST).astype(int))])
    forecasts = predictor.predict(some.jobs)
    lines = [_place(runs, rows), _moved(before.predict(some.jobs), forecasts, some)]
    if len(rows) <= _FEW:
        known = [finding.words for finding in found if finding.identified]
        settled = f"{counted(len(known), 'constant')} ({'; '.join(known[:_SOURCES])})"
        kept = "what is shipped" if known_by(predictor).get("start") == SHIPPED else "their priors"
        lines.append(
            f"few: {'one run determines' if len(rows) == 1 else f'{len(rows)} runs determine'} little: settled"
            f" {settled if known else 'no constant'}; the other {len(found) - len(known)} stay at"
            f" {kept}. A slow device, a slow network and a bad day look alike in so few"
        )
    lines.append(_next_run(forecasts.causes, runs, rows))
    return tuple(filter(None, lines))


def _place(runs: Runs, rows: IntArray) -> str:
    """Return what becomes of whatever is peculiar to where the runs were made."""
    names = sorted(set(runs.table.texts("source")[rows].tolist()))
    if len(names) == 1:
        return (
            f"setting: the runs come from one place ({names[0] or 'no source is named'}), so what is"
            f" peculiar to it ({_PECULIAR}) is part of what was learned, and answers are for that place"
        )
    shown = ", ".join(name or "not named" for name in names[:_SOURCES])
    more = f" and {len(names) - _SOURCES} more" if len(names) > _SOURCES else ""
    return (
        f"setting: the runs come from {len(names)} places (source: {shown}{more}), so what is"
        f" peculiar to each ({_PECULIAR}) is set aside, and answers are for a place not seen yet"
    )


def _moved(old: Forecasts, new: Forecasts, runs: Runs) -> str:
    """Return how far the forecasts of the runs' own jobs went in all, and how they lie now."""
    seconds = np.stack([old.seconds[:, 1], new.seconds[:, 1], runs.step_seconds()])
    was, now, measured_seconds = seconds[:, np.isfinite(seconds).all(axis=0)]
    if not len(now):
        return ""
    low, middle, high = np.quantile(now / was, (0.0, 0.5, 1.0))
    left = np.exp(np.median(np.abs(np.log(now / measured_seconds))))
    span = f" ({low:.3g}x to {high:.3g}x)" if high > 1.005 * low else ""
    return (
        f"moved: forecasts of these runs' jobs moved by {middle:.3g}x in the median{span}, to"
        f" {left:.3g}x off what was measured; constants that are not identified share in it"
    )


def _next_run(causes: Mapping[str, FloatArray], runs: Runs, rows: IntArray) -> str:
    """Return which kind of further run would add most, by what is left open of these."""
    if not causes:
        return ""
    whole = np.maximum(np.sum(list(causes.values()), axis=0), 1e-300)
    plans = runs.jobs.plans.take(rows)
    devices = np.unique(runs.jobs.per_cluster("devices")[rows])
    micro = np.unique(plans.micro_batch)
    names = ("tp", "pp", "cp", "zero_stage", "recompute")
    layouts = np.unique(np.stack([getattr(plans, name) for name in names]), axis=1)
    # What kind of run speaks of which causes of error (see `domain.quantiles`).
    kinds = (
        (len(devices), ("link", "scale"), f"on another number of devices (all had {devices[0]:.0f})"),
        (len(micro), ("host",), f"with another micro-batch (all had {micro[0]})"),
        (layouts.shape[1], ("plan", "case", "schedule"),
         "with another plan (all had the same tp, pp, zero_stage)"),
    )  # fmt: skip
    open_by = [
        (sum(float(np.mean(v / whole)) for cause, v in causes.items() if scope_of(cause) in scopes), words)
        for count, scopes, words in kinds if count == 1
    ]  # fmt: skip
    words = max(open_by)[1] if open_by else "unlike these in plan or number of devices"
    if devices.tolist() == [1]:
        words = "on several devices: these say nothing of links"
    known = np.isfinite(runs.table.numbers("memory_gb")[rows]).any()
    memory = "" if known else "; fill in memory_gb, or nothing is learned of memory"
    return f"next: a run {words} would add most{memory}"
