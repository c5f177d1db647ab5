"""Layers of one shape: what a shallow model's runs say of a deep one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.layout import shapes_of_rows
from forerun.tables import Jobs, Runs, Table
from forerun.testing.samples import tiny_cluster
from tests.predictors.analytic.physics import UNNAMED, cluster_of, transformer

ODD = 1.3  # what the layers of one cut take over what physics says
SHALLOW = (4, 8, 12)


def plan_of(micro_batch: int, tp: int = 1) -> Plan:
    """Return a plan for eight devices with that micro-batch."""
    return Plan(dp=8 // tp, tp=tp, micro_batch=micro_batch, global_batch=64)


def job(layers: int, micro_batch: int) -> Job:
    """Return a transformer of some depth on eight devices."""
    workload = transformer(layers=layers).with_(name=f"gpt-{layers}")
    return Job(workload, cluster_of(8), plan_of(micro_batch))


def runs() -> Runs:
    """Return runs of shallow models that go as physics says, but for one micro-batch."""
    jobs = Jobs.of([job(layers, micro) for layers in SHALLOW for micro in (1, 2, 4) for _ in "ab"])
    seconds = AnalyticPredictor().predict(jobs).seconds[:, 1]
    seconds = np.where(jobs.plans.micro_batch == 2, ODD * seconds, seconds)
    return Runs(jobs, Table.from_rows([{"step_time_s": s, "status": "ok"} for s in seconds]))


def test_an_odd_cut_of_a_shallow_model_is_odd_in_a_deep_one() -> None:
    """Runs of 4, 8 and 12 layers teach 32 layers which micro-batch is slow, and that alone."""
    asked = Jobs.of([job(32, 2), job(32, 4)])
    before = AnalyticPredictor().predict(asked).seconds[:, 1]
    after = AnalyticPredictor().fit(runs()).predict(asked).seconds[:, 1]
    odd, usual = after / before
    assert odd > 1.15
    assert odd / usual > 1.12


def test_shapes_tell_cuts_and_widths_apart_and_not_depths() -> None:
    """Depth, replicas and the batch do not change a layer; width, cut and device do."""
    narrow, wide = transformer(), transformer(hidden=2048)
    deep = transformer(layers=16)
    cluster = cluster_of(8)
    rows = [
        Job(narrow, cluster, plan_of(1)), Job(deep, cluster, plan_of(1)),
        Job(narrow, cluster_of(16), Plan(dp=16, micro_batch=1, global_batch=32)),
        Job(wide, cluster, plan_of(1)), Job(narrow, cluster, plan_of(2)),
        Job(narrow, cluster, plan_of(1, tp=2)),
    ]  # fmt: skip
    names = shapes_of_rows(Jobs.of(rows)).tolist()
    assert names[0] == names[1] == names[2]
    assert len(set(names)) == 4


def test_other_nets_have_no_layer_shape() -> None:
    """Where nothing says what a layer is, no scale is learned or applied."""
    net = transformer()
    bare = net.with_(shape=type(net.shape)())
    assert shapes_of_rows(Jobs.of([Job(bare, cluster_of(8), plan_of(1))])).tolist() == [""]


def test_a_scale_of_one_shape_moves_its_layers_alone() -> None:
    """The named layers take that much longer, the ends and other cuts what they took."""
    jobs = Jobs.of([job(8, 1), job(8, 2)])
    plain = AnalyticPredictor(UNNAMED)
    name = shapes_of_rows(jobs)[0]
    slower = AnalyticPredictor(replace(plain.constants, shape_scale={name: 2.0}))
    before, after = (p.predict(jobs) for p in (plain, slower))
    assert after.seconds[1, 1] == pytest.approx(before.seconds[1, 1])
    grown = after.seconds[0, 1] / before.seconds[0, 1]
    assert 1.2 < grown < 2.0


def test_a_cut_that_leaves_the_node_is_another_than_one_inside_it() -> None:
    """Tensor groups over nodes name their link; those inside a node are the same with many nodes."""
    net = transformer()
    rows = [
        Job(net, cluster, Plan(dp=cluster.devices // 8, tp=8, micro_batch=1, global_batch=64))
        for cluster in (tiny_cluster(1, 8), tiny_cluster(2, 8), tiny_cluster(2, 4))
    ]
    inside, many, over = shapes_of_rows(Jobs.of(rows)).tolist()
    assert inside == many
    assert over == f"{inside} over ethernet"


def test_a_shape_learned_over_a_link_is_not_applied_inside_a_node() -> None:
    """A slow layer over Ethernet says nothing of the same layer inside one node."""
    net = transformer()
    plan = Plan(dp=1, tp=8, micro_batch=1, global_batch=64)
    jobs = Jobs.of([Job(net, c, plan) for c in (tiny_cluster(1, 8), tiny_cluster(2, 4))])
    plain = AnalyticPredictor(UNNAMED)
    scale = {shapes_of_rows(jobs)[1]: 2.0}
    slower = AnalyticPredictor(replace(plain.constants, shape_scale=scale))
    inside, over = slower.predict(jobs).seconds[:, 1] / plain.predict(jobs).seconds[:, 1]
    assert inside == 1.0
    assert over > 1.5
