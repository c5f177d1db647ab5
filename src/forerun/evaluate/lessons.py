"""Lessons: what a predictor is taught before each fold, and fitted no more often than it differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import BoolArray
from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError
from forerun.evaluate.folds import Fold
from forerun.evaluate.join import join_runs
from forerun.tables import Runs
from forerun.tables.contents import content_codes
from forerun.tables.suspects import cleaned, suspects


@dataclass(frozen=True)
class Lessons:
    """The teachers of one judged table: its own rows by fold, and rows of other tables.

    Attributes:
        name, runs: the judged table.
        slower: (n,) rows whose times are neither taught nor judged.
        others: further tables to learn from, less every row that tells of a measurement which is
            judged.
        identical: by table, how many such rows were left out.
        memory: lessons that were given, by `key`, for the next predictor; None keeps none.
    """

    name: str
    runs: Runs
    slower: BoolArray
    others: Mapping[str, Runs] = field(default_factory=dict)
    identical: Mapping[str, int] = field(default_factory=dict)
    memory: dict[tuple[object, ...], Runs] | None = None

    @staticmethod
    def of(
        name: str, runs: Runs, slower: BoolArray, others: Mapping[str, Runs],
        memory: dict[tuple[object, ...], Runs] | None = None,
    ) -> Lessons:  # fmt: skip
        """Return the lessons of a judged table.

        Raises:
            RequestError: there are other tables, and no row of them is left.
        """
        if not others:
            return Lessons(name, runs, slower, memory=memory)
        mine, *codes = content_codes([runs, *others.values()])
        judged = np.unique(mine[mine >= 0])
        kept: dict[str, Runs] = {}
        identical: dict[str, int] = {}
        for (other, table), code in zip(others.items(), codes, strict=True):
            same = np.isin(code, judged)
            if same.any():
                identical[other] = int(same.sum())
                table = table.take(np.flatnonzero(~same))
            if len(table):
                kept[other] = table
        if not kept:
            raise RequestError(
                f"--fit {', '.join(others)}", f"all of its rows stand in {name} too, where they are judged",
                "name other runs, or let --split divide the table",
            )  # fmt: skip
        return Lessons(name, runs, slower, kept, identical, memory)

    def teaching(self, fold: Fold) -> NDArray[np.int64]:
        """Return the positions of the judged table's rows that teach in a fold."""
        return fold.train[~self.slower[fold.train]]

    def key(self, fold: Fold) -> tuple[object, ...]:
        """Return what tells whether two folds have the same teachers."""
        rows = self.teaching(fold)
        own = (self.name, rows.tobytes()) if len(rows) else ()
        # Where rows were left out for this table's sake, another table's lessons differ.
        others = ((other, self.name if other in self.identical else "") for other in self.others)
        return (*own, *others)

    def teachers(self, fold: Fold) -> Runs | None:
        """Return all runs that teach in a fold, None where none does.

        Figures that look wrong beyond doubt are blank, as in every other fit. What is wrong is
        told from the teachers alone, and from physics, which has seen no run.
        """
        key = self.key(fold)
        if self.memory is not None and key in self.memory:
            return self.memory[key]
        teachers = self._teachers(self.teaching(fold))
        if self.memory is not None and teachers is not None:
            self.memory[key] = teachers
        return teachers

    def _teachers(self, rows: NDArray[np.int64]) -> Runs | None:
        runs = [self.runs.take(rows)] if len(rows) else []
        runs += self.others.values()
        if not runs:
            return None
        own, *other = self.expected
        forecasts = _stacked([*([own.take(rows)] if len(rows) else []), *other])
        teachers = join_runs(runs)
        return cleaned(teachers, suspects(teachers, forecasts))

    @cached_property
    def expected(self) -> Sequence[Forecasts]:
        """What physics expects of the judged table and of each other one."""
        physics: Predictor = registry.load("predictors", "analytic")()
        return [physics.predict(runs.jobs) for runs in (self.runs, *self.others.values())]


def _stacked(parts: Sequence[Forecasts]) -> Forecasts:
    """Return the rows of all parts, without their parts of step and peak."""
    blank = Forecasts.blank(0, parts[0].predictor, parts[0].quantity)
    names = ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance", "declined")
    columns: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
    return replace(blank, **columns)


class Pupil:
    """A predictor that is fitted anew only where its teachers differ from the last ones."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.fits = 0
        self._key: tuple[object, ...] = ()
        self._taught: Predictor | RequestError = predictor

    def taught(self, lessons: Lessons, fold: Fold) -> Predictor:
        """Return the predictor as it is after a fold's lessons.

        Raises:
            RequestError: the runs cannot teach it.
        """
        key = lessons.key(fold)
        if key != self._key:
            self._key = key
            self._taught = self._fitted(lessons.teachers(fold))
        if isinstance(self._taught, RequestError):
            raise self._taught
        return self._taught

    def _fitted(self, teachers: Runs | None) -> Predictor | RequestError:
        if teachers is None:
            return self.predictor
        self.fits += 1
        try:
            return self.predictor.fit(teachers)
        except RequestError as error:
            return error
