"""The lab: real hosts as network namespaces with link rates and CPU shares, on one machine."""

from __future__ import annotations

from forerun.measure.lab.lab import Lab, LabHost, labs, missing, remove_labs, require
from forerun.measure.lab.state import HostSpec, LabId, LabState, parse_memory, parse_rate

__all__ = [
    "HostSpec", "Lab", "LabHost", "LabId", "LabState", "labs", "missing",
    "parse_memory", "parse_rate", "remove_labs", "require",
]  # fmt: skip
