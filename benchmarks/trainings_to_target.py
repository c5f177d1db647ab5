"""Real trainings to a real target on the lab: which workers and batch, foretold and found while it trains.

Two models train on 1 to 8 hosts of a lab, each with 0.22 of a core and a link of 300 Mbit/s, until their held-out loss reaches a target: at
every number of workers and batch, some in two seeds, and then elastically with Scavenger's partial and full search. Trainings
that share no host run at once. A row is a training: its seconds from the first step on, its samples, its price.

    python benchmarks/trainings_to_target.py --measure all      # as root, on a quiet machine, some 45 minutes
    python benchmarks/trainings_to_target.py --measure known    # more of them, that know how many samples a batch took
    python benchmarks/trainings_to_target.py > benchmarks/results/trainings-to-target.md
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.advisor.elastic import TRAIL, ElasticTraining
from forerun.catalog import load_catalog
from forerun.measure.elastic.job import MetricTarget, TrainingJob
from forerun.measure.hosts import Host
from forerun.search.following import follow, searcher_of
from forerun.search.landscape import Goal
from forerun.search.replay import Replay
from forerun.search.scaling import Scale, whole_forecasts
from forerun.search.scavenger import ScavengerPartial
from forerun.tables import Table, read_table, write_table
from forerun.workloads.rows import runs_from_table

TABLE = Path(__file__).parent / "results" / "trainings_to_target.csv"
LAB, HOSTS, PRICE, LIMIT = "trainings", 8, 0.04, 1500.0
WORKERS, BATCHES, SEEDS, ONLINE = (1, 2, 4, 8), (64, 128, 256), (0, 1), (10, 11)
SEARCHERS = (
    "scavenger-full",
    "scavenger-partial",
    "scavenger-none",
    "pollux",
    "bayesian",
    "cherrypick",
    "random",
)
REPLAYED = 30
_PARTS, _HELD = (
    2,
    4,
)  # reports of the held-out loss in an epoch; it is that of every so many of the samples held out


def loop(run: Any, data: Any, loss: Any, held: Any) -> None:
    """Train until the driver ends it, and report the held-out loss."""
    import torch

    for sample in run:
        run.backward(loss(*sample))
        run.step()
        if run.passed(len(data) // _PARTS) and run.rank == 0:
            with torch.no_grad():
                run.report(loss=loss(*(part[::_HELD] for part in held)))


def digits(job: Any) -> None:
    """Train the CNN of `examples/digits_elastic.py`."""
    import torch
    from torch.nn import functional

    from examples.digits_elastic import digits as samples
    from examples.digits_elastic import network

    torch.manual_seed(job.seed)
    data, model = torch.utils.data.TensorDataset(*samples(held=False)), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.settings["learning_rate"], momentum=0.9)
    run = job.prepare(model, optimizer, data)
    loop(run, data, lambda x, y: functional.cross_entropy(model(x), y), samples(held=True))


def text(job: Any) -> None:
    """Train the GRU of `examples/text_elastic.py`."""
    import inspect

    import torch
    from torch.nn import functional

    from examples.text_elastic import LENGTH, Speller

    torch.manual_seed(job.seed)
    source = inspect.getsource(argparse)
    place = {character: i for i, character in enumerate(sorted(set(source)))}
    codes = torch.tensor([place[character] for character in source])
    windows = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    seen, model = len(windows) * 9 // 10, Speller(len(place), 32)
    data = torch.utils.data.TensorDataset(windows[:seen])
    optimizer = torch.optim.Adam(model.parameters(), lr=job.settings["learning_rate"])

    def loss(texts: Any) -> Any:
        return functional.cross_entropy(model(texts[:, :-1]), texts[:, 1:])

    loop(job.prepare(model, optimizer, data), data, loss, (windows[seen:],))


# The learning rate at the smallest batch, how it follows the batch, and the held-out loss that ends a training.
MODELS: dict[str, tuple[float, str, float, str]] = {
    "digits": (0.002, "linear", 0.10, "sgd"),
    "text": (0.001, "square_root", 1.20, "adam"),
}


def job_of(model: str, workers: Sequence[int], batches: Sequence[int], seed: int, **more: Any) -> TrainingJob:  # fmt: skip
    """Return a training of a model."""
    rate, rule, target, _ = MODELS[model]
    return TrainingJob(
        f"benchmarks.trainings_to_target:{model}", tuple(workers), tuple(batches), min(BATCHES),
        {"learning_rate": rate}, seed, rule, MetricTarget("loss", target, at_least=False),
        within_seconds=LIMIT, dollars_per_worker_hour=PRICE, checkpoint_seconds=600.0, **more,
    )  # fmt: skip


def trained(job: TrainingJob, hosts: Sequence[Host]) -> tuple[dict[str, Any], float]:
    """Carry a training out, and return its row and the longest pause of a move in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        training = ElasticTraining(job, folder, hosts=hosts)
        training.run()
        lines = [json.loads(line) for line in Path(folder, TRAIL).read_text().splitlines()]
    done, model = training.progress, job.entry.rpartition(":")[2]
    first, last = next(line for line in lines if line["is"] == "group"), lines[-1]
    seconds, dollars = last["seconds"] - first["seconds"], last["dollars"] - first["dollars"]
    (k, b), times = max(done.seconds_of.items(), key=lambda one: len(one[1]))
    row = {
        "workload": model, "optimizer": MODELS[model][3], "target": f"loss {MODELS[model][2]:g}",
        "device": "lab-host", "nodes": k, "devices": k, "global_batch": b,
        "micro_batch": -(-b // k), "step_time_s": float(np.median(times)), "time_to_train_s": seconds,
        "cost_usd": dollars, "samples_to_target": done.position, "grad_sqr": done.sqr, "grad_var": done.var,
        "price_usd_per_hour": k * PRICE, "status": "ok" if training.is_target_met else "timeout",
        "note": f"{job.search}{' known' * bool(job.known)} {job.minimize}" if len(job.configurations) > 1 else "fixed",
        "ref": f"seed {job.seed}", "source": "trainings_to_target",
    }  # fmt: skip
    return row, max(done.pauses, default=0.0)


class Trainings:
    """Carries trainings out on the hosts of a lab, and writes each as soon as it has ended."""

    def __init__(self, hosts: Sequence[Host], rows: list[dict[str, Any]]) -> None:
        self.hosts, self.rows = hosts, rows
        self._lock, self._began = threading.Lock(), time.monotonic()

    def make(self, job: TrainingJob, hosts: Sequence[Host] = ()) -> None:
        """Carry out one."""
        row, pause = trained(job, hosts or self.hosts)
        with self._lock:
            self.rows.append(row)
            write_table(Table.from_rows(self.rows), TABLE)
            words = f"{row['workload']} {row['devices']} x {row['global_batch']}"
            print(f"{(time.monotonic() - self._began) / 60:5.1f} min  {words} {row['note']} {row['ref']}: {row['time_to_train_s']:.0f} s, "
                  f"{row['samples_to_target']:,} samples, {row['status']}, a pause of {pause:.2f} s at most", file=sys.stderr, flush=True)  # fmt: skip

    def fixed(self, model: str, k: int) -> None:
        """Carry out those of a model with k workers, as many at once as the hosts allow."""
        seeds = SEEDS if k == max(WORKERS) else SEEDS[:1]
        queue = [job_of(model, [k], [b], s) for s in seeds for b in BATCHES[s : 3 - s]]

        def work(hosts: Sequence[Host]) -> None:
            while True:
                with self._lock:
                    if not queue:
                        return
                    job = queue.pop(0)
                self.make(job, hosts)

        parts = [self.hosts[i : i + k] for i in range(0, len(self.hosts), k)]
        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def searching(self, model: str) -> None:
        """Carry out those of a model that search while they train."""
        searches = [("partial", "time", seed) for seed in ONLINE]
        searches += [("full", "time", ONLINE[0]), ("partial", "cost", ONLINE[0])]
        for search, aim, seed in searches:
            self.make(job_of(model, WORKERS, BATCHES, seed, search=search, minimize=aim))

    def knowing(self, model: str) -> None:
        """Carry out those that know from the fixed ones how many samples each batch took."""
        runs = fixed(read_table(TABLE), model, SEEDS[0])
        entry = np.full(len(runs), job_of(model, WORKERS, BATCHES, 0).entry, dtype=object)
        with tempfile.TemporaryDirectory() as folder:
            known = str(Path(folder, "known.csv"))
            write_table(runs.with_columns(workload=entry), known)
            for aim in ("time", "cost"):
                self.make(job_of(model, WORKERS, BATCHES, ONLINE[0], minimize=aim, known=known))


def measure(what: str) -> None:
    """Carry all trainings out, or those that know the fixed ones of the table."""
    from forerun.measure.lab import Lab

    rows: list[dict[str, Any]] = []
    if what == "known":
        with TABLE.open(encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file)
    with Lab(HOSTS, name=LAB) as lab:
        trainings = Trainings(lab.hosts, rows)
        for model in MODELS:
            if what == "known":
                trainings.knowing(model)
                continue
            for k in sorted(WORKERS, reverse=True):
                trainings.fixed(model, k)
            trainings.searching(model)


def fixed(table: Table, model: str, seed: int | None = None) -> Table:
    """Return the trainings of a model that moved nowhere, of one seed or of all."""
    mine = (table.texts("workload") == model) & (table.texts("note") == "fixed")
    return table.take(mine if seed is None else mine & (table.texts("ref") == f"seed {seed}"))


def box_of(table: Table, aim: str = "time") -> Replay:
    """Return trainings as a search space, each configuration with its run."""
    names = [n for n in table.columns if n not in ("ref", "note", "source", "grad_sqr", "grad_var")]
    rows = Table({name: table.columns[name] for name in names}, len(table))
    return Replay.of(runs_from_table(rows, load_catalog()), Goal(aim))


def foretold(table: Table, model: str) -> None:
    """Print how far the laws' times until the target lie from those that trainings took."""
    box, again = box_of(fixed(table, model, SEEDS[0])), fixed(table, model, SEEDS[1])
    scale = Scale.of(box.land, model)
    points = np.array(ScavengerPartial().points(scale))
    partial = whole_forecasts(scale, box.seen(points))[:, 1]
    other = np.setdiff1d(np.arange(len(box)), points)
    full = np.array([
        whole_forecasts(scale, box.seen(np.setdiff1d(np.arange(len(box)), [i])))[i, 1]
        for i in range(len(box))
    ])  # fmt: skip
    second = np.full(len(box), np.nan)
    for k, b, t in zip(
        *(again.numbers(n) for n in ("devices", "global_batch", "time_to_train_s")), strict=True
    ):
        second[(scale.workers == k) & (scale.batch == b)] = t
    twice = np.flatnonzero(np.isfinite(second))
    for words, found, fact, at in (
        (f"partial: {len(points)} configurations seen, the other {len(other)} foretold", partial, box.seconds, other),
        ("full: each configuration left out in turn", full, box.seconds, np.arange(len(box))),
        (f"noise: one seed against the other, {len(twice)} configurations", box.seconds, second, twice),
    ):  # fmt: skip
        error = np.abs(found[at] / fact[at] - 1)
        print(f"| {model} | {words} | {100 * error.mean():.1f} % | {100 * np.median(error):.1f} % | {100 * error.max():.1f} % |")  # fmt: skip


def online(table: Table, model: str) -> None:
    """Print what trainings that search while they train took, against the oracle and the average configuration."""
    every = fixed(table, model)
    mine = (table.texts("workload") == model) & (table.texts("note") != "fixed")
    keys = list(zip(every.numbers("devices"), every.numbers("global_batch"), strict=True))
    for aim, column in (("time", "time_to_train_s"), ("cost", "cost_usd")):
        facts = every.numbers(column)
        mean = {key: facts[[k == key for k in keys]].mean() for key in dict.fromkeys(keys)}
        best = min(mean, key=lambda key: mean[key])
        average = float(np.mean(list(mean.values())))
        for search in ("partial", "full", "partial known"):
            took = table.numbers(column)[mine & (table.texts("note") == f"{search} {aim}")]
            if len(took):
                ratio, spread = (
                    took.mean() / mean[best],
                    ", ".join(f"{v / mean[best]:.2f}" for v in took),
                )
                print(f"| {model} | {search} | {aim} | {best[0]:.0f} x {best[1]:.0f} | {mean[best]:.3g} | {took.mean():.3g} |"
                      f" {100 * (ratio - 1):+.0f} % ({spread}) | {average / took.mean():.2f}x, {100 * (1 - took.mean() / average):.0f} % |")  # fmt: skip


def replayed(table: Table, model: str) -> None:
    """Print how many whole trainings each searcher makes until one is within 10 % of the best."""
    known = runs_from_table(table.take(table.texts("workload") != model), load_catalog())
    for aim in ("time", "cost"):
        box = box_of(fixed(table, model, SEEDS[0]), aim)
        for name in SEARCHERS:
            trails = [
                follow(searcher_of(name, box, s, known=known)[0], box, 100) for s in range(REPLAYED)
            ]
            near = np.array([trail.runs_until_near for trail in trails])
            money = (
                np.median([trail.spent[-1] for trail in trails]) / box.dollars[box.values.argmin()]
            )
            print(f"| {model} | {aim} | {name} | {np.isfinite(near).sum()} of {REPLAYED} | {np.median(near):.0f} |"
                  f" {np.median([len(t) for t in trails]):.0f} | {100 * np.median([t.regret for t in trails]):.1f} % | {money:.1f}x |")  # fmt: skip


def main() -> None:
    """Measure, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=("all", "known"), help="carry trainings out")
    if what := parser.parse_args().measure:
        measure(what)
        return
    table = read_table(TABLE)
    print(
        "# Trainings to a target\n\n| model | forecast of the time until the target | mean error | median | worst |\n|---|---|---|---|---|"
    )
    for model in MODELS:
        foretold(table, model)
    print("\n| model | search | least | oracle (workers x batch) | s or $ of it | searching | over the oracle (each) | against the average |\n"
          "|---|---|---|---|---|---|---|---|")  # fmt: skip
    for model in MODELS:
        online(table, model)
    print(f"\n| model | least | searcher, {REPLAYED} seeds | within 10 % | trainings until then | in all | regret | money in all, of the oracle's |\n"
          "|---|---|---|---|---|---|---|---|")  # fmt: skip
    for model in MODELS:
        replayed(table, model)


if __name__ == "__main__":
    main()
