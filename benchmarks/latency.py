"""How long a person waits: the command's start, a whole prediction, and one in-process.

Each figure is the median of several runs. Wall times of commands include Python's own start;
`python -c pass` is measured beside them, so that the machine's own speed can be seen.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

PREDICT = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--json")
HEAVY = ("torch", "ray", "onnx", "xgboost", "fastapi", "pandas", "pyarrow", "sklearn", "scipy")


def wall_seconds(command: Sequence[str], runs: int = 7) -> float:
    """Return the median wall time of a command that must succeed."""
    times = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def in_process_seconds(call: Callable[[], object], runs: int = 200) -> float:
    """Return the median time of a call after one warm-up."""
    call()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def heavy_modules() -> list[str]:
    """Return heavy libraries that a prediction of a zoo workload imports (there should be none)."""
    code = (
        "import sys, json, contextlib, io\n"
        "from forerun.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({list(PREDICT)!r})\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return list(json.loads(run.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Print every figure with its unit."""
    from forerun.catalog import load_catalog
    from forerun.domain.job import Job
    from forerun.domain.plan import Plan
    from forerun.predictors.analytic import AnalyticPredictor
    from forerun.tables import Jobs
    from forerun.workloads.zoo import zoo_workload

    forerun = [sys.executable, "-m", "forerun"]
    print(f"python_start_seconds: {wall_seconds([sys.executable, '-c', 'pass']):.3f}")
    print(f"help_seconds: {wall_seconds([*forerun, '--help']):.3f}")
    print(f"predict_seconds: {wall_seconds([*forerun, *PREDICT]):.3f}")
    print(f"heavy_modules_imported: {heavy_modules()}")
    cluster = load_catalog().cluster("4x8xh100-sxm-80gb")
    workload = zoo_workload("llama3-8b")
    plan = Plan(dp=8, tp=4, zero_stage=1, global_batch=256)
    predictor = AnalyticPredictor()
    seconds = in_process_seconds(lambda: predictor.predict(Jobs.of([Job(workload, cluster, plan)])))
    print(f"in_process_prediction_ms: {seconds * 1e3:.3f}")


if __name__ == "__main__":
    main()
