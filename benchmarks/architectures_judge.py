"""Networks that nobody ran, on the lab: what predictors say of architectures that their runs have not seen.

    python benchmarks/architectures_judge.py [--out benchmarks/results/architectures-lab.md] [--only EXPERIMENT,...] [--line NAME;...]

Rows are those of the dataset architectures-lab that comes with the package, measured by benchmarks/architectures.yaml,
with their probed device and traced networks. Medians of repeats are judged. An architecture is left out with
both sides of its images, in ten parts; a family with all its architectures, in four. Ernest is fitted as published to its own runs of the
network, those on 1 and 2 workers, and asked for 4.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.choice import Auto
from forerun.predictors.graphs.predictddl import PredictDDL
from forerun.predictors.laws.ernest import Ernest
from forerun.predictors.options import PRIORS
from forerun.predictors.residual import ResidualPredictor
from forerun.tables import Jobs, Runs, Table
from forerun.tables.datasets import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.architectures import FAMILIES

DEVICE = "architectures-lab"
DATASET = Dataset(DEVICE)
FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names}
SCALE_OUT = 4  # workers that Ernest is asked for

# By name: what is fitted anew for each fold.
PREDICTORS: dict[str, Callable[[], Any]] = {
    "analytic": AnalyticPredictor,
    "residual": ResidualPredictor,
    "auto": lambda: Auto(PRIORS, names=("analytic", "residual")),
    "over physics: linear, quantities": lambda: PredictDDL("linear", "quantities", "residual"),
    "over physics: boosting, no graph": lambda: PredictDDL("boosting", "none", "residual"),
    "over physics: boosting, quantities": lambda: PredictDDL("boosting", "quantities", "residual"),
    "over physics: boosting, both": lambda: PredictDDL("boosting", "both", "residual"),
    **{
        f"{regression}, embedding (a)": lambda r=regression: PredictDDL(r, "embedding")
        for regression in ("linear", "polynomial", "svr", "mlp", "boosting")
    },
    "boosting, no graph": lambda: PredictDDL("boosting", "none"),
    "boosting, quantities": lambda: PredictDDL("boosting", "quantities"),
    "boosting, both": lambda: PredictDDL("boosting", "both"),
}
# An encoder is trained for each fold: for families alone.
TRAINED: dict[str, Callable[[], Any]] = {
    "boosting, embedding (b)": lambda: PredictDDL("boosting", "embedding", encoder="quantities"),
    "boosting, embedding (c) by GHN-3's layers": lambda: PredictDDL(
        "boosting", "embedding", encoder="graphormer-residual"
    ),
    "boosting, embedding (c)": lambda: PredictDDL("boosting", "embedding", encoder="residual"),
}
PARTS = {"Architectures": 10, "Families": 4}


class Measured:
    """Configurations of the table: medians of repeats, their spread, and their jobs."""

    def __init__(self) -> None:
        with DATASET.table.open(newline="") as file:
            found = list(csv.DictReader(file))
        groups = defaultdict(list)
        for row in found:
            name, _, side = row["workload"].rpartition("_")
            groups[name, int(side), int(row["devices"]), int(row["micro_batch"])].append(row)
        self.points = sorted(groups)
        times = [np.array([float(r["step_time_s"]) for r in groups[p]]) for p in self.points]
        self.seconds = np.array([np.median(t) for t in times])
        self.apart = np.array([np.ptp(np.log(t)) if len(t) > 1 else np.nan for t in times])
        self.run_seconds = np.array([
            np.median([float(r["run_time_s"]) for r in groups[p]]) for p in self.points
        ])  # fmt: skip
        self.architecture = np.array([name for name, *_ in self.points])
        self.family = np.array([FAMILY_OF[name] for name in self.architecture])
        self.workers = np.array([workers for _, _, workers, _ in self.points])
        catalog = load_catalog([DATASET.catalog])
        self.jobs = Jobs.of([
            Job(DATASET.workloads[f"{name}_{side}"], catalog.cluster(f"{workers}x1x{DEVICE}"),
                Plan(dp=workers, micro_batch=batch, global_batch=batch * workers))
            for name, side, workers, batch in self.points
        ])  # fmt: skip

    def runs(self, rows: np.ndarray) -> Runs:
        """Return some configurations as runs."""
        at = np.flatnonzero(rows)
        return Runs(self.jobs.take(at), Table({"step_time_s": self.seconds[at]}, len(at)))


def left_out(
    measured: Measured, groups: np.ndarray, parts: int, make: Callable[[], Any]
) -> np.ndarray:
    """Return quantiles of each configuration by a predictor that saw no run of its part of the groups, (n, 3)."""
    found = np.full((len(groups), 3), np.nan)
    names, of = np.unique(groups, return_inverse=True)
    part = (np.random.default_rng(0).permutation(len(names)) % parts)[of]
    for i in range(parts):
        fitted = make().fit(measured.runs(part != i))
        mine = np.flatnonzero(part == i)
        found[mine] = fitted.predict(measured.jobs.take(mine)).seconds
    return found


def line(title: str, measured: Measured, found: np.ndarray) -> str:
    """Return a row of the report: errors in percent, the share inside the band, its width, and what is answered."""
    answered = np.isfinite(found[:, 1])
    off = 100 * np.abs(found[answered, 1] / measured.seconds[answered] - 1.0)
    low, high = found[answered, 0], found[answered, 2]
    inside = (low <= measured.seconds[answered]) & (measured.seconds[answered] <= high)
    return (
        f"| {title} | {np.median(off):.1f} % | {off.mean():.1f} % | {100 * inside.mean():.0f} % |"
        f" {np.median(high / low):.2f}x | {100 * answered.mean():.0f} % |"
    )


HEAD = ["| predictor | median | mean | inside | width | answered |", "|---|---|---|---|---|---|"]


def ablation(measured: Measured) -> Iterator[str]:
    """Yield the table of each way to leave networks out."""
    blind = np.asarray(AnalyticPredictor().predict(measured.jobs).seconds)
    for title, groups in (("Architectures", measured.architecture), ("Families", measured.family)):
        parts = PARTS[title]
        yield from ("", f"{title} left out ({len(np.unique(groups))} in {parts} parts):", "", *HEAD)
        yield line("physics from the probe, no run", measured, blind)
        for name, make in (PREDICTORS | (TRAINED if title == "Families" else {})).items():
            yield line(name, measured, left_out(measured, groups, parts, make))


def ernest(measured: Measured) -> Iterator[str]:
    """Yield the comparison with Ernest on the most workers: errors, and the seconds until an answer."""
    asked = measured.workers == SCALE_OUT
    profiled = ~asked
    names = ("ernest, on its own runs", "predictddl: polynomial, embedding", "predictddl: linear, embedding",
             "predictddl: boosting, both", "physics, calibrated on others", "residual")  # fmt: skip
    errors, seconds = {n: [] for n in names}, {n: [] for n in names}  # type: ignore[var-annotated]
    made = {
        names[1]: lambda: PredictDDL("polynomial", "embedding"), names[2]: lambda: PredictDDL("linear", "embedding"),
        names[3]: lambda: PredictDDL("boosting", "both"), names[4]: AnalyticPredictor, names[5]: ResidualPredictor,
    }  # fmt: skip
    networks, of = np.unique(measured.architecture, return_inverse=True)
    part = (np.random.default_rng(0).permutation(len(networks)) % PARTS["Architectures"])[of]
    fitted = {
        (other, i): make().fit(measured.runs(part != i))
        for other, make in made.items() for i in range(PARTS["Architectures"])
    }  # fmt: skip
    for name in networks:
        mine = measured.architecture == name
        jobs, truth = (
            measured.jobs.take(np.flatnonzero(mine & asked)),
            measured.seconds[mine & asked],
        )
        start = time.perf_counter()
        law = Ernest().fit(measured.runs(mine & profiled))
        said = law.predict(jobs).seconds[:, 1]
        cost = measured.run_seconds[mine & profiled].sum() + time.perf_counter() - start
        errors[names[0]] += np.abs(said / truth - 1.0).tolist()
        seconds[names[0]].append(cost)
        for other in made:
            start = time.perf_counter()
            said = fitted[other, part[mine][0]].predict(jobs).seconds[:, 1]
            seconds[other].append(time.perf_counter() - start)
            errors[other] += np.abs(said / truth - 1.0).tolist()
    base = 100 * np.nanmean(errors[names[0]])
    yield from ("", f"On {SCALE_OUT} workers, new architectures:", "")
    yield "| predictor | mean error | median | times below Ernest's | until an answer | times faster |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        off = 100 * np.array(errors[name])
        wait = np.median(seconds[name])
        yield (
            f"| {name} | {np.nanmean(off):.1f} % | {np.nanmedian(off):.1f} % | {base / np.nanmean(off):.1f} |"
            f" {wait:.3g} s | {np.median(seconds[names[0]]) / wait:,.0f} |"
        )


def noise(measured: Measured) -> Iterator[str]:
    """Yield how far repeats lie apart."""
    apart = measured.apart[np.isfinite(measured.apart)]
    # Two repeats differ by root 2 of what one differs from the truth by, a median of two by half of that.
    yield (
        f"{len(apart)} configurations were measured twice: repeats lie {100 * np.median(apart):.1f} % apart in the"
        f" median, {100 * apart.mean():.1f} % on average; a single run thus lies about"
        f" {100 * apart.mean() / 2**0.5:.1f} % off on average."
    )


EXPERIMENTS: dict[str, Callable[[Measured], Iterator[str]]] = {
    "noise": noise, "ablation": ablation, "ernest": ernest,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help=f"of {', '.join(EXPERIMENTS)}, with commas")
    parser.add_argument(
        "--line", default="", help="predictors of the ablation, with semicolons; by default all"
    )
    options = parser.parse_args(arguments)
    kept = options.line.split(";") if options.line else [*PREDICTORS, *TRAINED]
    for name in kept:
        if name not in PREDICTORS and name not in TRAINED:
            parser.error(f"no line {name!r}; one of: {'; '.join([*PREDICTORS, *TRAINED])}")
    for table in (PREDICTORS, TRAINED):
        for name in set(table) - set(kept):
            del table[name]
    wanted = [n for n in options.only.split(",") if n] or list(EXPERIMENTS)
    measured, lines = Measured(), []
    for name in wanted:
        for text in EXPERIMENTS[name](measured):
            print(text, flush=True)
            lines.append(text)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
