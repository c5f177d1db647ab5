"""NextRuns: what `forerun suggest` and POST /v1/suggest answer: who is fitted to the runs at hand, and which come next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forerun.advisor.advisor import Advisor
from forerun.advisor.given_runs import attempted_runs, runs_of
from forerun.advisor.suggesting import (
    FittedAdvisor,
    Suggested,
    SuggestOptions,
    first_runs,
    suggest_for_workload,
    suggest_from_table,
    why_unanswered,
)
from forerun.contracts import LinearPredictor
from forerun.domain.objective import Objective, Preemption
from forerun.domain.workload import Length
from forerun.errors import RequestError
from forerun.tables import Table
from forerun.tables.table import iter_rows
from forerun.workloads.resolve import CHANGES

# What is stated of the next runs; the rest is of the jobs.
STATED = ("goal", "budget", "count", "criterion", "minimize", "times", "run_steps")
_OF_WORKLOAD = ("clusters", "providers", "devices", "exclude", "min_ram", "min_vcpus", "plan", "global_batch", "global_batches", *CHANGES)  # fmt: skip
Fitted = Callable[[tuple[Table, Table] | None], FittedAdvisor]


def check_asked(workload: Any, has_candidates: bool, asked: Mapping[str, Any]) -> None:
    """Raise RequestError where not one of a workload and candidates is given, or what belongs to the other."""
    if (workload is None) != has_candidates:
        found = f"{'both' if has_candidates else 'neither'} of WORKLOAD and --candidates given"
        give = "give a workload with --clusters or the like, or a table of --candidates"
        raise RequestError("the next runs", found, give)
    names: Sequence[str] = _OF_WORKLOAD
    way, found = "--candidates", "the rows of the tables say that themselves"
    if workload is not None:
        names, way, found = ("asked",), "WORKLOAD", "a workload is asked for its recommendation"
    if given := [f"--{name.replace('_', '-')}" for name in names if asked.get(name)]:
        raise RequestError(f"{way} with {', '.join(given)}", found, "leave it out")


def fitted_advisor(
    advisor: Advisor, given: Sequence[Any], named: str, fit: Callable[[Advisor], Advisor],
    own_columns: str, start: str, tables: tuple[Table, Table] | None,
) -> FittedAdvisor:  # fmt: skip
    """Return the advisor fitted to the given runs; with (candidates, asked jobs), one that may lack answers.

    named: `predictor` or `model`, where such a thing says who answers; else the runs choose. fit: fits to the runs.
    """
    made, runs, failed = advisor.made, None, None
    if not given and named == "model":
        note = (
            "what the model was fitted to counts, but it was saved without the jobs that were run: give"
            " them with --runs too, or fit it again, so that none is suggested again"
        )
        return FittedAdvisor(advisor, None, made, [note] if made is None else [])
    if given:
        runs = attempted_runs(runs_of(given, advisor.catalog, own_columns))
        if not named:
            advisor = Advisor(advisor.catalog_files, "auto", None, start)
        try:
            advisor = fit(advisor)
        except RequestError as error:
            failed = error
    who = FittedAdvisor(advisor, runs, made)
    if tables is not None:
        why = "" if failed is None else f"{failed.found}; {failed.next_step}"
        if failed is not None and isinstance(advisor.predictor, LinearPredictor):
            return who._replace(notes=[f"not fitted yet: {why}"])
        why = why or ("" if named else why_unanswered(advisor, tables[1]))
        if why and (first := first_runs(who, why, tables[0], advisor.catalog_files)) is not None:
            return first
    if failed is not None:
        raise failed
    return who


def next_runs(
    fitted: Fitted, workload: Any, tables: Sequence[Table | None], stated: Mapping[str, Any],
    deadline: float | None, length: Length | None, market: str, preemption: Preemption, **question: Any,
) -> Suggested:  # fmt: skip
    """Return the next runs among candidates, or without these for the choice that a workload's recommendation is.

    tables: of candidates and of asked jobs. stated: values of `STATED`, None or missing for the usual ones. deadline: in seconds. question: see
    `Advisor.recommend`. Raises as `suggest_from_table` and `suggest_for_workload`.
    """
    given = {name: stated.get(name) for name in STATED} | {
        "goal": stated.get("goal") or (None if workload is None else "decision"),
        "startup_seconds": preemption.startup_seconds, "deadline_seconds": deadline,
        # Steps that are stated are made, however slow they are.
        "most_seconds": math.inf if stated.get("run_steps") else None,
        "length": length, "market": market,
    }  # fmt: skip
    asking = SuggestOptions(**{name: value for name, value in given.items() if value is not None})
    candidates, wanted = tables
    if candidates is not None:
        both = (candidates, candidates if wanted is None else wanted)
        who = fitted(None if asking.goal == "decision" else both)
        return suggest_from_table(who, candidates, wanted, asking)
    who = fitted(None)
    objective = Objective(aim=asking.minimize, deadline_seconds=deadline, market=market, preemption=preemption)  # fmt: skip
    found = who.advisor.recommend(workload, objective=objective, length=length, **question)
    return suggest_for_workload(who, found, asking)


def suggestion_json(found: Suggested) -> dict[str, Any]:
    """Return next runs as JSON data."""
    suggestion = found.suggestion
    runs = [
        {"order": i, "job": job, "price": run.price, "seconds": row.get("suggested_run_s"),
         "steps": row.get("suggested_run_steps"), "settles_of_chosen": run.of_chosen,
         "reason": reason, "gain": run.gain, "changes_choice": run.changes,
         "log_error_after": run.error, "tells": dict(run.tells), "row": row}
        for i, (job, run, reason, row) in enumerate(zip(
            found.labels, suggestion.runs, found.reasons, iter_rows(found.table), strict=True
        ), start=1)
    ]  # fmt: skip
    return {
        "predictor": found.predictor, "goal": suggestion.goal, "runs": runs,
        "price": suggestion.price, "price_unit": suggestion.unit, "considered": found.considered,
        "chosen_now": found.chosen or None, "stop": suggestion.stop or None,
        "log_error_now": suggestion.error, "design_efficiency": suggestion.efficiency,
        "source": suggestion.source, "assumptions": list(found.notes),
    }  # fmt: skip
