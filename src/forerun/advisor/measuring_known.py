"""Measuring, known: what the advisor knows of a campaign's points beside what they ask, or why not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from forerun.domain.plan import Plan
from forerun.domain.plan_columns import PlanColumns
from forerun.errors import ForerunError
from forerun.measure.campaign import Point
from forerun.measure.carrying import Carrier
from forerun.tables import Jobs

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor
    from forerun.domain.hardware import Cluster
    from forerun.domain.workload import Workload

_OWN = ("accumulate",)  # settings of the loop that leave the traced graph of a sample as it is
_NAMED = 4  # entries that one note names


@dataclass(frozen=True, slots=True)
class Untold:
    """What is not known of a point, and why.

    Attributes:
        name: what it is about, an entry; "" where the reason says it all.
        why: in words; with a name, the reason alone.
    """

    name: str
    why: str


def in_words(untold: Iterable[Untold]) -> list[str]:
    """Return what is not known as sentences, each said once, what shares its reason in one."""
    by_reason: dict[str, list[str]] = {}
    for one in untold:
        names = by_reason.setdefault(one.why, [])
        if one.name and one.name not in names:
            names.append(one.name)
    return [_sentence(why, names) for why, names in by_reason.items()]


def _sentence(why: str, names: Sequence[str]) -> str:
    if not names:
        return why
    few = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    is_, their = ("is", "its") if len(names) == 1 else ("are", "their")
    return f"{few}{more} {is_} not traced ({why}): {their} runs are kept by their label alone"


@dataclass(frozen=True)
class Known:
    """What is known of a point beyond its row: the workload traced, and its cluster's figures.

    Attributes:
        workload, cluster: None where they cannot be told, with the reasons in `why`.
        placement: workers on each host that is used.
    """

    workload: Workload | None = None
    cluster: Cluster | None = None
    placement: tuple[int, ...] = ()
    why: tuple[Untold, ...] = ()

    def columns(self) -> dict[str, object]:
        """Return what the row gains by it: nodes, placement, and the workload's totals."""
        row: dict[str, object] = {}
        if self.placement:
            row["nodes"] = len(self.placement)
            if len(set(self.placement)) == 1:
                row["devices_per_node"] = self.placement[0]
            row["placement"] = "-".join(map(str, self.placement))
        if self.workload is not None:
            row |= {
                "params": self.workload.params,
                "gmacs": self.workload.graph.forward_flops / 2e9,
            }
        return row

    def jobs(self, point: Point) -> Jobs | None:
        """Return the point's job as far as it is known whole, None where nothing is."""
        if self.workload is None and self.cluster is None:
            return None
        task = point.task
        passes = int(task.settings.get("accumulate", 1))
        plan = Plan(
            dp=task.workers,
            micro_batch=max(task.batch // passes, 1),
            global_batch=task.global_batch,
        )
        workloads = () if self.workload is None else (_of_size(self.workload, task.dataset_size),)
        clusters = () if self.cluster is None else (self.cluster,)
        return Jobs(
            workloads, clusters, np.array([len(workloads) - 1], dtype=np.int32),
            np.array([len(clusters) - 1], dtype=np.int32), PlanColumns.of([plan]),
        )  # fmt: skip


def known_of(points: Sequence[Point], advisor: Advisor, runner: Carrier) -> dict[str, Known]:
    """Return what is known of each point, by its key; a module is traced once for each precision."""
    traced: dict[tuple[str, ...], Workload | Untold] = {}
    clusters: dict[tuple[str, tuple[int, ...]], Cluster | Untold | None] = {}
    found = {}
    for point in points:
        task = point.task
        counts = runner.placement(task)
        model = (task.entry, task.precision, task.optimizer, repr(sorted(task.settings.items())))
        if model not in traced:
            traced[model] = _workload(point, advisor)
        label = str(point.asked.get("device", ""))
        if (label, counts) not in clusters:
            clusters[label, counts] = _cluster(advisor, label, counts)
        workload, cluster = traced[model], clusters[label, counts]
        why = tuple(one for one in (workload, cluster) if isinstance(one, Untold))
        found[point.key] = Known(
            None if isinstance(workload, Untold) else workload,
            None if isinstance(cluster, Untold) else cluster,
            counts, why,
        )  # fmt: skip
    return found


def _workload(point: Point, advisor: Advisor) -> Workload | Untold:
    """Return the workload of a point's entry under the name that its rows have, or why not."""
    task = point.task
    own = sorted(set(task.settings) - set(_OWN))
    if task.is_script or own:
        what = "a script" if task.is_script else f"the settings {', '.join(own)} may change it"
        return Untold(task.entry, what)
    try:
        workload = advisor.workload(
            task.entry, precision=task.precision, optimizer=task.optimizer, framework="pytorch"
        )
    except ForerunError as error:
        return Untold(task.entry, error.found)
    return replace(workload, name=str(point.asked["workload"]))


def _cluster(
    advisor: Advisor, label: str, counts: tuple[int, ...]
) -> Cluster | Untold | None:  # fmt: skip
    """Return the cluster of a device on which so many workers lie, or why it is not known.

    None where hosts have unequal numbers of workers: the placement says it all.
    """
    if not label:
        return Untold(
            "", "no device is named: runs are kept without one; `forerun probe --out mine.yaml`"
            " makes one of this machine, for --catalog and the campaign's device",
        )  # fmt: skip
    if not counts:
        return Untold(
            "", "how workers will lie on the nodes is not known: runs are kept without a placement"
        )
    if len(set(counts)) > 1:
        return None
    try:
        return advisor.cluster(f"{len(counts)}x{counts[0]}x{label}")
    except ForerunError as error:
        meant = f" ({error.next_step})" if error.next_step.startswith("did you mean") else ""
        return Untold(
            "", f"{error.asked}: {error.found}{meant}; its runs are kept by that label alone"
        )


def _of_size(workload: Workload, dataset_size: int) -> Workload:
    return replace(workload, dataset_size=float(dataset_size)) if dataset_size else workload
