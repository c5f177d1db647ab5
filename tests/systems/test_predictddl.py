"""PredictDDL's components: what is trained is found in the store, what is not carries the command that trains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.errors import RequestError
from forerun.store import open_store
from forerun.systems.predictddl import (
    KIND,
    ClusterResourceCollector,
    Controller,
    NodeResources,
    OfflineTrainer,
    TaskChecker,
)
from forerun.tables import Jobs, Runs, Table
from forerun.testing.samples import tiny_cluster
from forerun.workloads.zoo import zoo_workload

pytest.importorskip("sqlalchemy")
NAMES = ("resnet18", "resnet34", "resnet50", "vgg11", "alexnet", "mobilenet_v2")
PLAIN = "predictddl:regression=linear:features=embedding"


def jobs_of(*names: str) -> Jobs:
    return Jobs.of([
        Job(zoo_workload(name), tiny_cluster(1, devices), Plan(dp=devices, micro_batch=16, global_batch=16 * devices))
        for name in names for devices in (1, 2, 4)
    ])  # fmt: skip


def runs_of(*names: str) -> Runs:
    jobs = jobs_of(*names)
    seconds = np.array([job.workload.graph.forward_flops for job in jobs]) / 1e11
    return Runs(jobs, Table({"step_time_s": seconds}, len(jobs)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[object]:
    with open_store(str(tmp_path / "s.db")) as opened:
        yield opened


def test_before_training_every_job_carries_the_command_that_trains(store: object) -> None:
    status = TaskChecker(store).check(zoo_workload("resnet50"))
    assert not status.ready
    assert status.dataset == "images of 224 x 224"
    (reason,) = {*Controller.over(store).answer(jobs_of("resnet50")).declined}
    assert reason == (
        "nothing is trained for images of 224 x 224; train it:"
        " forerun fit --system predictddl --runs RUNS.csv --out MODEL.json"
    )


def test_what_was_trained_once_answers_networks_that_nobody_ran(store: object) -> None:
    trained = OfflineTrainer(store, PLAIN).train(runs_of(*NAMES))
    asked = jobs_of("resnet101", "bert-base")
    answer, direct = Controller.over(store).answer(asked), trained.predict(asked)
    assert answer.answered.tolist() == [True] * 3 + [False] * 3
    np.testing.assert_array_equal(answer.seconds, direct.seconds)
    assert answer.nearest is not None
    assert answer.nearest[0] == direct.nearest[0] != ""  # type: ignore[index]
    assert "nothing is trained for sequences" in answer.declined[3]
    status = TaskChecker(store).check(asked.workloads[0])
    assert status.ready
    assert status.regression == store.artifacts.get(KIND).digest  # type: ignore[attr-defined]


def test_a_job_that_is_known_by_its_label_alone_is_nobodys(store: object) -> None:
    OfflineTrainer(store, PLAIN).train(runs_of(*NAMES))
    asked = jobs_of("resnet101")
    labels = replace(asked, workload_index=np.array([-1, 0, -1]))
    answer = Controller.over(store).answer(labels)
    assert answer.answered.tolist() == [False, True, False]
    assert "by its label alone" in answer.declined[0]


def test_the_newest_regression_of_a_type_answers(store: object) -> None:
    trainer = OfflineTrainer(store, PLAIN)
    trainer.train(runs_of(*NAMES))
    newer = trainer.train(runs_of(*NAMES[:4]))
    asked = jobs_of("resnet101")
    found = Controller.over(store).answer(asked)
    np.testing.assert_array_equal(found.seconds, newer.predict(asked).seconds)


def test_another_side_of_images_is_another_type(store: object) -> None:
    OfflineTrainer(store, PLAIN).train(runs_of(*NAMES))
    checker = TaskChecker(store)
    for side, ready in ((299, True), (32, False)):
        asked = replace(zoo_workload("resnet50"), image_size=side)
        assert checker.check(asked).ready is ready


def test_a_trainer_of_another_predictor_is_refused(store: object) -> None:
    with pytest.raises(RequestError, match="no predictor of graphs"):
        OfflineTrainer(store, "analytic").train(runs_of(*NAMES))


def test_nodes_that_are_alike_are_a_cluster() -> None:
    node = NodeResources(16.0, 64e9, 4, "V100")
    cluster = ClusterResourceCollector((node, node)).cluster()
    assert (cluster.nodes, cluster.devices, cluster.device.id[:4]) == (2, 8, "v100")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((NodeResources(4.0, 8e9, 1, "V100"), NodeResources(4.0, 8e9, 1, "T4")), "accelerators differ"),
        ((NodeResources(4.0, 8e9, 0),), "name no accelerator"),
    ],
)  # fmt: skip
def test_nodes_that_are_no_cluster_are_refused(
    nodes: tuple[NodeResources, ...], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        ClusterResourceCollector(nodes).cluster()


def test_this_machine_is_a_node_with_cores_and_memory() -> None:
    (node,) = ClusterResourceCollector.of_this_machine().nodes
    assert node.cores > 0
    assert node.memory_bytes > 1e8
