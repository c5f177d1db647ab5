"""Few runs on a new cluster: a whole cluster is left out, and k runs of each of its workloads teach.

The runs of all other clusters teach whole. Of the left-out cluster's runs k of each workload teach, drawn
anew for each seed, and all its others are judged. The ways to choose the k:

* one-node: drawn among the runs on one node;
* suggested: two of these, and the others on several nodes, which `search.suggestion` chooses
  from the predictor's joint errors, without their times: what lowers the mean log variance of the
  cluster's jobs most;
* any: drawn among all runs.

A line gives the median over draws of the median absolute percentage error, the worst draw, the shares
of judged runs that were answered and that lie in the 90 % band, and the middle of the log ratio of
the band's ends. Usage: FORERUN_DATA=... python benchmarks/few_shot.py [--draws N] [--cluster NAME ...]
[--predictor NAME] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
TABLES = ("pollux", "sia")
CLUSTERS = ("rtx", "aws-t4", "quad")
WAYS = (("one-node", 3), ("suggested", 3), ("any", 3), ("any", 5),
        ("any", 8), ("any", 20))  # fmt: skip
ONE_NODE = 2  # drawn before anything is suggested
MOST_JOBS = 600  # of a cluster, whose mean variance a suggestion looks at
HEAD = ("cluster", "way", "runs a workload", "draws", "median", "worst draw", "one node",
        "several nodes", "answered", "in band", "width")  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """Median absolute error of all, one-node and several-node runs, answered, in band, log width."""

    figures: tuple[float, ...]


def chosen(way: str, count: int, here: Runs, others: Runs, predictor: Any,
           rng: np.random.Generator) -> IntArray:  # fmt: skip
    """Return positions of the runs of the cluster that teach, `count` of each workload."""
    nodes = here.table.numbers("nodes")
    kinds = here.table.texts("workload")
    asks = way == "suggested"
    drawn = min(count, ONE_NODE) if asks else count
    first = []
    for kind in sorted(set(kinds)):
        mine = np.flatnonzero((kinds == kind) & ((nodes == 1) | (way == "any")))
        first.append(rng.choice(mine, min(drawn, len(mine)), replace=False))
    taken = np.concatenate(first)
    if not asks:
        return taken
    return np.r_[taken, suggested(here, others, taken, predictor, rng, count - drawn)]


def suggested(here: Runs, others: Runs, taken: IntArray, predictor: Any,
              rng: np.random.Generator, count: int) -> IntArray:  # fmt: skip
    """Return `count` runs on several nodes of each workload, chosen without their times.

    Each choice is made knowing that those before it will be run.
    """
    fitted = predictor.fit(joined(others, here.take(taken)))
    rest = np.setdiff1d(np.arange(len(here)), taken)
    rest = rng.choice(rest, min(MOST_JOBS, len(rest)), replace=False)
    beliefs = joint_beliefs(fitted, here.jobs.take(rest))
    kinds, several = here.table.texts("workload")[rest], here.table.numbers("nodes")[rest] > 1
    picks = within_quotas(
        beliefs, np.flatnonzero(several), np.arange(len(rest)), kinds[several].tolist(),
        dict.fromkeys(kinds[several].tolist(), count),
    )  # fmt: skip
    return rest[[pick.row for pick in picks]].astype(np.int64)


def joined(first: Runs, second: Runs) -> Runs:
    """Return the runs of both: parts of one table, which is read again by position."""
    return Runs(_all(first, second), _TABLE.table.take(_places(first, second)))


def _places(first: Runs, second: Runs) -> IntArray:
    return np.r_[first.table.numbers(_PLACE), second.table.numbers(_PLACE)].astype(np.int64)


def _all(first: Runs, second: Runs) -> Any:
    return _TABLE.jobs.take(_places(first, second))


_PLACE = "place"
_TABLE: Runs


def judged(fitted: Any, rest: Runs) -> Draw:
    """Return the figures of one draw."""
    answer, seconds = fitted.predict(rest.jobs), rest.step_seconds()
    rows = np.flatnonzero(answer.answered & np.isfinite(seconds))
    low, middle, high = answer.seconds[rows].T
    truth, nodes = seconds[rows], rest.table.numbers("nodes")[rows]
    error = np.abs(middle / truth - 1.0)
    inside = (truth >= low) & (truth <= high)
    parts = [error, error[nodes == 1], error[nodes > 1]]
    medians = [float(np.median(part)) if len(part) else float("nan") for part in parts]
    answered = len(rows) / max(int(np.isfinite(seconds).sum()), 1)
    width = float(np.median(np.log(high / low)))
    return Draw((*medians, answered, float(inside.mean()), width))


def lines(runs: Runs, clusters: Sequence[str], predictor: Any, draws: int) -> Iterator[str]:
    """Yield the report's lines."""
    labels = runs.table.texts("cluster")
    for cluster in clusters:
        here, others = runs.take(labels == cluster), runs.take(labels != cluster)
        for way, count in WAYS:
            if way == "suggested" and not (here.table.numbers("nodes") > 1).any():
                continue
            found = []
            for seed in range(draws):
                rng = np.random.default_rng(seed)
                teach = chosen(way, count, here, others, predictor, rng)
                rest = np.setdiff1d(np.arange(len(here)), teach)
                fitted = predictor.fit(joined(others, here.take(teach)))
                found.append(judged(fitted, here.take(rest)).figures)
            yield _line(cluster, way, count, np.array(found))


def _line(cluster: str, way: str, count: int, found: FloatArray) -> str:
    middle, worst = np.median(found, axis=0), found[:, 0].max()
    cells = [cluster, way, str(count), str(len(found)), f"{middle[0]:.1%}", f"{worst:.1%}"]
    cells += ["-" if np.isnan(value) else f"{value:.1%}" for value in middle[1:3]]
    cells += [f"{middle[3]:.0%}", f"{middle[4]:.0%}", f"{middle[5]:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the report as Markdown."""
    global _TABLE  # noqa: PLW0603 (what `joined` reads parts of)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictor", default="hierarchical")
    parser.add_argument("--cluster", nargs="*", default=CLUSTERS)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = measured_folder()
    runs = runs_of([folder / f"{table}.csv" for table in TABLES], load_catalog())
    _TABLE = Runs(
        runs.jobs, runs.table.with_columns(**{_PLACE: np.arange(len(runs), dtype=np.float64)})
    )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    text = [f"# Few runs on a new cluster, {today}", "", f"`python {' '.join(sys.argv)}`", "",
            f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]  # fmt: skip
    print("\n".join(text))
    made = load("predictors", options.predictor)()
    for line in lines(_TABLE, options.cluster, made, options.draws):
        print(line, flush=True)
        text.append(line)
    if options.out:
        options.out.write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
