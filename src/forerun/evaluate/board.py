"""Board: every predictor on every table by every split, each judged once and kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError, UnknownNameError
from forerun.evaluate.derived import with_derived
from forerun.evaluate.entries import Entry, Key, program_code, table_code
from forerun.evaluate.evaluation import ENOUGH_ANSWERED, Score
from forerun.evaluate.exam import Exam
from forerun.evaluate.folds import columns_of
from forerun.evaluate.kept import Kept
from forerun.evaluate.leaderboard import judged_rows
from forerun.evaluate.lessons import Pupil
from forerun.evaluate.scoring import score
from forerun.evaluate.splits import Split, parse_split
from forerun.evaluate.start import starting
from forerun.tables import Runs


@dataclass(frozen=True)
class Section:
    """One split over several tables; a table may have its own form of it (another bound).

    Attributes:
        title: what it asks.
        splits: by table.
        targets: percent that the best predictor's median error should reach at most, by table.
    """

    title: str
    splits: Mapping[str, str]
    targets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """Sections, and the entries that stand in them.

    Attributes:
        predictors: in their order.
        entries: at most one by predictor, table and split.
        seed: of folds, shots and ties.
    """

    sections: tuple[Section, ...]
    predictors: tuple[str, ...]
    entries: tuple[Entry, ...]
    seed: int

    def of(self, predictor: str, table: str, split: str) -> Entry | None:
        """Return one entry, None where there is none."""
        return self._found.get((predictor, table, split))

    @cached_property
    def _found(self) -> Mapping[tuple[str, str, str], Entry]:
        return {(e.key.predictor, e.key.table, e.key.split): e for e in self.entries}

    def score_of(self, predictor: str, table: str, split: str) -> Score | None:
        """Return an entry's score, None where there is none."""
        entry = self.of(predictor, table, split)
        return None if entry is None else entry.score

    def shares(self, table: str, split: str) -> dict[str, float]:
        """Return by predictor the share of the rows that it answered, of those all are judged on."""
        found = {name: self.score_of(name, table, split) for name in self.predictors}
        scores = {name: one for name, one in found.items() if one is not None}
        rows = judged_rows(list(scores.values()))
        return {name: s.answered / rows if rows else 0.0 for name, s in scores.items()}

    def best(self, table: str, split: str) -> str:
        """Return the predictor of the least median error among those that count, "" where none does."""
        shares = self.shares(table, split)
        errors: dict[str, float] = {}
        for name, share in shares.items():
            found = self.score_of(name, table, split)
            if share >= ENOUGH_ANSWERED and found is not None:
                errors[name] = found.median_ape
        return min(errors, key=lambda name: errors[name]) if errors else ""


def filled(
    tables: Mapping[str, Runs],
    predictors: Sequence[str],
    sections: Sequence[Section],
    kept: Kept,
    *,
    seed: int = 0,
    folds: int = 0,
    start: str = "",
    fresh: bool = False,
) -> Iterator[tuple[Entry, bool]]:
    """Yield every entry of a board and whether it was judged now; each is kept before the next.

    Args:
        tables: by name.
        predictors: registered names.
        sections: which splits of which tables.
        kept: what was judged before; grows.
        seed, folds: of the splits; folds 0 is the usual number of each.
        start: see `start.starting`.
        fresh: judge again what was judged before.

    Raises:
        RequestError: a split cannot be read, or an entry cannot be written.
        UnknownNameError: no such predictor.
    """
    known = registry.names("predictors")
    for name in predictors:
        if name not in known:
            raise UnknownNameError("predictor", name, known)
    parsed = {text: parse_split(text) for s in sections for text in s.splits.values()}
    for name, runs in tables.items():
        code = table_code(runs.table)
        starts: dict[str, tuple[Predictor, str] | str] = {}
        for text in dict.fromkeys(s.splits[name] for s in sections if name in s.splits):
            keys = {
                p: Key(name, code, p, text, seed, folds, start, program_code()) for p in predictors
            }
            room = _Room(name, runs, parsed[text], seed, folds, start, starts)
            for predictor, key in keys.items():
                before = None if fresh else kept.get(key)
                if before is not None:
                    yield before, False
                    continue
                entry = room.judged(predictor, key)
                if not entry.defect:
                    kept.add(entry)
                yield entry, True


class _Room:
    """Where predictors sit the exam of one table and split; it is set when the first one comes."""

    def __init__(
        self, name: str, runs: Runs, split: Split, seed: int, folds: int, start: str,
        starts: dict[str, tuple[Predictor, str] | str],
    ) -> None:  # fmt: skip
        self.name, self.runs, self.split, self.seed, self.folds = name, runs, split, seed, folds
        self.start, self.starts = start, starts
        self._exam: Exam | str | None = None

    @property
    def exam(self) -> Exam | str:
        """The exam, or why the table cannot bear it."""
        if self._exam is None:
            runs = with_derived(self.runs, columns_of(self.split))
            parts = self.folds if self.split.kind in ("random", "leave-out", "few-shot") else 0
            try:
                self._exam = Exam.of(
                    self.name, runs, self.split, seed=self.seed, parts=parts, remembered=True
                )
            except RequestError as error:
                self._exam = error.found
        return self._exam

    def judged(self, predictor: str, key: Key) -> Entry:
        """Return how a predictor did."""
        made = self._made(predictor)
        exam = self.exam
        if isinstance(exam, str) or isinstance(made, str):
            return self._entry(key, None, exam if isinstance(exam, str) else str(made))
        pupil, said = Pupil(made[0]), made[1]
        began = time.process_time()
        try:
            rows, _ = exam.sheet(pupil)
        except RequestError as error:
            return self._entry(key, None, str(error))
        except Exception as error:  # noqa: BLE001 (one predictor's defect must not cost the others)
            return self._entry(key, None, f"{type(error).__name__}: {error}", defect=True)
        found = score(rows, predictor, self.name, "", self.seed)
        seconds = time.process_time() - began
        return self._entry(key, found, unanswered(found), tuple(exam.notes), said, seconds)

    def _made(self, predictor: str) -> tuple[Predictor, str] | str:
        if predictor not in self.starts:
            try:
                (one,), said = starting([predictor], self.start, {self.name: self.runs})
                self.starts[predictor] = (one, said)
            except RequestError as error:
                self.starts[predictor] = f"{error.found}; {error.next_step}"
        return self.starts[predictor]

    def _entry(
        self, key: Key, found: Score | None, reason: str, notes: tuple[str, ...] = (),
        said: str = "", seconds: float = 0.0, defect: bool = False,
    ) -> Entry:  # fmt: skip
        return Entry(
            key, found, reason, defect, notes, said, seconds, version("forerun"),
            datetime.now(UTC).date().isoformat(),
        )  # fmt: skip


def unanswered(found: Score) -> str:
    """Return why a predictor has no figure on a table: the most frequent reason; "" where it has."""
    if found.answered:
        return ""
    if found.rows and found.censored == found.rows:
        return "every judged run was stopped early: there are lower bounds and no times"
    reasons = found.declined or found.not_comparable
    return max(reasons, key=lambda reason: reasons[reason]) if reasons else "no row was judged"
