"""Hierarchical: all-reduce physics whose parameters are pooled over apps and clusters.

One law (`hierarchical_law`) for every app on every cluster; what one teaches of networks and of
an app's shape serves the others, so that one to eight runs on a new cluster are enough to start.

n jobs asked of a fitted hierarchical law: who serves each, and the law's answer, part by part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.quantiles import spread
from forerun.predictors.laws.hierarchical_law import COUNT, LawInputs, Outcome, evaluate_law
from forerun.predictors.laws.hierarchical_model import OTHER_SETTINGS, Known, Model, Served
from forerun.predictors.laws.hierarchical_near import as_saved, of_saved
from forerun.predictors.laws.hierarchical_rows import HierarchicalRows
from forerun.predictors.laws.hierarchical_teach import taught
from forerun.predictors.laws.law_rows import ResourceReading as Read
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs

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


VERSION = 3
PARTS = ("compute", "communication")
_ARRAYS = ("theta", "shared", "covariance", "alone", "gain", "tree", "effects")
_WHOLE = ("tree", "effects")


@dataclass(frozen=True)
class Hierarchical:
    """The fitted law; see `hierarchical_law` for its equation.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        model: parameters and their covariance, None before it was fitted.
        warnings: what a reader of its answers should know.
    """

    quantity: str = "step"
    model: Model | None = None
    warnings: tuple[str, ...] = field(default=())

    name = "hierarchical"

    def fit(self, runs: Runs) -> Hierarchical:
        """Return a predictor with the law of these runs alone.

        Raises:
            RequestError: fewer than `LEAST_RUNS` runs can teach it.
        """
        runs = sorted_runs(runs)
        seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
        model, posterior, notes = taught(runs, seconds[quantity], quantity)
        said = () if posterior.converged else (
            f"the fit had not settled after {posterior.rounds} rounds; the best found serves",
        )  # fmt: skip
        return Hierarchical(quantity, model, (*notes, *said))

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer, or None."""
        return list(self._asked(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs, compute and communication as parts; memory is not answered."""
        blank = replace(
            Forecasts.blank(len(jobs), self.name, self.quantity), warnings=self.warnings
        )
        asked = self._asked(jobs)
        parts = np.full((len(jobs), len(PARTS)), np.nan)
        for part in asked.chunks():
            out, sigma = asked.outcome(part)
            middle = np.exp(out.log_seconds)
            blank.seconds[part.rows] = spread(middle, sigma)
            alone = np.minimum(np.exp(out.log_compute), middle)
            parts[part.rows] = np.stack([alone, middle - alone], axis=1)
            blank.distance[part.rows] = asked.distance(part)
        named = {name: parts[:, i] for i, name in enumerate(PARTS)}
        return replace(blank, declined=asked.declined, parts=named)

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n).

        The diagonal is the whole log variance of a run about its forecast; off it stands what two
        jobs share: the parameters. Declined rows are NaN.
        """
        asked = self._asked(jobs)
        result = np.full((len(jobs), len(jobs)), np.nan)
        rows = np.flatnonzero(asked.answered)
        if self.model is None or not len(rows):
            return result
        width = len(self.model.covariance)
        pulls, own = np.zeros((len(jobs), width)), np.zeros(result.shape)
        slopes = np.zeros((len(jobs), self.model.theta.shape[1]))
        variance = np.zeros(len(jobs))
        for part in asked.chunks():
            out, sigma = asked.outcome(part)
            assert out.slopes is not None
            slopes[part.rows] = out.slopes
            pulls[part.rows] = out.slopes @ self.model.spread(part.served)
            variance[part.rows] = sigma**2
        group = asked.groups
        for i in np.unique(group[rows]):
            mine = rows[group[rows] == i]
            own[np.ix_(mine, mine)] = slopes[mine] @ self.model.alone[i] @ slopes[mine].T
        both = pulls[rows] @ self.model.covariance @ pulls[rows].T + own[np.ix_(rows, rows)]
        np.fill_diagonal(both, variance[rows])
        result[np.ix_(rows, rows)] = both
        return result

    @property
    def formulas(self) -> dict[str, str]:
        """The law of each app on each cluster with units and intervals, and what limits it."""
        from forerun.predictors.laws.hierarchical_words import formulas

        return {} if self.model is None else formulas(self.model, self.quantity)

    def _asked(self, jobs: Jobs) -> Asked:
        return Asked(self.model, HierarchicalRows(jobs, self.quantity))

    def to_json(self) -> str:
        """Return the law as JSON text."""
        saved: dict[str, Any] = {
            "predictor": self.name, "version": VERSION, "quantity": self.quantity,
            "warnings": self.warnings, "model": None,
        }  # fmt: skip
        if self.model is not None:
            arrays = {name: getattr(self.model, name).tolist() for name in _ARRAYS}
            groups = [asdict(group) for group in self.model.groups]
            near = [as_saved(one) for one in self.model.near]
            places = list(self.model.placements)
            saved["model"] = {"groups": groups, "near": near, "placements": places, **arrays}
        return json.dumps(saved)

    @staticmethod
    def from_json(text: str) -> Hierarchical:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> Hierarchical:
            model = None if saved["model"] is None else _model(saved["model"])
            return Hierarchical(str(saved["quantity"]), model, tuple(saved["warnings"]))

        return read_saved(text, "a hierarchical law", VERSION, made)


def _model(saved: Mapping[str, Any]) -> Model:
    groups = tuple(_known(entry) for entry in saved["groups"])
    arrays: dict[str, Any] = {
        name: np.array(saved[name], dtype=np.int64 if name in _WHOLE else np.float64)
        for name in _ARRAYS
    }
    if arrays["theta"].shape != (len(groups), COUNT):
        raise ValueError(f"a group has {COUNT} parameters")
    near = tuple(of_saved(one) for one in saved["near"])
    return Model(groups, placements=tuple(saved["placements"]), near=near, **arrays)


def _known(entry: Mapping[str, Any]) -> Known:
    names = {name: tuple(entry[name]) for name in ("app", "cluster", "own_batch", "rates")}
    spans = {
        name: None if entry[name] is None else tuple(entry[name])
        for name in ("batch", "cores", "wire")
    }
    return Known(**{**entry, **names, **spans})
