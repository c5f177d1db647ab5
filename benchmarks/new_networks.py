"""New networks: whole networks, or families, are left out, and physics, its correction and `auto` forecast them.

Each case is a table, thinned, whose groups are left out part by part; `quarters` leaves random configurations out in
place of groups, where `auto` also chooses among laws. Prints a row a case and predictor: median and mean error, the
share inside the 5-95 % band, and its width. Some
tables are read as published, where labels may mean other networks than the zoo's; the others as the converters do.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from converters import measured_folder

from forerun.catalog import load_catalog
from forerun.predictors.choice import Auto
from forerun.predictors.options import PRIORS, started
from forerun.tables import Runs, configurations, read_table, sorted_runs
from forerun.workloads.rows import runs_from_table

PHYSICS = ("analytic", "residual")
QUARTERS = "random quarters"


class Case(NamedTuple):
    """A table, what is left out, in how many parts, of how many rows, and whether labels are as published."""

    table: str
    by: str
    parts: int
    rows: int
    raw: bool = False


CASES = (
    Case("pytorch_gpu_benchmark", "workload", 4, 1200), Case("timm", "family", 5, 1500),
    Case("profet", "workload", 20, 1200, True), Case("dlperf", "workload", 5, 1200, True),
    Case("profet", "workload", 5, 1200), Case("mlperf", "workload", 5, 1200),
    Case("pytorch_gpu_benchmark", QUARTERS, 4, 500), Case("llm_foundry", QUARTERS, 4, 400),
    Case("nvidia_nemo", QUARTERS, 4, 400), Case("lambda", QUARTERS, 2, 2000),
)  # fmt: skip


def runs_of(case: Case) -> Runs:
    """Return a case's runs that ended with a step time, and, but for quarters, that physics answers."""
    folder = Path(os.environ["FORERUN_DATA"]) / "runs" if case.raw else measured_folder()
    runs = sorted_runs(runs_from_table(read_table(folder / f"{case.table}.csv"), load_catalog()))
    ready = np.isfinite(runs.step_seconds())
    if case.by != QUARTERS:
        physics = started("analytic", PRIORS)
        ready &= np.array([reason is None for reason in physics.declines(runs.jobs)])
    runs = runs.take(np.flatnonzero(ready))
    return runs.take(np.sort(np.random.default_rng(0).permutation(len(runs))[: case.rows]))


def judged(case: Case) -> Iterator[str]:
    """Yield a row for each predictor; of quarters the first half of the parts is judged."""
    runs = runs_of(case)
    quarters = case.by == QUARTERS
    groups = configurations(runs.table)[1].astype(str) if quarters else runs.table.texts(case.by)
    order = np.random.default_rng(5 if quarters else 1).permutation(np.unique(groups))
    parts = min(case.parts, len(order))
    names = (*PHYSICS, "hierarchical", "gaussian", "roofline") if quarters else PHYSICS
    found: dict[str, list[np.ndarray]] = {}
    for part in range(parts // 2 if quarters else parts):
        out = np.isin(groups, order[part::parts])
        fitted = Auto(PRIORS, names=names).fit(runs.take(np.flatnonzero(~out)))
        asked, truth = runs.take(np.flatnonzero(out)), runs.step_seconds()[out]
        members = fitted.chosen[0].members.fitted
        by = {name: members[name] for name in PHYSICS if name in members} | {"auto": fitted}
        for name, predictor in by.items():
            said = predictor.predict(asked.jobs).seconds
            inside = (said[:, 0] <= truth) & (truth <= said[:, 2])
            columns = np.abs(said[:, 1] / truth - 1.0), inside, said[:, 2] / said[:, 0]
            found.setdefault(name, []).append(np.stack(columns))
    for name, pieces in found.items():
        columns = np.concatenate(pieces, axis=1)
        error, inside, width = columns[:, np.isfinite(columns[0])]
        yield (
            f"| {case.table}{' as published' if case.raw else ''} | {case.by} | {name} | {len(error):,} |"
            f" {100 * np.median(error):.1f} % | {100 * error.mean():.1f} % | {100 * inside.mean():.0f} % |"
            f" {np.median(width):.2f}x |"
        )


def main() -> None:
    """Print the cases that are asked for, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of tables, with commas")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        "| table | left out | predictor | judged | median | mean | inside | width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for case in CASES:
        if not options.only or case.table in options.only.split(","):
            for line in judged(case):
                print(line, flush=True)
                lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
