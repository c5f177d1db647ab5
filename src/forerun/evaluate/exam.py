"""Exam: one table divided by one split, before which predictors are taught and by which they are asked.

Notes: what a reader must know of how one table was divided, in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.forecast import QUANTITIES, Forecasts
from forerun.errors import RequestError
from forerun.evaluate.aliases import grounded
from forerun.evaluate.filters import slower_half
from forerun.evaluate.folds import Fold, folds_of
from forerun.evaluate.lessons import Lessons, Pupil
from forerun.evaluate.scoring import STEP, Answers, Sheet, sheet
from forerun.evaluate.splits import Split
from forerun.tables import Jobs, Runs, Table
from forerun.units import counted


def notes_of(split: Split, table: Table, folds: Sequence[Fold]) -> tuple[str, ...]:
    """Return what was put for a word or bound of the split, and the trap of interpolation."""
    here, notes = grounded(split, table)
    if here.kind != "interpolation" or table.columns[here.column].dtype == object:
        return notes
    values = table.numbers(here.column)
    return (*notes, *_ends(here.column, values[folds[0].train], values[folds[0].test]))


def _ends(column: str, taught: FloatArray, judged: FloatArray) -> tuple[str, ...]:
    """Return how many judged rows lie below or above everything that teaches."""
    said = []
    for name, beyond in (("below", judged < taught.min()), ("above", judged > taught.max())):
        if beyond.any():
            values = ", ".join(f"{v:g}" for v in np.unique(judged[beyond]))
            rows = counted(int(beyond.sum()), "row")
            said.append(f"{rows} of {len(judged):,} ({column} {values}) {name} all that teach")
    if not said:
        return ()
    return (
        f"interpolation:{column} judges {' and '.join(said)}: extrapolation;"
        f" between:{column} leaves the ends out",
    )


_FIELDS = ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance", "declined")


@dataclass(frozen=True)
class Exam:
    """A judged table, its folds, what may be taught before each, and what must be known of them."""

    lessons: Lessons
    folds: Sequence[Fold]
    notes: Sequence[str] = field(default=())

    @staticmethod
    def of(
        name: str, runs: Runs, split: Split, others: Mapping[str, Runs] | None = None, *,
        seed: int = 0, parts: int = 0, faster_half: Sequence[str] = (), remembered: bool = False,
    ) -> Exam:  # fmt: skip
        """Return the exam of a table.

        Args:
            name, runs: the table; it has every column that the split speaks of and its cluster tells.
            split: how it is divided.
            others: further tables to learn from.
            seed, parts, faster_half: as in `judge.evaluate`.
            remembered: whether lessons are kept for the next predictor.

        Raises:
            RequestError: the table cannot bear the split, or no other row is left to learn from.
        """
        try:
            folds = folds_of(split, runs.table, seed, parts)
            notes = notes_of(split, runs.table, folds)
            slower = np.zeros(len(runs), dtype=bool)
            if faster_half:
                slower = slower_half(runs, faster_half)
        except RequestError as error:
            raise RequestError(f"{error.asked} of {name}", error.found, error.next_step) from None
        memory: dict[tuple[object, ...], Runs] | None = {} if remembered else None
        return Exam(Lessons.of(name, runs, slower, others or {}, memory), folds, notes)

    def sheet(self, pupil: Pupil) -> tuple[Sheet, NDArray[np.bool_]]:
        """Return the judged rows beside a predictor's answers, and which rows of the table they are.

        Raises:
            RequestError: the predictor breaks its contract.
        """
        answers = _answers(pupil, self)
        return sheet(self.lessons.runs, answers, self.lessons.slower), answers.judged


def _answers(pupil: Pupil, exam: Exam) -> Answers:
    """Return a predictor's answers to every row that some fold judges."""
    runs = exam.lessons.runs
    n, name = len(runs), pupil.predictor.name
    merged = Forecasts.blank(n, name)
    quantity = np.full(n, -1, dtype=np.int64)
    judged, clamped = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for fold in exam.folds:
        answer = _ask(pupil, exam.lessons, fold)
        if answer.answered.any():
            quantity[fold.test] = QUANTITIES.index(answer.quantity)
        judged[fold.test] = True
        clamped[fold.test] = _clamped(answer)
        for column in _FIELDS:
            getattr(merged, column)[fold.test] = getattr(answer, column)
    known = quantity[quantity >= 0]
    usual = int(np.bincount(known).argmax()) if len(known) else STEP
    return Answers(
        np.where(quantity >= 0, quantity, usual), merged.seconds, merged.peak_bytes,
        merged.floor_seconds, merged.fit_probability, merged.distance, merged.declined, judged, clamped,
    )  # fmt: skip


def _clamped(answer: Forecasts) -> NDArray[np.bool_]:
    """Return which forecasts were raised to their floor (n,): by their own word, else by number."""
    if "floor" in answer.parts:
        return np.asarray(answer.parts["floor"] > 0)
    return np.asarray(answer.seconds[:, 1] <= answer.floor_seconds * (1 + 1e-9))


def _ask(pupil: Pupil, lessons: Lessons, fold: Fold) -> Forecasts:
    jobs = lessons.runs.jobs.take(fold.test)
    try:
        predictor = pupil.taught(lessons, fold)
    except RequestError as error:
        return _declined(jobs, pupil.predictor.name, f"cannot be fitted: {error}")
    answer = predictor.predict(jobs)
    if len(answer) != len(jobs):
        raise RequestError(
            f"evaluating {predictor.name}", f"{len(answer)} forecasts for {len(jobs)} jobs",
            "mend the predictor: forerun.testing.PredictorContract examines it",
        )  # fmt: skip
    return answer


def _declined(jobs: Jobs, predictor: str, reason: str) -> Forecasts:
    blank = Forecasts.blank(len(jobs), predictor)
    blank.declined[:] = reason
    return blank
