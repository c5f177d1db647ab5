"""Learning: a predictor is shown runs, less what looks wrong in them, and every such row is named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.domain.comparison import scope_of
from forerun.domain.forecast import QUANTITIES
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.starts import PRIORS, SHIPPED, known_by, started
from forerun.tables import Runs
from forerun.tables.suspects import KINDS, POLICY, FlagKind, Flags, cleaned, suspects
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.predictors.analytic.calibration import Learned


# Who learns from runs of workloads and devices that are known alone; the others go by labels.
_BY_PHYSICS = ("analytic", "residual", "constant-mfu")


class LearningError(RequestError):
    """Runs that teach nothing; `flags` says of each row why."""

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
        LearningError: the runs cannot teach it; where none teaches a time, the flags say why.
    """
    flags = flags_of(runs, predictor)
    clean = cleaned(runs, flags)
    by_label = predictor.name not in _BY_PHYSICS
    if by_label:
        told = [np.isfinite(measured(clean, quantity)) for quantity in QUANTITIES]
        flags = replace(flags, by_label=np.any(told, axis=0))
    try:
        return predictor.fit(clean), flags
    except RequestError as error:
        if by_label or flags.teaches_step.any():
            raise LearningError(error.asked, error.found, error.next_step, flags) from None
        found = f"none of them teaches a step time: {_why_none(flags)}"
        raise LearningError(
            f"learning from {counted(len(runs), 'run')}", found, _next(flags), flags
        ) from None


def known_already(predictor: Predictor, runs: Runs) -> int:
    """Return how many runs have taught a predictor's shipped constants before: they count twice."""
    from forerun.evaluate.judge import seen_by

    if known_by(predictor).get("start") != SHIPPED:
        return 0
    return seen_by(type(predictor), runs) or 0


def _why_none(flags: Flags) -> str:
    """Return why no row is left, by what was found first in each."""
    if flags.wholes:
        return "; ".join(flags.wholes)
    out = flags.out_step
    first = np.unique(flags.row[out], return_index=True)[1]
    kinds, counts = np.unique(flags.kind[out][first], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    said = (f"{counts[i]:,} {KINDS[kinds[i]]} ({POLICY[KINDS[kinds[i]]][0]})" for i in order)
    return ", ".join(said)


def _next(flags: Flags) -> str:
    if flags.rows_with(flags.of(FlagKind.ENDED)).all():
        return (
            "add a run that ended ok, with step_time_s; runs out of memory say where memory ends,"
            " and teach no time"
        )
    return (
        "mend the rows: `forerun fit --flags FILE.csv` lists every one with its reason; or let who"
        " learns from labels alone learn from them: --predictor auto"
    )


_SUREST = 1e-9  # nothing is surer, so that nothing is divided by zero


@dataclass(frozen=True)
class Finding:
    """One constant after a fit.

    Attributes:
        entry: its value, interval, prior and sources.
        gain: what the runs told of it, in nats: from what was believed to what is believed now.
        identified: whether they said more than was known before.
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
    """Return what runs taught a predictor, what they told most of first.

    Args:
        predictor: one whose `learned` says so; none of others.
        before: what it was fitted from; constants of which the runs could not speak are left out.
            None tells of all that it has ever learned.
    """
    known = {entry.name: entry for entry in getattr(before, "learned", ())}
    entries: Iterable[Learned] = getattr(predictor, "learned", ())
    found = [_finding(entry) for entry in entries if known.get(entry.name) != entry]
    return tuple(sorted(found, key=lambda finding: -finding.gain))


def _finding(entry: Learned) -> Finding:
    from forerun.predictors.analytic.wording import constant_words

    free = max(entry.prior_log_sd, _SUREST)
    narrowed = max(entry.log_sd / free, 1e-9)
    shift = math.log(entry.value / entry.prior) / free if entry.value and entry.prior else 0.0
    gain = 0.5 * (narrowed**2 + shift**2 - 1.0) - math.log(narrowed)
    return Finding(entry, gain, entry.runs > 0 and _says_more(narrowed), constant_words(entry.name))


def _says_more(narrowed: float) -> bool:
    from forerun.predictors.analytic.saving import UNIDENTIFIED

    return narrowed <= UNIDENTIFIED


def open_questions(found: Sequence[Finding]) -> tuple[str, ...]:
    """Return the constants that the runs do not identify, each family in one piece of text.

    First those of which most runs spoke, without telling them apart from others.
    """
    from forerun.predictors.analytic.wording import family_words, key_words

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
_ASKED = 32  # runs whose open causes are looked at
_LOOKED = 256  # runs whose forecasts before and after are looked at
_SOURCES = 3
_PECULIAR = "machines, software versions, network, tuning"
# What kind of run speaks of which causes of error (see `domain.comparison`); any run at all speaks
# of the others.
_DEVICES, _MICRO, _LAYOUT = ("link", "scale"), ("host",), ("plan", "case", "schedule")


def fit_summary(
    predictor: Predictor, runs: Runs, flags: Flags, found: Sequence[Finding], before: Predictor
) -> tuple[str, ...]:
    """Return what runs say as a whole, in sentences; none for predictors that name no constants.

    Args:
        predictor: what was fitted.
        runs, flags: what it was fitted on, and which rows taught nothing.
        found: what it learned.
        before: what it was fitted from.
    """
    rows = np.flatnonzero(flags.teaches_step & runs.jobs.resolved)
    if not found or not len(rows):
        return ()
    said = [_place(runs, rows), _moved(before, predictor, runs, rows)]
    if len(rows) <= _FEW:
        said.append(_few(len(rows), found, known_by(predictor).get("start") == SHIPPED))
    said.append(_next_run(predictor, runs, rows))
    return tuple(filter(None, said))


def _moved(before: Predictor, predictor: Predictor, runs: Runs, rows: NDArray[np.int64]) -> str:
    """Return how far the forecasts of the runs' own jobs went in all, and how they lie now."""
    some = runs.take(rows[np.unique(np.linspace(0, len(rows) - 1, _LOOKED).astype(int))])
    measured = some.step_seconds()
    old, new = (p.predict(some.jobs).seconds[:, 1] for p in (before, predictor))
    told = np.isfinite(old) & np.isfinite(new) & np.isfinite(measured)
    if not told.any():
        return ""
    low, middle, high = np.quantile(new[told] / old[told], (0.0, 0.5, 1.0))
    left = np.exp(np.median(np.abs(np.log(new[told] / measured[told]))))
    span = f" ({low:.3g}x to {high:.3g}x)" if high > 1.005 * low else ""
    return (
        f"moved: forecasts of these runs' jobs moved by {middle:.3g}x in the median{span}, to"
        f" {left:.3g}x off what was measured; constants that are not identified share in it, each"
        " by a little"
    )


def _place(runs: Runs, rows: NDArray[np.int64]) -> str:
    """Return what becomes of whatever is peculiar to where the runs were made."""
    names = sorted(set(runs.table.texts("source")[rows].tolist()))
    if len(names) == 1:
        where = f"one place ({names[0]})" if names[0] else "one place (no source is named)"
        return (
            f"setting: the runs come from {where}, so what is peculiar to it ({_PECULIAR}) is part"
            " of what was learned, and answers are for that place"
        )
    shown = ", ".join(name or "not named" for name in names[:_SOURCES])
    more = f" and {len(names) - _SOURCES} more" if len(names) > _SOURCES else ""
    return (
        f"setting: the runs come from {len(names)} places (source: {shown}{more}), so what is"
        f" peculiar to each ({_PECULIAR}) is set aside, and answers are for a place not seen yet"
    )


def _few(count: int, found: Sequence[Finding], shipped: bool) -> str:
    told = [finding.words for finding in found if finding.identified]
    rest = len(found) - len(told)
    moved = f"moved {counted(len(told), 'constant')} ({'; '.join(told[:_SOURCES])})"
    if not told:
        moved = "settled no constant"
    kept = "what is shipped" if shipped else "their priors"
    words = "one run tells" if count == 1 else f"{count} runs tell"
    return (
        f"few: {words} little: {'it' if count == 1 else 'they'} {moved}, and the other {rest} that"
        f" {'it rests' if count == 1 else 'they rest'} on stay at {kept}; a slow device, a slow"
        " network and a bad day look alike in so few"
    )


def _next_run(predictor: Predictor, runs: Runs, rows: NDArray[np.int64]) -> str:
    """Return which kind of further run would teach most, by what is left open of these."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, _ASKED).astype(int))]
    open_by = _open(predictor.predict(runs.jobs.take(some)).causes)
    if not open_by:
        return ""
    plans = runs.jobs.plans.take(rows)
    devices = np.unique(runs.jobs.per_cluster("devices")[rows])
    micro = np.unique(plans.micro_batch)
    layout = np.unique(np.stack([plans.tp, plans.pp, plans.cp, plans.zero_stage, plans.recompute]),
                       axis=1)  # fmt: skip
    kinds = (
        (len(devices) == 1, _DEVICES, f"on another number of devices (all had {devices[0]:.0f})"),
        (len(micro) == 1, _MICRO, f"with another micro-batch (all had {micro[0]})"),
        (layout.shape[1] == 1, _LAYOUT, "with another plan (all had the same tp, pp, zero_stage)"),
    )
    left = [
        (sum(open_by.get(cause, 0.0) for cause in causes), words)
        for alike, causes, words in kinds if alike
    ]  # fmt: skip
    words = max(left)[1] if left else "unlike these in plan or number of devices"
    if len(devices) == 1 and devices[0] == 1:
        words = "on several devices: these say nothing of links"
    memory = "" if np.isfinite(runs.table.numbers("memory_gb")[rows]).any() else (
        "; fill in memory_gb, or nothing is learned of memory"
    )  # fmt: skip
    return f"next: a run {words} would teach most{memory}"


def _open(causes: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the mean share of the log variance by the scope of its cause."""
    whole = np.maximum(np.sum(list(causes.values()), axis=0), 1e-300) if causes else np.ones(1)
    shares: dict[str, float] = {}
    for cause, variance in causes.items():
        scope = scope_of(cause)
        shares[scope] = shares.get(scope, 0.0) + float(np.mean(variance / whole))
    return shares
