"""Shortcuts: one question without making an advisor first; settings are taken into account."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.advisor.advisor import Advisor
from forerun.advisor.answer import Answer, Explanation
from forerun.domain.recommendation import Recommendation
from forerun.predictors.starts import PRIORS
from forerun.settings import load_settings

if TYPE_CHECKING:
    from forerun.measure.campaign import Carrier, Progress
    from forerun.tables import Table


@lru_cache(maxsize=4)
def _advisor(
    catalog_files: tuple[str, ...], predictor: str, model: str, start: str,
    stamps: tuple[float, ...],
) -> Advisor:  # fmt: skip
    """Return an advisor; `stamps` are the files' times, so that an edited file is read again."""
    return Advisor(catalog_files, predictor, model or None, start)


def _stamp(file: str) -> float:
    try:
        return Path(file).stat().st_mtime
    except OSError:
        return 0.0  # whoever reads the file says what is wrong with it


def usual_advisor() -> Advisor:
    """Return the advisor that the settings ask for (catalogue files, predictor, model, start)."""
    settings = load_settings()
    files, model = settings.catalog_files, settings.text("model")
    stamps = tuple(map(_stamp, (*files, model)))
    # Shipped constants are the usual start, and not all predictors have any.
    start = PRIORS if settings.text("start") == PRIORS else ""
    return _advisor(files, settings.text("predictor"), model, start, stamps)


def predict(workload: Any, cluster: Any, plan: Any = None, **request: Any) -> Answer:
    """Return the time, cost and memory of one job; arguments as `Advisor.predict`."""
    return usual_advisor().predict(workload, cluster, plan, **request)


def recommend(workload: Any, **request: Any) -> Recommendation:
    """Return which cluster and plan to use; arguments as `Advisor.recommend`."""
    return usual_advisor().recommend(workload, **request)


def explain(workload: Any, cluster: Any, plan: Any = None, **request: Any) -> Explanation:
    """Return where time and memory go; arguments as `Advisor.explain`."""
    return usual_advisor().explain(workload, cluster, plan, **request)


def predict_table(table: Any, **request: Any) -> Any:
    """Return a runs table or data frame with answers; arguments as `Advisor.predict_table`."""
    return usual_advisor().predict_table(table, **request)


def profile(
    campaign: str | Path | Mapping[str, Any], runner: Carrier | None = None, store: str = "",
    told: Callable[[Progress], None] = lambda progress: None,
) -> Table:  # fmt: skip
    """Measure the runs of a campaign that the store does not have yet, and return all of them.

    Args:
        campaign: a campaign file, or a mapping with its fields.
        runner: who carries it out, for example `forerun.measure.ray.RayRunner()`; None is the
            one that the campaign names, with its usual arguments.
        store: a file or URL; blank is the setting `store`.
        told: called with the progress after each run.

    Raises:
        RequestError: a field that cannot be, or no run of it can be carried out.
    """
    from forerun.advisor.measuring import Profiling
    from forerun.measure.campaign_file import campaign as campaign_of
    from forerun.measure.campaign_file import read_campaign
    from forerun.registry import load
    from forerun.store import open_store

    asked = campaign_of(campaign) if isinstance(campaign, Mapping) else read_campaign(campaign)
    carrier = runner or load("runners", asked.runner)()
    with open_store(store) as opened:
        profiling = Profiling(asked, carrier, opened, usual_advisor())
        profiling.carried_out(told)
        return profiling.results()
