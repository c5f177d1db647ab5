"""GroupedLaws: a law for each kind of job, fitted to its runs alone, and who answers which job.

What every black-box law shares: runs are divided by kind, a job is answered by the law of its kind
or else by that of its workload and device over all settings, and what nobody ran is declined in a
sentence. A subclass says which columns of jobs its law reads, how the runs of one kind are fitted,
and how n jobs are answered at once.

Formulas of laws by kind: each law told once, with how its brackets and logarithms are read.

Reasons: why a law of a kind does not answer some of its jobs, said once for many rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.errors import RequestError
from forerun.predictors.laws import group_words as words
from forerun.predictors.laws.group_saving import saved_laws, text_of_laws
from forerun.predictors.laws.group_words import kind_words, reading_words, tells_sync
from forerun.predictors.laws.grouping import (
    Answers,
    Columns,
    Group,
    Law,
    LawT,
    TooFewError,
    by_kind,
    in_order,
    mixed_units,
    part_of,
)
from forerun.predictors.laws.law_rows import GROUP, Kind, LawRows, chosen_size, filled, measured
from forerun.predictors.laws.widths import MOST_SIGMA, PRIOR_SIGMA, Widths, learned_widths
from forerun.tables import Jobs, Runs, sorted_runs

Reasons = NDArray[np.object_]

ALONE = "its runs are all on one number of devices, and this is another; run it on a second"


def say_alone(reasons: Reasons, laws: Sequence[Law], chosen: IntArray, devices: FloatArray) -> None:
    """Put the reason of jobs on another number of devices than all runs of their law.

    Args:
        reasons: changed in place, (n,).
        laws: those that answer.
        chosen: which of them answers each job, -1 for none, (n,).
        devices: of the jobs, (n,).
    """
    if not laws:
        return
    bounds = np.array([law.machines for law in laws])
    alone = (bounds[:, 0] == bounds[:, 1])[chosen] & (chosen >= 0)
    reasons[alone & (devices != bounds[chosen, 0])] = ALONE


def say_unsaid(
    reasons: Reasons, chosen: IntArray, columns: Mapping[str, FloatArray],
    sizes: Sequence[str], unsaid: Callable[[str], str],
) -> None:  # fmt: skip
    """Put the reason of jobs that do not say a column; devices have the last word.

    Args:
        reasons: changed in place, (n,).
        chosen: which law answers each job, -1 for none, (n,).
        columns: what the laws read, NaN where unsaid, each (n,).
        sizes: for each law, what is said of a job without its size.
        unsaid: what is said of a job without another column.
    """
    others = [name for name in columns if name not in ("size", "devices")]
    for name in ("size", *others, "devices"):
        lacks = (chosen >= 0) & ~np.isfinite(columns[name])
        if not lacks.any():
            continue
        if name == "size":
            reasons[lacks] = np.array(sizes, dtype=object)[chosen[lacks]]
        else:
            reasons[lacks] = unsaid(name)


def unsaid_by_all(columns: Mapping[str, FloatArray], unsaid: Callable[[str], str]) -> TooFewError:
    """Return what is said of n runs of which none says every column."""
    most = max(columns, key=lambda name: int((~np.isfinite(columns[name])).sum()))
    says = unsaid(most).replace("the row says no", "none says a")
    return TooFewError(f"of {len(columns[most])} runs {says}")


def formulas_of(laws: Mapping[Kind, Law], quantity: str) -> dict[str, str]:
    """Return each law as a formula with units, and what limits it, by the name of its kind.

    The law of a workload and device over all settings is left out where it says what that of one
    setting says: it is the same law (also after it was saved, when it is another object).
    """
    texts = {kind: _text(law, quantity) for kind, law in laws.items()}
    own = {(kind[: len(GROUP)], text) for kind, text in texts.items() if len(kind) > len(GROUP)}
    sync = tells_sync(laws)
    return {
        kind_words(kind, sync): text
        for kind, text in texts.items()
        if len(kind) > len(GROUP) or (kind, text) not in own
    }


def _text(law: Law, quantity: str) -> str:
    formula = law.formula(quantity)
    return f"{formula} ({law.runs} runs; {reading_words(formula)}{law.limit()})"


# Rows in one pass: long enough that calls cost little, short enough for the processor's cache.
CHUNK = 16384
# Distance beside a law's own runs, with those of other settings, and for each doubling beyond.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
MOST_NOTES = 5


@dataclass(frozen=True)
class GroupedLaws(ABC, Generic[LawT]):
    """A predictor that is a law for each kind of job.

    Runs of one workload and device in one framework, precision, sequence length, image size,
    instance type and synchronisation have a law; runs of all of these together have one more, for
    jobs of which no such run is known.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        laws: by kind of job, `law_rows.GROUP` and then `SETTINGS`; by `GROUP` alone over all settings.
        lacking: of kinds that have runs and no law, why: what was found, in words.
        notes: what was noticed while fitting; every forecast carries them as warnings.
        band_scale, doubling_sigma: how wide bands are, as `widths.Widths` has it.
    """

    quantity: str = "step"
    laws: Mapping[Kind, LawT] = field(default_factory=dict)
    lacking: Mapping[Kind, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    band_scale: float = 1.0
    doubling_sigma: float = PRIOR_SIGMA

    name: ClassVar[str] = ""
    # The parts of the median, which add up to it; what is needed to fit one law, in words.
    terms: ClassVar[tuple[str, ...]] = ()
    needed: ClassVar[str] = ""
    version: ClassVar[int] = 3
    # Whether runs on one number of devices speak of another.
    one_number_speaks: ClassVar[bool] = False
    # Whether other resources make another kind; not of a law that reads them as numbers.
    apart: ClassVar[bool] = True
    # Times beside the main one that teach it.
    also_measured: ClassVar[tuple[str, ...]] = ()
    # How far off, as a log, a doubling away: before runs have shown it, and at most (see `widths`).
    prior_sigma: ClassVar[float] = PRIOR_SIGMA
    most_sigma: ClassVar[float] = MOST_SIGMA

    @abstractmethod
    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return what the law reads of n jobs beside the size, by name, each (n,).

        "devices" is one of them. NaN where the row does not say it and the law needs it.
        """

    def group_law(self, group: Group) -> LawT:
        """Return the law of the runs of one kind; all columns and seconds are finite.

        Raises:
            TooFewError: the runs cannot teach it; the words say what was found.
        """
        # A subclass has this, or fits all kinds together in `group_laws`; either is enough.
        raise NotImplementedError(f"{type(self).__name__} has neither group_law nor group_laws")

    def group_laws(self, groups: Sequence[Group]) -> list[LawT | TooFewError]:
        """Return the law of each of several kinds, or why it has none.

        One after another by `group_law`, unless a subclass fits them together.
        """
        made: list[LawT | TooFewError] = []
        for group in groups:
            try:
                made.append(self.group_law(group))
            except TooFewError as why:
                made.append(why)
        return made

    @abstractmethod
    def answers(self, laws: list[LawT], index: IntArray, columns: Columns) -> Answers:
        """Return what the laws say of n jobs.

        Args:
            laws: of which each job is answered by one.
            index: which one, (n,).
            columns: of the jobs, finite, each (n,); "size" is that of the law's column.
        """

    @abstractmethod
    def law_of(self, entry: Mapping[str, Any]) -> LawT:
        """Return a law from its saved fields; may raise ValueError, KeyError or TypeError."""

    def size_of(self, rows: LawRows) -> str:
        """Return which column is the size of runs of one kind, "" where none is."""
        return chosen_size(rows, self.quantity)

    def unsaid(self, column: str) -> str:
        """Return why a job is declined that does not say a column."""
        return f"the row says no {column.replace('devices', 'number of devices')}"

    def fit(self, runs: Runs) -> Self:
        """Return a predictor with the laws of these runs alone.

        A run that did not end (status timeout, oom or failed) teaches nothing: its time is not
        that of the work.

        Raises:
            RequestError: no run has a time, or no workload and device has enough of them.
        """
        runs = sorted_runs(runs)
        seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
        rows = np.flatnonzero(np.isfinite(seconds[quantity]))
        asked = f"fitting {self.name} on {len(runs)} runs"
        if not len(rows):
            raise RequestError(asked, *words.why_no_times(runs))
        also = {name: runs.measured(name)[rows] for name in self.also_measured}
        timing = replace(self, quantity=quantity)
        laws, lacking, widths = timing._fitted(runs.jobs.take(rows), seconds[quantity][rows], also)
        if not laws:
            mend = words.what_to_do(lacking.values(), f"{self.needed} for each")
            raise RequestError(asked, words.listed(lacking), mend)
        sync = words.tells_sync([*laws, *lacking])
        called = {kind: words.kind_words(kind, sync) for kind in [*laws, *lacking]}
        notes = [f"of {len(runs)} runs {note} and teach nothing" for note in words.left_out(runs)]
        notes += [f"{called[k]}: {note}" for k, law in laws.items() for note in law.notes]
        notes += [f"{called[kind]} has no law: {why}" for kind, why in lacking.items()]
        return replace(
            self, quantity=quantity, laws=laws, lacking=lacking,
            band_scale=widths.scale, doubling_sigma=widths.doubling_sigma,
            notes=words.shortened(notes, MOST_NOTES),
        )  # fmt: skip

    def _fitted(
        self, jobs: Jobs, seconds: FloatArray, also: Columns
    ) -> tuple[dict[Kind, LawT], dict[Kind, str], Widths]:
        """Return the laws of runs of which each has a time, why a kind has none, and widths of bands."""
        groups: dict[bytes, Group | TooFewError] = {}
        members = [(kind, of, of.tobytes()) for kind, of in by_kind(self._rows(jobs).kinds)]
        for kind, of, key in members:  # pooled runs of a workload with one setting are those of it
            if key not in groups:
                groups[key] = self._group(kind, jobs.take(of), seconds[of], part_of(also, of))
        ready = {key: group for key, group in groups.items() if isinstance(group, Group)}
        made = dict(zip(ready, self.group_laws(list(ready.values())), strict=True))
        laws: dict[Kind, LawT] = {}
        lacking: dict[Kind, str] = {}
        for kind, _, key in members:
            found = made.get(key, groups[key])
            if isinstance(found, TooFewError):
                lacking[kind] = str(found)
            elif not isinstance(found, Group):
                laws[kind] = found
        widths = learned_widths(self, list(ready.values())) if laws else Widths()
        return laws, lacking, widths

    def _group(
        self, kind: Kind, jobs: Jobs, seconds: FloatArray, also: Columns
    ) -> Group | TooFewError:
        rows = self._rows(jobs)
        size = self.size_of(rows)
        columns: Columns = {**self.columns(rows), "size": rows.size(size)}
        usable = np.logical_and.reduce([np.isfinite(values) for values in columns.values()])
        if not usable.any():
            return unsaid_by_all(columns, self.unsaid)
        columns = part_of(columns, usable)
        places = None if jobs.labels is None else jobs.labels.take(usable).places()
        group = Group(columns, seconds[usable], size, self.quantity, part_of(also, usable), kind)
        problem = mixed_units(group.columns, group.seconds, places)
        return TooFewError(problem) if problem else group

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: no runs, too few runs, no size, no number of devices."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs and the terms as parts; memory is not answered (NaN)."""
        rows, laws = self._rows(jobs), list(self.laws.values())
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        chosen = self._chosen(rows)
        parts = np.full((len(self.terms), len(jobs)), np.nan)
        columns = {**self.columns(rows), "size": self._sizes(rows, laws, chosen)}
        usable = chosen >= 0
        for values in columns.values():
            usable &= np.isfinite(values)
        ready = in_order(np.flatnonzero(usable), chosen)
        widths = Widths(self.band_scale, self.doubling_sigma)
        pooled = np.array([len(kind) == len(GROUP) for kind in self.laws], dtype=bool)
        for start in range(0, len(ready), CHUNK):
            now = ready[start : start + CHUNK]
            answer = self.answers(laws, chosen[now], part_of(columns, now))
            blank.seconds[now] = widths.applied(answer)
            parts[:, now] = answer.parts.T
            away = np.where(pooled[chosen[now]], OTHER_SETTINGS, NEAR)
            blank.distance[now] = away + A_DOUBLING * answer.beyond
        declined = self._declined(rows, chosen, columns, blank.seconds)
        closed = np.flatnonzero(~is_none(declined))
        blank.seconds[closed], blank.distance[closed], parts[:, closed] = np.nan, np.nan, np.nan
        named = {name: parts[i] for i, name in enumerate(self.terms)}
        return replace(blank, declined=declined, parts=named, warnings=self.notes)

    @property
    def formulas(self) -> dict[str, str]:
        """Each law as a formula with units, and what limits it, by the name of its kind."""
        return formulas_of(self.laws, self.quantity)

    def _rows(self, jobs: Jobs) -> LawRows:
        return LawRows(jobs, self.quantity, self.apart)

    def _chosen(self, rows: LawRows) -> IntArray:
        """Return which law answers each job, (n,), -1 where none does."""
        kinds, index = rows.kinds
        kinds = filled(kinds, self.laws)
        place = {kind: i for i, kind in enumerate(self.laws)}
        of = [place.get(kind, place.get(kind[: len(GROUP)], -1)) for kind in kinds]
        return np.array([*of, -1], dtype=np.int64)[index]

    def _sizes(self, rows: LawRows, laws: list[LawT], chosen: IntArray) -> FloatArray:
        """Return each job's size in the column of its law, (n,), NaN where it has none."""
        names = sorted({law.size for law in laws})
        if len(names) == 1:
            return rows.size(names[0])
        size = np.full(len(rows.jobs), np.nan)
        for column in names:
            speaks = np.array([law.size == column for law in laws] + [False])[chosen]
            size[speaks] = rows.size(column)[speaks]
        return size

    def _declined(
        self, rows: LawRows, chosen: IntArray, columns: Columns, seconds: FloatArray
    ) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,); a sentence is made once a kind."""
        laws = list(self.laws.values())
        reasons = np.full(len(chosen), None, dtype=object)
        held = chosen >= 0
        if not held.all():
            kinds, index = rows.kinds
            none = np.array([self._why_none(kind) for kind in kinds] + [""], dtype=object)
            reasons[~held] = none[index[~held]]
        bad = held & ~(np.isfinite(seconds) & (seconds > 0)).all(axis=1)
        reasons[bad] = "the law of its runs gives no time above 0 here"
        if not self.one_number_speaks:
            say_alone(reasons, laws, chosen, columns["devices"])
        say_unsaid(reasons, chosen, columns, [self.unsaid(law.size) for law in laws], self.unsaid)
        problems = rows.jobs.plan_problem
        if problems is not None:
            # A plan that nobody stated is no illegal one, and no law of these needs it.
            illegal = rows.states_plan & ~is_none(problems)
            reasons[illegal] = problems[illegal]
        return reasons

    def _why_none(self, kind: Kind) -> str:
        if not self.laws:
            return f"{self.name} answers from runs alone and was given none; give {self.needed}"
        why = words.why_no_law(kind, self.lacking)
        return f"{self.name} has {why}; {words.what_to_do([why], self.needed)}"

    def to_json(self) -> str:
        """Return the laws as JSON text."""
        return text_of_laws(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """
        return saved_laws(cls, text)
