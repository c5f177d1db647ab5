"""Generic: one expression of power laws for any framework, its constants found by evolution.

Kavarakuntla, Han, Lloyd, Latham, Kleerekoper and Akintoye, A generic performance model for deep
learning in a distributed environment (2023). The form is reconstructed: see `generic_form`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import is_none
from forerun.errors import RequestError
from forerun.predictors.laws.generic_answer import Alike, LawStack, alike
from forerun.predictors.laws.generic_columns import (
    EXTRINSIC,
    INTRINSIC,
    STRICT,
    TEXTS,
    codes,
    known_words,
    number,
)
from forerun.predictors.laws.generic_fit import MODES
from forerun.predictors.laws.generic_form import PENALTIES
from forerun.predictors.laws.generic_group import ERRORS, LEAST_POINTS, Settings, fitted_laws
from forerun.predictors.laws.generic_law import GenericLaw
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import (
    Answers,
    Columns,
    Group,
    TooFewError,
    part_of,
)
from forerun.predictors.laws.law_rows import LawRows
from forerun.tables import Runs, sorted_runs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
