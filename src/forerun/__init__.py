"""forerun predicts time, cost and memory of distributed training before it runs.

    >>> import forerun
    >>> answer = forerun.predict("resnet50", "1x8xa100-sxm-80gb")
    >>> answer.step_seconds
    >>> forerun.recommend("llama3-8b", deadline="7d", budget=200_000).best

Names load when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.advisor import Advisor, Answer, Explanation
    from forerun.advisor.advisor import (
        explain,
        predict,
        predict_table,
        profile,
        provision,
        recommend,
    )
    from forerun.advisor.comparing import Comparison, compare
    from forerun.advisor.searching import search_live
    from forerun.client import AsyncClient, Client
    from forerun.domain.estimate import Estimate
    from forerun.domain.forecast import Forecast
    from forerun.domain.hardware import Cluster, Device, Link
    from forerun.domain.job import Job, Run
    from forerun.domain.objective import Objective, Preemption
    from forerun.domain.plan import Plan
    from forerun.domain.recommendation import Recommendation
    from forerun.domain.workload import Length, Workload
    from forerun.errors import ForerunError
    from forerun.tables import Table, read_table, write_table

_NAMES = {
    "advisor": "Advisor Answer Explanation",
    "advisor.advisor": "explain predict predict_table profile provision recommend",
    "advisor.comparing": "Comparison compare", "advisor.searching": "search_live",
    "client": "AsyncClient Client", "domain.estimate": "Estimate", "domain.forecast": "Forecast",
    "domain.hardware": "Cluster Device Link", "domain.job": "Job Run",
    "domain.objective": "Objective Preemption", "domain.plan": "Plan",
    "domain.recommendation": "Recommendation", "domain.workload": "Length Workload",
    "errors": "ForerunError", "tables": "Table read_table write_table",
}  # fmt: skip
_HOMES = {name: f"forerun.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Advisor", "Answer", "AsyncClient", "Client", "Cluster", "Comparison", "Device", "Estimate", "Explanation", "Forecast", "ForerunError",
    "Job", "Length", "Link", "Objective", "Plan", "Preemption", "Recommendation", "Run", "Table",
    "Workload", "compare", "explain", "predict", "predict_table", "profile", "provision", "read_table", "recommend",
    "search_live", "write_table",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name on its first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("forerun")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
