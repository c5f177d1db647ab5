"""Ray: tasks carried out by Ray Train on a cluster that is there, or on one of this machine."""

from __future__ import annotations

from forerun.measure.ray.runner import RayRunner
from forerun.measure.ray.training import measured

__all__ = ["RayRunner", "measured"]
