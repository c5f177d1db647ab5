"""Taught: who answers which next runs to make: whoever learned from the runs that are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forerun.cli.flagging import fitted
from forerun.cli.options import advisor_of, start_of
from forerun.errors import RequestError

if TYPE_CHECKING:
    from forerun.advisor import Advisor
    from forerun.advisor.given_runs import MadeRuns
    from forerun.settings import Settings
    from forerun.tables import Runs, Table


class Taught(NamedTuple):
    """Who answers, from what.

    Attributes:
        advisor: that learned. runs: those given that tell anything.
        notes: what is said of it.
        made: what a saved model keeps of the jobs that taught it.
    """

    advisor: Advisor
    runs: Runs | None = None
    notes: Sequence[str] = ()
    made: MadeRuns | None = None


def taught_by(
    settings: Settings,
    files: list[Path],
    options: dict[str, Any],
    tables: tuple[Table, Table] | None,
) -> Taught:
    """Return the advisor that learned from runs, the runs, and what is said of it.

    Where no predictor was named, the runs choose who answers, as for `predict --fit`. Where nobody
    can answer yet, the first runs are designed: that needs no answer.

    Args:
        settings, options: of the command. files: of runs.
        tables: candidates, and jobs whose answers matter; None where answers are needed.

    Raises:
        RequestError: the runs cannot teach the predictor, and it cannot do without.
    """
    from forerun.advisor import Advisor
    from forerun.advisor.given_runs import attempted_runs, runs_of
    from forerun.advisor.suggesting import (
        first_runs,
        reason_of,
        saved_words,
        why_unanswered,
    )

    flags, own = options.pop("flags_file"), map(str, options["catalog_files"])
    catalog_files = (*settings.catalog_files, *own)
    before = advisor_of(settings, options)
    named = settings.origins["predictor"] != "default" or bool(settings.text("model"))
    made = before.made
    if not files:
        if settings.text("model") and settings.origins["predictor"] != "flag":
            return Taught(before, None, saved_words(before.predictor, made), made)
        if named or tables is None or not (why := why_unanswered(before, tables[1])):
            return Taught(before)
        found = first_runs(catalog_files, before.predictor.name, why, tables[0])
        return Taught(before) if found is None else Taught(found[0], None, found[1])
    runs = attempted_runs(runs_of(files, before.catalog))
    advisor = before if named else Advisor(catalog_files, "auto", None, start_of(settings))
    try:
        learned = fitted(advisor, files, flags)
    except RequestError as error:
        if tables is None:
            raise
        if hasattr(advisor.predictor, "linear_features"):
            return Taught(advisor, runs, [f"not fitted yet: {reason_of(error)}"], made)
        found = first_runs(catalog_files, advisor.predictor.name, reason_of(error), tables[0])
        if found is None:
            raise
        return Taught(found[0], runs, found[1], made)
    if named or tables is None or not (why := why_unanswered(learned, tables[1])):
        return Taught(learned, runs, made=made)
    found = first_runs(catalog_files, learned.predictor.name, why, tables[0])
    if found is None:
        return Taught(learned, runs, made=made)
    return Taught(found[0], runs, found[1], made)
