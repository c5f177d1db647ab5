"""Logs: what training programs wrote becomes series, rows of the runs table, and an ETA."""

from __future__ import annotations

from forerun.measure.logs.eta import Eta, JobLength, eta_of
from forerun.measure.logs.files import read_log, read_logs
from forerun.measure.logs.rows import read_runs, runs_of
from forerun.measure.logs.series import LogSeries, joined

__all__ = [
    "Eta", "JobLength", "LogSeries", "eta_of", "joined", "read_log", "read_logs", "read_runs",
    "runs_of",
]  # fmt: skip
