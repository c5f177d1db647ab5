"""The wheel: built from the sources, installed alone in an empty environment, it does the main job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.needs import require

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
# What pip says where it finds no index of packages, or one that has nothing.
UNANSWERED = re.compile(
    r"No matching distribution found|Max retries exceeded|Connection(Error| broken|Refused)|"
    r"Temporary failure in name resolution|Network is unreachable|Read timed out"
)


def installed_by(*words: str) -> None:
    """Run pip; skip where no package index answers, fail where pip fails otherwise.

    Without PYTHONPATH, by which pip would find the sources and call them installed.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "-q"],
        capture_output=True, text=True, check=False, env=kept,
    )  # fmt: skip
    unanswered = done.returncode != 0 and UNANSWERED.search(done.stderr)
    require("packages", not unanswered, f"no package index answered: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that nothing is left between the sources."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in PARTS:
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    installed_by("wheel", "--no-deps", "--wheel-dir", str(out), str(copy))
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of an environment that has the wheel, what it depends on, and nothing else."""
    place = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    installed_by("--python", str(place / "bin" / "python"), "install", "--no-compile", str(wheel))
    return place / "bin" / "forerun"


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    kept = {
        path.relative_to(source).as_posix()
        for path in (source / "forerun").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
    }
    assert len(kept) > 300
    assert kept <= packed, f"add to package-data in pyproject.toml: {sorted(kept - packed)}"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("predict resnet50 --cluster 1x8xa100-sxm-80gb", "images/s"),
        (
            "recommend llama3-8b --clusters 4x8xh100-sxm-80gb,8x8xb200 --deadline 7d --html r.html",
            "P(within 7.0 days)",
        ),
        ("explain llama3-8b --cluster 4x8xh100-sxm-80gb", "what if"),
        ("predict --table JOBS.csv --fit RUNS.csv --out FORECASTS.csv", "FORECASTS.csv"),
        ("evaluate --runs RUNS.csv --predictors ernest --split between:devices", "ernest"),
    ],
    ids=["predict", "recommend", "explain", "table", "evaluate"],
)
def test_the_installed_command_answers(
    alone: Path, tmp_path: Path, command: str, shown: str
) -> None:
    runs = [f"mine,{n},64,{0.1 + 3.2 / n}" for n in (1, 2, 4, 8)]
    header = "workload,devices,global_batch"
    (tmp_path / "RUNS.csv").write_text("\n".join([f"{header},step_time_s", *runs]) + "\n")
    (tmp_path / "JOBS.csv").write_text(f"{header}\nmine,16,64\n")
    done = ran(alone, tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout + done.stderr
    if "--html" in command:
        assert "<html" in (tmp_path / "r.html").read_text()


def test_a_module_without_torch_says_how_to_install_it(alone: Path, tmp_path: Path) -> None:
    done = ran(alone, tmp_path, "predict mine:build --cluster 1x8xa100-sxm-80gb")
    assert done.returncode == 2
    assert "pip install 'forerun[torch]'" in done.stderr


def ran(forerun: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a folder, away from the sources and from this environment."""
    kept = {key: value for key, value in os.environ.items() if key in ("LANG", "LC_ALL")}
    return subprocess.run(
        [str(forerun), *command.split()], cwd=folder, capture_output=True, text=True, check=False,
        env={**kept, "HOME": str(folder), "PATH": f"{forerun.parent}:/usr/bin:/bin"},
    )  # fmt: skip
