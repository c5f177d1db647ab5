"""Probe to prediction on the lab, with no training run at all, and after three.

A lab of four hosts is probed; then models are trained on it for real, on 1, 2 and 4 hosts and two batch
sizes, and what the analytic model says of each run from the probe alone is put beside it.

    python benchmarks/probe_lab.py [--rates 100,300] [--out benchmarks/results/probe-lab.md]

Needs what `forerun lab status` asks for, about eight minutes a link rate, and a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from forerun import __version__
from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.measure import Steps, Task
from forerun.measure.lab import HostSpec, Lab
from forerun.measure.local import LocalRunner
from forerun.measure.probe.findings import catalogue_text
from forerun.measure.probe.probing import probe
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.resolve import workload

ROOT = Path(__file__).parents[1]
CHOSEN = tuple(f"examples.lab_models:{m}" for m in ("cnn", "mlp", "transformer"))
JUDGES = tuple(f"benchmarks.probe_models:{m}" for m in ("resnet", "mixer", "encoder", "mobile"))
WORKERS, BATCHES, HOSTS, DRAWS = (1, 2, 4), (8, 32), 4, 20
Row = tuple[str, int, int, float, float]


def measured(lab: Lab, folder: Path) -> Iterator[tuple[str, int, int, float]]:
    """Yield (entry, workers, global batch, mean seconds a step) of real training."""
    runner = LocalRunner(lab.hosts, folder=folder, environment={"PYTHONPATH": str(ROOT)})
    steps = Steps(least=20, most=60, half_width=0.03, seconds=15)
    tasks = [
        Task(entry, workers=k, global_batch=k * b, threads=1, steps=steps, settings={"batch": b})
        for k, entry, b in itertools.product(WORKERS, (*CHOSEN, *JUDGES), BATCHES)
    ]
    for place, found in runner.each(tasks):
        task = tasks[place]
        if found.status != "ok" or found.step_mean_seconds is None:
            sys.exit(f"{task.entry} on {task.workers}: {found.status}: {found.reason}")
        yield task.entry, task.workers, task.global_batch, found.step_mean_seconds


def told(rows: Sequence[Row], title: str) -> list[str]:
    """Return one line of errors for each number of workers."""
    lines = []
    for workers in WORKERS:
        errors = [abs(p / m - 1) for _, k, _, m, p in rows if k == workers]
        lines.append(f"| {title} | {workers} | {len(errors)} | {100 * np.mean(errors):.1f} % | "
                     f"{100 * max(errors):.0f} % |")  # fmt: skip
    return lines


def after_three(jobs: Jobs, seconds: np.ndarray) -> tuple[float, float]:
    """Return the mean error of all other runs after three drawn ones: middle and worst draw."""
    draw, start, found = random.Random(0), AnalyticPredictor.shipped(), []
    for _ in range(DRAWS):
        index = np.array(sorted(draw.sample(range(len(jobs)), 3)))
        runs = Runs(jobs.take(index), Table({"step_time_s": seconds[index]}, 3))
        said = start.fit(runs).predict(jobs).seconds[:, 1]
        found.append(np.mean(np.delete(np.abs(said / seconds - 1), index)))
    return float(np.median(found)), float(max(found))


def at_rate(rate: int, folder: Path) -> list[str]:
    """Return the lines of the report for one link rate, Mbit/s."""
    name = f"lab-{rate}"
    with Lab([HostSpec(cpus=0.22, link_mbit=rate)] * HOSTS) as lab:
        found = probe(lab.hosts, name=name)
        path = folder / f"{name}.yaml"
        path.write_text(catalogue_text(found.entry))
        runs = list(measured(lab, folder / name))
    catalog = load_catalog([path])
    workloads = {e: workload(e, optimizer="sgd") for e in (*CHOSEN, *JUDGES)}
    jobs = Jobs.of([
        Job(workloads[e], catalog.cluster(f"{k}x1x{name}"),
            Plan(dp=k, micro_batch=b // k, global_batch=b))
        for e, k, b, _ in runs
    ])  # fmt: skip
    said = AnalyticPredictor.shipped().predict(jobs).seconds[:, 1]
    rows = [(*run, float(p)) for run, p in zip(runs, said, strict=True)]
    chosen = np.array([row[0] in CHOSEN for row in rows])
    seconds = np.array([row[3] for row in rows])
    middle, worst = after_three(jobs.take(np.flatnonzero(chosen)), seconds[chosen])
    lines = [f"## Links of {rate} Mbit/s", "",
             f"Probe: {found.found['seconds']:.0f} s, repeats {100 * found.found['spread']:.0f} % "
             f"apart, {found.found['cpu_share']:.3f} of a core.", "",
             "| models | workers | runs | mean error | worst |", "|---|---|---|---|---|",
             *told([r for r in rows if r[0] in CHOSEN], "looked at"),
             *told([r for r in rows if r[0] in JUDGES], "judges"), "",
             f"After three runs of the first group ({DRAWS} draws), the others' mean error: "
             f"{100 * middle:.1f} % (middle draw), {100 * worst:.1f} % (worst draw).", "",
             "| model | workers | batch | measured | predicted | error |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    return lines + [
        f"| {e.partition(':')[2]} | {k} | {b} | {1e3 * m:.1f} ms | {1e3 * p:.1f} ms | {p / m - 1:+.0%} |"
        for e, k, b, m, p in rows
    ]


def main() -> None:
    """Write the report."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rates", default="100,300")
    asked.add_argument("--out", type=Path)
    options = asked.parse_args()
    sys.path.insert(0, str(ROOT))
    lines = ["# From probe to prediction on the lab", "",
             f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, forerun {__version__}; four hosts of "
             "0.22 core each, fp32, SGD, gloo. Made by `python benchmarks/probe_lab.py`.", ""]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for rate in map(int, options.rates.split(",")):
            lines += [*at_rate(rate, Path(folder)), ""]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
