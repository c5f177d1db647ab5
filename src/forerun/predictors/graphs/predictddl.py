"""PredictDDL: a regression of step times over embeddings of networks' graphs, clusters and plans.

Source: Assogba, Lima, Rafique and Kwon, CLUSTER 2023: [embedding; cluster; batch] through a linear model, a
polynomial of second degree, support vectors or a small net. Reconstructed from what is known of the paper; times
are regressed in logarithms here, and boosted trees and quantities of the graph stand beside what was published.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.graph import KINDS, Phase
from forerun.domain.quantiles import Z95, spread
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.graphs.encoder import GATED
from forerun.predictors.graphs.graphormer import GRAPHORMER
from forerun.predictors.graphs.primitives import PrimitiveGraph, primitive_graph
from forerun.predictors.graphs.weights import (
    DIGITS,
    GHN3,
    MOST_WEIGHT,
    QUANTITIES,
    RESIDUAL,
    encoder_of,
    read_weights,
    shapes_of,
    shipped_weights,
)
from forerun.predictors.laws.constant_mfu import IdealTimes
from forerun.predictors.options import PredictorOption
from forerun.predictors.regression.techniques import Regression, fitted
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted

# By name: a technique of the Ray study with its parameters, and whether it also sees squares and products.
REGRESSIONS: Mapping[str, tuple[str, Mapping[str, Any], bool]] = {
    "linear": ("Ridge", {"alpha": 1.0}, False), "polynomial": ("Ridge", {"alpha": 10.0}, True),
    "svr": ("SVR", {"C": 0.1, "epsilon": 0.02}, False),
    "mlp": ("MLP", {"hidden": (64, 32), "epochs": 200}, False),
    "boosting": ("XGBoost", {"max_depth": 5, "n_estimators": 300, "gamma": 0.0, "reg_lambda": 5}, False),
}  # fmt: skip
FEATURES = ("embedding", "quantities", "both", "none")
TARGETS = ("time", RESIDUAL)
STEPS = 200  # of that training
# Images of sides that lie no further apart than so many times are of one type.
ALIKE = 1.5
TRAIN = "forerun fit --system predictddl --runs RUNS.csv --out MODEL.json"
LEAST_RUNS, LEAST_NETWORKS, PARTS = 12, 3, 5
LEAST_SIGMA = 0.02
# Networks farther from every measured one than so many times the usual distance among these are declined.
FARTHEST = 3.0
NEIGHBOUR = 3
# Of the log standard deviation, by each doubling of a cluster's or a plan's sizes beyond the runs'.
GROWTH = 0.3
# A regression that says more, of seconds, or is so unsure, is beyond what it can say.
MOST_LOG, MOST_SIGMA = 25.0, 6.0
# Of the distances between nodes of graphs that are embedded together: what stays in a core's cache.
MOST_CELLS = 800_000
# Of the forward FLOPs, what may be operations that the encoder has no primitive for.
MOST_FOREIGN = 0.1
FEW = 3  # operations that a message names


class WorkloadEmbeddingsGenerator:
    """Embeddings of workloads' graphs by one encoder; each structure is embedded once.

    weights: of the encoder; None for the shipped one.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._weights = weights
        self._known: dict[str, FloatArray] = {}
        self._lock = Lock()

    def of(self, graphs: Sequence[PrimitiveGraph]) -> FloatArray:
        """Return the embedding of each graph, (graphs, width)."""
        new = {graph.key: graph for graph in graphs if graph.key not in self._known}
        if new:
            batches = list(_batches(sorted(new.values(), key=len)))
            # NumPy lets go of the interpreter while it computes.
            with ThreadPoolExecutor(min(len(batches), os.cpu_count() or 1)) as pool:
                made = list((pool.map if batches[1:] else map)(self._embedded, batches))
            found = dict(zip((g.key for g in chain(*batches)), np.concatenate(made), strict=True))
            with self._lock:
                self._known.update(found)
        return np.stack([self._known[graph.key] for graph in graphs])

    def _embedded(self, batch: Sequence[PrimitiveGraph]) -> FloatArray:
        weights = shipped_weights() if self._weights is None else self._weights
        return encoder_of(weights).embeddings(batch, weights).astype(np.float64)


def _batches(graphs: Sequence[PrimitiveGraph]) -> Iterator[list[PrimitiveGraph]]:
    """Yield graphs, the smallest first, as many at a time as memory is meant for."""
    batch: list[PrimitiveGraph] = []
    for graph in graphs:
        if batch and (sum(map(len, batch)) + len(graph)) * len(graph) > MOST_CELLS:
            yield batch
            batch = []
        batch.append(graph)
    if batch:
        yield batch


EMBEDDINGS = WorkloadEmbeddingsGenerator()


def dataset_type(workload: Workload) -> tuple[str, float]:
    """Return what a sample is, in one word, and the side of an image in pixels, 0 for others."""
    return workload.sample, float(workload.image_size)


def type_words(kind: str, side: float) -> str:
    """Return a type of dataset in words."""
    return f"{kind}s" + (f" of {side:.0f} x {side:.0f}" if side else "")


@dataclass(frozen=True)
class GraphRows:
    """n jobs with the graphs of their workloads, and who embeds them."""

    jobs: Jobs
    generator: WorkloadEmbeddingsGenerator = EMBEDDINGS

    @cached_property
    def graphs(self) -> list[PrimitiveGraph | str]:
        """The graph of each distinct workload, or why it has none."""
        return [_graph_or_reason(workload) for workload in self.jobs.workloads]

    @cached_property
    def ideal(self) -> IdealTimes:
        """The least that each job may take, and what is lacking to say so."""
        return IdealTimes(self.jobs)

    @property
    def declined(self) -> Any:
        """Why a job has no features, or None, (n,)."""
        reasons = self.ideal.declined.copy()
        lacking = [None if isinstance(g, PrimitiveGraph) else g for g in self.graphs]
        own = np.array([*lacking, None], dtype=object)[self.jobs.workload_index]
        return np.where(is_none(reasons), own, reasons)

    @cached_property
    def embedded(self) -> FloatArray:
        """Embeddings of distinct workloads, NaN of those without a graph, (w, width)."""
        known = [g for g in self.graphs if isinstance(g, PrimitiveGraph)]
        found = self.generator.of(known) if known else np.zeros((0, 1))
        table = np.full((len(self.graphs), found.shape[1]), np.nan)
        table[[isinstance(g, PrimitiveGraph) for g in self.graphs]] = found
        return table

    def matrix(self, features: str) -> FloatArray:
        """Return what a regression reads of each job, (n, k): features, and at last the `sizes`."""
        of, parts = self.jobs.workload_index, []
        if features in ("embedding", "both"):
            parts.append(self.embedded[of])
        if features in ("quantities", "both"):
            parts.append(self.quantities[:, :LOGS][of])
        # The last of the sizes is what physics needs at least for a sample, and so is of the graph.
        parts.append(self.sizes if features != "none" else self.sizes[:, :-1])
        return np.concatenate(parts, axis=1)

    @cached_property
    def quantities(self) -> FloatArray:
        """What is known of distinct workloads' graphs: logarithms, and shares of operations, (w, 6 + kinds)."""
        pairs = zip(self.jobs.workloads, self.graphs, strict=True)
        return np.array([_quantities(w, g) for w, g in pairs])

    @cached_property
    def sizes(self) -> FloatArray:
        """Sizes of each job's cluster and plan as logarithms of two, (n, 8)."""
        jobs = self.jobs
        sizes = [
            jobs.per_cluster(name).astype(np.float64)
            for name in ("devices", "nodes", "device.memory_bytes_per_second", "intra.bytes_per_second",
                         "inter.bytes_per_second")
        ]  # fmt: skip
        seconds, batch = self.ideal.seconds, jobs.plans.global_batch.astype(np.float64)
        sizes += [jobs.plans.micro_batch.astype(np.float64), batch, seconds / batch]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log2(np.maximum(np.stack(sizes, axis=1), 1e-30)))


def _embedded_by(weights: Mapping[str, NDArray[Any]], rows: GraphRows) -> GraphRows:
    """Return the rows with embeddings by an encoder; weights: none for the shipped one."""
    return replace(rows, generator=WorkloadEmbeddingsGenerator(weights)) if weights else rows


@lru_cache(maxsize=256)
def _graph_or_reason(workload: Workload) -> PrimitiveGraph | str:
    if not workload.detailed:
        return f"only totals of {workload.name} are known, and an embedding needs its graph"
    try:
        graph = primitive_graph(workload.graph, workload.name)
    except RequestError as error:
        return error.found
    return _foreign_words(graph) if sum(graph.foreign.values()) > MOST_FOREIGN else graph


def _foreign_words(graph: PrimitiveGraph) -> str:
    """Return the share of FLOPs that operations without a primitive are, and those that are most of it."""
    most = sorted(graph.foreign, key=lambda name: -graph.foreign[name])
    more = " ..." if most[FEW:] else ""
    names = ", ".join(f"{name} ({graph.foreign[name]:.1%})" for name in most[:FEW])
    return f"{sum(graph.foreign.values()):.0%} of its FLOPs are operations without a primitive: {names}{more}"


LOGS = 6  # of the quantities of a graph


def _quantities(workload: Workload, graph: PrimitiveGraph | str) -> list[float]:
    if isinstance(graph, str):
        return [np.nan] * (LOGS + len(KINDS))
    whole = workload.graph
    sizes = (whole.forward_flops, whole.params, whole.activations, whole.total("launches"), len(graph), graph.depth.max() + 1)  # fmt: skip
    flops = [whole.total("flops", Phase.FORWARD, kind) for kind in KINDS]
    logs = [float(np.log2(max(size, 1.0))) for size in sizes]
    return [*logs, *(each / max(sum(flops), 1.0) for each in flops)]


@dataclass(frozen=True)
class GraphRegression:
    """A regression fitted to runs of w networks.

    names, places: the networks and their standardised embeddings, (w, width); centre, scale: of embeddings;
    usual: the middle distance of a network from its third nearest. sigma: log standard deviation by networks left out.
    reach: least and most of each of the runs' sizes, (2, 8). samples, sides: the types of dataset that were
    measured. left_out: of how many runs nothing was learned, and why. encoder: its weights; empty for the shipped one's.
    """

    regression: Regression
    names: tuple[str, ...]
    places: FloatArray
    centre: FloatArray
    scale: FloatArray
    usual: float
    sigma: float
    reach: FloatArray
    runs: int
    left_out: tuple[str, ...]
    samples: tuple[str, ...]
    sides: FloatArray
    encoder: Mapping[str, FloatArray]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together. Raises ValueError."""
        width = (self.places.shape[-1],)
        fits = self.places.ndim == 2 and len(self.names) == len(self.places) > 0
        fits = fits and self.centre.shape == self.scale.shape == width and self.reach.ndim == 2
        if not (fits and self.usual > 0 and 0 < self.sigma < MOST_SIGMA and (self.scale > 0).all()):
            raise ValueError("parts of other sizes, or a spread that is none")
        wanted = shapes_of(self.encoder) if self.encoder else {}
        if len(self.samples) != len(self.sides) or wanted != {n: w.shape for n, w in self.encoder.items()}:  # fmt: skip
            raise ValueError("weights of another encoder, or sides of other types")
        numbers = (self.places, self.centre, self.reach, self.sides, *self.encoder.values())
        if any((np.abs(each) > MOST_WEIGHT).any() for each in numbers):
            raise ValueError("a number that no embedding, no size and no weight is")

    @cached_property
    def generator(self) -> WorkloadEmbeddingsGenerator:
        """Who embeds graphs for it."""
        if not self.encoder:
            return EMBEDDINGS
        return WorkloadEmbeddingsGenerator({name: weight.astype(np.float32) for name, weight in self.encoder.items()})  # fmt: skip

    def untrained(self, workload: Workload) -> str | None:
        """Return why a workload's type of dataset is none that was measured, or None."""
        kind, side = dataset_type(workload)
        sides = self.sides[np.array(self.samples) == kind]
        near = np.maximum(side, sides) <= ALIKE * np.minimum(side, sides)
        if near.any():
            return None
        known = ", ".join(type_words(*one) for one in zip(self.samples, self.sides, strict=True))
        return f"no run of {type_words(kind, side)} was given: those that were are of {known}; give some ({TRAIN})"

    def beyond(self, sizes: FloatArray) -> FloatArray:
        """Return by how many doublings jobs' sizes (n, 8) lie beyond the runs', added up, (n,)."""
        low, high = self.reach
        return np.asarray(np.maximum(np.maximum(sizes - high, low - sizes), 0.0).sum(axis=1))

    def nearest(self, embedded: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return which network lies nearest to each of m embeddings, and how far in usual distances, (m,)."""
        z = (embedded - self.centre) / self.scale
        away = _apart(z, self.places)
        at = away.argmin(axis=1)
        return at, away[np.arange(len(z)), at] / self.usual


def _apart(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the distance of each of m points (m, d) from each of w (w, d), (m, w)."""
    squares = (np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * one @ other.T)  # fmt: skip
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


@dataclass(frozen=True)
class PredictDDL(SavedPredictor):
    """Step times by a regression over the embedding of a network's graph, its cluster and its plan.

    regression: of `REGRESSIONS`. features: of `FEATURES`; quantities are a graph's FLOPs, parameters, activations,
    kernels, nodes and depth. target: of `TARGETS`; what is left of the times by physics that no run calibrated, or
    the times. encoder: digits (the shipped one), quantities or residual, which are trained on the fitted networks,
    or a file. Networks that lie far from all measured ones have wider bands, and are declined at last.
    """

    regression: str = "boosting"
    features: str = "both"
    target: str = "time"
    encoder: str = DIGITS
    model: GraphRegression | None = None

    name = "predictddl"
    version = 3
    options = (
        PredictorOption("regression", "boosting", "what learns", tuple(REGRESSIONS)),
        PredictorOption("features", "both", "what it reads of a network", FEATURES),
        PredictorOption(
            "target", "time", "what it learns: times, or what physics leaves of them", TARGETS
        ),
        PredictorOption(
            "encoder", DIGITS, "digits (shipped), [graphormer-]quantities or [graphormer-]residual (trained by the fit), or a file: .safetensors, .pt"
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse an option that there is not, and a model of other features. Raises ValueError or IndexError."""
        allowed = ((self.regression, REGRESSIONS), (self.features, FEATURES), (self.target, TARGETS))  # fmt: skip
        if any(one not in known for one, known in allowed):
            raise ValueError(f"no regression {self.regression} of {self.features} for {self.target}")  # fmt: skip
        if self.model is not None:
            quantities = LOGS * (self.features in ("quantities", "both"))
            width = self.model.places.shape[1] * (self.features in ("embedding", "both"))
            sizes = self.model.reach.shape[1] - (self.features == "none")
            self.model.regression.predict(self._seen(np.zeros((1, width + quantities + sizes))))

    def fit(self, runs: Runs) -> PredictDDL:
        """Return a predictor that has learned from the runs.

        Raises:
            RequestError: fewer than 12 runs with a step time and a graph, or of fewer than 3 networks; or the
                encoder is a file that is none.
            MissingExtraError: scikit-learn, XGBoost or safetensors is not installed, or torch to train an encoder.
        """
        runs = sorted_runs(runs)
        rows, seconds = GraphRows(runs.jobs), runs.step_seconds()
        prior = self._prior(runs.jobs, RESIDUAL in (self.target, self._objective))
        # What a regression corrects: the log seconds of physics, or 0 where it learns times.
        before = prior if self.target == RESIDUAL else np.zeros(len(prior))
        used = np.flatnonzero(is_none(rows.declined) & np.isfinite(seconds) & np.isfinite(before))
        network = runs.jobs.workload_index[used]
        names = [w.name for w in runs.jobs.workloads]
        distinct, code = np.unique(np.array(names)[network], return_inverse=True)
        if len(used) < LEAST_RUNS or len(distinct) < LEAST_NETWORKS:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"{len(used)} of them, of {len(distinct)} networks, have a step time, a known graph and a known device",
                f"give at least {LEAST_RUNS} such runs, of at least {LEAST_NETWORKS} networks",
            )
        y = np.log(seconds[used]) - before[used]
        left = np.log(seconds[used]) - prior[used]
        weights = self._encoder(rows, used, left)
        rows = _embedded_by(weights, rows)
        x, place = rows.matrix(self.features)[used], network[np.unique(code, return_index=True)[1]]
        embedded = rows.embedded[place]
        centre, scale = embedded.mean(axis=0), np.maximum(embedded.std(axis=0), 1e-9)
        places = (embedded - centre) / scale
        away = _apart(places, places)
        # The third nearest: one network at several sizes of images is almost the same graph.
        near = np.sort(away, axis=1)[:, min(NEIGHBOUR, len(away) - 1)]
        usual = float(np.maximum(np.median(near), 1e-9))
        missed, turn = np.empty(len(y)), np.random.default_rng(0).permutation(len(distinct))
        turn %= 2 if self._objective == RESIDUAL else PARTS  # to train an encoder takes long
        for part in np.unique(turn).tolist():
            out = turn[code] == part
            mine = x
            if self.encoder.endswith(
                RESIDUAL
            ):  # one that has not seen the networks that are left out
                apart = self._encoder(rows, used[~out], left[~out])
                mine = _embedded_by(apart, rows).matrix(self.features)[used]
            fitted_apart = self._fitted(mine[~out], y[~out])
            missed[out] = y[out] - fitted_apart.predict(self._seen(mine[out]))
        sigma = max(_reach(np.abs(missed), code) / Z95, LEAST_SIGMA)
        sizes, types = (rows.sizes[used], sorted({dataset_type(runs.jobs.workloads[i]) for i in network}))  # fmt: skip
        learned = GraphRegression(
            self._fitted(x, y), tuple(distinct.tolist()), places, centre, scale, usual, sigma,
            np.stack([sizes.min(axis=0), sizes.max(axis=0)]), len(used), _left_out(rows, seconds, used), tuple(kind for kind, _ in types),
            np.array([side for _, side in types]), {n: w.astype(np.float64) for n, w in weights.items()},
        )  # fmt: skip
        return replace(self, model=learned)

    @property
    def _objective(self) -> str:
        """What trains the encoder, where its option names no file."""
        return self.encoder.removeprefix(GHN3)

    def _prior(self, jobs: Jobs, needed: bool) -> FloatArray:
        """Return the log seconds of physics that no run calibrated, (n,), NaN where it has none; 0 where not needed."""
        if not needed:
            return np.zeros(len(jobs))
        with np.errstate(invalid="ignore"):
            return np.asarray(np.log(AnalyticPredictor().predict(jobs, detail=False).seconds[:, 1]))

    def _encoder(self, rows: GraphRows, used: IntArray, left: FloatArray) -> dict[str, NDArray[Any]]:  # fmt: skip
        """Return an encoder's weights, empty for the shipped one; left: log seconds less those of physics."""
        if self.encoder == DIGITS or self.features in ("quantities", "none"):
            return {}
        objective = self._objective
        if objective not in (QUANTITIES, RESIDUAL):
            if self.model is None:
                return read_weights(Path(self.encoder))
            # What was fitted before goes on with the encoder that it has, by whatever name.
            return {name: weight.astype(np.float32) for name, weight in self.model.encoder.items()}
        from forerun.predictors.graphs.objectives import trained_encoder

        network, of = np.unique(rows.jobs.workload_index[used], return_inverse=True)
        graphs = [g for g in (rows.graphs[i] for i in network) if isinstance(g, PrimitiveGraph)]
        if objective == RESIDUAL:
            known = np.isfinite(left)
            given = (of[known], rows.sizes[used][known], left[known][:, None])
        else:
            given = (np.arange(len(graphs)), np.zeros((len(graphs), 0)), rows.quantities[network])
        kind = GATED if objective == self.encoder else GRAPHORMER
        return trained_encoder(graphs, *given, seed=0, steps=STEPS, encoder=kind).encoder

    def _seen(self, x: FloatArray) -> FloatArray:
        """Return the columns that the regression reads: of the polynomial, squares and products as well."""
        if not REGRESSIONS[self.regression][2]:
            return x
        first, second = np.triu_indices(x.shape[1])
        return np.concatenate([x, x[:, first] * x[:, second]], axis=1)

    def _fitted(self, x: FloatArray, y: FloatArray) -> Regression:
        technique, given, _ = REGRESSIONS[self.regression]
        return fitted(technique, given, self._seen(x), y)

    @property
    def notes(self) -> tuple[str, ...]:
        """How many runs it learned from, and how many were left out, and why."""
        learned = self.model
        return () if learned is None else (f"learned from {learned.runs:,} runs", *learned.left_out)

    @property
    def planner(self) -> AnalyticPredictor:
        """Physics, who tells plans of one job apart: trees say the same of many, and memory is not learned."""
        return AnalyticPredictor()

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return step seconds of n jobs; memory is not answered (NaN)."""
        learned = self.model
        rows = GraphRows(jobs, EMBEDDINGS if learned is None else learned.generator)
        blank, declined = Forecasts.blank(len(jobs), self.name), rows.declined
        if learned is None:
            reason = f"predictddl knows no runs; give some (--fit RUNS.csv), or fit it once ({TRAIN}) for --model"
            return replace(blank, declined=np.where(is_none(declined), reason, declined))
        untrained = np.array([*map(learned.untrained, jobs.workloads), None], dtype=object)
        declined = np.where(is_none(declined), untrained[jobs.workload_index], declined)
        before = self._prior(jobs, self.target == RESIDUAL)
        declined[is_none(declined) & ~np.isfinite(before)] = ("physics, whose errors were learned, has no time for it")  # fmt: skip
        known = np.flatnonzero(is_none(declined))
        if not len(known):
            return replace(blank, declined=declined)
        whole = np.nan_to_num(rows.embedded)  # what has no graph is not asked for
        at, far = (each[jobs.workload_index[known]] for each in learned.nearest(whole))
        near = np.array(learned.names, dtype=object)[at]
        for i in np.flatnonzero(far > FARTHEST).tolist():
            declined[known[i]] = (
                f"its graph is like none that was measured: the nearest, {near[i]}, is {far[i]:.2g} usual distances away"
            )
        log = before[known] + learned.regression.predict(self._seen(rows.matrix(self.features)[known]))  # fmt: skip
        beyond = learned.beyond(rows.sizes[known])
        sigma = learned.sigma * np.sqrt(np.maximum(far, 1.0)) + GROWTH * beyond
        told = (np.abs(log) <= MOST_LOG) & (sigma <= MOST_SIGMA)
        for i in np.flatnonzero(~told & (far <= FARTHEST)).tolist():
            declined[known[i]] = (
                f"its cluster and plan lie {beyond[i]:.2g} doublings beyond the runs, where the regression gives no time"
            )
        kept = is_none(declined[known])
        known, far, near = known[kept], far[kept], near[kept]
        log, sigma, beyond = log[kept], sigma[kept], beyond[kept]
        seconds = np.full((len(jobs), 3), np.nan)
        floor = np.where(is_none(declined), rows.ideal.least_seconds, np.nan)
        seconds[known] = spread(np.maximum(np.exp(log), floor[known]), sigma, floor[known])
        distance = np.full(len(jobs), np.nan)
        distance[known] = 0.5 * far + 0.25 * beyond
        nearest = np.full(len(jobs), None, dtype=object)
        nearest[known] = [f"{name} at {away:.2f}" for name, away in zip(near, far, strict=True)]
        foreign = (
            f"{workload.name}: {_foreign_words(graph)}"
            for workload, graph in zip(jobs.workloads, rows.graphs, strict=True)
            if isinstance(graph, PrimitiveGraph) and graph.foreign
        )
        return replace(
            blank, seconds=seconds, floor_seconds=floor, declined=declined, distance=distance,
            nearest=nearest, warnings=tuple(foreign),
        )  # fmt: skip


def _left_out(rows: GraphRows, seconds: FloatArray, used: IntArray) -> tuple[str, ...]:
    """Return for each reason why nothing is learned of a row how many rows it holds for, in words."""
    left = np.ones(len(seconds), dtype=bool)
    left[used] = False
    known, graph = is_none(rows.ideal.declined), is_none(rows.declined)
    timed, is_cut = np.isfinite(seconds), rows.jobs.plans.partitions > 1
    left &= ~is_cut
    kinds = (
        ("no step time", ~timed), ("no workload or device that is known", timed & ~known),
        ("no graph that can be embedded", timed & known & ~graph), ("no time by physics", timed & graph),
    )  # fmt: skip
    words = []
    if many := int(is_cut.sum()):
        words.append(f"{counted(many, 'run')} left out, with a plan that is not learned from: layers cut over devices")  # fmt: skip
    for lack, those in kinds:
        if at := np.flatnonzero(left & those).tolist():
            reason = f", as the first: {rows.declined[at[0]]}" if rows.declined[at[0]] else ""
            words.append(f"{counted(len(at), 'run')} left out, with {lack}{reason}")
    return tuple(words)


def _reach(off: FloatArray, code: IntArray) -> float:
    """Return the 90 % quantile of errors, each network counting alike."""
    weight = 1.0 / np.bincount(code)[code]
    order = np.argsort(off)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(off[order][min(int(np.searchsorted(share, 0.9)), len(off) - 1)])
