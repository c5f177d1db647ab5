"""Refit: the constants that are shipped, learned anew from a folder of published runs.

`python -m forerun.evaluate.refit` reads FORERUN_DATA and writes the file that
`predictors.analytic.shipped` reads. Every table gives the same number of runs at most, drawn turn by
turn from its workloads and clusters, so that none speaks louder than the others.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.evaluate.join import join_runs
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration.fitting import thinned
from forerun.predictors.analytic.shipped import FILE, FORMAT, changes_of, round_off
from forerun.tables import Runs, read_table
from forerun.workloads.rows import runs_from_table

RUNS_EACH = 400
# Not deep learning, or without a step that physics could time.
LEFT_OUT = ("c3o_spark", "lynceus", "trimtuner", "ray_docs")
# Scales of workloads that fewer runs spoke of are not worth their line.
LEAST_RUNS = 3


def taught_runs(folder: Path, each: int = RUNS_EACH) -> dict[str, Runs]:
    """Return by table the runs that teach: at most `each`, with a step and an answerable job.

    Raises:
        RequestError: the folder holds no such table.
    """
    catalog, found = load_catalog(), {}
    for path in sorted(folder.glob("*.csv")):
        if path.stem in LEFT_OUT:
            continue
        runs = runs_from_table(read_table(path), catalog)
        answered = np.array([reason is None for reason in AnalyticPredictor().declines(runs.jobs)])
        usable = np.flatnonzero(answered & np.isfinite(runs.step_seconds()))
        if len(usable):
            found[path.stem] = runs.take(thinned(usable, runs.jobs, each))
    if not found:
        raise RequestError(
            f"refitting the constants from {folder}", "no table of measured steps lies there",
            "set FORERUN_DATA to the folder that holds runs/*.csv",
        )  # fmt: skip
    return found


def refitted(tables: Mapping[str, Runs]) -> AnalyticPredictor:
    """Return the priors fitted to all of the tables' runs."""
    return AnalyticPredictor().fit(join_runs(list(tables.values())), most=len_of(tables))


def len_of(tables: Mapping[str, Runs]) -> int:
    """Return the number of runs of all tables."""
    return sum(len(runs) for runs in tables.values())


def content(
    predictor: AnalyticPredictor, tables: Mapping[str, Runs], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the shipped file holds."""
    changes = changes_of(predictor.constants)
    few = {
        entry.name for entry in predictor.learned
        if entry.name.startswith("workload_scale[")
        and (entry.runs < LEAST_RUNS or not entry.identified)
    }  # fmt: skip
    for name in ("workload_scale", "settled"):
        kept = changes.get(name, {})
        changes[name] = {
            k: v for k, v in kept.items() if k not in few and f"workload_scale[{k}]" not in few
        }
    # Whoever asks next has a setting of their own.
    changes["taught"] = {k: v for k, v in changes["taught"].items() if not k.startswith("setting:")}
    learned = [
        {k: round_off(v) for k, v in entry.to_dict().items()}
        for entry in predictor.learned
        if entry.name not in few
    ]
    counts = {name: len(runs) for name, runs in tables.items()}
    return {
        "format": FORMAT,
        "made": {
            **made,
            "runs": counts,
            "split": "every run named here taught; none was held back",
        },
        "constants": changes,
        "learned": learned,
    }


def written(values: Mapping[str, Any]) -> str:
    """Return JSON with one line for each constant learned, and for each group of constants."""
    lines = [f'"format": {json.dumps(values["format"])}', f'"made": {json.dumps(values["made"])}']
    constants = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in values["constants"].items()]
    learned = [f"  {json.dumps(entry)}" for entry in values["learned"]]
    lines.append('"constants": {\n' + ",\n".join(constants) + "\n}")
    lines.append('"learned": [\n' + ",\n".join(learned) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(words: Sequence[str] | None = None) -> None:
    """Refit and write. Raises RequestError where the data cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORERUN_DATA"))
    parser.add_argument("--out", type=Path, default=_beside())
    parser.add_argument("--each", type=int, default=RUNS_EACH, help="runs of a table at most")
    asked = parser.parse_args(words)
    if asked.data is None:
        raise RequestError(
            "refitting the constants", "neither --data nor FORERUN_DATA is given",
            "set FORERUN_DATA to the folder that holds runs/*.csv",
        )  # fmt: skip
    tables = taught_runs(Path(asked.data) / "runs", asked.each)
    made = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "seed": 0,
        "command": f"python -m forerun.evaluate.refit --each {asked.each}",
    }
    values = content(refitted(tables), tables, made)
    asked.out.write_text(written(values), encoding="utf-8")
    count = f"{len(values['learned'])} constants from {len_of(tables)} runs"
    sys.stdout.write(f"{count} written to {asked.out}\n")


def _beside() -> Path:
    import forerun.predictors.analytic as package

    return Path(package.__path__[0]) / FILE


def _commit() -> str:
    """Return the commit of the code, with -dirty where it differs; blank outside a repository."""
    words = shlex.split("git describe --always --dirty --abbrev=10 --exclude=*")
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    try:
        main()
    except RequestError as error:
        sys.exit(str(error))
