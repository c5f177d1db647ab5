"""How long a person waits: the command's start, a whole prediction, one in-process, and a new network by predictddl.

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


def network_figures() -> None:
    """Print what predictddl takes for a network whose graph is new, for one that is known, and for 1,000 new graphs."""
    import numpy as np

    from forerun.catalog import load_catalog
    from forerun.domain.job import Job
    from forerun.domain.plan import Plan
    from forerun.predictors.graphs import predictddl
    from forerun.predictors.graphs.predictddl import PredictDDL, WorkloadEmbeddingsGenerator
    from forerun.predictors.graphs.primitives import PrimitiveGraph, primitive_graph
    from forerun.tables import Jobs, Runs, Table
    from forerun.workloads.zoo import zoo_workload

    cluster = load_catalog().cluster("1x1xa100-sxm-80gb")
    jobs = [
        Job(zoo_workload(name), cluster, Plan(micro_batch=batch, global_batch=batch))
        for name in ("resnet18", "resnet34", "resnet101", "densenet121") for batch in (8, 16, 32)
    ]  # fmt: skip
    times = np.array([job.workload.graph.forward_flops * job.plan.global_batch for job in jobs])
    runs = Runs(Jobs.of(jobs), Table({"step_time_s": times / 1e13}, len(jobs)))
    generator, predictor = WorkloadEmbeddingsGenerator(), PredictDDL("linear").fit(runs)
    vars(predictor.model)["generator"] = generator
    workload = zoo_workload("resnet50")
    asked = Jobs.of([Job(workload, cluster, Plan(global_batch=32))])

    def new() -> None:
        generator._known.clear()
        predictddl._graph_or_reason.cache_clear()
        predictor.predict(asked)

    print(f"new_network_ms: {in_process_seconds(new) * 1e3:.1f}")
    known = in_process_seconds(lambda: predictor.predict(asked))
    print(f"known_network_ms: {known * 1e3:.1f}")
    one = primitive_graph(workload.graph)
    graphs = []
    for i in range(1000):
        sizes = one.sizes.copy()
        sizes[-1, 0] = i + 1
        graphs.append(PrimitiveGraph(one.primitive, sizes, one.edges, {}))
    wall, processor = time.perf_counter(), time.process_time()
    generator.of(graphs)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(
        f"thousand_graphs_seconds: {wall:.2f} ({len(one)} nodes each; {processor:.2f} of processors)"
    )


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
    network_figures()


if __name__ == "__main__":
    main()
