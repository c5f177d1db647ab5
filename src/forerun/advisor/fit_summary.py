"""Learning: a predictor is shown runs, less what looks wrong in them, and every such row is named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.arrays import one_blas_thread
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.options import PRIORS, SHIPPED, known_by, started
from forerun.tables import Runs
from forerun.tables.suspects import KINDS, FlagKind, Flags, cleaned, suspects
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor
    from forerun.predictors.analytic.saving import Learned


# Who learns from runs of workloads and devices that are known alone; the others go by labels.
_BY_PHYSICS = ("analytic", "residual", "constant-mfu")
_SUREST = 1e-9  # nothing is surer, so that nothing is divided by zero
_FEW = 2  # runs that are called few
_MOST = 256  # runs whose forecasts and open causes are looked at
_SHOWN = 3  # sources and constants that are named


class LearningError(RequestError):
    """No run can be fitted; `flags` gives the reason of each row."""

    def __init__(self, asked: str, found: str, next_step: str, flags: Flags) -> None:
        super().__init__(asked, found, next_step)
        self.flags = flags


def flags_of(runs: Runs, predictor: Predictor | None = None) -> Flags:
    """Return what looks wrong in runs, against a predictor's physics; that of the priors by default."""
    if predictor is None or predictor.name != "analytic":
        predictor = started("analytic", PRIORS)
    return suspects(runs, predictor.predict(runs.jobs))


@one_blas_thread()
def fitted(predictor: Predictor, runs: Runs) -> tuple[Predictor, Flags]:
    """Return the predictor fitted to the runs, less what a flag leaves out (`suspects.FlagKind`).

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
    kinds = Counter(KINDS[kind] for kind in flags.kind[flags.out_step])
    why = "; ".join(flags.wholes) or ", ".join(f"{n:,} {kind} ({kind.meaning})" for kind, n in kinds.most_common())  # fmt: skip
    next_step = (
        "correct the rows: `forerun fit --flags FILE.csv` lists every one with its reason; or use a"
        " predictor that learns from labels alone: --predictor auto"
    )
    if flags.rows_with(flags.of(FlagKind.ENDED)).all():
        next_step = (
            "add a run that ended ok, with step_time_s; runs out of memory show where memory ends,"
            " and no time"
        )
    title = f"learning from {counted(len(runs), 'run')}"
    raise LearningError(title, f"none of them has a step time to fit: {why}", next_step, flags)


@dataclass(frozen=True)
class Finding:
    """One constant after a fit; `gain`: what the runs added, in nats."""

    entry: Learned
    gain: float
    identified: bool
    words: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**self.entry.to_dict(), "identified": self.identified, "gain_nats": self.gain, "words": self.words}  # fmt: skip

    @staticmethod
    def read(values: Mapping[str, Any]) -> Finding:
        """Return the finding that `as_dict` wrote."""
        from forerun.predictors.analytic.saving import Learned

        own: dict[str, Any] = {f.name: values[f.name] for f in fields(Learned)}
        own |= {name: math.nan for name, value in own.items() if value is None}
        entry = Learned(**own)
        return Finding(entry, values["gain_nats"], values["identified"], values["words"])


def findings(predictor: Predictor, before: Predictor | None = None) -> tuple[Finding, ...]:
    """Return what a predictor learned from runs since `before`, the best informed first."""
    from forerun.predictors.analytic.families import constant_words
    from forerun.predictors.analytic.saving import UNIDENTIFIED

    known = {entry.name: entry for entry in getattr(before, "learned", ())}
    entries: Iterable[Learned] = getattr(predictor, "learned", ())
    found = []
    for entry in (one for one in entries if known.get(one.name) != one):
        free = max(entry.prior_log_sd, _SUREST)
        narrowed = max(entry.log_sd / free, _SUREST)
        shift = math.log(entry.value / entry.prior) / free if entry.value and entry.prior else 0.0
        # Of two normals: the Kullback-Leibler divergence.
        gain = 0.5 * (narrowed**2 + shift**2 - 1.0) - math.log(narrowed)
        identified = entry.runs > 0 and narrowed <= UNIDENTIFIED
        found.append(Finding(entry, gain, identified, constant_words(entry.name)))
    return tuple(sorted(found, key=lambda finding: -finding.gain))


def open_questions(found: Sequence[Finding]) -> tuple[str, ...]:
    """Return the constants that the runs do not identify, a text a family, most spoken of first."""
    from forerun.predictors.analytic.families import family_words, key_words

    families: dict[str, list[str]] = {}
    for finding in sorted(found, key=lambda finding: (-finding.entry.runs, finding.words)):
        if not finding.identified:
            name = finding.entry.name
            families.setdefault(family_words(name), []).append(key_words(name))
    return tuple(f"{family} ({', '.join(keys)})" if any(keys) else family for family, keys in families.items())  # fmt: skip


def fit_summary(
    predictor: Predictor, runs: Runs, flags: Flags, found: Sequence[Finding], before: Predictor
) -> tuple[str, ...]:
    """Return what runs say as a whole, in sentences; none for predictors that name no constants."""
    rows = np.flatnonzero(flags.teaches_step & runs.jobs.resolved)
    if not found or not len(rows):
        return ()
    some = runs.take(rows[np.unique(np.linspace(0, len(rows) - 1, _MOST).astype(int))])
    places = sorted({name or "not named" for name in runs.table.texts("source")[rows]})
    shown = ", ".join(places[:_SHOWN]) + ", ..." * (len(places) > _SHOWN)
    fate = "answers hold for that place"
    if len(places) > 1:
        fate = "answers are for a place not seen yet, and what is peculiar to each is set aside"
    lines = [f"setting: the runs come from {counted(len(places), 'place')} (source: {shown}): {fate}"]  # fmt: skip
    after, seen = predictor.predict(some.jobs), some.step_seconds()
    was, now = before.predict(some.jobs).seconds[:, 1], after.seconds[:, 1]
    if (known := np.isfinite(now / was) & np.isfinite(seen)).any():
        low, middle, high = np.quantile((now / was)[known], (0.0, 0.5, 1.0))
        off = np.exp(np.median(np.abs(np.log(now / seen)[known])))
        lines.append(
            f"moved: forecasts of these runs' jobs moved by {middle:.3g}x in the median"
            f" ({low:.3g}x to {high:.3g}x), to {off:.3g}x off what was measured"
        )
    if len(rows) <= _FEW:
        settled = [finding.words for finding in found if finding.identified]
        kept = "what is shipped" if known_by(predictor).get("start") == SHIPPED else "their priors"
        lines.append(
            f"few: {'one run determines' if len(rows) == 1 else f'{len(rows)} runs determine'} little:"
            f" settled {'; '.join(settled[:_SHOWN]) or 'no constant'}; the other"
            f" {len(found) - len(settled)} stay at {kept}"
        )
    if after.causes:
        runs = runs.take(rows)
        plans, devices = runs.jobs.plans, np.unique(runs.jobs.per_cluster("devices"))
        layout = [getattr(plans, name) for name in ("tp", "pp", "cp", "zero_stage", "recompute")]
        words, why = "unlike these in plan or number of devices", ""
        if devices.tolist() == [1]:
            words, why = "on several devices", ", since these say nothing of links"
        elif np.unique(layout, axis=1).shape[1] == 1:
            words = "with another plan (all had the same tp, pp, zero_stage)"
        elif len(devices) == 1:
            words = f"on another number of devices (all had {devices[0]:.0f})"
        held = np.isfinite(runs.table.numbers("memory_gb")).any()
        memory = "" if held else "; fill in memory_gb, or nothing is learned of memory"
        lines.append(f"next: a run {words} would add most{why}{memory}")
    return tuple(lines)


def fit_json(advisor: Advisor, before: Advisor) -> dict[str, Any]:
    """Return what an advisor that was fitted has learned beyond the one before, as JSON data."""
    predictor = advisor.predictor
    found = findings(predictor, before.predictor)
    return {
        "predictor": predictor.name, **known_by(predictor), "runs_known_already": advisor.repeated,
        "tables": [], "out": "", "runs": {} if advisor.flags is None else advisor.flags.as_dict(),
        "learned": [finding.as_dict() for finding in found], "lessons": list(advisor.fit_summary),
        "formulas": dict(getattr(predictor, "formulas", {})), "notes": list(getattr(predictor, "notes", ())),
        "experiments": list(getattr(predictor, "report", ())),
        "choice": list(getattr(predictor, "verdicts", ())),
        "not_saved": list(getattr(predictor, "unsaved", ())),
        "not_identified": [finding.entry.name for finding in found if not finding.identified],
    }  # fmt: skip
