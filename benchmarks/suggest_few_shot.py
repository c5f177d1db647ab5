"""Few runs on a new cluster, all of them chosen by the rule of `forerun suggest`.

A whole cluster of pollux or sia is left out; the runs of the others teach. The first run there is the
smallest: the fewest devices, and of these the smallest batch. It is all that is
known of the cluster's times when the others are chosen, by what the predictor then believes of its jobs:
each time the run that lowers the mean log variance of the cluster's jobs most, within the quota of runs
on one node and on several. The candidates are so many rows of each
workload and kind, drawn with a seed; all rows that were not chosen are judged.

Usage: FORERUN_DATA=... python benchmarks/suggest_few_shot.py [--draws N] [--predictor NAME] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from converters import measured_folder
from numpy.typing import NDArray
from quotas import within_quotas

from forerun.advisor.given_runs import runs_of
from forerun.catalog import load_catalog
from forerun.registry import load
from forerun.search.suggestion import joint_beliefs
from forerun.tables import Runs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
CLUSTERS = ("rtx", "aws-t4", "quad")
# Runs of each workload: on one node, on several; None where either kind is as good.
WAYS: Mapping[str, tuple[int, int] | int] = {
    "3, all on one node": (3, 0), "3, one of them multi-node": (2, 1), "8": 8, "20": 20,
}  # fmt: skip
CANDIDATES, ASKED = 60, 500
HEAD = ("cluster", "runs a workload", "draws", "median", "worst draw", "one node", "several nodes",
        "in band", "width")  # fmt: skip


def shots(
    here: Runs, teach: Callable[[IntArray], Any], way: tuple[int, int] | int,
    rng: np.random.Generator,
) -> IntArray:  # fmt: skip
    """Return positions of the runs of a cluster to make, by what a predictor believes of it.

    Args:
        here: the cluster's runs. teach: from positions in it to the predictor that knows them.
        way: see `WAYS`. rng: draws the candidates.
    """
    kinds, several = here.table.texts("workload"), here.table.numbers("nodes") > 1
    drawn: list[IntArray] = []
    for kind in sorted(set(kinds)):
        for multi in (False, True):
            rows = np.flatnonzero((kinds == kind) & (several == multi))
            drawn.append(rng.choice(rows, min(CANDIDATES, len(rows)), replace=False))
    candidates = np.concatenate(drawn)
    sizes = np.stack([here.table.numbers(n)[candidates] for n in ("global_batch", "devices")])
    first = int(np.lexsort(sizes)[0])
    asked = rng.choice(len(here), min(ASKED, len(here)), replace=False)
    both = np.r_[candidates, asked]
    beliefs = joint_beliefs(teach(candidates[[first]]), here.jobs.take(both)).after(first)
    labels: list[Any] = [
        kinds[i] if isinstance(way, int) else (kinds[i], bool(several[i])) for i in candidates
    ]
    quota = {label: way if isinstance(way, int) else way[label[1]] for label in labels}
    quota[labels[first]] -= 1
    rest = np.delete(np.arange(len(candidates)), first)
    picks = within_quotas(
        beliefs, rest, np.arange(len(candidates), len(both)), [labels[i] for i in rest], quota
    )
    return candidates[[first, *(pick.row for pick in picks)]]


def judged(fitted: Any, rest: Runs) -> list[float]:
    """Return median errors of all, one-node and several-node runs, share in band, log width."""
    answer, seconds = fitted.predict(rest.jobs), rest.step_seconds()
    rows = np.flatnonzero(answer.answered & np.isfinite(seconds))
    low, middle, high = answer.seconds[rows].T
    truth, nodes = seconds[rows], rest.table.numbers("nodes")[rows]
    error = np.abs(middle / truth - 1.0)
    parts = [error, error[nodes == 1], error[nodes > 1]]
    medians = [float(np.median(part)) if len(part) else float("nan") for part in parts]
    inside = (truth >= low) & (truth <= high)
    return [*medians, float(inside.mean()), float(np.median(np.log(high / low)))]


def lines(runs: Runs, predictor: Any, draws: int) -> Iterator[str]:
    """Yield the rows of the report."""
    labels = runs.table.texts("cluster")
    for cluster in CLUSTERS:
        mine, others = np.flatnonzero(labels == cluster), np.flatnonzero(labels != cluster)
        here = runs.take(mine)

        def teach(taken: IntArray, mine: IntArray = mine, others: IntArray = others) -> Any:
            return predictor.fit(runs.take(np.r_[others, mine[taken]]))

        for name, way in WAYS.items():
            if way == (2, 1) and not (here.table.numbers("nodes") > 1).any():
                continue
            figures = []
            for seed in range(draws):
                taken = shots(here, teach, way, np.random.default_rng(seed))
                fitted = teach(taken)
                rest = here.take(np.setdiff1d(np.arange(len(here)), taken))
                figures.append(judged(fitted, rest))
            middle = np.median(figures, axis=0)
            cells = [
                f"{100 * v:.1f}%" for v in (middle[0], max(f[0] for f in figures), *middle[1:3])
            ]
            ends = [f"{100 * middle[3]:.0f}%", f"{middle[4]:.2f}"]
            yield f"| {' | '.join([cluster, name, str(draws), *cells, *ends])} |"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--predictor", default="hierarchical")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not os.environ.get("FORERUN_DATA"):
        print("FORERUN_DATA names no folder of measured runs: nothing is measured")
        return 0
    files = [measured_folder() / f"{table}.csv" for table in ("pollux", "sia")]
    runs = runs_of(files, load_catalog())
    head = ["# Few runs on a new cluster, chosen by the rule of `forerun suggest`", "",
            f"`python benchmarks/suggest_few_shot.py --draws {options.draws}`, predictor"
            f" {options.predictor}. Median over draws of the candidates ({CANDIDATES} of each workload,"
            " on one node and on several). Asked: three runs an app, one of them multi-node, at most"
            " 8 %; 8 runs 5.5 %; 20 runs 4.5 %.", "",
            f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]  # fmt: skip
    print("\n".join(head), flush=True)
    body = []
    for line in lines(runs, load("predictors", options.predictor)(), options.draws):
        print(line, flush=True)
        body.append(line)
    if options.out is not None:
        options.out.write_text("\n".join([*head, *body, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
