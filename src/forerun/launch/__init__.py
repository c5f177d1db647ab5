"""Launch: a chosen job as the launch configuration of a tool, or why the tool cannot run its plan."""

from __future__ import annotations

from forerun.launch.request import LaunchRequest, emit, framework_for, limits_of, refuse

__all__ = ["LaunchRequest", "emit", "framework_for", "limits_of", "refuse"]
