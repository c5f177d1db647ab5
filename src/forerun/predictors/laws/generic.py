"""Generic: one expression of power laws for any framework, its constants found by evolution.

Kavarakuntla, Han, Lloyd, Latham, Kleerekoper and Akintoye, A generic performance model for deep
learning in a distributed environment (2023). The form is reconstructed: see `generic_form`.

Answers of many generic laws at once: those that read the same columns are asked together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import is_none
from forerun.errors import RequestError
from forerun.predictors.laws.generic_columns import (
    BLANK,
    EXTRINSIC,
    INTRINSIC,
    STRICT,
    TEXTS,
    codes,
    known_words,
    number,
)
from forerun.predictors.laws.generic_fit import MODES
from forerun.predictors.laws.generic_form import PENALTIES, FormRows
from forerun.predictors.laws.generic_group import ERRORS, LEAST_POINTS, Settings, fitted_laws
from forerun.predictors.laws.generic_law import MOST_VARIANCE, GenericLaw, Texts
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import (
    Answers,
    Columns,
    Group,
    TooFewError,
    banded,
    part_of,
)
from forerun.predictors.laws.law_rows import LawRows
from forerun.predictors.options import Option
from forerun.tables import Runs, sorted_runs

# Up to so many laws a product for each is faster than a matrix for each job.
_FEW = 12
Alike = tuple[tuple[str, ...], ...]


def alike(law: GenericLaw) -> Alike:
    """Return what laws share that are asked together: the columns that they read, and their order."""
    words = [f"{name}={word}" for name, of in law.categories.items() for word in of]
    return tuple(map(tuple, (law.numbers, words, law.scaling, law.bounds, law.held)))


@dataclass(frozen=True)
class LawStack:
    """Laws that read the same columns, as arrays.

    Attributes:
        laws: at least one.
        texts: the words of each text column.
    """

    laws: Sequence[GenericLaw]
    texts: Texts

    def answers(self, index: IntArray, columns: Columns) -> Answers:
        """Return what the laws say of n jobs; NaN where one cannot speak.

        Args:
            index: which law each job is answered by, (n,).
            columns: of the jobs, (n,) each.
        """
        n = len(index)
        seconds, parts, beyond = np.full((n, 3), np.nan), np.full((n, 2), np.nan), np.zeros(n)
        said = np.flatnonzero(self._speaks(index, columns))
        of, read = index[said], {name: values[said] for name, values in columns.items()}
        rows, known = self._rows(of, read)
        said, of, rows = said[known], of[known], rows.take(np.flatnonzero(known))
        if not len(said):
            return Answers(seconds, parts, beyond)
        parts[said], variance = self._said(of, rows)
        seconds[said] = banded(parts[said].sum(axis=1), self._reach[of], variance)
        beyond[said] = self._beyond(of, {name: values[known] for name, values in read.items()})
        return Answers(seconds, parts, beyond)

    @property
    def _first(self) -> GenericLaw:
        return self.laws[0]

    @cached_property
    def _reach(self) -> FloatArray:
        return np.array([law.reach for law in self.laws])

    @cached_property
    def _bounds(self) -> FloatArray:
        """Least and most of each column, (columns, laws, 2)."""
        found = [[law.bounds[name] for law in self.laws] for name in self._first.bounds]
        return np.array(found, dtype=np.float64).reshape(len(found), len(self.laws), 2)

    def _speaks(self, index: IntArray, columns: Columns) -> BoolArray:
        """Return which jobs state what their law reads, and are as its runs where these never change."""
        ok = np.ones(len(index), dtype=bool)
        for name in (*self._first.numbers, *self._first.scaling):
            ok &= columns[name] > 0
        for name, bounds in zip(self._first.bounds, self._bounds, strict=True):
            if name in STRICT:
                low, high = bounds[index].T
                ok &= (low != high) | (columns[name] == low) | ~(columns[name] > 0)
        for name in self._first.held:
            codes = columns[name]
            held = np.array([law.code(name, self.texts) for law in self.laws])[index]
            ok &= (codes == held) | (codes == BLANK)
        return ok

    def _rows(self, index: IntArray, columns: Columns) -> tuple[FormRows, BoolArray]:
        """Return n jobs as the expressions read them, (n, 1, .), and which have known words, (n,)."""
        n, first = len(index), self._first
        flags = [np.ones((n, 0))]
        known = np.ones(n, dtype=bool)
        for name, of in first.categories.items():
            places = first.places(name, columns[name], self.texts)
            known &= places >= 0
            flags.append((places[:, None] == np.arange(len(of))).astype(np.float64))
        if not first.numbers and not first.categories:
            flags = [np.ones((n, 1))]
        logs = []
        for name_of in ("numbers", "scaling"):
            by = np.log([[*getattr(law, name_of).values()] for law in self.laws])[index]
            of_jobs = [
                np.log(np.maximum(columns[name], 1e-300)) for name in getattr(first, name_of)
            ]
            made = np.stack(of_jobs, axis=1) - by if of_jobs else np.zeros((n, 0))
            logs.append(made[:, None])
        return FormRows(logs[0], logs[1], np.concatenate(flags, axis=1)[:, None]), known

    def _said(self, index: IntArray, rows: FormRows) -> tuple[FloatArray, FloatArray]:
        """Return the parts of n jobs (n, 2), what scales and what does not, and the log variance."""
        coefficients = np.stack([law.coefficients for law in self.laws])[index]
        exponents = np.stack([law.exponents for law in self.laws])[index]
        spread = np.stack([law.covariance for law in self.laws])
        columns = rows.columns(exponents)
        terms = columns[:, 0] * coefficients
        parts = np.stack([terms[:, :-1].sum(axis=1), terms[:, -1]], axis=1)
        slopes = np.concatenate([columns, rows.slopes(columns, coefficients)], axis=2)[:, 0]
        turned = np.empty_like(slopes)
        if len(self.laws) <= _FEW:
            for i, matrix in enumerate(spread):
                turned[index == i] = slopes[index == i] @ matrix
        else:
            turned = (slopes[:, None] @ spread[index])[:, 0]
        variance = np.einsum("ni,ni->n", turned, slopes)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.minimum(variance / parts.sum(axis=1) ** 2, MOST_VARIANCE)
        return parts, relative

    def _beyond(self, index: IntArray, columns: Columns) -> FloatArray:
        """Return by how many doublings n jobs lie beyond the runs, over all columns, (n,)."""
        total = np.zeros(len(index))
        for name, bounds in zip(self._first.bounds, np.log2(self._bounds), strict=True):
            low, high = bounds[index].T
            value = np.log2(np.where(columns[name] > 0, columns[name], 1.0))
            outside = np.maximum(np.maximum(value - high, low - value), 0.0)
            total += np.where(columns[name] > 0, outside, 0.0)
        return total


@dataclass(frozen=True)
class Generic(GroupedLaws[GenericLaw]):
    """seconds = (sum of a_i I_i^p_i) (product of E_j^q_j) + C, with a_i >= 0 and C >= 0.

    I are the columns of the network and its training that change among the runs (a text has a
    constant for each of its words), E those of how it is spread over machines, each divided by
    the middle one of its measured values.

    Attributes:
        mode: `fast` evolves the exponents alone and solves the rest exactly; `faithful` evolves
            every constant, as published, which takes a hundred times as long.
        penalty: `l1` or `l2`, of all constants; its strength is chosen by runs held out.
        errors: `relative` misses count as shares of the fitted time, those much larger than most
            by their size instead of the square; `absolute` ones in seconds, as published.
        texts: the words of each text column among the fitted runs.
    """

    mode: str = "fast"
    penalty: str = "l2"
    errors: str = "relative"
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    name = "generic"
    options = (
        Option("mode", "fast", "which constants evolve: the exponents alone, or all", MODES),
        Option("penalty", "l2", "the norm of the constants that is penalised", PENALTIES),
        Option("errors", "relative", "misses as shares of the time, or in seconds", ERRORS),
    )
    terms = ("scaled work", "constant")
    needed = (
        f"at least {LEAST_POINTS} runs that differ, on two numbers of devices or more where it is "
        "asked of another number"
    )
    version = 2
    apart = False

    def size_of(self, rows: LawRows) -> str:
        """Return "": sizes are columns like any other."""
        return ""

    def __post_init__(self) -> None:
        """Refuse settings that do not exist. Raises RequestError."""
        for name, known in (("mode", MODES), ("penalty", PENALTIES), ("errors", ERRORS)):
            if getattr(self, name) not in known:
                asked = f"{self.name} with {name} {getattr(self, name)!r}"
                raise RequestError(asked, f"it knows {', '.join(known)}", "give one of them")

    def fit(self, runs: Runs) -> Self:
        """Return a predictor with the laws of these runs alone. Raises as `GroupedLaws.fit`."""
        runs = sorted_runs(runs)
        known = known_words(LawRows(runs.jobs))
        fresh = replace(self, laws={}, lacking={}, notes=(), texts=known)
        return GroupedLaws.fit(fresh, runs)

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return what the laws read of n jobs, all that a law may read where there is none yet."""
        every = (*EXTRINSIC, *INTRINSIC, *TEXTS)
        laws = self.laws.values()
        read = {name for law in laws for name in (*law.bounds, *law.held, *law.categories)}
        wanted = [name for name in every if not laws or name in read or name == "devices"]
        found = {name: number(rows, name) for name in wanted if name not in TEXTS}
        for name in wanted:
            if name in self.texts:
                found[name] = codes(rows, name, self.texts[name])
        found["devices"] = np.where(rows.machines > 0, rows.machines, np.nan)
        return found

    def group_laws(self, groups: Sequence[Group]) -> list[GenericLaw | TooFewError]:
        """Return the law of each of several kinds, those of one form fitted at once."""
        return fitted_laws(groups, self.texts, Settings(self.mode, self.penalty, self.errors))

    def answers(self, laws: list[GenericLaw], index: IntArray, columns: Columns) -> Answers:
        """Return seconds, the two parts and doublings of n jobs; NaN where a law cannot speak."""
        seconds, parts = np.full((len(index), 3), np.nan), np.full((len(index), 2), np.nan)
        beyond = np.zeros(len(index))
        used, own = np.unique(index, return_inverse=True)
        stacks: dict[Alike, list[int]] = {}
        for which in used.tolist():
            stacks.setdefault(alike(laws[which]), []).append(which)
        for members in stacks.values():
            place = np.full(len(laws), -1)
            place[members] = np.arange(len(members))
            of = np.flatnonzero(place[used][own.reshape(-1)] >= 0)
            stack = LawStack([laws[which] for which in members], self.texts)
            answer = stack.answers(place[index[of]], part_of(columns, of))
            seconds[of], parts[of], beyond[of] = answer.seconds, answer.parts, answer.beyond
        return Answers(seconds, parts, beyond)

    def _declined(
        self, rows: LawRows, chosen: IntArray, columns: Columns, seconds: FloatArray
    ) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,)."""
        reasons = super()._declined(rows, chosen, columns, seconds)
        closed = (chosen >= 0) & ~np.isfinite(seconds[:, 1]) & np.isfinite(columns["devices"])
        for which, law in enumerate(self.laws.values()):
            of = np.flatnonzero(closed & (chosen == which))
            if len(of):
                why = law.why_not(part_of(columns, of), self.texts, STRICT)
                reasons[of] = np.where(is_none(why), reasons[of], why)
        return reasons

    def law_of(self, entry: Mapping[str, Any]) -> GenericLaw:
        """Return a law from its saved fields."""
        return GenericLaw.saved(entry)
