"""PsSaturation: training with parameter servers, whose rate workers can exceed.

More workers help until the servers take no more; from few workers the point where they stop is
barely known, and the band is wide beyond them. After Li et al., Speeding up Deep Learning with
Transient Servers (CM-DARE, ICAC 2019), whose measured rates saturate so; the p-norm is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import PS_ASYNC, PS_SYNC
from forerun.predictors.laws.grouped import GroupedLaws
from forerun.predictors.laws.grouping import Answers, Columns, Group, TooFewError, laws_of
from forerun.predictors.laws.law_rows import GROUP, SETTINGS, LawRows, chosen_size
from forerun.predictors.laws.ps_fit import fitted
from forerun.predictors.laws.ps_law import TERMS, PsLaw, answers, law_of_fit
from forerun.predictors.laws.ps_step import SERVER, STALE, Updates

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEAST_POINTS = 3
INSTANCE = len(GROUP) + SETTINGS.index("instance_type")


@dataclass(frozen=True)
class PsSaturation(GroupedLaws[PsLaw]):
    """Asynchronous: ((W / K)^p + S^p)^(1/p) an update; synchronous: W (slowest of K) + K S a step.

    W = a + b micro_batch is a worker's update, S one server's share of it; a row that says no
    number of servers has one. An epoch is dataset_size / micro_batch updates, which synchronous
    workers make K at a time; a run to a target needs K^stale times as many, stale learned.
    """

    name = "ps-saturation"
    terms = TERMS
    needed = (
        f"at least {LEAST_POINTS} runs with sync ps-async or ps-sync that differ in devices, "
        "parameter_servers or micro_batch, on two numbers of devices or more"
    )

    def size_of(self, rows: LawRows) -> str:
        """Return micro_batch for steps, where runs state it; what epochs or runs go through."""
        if self.quantity != "step":
            return chosen_size(rows, self.quantity)
        stated = np.isfinite(rows.micro_batch)
        return "micro_batch" if 2 * np.count_nonzero(stated) >= len(stated) else ""

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return devices, servers and waiting of n jobs, and the micro-batch of epochs and runs."""
        servers = (rows.sync == PS_SYNC) | (rows.sync == PS_ASYNC)
        waits = np.where(servers, (rows.sync == PS_SYNC).astype(np.float64), np.nan)
        columns = {
            "devices": np.where(rows.machines > 0, rows.machines, np.nan),
            "servers": np.where(np.isnan(rows.servers), 1.0, rows.servers),
            "waits": waits,
        }
        if self.quantity != "step":
            columns["micro_batch"] = rows.size("micro_batch")
        return columns

    def unsaid(self, column: str) -> str:
        """Return why a job is declined that does not say a column."""
        if column == "waits":
            return "the row says no sync with parameter servers (ps-async or ps-sync)"
        return super().unsaid(column)

    def group_laws(self, groups: Sequence[Group]) -> list[PsLaw | TooFewError]:
        """Return the law of each kind of runs, all fitted at once, or why it has none."""
        micro = "size" if self.quantity == "step" else "micro_batch"
        return laws_of(groups, ("devices", "servers", micro), LEAST_POINTS, self._fitted_to)

    def _fitted_to(self, groups: Sequence[Group]) -> list[PsLaw]:
        jobs = [self._updates(group.columns) for group in groups]
        kinds = [group.kind for group in groups]
        pools = {
            # Servers are the same whatever device the workers have.
            SERVER: [" ".join((kind[0], *kind[2:])) for kind in kinds],
            # How many more updates many workers need hangs on the training, not on the machines.
            STALE: [
                " ".join((kind[0], *kind[2:INSTANCE], *kind[INSTANCE + 1 :])) for kind in kinds
            ],
        }
        found = fitted(jobs, [np.log(group.seconds) for group in groups], pools)
        return [law_of_fit(f, j, g.size) for f, j, g in zip(found, jobs, groups, strict=True)]

    def _updates(self, columns: Columns) -> Updates:
        """Return what n jobs are made of."""
        one = np.ones_like(columns["devices"])
        if self.quantity == "step":
            micro, count, many = columns["size"], 0 * one, 0 * one
        else:
            micro, many = columns["micro_batch"], one
            count = np.log(columns["size"] / micro)
        return Updates(micro, columns["devices"], columns["servers"], columns["waits"], count, many)

    def answers(self, laws: list[PsLaw], index: IntArray, columns: Columns) -> Answers:
        """Return seconds, the two terms and doublings of n jobs."""
        return answers(laws, index, self._updates(columns))

    def law_of(self, entry: Mapping[str, Any]) -> PsLaw:
        """Return a law from its saved fields."""
        shapes = {"theta": (7,), "covariance": (7, 7), "intervals": (7, 2)}
        arrays = {name: np.array(entry[name], dtype=float) for name in shapes}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("a law has seven parameters")
        names = ("reach", "machines", "micro_batches", "servers", "waits")
        pairs = {name: tuple(map(float, entry[name])) for name in names}
        return PsLaw(**{**entry, **pairs, **arrays, "notes": tuple(entry["notes"])})
