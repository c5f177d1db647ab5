"""Judge: predictors are fitted and asked by a split, and their answers scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.errors import RequestError, nearest_names
from forerun.evaluate.evaluation import ALL_TABLES, Evaluation, Score
from forerun.evaluate.join import join_runs
from forerun.evaluate.scoring import Answers, Sheet, score, sheet, stack
from forerun.evaluate.splits import Fold, Split, parse_split
from forerun.tables import Jobs, Runs


def evaluate(
    runs_tables: Mapping[str, Runs],
    predictors: Sequence[Predictor],
    split: str | Split = "whole",
    fit_tables: Mapping[str, Runs] | None = None,
    *,
    group_by: str = "",
    seed: int = 0,
) -> Evaluation:
    """Return how good the predictors are on the tables.

    Every table is divided by itself. A predictor is fitted on the fold's teaching rows and on all
    of `fit_tables`; where both are empty (split `whole`) it is asked as it is. A predictor that
    cannot be fitted declines the fold's rows with that reason.

    Args:
        runs_tables: name to runs.
        predictors: with distinct names.
        split: see `splits.parse_split`.
        fit_tables: further runs to learn from; they must not be the judged ones.
        group_by: a column; each of its values gets its own scores.
        seed: of the split and of ties.

    Raises:
        RequestError: no tables or predictors, two predictors of one name, a column that is
            missing, or a predictor that breaks its contract.
    """
    split = parse_split(split) if isinstance(split, str) else split
    fit_tables = fit_tables or {}
    _check(runs_tables, predictors, group_by)
    scores: list[Score] = []
    for predictor in predictors:
        sheets = []
        for name, runs in runs_tables.items():
            answers = _answers(predictor, runs, split, tuple(fit_tables.values()), seed)
            one = sheet(runs, answers)
            sheets.append(one)
            scores.append(score(one, predictor.name, name, "", seed))
            labels = runs.table.texts(group_by)[answers.judged].tolist() if group_by else []
            scores += _grouped(one, labels, predictor.name, name, seed)
        scores.append(score(stack(sheets), predictor.name, ALL_TABLES, "", seed))
    return Evaluation(
        scores=tuple(scores),
        split=str(split),
        seed=seed,
        predictors=tuple(p.name for p in predictors),
        tables=tuple(runs_tables),
        fitted_on=tuple(fit_tables),
        group_by=group_by,
    )


def _grouped(
    rows: Sheet, labels: Sequence[str], predictor: str, table: str, seed: int
) -> Iterator[Score]:
    texts = np.array(labels, dtype=object)
    for label in sorted(dict.fromkeys(labels)):
        yield score(rows.take(texts == label), predictor, table, label or "(blank)", seed)


def _answers(
    predictor: Predictor, runs: Runs, split: Split, fit_tables: Sequence[Runs], seed: int
) -> Answers:
    """Return a predictor's answers to every row that some fold judges."""
    n = len(runs)
    merged = Forecasts.blank(n, predictor.name)
    quantity = ""
    judged, clamped = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for fold in split.folds(runs.table, seed):
        answer = _ask(predictor, runs, fold, fit_tables)
        if answer.answered.any() and quantity not in ("", answer.quantity):
            raise RequestError(
                f"evaluating {predictor.name}",
                f"one fold is answered by the {quantity}, another by the {answer.quantity}",
                "evaluate tables with one measured quantity at a time",
            )
        quantity = answer.quantity if answer.answered.any() else quantity
        judged[fold.test] = True
        clamped[fold.test] = _clamped(answer)
        for name in ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "declined"):
            getattr(merged, name)[fold.test] = getattr(answer, name)
    return Answers(
        quantity or "step", merged.seconds, merged.peak_bytes, merged.floor_seconds,
        merged.fit_probability, merged.declined, judged, clamped,
    )  # fmt: skip


def _clamped(answer: Forecasts) -> NDArray[np.bool_]:
    """Return which forecasts were raised to their floor (n,): by their own word, else by number."""
    if "floor" in answer.parts:
        return np.asarray(answer.parts["floor"] > 0)
    return np.asarray(answer.seconds[:, 1] <= answer.floor_seconds * (1 + 1e-9))


def _ask(predictor: Predictor, runs: Runs, fold: Fold, fit_tables: Sequence[Runs]) -> Forecasts:
    jobs = runs.jobs.take(fold.test)
    teachers = [runs.take(fold.train)] if len(fold.train) else []
    teachers += fit_tables
    if teachers:
        try:
            predictor = predictor.fit(join_runs(teachers))
        except RequestError as error:
            return _declined(jobs, predictor.name, f"cannot be fitted: {error}")
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
    for name, runs in runs_tables.items() if group_by else ():
        if group_by not in runs.table:
            columns = list(runs.table.columns)
            raise RequestError(
                f"--group-by {group_by}", f"{name} has no such column",
                f"choose one that is there, e.g. "
                f"{', '.join(nearest_names(group_by, columns) or columns[:6])}",
            )  # fmt: skip
