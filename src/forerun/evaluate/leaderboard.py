"""Leaderboard: predictors in order, and every predictor on every table by every split, kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache, cached_property
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from forerun import registry
from forerun.contracts import Predictor
from forerun.errors import RequestError
from forerun.evaluate.evaluation import ENOUGH_ANSWERED, Evaluation, Score
from forerun.evaluate.judge import DividedTable, Estimator, starting
from forerun.evaluate.scoring import score
from forerun.evaluate.splits import USUAL_FOLDS, columns_of, parse_split, with_derived
from forerun.predictors.options import read_spec
from forerun.tables import Runs, Table

FORMAT = 1
# Folders that no figure depends on.
_NO_MATTER = {"cli", "advisor", "search", "server", "systems", "testing", "__pycache__"}
_SOURCES = (".py", ".json", ".csv", ".yaml", ".toml")


@dataclass(frozen=True)
class EntryKey:
    """What an entry's figures depend on: content of table and program, and what was requested."""

    table: str
    table_code: str
    predictor: str
    split: str
    seed: int
    folds: int
    start: str
    code: str


@dataclass(frozen=True)
class LeaderboardEntry:
    """A predictor's figures on a table, or the reason why there are none.

    `defect` marks a mistake of the predictor's code; such an entry is not kept. `started` is what the
    predictor knew before it was fitted, `seconds` the CPU time of fitting and answering.
    """

    key: EntryKey
    score: Score | None
    reason: str = ""
    defect: bool = False
    notes: tuple[str, ...] = ()
    started: str = ""
    seconds: float = 0.0
    version: str = field(default_factory=lambda: version("forerun"))
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, NaN as None."""
        score = None if self.score is None else self.score.as_dict()
        own = {k: v for k, v in vars(self).items() if k != "key"} | {"notes": list(self.notes)}
        own |= {"score": score, "seconds": round(self.seconds, 3)}
        return {"format": FORMAT, **vars(self.key), **own}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> LeaderboardEntry:
        """Return the entry that `as_dict` wrote, or raise KeyError, TypeError or ValueError."""
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        key = EntryKey(**{f.name: values[f.name] for f in fields(EntryKey)})
        own = {f.name: values[f.name] for f in fields(LeaderboardEntry) if f.name != "key"}
        own["notes"] = tuple(own["notes"])
        if own["score"] is not None:
            own["score"] = Score.from_dict(own["score"])
        return LeaderboardEntry(key, **own)


def table_code(table: Table) -> str:
    """Return a short text that differs for tables of other columns, cells or order of rows."""
    code = blake2b(digest_size=8)
    for name in sorted(table.columns):
        code.update(f"{name}\x1e".encode())
        column = table.columns[name]
        if column.dtype == object:
            code.update("\x1f".join(map(str, column.tolist())).encode())
        else:
            code.update(np.ascontiguousarray(column, dtype=np.float64).tobytes())
    return code.hexdigest()


@cache
def program_code() -> str:
    """Return a short text of the package's files, and of other packages that bring predictors."""
    code = blake2b(digest_size=6)
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.suffix in _SOURCES and not _NO_MATTER.intersection(inside.parts):
            code.update(str(inside).encode() + b"\x1e" + path.read_bytes())
    for entry in registry.entries("predictors"):
        if entry.origin != "forerun":
            code.update(f"{entry.name} {entry.origin} {version(entry.origin)}".encode())
    return code.hexdigest()


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    """One predictor's place, by the tables in which every predictor's figures count (`tables`).

    `median_ape` (percent, a geometric mean) and `coverage` are over these; its own count in `counted`.
    """

    place: int
    predictor: str
    median_ape: float
    coverage: float
    tables: int
    counted: int


def leaderboard(evaluation: Evaluation) -> tuple[LeaderboardRow, ...]:
    """Return the predictors, best first.

    Only tables in which every predictor answered at least 90 % of the rows are compared, so that
    declining the hard ones does not help. A predictor without a figure comes last.
    """
    totals = evaluation.totals()
    rows_of = {t: judged_rows([s for s in totals if s.table == t]) for t in evaluation.tables}
    counted = {
        p: {
            s.table for s in totals
            if s.predictor == p and s.answered >= ENOUGH_ANSWERED * rows_of[s.table] > 0
        }
        for p in evaluation.predictors
    }  # fmt: skip
    common = set.intersection(*counted.values()) if counted else set()
    rows = []
    for predictor in evaluation.predictors:
        mine = [s for s in totals if s.predictor == predictor and s.table in common]
        # An error of exactly zero would make the mean zero whatever the other tables say.
        errors = np.array([max(s.median_ape, 1e-6) for s in mine])
        error = float(np.exp(np.log(errors).mean())) if mine else float("nan")
        coverage = float(np.mean([s.coverage for s in mine])) if mine else float("nan")
        rows.append((error, predictor, coverage, len(mine)))
    rows.sort(key=lambda row: (np.isnan(row[0]), row[0], row[1]))
    return tuple(
        LeaderboardRow(place, predictor, error, coverage, tables, len(counted[predictor]))
        for place, (error, predictor, coverage, tables) in enumerate(rows, start=1)
    )


def judged_rows(scores: Sequence[Score]) -> int:
    """Return on how many rows of one table predictors are compared.

    Where all answer in one quantity, those with a measured time in it; else those with any time.
    """
    spoken = {quantity for s in scores for quantity in s.quantities}
    if len(spoken) > 1:
        return max(s.timed_rows for s in scores)
    return max((s.comparable for s in scores if s.quantities or not spoken), default=0)


class EntryFile:
    """A file of entries that only grows, by several processes; a line that was cut short is passed over."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the entries of a file, if there is one; None keeps them in memory alone."""
        self.path = path
        self.entries: dict[EntryKey, LeaderboardEntry] = {}
        self.unreadable = 0
        if path is None or not path.exists():
            return
        try:
            lines = [line for line in path.read_bytes().splitlines() if line]
        except OSError as error:
            raise _trouble(path, error, "read") from None
        for line in lines:
            try:
                entry = LeaderboardEntry.from_dict(json.loads(line))
            except (KeyError, TypeError, ValueError):
                self.unreadable += 1
            else:
                self.entries[entry.key] = entry
        # Entries of another format are judged again; a file of something else is not written to.
        if not self.entries and not all(line.startswith(b'{"format":') for line in lines):
            raise RequestError(
                f"--cache {path}", "it holds no entries of a leaderboard",
                "name a file that `forerun leaderboard` wrote, or a new one",
            )  # fmt: skip

    def add(self, entry: LeaderboardEntry) -> None:
        """Keep an entry. Raises RequestError where it cannot be written."""
        self.entries[entry.key] = entry
        if self.path is None:
            return
        line = json.dumps(entry.as_dict(), separators=(",", ":"), allow_nan=False) + "\n"
        try:
            with self.path.open("ab+") as file:
                if end := file.tell():
                    file.seek(end - 1)
                    # A line that was cut short must not swallow this one.
                    line = line if file.read(1) == b"\n" else "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _trouble(self.path, error, "written") from None


def _trouble(path: Path, error: OSError, verb: str) -> RequestError:
    return RequestError(
        f"--cache {path}", f"it cannot be {verb}: {error.strerror}", "name another file"
    )


@dataclass(frozen=True)
class BoardSection:
    """One split over several tables; `splits` holds each table's own form of it (another bound)."""

    title: str
    splits: Mapping[str, str]


@dataclass(frozen=True)
class Scoreboard:
    """Sections, and at most one entry by predictor, table and split."""

    sections: tuple[BoardSection, ...]
    predictors: tuple[str, ...]
    entries: tuple[LeaderboardEntry, ...]
    seed: int

    @cached_property
    def _found(self) -> Mapping[tuple[str, str, str], LeaderboardEntry]:
        return {(e.key.predictor, e.key.table, e.key.split): e for e in self.entries}

    def of(self, predictor: str, table: str, split: str) -> LeaderboardEntry | None:
        """Return one entry, if there is one."""
        return self._found.get((predictor, table, split))

    def entries_of(self, section: BoardSection) -> list[LeaderboardEntry]:
        """Return the entries of a section, by predictor and table."""
        cells = ((n, t, s) for n in self.predictors for t, s in section.splits.items())
        return [self._found[cell] for cell in cells if cell in self._found]

    def score_of(self, predictor: str, table: str, split: str) -> Score | None:
        """Return an entry's score, None where there is none."""
        entry = self.of(predictor, table, split)
        return None if entry is None else entry.score

    def scores(self, table: str, split: str) -> list[Score]:
        """Return the scores of all predictors that have one, in their order."""
        found = (self.score_of(name, table, split) for name in self.predictors)
        return [one for one in found if one is not None]

    def shares(self, table: str, split: str) -> dict[str, float]:
        """Return by predictor the share of the rows that it answered, of those all are judged on."""
        scores = self.scores(table, split)
        rows = judged_rows(scores)
        return {s.predictor: s.answered / rows if rows else 0.0 for s in scores}

    def best(self, table: str, split: str) -> str:
        """Return the predictor of the least median error among those that count, "" where none does."""
        shares = self.shares(table, split)
        scores = [s for s in self.scores(table, split) if shares[s.predictor] >= ENOUGH_ANSWERED]
        return min(scores, key=lambda s: s.median_ape).predictor if scores else ""


def filled(
    tables: Mapping[str, Runs], predictors: Sequence[str], sections: Sequence[BoardSection],
    kept: EntryFile, *, seed: int = 0, folds: int = 0, start: str = "", fresh: bool = False,
) -> Iterator[tuple[LeaderboardEntry, bool]]:  # fmt: skip
    """Yield every entry of a board and whether it was judged now; `kept` grows by it before the next.

    Entries that `kept` holds are judged again only if `fresh`; folds 0 is the usual number.

    Raises:
        RequestError: a split cannot be read, or an entry cannot be written.
        UnknownNameError: no such predictor.
    """
    for name in predictors:
        read_spec(name)
    parsed = {text: parse_split(text) for s in sections for text in s.splits.values()}
    for name, runs in tables.items():
        code = table_code(runs.table)
        starts: dict[str, tuple[dict[str, Predictor], str]] = {}
        for text in dict.fromkeys(s.splits[name] for s in sections if name in s.splits):
            divided: DividedTable | None = None
            for predictor in predictors:
                key = EntryKey(name, code, predictor, text, seed, folds, start, program_code())
                if key in kept.entries and not fresh:
                    yield kept.entries[key], False
                    continue
                try:
                    if predictor not in starts:
                        starts[predictor] = starting([predictor], start, {name: runs})
                    if divided is None:
                        split = parsed[text]
                        divided = DividedTable.of(
                            name, with_derived(runs, columns_of(split)), split, seed=seed,
                            parts=folds if split.kind in USUAL_FOLDS else 0,
                        )  # fmt: skip
                    entry = _judged(key, *starts[predictor], divided)
                except RequestError as error:
                    entry = LeaderboardEntry(key, None, f"{error.found}; {error.next_step}")
                except Exception as error:  # noqa: BLE001 (one's defect must not cost the others)
                    why = f"{type(error).__name__}: {error}"
                    entry = LeaderboardEntry(key, None, why, defect=True)
                if not entry.defect:
                    kept.add(entry)
                yield entry, True


def _judged(
    key: EntryKey, made: Mapping[str, Predictor], words: str, divided: DividedTable
) -> LeaderboardEntry:
    began = time.process_time()
    rows, _ = divided.sheet(Estimator(made[key.predictor]))
    found = score(rows, key.predictor, key.table, "", key.seed)
    seconds = time.process_time() - began
    reason = ""
    if not found.answered:
        reason = most_frequent(found.declined or found.not_comparable) or "no row was judged"
        if found.rows and found.censored == found.rows:
            reason = "every judged run was stopped early: there are lower bounds and no times"
    return LeaderboardEntry(key, found, reason, False, tuple(divided.notes), words, seconds)


def most_frequent(reasons: Mapping[str, int]) -> str:
    """Return the reason of most rows, "" where there is none."""
    return max(reasons, key=lambda reason: reasons[reason], default="")
