"""Parameter servers on the lab: real training, and what the analytic model says of it from a probe alone.

    python benchmarks/servers.py measure [--repeat 0] [--seconds 600]   # resumes: rows that are there are skipped
    python benchmarks/servers.py judge [--out benchmarks/results/servers-lab.md]

Rows go to benchmarks/results/servers_lab.csv. Hosts of each link rate are probed right before a repeat's first
rows, into files beside the table, since a rented machine's pace drifts with the hour: what is judged are the
medians of the repeats by the medians of their probes. Measuring needs what `forerun lab status` asks for and
a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.measure import Measurement, Steps, Task
from forerun.measure.lab import HostSpec, Lab
from forerun.measure.local import LocalRunner
from forerun.measure.probe.worker import middle_of
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs, Runs, Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CSV = RESULTS / "servers_lab.csv"
ASKED = yaml.safe_load((ROOT / "benchmarks" / "servers.yaml").read_text())
SEED, DRAWS, OWN_DRAWS = 0, 20, 7
KEYS = (
    "rate_mbit",
    "model",
    "sync",
    "workers",
    "servers",
    "hosts",
    "beside",
    "stale_bound",
    "repeat",
)
FIGURES = {
    "step_mean_s": "step_mean_seconds", "step_time_s": "step_seconds", "step_std_s": "step_std_seconds",
    "measured_steps": "steps", "staleness": "staleness", "staleness_std": "staleness_std",
    "pushed_bytes": "sync_bytes", "sync_s": "comm_seconds", "cpu_share": "cpu_share", "note": "reason",
}  # fmt: skip
BIRTH = ("hardware", "date", "commit", "seed", "load")


@dataclass(frozen=True)
class Point:
    """One configuration at one link rate."""

    rate_mbit: int
    model: str
    sync: str
    workers: int
    servers: int
    hosts: int
    beside: bool
    stale_bound: int

    @property
    def places(self) -> int:
        """Hosts that it takes."""
        return self.hosts + (0 if self.beside else self.servers)

    def task(self) -> Task:
        """Return what is measured."""
        settings: dict[str, Any] = {"batch": ASKED["batch"]}
        if self.servers:
            settings |= {"sync": self.sync, "parameter_servers": self.servers}
            settings |= {"stale_bound": self.stale_bound} if self.stale_bound else {}
            settings |= {"servers_with_workers": True} if self.beside else {}
        return Task(
            f"benchmarks.server_models:{self.model}", workers=self.workers, threads=1,
            global_batch=ASKED["batch"] * self.workers, steps=Steps(**ASKED["steps"]),
            settings=settings, timeout_seconds=240, seed=SEED,
        )  # fmt: skip

    def job(self, catalog: Any, workload: Any) -> Job:
        """Return what is asked of the analytic model; servers' nodes are none of the cluster's."""
        cluster = catalog.cluster(
            f"{self.hosts}x{self.workers // self.hosts}x{device_name(self.rate_mbit)}"
        )
        return Job(workload, cluster, Plan(
            dp=self.workers, micro_batch=ASKED["batch"], global_batch=ASKED["batch"] * self.workers,
            sync=self.sync, parameter_servers=self.servers, stale_bound=self.stale_bound,
            servers_with_workers=self.beside,
        ))  # fmt: skip


def device_name(rate: int) -> str:
    """Return what the probed device is called at a link rate."""
    return f"servers-lab-{rate}"


def points() -> Iterator[Point]:
    """Yield all configurations, those that share a start of processes in a row."""
    for rate in ASKED["rates_mbit"]:
        for layout in ASKED["layouts"]:
            workers, servers = layout["workers"], layout["servers"]
            hosts, beside = layout.get("hosts", workers), layout.get("beside", False)
            stale = [workers, servers] in ASKED["stale"]["layouts"]
            ways = [(sync, 0) for sync in ASKED["exchanges"]] if servers else [("allreduce", 0)]
            ways += [("ps-stale", ASKED["stale"]["bound"])] if stale else []
            for model in ASKED["models"]:
                for sync, bound in ways:
                    yield Point(rate, model, sync, workers, servers, hosts, beside, bound)


def read() -> list[dict[str, str]]:
    """Return the rows measured so far."""
    if not CSV.exists():
        return []
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells a row from others."""
    return tuple(str(row[name]) for name in KEYS)


def birth() -> dict[str, object]:
    """Return where and when this is measured, and by which code."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    hardware = f"{name}, {os.cpu_count()} cores, hosts of {ASKED['cpus']} core"
    return {
        "hardware": hardware, "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M}",
        "commit": commit, "seed": SEED, "load": f"{os.getloadavg()[0]:.2f}",
    }  # fmt: skip


def measure(repeat: int, seconds: float) -> None:
    """Measure what is missing of a repeat, for about so many seconds."""
    until = time.monotonic() + seconds
    done = {key(row) for row in read()}
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points():
        if key({**vars(point), "repeat": repeat}) not in done:
            layout = (point.rate_mbit, point.workers, point.servers, point.hosts, point.beside)
            groups[layout].append(point)
    for rate in ASKED["rates_mbit"]:
        mine = [group for layout, group in groups.items() if layout[0] == rate]
        if not mine or time.monotonic() > until:
            continue
        probe_hosts(rate, repeat)
        with (
            Lab([HostSpec(ASKED["cpus"], rate)] * 8) as lab,
            tempfile.TemporaryDirectory() as folder,
        ):
            for group in mine:
                if time.monotonic() > until:
                    return
                runner = LocalRunner(
                    lab.hosts[: group[0].places], folder, environment={"PYTHONPATH": str(ROOT)}
                )
                starter = threading.Thread(
                    target=started, args=(lab, Path(folder), group[0].workers)
                )
                starter.start()
                for place, found in runner.each([point.task() for point in group]):
                    keep(group[place], repeat, found)
                starter.join()


def started(lab: Lab, folder: Path, workers: int) -> None:
    """Lift the hosts' shares while the processes of a run import what they need."""
    until = time.monotonic() + 60
    while not list(folder.glob("*/plan.json")) and time.monotonic() < until:
        time.sleep(0.05)
    with lab.full_speed():
        while len(list(folder.glob("*/0/progress-*"))) < workers and time.monotonic() < until:
            time.sleep(0.05)


def keep(point: Point, repeat: int, found: Measurement) -> None:
    """Add one row to the table, unless the run failed, which is only said."""
    print(point, found.status, found.step_mean_seconds, found.staleness, found.reason, flush=True)
    if found.status != "ok":
        return
    cells = {name: getattr(found, field) for name, field in FIGURES.items()}
    row = {**vars(point), "repeat": repeat, **cells, **birth()}
    new = not CSV.exists()
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*KEYS, *FIGURES, *BIRTH])
        if new:
            writer.writeheader()
        writer.writerow(row)


def probe_path(rate: int, repeat: int) -> Path:
    """Return the catalogue file of a repeat's probe."""
    return RESULTS / f"{device_name(rate)}-{repeat}.yaml"


def probe_hosts(rate: int, repeat: int) -> None:
    """Probe four hosts of the lab at a link rate, into the catalogue file of a repeat, unless that is there."""
    from forerun.measure.probe.findings import catalogue_text
    from forerun.measure.probe.probing import probe

    path = probe_path(rate, repeat)
    if path.exists():
        return
    with Lab([HostSpec(ASKED["cpus"], rate)] * 4) as lab:
        found = probe(lab.hosts, name=device_name(rate), seconds=240, beside=2)
    path.write_text(catalogue_text(found.entry))
    print(path.name, *found.warnings, sep="\n", flush=True)


def catalog_of(repeats: int) -> Any:
    """Return the catalogue with the medians of the repeats' probes; a repeat without one goes by the last before it."""
    devices = {}
    for rate in ASKED["rates_mbit"]:
        found: list[dict[str, Any]] = []
        for repeat in range(repeats):
            if (path := probe_path(rate, repeat)).exists():
                read = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
                found.append(read["devices"][device_name(rate)])
            else:
                found.append(found[-1])
        devices[device_name(rate)] = middle_of(found)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"devices": devices}, file)
        file.flush()
        return load_catalog([Path(file.name)])


@dataclass(frozen=True)
class Judged:
    """Measured configurations, medians of their repeats, beside what is asked of each."""

    points: list[Point]
    seconds: np.ndarray
    spread: np.ndarray  # range of repeats over their median, nan of one
    staleness: np.ndarray
    jobs: Jobs

    @staticmethod
    def read() -> Judged:
        """Return the table with its jobs."""
        from forerun.workloads.resolve import workload

        rows = defaultdict(list)
        for row in read():
            rows[key({**row, "repeat": 0})].append(row)
        kept = [p for p in points() if key({**vars(p), "repeat": 0}) in rows]
        found = [rows[key({**vars(p), "repeat": 0})] for p in kept]
        times = [np.array([float(r["step_mean_s"]) for r in rs]) for rs in found]
        stale = [np.mean([float(r["staleness"] or "nan") for r in rs]) for rs in found]
        catalog = catalog_of(1 + max(int(row["repeat"]) for row in read()))
        models = {
            m: workload(f"benchmarks.server_models:{m}", optimizer="sgd") for m in ASKED["models"]
        }
        return Judged(
            kept, np.array([np.median(t) for t in times]),
            np.array([np.ptp(t) / np.median(t) if len(t) > 1 else np.nan for t in times]),
            np.array(stale), Jobs.of([p.job(catalog, models[p.model]) for p in kept]),
        )  # fmt: skip

    def said(self, runs: Sequence[int] = ()) -> np.ndarray:
        """Return the seconds that are forecast once some of the rows are known."""
        predictor: Any = AnalyticPredictor.shipped()
        if len(runs):
            at = np.array(sorted(runs))
            table = Table({"step_time_s": self.seconds[at]}, len(at))
            predictor = predictor.fit(Runs(self.jobs.take(at), table))
        return np.asarray(predictor.predict(self.jobs).seconds[:, 1])


def judge() -> list[str]:
    """Return the report: errors, after three runs, staleness, the pick, and the crossover."""
    judged = Judged.read()
    said, seconds = judged.said(), judged.seconds
    error = np.abs(said / seconds - 1.0)
    through = np.array([p.servers > 0 for p in judged.points])
    lines = ["| rows | runs | mean error | median | worst |", "|---|---|---|---|---|"]

    def told(title: str, rows: np.ndarray) -> None:
        if rows.any():
            e = 100 * error[rows]
            lines.append(f"| {title} | {rows.sum()} | {e.mean():.1f} % | {np.median(e):.1f} % |"
                         f" {e.max():.0f} % |")  # fmt: skip

    told("parameter servers", through)
    for name in ("sync", "model", "rate_mbit", "workers", "servers"):
        values = np.array([str(getattr(p, name)) for p in judged.points])
        for value in dict.fromkeys(values):
            told(f"{name} {value}", (values == value) & (through | (name == "sync")))
    lines += ["", *after_three(judged, through)]
    lines += ["", *staleness(judged), "", *picks(judged, said), "", *crossover(judged, said), ""]
    if (many := np.isfinite(judged.spread)).any():
        apart = 100 * judged.spread[many]
        lines.append(
            f"Spread of repeats: {np.median(apart):.1f} % (median), {apart.max():.0f} % (most)."
        )
    lines += ["", "| rate | model | sync | workers | servers | hosts | measured | predicted | error |",
              "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    return lines + [
        f"| {p.rate_mbit} | {p.model} | {p.sync} | {p.workers} | {p.servers}{' beside' * p.beside} |"
        f" {p.hosts} | {1e3 * m:.1f} ms | {1e3 * s:.1f} ms | {s / m - 1:+.0%} |"
        for p, m, s in zip(judged.points, seconds, said, strict=True)
    ]


def after_three(judged: Judged, through: np.ndarray) -> list[str]:
    """Return the error of other rows once three are known: of all, and of one model at one link rate."""
    draw, lines = random.Random(SEED), []
    jobs = np.array([f"{p.model} at {p.rate_mbit} Mb/s" for p in judged.points])
    for title, groups, draws in (
        ("any three runs", [np.flatnonzero(through)], DRAWS),
        ("three runs of the model at the link rate",
         [np.flatnonzero(through & (jobs == job)) for job in np.unique(jobs)], OWN_DRAWS),
    ):  # fmt: skip
        errors: list[list[float]] = []
        for of in groups:
            errors.append([])
            for _ in range(draws):
                chosen = draw.sample(list(map(int, of)), 3)
                rest = np.setdiff1d(of, chosen)
                off = np.abs(judged.said(chosen)[rest] / judged.seconds[rest] - 1.0)
                errors[-1].append(float(np.mean(off)))
        each = np.mean(np.sort(errors, axis=1), axis=0)
        lines.append(f"After {title} ({draws} draws), mean error of the others: {100 * np.median(each):.1f} %"
                     f" (middle draw), {100 * each[-1]:.1f} % (worst).")  # fmt: skip
    return lines


def staleness(judged: Judged) -> list[str]:
    """Return how far forecast staleness lies from what was measured."""
    found = AnalyticPredictor.shipped().predict(judged.jobs).staleness["mean"]
    stale = np.array([p.sync in ("ps-async", "ps-stale") for p in judged.points])
    off = np.abs(found - judged.staleness)[stale]
    return [f"Staleness: {off.mean():.2f} updates off in the mean, {off.max():.2f} at most, of "
            f"{stale.sum()} runs; {np.mean(off <= 1.0):.0%} within one."]  # fmt: skip


def rates(judged: Judged, seconds: np.ndarray) -> np.ndarray:
    """Return updates' samples a second of each row."""
    each = [ASKED["batch"] * (1 if p.sync == "ps-async" else p.workers) for p in judged.points]
    return np.array(each) / seconds


def picks(judged: Judged, said: np.ndarray) -> list[str]:
    """Return, by rate, model and exchange, how much slower than the best the forecast's choice is."""
    true, forecast = rates(judged, judged.seconds), rates(judged, said)
    groups = defaultdict(list)
    for i, p in enumerate(judged.points):
        groups[p.rate_mbit, p.model, "any"].append(i)
        groups[p.rate_mbit, p.model, p.sync].append(i)
    many = np.isfinite(judged.spread)
    lines, noise = [], np.median(judged.spread[many]) if many.any() else 0.0
    for (rate, model, sync), at in groups.items():
        if len(at) < 2:
            continue
        chosen = at[int(np.argmax(forecast[at]))]
        lost = 1.0 - true[chosen] / true[at].max()
        lines.append(
            f"| {rate} | {model} | {sync} | {lost:.1%} | {'yes' if lost <= 0.03 + noise else 'no'} |"
        )
    return ["| rate | model | exchange | slower than the best | within 3 % and the spread |",
            "|---|---|---|---|---|", *lines]  # fmt: skip


def crossover(judged: Judged, said: np.ndarray) -> list[str]:
    """Return, by rate, model and workers, all-reduce against the best of servers in step."""
    seconds: dict[tuple[int, str, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for p, m, s in zip(judged.points, judged.seconds, said, strict=True):
        kind = {"allreduce": "reduce", "ps-sync": f"{p.servers} servers"}.get(p.sync)
        if kind and p.hosts == p.workers and not p.beside:
            seconds[p.rate_mbit, p.model, p.workers][kind] = (m, s)
    lines, right = [], []
    for (rate, model, workers), found in sorted(seconds.items()):
        if "reduce" not in found:
            continue
        for kind in sorted(set(found) - {"reduce"}):
            (m, s), (m0, s0) = found[kind], found["reduce"]
            right.append((m < m0) == (s < s0))
            lines.append(f"| {rate} | {model} | {workers} | {kind} | {m / m0:.2f} | {s / s0:.2f} |")
    return [f"All-reduce against servers in step: the faster is foretold in {sum(right)} of {len(right)} cases.",
            "", "| rate | model | workers | servers | measured, over all-reduce | predicted |",
            "|---|---|---|---|---|---|", *lines]  # fmt: skip


def main() -> None:
    """Do what is asked."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("what", choices=("measure", "judge"))
    asked.add_argument("--repeat", type=int, default=0)
    asked.add_argument("--seconds", type=float, default=600.0)
    asked.add_argument("--out", type=Path)
    options = asked.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.what == "measure":
        measure(options.repeat, options.seconds)
    else:
        text = "\n".join(["# Parameter servers on the lab", "", *judge()]) + "\n"
        print(text)
        if options.out:
            options.out.write_text(text)


if __name__ == "__main__":
    main()
