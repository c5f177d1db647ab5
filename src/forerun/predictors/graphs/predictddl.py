"""PredictDDL: a regression of step times over embeddings of networks' graphs, clusters and plans.

Source: Assogba, Lima, Rafique and Kwon, CLUSTER 2023: [embedding; cluster; batch] through a linear model, a
polynomial of second degree, support vectors or a small net. Reconstructed from what is known of the paper; times
are regressed in logarithms here, and boosted trees and quantities of the graph stand beside what was published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.quantiles import Z95, spread
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.graphs.encoder import GraphBatch, embeddings
from forerun.predictors.graphs.primitives import PrimitiveGraph, primitive_graph
from forerun.predictors.graphs.weights import shipped_weights
from forerun.predictors.laws.constant_mfu import IdealTimes
from forerun.predictors.options import PredictorOption
from forerun.predictors.regression.techniques import Regression, fitted
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs

# By name: a technique of the Ray study with its parameters, and whether it also sees squares and products.
REGRESSIONS: Mapping[str, tuple[str, Mapping[str, Any], bool]] = {
    "linear": ("Ridge", {"alpha": 1.0}, False),
    "polynomial": ("Ridge", {"alpha": 10.0}, True),
    "svr": ("SVR", {"C": 0.1, "epsilon": 0.02}, False),
    "mlp": ("MLP", {"hidden": (64, 32), "epochs": 200}, False),
    "boosting": (
        "XGBoost",
        {"max_depth": 5, "n_estimators": 300, "gamma": 0.0, "reg_lambda": 5},
        False,
    ),
}
FEATURES = ("embedding", "quantities", "both")
LEAST_RUNS, LEAST_NETWORKS, PARTS = 12, 3, 5
LEAST_SIGMA = 0.02
# Networks farther from every measured one than so many times the usual distance among these are declined.
FARTHEST = 3.0
# Of the log standard deviation, by each doubling of a cluster's or a plan's sizes beyond the runs'.
GROWTH = 0.3
# A regression that says more, of seconds, or is so unsure, is beyond what it can say.
MOST_LOG, MOST_SIGMA = 25.0, 6.0
MOST_NUMBER = 1e6
MOST_CELLS = 30_000_000  # of the distances between nodes of graphs that are embedded together
# Of the forward FLOPs, what may be operations that the encoder has no primitive for.
MOST_FOREIGN = 0.1


class WorkloadEmbeddings:
    """Embeddings of workloads' graphs, each structure embedded once."""

    def __init__(self) -> None:
        self._known: dict[str, FloatArray] = {}
        self._lock = Lock()

    def of(self, graphs: Sequence[PrimitiveGraph]) -> FloatArray:
        """Return the embedding of each graph, (graphs, width)."""
        new = {graph.key: graph for graph in graphs if graph.key not in self._known}
        if new:
            found = {
                graph.key: embedding
                for batch in _batches(sorted(new.values(), key=len))
                for graph, embedding in zip(batch, self._embedded(batch), strict=True)
            }
            with self._lock:
                self._known.update(found)
        return np.stack([self._known[graph.key] for graph in graphs])

    def _embedded(self, batch: Sequence[PrimitiveGraph]) -> FloatArray:
        return embeddings(GraphBatch.of(batch), shipped_weights()).astype(np.float64)


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


EMBEDDINGS = WorkloadEmbeddings()


@dataclass(frozen=True)
class GraphRows:
    """n jobs with the graphs of their workloads."""

    jobs: Jobs

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
        found = EMBEDDINGS.of(known) if known else np.zeros((0, 1))
        table = np.full((len(self.graphs), found.shape[1]), np.nan)
        table[[isinstance(g, PrimitiveGraph) for g in self.graphs]] = found
        return table

    def matrix(self, features: str) -> FloatArray:
        """Return what a regression reads of each job, (n, k): features, and at last the `sizes`."""
        jobs, parts = self.jobs, []
        if features != "quantities":
            parts.append(self.embedded[jobs.workload_index])
        if features != "embedding":
            graph = np.array(
                [_quantities(w, g) for w, g in zip(jobs.workloads, self.graphs, strict=True)]
            )
            parts.append(graph[jobs.workload_index])
        return np.concatenate([*parts, self.sizes], axis=1)

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


def _graph_or_reason(workload: Workload) -> PrimitiveGraph | str:
    if not workload.detailed:
        return f"only totals of {workload.name} are known, and an embedding needs its graph"
    try:
        graph = primitive_graph(workload.graph, workload.name)
    except RequestError as error:
        return error.found
    share = sum(graph.foreign.values())
    if share > MOST_FOREIGN:
        names = ", ".join(sorted(graph.foreign, key=lambda name: -graph.foreign[name])[:3])
        return f"{share:.0%} of its FLOPs are operations without a primitive: {names} ..."
    return graph


def _quantities(workload: Workload, graph: PrimitiveGraph | str) -> list[float]:
    if isinstance(graph, str):
        return [np.nan] * 6
    whole = workload.graph
    sizes = (
        whole.forward_flops, whole.params, whole.activations, whole.total("launches"), len(graph),
        graph.depth.max() + 1,
    )  # fmt: skip
    return [float(np.log2(max(size, 1.0))) for size in sizes]


@dataclass(frozen=True)
class GraphRegression:
    """A regression fitted to runs of w networks.

    names, places: the networks and their standardised embeddings, (w, width); centre, scale: of embeddings;
    usual: the middle distance of a network from the nearest other. sigma: log standard deviation by networks left out.
    reach: least and most of each of the runs' sizes, (2, 8).
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

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together. Raises ValueError."""
        width = (self.places.shape[-1],)
        fits = self.places.ndim == 2 and len(self.names) == len(self.places) > 0
        fits = fits and self.centre.shape == self.scale.shape == width and self.reach.ndim == 2
        if not (fits and self.usual > 0 and 0 < self.sigma < MOST_SIGMA and (self.scale > 0).all()):
            raise ValueError("parts of other sizes, or a spread that is none")
        if any(
            (np.abs(each) > MOST_NUMBER).any() for each in (self.places, self.centre, self.reach)
        ):
            raise ValueError("a number that no embedding and no size is")

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
    squares = (
        np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * one @ other.T
    )
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


@dataclass(frozen=True)
class PredictDDL(SavedPredictor):
    """Step times by a regression over the embedding of a network's graph, its cluster and its plan.

    regression: of `REGRESSIONS`. features: of `FEATURES`; quantities are a graph's FLOPs, parameters, activations,
    kernels, nodes and depth. Networks that lie far from all measured ones have wider bands, and are declined at last.
    """

    regression: str = "boosting"
    features: str = "both"
    model: GraphRegression | None = None

    name = "predictddl"
    version = 1
    options = (
        PredictorOption("regression", "boosting", "what learns the times", tuple(REGRESSIONS)),
        PredictorOption("features", "both", "what it reads of a network", FEATURES),
    )

    def __post_init__(self) -> None:
        """Refuse an option that there is not, and a model of other features. Raises ValueError or IndexError."""
        if self.regression not in REGRESSIONS or self.features not in FEATURES:
            raise ValueError(f"no regression {self.regression} of {self.features}")
        if self.model is not None:
            quantities, sizes = 6 * (self.features != "embedding"), self.model.reach.shape[1]
            width = self.model.places.shape[1] * (self.features != "quantities")
            self.model.regression.predict(self._seen(np.zeros((1, width + quantities + sizes))))

    def fit(self, runs: Runs) -> PredictDDL:
        """Return a predictor that has learned from the runs.

        Raises:
            RequestError: fewer than 12 runs with a step time and a graph, or of fewer than 3 networks.
            MissingExtraError: scikit-learn, XGBoost or safetensors is not installed.
        """
        runs = sorted_runs(runs)
        rows, seconds = GraphRows(runs.jobs), runs.step_seconds()
        used = np.flatnonzero(is_none(rows.declined) & np.isfinite(seconds))
        names = np.array([w.name for w in runs.jobs.workloads])
        network = names[runs.jobs.workload_index[used]]
        distinct, code = np.unique(network, return_inverse=True)
        if len(used) < LEAST_RUNS or len(distinct) < LEAST_NETWORKS:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"{len(used)} of {len(distinct)} networks have a step time, a known graph and a known device",
                f"give at least {LEAST_RUNS} such runs, of at least {LEAST_NETWORKS} networks",
            )
        x, y = rows.matrix(self.features)[used], np.log(seconds[used])
        place = np.array([runs.jobs.workload_index[used][network == n][0] for n in distinct])
        embedded = rows.embedded[place]
        centre, scale = embedded.mean(axis=0), np.maximum(embedded.std(axis=0), 1e-9)
        places = (embedded - centre) / scale
        away = _apart(places, places)
        np.fill_diagonal(away, np.inf)
        usual = float(np.maximum(np.median(away.min(axis=1)), 1e-9))
        missed = np.empty(len(used))
        turn = np.random.default_rng(0).permutation(len(distinct)) % min(PARTS, len(distinct))
        for part in range(turn.max() + 1):
            out = turn[code] == part
            missed[out] = y[out] - self._fitted(x[~out], y[~out]).predict(self._seen(x[out]))
        sigma = max(_reach(np.abs(missed), code) / Z95, LEAST_SIGMA)
        sizes = rows.sizes[used]
        learned = GraphRegression(
            self._fitted(x, y), tuple(distinct.tolist()), places, centre, scale, usual, sigma,
            np.stack([sizes.min(axis=0), sizes.max(axis=0)]), len(used),
        )  # fmt: skip
        return replace(self, model=learned)

    def _seen(self, x: FloatArray) -> FloatArray:
        """Return the columns that the regression reads: of the polynomial, squares and products as well."""
        if not REGRESSIONS[self.regression][2]:
            return x
        first, second = np.triu_indices(x.shape[1])
        return np.concatenate([x, x[:, first] * x[:, second]], axis=1)

    def _fitted(self, x: FloatArray, y: FloatArray) -> Regression:
        technique, given, _ = REGRESSIONS[self.regression]
        return fitted(technique, given, self._seen(x), y)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return step seconds of n jobs; memory is not answered (NaN)."""
        rows = GraphRows(jobs)
        blank, declined, learned = Forecasts.blank(len(jobs), self.name), rows.declined, self.model
        if learned is None:
            reason = "predictddl knows no runs; fit it to some (--fit, or forerun fit)"
            return replace(blank, declined=np.where(is_none(declined), reason, declined))
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
        log = learned.regression.predict(self._seen(rows.matrix(self.features)[known]))
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
        return replace(
            blank, seconds=seconds, floor_seconds=floor, declined=declined, distance=distance,
            nearest=nearest,
        )  # fmt: skip


def _reach(off: FloatArray, code: IntArray) -> float:
    """Return the 90 % quantile of errors, each network counting alike."""
    weight = 1.0 / np.bincount(code)[code]
    order = np.argsort(off)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(off[order][min(int(np.searchsorted(share, 0.9)), len(off) - 1)])
