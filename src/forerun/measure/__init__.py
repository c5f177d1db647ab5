"""Measure: jobs are carried out by real processes, whose steps are timed: each becomes a run.

Three lines measure a script of your own:

    from forerun.measure import record
    with record() as r:
        for batch in r.steps(loader): ...
"""

from __future__ import annotations

from forerun.measure.hosts import Host, local_host
from forerun.measure.measurement import Measurement
from forerun.measure.noise import GradientNoise
from forerun.measure.recorder import record
from forerun.measure.task import Steps, Task

__all__ = ["GradientNoise", "Host", "Measurement", "Steps", "Task", "local_host", "record"]
