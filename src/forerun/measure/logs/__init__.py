"""Logs: what training programs wrote becomes series, rows of the runs table, and an ETA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.measure.logs.eta import Eta, JobLength, eta_of
    from forerun.measure.logs.files import read_log, read_logs
    from forerun.measure.logs.rows import read_runs, runs_of
    from forerun.measure.logs.series import LogSeries, joined

__all__ = [
    "Eta",
    "JobLength",
    "LogSeries",
    "eta_of",
    "joined",
    "read_log",
    "read_logs",
    "read_runs",
    "runs_of",
]  # fmt: skip

_HOMES = {
    "JobLength": "forerun.measure.logs.eta",
    "Eta": "forerun.measure.logs.eta",
    "eta_of": "forerun.measure.logs.eta",
    "joined": "forerun.measure.logs.series",
    "LogSeries": "forerun.measure.logs.series",
    "read_log": "forerun.measure.logs.files",
    "read_logs": "forerun.measure.logs.files",
    "read_runs": "forerun.measure.logs.rows",
    "runs_of": "forerun.measure.logs.rows",
}


def __getattr__(name: str) -> Any:
    """Load a public name on its first use, so that importing this package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
