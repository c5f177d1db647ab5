"""Shortcuts: the settings choose the advisor, and an edited catalogue file is read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forerun
from forerun.errors import RequestError, UnknownNameError

DEVICE = (
    "devices:\n  - {{id: mine-1, memory_gb: {gb}, memory_gb_per_s: 1000, fp32_tflops: 40,"
    " fp16_tflops: 160, watts: 300, link_gb_per_s: 0, host_gb_per_s: 25, devices_per_node: 8}}\n"
)


def test_an_edited_catalogue_file_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(DEVICE.format(gb=48))
    monkeypatch.setenv("FORERUN_CATALOG", str(path))
    first = forerun.predict("resnet50", "1x1xmine-1")
    path.write_text(DEVICE.format(gb=96))
    os.utime(path, (1, 1))
    second = forerun.predict("resnet50", "1x1xmine-1")
    assert first.job.cluster.device.memory_bytes == 48e9
    assert second.job.cluster.device.memory_bytes == 96e9


def test_a_wrong_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_PREDICTOR", "analitic")
    with pytest.raises(UnknownNameError, match="analytic"):
        forerun.predict("resnet50", "1x1xt4")
    monkeypatch.setenv("FORERUN_PREDICTOR", "analytic")
    monkeypatch.setenv("FORERUN_MODEL", "missing.json")
    with pytest.raises(RequestError, match="missing"):
        forerun.predict("resnet50", "1x1xt4")
