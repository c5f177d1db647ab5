"""Measured under: the frameworks that a workload was measured with, where a question names none."""

from __future__ import annotations

from dataclasses import replace

from forerun.contracts import Predictor
from forerun.domain.distance import WORKLOAD
from forerun.domain.forecast import Forecast
from forerun.domain.job import Job
from forerun.tables import Jobs

_NEW = 0.2  # of a forecast's distance, where nothing was measured of its workload
_NAMED = 4


def measured_under(predictor: Predictor, job: Job, forecast: Forecast) -> str:
    """Return what to add where a workload is new only for want of a framework's name; else "".

    Args:
        predictor: who gave the forecast.
        job: one whose workload may name no framework.
        forecast: of that job.
    """
    new = forecast.distance_parts.get(WORKLOAD, 0.0)
    if job.workload.framework or not new > _NEW:
        return ""
    from forerun.advisor.asking import known_frameworks

    names = known_frameworks()
    asked = [replace(job, workload=replace(job.workload, framework=name)) for name in names]
    left = predictor.predict(Jobs.of(asked)).distance_parts.get(WORKLOAD)
    if left is None:
        return ""
    near = [name for name, part in zip(names, left, strict=True) if part < new / 2]
    if not near:
        return ""
    shown, more = " or ".join(near[:_NAMED]), " or another" if len(near) > _NAMED else ""
    return (
        f"{job.workload.name} was measured under {', '.join(near)}: add --framework {shown}{more}"
        " (framework= in Python), if that is what runs it"
    )
