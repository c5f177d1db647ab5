"""GroupedLaws: one law for each kind of job: its fit, bands, reasons to decline, formulas and JSON.

Every black-box law shares this: runs are divided by kind; a job is answered by the law of its kind or
else by that of its workload and device over all settings; what nobody ran is declined with a reason.
A law is its equation, its starting points and its texts; the rest is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.plan import SYNC
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import (
    GROUP,
    Kind,
    LawRows,
    Span,
    chosen_size,
    filled,
    measured,
)
from forerun.predictors.saved import read_written, written
from forerun.tables import Jobs, Runs, sorted_runs

Columns = Mapping[str, FloatArray]

# Rows in one pass: long enough that calls cost little, short enough for the processor's cache.
CHUNK = 16384
# Distance beside a law's own runs, beside those of other settings, and for each doubling beyond.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
MOST_NOTES, MOST_LISTED = 5, 3
# A half-width of a band that is larger than this, as a log, is no number.
_MOST_REACH = 300.0
ALONE = "its runs are all on one number of devices, and this is another; run it on a second"
# Log standard deviation of a law a doubling away before any run shows it, which counts as much as
# this many kinds that do; and the largest that one kind can show.
PRIOR_SIGMA, PRIOR_KINDS, MOST_SIGMA = 0.08, 2.0, 1.0
# The scale of bands among the runs starts at 1, which counts as much as this many held-out runs.
PRIOR_RUNS, SCALES = 10.0, (0.95, 6.0)
LEAST_RUNS_NEAR, LEAST_HELD_OUT_POINTS = 3, 5
# Kinds that calibrate bands, those with most runs: more add little, and each takes two fits.
MOST_KINDS = 24
_TIMES = ("step_time_s", "epoch_time_s", "time_to_train_s")


class TooFewError(Exception):
    """A law cannot be fitted to the runs of a kind; the text says what was found."""


@dataclass(frozen=True, kw_only=True)
class Law(ABC):
    """What the runs of one kind of job gave.

    Attributes:
        reach: how far below and above a fit the 5 % and 95 % of new runs lie, as logs.
        bounds: least and most of columns among the runs; "devices" is one of them.
        size: the column that is the size, "" where the runs state none.
        runs: how many were fitted.
        notes: what was noticed while fitting.
    """

    reach: Span
    bounds: Mapping[str, Span]
    size: str = ""
    runs: int
    notes: tuple[str, ...] = ()

    @property
    def machines(self) -> Span:
        """Fewest and most devices of a run."""
        return self.bounds["devices"]

    @abstractmethod
    def formula(self, quantity: str) -> str:
        """Return the right-hand side of `seconds of a step = ...`, with units and intervals."""

    @abstractmethod
    def limit(self) -> str:
        """Return what limits scaling at the most devices measured and at the next doublings."""

    def __post_init__(self) -> None:
        """Refuse fields of other shapes. Raises ValueError."""
        if not self.is_sound():
            raise ValueError("a field has another shape")

    def is_sound(self) -> bool:
        """Return whether the fields have the shapes that the law needs."""
        return True


@dataclass(frozen=True, kw_only=True)
class ParametricLaw(Law):
    """A law of k parameters.

    Attributes:
        theta: the parameters, (k,). covariance: of them, (k, k).
    """

    theta: FloatArray
    covariance: FloatArray

    parameters: ClassVar[tuple[str, ...]] = ()

    def is_sound(self) -> bool:
        """Return whether there are as many numbers as parameters."""
        k = len(self.parameters)
        return self.theta.shape == (k,) and self.covariance.shape == (k, k)

    def reach_of(self, at: int) -> float:
        """Return how far the 5 % and the 95 % of a parameter lie from it."""
        return Z95 * float(np.sqrt(max(self.covariance[at, at], 0.0)))

    def power(self, at: int) -> str:
        """Return a parameter with its interval."""
        value, reach = float(self.theta[at]), self.reach_of(at)
        return interval(value, value - reach, value + reach)

    def exponential(self, at: int, offset: float = 0.0) -> str:
        """Return exp(a parameter) + offset with its interval."""
        value, reach = float(self.theta[at]), self.reach_of(at)
        return interval(*(float(np.exp(value + r)) + offset for r in (0.0, -reach, reach)))


LawT = TypeVar("LawT", bound=Law)


@dataclass(frozen=True)
class RunGroup:
    """n runs of one kind.

    Attributes:
        columns: what the law reads of them, finite, each (n,); "size" and "devices" are among them.
        seconds: positive and finite, (n,).
        size: the column that "size" comes from; "" where the runs state none, and it is 1.
        quantity: what `seconds` times: step, epoch or run.
        measured: further measured columns, NaN where blank, each (n,).
        kind: of the runs; of several settings that share them, the first.
    """

    columns: Columns
    seconds: FloatArray
    size: str
    quantity: str
    measured: Columns
    kind: Kind = ()

    def bounds(self, *names: str) -> dict[str, Span]:
        """Return the least and the most of columns."""
        spans = {name: self.columns[name] for name in names}
        return {name: (float(v.min()), float(v.max())) for name, v in spans.items()}

    def points(self, names: Sequence[str] = ()) -> IntArray:
        """Return which distinct point of the columns each run was made at, (n,)."""
        places = np.stack([self.columns[name] for name in names or self.columns])
        return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def take(self, rows: NDArray[Any]) -> RunGroup:
        """Return the runs at the given positions (or where a mask is true)."""
        return replace(
            self, columns=take(self.columns, rows), seconds=self.seconds[rows],
            measured=take(self.measured, rows),
        )  # fmt: skip


@dataclass(frozen=True)
class LawForecasts:
    """Forecasts of laws for n jobs.

    Attributes:
        seconds: quantiles (5 %, median, 95 %), (n, 3).
        parts: of the median by term, which add up to it, (n, terms).
        beyond: by how many doublings the job is outside the runs of its law, (n,).
    """

    seconds: FloatArray
    parts: FloatArray
    beyond: FloatArray


def take(columns: Columns, rows: NDArray[Any]) -> Columns:
    """Return the columns at the given positions (or where a mask is true)."""
    return {name: values[rows] for name, values in columns.items()}


def reach_of(logs: FloatArray, parameters: int, least_sigma: float) -> Span:
    """Return how far below and above a fit the 5 % and 95 % of new runs lie, as logs.

    Args:
        logs: log of measured over fitted of the runs that made the fit, (n,).
        parameters: free ones of the fit.
        least_sigma: log standard deviation that repeats have anyway.
    """
    free = max(len(logs) - parameters, 1)
    # Runs lie nearer to a law fitted to them than new ones do; few of them leave more doubt
    # (Student's quantile over the normal one, Abramowitz and Stegun 26.7.5).
    z = Z95
    student = (
        z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    ) / z  # fmt: skip
    wider = student * float(np.sqrt(len(logs) / free))
    low, high = np.quantile(logs, (0.05, 0.95))
    least = Z95 * max(least_sigma, 0.5 * float(np.sqrt(np.mean(logs**2))))
    return wider * max(-float(low), least), wider * max(float(high), least)


def stacked(laws: Sequence[Law], name: str, index: IntArray) -> FloatArray:
    """Return a field of the law of each job, (n, ...)."""
    return np.asarray(np.array([getattr(law, name) for law in laws])[index])


def log_variance(laws: Sequence[ParametricLaw], index: IntArray, slopes: FloatArray) -> FloatArray:
    """Return the variance that the covariance of each job's law and the slopes (n, k) give, (n,)."""
    turned = slopes[:, None, :] @ stacked(laws, "covariance", index)
    return np.asarray(np.einsum("ni,ni->n", turned[:, 0], slopes))


def doublings(laws: Sequence[Law], index: IntArray, name: str, values: FloatArray) -> FloatArray:
    """Return by how many doublings n positive values are outside the bounds of their laws, (n,)."""
    bounds: FloatArray = np.log2(np.array([law.bounds[name] for law in laws]))
    low, high = bounds[index].T
    value = np.log2(values)
    return np.asarray(np.maximum(np.maximum(value - high, low - value), 0.0))


def banded(middle: FloatArray, reach: FloatArray, variance: FloatArray) -> FloatArray:
    """Return quantiles (n, 3) about n medians.

    Args:
        middle: the medians, (n,).
        reach: how far below and above the medians runs lie, as logs, (n, 2).
        variance: of the log of the median itself, (n,).
    """
    unsure = Z95**2 * variance
    below, above = np.minimum(np.sqrt(reach**2 + unsure[:, None]), _MOST_REACH).T
    return np.stack([middle * np.exp(-below), middle, middle * np.exp(above)], axis=1)


@dataclass(frozen=True)
class GroupedLaws(ABC, Generic[LawT]):
    """A predictor that has a law for each kind of job.

    Runs of one workload and device in one framework, precision, sequence length, image size,
    instance type and synchronisation have a law; runs of all of these together have one more, for
    jobs without such runs.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        laws: by kind of job, `law_rows.GROUP` and then `SETTINGS`; by `GROUP` alone over all settings.
        lacking: of kinds that have runs and no law, the reason.
        notes: what was noticed while fitting; every forecast carries them as warnings.
        band_scale: of the bands that the laws give, where runs lie about the job.
        doubling_sigma: log standard deviation of a law for each doubling beyond its runs.
    """

    quantity: str = "step"
    laws: Mapping[Kind, LawT] = field(default_factory=dict)
    lacking: Mapping[Kind, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    band_scale: float = 1.0
    doubling_sigma: float = PRIOR_SIGMA

    name: ClassVar[str] = ""
    law: ClassVar[type[Law]]
    # The parts of the median, which add up to it; what is needed to fit one law, in words.
    terms: ClassVar[tuple[str, ...]] = ()
    needed: ClassVar[str] = ""
    # Runs that a law needs at different values of the columns of `point_columns`.
    least_points: ClassVar[int] = 1
    version: ClassVar[int] = 6
    # Whether runs on one number of devices say anything of another.
    one_count_suffices: ClassVar[bool] = False
    # Whether other resources make another kind; False for a law that reads them as numbers.
    apart: ClassVar[bool] = True
    # Times beside the main one that the fit uses.
    also_measured: ClassVar[tuple[str, ...]] = ()
    # Log standard deviation a doubling away: before runs show it, and at most.
    prior_sigma: ClassVar[float] = PRIOR_SIGMA
    most_sigma: ClassVar[float] = MOST_SIGMA

    @abstractmethod
    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return what the law reads of n jobs beside the size, by name, each (n,).

        "devices" is one of them. NaN declines the job, and leaves a run out of the fit: give it where
        the row does not state what the law needs. The size is added as "size" (see `size_of`).
        """

    @abstractmethod
    def fitted(self, groups: Sequence[RunGroup]) -> list[LawT]:
        """Return the law of each group of runs, all of which have enough different points."""

    @abstractmethod
    def evaluate(self, laws: list[LawT], index: IntArray, columns: Columns) -> LawForecasts:
        """Return the forecasts of n jobs.

        Args:
            laws: of which each job is answered by one.
            index: which one, (n,).
            columns: of the jobs, finite, each (n,); "size" is that of the law's column.
        """

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ to count as `least_points`; all (and size) where empty."""
        return ()

    def size_of(self, rows: LawRows) -> str:
        """Return which column is the size of runs of one kind, "" for a law without one.

        Usually the global batch of a step, and the dataset of an epoch or a run; with "", "size" is 1.
        """
        return chosen_size(rows, self.quantity)

    def missing(self, column: str) -> str:
        """Return why a job is declined that does not state a column."""
        return f"the row does not state {column.replace('devices', 'the number of devices')}"

    def fit(self, runs: Runs) -> Self:
        """Return a predictor with the laws of these runs alone.

        A run that did not end (status timeout, oom or failed) is left out: its time is not that of
        the work.

        Raises:
            RequestError: no run has a time, or no workload and device has enough of them.
        """
        runs = sorted_runs(runs)
        seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
        rows = np.flatnonzero(np.isfinite(seconds[quantity]))
        action = f"fitting {self.name} on {len(runs)} runs"
        if not len(rows):
            raise RequestError(
                action,
                "; ".join(["none that ended has a time of a step, an epoch or a whole run", *_unused(runs)]),
                "give runs with step_time_s, samples_per_s, epoch_time_s or time_to_train_s above 0",
            )  # fmt: skip
        also = {name: runs.measured(name)[rows] for name in self.also_measured}
        made = replace(self, quantity=quantity)._with_laws(
            runs.jobs.take(rows), seconds[quantity][rows], also
        )
        if not made.laws:
            raise RequestError(action, _listed(made.lacking), f"give {self.needed} for each")
        notes = [f"of {len(runs)} runs {note} and are left out" for note in _unused(runs)]
        return replace(made, notes=_shortened([*notes, *made.notes]))

    def _with_laws(self, jobs: Jobs, seconds: FloatArray, also: Columns) -> Self:
        """Return a predictor with the laws of runs of which each has a time."""
        groups: dict[bytes, RunGroup | TooFewError] = {}
        members = [(kind, of, of.tobytes()) for kind, of in _by_kind(*self._rows(jobs).kinds)]
        for kind, of, key in members:  # pooled runs of a workload with one setting are those of it
            if key not in groups:
                groups[key] = self._group(kind, jobs.take(of), seconds[of], take(also, of))
        ready = {key: group for key, group in groups.items() if isinstance(group, RunGroup)}
        made = dict(zip(ready, self._laws_of(list(ready.values())), strict=True))
        found = {kind: made.get(key, groups[key]) for kind, _, key in members}
        laws: dict[Kind, Any] = {k: law for k, law in found.items() if isinstance(law, Law)}
        lacking = {k: str(why) for k, why in found.items() if isinstance(why, TooFewError)}
        scale, sigma = self._band_widths(list(ready.values())) if laws else (1.0, PRIOR_SIGMA)
        notes = [f"{kind_words(k)}: {note}" for k, law in laws.items() for note in law.notes]
        notes += [f"{kind_words(k)} has no law: {why}" for k, why in lacking.items()]
        return replace(
            self, laws=laws, lacking=lacking, band_scale=scale, doubling_sigma=sigma,
            notes=tuple(notes),
        )  # fmt: skip

    def _group(
        self, kind: Kind, jobs: Jobs, seconds: FloatArray, also: Columns
    ) -> RunGroup | TooFewError:
        rows = self._rows(jobs)
        size = self.size_of(rows)
        columns: Columns = {**self.columns(rows), "size": rows.size(size)}
        usable = np.logical_and.reduce([np.isfinite(values) for values in columns.values()])
        if not usable.any():
            most = max(columns, key=lambda name: int((~np.isfinite(columns[name])).sum()))
            why = self.missing(most).replace("the row does not state", "none states")
            return TooFewError(f"of {len(seconds)} runs {why}")
        return RunGroup(columns, seconds, size, self.quantity, also, kind).take(usable)

    def _laws_of(self, groups: Sequence[RunGroup]) -> list[LawT | TooFewError]:
        """Return the law of each group, or why it has none."""
        points = [int(group.points(self.point_columns).max()) + 1 for group in groups]
        enough = [g for g, n in zip(groups, points, strict=True) if n >= self.least_points]
        made = iter(self.fitted(enough) if enough else ())
        return [
            next(made)
            if n >= self.least_points
            else TooFewError(f"only {n} different run{'s' if n != 1 else ''}")
            for n in points
        ]

    def _band_widths(self, groups: Sequence[RunGroup]) -> tuple[float, float]:
        """Return the scale of bands among the runs, and the log sigma of a doubling beyond them.

        From runs of each kind that are held out: a quarter of the points for jobs among the runs, the
        larger half of the devices for jobs beyond. A band from residuals alone covers two thirds.
        """
        groups = sorted(groups, key=lambda group: -len(group.seconds))[:MOST_KINDS]
        ratios = [
            np.sqrt(np.maximum(error**2 - (Z95 * self.prior_sigma * beyond) ** 2, 0.0)) / reach
            for error, reach, beyond in self._held_out([_quarters(group) for group in groups])
        ]
        scale = 1.0
        if ratios:
            seen = np.concatenate(ratios)
            scale = (PRIOR_RUNS + len(seen) * np.quantile(seen, 0.9)) / (PRIOR_RUNS + len(seen))
        scale = float(np.clip(scale, *SCALES))
        squares = []
        for error, reach, beyond in self._held_out([_halves(group) for group in groups]):
            far = beyond > 0
            if far.any():
                missing = np.sqrt(np.maximum(error**2 - (scale * reach) ** 2, 0.0))[far]
                shown = float(np.quantile(missing / (Z95 * beyond[far]), 0.9))
                squares.append(min(shown, self.most_sigma) ** 2)
        total = PRIOR_KINDS * self.prior_sigma**2 + sum(squares)
        return scale, float(np.sqrt(total / (PRIOR_KINDS + len(squares))))

    def _held_out(
        self, parts: Sequence[tuple[RunGroup, RunGroup] | None]
    ) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Yield log errors, half-widths on their side and doublings of laws of each first part."""
        both = [part for part in parts if part is not None]
        laws = self._laws_of([kept for kept, _ in both])
        for law, (_, held) in zip(laws, both, strict=True):
            if isinstance(law, TooFewError):
                continue
            if law.machines[0] == law.machines[1] and not self.one_count_suffices:
                held = held.take(held.columns["devices"] == law.machines[0])
            index = np.zeros(len(held.seconds), dtype=np.int64)
            found = self.evaluate([law], index, held.columns)
            fine = (np.isfinite(found.seconds) & (found.seconds > 0)).all(axis=1)
            if fine.any():
                low, middle, high = found.seconds[fine].T
                error = np.log(held.seconds[fine] / middle)
                reach = np.abs(np.log(np.where(error < 0, low, high) / middle))
                yield error, np.maximum(reach, 1e-6), found.beyond[fine]

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: no runs, too few runs, no size, no number of devices."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs and the terms as parts; memory is not answered (NaN)."""
        rows, laws = self._rows(jobs), list(self.laws.values())
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        chosen = self._chosen(rows)
        parts = np.full((len(self.terms), len(jobs)), np.nan)
        columns = {**self.columns(rows), "size": self._sizes(rows, chosen)}
        usable = np.logical_and.reduce([chosen >= 0, *map(np.isfinite, columns.values())])
        pooled = np.array([len(kind) == len(GROUP) for kind in self.laws], dtype=bool)
        # In the order of their laws (of 16 bits by counting), so that few laws meet in a pass.
        ready = np.flatnonzero(usable)
        small = np.int16 if len(laws) < 2**15 else np.int64
        ready = ready[np.argsort(chosen[ready].astype(small), kind="stable")]
        for start in range(0, len(ready), CHUNK):
            now = ready[start : start + CHUNK]
            found = self.evaluate(laws, chosen[now], take(columns, now))
            blank.seconds[now] = self._widened(found)
            parts[:, now] = found.parts.T
            away = np.where(pooled[chosen[now]], OTHER_SETTINGS, NEAR)
            blank.distance[now] = away + A_DOUBLING * found.beyond
        declined = self._declined(rows, chosen, columns, blank.seconds)
        closed = np.flatnonzero(~is_none(declined))
        blank.seconds[closed], blank.distance[closed], parts[:, closed] = np.nan, np.nan, np.nan
        named = dict(zip(self.terms, parts, strict=True))
        return replace(blank, declined=declined, parts=named, warnings=self.notes)

    def _widened(self, found: LawForecasts) -> FloatArray:
        """Return the quantiles with their bands as wide as held-out runs showed, (n, 3)."""
        middle = found.seconds[:, 1:2]
        more = (Z95 * self.doubling_sigma * found.beyond[:, None]) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = self.band_scale * np.log(found.seconds / middle)
            wide: FloatArray = middle * np.exp([-1.0, 0.0, 1.0] * np.sqrt(reach**2 + more))
        return wide

    @property
    def formulas(self) -> dict[str, str]:
        """Each law as a formula with units, and what limits it, by the name of its kind.

        The law of a workload and device over all settings is left out where it is that of one.
        """
        texts = {}
        for kind, law in self.laws.items():
            formula = f"seconds of {article(self.quantity)} = {law.formula(self.quantity)}"
            reading = "[ ] hold 90 % (5 to 95 %); " * ("[" in formula)
            reading += "log is natural; " * ("log" in formula)
            texts[kind] = f"{formula} ({law.runs} runs; {reading}{law.limit()})"
        own = {(kind[: len(GROUP)], text) for kind, text in texts.items() if len(kind) > len(GROUP)}
        return {
            kind_words(kind): text
            for kind, text in texts.items()
            if len(kind) > len(GROUP) or (kind, text) not in own
        }

    def _rows(self, jobs: Jobs) -> LawRows:
        return LawRows(jobs, self.quantity, self.apart)

    def _chosen(self, rows: LawRows) -> IntArray:
        """Return which law answers each job, (n,), -1 where none does."""
        kinds, index = rows.kinds
        place = {kind: i for i, kind in enumerate(self.laws)}
        of = [place.get(k, place.get(k[: len(GROUP)], -1)) for k in filled(kinds, self.laws)]
        return np.array([*of, -1], dtype=np.int64)[index]

    def _sizes(self, rows: LawRows, chosen: IntArray) -> FloatArray:
        """Return each job's size in the column of its law, (n,), NaN where it has none."""
        sizes = [law.size for law in self.laws.values()]
        size = np.full(len(rows.jobs), np.nan)
        for column in set(sizes):
            reads = np.array([one == column for one in sizes] + [False])[chosen]
            size[reads] = rows.size(column)[reads]
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
        if laws and not self.one_count_suffices:
            fewest, most = np.array([law.machines for law in laws])[chosen].T
            reasons[held & (fewest == most) & (columns["devices"] != fewest)] = ALONE
        others = [name for name in columns if name not in ("size", "devices")]
        for name in ("size", *others, "devices"):  # the last has the last word
            lacks = held & ~np.isfinite(columns[name])
            if lacks.any():
                stated = [self.missing(law.size if name == "size" else name) for law in laws]
                reasons[lacks] = np.array(stated, dtype=object)[chosen[lacks]]
        problems = rows.jobs.plan_problem
        if problems is not None:
            # A plan that nobody stated is no illegal one, and no law of these needs it.
            illegal = rows.states_plan & ~is_none(problems)
            reasons[illegal] = problems[illegal]
        return reasons

    def _why_none(self, kind: Kind) -> str:
        if not self.laws:
            return f"{self.name} answers from runs alone and was given none; give {self.needed}"
        what = " on ".join(text or "(blank)" for text in kind[: len(GROUP)])
        why = self.lacking.get(kind, self.lacking.get(kind[: len(GROUP)], ""))
        why = f"no law of {what}: {why}" if why else f"no runs of {what}"
        return f"{self.name} has {why}; give {self.needed}"

    def to_json(self) -> str:
        """Return the laws, and the settings of the predictor, as JSON text."""
        return written(self, self.version)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """
        return read_written(cls, text, cls.version, laws=Mapping[Kind, cls.law])  # type: ignore[name-defined]


def _by_kind(names: list[Kind], index: IntArray) -> Iterator[tuple[Kind, IntArray]]:
    """Yield each workload and device over all settings, and each kind, with its rows."""
    pooled: dict[Kind, list[int]] = {}
    for i, kind in enumerate(names):
        pooled.setdefault(kind[: len(GROUP)], []).append(i)
    order = np.argsort(index, kind="stable")
    rows = np.split(order, np.searchsorted(index[order], np.arange(1, len(names))))
    for lead, of in pooled.items():
        yield lead, np.sort(np.concatenate([rows[i] for i in of]))
        yield from ((names[i], rows[i]) for i in of)


def _quarters(group: RunGroup) -> tuple[RunGroup, RunGroup] | None:
    """Return the runs of three quarters of the points and of the others, None where too few."""
    index = group.points(tuple(group.columns))
    points = int(index.max()) + 1
    if points < LEAST_HELD_OUT_POINTS:
        return None
    held = (np.random.default_rng(0).permutation(points) < points // 4)[index]
    return group.take(~held), group.take(held)


def _halves(group: RunGroup) -> tuple[RunGroup, RunGroup] | None:
    """Return the runs on the fewer half of devices and the others, None where either is too few."""
    devices = group.columns["devices"]
    near: BoolArray = devices <= devices.max() / 2
    if near.sum() < LEAST_RUNS_NEAR or near.all():
        return None
    return group.take(near), group.take(~near)


def _unused(runs: Runs) -> list[str]:
    """Return how many runs have a time that cannot be used, and why."""
    times = [runs.measured(name) for name in _TIMES]
    stated = np.any([np.isfinite(column) for column in times], axis=0)
    wrong = np.any([column <= 0 for column in times], axis=0)
    counts = {
        "did not end (their times are lower bounds)": int((stated & (runs.status != "ok")).sum()),
        "have a time of 0 or below": int((wrong & (runs.status == "ok")).sum()),
    }
    return [f"{count} {words}" for words, count in counts.items() if count]


def kind_words(kind: Kind) -> str:
    """Return a kind of job in words: `resnet50 on t4 (pytorch, fp32)`.

    All-reduce is not named: it is also what a row that states nothing has.
    """
    lead = " on ".join(text or "(blank)" for text in kind[: len(GROUP)])
    rest = ", ".join(text for text in kind[len(GROUP) :] if text not in ("", SYNC[0]))
    return f"{lead} ({rest})" if rest else lead + ", all settings" * (len(kind) == len(GROUP))


def _listed(lacking: Mapping[Kind, str]) -> str:
    """Return why kinds of job have no law, the first few of them by workload and device."""
    shown = {kind: why for kind, why in lacking.items() if len(kind) == len(GROUP)} or lacking
    texts = [f"{' on '.join(kind[:2])}: {why}" for kind, why in [*shown.items()][:MOST_LISTED]]
    more = len(shown) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _shortened(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the first of the distinct notes, and how many more there are."""
    distinct = tuple(dict.fromkeys(notes))
    rest = len(distinct) - MOST_NOTES
    return (*distinct[:MOST_NOTES], f"and {rest:,} more such notes") if rest > 0 else distinct


def article(quantity: str) -> str:
    """Return `a step`, `an epoch` or `a run`."""
    return f"an {quantity}" if quantity == "epoch" else f"a {quantity}"


def interval(value: float, low: float, high: float) -> str:
    """Return a parameter with its 5 to 95 % interval: `0.012 [0.011, 0.013]`."""
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def percent(share: float) -> str:
    """Return a share as a whole percentage: `62 %`."""
    return f"{100 * share:.0f} %"
