"""The Ray study on the lab: epochs of three models are measured, and foreseen where nothing was measured.

Hosts of a part of a core each are trained on for real: workers, batch, dataset size, share of a core
and link rate vary. Then each predictor learns from some of the runs and foresees the others: between
measured values, and beyond them in workers, data and resources. The analytic model, which knows the hosts
from a probe, is calibrated on three runs and put beside them. Published for this setting: 3-15 %.

    python benchmarks/ray_study.py --measure RUNS.csv [--on ray] [--passes 3]
        twenty to thirty minutes a pass, as root, on a quiet machine
    python benchmarks/ray_study.py --runs RUNS.csv [MORE.csv] [--out REPORT.md] [--predictors auto,...]

Measured runs go to a store beside RUNS.csv, so that an interrupted study goes on where it stopped.
Tables have a row a run; what the report judges is the median of each configuration's runs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from forerun import __version__
from forerun.advisor import Advisor
from forerun.advisor.measuring import Profiling
from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.measure.campaign import CampaignProgress, join_repeats
from forerun.measure.campaign_file import campaign
from forerun.measure.lab import HostSpec, Lab
from forerun.measure.local import LocalRunner
from forerun.measure.probe.findings import catalogue_text
from forerun.measure.probe.probing import probe
from forerun.predictors.analytic import AnalyticPredictor
from forerun.store import open_store
from forerun.systems.recipe import predictor_spec
from forerun.tables import Jobs, Runs, Table, configurations, read_table, write_table
from forerun.workloads.resolve import workload

ROOT = Path(__file__).parents[1]
MODELS = ("cnn", "mlp", "transformer")
HOSTS, RATES = 8, (300, 100)
SHARES = (0.09, 0.13, 0.18)  # of a core, a worker; the largest is the usual one
WORKERS, BATCHES = (1, 2, 3, 4, 6, 8), (24, 48)
FEW_WORKERS = (1, 2, 4)
SIZES = (384, 768, 1536)  # samples an epoch; the middle one is the usual one
PREDICTORS = "ray-ml,ernest,generic,gaussian,hierarchical,linear-scaling,auto"
SYSTEM = "system ray_ml"  # the study's own recipe
COLUMNS = (*PREDICTORS.split(","), SYSTEM)
DRAWS = 20


def fields(rate: int, name: str, number: int) -> dict[str, Any]:
    """Return the campaign's fields for one link rate in one pass.

    Its runs are made in an order by chance: in a fixed one, minutes in which the machine is slow
    would fall on the same workers, sizes or shares each time, and pass for what these do.
    """
    beside = rate == RATES[0]  # sizes and shares are varied at one rate only, with few workers
    size, share = f"dataset_size!={SIZES[1]}", f"cpus_per_worker!={SHARES[-1]}"
    many = "workers=" + ",".join(f"{x}" for x in WORKERS if x not in FEW_WORKERS)
    return {
        "name": name, "order": "random", "seed": number,
        "workloads": {m: {"entry": f"examples.lab_models:{m}"} for m in MODELS},
        "vary": {
            "threads": 1, "global_batch": BATCHES, "workers": WORKERS,
            "dataset_size": SIZES if beside else SIZES[1],
            "cpus_per_worker": SHARES if beside else SHARES[-1],
        },
        "leave_out": [f"{size} and {share}", f"{many} and {size}", f"{many} and {share}"],
        "steps": {"epochs": 1}, "timeout": "10min",
        "device": f"lab-{rate}", "asked": {"node_gbps": rate / 1000},
    }  # fmt: skip


@contextmanager
def runner_on(lab: Lab, on: str, folder: Path) -> Iterator[Any]:
    """Yield who carries runs out on the lab."""
    if on == "local":
        yield LocalRunner(lab.hosts, folder=folder, environment={"PYTHONPATH": str(ROOT)})
        return
    from forerun.measure.ray import RayRunner

    with lab.ray(cpus=1) as cluster:
        print(f"Ray on {HOSTS} hosts after {cluster.start_seconds:.0f} s", flush=True)
        yield RayRunner(
            address=cluster.address, host=cluster.head, folder=folder,
            placement="STRICT_SPREAD", hold=True,
            environment={**cluster.environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )  # fmt: skip


def told(one: CampaignProgress) -> None:
    """Print one line a run."""
    found = one.measurement
    said = f"{found.epoch_seconds:.2f} s an epoch" if found.epoch_seconds else found.reason
    print(f"{one.done} of {one.total}  {one.point}: {found.status} {said}", flush=True)


def probed(path: Path) -> list[Path]:
    """Return catalogue files of the hosts at each link rate, probing them where that was not done."""
    files = [path.with_name(f"lab-{rate}.yaml") for rate in RATES]
    for rate, file in zip(RATES, files, strict=True):
        if not file.exists():
            with Lab([HostSpec(cpus=SHARES[-1], link_mbit=rate)] * 4) as lab:
                found = probe(lab.hosts, name=f"lab-{rate}")
            file.write_text(catalogue_text(found.entry))
            print(f"probed at {rate} Mbit/s in {found.found['seconds']:.0f} s", flush=True)
    return files


def measure(path: Path, on: str, passes: int) -> None:
    """Measure the study's runs, and write them as a table; probes go beside it.

    The machine's own speed wanders over minutes and hours: each pass measures everything once, and
    its campaign's name, in `ref`, tells its rows apart.
    """
    sys.path.insert(0, str(ROOT))
    advisor, tables = Advisor(probed(path)), []
    # Ray's own processes are outside the workers' shares, as they are beside them on larger hosts.
    host = HostSpec(cpus=SHARES[-1] if on == "local" else 1.0, link_mbit=RATES[0])
    with ExitStack() as stack:
        lab = stack.enter_context(Lab([host] * HOSTS, crowded=on == "ray"))
        runner = stack.enter_context(runner_on(lab, on, path.with_suffix(".logs")))
        store = stack.enter_context(open_store(str(path.with_suffix(".db"))))
        for number in range(1, passes + 1):
            for rate in RATES if number % 2 else reversed(RATES):
                for one in lab.hosts:
                    lab.rate(one, rate)
                asked = fields(rate, f"ray-study-{on}-{number}-{rate}", number)
                profiling = Profiling(campaign(asked), runner, store, advisor)
                outcome = profiling.carried_out(told)
                print(asked["name"], dict(outcome.made), outcome.stopped, flush=True)
                tables.append(profiling.results())
            rows = [table.row(i) for table in tables for i in range(len(table))]
            write_table(Table.from_rows(rows), path)
            print(f"wrote {len(rows)} runs to {path} after pass {number}", flush=True)


def splits(table: Table) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return what is asked: the split, and the runs that take part: those in which the column varies."""
    low, middle, usual = (f"{x:g}" for x in np.unique(table.numbers("cpus_per_worker")))
    few, some, many = (f"{x:g}" for x in np.unique(table.numbers("dataset_size")))
    share, size = f"cpus_per_worker={usual}", f"dataset_size={some}"
    base = ("node_gbps=0.3", "devices=1,2,4")
    return {
        "between workers (1, 2, 4, 8; then 3 and 6)": ("interpolation:devices=3,6", (share, size)),
        "more workers (up to 4; then 6 and 8)": ("extrapolation:devices=4", (share, size)),
        f"between dataset sizes ({few}, {many}; then {some})": (
            f"interpolation:{size}", (*base, share)),
        f"larger datasets (up to {some}; then {many})": (f"extrapolation:{size}", (*base, share)),
        f"between CPU shares ({low}, {usual}; then {middle})": (
            f"interpolation:cpus_per_worker={middle}", (*base, size)),
        f"larger CPU shares (up to {middle}; then {usual})": (
            f"extrapolation:cpus_per_worker={middle}", (*base, size)),
    }  # fmt: skip


def scores(
    path: Path, split: str, where: Sequence[str], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the scores of one split, as `forerun evaluate` gives them."""
    words = [
        sys.executable, "-m", "forerun", "evaluate", "--runs", str(path),
        "--predictors", ",".join(names).replace(SYSTEM, predictor_spec("ray_ml")),
        "--split", split, "--start", "priors", "--json",
        *(word for condition in where for word in ("--where", condition)),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)
    found: list[dict[str, Any]] = json.loads(done.stdout)["scores"]
    named = [
        {**one, "predictor": one["predictor"].replace(predictor_spec("ray_ml"), SYSTEM)}
        for one in found
    ]
    return [one for one in named if not one.get("group")]


def without(table: Table, names: Sequence[str]) -> Table:
    """Return a table without some columns."""
    return Table({n: c for n, c in table.columns.items() if n not in names}, len(table))


def jobs_at(table: Table, rate: int, path: Path) -> tuple[Jobs, np.ndarray]:
    """Return the jobs that were run at a link rate on hosts as probed, and their mean step seconds."""
    catalog = load_catalog([path.with_name(f"lab-{rate}.yaml")])
    shares, sizes = table.numbers("cpus_per_worker"), table.numbers("dataset_size")
    alike = (table.texts("device") == f"lab-{rate}") & (shares == shares.max())
    some = table.take(np.flatnonzero(alike & (sizes == np.median(np.unique(sizes)))))
    traced = {m: workload(f"examples.lab_models:{m}", optimizer="sgd") for m in MODELS}
    rows = zip(
        some.texts("workload"), some.numbers("devices"), some.numbers("global_batch"), strict=True
    )
    jobs = [
        Job(traced[model], catalog.cluster(f"{int(workers)}x1xlab-{rate}"),
            Plan(dp=int(workers), micro_batch=int(batch / workers), global_batch=int(batch)))
        for model, workers, batch in rows
    ]  # fmt: skip
    return Jobs.of(jobs), some.numbers("step_mean_s")


def physics(table: Table, path: Path) -> list[str]:
    """Return lines on the analytic model: from the probe alone, and calibrated on three runs."""
    lines = []
    for rate in RATES:
        jobs, seconds = jobs_at(table, rate, path)
        start = AnalyticPredictor.shipped()
        alone = np.abs(start.predict(jobs).seconds[:, 1] / seconds - 1)
        draw, after = np.random.default_rng(0), []
        for _ in range(DRAWS):
            index = np.sort(draw.choice(len(jobs), 3, replace=False))
            few = Runs(jobs.take(index), Table({"step_time_s": seconds[index]}, 3))
            found = start.fit(few).predict(jobs).seconds[:, 1]
            after.append(float(np.mean(np.delete(np.abs(found / seconds - 1), index))))
        lines.append(
            f"| {rate} Mbit/s | {len(jobs)} | {100 * alone.mean():.1f} % | {100 * alone.max():.0f} % |"
            f" {100 * np.median(after):.1f} % | {100 * max(after):.1f} % |"
        )
    return lines


def floor(table: Table) -> float:
    """Return the mean error of one who knew the true time of each configuration, a share of the medians here."""
    repeats = int(table.numbers("repeats").max())
    spread = table.numbers("std_s") / table.numbers("step_time_s")
    sigma = float(np.sqrt(np.nanmean(spread**2)))
    draws = np.random.default_rng(0).normal(0.0, sigma, (repeats, 100_000))
    return float(np.mean(np.abs(np.expm1(np.median(draws, axis=0)))))


def all_of(paths: Sequence[Path]) -> Table:
    """Return one row for each configuration of some tables, the median of its runs in all of them."""
    tables = [read_table(path) for path in paths]
    table = Table.from_rows([one.row(i) for one in tables for i in range(len(one))])
    return join_repeats(table) if configurations(table)[0] < len(table) else table


def report(paths: Sequence[Path], folder: Path, names: Sequence[str]) -> str:
    """Return the report as Markdown; hosts are those that were probed beside the first table."""
    table, path = all_of(paths), paths[0]
    sys.path.insert(0, str(ROOT))
    lines = [
        "# The Ray study on the lab", "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, forerun {__version__}; {HOSTS} hosts,"
        f" workers of {' '.join(f'{x:g}' for x in np.unique(table.numbers('cpus_per_worker')))} core,"
        f" links of {' and '.join(map(str, RATES))} Mbit/s, fp32, SGD, gloo; {len(table)} runs,"
        f" each the median of {table.numbers('repeats').max():g}. Made by `python benchmarks/ray_study.py --runs {' '.join(map(str, paths))}"
        f"{'' if tuple(names) == COLUMNS else ' --predictors ' + ','.join(names)}`.", "",
        "Mean absolute error, in brackets the median; what a predictor declines is told.", "",
        "Floor: repeats of a run differ, so that one who knew the true time of each configuration would miss the"
        " medians here by so much on average.", "",
    ]  # fmt: skip
    for title, drop in (("epoch", ("step_time_s", "samples_per_s", "sync_time_s")),
                        ("step", ("epoch_time_s", "samples_per_s"))):  # fmt: skip
        part = folder / f"{title}.csv"
        told = without(table, drop)
        if title == "step":  # a share of a core comes in bursts: of short steps the median lies
            told = told.with_columns(step_time_s=table.numbers("step_mean_s"))
        write_table(told, part)
        least = f"{100 * floor(table):.1f} %" if table.numbers("repeats").max() > 1 else "-"
        lines += [f"## Seconds of one {title}", "",
                  f"| asked | judged | floor | {' | '.join(names)} |",
                  f"|---|---|---|{'---|' * len(names)}"]  # fmt: skip
        kinds: dict[str, list[dict[str, Any]]] = {"interpolation": [], "extrapolation": []}
        for words, (split, where) in splits(table).items():
            found = {one["predictor"]: one for one in scores(part, split, where, names)}
            cells = [cell(found.get(name)) for name in names]
            rows = max((one["rows"] for one in found.values()), default=0)
            lines.append(f"| {words} | {rows} | {least} | {' | '.join(cells)} |")
            kinds[split.partition(":")[0]].append(found)
        lines += [
            f"| **{kind}**, mean of the three | | {least} | {means(each, names)} |"
            for kind, each in kinds.items()
        ]
        lines.append("")
    lines += ["## The analytic model, of steps", "",
              "| links | runs | probe alone, mean | worst | after three runs, mean (middle draw) | worst draw |",
              "|---|---|---|---|---|---|", *physics(table, path), ""]  # fmt: skip
    return "\n".join(lines)


def means(each: Sequence[Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> str:
    """Return each predictor's mean error over several splits, where it answered nearly all of each."""
    cells = []
    for name in names:
        errors = [
            found[name]["mape"] for found in each
            if name in found and found[name].get("answered", 0) >= 0.9 * found[name]["rows"]
        ]  # fmt: skip
        cells.append(f"{np.mean(errors):.1f} %" if len(errors) == len(each) else "-")
    return " | ".join(cells)


def cell(one: Mapping[str, Any] | None) -> str:
    """Return one predictor's figures."""
    if one is None or not one.get("answered"):
        return "-"
    share = one["answered"] / max(one["rows"], 1)
    few = "" if share >= 0.9 else f" of {100 * share:.0f} % answered"
    return f"{one['mape']:.1f} % ({one['median_ape']:.1f}){few}"


def main() -> None:
    """Measure, or report."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--measure", type=Path)
    asked.add_argument("--on", choices=("local", "ray"), default="local")
    asked.add_argument("--passes", type=int, default=3)
    asked.add_argument("--runs", type=Path, nargs="+")
    asked.add_argument("--out", type=Path)
    asked.add_argument("--predictors", default=",".join(COLUMNS), help="with commas")
    options = asked.parse_args()
    if not (options.measure or options.runs):
        asked.error("nothing is asked: give --measure RUNS.csv, --runs RUNS.csv, or both")
    if options.measure:
        measure(options.measure, options.on, options.passes)
    if options.runs:
        with tempfile.TemporaryDirectory() as folder:
            text = report(options.runs, Path(folder), options.predictors.split(","))
        print(text)
        if options.out:
            options.out.write_text(text)


if __name__ == "__main__":
    main()
