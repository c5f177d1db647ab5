"""Layers cut over machines, on the lab: real training, and what the physics says of it from a probe alone.

    python benchmarks/partitions.py measure [--repeat 0] [--seconds 600]   # resumes: rows that are there are skipped
    python benchmarks/partitions.py judge [--out benchmarks/results/partitions-lab.md]

`--rates`, `--models` and `--parts` measure fewer points. Rows go to benchmarks/results/partitions_lab.csv; hosts are probed
before their first rows, into files beside it. Measuring needs what `forerun lab status` asks for and a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from servers import BIRTH, RESULTS, ROOT, birth, probe_hosts, started

from forerun.catalog import load_catalog
from forerun.domain.forecast import Forecasts
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.measure import Steps, Task
from forerun.measure.lab import HostSpec, Lab
from forerun.measure.local import LocalRunner
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs

CSV = RESULTS / "partitions_lab.csv"
CPUS, BATCH = 0.2, 16
RATES, MODELS, PARTS = (150, 500), ("wide", "cnn"), (1, 2, 3, 4)
STEPS = Steps(warmup=3, least=20, most=24, half_width=0.03, seconds=20)
KEYS = ("rate_mbit", "model", "parts", "repeat")
FIGURES = {
    "step_mean_s": "step_mean_seconds", "step_time_s": "step_seconds", "step_std_s": "step_std_seconds",
    "measured_steps": "steps", "cpu_share": "cpu_share", "note": "reason",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One model, cut over so many hosts, at one link rate."""

    rate_mbit: int
    model: str
    parts: int

    def task(self) -> Task:
        """Return what is measured: one replica, a part on each host."""
        return Task(
            f"benchmarks.server_models:{self.model}", workers=self.parts, threads=1, global_batch=BATCH,
            steps=STEPS, settings={"batch": BATCH, "partitions": self.parts}, timeout_seconds=240,
        )  # fmt: skip


def device_name(rate: int) -> str:
    """Return what the probed device is called at a link rate."""
    return f"partitions-lab-{rate}"


def read() -> list[dict[str, str]]:
    """Return the rows measured so far."""
    if not CSV.exists():
        return []
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


def measure(points: list[Point], repeat: int, seconds: float) -> None:
    """Measure what is missing of a repeat, for about so many seconds."""
    until = time.monotonic() + seconds
    done = {tuple(row[name] for name in KEYS) for row in read()}
    groups: dict[tuple[int, int], list[Point]] = defaultdict(list)
    for point in points:
        if tuple(map(str, (*vars(point).values(), repeat))) not in done:
            groups[point.rate_mbit, point.parts].append(point)
    for rate in dict.fromkeys(rate for rate, _ in groups):
        probe_hosts(rate, device_name(rate))
        with (
            Lab([HostSpec(CPUS, rate)] * max(PARTS)) as lab,
            tempfile.TemporaryDirectory() as folder,
        ):
            for group in (found for key, found in groups.items() if key[0] == rate):
                if time.monotonic() > until:
                    return
                parts = group[0].parts
                runner = LocalRunner(
                    lab.hosts[:parts], folder, environment={"PYTHONPATH": str(ROOT)}
                )
                starter = threading.Thread(target=started, args=(lab, Path(folder), parts))
                starter.start()
                for place, found in runner.each([point.task() for point in group]):
                    keep(group[place], repeat, found)
                starter.join()


def keep(point: Point, repeat: int, found: Any) -> None:
    """Add one row to the table, unless the run failed, which is only said."""
    print(point, found.status, found.step_mean_seconds, found.reason, flush=True)
    if found.status != "ok":
        return
    cells = {name: getattr(found, field) for name, field in FIGURES.items()}
    new = not CSV.exists()
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*KEYS, *FIGURES, *BIRTH])
        if new:
            writer.writeheader()
        writer.writerow({**vars(point), "repeat": repeat, **cells, **birth(), "seed": 0})


def forecasts(points: list[Point]) -> Forecasts:
    """Return what `forerun predict` says of points, from the probe of their hosts alone.

    That all parts get the last outputs once more, which the loop needs for the loss, is not in it.
    """
    from forerun.workloads.resolve import workload

    catalog = load_catalog(
        [RESULTS / f"{device_name(r)}.yaml" for r in {p.rate_mbit for p in points}]
    )
    models = {
        m: workload(f"benchmarks.server_models:{m}", optimizer="sgd", framework="pytorch")
        for m in {p.model for p in points}
    }
    return AnalyticPredictor.shipped().predict(Jobs.of([
        Job(
            models[p.model], catalog.cluster(f"{p.parts}x1x{device_name(p.rate_mbit)}"),
            Plan(partitions=p.parts, micro_batch=BATCH, global_batch=BATCH),
        ) for p in points
    ]))  # fmt: skip


def judge(points: list[Point]) -> list[str]:
    """Return the report: mean errors, and each point beside its forecast."""
    rows = defaultdict(list)
    for row in read():
        rows[int(row["rate_mbit"]), row["model"], int(row["parts"])].append(
            float(row["step_mean_s"])
        )
    points = [p for p in points if tuple(vars(p).values()) in rows]
    if not points:
        return ["Nothing is measured yet."]
    times = [rows[tuple(vars(p).values())] for p in points]
    seconds = np.array([np.median(each) for each in times])
    found = forecasts(points)
    said, exchange = found.seconds[:, 1], found.parts["tensor comm"]
    error = said / seconds - 1.0
    lines = ["| points | runs | mean error | worst |", "|---|---|---|---|"]
    for title, some in (
        ("all", [True] * len(points)), ("whole", [p.parts == 1 for p in points]),
        ("cut", [p.parts > 1 for p in points]),
        *((f"{name} {value}", [getattr(p, name) == value and p.parts > 1 for p in points])
          for name in vars(points[0]) for value in dict.fromkeys(getattr(p, name) for p in points)),
    ):  # fmt: skip
        if any(some):
            off = 100 * np.abs(error[np.array(some)])
            lines.append(f"| {title} | {sum(some)} | {off.mean():.1f} % | {off.max():.0f} % |")
    best = defaultdict(list)
    for p, m, s in zip(points, seconds, said, strict=True):
        best[p.rate_mbit, p.model].append((m, s, p.parts))
    right = [min(b)[2] == min(b, key=lambda one: one[1])[2] for b in best.values() if len(b) > 1]
    lines += ["", f"The fastest number of parts is foretold in {sum(right)} of {len(right)} cases."]
    apart = [100 * np.ptp(each) / np.median(each) for each in times if len(each) > 1]
    if apart:
        lines.append(
            f"Spread of repeats: {np.median(apart):.1f} % (median), {max(apart):.0f} % (most)."
        )
    lines += ["", "| rate | model | parts | measured | predicted | of it exchange | error |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    return lines + [
        f"| {p.rate_mbit} | {p.model} | {p.parts} | {1e3 * m:.1f} ms | {1e3 * s:.1f} ms |"
        f" {1e3 * x:.1f} ms | {e:+.0%} |"
        for p, m, s, x, e in zip(points, seconds, said, exchange, error, strict=True)
    ]


def main() -> None:
    """Do what is asked."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("what", choices=("measure", "judge"), nargs="?", default="judge")
    asked.add_argument("--repeat", type=int, default=0)
    asked.add_argument("--seconds", type=float, default=600.0)
    asked.add_argument("--rates", type=int, nargs="+", default=RATES)
    asked.add_argument("--models", nargs="+", default=MODELS)
    asked.add_argument("--parts", type=int, nargs="+", default=PARTS)
    asked.add_argument("--out", type=Path)
    options = asked.parse_args()
    sys.path.insert(0, str(ROOT))
    points = [Point(r, m, n) for r in options.rates for n in options.parts for m in options.models]
    if options.what == "measure":
        measure(points, options.repeat, options.seconds)
        return
    text = "\n".join(["# Layers cut over machines, on the lab", "", *judge(points)]) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
