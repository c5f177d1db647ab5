"""What tests of launch configurations share: a small job on two processors, and a configuration of any job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.domain.plan import Plan
from forerun.domain.workload import Length
from forerun.launch import LaunchRequest, emit

# One node of two processors: three steps of two passes of two samples on each.
SMALL = ("resnet50", "1x2xcpu", "dp=2,micro_batch=2")

Emitted = Callable[..., str]


@pytest.fixture(scope="session")
def emitted() -> Emitted:
    """Return the configuration for a target of a job: workload, cluster, plan, and what else `predict` takes."""
    advisor = Advisor(start="shipped")

    def emitted(
        target: str, workload: str, cluster: str, plan: str | Plan, script: str = "", **more: Any
    ) -> str:
        more = {"length": Length("steps", 3), **more}
        answer = advisor.predict(workload, cluster, plan, **more)
        return emit(LaunchRequest(
            target, answer.job, answer.estimate, script, "forerun predict", "0.1.0 on a day", "in words"
        ))  # fmt: skip

    return emitted
