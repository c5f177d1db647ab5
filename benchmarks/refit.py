"""Refit: the constants that are shipped, learned anew from a folder of published runs.

`python benchmarks/refit.py` reads the tables of FORERUN_DATA, converted, and writes the two files
that `predictors.analytic.saving` reads. Every table gives the same number of runs at most, drawn turn by
turn from its workloads and clusters, so that none speaks louder than the others.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from converters import converted_folder
from numpy.typing import NDArray

from forerun.arrays import thinned
from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import applying, fitting
from forerun.predictors.analytic.calibration.fitting import SHARED_POWER, pairs_of, repeats
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.families import FAMILIES
from forerun.predictors.analytic.saving import (
    FILE,
    FORMAT,
    ROWS_FILE,
    round_off,
    rows_of,
    text_of,
)
from forerun.predictors.analytic.uncertainty import settings_of
from forerun.tables import Jobs, Runs, read_table
from forerun.tables.fingerprints import fingerprints, packed
from forerun.tables.jobs import join_runs
from forerun.tables.suspects import cleaned, suspects
from forerun.workloads.rows import runs_from_table

RUNS_EACH = 400
# Next to nothing is laid to what is peculiar to a source, a workload or a layer's shape: such scales are
# not shipped, since another source's script shares none of them, and where they are free they take up
# what constants of devices and frameworks should say.
SCALES = ("setting_scale", "workload_scale", "shape_scale")
SETTING_SD = 0.01
# What TCP carries is a place's own too: all runs over Ethernet below 100 Gb/s are of one kind of cloud machine.
OF_A_PLACE, OF_PLACES = ("tcp_bytes_per_second",), ("setting:", "link:ethernet")
# Of the priors, over those of a fit to one's own runs. Leaving tables out whole chose this and the
# others: `benchmarks/new_source.py --settings ... --widths ...`.
PRIOR_WIDTH = 1.0
# Not deep learning, without a step that physics could time, or with devices and shapes that their
# sources do not state: those of converters.yaml are good enough to judge by, not to learn from.
LEFT_OUT = ("c3o_spark", "lynceus", "trimtuner", "ray_docs", "maxtext", "libai")


def fitted_runs(folder: Path, each: int = RUNS_EACH) -> dict[str, Runs]:
    """Return by table the runs to fit: at most `each`, that physics can speak of.

    They tell a step, a peak of memory, or that memory ran out.

    Raises:
        RequestError: the folder holds no such table, or one cannot be read.
    """
    catalog, found = load_catalog(), {}
    for path in sorted(folder.glob("*.csv")):
        if path.stem in LEFT_OUT:
            continue
        runs = runs_from_table(read_table(path), catalog)
        usable = np.flatnonzero(_tells(runs))
        if len(usable):
            runs = runs.take(usable)
            found[path.stem] = runs.take(thinned(pairs_of(runs.jobs), each))
    if not found:
        raise RequestError(
            f"refitting the constants from {folder}", "no table of measured steps lies there",
            "set FORERUN_DATA to the folder that holds runs/*.csv",
        )  # fmt: skip
    return found


def _tells(runs: Runs) -> NDArray[np.bool_]:
    answered = np.array([reason is None for reason in AnalyticPredictor().declines(runs.jobs)])
    peak = runs.table.numbers("memory_gb") > 0
    told = np.isfinite(runs.step_seconds()) | peak | (runs.status == "oom")
    return np.asarray(answered & told)


def refitted(
    tables: Mapping[str, Runs], prior_width: float = PRIOR_WIDTH, setting_sd: float = SETTING_SD
) -> AnalyticPredictor:
    """Return the priors fitted to all of the tables' runs; see `calibration.fitting` for the widths."""
    runs = join_runs(list(tables.values()))
    held = {name: replace(FAMILIES[name], sd=setting_sd / prior_width) for name in SCALES}
    with (
        mock.patch.dict(FAMILIES, held),
        mock.patch.object(fitting, "PRIOR_WIDTH", prior_width),
        mock.patch.object(fitting, "repeats", repeats_of_sources),
        mock.patch.object(applying, "places_of", sources_of),
    ):
        return AnalyticPredictor().fit(runs, most=len_of(tables))


def sources_of(jobs: Jobs) -> NDArray[np.object_]:
    """Return who published each run, (n,), else its place: one source's places are left out together.

    A vendor's code makes its many places alike; the next source shares none of it.
    """
    places = settings_of(jobs)
    if jobs.labels is None:
        return places
    sources = jobs.labels.texts("source")
    return np.where(sources == "", places, sources)


def repeats_of_sources(jobs: Jobs) -> NDArray[np.float64]:
    """Return how many rows say what each row says, (n,), so that a source counts as its facts' root.

    Its rows share a stack, scripts and a way to measure: one draw, however many they are.
    """
    alike = repeats(jobs)
    _, source = np.unique(sources_of(jobs).astype(str), return_inverse=True)
    facts: NDArray[np.float64] = np.bincount(source, alike**-SHARED_POWER)
    return np.asarray(alike * facts[source])


def len_of(tables: Mapping[str, Runs]) -> int:
    """Return the number of runs of all tables."""
    return sum(len(runs) for runs in tables.values())


def run_counts(tables: Mapping[str, Runs]) -> dict[str, int]:
    """Return by table how many runs were fitted: those of which a figure is left that is not suspect."""
    return {name: int(told.sum()) for name, told in _in_fit(tables).items()}


def _in_fit(tables: Mapping[str, Runs]) -> dict[str, NDArray[np.bool_]]:
    """Return by table which of its runs are in the fit: it leaves suspect figures out, as this does."""
    runs = join_runs(list(tables.values()))
    physics = AnalyticPredictor()
    told = _tells(cleaned(runs, suspects(runs, physics.predict(runs.jobs, detail=False))))
    parts = np.split(told, np.cumsum([len(part) for part in tables.values()])[:-1])
    return dict(zip(tables, parts, strict=True))


def changes_of(constants: Constants, prior: Constants | None = None) -> dict[str, Any]:
    """Return the fields that depart from the priors, rounded; of mappings, the keys that do."""
    before, now = asdict(prior or Constants()), asdict(constants)
    return {name: diff for name in now if (diff := _diff(before[name], now[name])) is not None}


def _diff(before: Any, now: Any) -> Any:
    if isinstance(now, Mapping):
        found = {str(k): d for k in now if (d := _diff(before.get(k), now[k])) is not None}
        return found or None
    return None if now == before else round_off(now)


def content(
    predictor: AnalyticPredictor, tables: Mapping[str, Runs], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the shipped file of constants holds."""
    own = (*SCALES, *OF_A_PLACE)
    kept = [e for e in predictor.learned if e.name.partition("[")[0] not in own]
    changes = changes_of(predictor.constants)
    for family in own:
        changes.pop(family, None)
    # What is settled is said by `learned`.
    changes.pop("settled", None)
    # Runs of a framework that has no profile say nothing of a question that states none.
    changes.get("frameworks", {}).pop("", None)
    kept = [entry for entry in kept if not entry.name.endswith("[other]")]
    counts = changes.get("run_counts", {})
    changes["run_counts"] = {
        k: v for k, v in counts.items() if not k.startswith(OF_PLACES) and k != "framework:"
    }
    return {
        "format": FORMAT,
        "made": {
            **made,
            "split": "every run counted here was fitted; none was held back",
            "runs": run_counts(tables),
        },
        "constants": {name: value for name, value in changes.items() if value != {}},
        # Constants that take up what else is wrong: how many prior standard deviations they went.
        "absorbs_misfit": {
            entry.name: round_off(entry.sds_from_prior, 2) for entry in kept if entry.absorbs_misfit
        },
        "learned": rows_of(kept),
    }


def rows_content(tables: Mapping[str, Runs], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the shipped file of fingerprints holds: of the fitted runs, and no others."""
    fitted = _in_fit(tables)
    return {
        "format": FORMAT,
        "made": {name: made[name] for name in ("date", "commit")},
        "rows": {name: packed(fingerprints(runs)[fitted[name]]) for name, runs in tables.items()},
    }


def main(words: Sequence[str] | None = None) -> None:
    """Refit and write. Raises RequestError where the data cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORERUN_DATA"))
    parser.add_argument("--out", type=Path, default=_beside(), help="the folder to write to")
    parser.add_argument("--each", type=int, default=RUNS_EACH, help="runs of a table at most")
    asked = parser.parse_args(words)
    if asked.data is None:
        raise RequestError(
            "refitting the constants", "neither --data nor FORERUN_DATA is given",
            "set FORERUN_DATA to the folder that holds runs/*.csv",
        )  # fmt: skip
    if not asked.out.is_dir():
        raise RequestError(f"--out {asked.out}", "there is no such folder", "make it first")
    tables = fitted_runs(converted_folder(Path(asked.data) / "runs"), asked.each)
    made = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "seed": 0,
        "command": f"python benchmarks/refit.py --each {asked.each}",
    }
    values = content(refitted(tables), tables, made)
    written = {FILE: values, ROWS_FILE: rows_content(tables, made)}
    for name, one in written.items():
        (asked.out / name).write_text(text_of(one), encoding="utf-8")
    count = f"{len(values['learned'])} constants from {len_of(tables)} runs"
    sys.stdout.write(f"{count} written to {asked.out}\n")


def _beside() -> Path:
    import forerun.predictors.analytic as package

    return Path(package.__path__[0])


def _commit() -> str:
    """Return the commit of the code, with -dirty where it differs; outside a repository its release."""
    words = shlex.split("git describe --always --dirty --abbrev=10 --exclude=*")
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    if done.returncode == 0:
        return done.stdout.strip()
    return f"release {version('forerun')}"


if __name__ == "__main__":
    try:
        main()
    except RequestError as error:
        sys.exit(str(error))
