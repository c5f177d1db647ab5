"""Ernest: time by the work a machine has and the number of machines, learned from a few runs.

Venkataraman et al., Ernest: Efficient Performance Prediction for Large-Scale Advanced Analytics
(NSDI 2016). It knows one workload on one kind of machine at a time, and of a plan nothing but the
devices and the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.ernest_law import (
    LEAST_POINTS,
    TERMS,
    ErnestLaw,
    answers,
    features,
    fitted_law,
)
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import Answers, Columns, Group, too_few
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.tables import Jobs


@dataclass(frozen=True)
class Ernest(GroupedLaws[ErnestLaw]):
    """seconds = theta . [1, size / machines, log(machines), machines], theta >= 0.

    Machines are devices. The size is what the timed work goes through: the dataset of an epoch or
    of a whole run, the global batch of a step (the dataset where runs state no batch, or change
    the dataset alone).
    """

    name = "ernest"
    terms = TERMS
    needed = (
        f"at least {LEAST_POINTS} runs that differ in devices or in size, on two numbers of "
        "devices or more"
    )

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return the devices of n jobs; the size is that of the law."""
        return {"devices": np.where(rows.machines > 0, rows.machines, np.nan)}

    def group_law(self, group: Group) -> ErnestLaw:
        """Return the law of the runs of one kind. Raises TooFewError where too few of them differ."""
        points = group.points("size", "devices")
        if points < LEAST_POINTS:
            raise too_few(points)
        return fitted_law(
            group.columns["size"], group.columns["devices"], group.seconds, group.size
        )

    def answers(self, laws: list[ErnestLaw], index: IntArray, columns: Columns) -> Answers:
        """Return seconds, the four terms and doublings of n jobs."""
        return answers(laws, index, features(columns["size"], columns["devices"]))

    def law_of(self, entry: Mapping[str, Any]) -> ErnestLaw:
        """Return a law from its saved fields."""
        pairs = {name: tuple(map(float, entry[name])) for name in ("reach", "machines", "share")}
        shapes = {"theta": (4,), "covariance": (4, 4), "intervals": (4, 2)}
        arrays = {name: np.array(entry[name], dtype=float) for name in shapes}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("a law has four terms")
        return ErnestLaw(**{**entry, **pairs, **arrays, "notes": tuple(entry["notes"])})

    def linear_features(self, jobs: Jobs) -> FloatArray:
        """Return the four terms of n jobs, (n, 4), in which the law is linear; NaN where unsaid.

        The size of a job is that of its law; where it has none, the usual size of what is
        predicted, or 1 where the job states none.
        """
        rows = LawRows(jobs, self.quantity)
        size = self._sizes(rows, list(self.laws.values()), self._chosen(rows))
        for name in (*SIZES[self.quantity], ""):
            size = np.where(np.isnan(size), rows.size(name), size)
        return features(size, self.columns(rows)["devices"])
