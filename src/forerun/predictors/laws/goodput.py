"""Goodput: the throughput law of Pollux, seven parameters for each kind of job.

Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (OSDI 2021),
as its own code fits it (adaptdl.goodput). Throughput alone: how many samples a model needs is
another question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.goodput_cost import Timings
from forerun.predictors.laws.goodput_law import TERMS, GoodputLaw, answers, fitted_laws
from forerun.predictors.laws.goodput_step import Steps
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import (
    Answers,
    Columns,
    Group,
    TooFewError,
    laws_of,
    part_of,
)
from forerun.predictors.laws.law_rows import LawRows, chosen_size
from forerun.predictors.laws.resources import Read, Resources, Span
from forerun.predictors.laws.resources import spans as spans_of

LEAST_POINTS = 3
# Columns of what a worker is given, 0 where a row does not say.
GIVEN = ("speed", "wire")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Goodput(GroupedLaws[GoodputLaw]):
    """step = (passes - 1) C + (C^g + N^g)^(1/g), C = a_c + b_c micro_batch.

    N is 0 on one device, a_r + b_r (devices - 2) within a node and a_n + b_n (devices - 2) on
    several nodes, however uneven the placement: of an uneven one only that it leaves its node
    counts, as in Pollux. An epoch or a run is its steps, dataset_size / global_batch of them; an
    unknown number of epochs is part of the parameters then.

    Runs that differ in the cores of a worker or in the rate of the network are of one law: passes go
    with the speed that cores are believed to have (`Resources.log_speed`), the reduction between nodes
    with the rate. Pollux has neither.

    Where runs have a sync_time_s, the rest of their step teaches C. What no run speaks of stays at
    an optimistic prior (a free growth with devices, a network between nodes little slower than
    within one); the band is wide there.
    """

    name = "goodput"
    terms = TERMS
    needed = (
        f"at least {LEAST_POINTS} runs that differ in devices, nodes or micro_batch, on two numbers "
        "of devices or more"
    )
    also_measured = ("sync_time_s",)
    version = 4
    apart = False

    def size_of(self, rows: LawRows) -> str:
        """Return micro_batch for steps, where runs state it; what epochs or runs go through."""
        if self.quantity != "step":
            return chosen_size(rows, self.quantity)
        stated = np.isfinite(rows.micro_batch)
        return "micro_batch" if 2 * np.count_nonzero(stated) >= len(stated) else ""

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return devices, nodes and passes of n jobs, and of an epoch or a run its batches."""
        devices = np.where(rows.machines > 0, rows.machines, np.nan)
        nodes = np.where(np.isnan(rows.placements.nodes), 1.0, rows.placements.nodes)
        together = np.where(rows.sync == PS_ASYNC, np.nan, 1.0)
        columns = {
            "devices": devices, "nodes": nodes, "passes": rows.accumulation, "together": together,
            **_given(rows),
        }  # fmt: skip
        if self.quantity != "step":
            micro = rows.size("micro_batch")
            batch = rows.size("global_batch")
            implied = micro * rows.replicas * rows.accumulation
            columns["micro_batch"] = micro
            columns["global_batch"] = np.where(np.isnan(batch), implied, batch)
        return columns

    def unsaid(self, column: str) -> str:
        """Return why a job is declined that does not say a column."""
        if column == "together":
            return "the row says no step that workers take together (its servers are asynchronous)"
        return super().unsaid(column)

    def group_laws(self, groups: Sequence[Group]) -> list[GoodputLaw | TooFewError]:
        """Return the law of each kind of runs, all fitted at once, or why it has none."""
        micro = "size" if self.quantity == "step" else "micro_batch"
        names = ("devices", "nodes", "passes", micro, *GIVEN)
        return laws_of(groups, names, LEAST_POINTS, self._fitted_to)

    def _fitted_to(self, groups: Sequence[Group]) -> list[GoodputLaw]:
        given, timings, nodes = [], [], []
        for group in groups:
            alone = np.zeros(len(group.seconds), dtype=np.int64)
            spans = [spans_of(_stated(group.columns, name), alone, 1)[0] for name in GIVEN]
            read = _read(group.columns, alone, [spans])
            told = np.flatnonzero(~(read[0].ambiguous | read[1].ambiguous))
            part = replace(
                group, columns=part_of(group.columns, told), seconds=group.seconds[told],
                measured=part_of(group.measured, told),
            )  # fmt: skip
            given.append((spans[0], spans[1]))
            timings.append(self._timings(part, _read(part.columns, alone[told], [spans])))
            nodes.append(part.columns["nodes"])
        return fitted_laws(timings, nodes, [group.size for group in groups], given)

    def _timings(self, group: Group, given: Sequence[Read]) -> Timings:
        """Return how long the steps of one kind took, and what is known of their passes."""
        steps, count = self._steps(group.columns, given)
        seconds, sync = group.seconds / count, group.measured["sync_time_s"]
        alone = steps.devices == 1
        # What is not the reduction that was measured is passes.
        reduction = np.where(alone, 0.0, sync if self.quantity == "step" else np.nan)
        passes = np.where(alone | (reduction > 0), seconds - reduction, np.nan) / steps.passes
        return Timings(steps, seconds, np.where(passes > 0, passes, np.nan))

    def _steps(self, columns: Columns, given: Sequence[Read]) -> tuple[Steps, FloatArray]:
        """Return what the steps of n jobs are made of, and how many there are of them, (n,)."""
        between = (columns["nodes"] > 1).astype(np.float64)
        if self.quantity == "step":
            micro, count = columns["size"], np.ones_like(between)
        else:
            micro, count = columns["micro_batch"], columns["size"] / columns["global_batch"]
        if self.quantity == "epoch":
            count = np.ceil(count * (1.0 - _ROUNDING))  # the last step of a pass has what is left
        speed = np.exp(given[0].offset)
        rate = np.where(between > 0, np.exp(given[1].offset), 1.0)
        return Steps(micro, columns["passes"], columns["devices"], between, speed, rate), count

    def answers(self, laws: list[GoodputLaw], index: IntArray, columns: Columns) -> Answers:
        """Return seconds, the three terms and doublings of n jobs."""
        given = _read(columns, index, [[law.speeds, law.wires] for law in laws])
        steps, count = self._steps(columns, given)
        one = answers(laws, index, steps, columns["nodes"], given)
        if self.quantity == "step":
            return one
        return Answers(one.seconds * count[:, None], one.parts * count[:, None], one.beyond)

    def law_of(self, entry: Mapping[str, Any]) -> GoodputLaw:
        """Return a law from its saved fields."""
        shapes = {"theta": (7,), "covariance": (7, 7), "intervals": (7, 2), "free": (7,)}
        arrays = {name: np.array(entry[name], dtype=float) for name in shapes}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("a law has seven parameters")
        names = ("reach", "machines", "micro_batches", "nodes")
        pairs = {name: tuple(map(float, entry[name])) for name in names}
        spans = {
            name: None if entry[name] is None else tuple(map(float, entry[name]))
            for name in ("speeds", "wires")
        }
        return GoodputLaw(**{**entry, **pairs, **arrays, **spans, "notes": tuple(entry["notes"])})


def _given(rows: LawRows) -> dict[str, FloatArray]:
    """Return speed of a device and GB/s of the network of n jobs, 0 where not said, (n,) each."""
    resources = Resources(rows)
    said = (resources.log_speed, resources.log_wire)
    return {n: np.nan_to_num(np.exp(v)) for n, v in zip(GIVEN, said, strict=True)}


def _stated(columns: Columns, name: str) -> FloatArray:
    """Return logs of one of `GIVEN`, (n,), NaN where not said."""
    return np.log(np.where(columns[name] > 0, columns[name], np.nan))


def _read(
    columns: Columns, index: IntArray, known: Sequence[Sequence[Span | None]]
) -> tuple[Read, Read]:
    """Return what n jobs are given, as the laws that answer each read it; known: spans of each law."""
    first, second = (
        Read.of(_stated(columns, name), index, [spans[i] for spans in known])
        for i, name in enumerate(GIVEN)
    )
    return first, second
