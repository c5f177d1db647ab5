"""Judge: predictors are fitted and asked by a split, and their answers scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.errors import RequestError
from forerun.evaluate.derived import with_derived
from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score
from forerun.evaluate.exam import Exam
from forerun.evaluate.folds import columns_of
from forerun.evaluate.lessons import Pupil
from forerun.evaluate.scoring import Sheet, distance_bins, score, stack
from forerun.evaluate.splits import Split, parse_split
from forerun.tables import COLUMNS, MEASURED, Runs
from forerun.tables.conditions import unknown_column


def evaluate(
    runs_tables: Mapping[str, Runs],
    predictors: Sequence[Predictor],
    split: str | Split = "whole",
    fit_tables: Mapping[str, Runs] | None = None,
    *,
    group_by: str = "",
    seed: int = 0,
    parts: int = 0,
    faster_half: Sequence[str] = (),
    start: str = "",
    sound: Callable[[], None] | None = None,
) -> Evaluation:
    """Return how good the predictors are on the tables.

    Every table is divided by itself. A predictor is fitted on the fold's teaching rows and on all
    of `fit_tables`, less the rows of these that tell of a measurement which is judged; where both
    are empty (split `whole`) it is asked as it is. A predictor that cannot be fitted declines the
    fold's rows with that reason.

    Args:
        runs_tables: name to runs.
        predictors: with distinct names.
        split: see `splits.parse_split` and `folds.folds_of`.
        fit_tables: further runs to learn from.
        group_by: a column; each of its values gets its own scores. Counts and devices that a
            table lacks, and its clusters tell, are derived (see `derived`).
        seed: of the split and of ties.
        parts: folds of a split that has several; 0 is the usual number.
        faster_half: columns; of the rows that share their values only the faster half teaches and
            is judged by its time, see `filters.slower_half`.
        start: what the predictors knew before, for the record.
        sound: called before the first fit, once the request is known to be one that can be met.

    Raises:
        RequestError: no tables or predictors, two predictors of one name, a column that is
            missing, a table without a measured row, a split that a table cannot bear, or a
            predictor that breaks its contract.
    """
    split = parse_split(split) if isinstance(split, str) else split
    named = [*columns_of(split), group_by, *faster_half]
    runs_tables = {name: with_derived(runs, named) for name, runs in runs_tables.items()}
    _check(runs_tables, predictors, group_by)
    exams = [
        Exam.of(
            name, runs, split, fit_tables or {}, seed=seed, parts=parts, faster_half=faster_half
        )
        for name, runs in runs_tables.items()
    ]
    if sound is not None:
        sound()
    scores: list[Score] = []
    by_distance: list[Score] = []
    by_workload: list[Score] = []
    for predictor in predictors:
        pupil, sheets, mine = Pupil(predictor), list[Sheet](), list[Score]()
        for exam in exams:
            name, runs = exam.lessons.name, exam.lessons.runs
            one, rows = exam.sheet(pupil)
            sheets.append(one)
            mine.append(score(one, predictor.name, name, "", seed))
            scores.append(mine[-1])
            if group_by:
                labels = runs.table.texts(group_by)[rows]
                scores += _grouped(one, labels, predictor.name, name, seed)
            watched = one.take(one.watched)
            if len(watched):
                labels = runs.table.texts("workload")[rows][one.watched]
                by_workload += _grouped(watched, labels, predictor.name, name, seed)
        total = stack(sheets)
        if len(sheets) == 1:
            scores.append(replace(mine[0], table=ALL_TABLES))
        else:
            scores.append(score(total, predictor.name, ALL_TABLES, "", seed))
        bins = [*zip(runs_tables, sheets, strict=True), (ALL_TABLES, total)]
        for name, one in bins if len(sheets) > 1 else bins[:1]:
            near = one.take(one.timed & ~np.isnan(one.distance))
            by_distance += _grouped(near, distance_bins(near), predictor.name, name, seed)
    return Evaluation(
        scores=tuple(scores),
        split=str(split),
        seed=seed,
        predictors=tuple(p.name for p in predictors),
        tables=tuple(runs_tables),
        fitted_on=tuple(fit_tables or ()),
        group_by=group_by,
        by_distance=tuple(by_distance),
        by_workload=tuple(by_workload),
        folds={exam.lessons.name: len(exam.folds) for exam in exams},
        faster_half=tuple(faster_half),
        identical={e.lessons.name: e.lessons.identical for e in exams if e.lessons.identical},
        start=start,
        notes={exam.lessons.name: exam.notes for exam in exams if exam.notes},
    )


def _grouped(
    rows: Sheet, labels: NDArray[np.object_], predictor: str, table: str, seed: int
) -> Iterator[Score]:
    distinct, index = np.unique(labels.astype(str), return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(distinct) + 1))
    for i, label in enumerate(distinct.tolist()):
        part = order[starts[i] : starts[i + 1]]
        yield score(rows.take(part), predictor, table, label or "(blank)", seed)


def _check(runs_tables: Mapping[str, Runs], predictors: Sequence[Predictor], group_by: str) -> None:
    if not runs_tables or not predictors:
        raise RequestError(
            "an evaluation", f"{len(runs_tables)} tables and {len(predictors)} predictors",
            "give at least one of each",
        )  # fmt: skip
    names = [p.name for p in predictors]
    if len(set(names)) < len(names):
        raise RequestError(
            f"evaluating {', '.join(names)}", "two predictors have one name", "name each once"
        )
    for name, runs in runs_tables.items():
        if not _anything_measured(runs):
            raise RequestError(
                f"judging by {name}", "none of its rows has anything measured",
                f"fill in one of {', '.join(MEASURED)}, or ask `forerun predict --table`",
            )  # fmt: skip
        if group_by and group_by not in runs.table:
            raise unknown_column(f"--group-by {group_by} of {name}", group_by, runs.table)


def _anything_measured(runs: Runs) -> bool:
    numbers = (name for name in MEASURED if COLUMNS[name].kind == "number")
    return any(np.isfinite(runs.table.numbers(name)).any() for name in numbers) or bool(
        np.isin(runs.status.astype(str), ("oom", "failed", "timeout")).any()
    )
