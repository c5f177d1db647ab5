"""Judge: divide runs tables by a split, fit each predictor on one side, score it on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import BoolArray, IntArray, one_blas_thread
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES, Forecasts
from forerun.errors import RequestError
from forerun.evaluate import splits
from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score
from forerun.evaluate.scoring import ANSWERED, STEP, Sheet, distance_bins, score, sheet, stack
from forerun.predictors import options
from forerun.progress import report_progress
from forerun.tables import COLUMNS, MEASURED, Runs, Table
from forerun.tables.conditions import unknown_column
from forerun.tables.fingerprints import content_codes, seen
from forerun.tables.jobs import join_runs
from forerun.tables.own_columns import runs_read_as
from forerun.tables.suspects import cleaned, suspects
from forerun.tables.table import map_words, matched, misspelt_columns
from forerun.units import counted


def read_alike(judged: Mapping[str, Runs], fitted: Mapping[str, Runs]) -> dict[str, Runs]:
    """Return what is judged, its own columns read as those of what is fitted."""
    own = join_runs([*fitted.values()]).table.own if fitted else None
    return {name: found if own is None else runs_read_as(found, own) for name, found in judged.items()}  # fmt: skip


def starting(
    names: Sequence[str], start: str = "", judged: Mapping[str, Runs] | None = None
) -> tuple[dict[str, Predictor], str]:
    """Return predictors by name as they start, and that start in words.

    start: `shipped`, `priors`, or "" for shipped constants unless they were fitted to a judged run or
    may have been. Raises UnknownNameError, or RequestError where shipped constants are missing.
    """
    has = [name for name in names if options.has_shipped(options.kind_of(name))]
    if start == options.SHIPPED and not has:
        raise options.nothing_shipped(names)
    reason = "" if start == options.PRIORS or not has else _not_blind(has, judged or {})
    if start == options.PRIORS or not has or (reason and not start):
        words = f"{options.PRIORS} ({reason})" if reason else options.PRIORS
        return {name: options.started(name, options.PRIORS) for name in names}, words
    words = f"shipped constants of {', '.join(has)}{f' ({reason}: not blind)' if reason else ''}"
    return {name: options.started(name) for name in names}, words


def seen_by(kind: Any, runs: Runs) -> int | None:
    """Return how many of the runs a predictor's shipped constants were fitted to; None if not known."""
    if not hasattr(kind, "shipped_rows"):
        return None
    return int(seen(runs, kind.shipped_rows()).sum())


def _not_blind(names: Sequence[str], judged: Mapping[str, Runs]) -> str:
    rows = sum(len(runs) for runs in judged.values())
    for name in names:
        counts = [seen_by(options.kind_of(name), runs) for runs in judged.values()]
        if None in counts:
            return f"{name} does not say which runs its shipped constants were fitted to"
        most = sum(count or 0 for count in counts)
        if most:
            return f"the shipped constants were fitted to {most:,} of {rows:,} judged rows"
    return ""


@dataclass(frozen=True)
class TrainingSets:
    """What predictors are fitted on before each fold of one judged table.

    `slower` (n,) rows' times are neither fitted nor judged; of `others`, rows that repeat a judged
    measurement are left out, `identical` of each.
    """

    name: str
    runs: Runs
    slower: BoolArray
    others: Mapping[str, Runs] = field(default_factory=dict)
    identical: Mapping[str, int] = field(default_factory=dict)
    _made: dict[tuple[object, ...], Runs] = field(default_factory=dict, repr=False)  # by `key`

    @staticmethod
    def of(name: str, runs: Runs, slower: BoolArray, others: Mapping[str, Runs]) -> TrainingSets:
        """Return the training sets of a judged table, or raise RequestError if the others lose all rows."""
        mine, *codes = content_codes([runs, *others.values()]) if others else [np.zeros(0)]
        same = {other: np.isin(code, mine[mine >= 0]) for other, code in zip(others, codes, strict=True)}  # fmt: skip
        kept = {
            other: table.take(np.flatnonzero(~same[other])) if same[other].any() else table
            for other, table in others.items()
            if not same[other].all()
        }
        if others and not kept:
            raise RequestError(
                f"--fit {', '.join(others)}", f"all of its rows stand in {name} too, where they are judged",
                "name other runs, or let --split divide the table",
            )  # fmt: skip
        identical = {other: int(rows.sum()) for other, rows in same.items() if rows.any()}
        return TrainingSets(name, runs, slower, kept, identical)

    def rows(self, fold: splits.Fold) -> IntArray:
        """Return the positions of the judged table's rows that a fold fits on."""
        return fold.train[~self.slower[fold.train]]

    def key(self, fold: splits.Fold) -> tuple[object, ...]:
        """Return what distinguishes the training runs of a fold."""
        rows = self.rows(fold)
        own = (self.name, rows.tobytes()) if len(rows) else ()
        # Rows of another table that were left out for this table's sake make its set differ.
        others = ((other, self.name if other in self.identical else "") for other in self.others)
        return (*own, *others)

    def training_runs(self, fold: splits.Fold) -> Runs | None:
        """Return all runs that a fold fits on, less figures that are wrong for sure, if there are any."""
        key = self.key(fold)
        if key not in self._made:
            rows = self.rows(fold)
            parts = [*([self.runs.take(rows)] if len(rows) else []), *self.others.values()]
            if not parts:
                return None
            runs, physics = join_runs(parts), registry.load("predictors", "analytic")()
            self._made[key] = cleaned(runs, suspects(runs, physics.predict(runs.jobs)))
        return self._made[key]


class Estimator:
    """A predictor that is fitted again only where its training runs differ from the last ones."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._key: tuple[object, ...] = ()
        self._fitted: Predictor | RequestError = predictor

    @one_blas_thread()
    def fitted(self, training: TrainingSets, fold: splits.Fold) -> Predictor | RequestError:
        """Return the predictor fitted for a fold, or why its runs do not allow that."""
        key = training.key(fold)
        if key != self._key:
            self._key, self._fitted = key, self.predictor
            runs = training.training_runs(fold)
            if runs is not None:
                try:
                    self._fitted = self.predictor.fit(runs)
                except RequestError as error:
                    self._fitted = error
        return self._fitted


def notes_of(split: splits.Split, table: Table, folds: Sequence[splits.Fold]) -> tuple[str, ...]:
    """Return how the split's words and bounds were read, and which interpolated rows lie outside."""
    here, notes = splits.grounded(split, table)
    if here.kind != "interpolation" or table.columns[here.column].dtype == object:
        return notes
    values, column = table.numbers(here.column), here.column
    fitted, judged = values[folds[0].train], values[folds[0].test]
    found = []
    for name, beyond in (("below", judged < fitted.min()), ("above", judged > fitted.max())):
        if beyond.any():
            cells = ", ".join(f"{v:g}" for v in np.unique(judged[beyond]))
            rows = counted(int(beyond.sum()), "row")
            found.append(f"{rows} of {len(judged):,} ({column} {cells}) {name} all fitted rows")
    if not found:
        return notes
    return (
        *notes,
        f"interpolation:{column} judges {' and '.join(found)}: extrapolation;"
        f" between:{column} leaves the ends out",
    )


@dataclass(frozen=True)
class DividedTable:
    """A judged table with its folds, their training sets, and notes on how it was divided."""

    training: TrainingSets
    folds: Sequence[splits.Fold]
    notes: Sequence[str] = ()

    @staticmethod
    def of(
        name: str, runs: Runs, split: splits.Split, others: Mapping[str, Runs] | None = None, *,
        seed: int = 0, parts: int = 0, faster_half: Sequence[str] = (),
    ) -> DividedTable:  # fmt: skip
        """Divide a table that has every column of the split (`with_derived`); others are fitted too."""
        try:
            folds = splits.folds_of(split, runs.table, seed, parts)
            notes = notes_of(split, runs.table, folds)
            slower = np.zeros(len(runs), dtype=bool)
            if faster_half:
                slower = splits.slower_half(runs, faster_half)
        except RequestError as error:
            raise RequestError(f"{error.asked} of {name}", error.found, error.next_step) from None
        return DividedTable(TrainingSets.of(name, runs, slower, others or {}), folds, notes)

    def sheet(self, estimator: Estimator) -> tuple[Sheet, BoolArray]:
        """Return the judged rows beside a predictor's answers, and which rows of the table they are."""
        runs = self.training.runs
        n = len(runs)
        merged = Forecasts.blank(n, estimator.predictor.name)
        quantity = np.full(n, -1, dtype=np.int64)
        judged, clamped = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        samples = np.full((n, 3), np.nan)
        for fold in self.folds:
            answer = self._forecasts(estimator, fold)
            if answer.answered.any():
                quantity[fold.test] = QUANTITIES.index(answer.quantity)
            judged[fold.test] = True
            raised = answer.seconds[:, 1] <= answer.floor_seconds * (1 + 1e-9)
            clamped[fold.test] = answer.parts["floor"] > 0 if "floor" in answer.parts else raised
            if answer.samples_to_target is not None:
                samples[fold.test] = answer.samples_to_target
            for column in ANSWERED:
                getattr(merged, column)[fold.test] = getattr(answer, column)
        known = quantity[quantity >= 0]
        usual = int(np.bincount(known).argmax()) if len(known) else STEP
        quantity = np.where(quantity >= 0, quantity, usual)
        merged = replace(merged, samples_to_target=samples)
        found = sheet(runs, merged, quantity, clamped, self.training.slower)
        return found.take(judged), judged

    def _forecasts(self, estimator: Estimator, fold: splits.Fold) -> Forecasts:
        jobs = self.training.runs.jobs.take(fold.test)
        predictor = estimator.fitted(self.training, fold)
        if isinstance(predictor, RequestError):
            blank = Forecasts.blank(len(jobs), estimator.predictor.name)
            blank.declined[:] = f"cannot be fitted: {predictor}"
            return blank
        answer = predictor.predict(jobs)
        if len(answer) != len(jobs):
            raise RequestError(
                f"evaluating {predictor.name}", f"{len(answer)} forecasts for {len(jobs)} jobs",
                "mend the predictor: forerun.testing.PredictorContract examines it",
            )  # fmt: skip
        return answer


def evaluate(
    runs_tables: Mapping[str, Runs], predictors: Sequence[Predictor] | Mapping[str, Predictor],
    split: str | splits.Split = "whole", fit_tables: Mapping[str, Runs] | None = None, *,
    group_by: str = "", seed: int = 0, parts: int = 0, faster_half: Sequence[str] = (),
    start: str = "", sound: Callable[[], None] | None = None,
    each: Callable[[str, Sheet], None] = lambda predictor, rows: None,
) -> Evaluation:  # fmt: skip
    """Return how good the predictors are on the tables.

    Every table is divided by itself. A predictor is fitted on the fold's training rows and on all
    of `fit_tables`, less the rows of these that repeat a judged measurement; where both are empty
    (split `whole`) it answers as it is. A predictor that cannot be fitted declines the fold's rows.

    group_by names a column whose values get scores of their own; of rows equal in the columns of
    faster_half only the faster half is fitted and judged; parts 0 is the usual number of folds. start
    is kept for the record, and sound is called before the first fit, once the request is valid; each gets
    every predictor's judged rows of all tables.

    Raises:
        RequestError: a request or a split that a table cannot bear, or a broken predictor.
    """
    named = predictors
    if not isinstance(named, Mapping):
        names = [p.name for p in named]
        named = {p.name: p for p in named}
        if len(named) < len(names):
            raise RequestError(f"evaluating {', '.join(names)}", "two predictors have one name", "name each once")  # fmt: skip
    split = splits.parse_split(split) if isinstance(split, str) else split
    columns = [*splits.columns_of(split), group_by, *faster_half]
    runs_tables = {name: splits.with_derived(runs, columns) for name, runs in runs_tables.items()}
    _check(runs_tables, named, group_by)
    tables = [
        DividedTable.of(
            name, runs, split, fit_tables or {}, seed=seed, parts=parts, faster_half=faster_half
        )
        for name, runs in runs_tables.items()
    ]
    if sound is not None:
        sound()
    scores: list[Score] = []
    by_distance: list[Score] = []
    by_workload: list[Score] = []
    for label, predictor in named.items():
        estimator, sheets = Estimator(predictor), list[Sheet]()
        for table in tables:
            name, texts = table.training.name, table.training.runs.table.texts
            report_progress(f"judges {label} on {name}")
            one, rows = table.sheet(estimator)
            sheets.append(one)
            scores.append(score(one, label, name, "", seed))
            if group_by:
                groups = matched(group_by, texts(group_by))[rows]
                scores += _grouped(one, groups, label, name, seed)
            watched = one.take(one.watched)
            if len(watched):
                labels = texts("workload")[rows][one.watched]
                by_workload += _grouped(watched, labels, label, name, seed)
        total = stack(sheets)
        each(label, total)
        scores.append(score(total, label, ALL_TABLES, "", seed))
        bins = [*zip(runs_tables, sheets, strict=True), (ALL_TABLES, total)]
        for name, one in bins if len(sheets) > 1 else bins[:1]:
            near = one.take(one.timed & ~np.isnan(one.distance))
            by_distance += _grouped(near, distance_bins(near), label, name, seed)
    return Evaluation(
        scores=tuple(scores), split=str(split), seed=seed, predictors=tuple(named),
        tables=tuple(runs_tables), fitted_on=tuple(fit_tables or ()), group_by=group_by,
        by_distance=tuple(by_distance), by_workload=tuple(by_workload),
        folds={table.training.name: len(table.folds) for table in tables},
        faster_half=tuple(faster_half),
        identical={t.training.name: t.training.identical for t in tables if t.training.identical},
        start=start, notes={table.training.name: table.notes for table in tables if table.notes},
    )  # fmt: skip


def _grouped(rows: Sheet, labels: NDArray[np.object_], predictor: str, table: str, seed: int) -> Iterator[Score]:  # fmt: skip
    distinct, index = np.unique(labels.astype(str), return_inverse=True)
    for i, label in enumerate(distinct.tolist()):
        yield score(rows.take(np.flatnonzero(index == i)), predictor, table, label or "(blank)", seed)  # fmt: skip


def _check(runs_tables: Mapping[str, Runs], predictors: Mapping[str, Any], group_by: str) -> None:
    if not runs_tables or not predictors:
        raise RequestError(
            "an evaluation", f"{len(runs_tables)} tables and {len(predictors)} predictors",
            "give at least one of each",
        )  # fmt: skip
    numbers = [name for name in MEASURED if COLUMNS[name].kind == "number"]
    for name, runs in runs_tables.items():
        ended = np.isin(runs.status.astype(str), ("oom", "failed", "timeout"))
        if not (ended.any() or any(np.isfinite(runs.table.numbers(n)).any() for n in numbers)):
            near = misspelt_columns(runs.table.columns)
            raise RequestError(
                f"judging by {name}", "none of its rows has anything measured"
                + (f"; {', '.join(near)} may mean {', '.join(near.values())}" if near else ""),
                f"fill in one of {', '.join(MEASURED)}, or ask `forerun predict --table`{map_words(near)}",
            )  # fmt: skip
        if group_by and group_by not in runs.table:
            raise unknown_column(f"--group-by {group_by} of {name}", group_by, runs.table)
