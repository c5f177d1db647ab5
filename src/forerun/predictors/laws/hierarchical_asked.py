"""n jobs asked of a fitted hierarchical law: who serves each, and the law's answer, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import is_none
from forerun.predictors.laws.hierarchical_law import COUNT, LawInputs, Outcome, evaluate_law
from forerun.predictors.laws.hierarchical_model import OTHER_SETTINGS, Model, Served
from forerun.predictors.laws.hierarchical_rows import HierarchicalRows
from forerun.predictors.laws.resources import Read

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CHUNK = 16384
# Log standard deviation, and distance, of each doubling of devices, nodes, batch or resources beyond the runs.
GROWTH_SIGMA, GROWTH_DISTANCE = 0.05, 0.2
_UNFITTED = (
    "hierarchical answers from runs alone and was given none; give at least 3 data-parallel runs"
)


@dataclass(frozen=True)
class Part:
    """Some of the jobs that one group serves: their positions and what the law reads of them."""

    served: Served
    rows: IntArray
    x: LawInputs


@dataclass(frozen=True)
class Asked:
    """Jobs asked of a model, or of none."""

    model: Model | None
    rows: HierarchicalRows

    @cached_property
    def served(self) -> tuple[list[Served | str], IntArray]:
        """How each distinct pair of app and cluster is answered, and which each job is, (n,)."""
        names, index = self.rows.names
        if self.model is None:
            return [_UNFITTED for _ in names], index
        return [self.model.serve(app, cluster) for app, cluster in names], index

    @cached_property
    def declined(self) -> NDArray[np.object_]:
        """Why each job has no answer, or None, (n,)."""
        found, index = self.served
        reasons = np.array([one if isinstance(one, str) else None for one in found] + [None])
        result = reasons.astype(object)[index].copy()
        open_rows = is_none(result)
        result[open_rows] = self.rows.sided[open_rows]
        if self.model is not None:
            open_rows = is_none(result) & self._batched & np.isnan(self.rows.micro_batch)
            result[open_rows] = "the row says no batch, and the runs of its workload do"
            for beyond, words in self._unseen():
                result[is_none(result) & beyond] = words
        return result

    def _unseen(self) -> Iterator[tuple[NDArray[np.bool_], str]]:
        """Yield which jobs need what no run of any app taught, and that in words."""
        assert self.model is not None
        groups = self.model.groups
        if all(group.devices <= 1 for group in groups):
            yield (
                self.rows.law_rows.machines > 1,
                "its runs are all on one device, and this is more; run it on two",
            )
        if all(group.nodes <= 1 for group in groups):
            yield (
                (self.rows.nodes_and_busy[0] > 1) & ~self.rows.linked,
                "no run is on several nodes and nothing says how they are linked; run it on two, or "
                "state the interconnect",
            )

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Which jobs have an answer, (n,)."""
        return is_none(self.declined)

    @cached_property
    def groups(self) -> IntArray:
        """Which group serves each job, (n,), -1 for none."""
        found, index = self.served
        return np.array([-1 if isinstance(s, str) else s.group for s in found] + [-1])[index]

    @property
    def _batched(self) -> NDArray[np.bool_]:
        assert self.model is not None
        flags = [group.batch is not None for group in self.model.groups]
        return np.array([*flags, False])[self.groups]

    def chunks(self) -> Iterator[Part]:
        """Yield the answered jobs, each part served by one group."""
        if self.model is None:
            return
        found, index = self.served
        rows = np.flatnonzero(self.answered)
        # Of 16 bits they are sorted by radix, many times faster.
        small = index[rows].astype(np.uint16 if len(found) < 65536 else np.int64)
        rows = rows[np.argsort(small, kind="stable")]
        inputs = self.inputs
        if not len(rows):
            return
        edges = np.flatnonzero(np.r_[True, index[rows][1:] != index[rows][:-1]])
        for start, end in pairwise([*edges.tolist(), len(rows)]):
            served = found[index[rows[start]]]
            assert isinstance(served, Served)
            for low in range(start, end, CHUNK):
                mine = rows[low : min(low + CHUNK, end)]
                yield Part(served, mine, inputs.take(mine))

    @cached_property
    def inputs(self) -> LawInputs:
        """What the law reads of all jobs; rows that are declined hold ones."""
        assert self.model is not None
        spans = [group.batch for group in self.model.groups]
        low = np.array([s[0] if s else 0.0 for s in spans] + [0.0])
        width = np.array([max(s[1] - s[0], 0.3) if s else 1.0 for s in spans] + [1.0])
        batch = np.where(self._batched, self.rows.micro_batch, 1.0)
        batch = np.where(np.isnan(batch), 1.0, batch)
        place = (np.log(batch) - low[self.groups]) / width[self.groups]
        return self.rows.inputs(place, batch, self._cores.values, self._wire.values)

    @cached_property
    def _cores(self) -> Read:
        """The cores of each job's workers, as the runs of its group speak of them."""
        assert self.model is not None
        known = [group.cores for group in self.model.groups]
        return Read.of(self.rows.resources.log_cores, self.groups, known)

    @cached_property
    def _wire(self) -> Read:
        """The wire of each job, as the runs on its cluster speak of it."""
        assert self.model is not None
        found, index = self.served
        known = [None if isinstance(s, str) else self.model.wire(s) for s in found]
        return Read.of(self.rows.resources.log_wire, index, known)

    @cached_property
    def _unsure(self) -> FloatArray:
        """Log standard deviation of what rows do not say of resources, or no run did, (n,)."""
        several = self.rows.law_rows.machines > 1
        return np.hypot(self._cores.unsure, np.where(several, self._wire.unsure, 0.0))

    def outcome(self, part: Part) -> tuple[Outcome, FloatArray]:
        """Return the law's answer to a part, with slopes, and its log standard deviations (n,).

        Near the runs the answer is corrected by what they left, see `hierarchical_near`.
        """
        assert self.model is not None
        theta = np.broadcast_to(self.model.parameters(part.served), (len(part.rows), COUNT))
        out = evaluate_law(theta, part.x, slopes=True)
        assert out.slopes is not None
        known = np.einsum("ni,ni->n", out.slopes @ self.model.uncertainty(part.served), out.slopes)
        spread = np.full(len(part.rows), self.model.groups[part.served.group].sigma ** 2)
        near = self.model.near[part.served.group]
        if part.served.cluster < 0 and part.served.sigma == 0.0 and near.serves:
            x = part.x
            layout = np.stack([x.devices, x.nodes, x.busy, x.cores, x.inter_rate], axis=1)
            shift, support = near.corrections(
                np.log(x.micro_batch), layout, self._placement[part.rows]
            )
            out = replace(out, log_seconds=out.log_seconds + shift)
            spread = spread + support**2 * (near.sigma**2 - spread)
        variance = known + spread + part.served.sigma**2 + (GROWTH_SIGMA * self.beyond(part)) ** 2
        variance += self._unsure[part.rows] ** 2
        return out, np.sqrt(np.maximum(variance, 0.0))

    @cached_property
    def _placement(self) -> IntArray:
        """Return which of the model's placements each job has, (n,), -1 for none of them."""
        assert self.model is not None
        texts, index = self.rows.placements
        place = {text: i for i, text in enumerate(self.model.placements)}
        return np.array([place.get(text, -1) for text in texts], dtype=np.int64)[index]

    def beyond(self, part: Part) -> FloatArray:
        """Return how many doublings of numbers the jobs lie beyond the runs, (n,)."""
        assert self.model is not None
        group = self.model.groups[part.served.group]
        batch = np.log(part.x.micro_batch)
        low, high = group.own_batch
        away = np.maximum(np.log(part.x.devices / group.devices), 0.0)
        away += np.maximum(np.log(part.x.nodes / group.nodes), 0.0)
        away += np.maximum(batch - high, 0.0) + np.maximum(low - batch, 0.0)
        away += self._cores.beyond[part.rows] + self._wire.beyond[part.rows]
        return np.asarray(away / np.log(2.0))

    def distance(self, part: Part) -> FloatArray:
        """Return how far the jobs of a part lie from the runs, (n,)."""
        away = part.served.distance + GROWTH_DISTANCE * self.beyond(part)
        return np.where(self._unsure[part.rows] > 0, np.maximum(away, OTHER_SETTINGS), away)
