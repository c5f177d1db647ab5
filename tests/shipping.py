"""What tests of shipped constants share: two small tables of runs, and constants learned from them."""

from __future__ import annotations

from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import refit

from forerun.predictors.analytic import saving

HEADER = "workload,device,nodes,devices,global_batch,framework,step_time_s,memory_gb,status,source,precision"
SLOW = [f"resnet50,a100-sxm-80gb,1,{n},{b * n},pytorch,{0.012 + b * 1.6e-3 + 0.001 * n},,ok,slow-lab,fp32"
        for n in (1, 2, 4, 8) for b in (32, 64, 128)]  # fmt: skip
DENSE = [f"gpt2,v100-sxm2-16gb,1,{n},{b * n},megatron,{b * 0.03 + 0.002 * n},{3 + 1.1 * b},ok,dense-lab,fp16"
         for n in (1, 2, 4) for b in (2, 4, 8)]  # fmt: skip


def write(path: Path, rows: list[str]) -> Path:
    """Write a runs table."""
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def data_folder(folder: Path) -> Path:
    """Write a folder as FORERUN_DATA names one, with two tables, one of which teaches nothing else."""
    (folder / "runs").mkdir(parents=True)
    write(folder / "runs" / "slow.csv", SLOW)
    write(folder / "runs" / "dense.csv", DENSE)
    write(folder / "runs" / "c3o_spark.csv", ["sort,m5.large,1,4,,,12,,ok,spark,"])
    return folder


@cache
def learned() -> dict[str, str]:
    """Return the files that a refit to the two tables writes, by name: one takes seconds."""
    with TemporaryDirectory() as place, redirect_stdout(StringIO()):
        out = Path(place, "package")
        out.mkdir()
        refit.main(["--data", str(data_folder(Path(place, "data"))), "--out", str(out)])
        return {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}


def ship(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let the package ship what the two tables teach; return the folder that it ships from."""
    data_folder(folder / "data")
    out = folder / "package"
    out.mkdir()
    for name, text in learned().items():
        (out / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(saving, "place", lambda: out)
    return out


def ship_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the package ship no constants."""
    (folder / "bare").mkdir()
    monkeypatch.setattr(saving, "place", lambda: folder / "bare")
