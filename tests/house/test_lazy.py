"""The start: help and an analytic answer load no heavy package, and come at once."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

HEAVY = (
    "torch", "torchvision", "onnx", "ray", "xgboost", "sklearn", "scipy", "fastapi",
    "uvicorn", "pandas", "pyarrow", "sqlalchemy", "psycopg",
)  # fmt: skip
PREDICT = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--json")
START_SECONDS = 1.0

# Runs the command as the console script does, then says on stderr which modules are loaded.
PROBE = """
import json, sys
from forerun.cli import main
sys.argv = ["forerun", *sys.argv[1:]]
try:
    code = main()
except SystemExit as stop:
    code = stop.code
sys.stdout.flush()
roots = sorted({name.partition(".")[0] for name in sys.modules})
print("LOADED" + json.dumps(roots), file=sys.stderr)
sys.exit(code)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run forerun in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=False
    )


def loaded(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Return the top-level modules that the process had loaded when it ended."""
    assert done.returncode == 0, done.stderr
    line = next(x for x in done.stderr.splitlines() if x.startswith("LOADED"))
    return set(json.loads(line.removeprefix("LOADED")))


@pytest.mark.parametrize("arguments", [("--help",), PREDICT], ids=["help", "predict"])
def test_starts_without_any_heavy_package(arguments: tuple[str, ...]) -> None:
    modules = loaded(run(*arguments))
    assert "forerun" in modules
    assert not modules & set(HEAVY)


def test_help_needs_no_arrays() -> None:
    assert "numpy" not in loaded(run("--help"))


def test_an_analytic_answer_comes_within_a_second() -> None:
    """By the processor's time, which a busy machine lengthens little; the best of three starts counts."""
    taken = []
    for _ in range(3):
        start = processor_seconds()
        done = run(*PREDICT)
        taken.append(processor_seconds() - start)
        assert done.returncode == 0, done.stderr
    assert min(taken) <= START_SECONDS, f"starts took {taken} s of the processor"


def processor_seconds() -> float:
    """What children that have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
