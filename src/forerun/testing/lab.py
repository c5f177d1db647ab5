"""The lab for tests: hosts with link rates and CPU shares, which can be slowed, cut and filled."""

from __future__ import annotations

from forerun.measure.lab import HostSpec, Lab, missing, require

__all__ = ["HostSpec", "Lab", "missing", "require"]
