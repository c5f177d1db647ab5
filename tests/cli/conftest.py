"""What the command line's tests share: a run in this process, and settings that are nobody's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forerun.cli import main


@dataclass(frozen=True)
class Done:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return stdout as strict JSON: NaN and Infinity are refused."""
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"JSON holds {constant}")


Run = Callable[..., Done]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in list(os.environ):
        if name.startswith("FORERUN_") and name != "FORERUN_DATA":
            monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def forerun(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""

    def run(*arguments: str) -> Done:
        code = main([*arguments], standalone_mode=False)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Return a table of six rows: three good ones, and three that cannot be answered."""
    path = tmp_path / "jobs.csv"
    path.write_text(
        "workload,device,nodes,devices,global_batch,dp,tp,mark\n"
        "resnet50,a100-sxm-80gb,1,8,256,,,first\n"
        "llama3-8b,h100-sxm-80gb,4,32,512,16,2,second\n"
        "no-such-net,a100-sxm-80gb,1,8,256,,,third\n"
        "resnet50,no-such-gpu,1,8,256,,,fourth\n"
        "llama3-8b,h100-sxm-80gb,1,8,512,3,1,fifth\n"
        "bert-base,v100-sxm-16gb,1,1,8,,,sixth\n"
    )
    return path
