"""The lab: real hosts as network namespaces with link rates and CPU shares, on one machine."""

from __future__ import annotations

from forerun.measure.lab.lab import Lab
from forerun.measure.lab.names import LabId
from forerun.measure.lab.overview import labs, remove_labs
from forerun.measure.lab.place import LabHost
from forerun.measure.lab.spec import PAYLOAD_SHARE, HostSpec, parse_memory, parse_rate
from forerun.measure.lab.state import HostState, LabState
from forerun.measure.lab.system import missing, require

__all__ = [
    "PAYLOAD_SHARE", "HostSpec", "HostState", "Lab", "LabHost", "LabId", "LabState", "labs", "missing",
    "parse_memory", "parse_rate", "remove_labs", "require",
]  # fmt: skip
