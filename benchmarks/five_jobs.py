"""Five published jobs: what `forerun predict` says of them without their tables, beside what was measured.

benchmarks/five_jobs.yaml says from which table each job comes and how a user would ask for it. The job is
the middle row of its table by size, chosen before any forecast. The constants that answer are made as the
shipped ones are (`python benchmarks/refit.py`), from every table but the job's own, less the rows
of others that tell of its measurements. What came out goes to benchmarks/results/jobs.json;
docs/jobs_page.py makes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accuracy import commit_of_source
from converters import measured_folder
from refit import RUNS_EACH, content, fitted_runs, len_of, refitted

from forerun.advisor.given_runs import model_text
from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.evaluate import parse_condition
from forerun.evaluate.judge import TrainingSets
from forerun.evaluate.splits import rows_where
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.saving import learned_of, settled_by, with_changes
from forerun.tables import Jobs, Runs, read_table
from forerun.tables.measured import measured_seconds
from forerun.workloads.rows import runs_from_table

HERE = Path(__file__).parent
JOBS, RESULTS = HERE / "five_jobs.yaml", HERE / "results" / "jobs.json"
SEED = 0
SAME = 0.01  # relative difference of forecasts of one job
# Columns that a row may state and a command must then say alike: of the plan, and beside it.
PLAN = (
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "vpp",
    "micro_batch",
    "global_batch",
    "zero_stage",
    "recompute",
)
KEPT = (
    "step_seconds", "peak_bytes", "fits", "run_seconds", "dollars", "floor_seconds", "distance",
    "distance_means", "notes", "warnings",
)  # fmt: skip


def jobs() -> list[dict[str, Any]]:
    """Return the jobs in their order."""
    return list(yaml.safe_load(JOBS.read_text(encoding="utf-8"))["jobs"])


def words_of(job: Mapping[str, Any]) -> list[str]:
    """Return the words of a job's command, after `forerun`."""
    return shlex.split(job["command"])


def candidates(job: Mapping[str, Any], folder: Path) -> tuple[Runs, Runs]:
    """Return (the job's table, its rows that stand to choice, by the FLOPs of a step)."""
    table = runs_from_table(read_table(folder / f"{job['table']}.csv"), load_catalog())
    conditions = [parse_condition(text) for text in job.get("where", ())]
    some = rows_where(table, conditions, job["table"])
    answered = np.array([reason is None for reason in AnalyticPredictor().declines(some.jobs)])
    rows = np.flatnonzero(answered & np.isfinite(measured_seconds(some, "step").seconds))
    sample = np.array([w.graph.forward_flops for w in some.jobs.workloads])
    flops = sample[some.jobs.workload_index[rows]] * some.jobs.plans.global_batch[rows]
    return table, some.take(rows[np.argsort(flops, kind="stable")])


def middle(runs: Runs) -> Runs:
    """Return the middle row, the lower of two."""
    return runs.take(np.array([(len(runs) - 1) // 2]))


def model_without(
    table: str, judged: Runs, tables: Mapping[str, Runs]
) -> tuple[AnalyticPredictor, dict[str, int]]:
    """Return the constants as they would be shipped without a table, and by whom they were taught.

    judged: all of the table's runs; rows of others that tell of their measurements teach nothing.
    """
    others = {name: runs for name, runs in tables.items() if name != table}
    training_runs = TrainingSets.of(table, judged, np.zeros(len(judged), dtype=bool), others).others
    values = content(refitted(training_runs), training_runs, {})
    learned = learned_of(values["learned"])
    constants = with_changes(Constants(), values["constants"])
    predictor = AnalyticPredictor(replace(constants, settled=settled_by(learned)), learned)
    return predictor, {name: len(runs) for name, runs in training_runs.items()}


def answered(words: Sequence[str], model: Path) -> dict[str, Any]:
    """Return what a command says with a model. Raises RuntimeError where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words, "--model", str(model), "--json"],
        capture_output=True, text=True, check=False, cwd=HERE.parent,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"forerun {shlex.join(words)}: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))


def differences(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """Return in what a command's job departs from what its row states."""
    plan, workload, cluster = answer["plan"], answer["workload"], answer["cluster"]
    said = {**{name: plan[name] for name in PLAN}, "device": cluster["device"],
            "devices": cluster["devices"], "precision": workload["precision"],
            "optimizer": workload["optimizer"]}  # fmt: skip
    if workload["seq_len"]:
        said["seq_len"] = workload["seq_len"]
    found = [
        f"{name} is {row[name]} in the row, {value} in the command"
        for name, value in said.items()
        if row.get(name) not in (None, "", value)
    ]
    if str(row.get("sequence_parallel", "")).lower() not in (
        "",
        str(plan["sequence_parallel"]).lower(),
    ):
        found.append("sequence_parallel")
    return found


def other_job(row: Runs, answer: Mapping[str, Any], predictor: AnalyticPredictor) -> list[str]:
    """Return the words that a command's workload or cluster is another than its row's, if it is.

    Both are asked with the command's plan.
    """
    (own,) = row.jobs
    jobs = Jobs.of([Job(own.workload, own.cluster, Plan(**answer["plan"]))])
    seconds, said = predictor.predict(jobs).seconds[0, 1], answer["step_seconds"]["p50"]
    if abs(seconds / said - 1.0) <= SAME:
        return []
    return [
        f"with its plan the row's job takes {seconds:.4g} s a step, the command says {said:.4g}"
    ]


def measured(row: Runs) -> dict[str, float | None]:
    """Return what was measured of one run: seconds of a step and of the run, peak bytes."""
    cells = row.table.row(0)
    peak = cells.get("memory_gb")
    return {
        "step_seconds": float(measured_seconds(row, "step").seconds[0]),
        "peak_bytes": None if peak is None else float(peak) * 1e9,
        "run_seconds": cells.get("time_to_train_s"),
    }


def asked(job: Mapping[str, Any], tables: Mapping[str, Runs], folder: Path, models: Path) -> Any:
    """Return a job's forecast beside its measurement. Raises ValueError for the wrong command."""
    whole, sorted_rows = candidates(job, folder)
    row = middle(sorted_rows)
    predictor, training_runs = model_without(job["table"], whole, tables)
    path = models.resolve() / f"without-{job['table']}.json"
    path.write_text(model_text(predictor), encoding="utf-8")
    answer = answered(words_of(job), path)
    cells = row.table.row(0)
    wrong = differences(cells, answer) + other_job(row, answer, predictor)
    if wrong:
        raise ValueError(f"{job['table']}: {'; '.join(wrong)}; mend its command")
    return {
        "table": job["table"], "where": job.get("where", []), "candidates": len(sorted_rows),
        "command": f"forerun {shlex.join(words_of(job))}", "workload": cells["workload"],
        "ref": cells["ref"], "note": cells.get("note", ""), "measured": measured(row),
        "forecast": {name: answer.get(name) for name in KEPT},
        "teachers": training_runs,
    }  # fmt: skip


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return value


def main() -> None:
    """Ask all jobs and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="a folder that keeps the constants of each job")
    options = parser.parse_args()
    if not os.environ.get("FORERUN_DATA"):
        print("set FORERUN_DATA to a folder with runs/*.csv; nothing was run")
        return
    folder, started = measured_folder(), time.perf_counter()
    tables = fitted_runs(folder)
    print(f"{len_of(tables)} runs of {len(tables)} tables, at most {RUNS_EACH} of each", flush=True)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        models = options.models or Path(scratch)
        models.mkdir(parents=True, exist_ok=True)
        for job in jobs():
            found.append(_short(asked(job, tables, folder, models)))
            step, truth = (
                found[-1]["forecast"]["step_seconds"],
                found[-1]["measured"]["step_seconds"],
            )
            print(f"{job['table']}: forecast {step}, measured {truth}", flush=True)
    made = {
        "command": "python benchmarks/five_jobs.py", "seed": SEED, "runs_each": RUNS_EACH,
        "commit": commit_of_source(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    RESULTS.write_text(json.dumps({"made": made, "jobs": found}, indent=1) + "\n", encoding="utf-8")
    print(f"five_jobs_seconds: {made['seconds']:.0f}")


if __name__ == "__main__":
    main()
