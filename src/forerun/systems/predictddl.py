"""PredictDDL's components by their published names, thin over the store, the predictor and Ray.

A controller takes jobs; a task checker says whether an encoder and a regression are there for their type of
dataset, and which command trains them if not; an offline trainer makes these and keeps them in a store; a
resource collector says what a cluster has; an inference engine answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forerun import registry
from forerun.catalog import Catalog, load_catalog
from forerun.domain.forecast import Forecasts
from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.graphs.predictddl import (
    TRAIN,
    PredictDDL,
    WorkloadEmbeddingsGenerator,
    dataset_type,
    type_words,
)
from forerun.predictors.options import started
from forerun.systems.recipe import predictor_spec
from forerun.tables import Jobs, Runs

__all__ = [
    "ClusterResourceCollector", "Controller", "InferenceEngine", "NodeResources", "OfflineTrainer", "TaskChecker",
    "TaskStatus", "WorkloadEmbeddingsGenerator",
]  # fmt: skip

KIND = "predictddl"  # of artifacts in the store
_ACCELERATOR = "accelerator_type:"  # a Ray resource, such as accelerator_type:V100


@dataclass(frozen=True)
class NodeResources:
    """What one node has. accelerator: as Ray calls it (V100), "" where there is none, or it does not say."""

    cores: float
    memory_bytes: float
    gpus: int
    accelerator: str = ""


@dataclass(frozen=True)
class ClusterResourceCollector:
    """What a cluster has, as it says itself. nodes: of one moment."""

    nodes: tuple[NodeResources, ...]

    @staticmethod
    def of_ray(address: str = "auto") -> ClusterResourceCollector:
        """Return the nodes of a Ray cluster that is there. Raises RequestError where none answers."""
        runner: Any = registry.load("runners", "ray")(address=address)
        return ClusterResourceCollector(tuple(map(_of_ray_node, runner.node_resources)))

    @staticmethod
    def of_this_machine() -> ClusterResourceCollector:
        """Return this machine as one node: the cores and the memory that a process may use."""
        from forerun.measure.probe.machine import allowed_cores, memory_bytes

        here = NodeResources(allowed_cores(), memory_bytes(None, "cpu"), 0)
        return ClusterResourceCollector((here,))

    def cluster(self, device: str = "", catalog: Catalog | None = None) -> Cluster:
        """Return the nodes as a cluster that predictors know.

        device: a catalogue id; by default the accelerator that the nodes name. CPUs count as one device a node.

        Raises:
            RequestError: the nodes are not alike, or no device is known.
        """
        first = self.nodes[0]
        unlike = [n for n in self.nodes if (n.gpus, n.accelerator) != (first.gpus, first.accelerator)]  # fmt: skip
        named = device or first.accelerator
        asked = f"a cluster of {len(self.nodes)} nodes"
        if unlike or not named:
            raise RequestError(
                asked,
                "their accelerators differ" if unlike else "they name no accelerator",
                "collect equal nodes" if unlike else "give the device, such as one of `forerun probe`",
            )  # fmt: skip
        known = catalog or load_catalog()
        return known.cluster(f"{len(self.nodes)}x{max(first.gpus, 1)}x{known.device(named)[0].id}")


def _of_ray_node(resources: Mapping[str, float]) -> NodeResources:
    kinds = [name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR)]
    return NodeResources(
        float(resources.get("CPU", 0.0)), float(resources.get("memory", 0.0)),
        int(resources.get("GPU", 0)), kinds[0] if kinds else "",
    )  # fmt: skip


@dataclass(frozen=True)
class TaskStatus:
    """What is there for a type of dataset: an encoder, and the digest of a regression. command: trains what is missing."""

    dataset: str
    encoder: str
    regression: str
    command: str

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return bool(self.encoder and self.regression)


@dataclass(frozen=True)
class TaskChecker:
    """Says whether a workload's type of dataset was trained. store: as `forerun.store.open_store` returns it."""

    store: Any
    _read: dict[str, PredictDDL] = field(default_factory=dict, compare=False)

    def trained(self) -> Iterator[tuple[str, PredictDDL]]:
        """Yield the digests and predictors of the store, the newest first."""
        for artifact in reversed(self.store.artifacts.every(KIND)):
            if artifact.digest not in self._read:
                text = self.store.artifacts.read(artifact.digest).decode()
                self._read[artifact.digest] = PredictDDL.from_json(text)
            yield artifact.digest, self._read[artifact.digest]

    def check(self, workload: Workload) -> TaskStatus:
        """Return what is there for a workload."""
        return _status(workload, self.trained())


def _status(workload: Workload, trained: Iterable[tuple[str, PredictDDL]]) -> TaskStatus:
    words = type_words(*dataset_type(workload))
    for digest, predictor in trained:
        if predictor.model is not None and predictor.model.untrained(workload) is None:
            return TaskStatus(words, predictor.encoder, digest, "")
    return TaskStatus(words, PredictDDL.encoder, "", TRAIN)


@dataclass(frozen=True)
class OfflineTrainer:
    """Fits encoder and regression to runs, and keeps both in a store. spec: of the predictor; by default as published.

    An encoder is trained on Ray Train where Ray is connected or RAY_ADDRESS names a cluster, else in this process.
    """

    store: Any
    spec: str = ""

    def train(self, runs: Runs, keys: Sequence[str] = ()) -> PredictDDL:
        """Return a predictor that has learned from the runs; keys: theirs in the store. Raises as `PredictDDL.fit`."""
        predictor = started(self.spec or predictor_spec(KIND))
        if not isinstance(predictor, PredictDDL):
            raise RequestError(f"training {self.spec}", "it is no predictor of graphs", "give predictddl:...")  # fmt: skip
        return self.keep(predictor.fit(runs), keys)

    def keep(self, fitted: PredictDDL, keys: Sequence[str] = ()) -> PredictDDL:
        """Keep a fitted predictor where the task checker finds it, and return it."""
        self.store.artifacts.put(KIND, fitted.to_json(), kind=KIND, runs=keys, seed=0, command=TRAIN)  # fmt: skip
        return fitted


@dataclass(frozen=True)
class InferenceEngine:
    """Answers by one trained predictor."""

    predictor: PredictDDL

    def infer(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of n jobs."""
        return self.predictor.predict(jobs)


@dataclass(frozen=True)
class Controller:
    """Takes jobs, has their types of dataset checked, and has each answered by what was trained for it."""

    checker: TaskChecker

    @staticmethod
    def over(store: Any) -> Controller:
        """Return the controller of a store."""
        return Controller(TaskChecker(store))

    def answer(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of n jobs; those of a type that nobody trained carry the command that trains it."""
        trained = dict(self.checker.trained())
        statuses = [_status(workload, trained.items()) for workload in jobs.workloads]
        by = np.array([*(one.regression for one in statuses), ""])[jobs.workload_index]
        blank = Forecasts.blank(len(jobs), KIND)
        made = replace(blank, nearest=np.full(len(jobs), None, dtype=object))
        for digest in np.unique(by[by != ""]).tolist():
            rows = np.flatnonzero(by == digest)
            found = InferenceEngine(trained[digest]).infer(jobs.take(rows))
            for name in ("seconds", "floor_seconds", "declined", "distance", "nearest"):
                if (column := getattr(found, name)) is not None:
                    getattr(made, name)[rows] = column
        reasons = [f"nothing is trained for {one.dataset}; train it: {one.command}" for one in statuses]  # fmt: skip
        reasons.append("its workload is known by its label alone, and has no graph")
        untrained = np.flatnonzero(by == "")
        made.declined[untrained] = np.array(reasons, dtype=object)[jobs.workload_index[untrained]]
        return made
