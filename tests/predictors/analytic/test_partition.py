"""Layers cut over machines: equations (2.1) to (2.7) of KDD 2015 against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.domain.graph import Op, OpKind
from forerun.domain.job import Job
from forerun.domain.measured import Curve, Measured
from forerun.domain.plan import Plan, PlanColumns
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.communication import LINK_FIELDS, links_of
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.partition import ReplicaSteps, Ways, layer_costs, layers_of
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster
from forerun.workloads.backward import complete
from forerun.workloads.zoo import zoo_workload as load

LATENCY, RATE, BATCH = 1e-4, 1e9, 8.0
LINK = (LATENCY, RATE, LATENCY, RATE)
WAYS = Ways.of([2, 3, 4])  # whole, 2, 3 and 4 parts by units, then by space


def dense(name, n, k, *inputs):
    return Op(name, OpKind.MATMUL, flops=2.0 * n * k, reads=k, writes=n, weights=n * k, params=n * k,
              shape=(n,), dims=(1, n, k), saved=k, inputs=inputs)  # fmt: skip


def convolution(name, channels, side, before, *inputs):
    pixels, k = side * side, 9 * before
    return Op(name, OpKind.CONV, flops=2.0 * pixels * channels * k, reads=before * pixels,
              writes=channels * pixels, weights=channels * k, params=channels * k, shape=(channels, side, side),
              dims=(pixels, channels, k), saved=before * pixels, inputs=inputs)  # fmt: skip


def costs(ops, device="v100-sxm2-32gb", measured=None, **changes):
    work = Workload("net", complete(ops, "sgd"), precision="fp32", framework="pytorch")
    found = replace(load_catalog().device(device)[0], measured=measured)
    return layer_costs(work, found, WAYS, BATCH, 1.0, LINK, 1.0, 12.0, Constants(), **changes)


DENSE = (dense("a", 4096, 4096), dense("b", 4096, 4096, 0), dense("c", 10, 4096, 1))


def test_dense_layers_exchange_all_that_others_lack() -> None:
    size = 4096 * BATCH * 4.0
    found = costs(DENSE).exchange[0]
    half = 2 * (LATENCY + size / 2 / RATE)  # forward, and errors back
    assert found[0, 0] == 0
    assert found[1, 1] == pytest.approx(half)
    assert found[0, 1] == pytest.approx(2 * (LATENCY + size / RATE))
    assert found[1, 0] == pytest.approx(half)
    # One machine of three sends its third to two others, and lacks two thirds.
    assert found[2, 2] == pytest.approx(2 * (2 * LATENCY + size * 2 / 3 / RATE))
    # Those of four that held no third lack everything.
    assert found[2, 3] == pytest.approx(2 * (3 * LATENCY + size / RATE))


def test_messages_take_a_probed_processor_s_time() -> None:
    def exchange(measured: Measured | None, device: str = "cpu-c5.4xlarge"):
        return costs(DENSE, device, measured).exchange[0]

    probed = Measured(
        {}, forward_call_seconds=1e-5, message_seconds=1e-3, message_byte_seconds=1e-9
    )
    added = exchange(probed) - exchange(None)
    message = 1e-3 + Constants().message_calls * 1e-5
    received, sent = 2 / 3, 2 / 3  # of three, by each
    size = 4096 * BATCH * 4.0 * (received + sent)
    assert added[0, 0] == 0
    assert added[2, 2] == pytest.approx(2 * (2 * message + size * 1e-9))
    # What a probe did not time takes the link's time alone, as does all between GPUs.
    assert (exchange(replace(probed, message_seconds=0.0)) == exchange(None)).all()
    gpu = "v100-sxm2-32gb"
    assert (exchange(probed, gpu) == exchange(None, gpu)).all()


def test_parts_are_whole_neurons_and_no_more_than_there_are() -> None:
    found = costs((dense("a", 4096, 4096), dense("c", 3, 4096, 0)))
    assert np.isfinite(found.seconds[1, :3]).all()
    assert np.isinf(found.seconds[1, 3])  # three neurons are not four parts
    assert np.isinf(found.seconds[:, 4:]).all()  # a dense layer has no space
    # Two parts of three neurons: the larger holds two of them.
    assert found.held[1, 1] > found.held[1, 0] * 2 / 3
    assert found.sent[0, 1] == 4096 * 4096 / 2


def test_unequal_machines_get_neurons_by_their_speed() -> None:
    even, uneven = costs(DENSE), costs(DENSE, speeds=(1.0, 0.5, 0.5, 0.5))
    share = uneven.seconds[0, :3] / even.seconds[0, :3]
    assert share[0] == 1.0
    assert share[1] == pytest.approx(2 / 1.5, rel=1e-3)  # two thirds on the fast one
    assert share[2] == pytest.approx(3 / 2.0, rel=1e-3)


def test_images_cut_by_space_pass_their_edges_and_keep_all_weights() -> None:
    ops = (convolution("a", 16, 32, 3), convolution("b", 16, 32, 16, 0))
    found, layers = costs(ops), layers_of(complete(ops, "sgd"))
    assert layers.rows.tolist() == [32, 32]
    row = 16 * 32 * BATCH * 4.0
    assert layers.halo[1] == 2 * 16 * 32  # a row above and one below, of a 3 x 3 kernel
    assert found.exchange[0, 4, 4] == pytest.approx(2 * (2 * LATENCY + 2 * row / RATE))
    saved = 16 * 32 * 32 * BATCH * 4.0
    assert found.held[1, 4] == pytest.approx(16 * 144 * 12 + saved / 2)
    # From channels to strips each machine sends half of its half.
    assert found.exchange[0, 1, 4] == pytest.approx(
        2 * (3 * LATENCY + (16 * row / 2 + 2 * row) / RATE)
    )


def test_heads_of_attention_need_nothing_of_other_machines() -> None:
    work = load("bert-base")
    layers = layers_of(work.graph)
    scores = layers.names.index("layer.attention.scores")
    assert layers.own[scores]
    assert layers.units[scores] == work.shape.heads
    found = layer_costs(
        work,
        load_catalog().device("v100-sxm2-32gb")[0],
        WAYS,
        4.0,
        1.0,
        LINK,
        1.0,
        16.0,
        Constants(),
    )
    depth = int(np.flatnonzero(layers.order == scores)[0])
    assert found.exchange[depth - 1, 1, 1] == 0
    assert found.exchange[depth, 1, 1] > 0


@pytest.mark.parametrize("name", ["bert-base", "resnet50", "dlrm", "vgg16", "gpt2"])
def test_layers_hold_all_parameters_and_operations(name) -> None:
    work = load(name)
    layers = layers_of(work.graph)
    assert layers.params[layers.order].sum() == pytest.approx(work.params)
    repeats = np.bincount(layers.order)[layers.layer]
    flops = (work.graph.columns.flops[layers.ops] * repeats).sum()
    assert flops == pytest.approx(work.graph.forward_flops + work.graph.backward_flops)


def test_threads_add_arithmetic_and_share_memory_once_weights_spill_the_cache() -> None:
    small, large = (dense("a", 256, 256),), (dense("a", 16384, 16384),)

    def seconds(ops, threads, samples, measured=None):
        work = Workload("net", complete(ops, "sgd"), precision="fp32", framework="pytorch")
        device = replace(load_catalog().device("cpu")[0], memory_bytes_per_second=1e9)
        device = replace(device, measured=measured)
        return layer_costs(
            work, device, Ways.of([]), samples, 1.0, LINK, 1.0, 12.0, Constants(), threads=threads, cores=16.0
        ).seconds[0, 0]  # fmt: skip

    in_cache = [seconds(small, h, 1e6) for h in (1, 2, 16)]
    assert in_cache[0] == pytest.approx(2 * in_cache[1], rel=1e-3)
    assert in_cache[0] == pytest.approx(16 * in_cache[2], rel=1e-3)
    # One sample reads each weight once: no thread makes memory faster.
    assert seconds(large, 4, 1.0) == pytest.approx(seconds(large, 16, 1.0), rel=0.05)
    # A probe's co-running measurement stands in place of both: by 2 threads 1.0 and 1.9 times slower.
    curve = Curve(((1e5, 1e9), (1.0, 2.0)), (1.0, 1.0, 1.0, 1.9))
    probed = [seconds(large, h, 1.0, Measured({}, co_running=curve)) for h in (1, 2)]
    assert probed[0] / probed[1] == pytest.approx(2 / 1.9, rel=0.02)
    probed = [seconds(small, h, 1.0, Measured({}, co_running=curve)) for h in (1, 2)]
    assert probed[0] / probed[1] == pytest.approx(2.0, rel=0.08)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("sync", ["ps-sync", "ps-stale"])
def test_servers_update_all_parameters_of_cut_replicas(sync: str, replicas: int) -> None:
    """In step, of replicas in eight parts or whole, servers add and update as many numbers, and handle more messages."""
    device = load_catalog().device("v100-sxm2-32gb")[0]
    plan = Plan(
        dp=replicas, micro_batch=16, global_batch=16 * replicas, sync=sync, parameter_servers=4
    )
    found, index = {}, np.zeros(1, dtype=np.int64)
    for parts in (1, 8):
        jobs = Jobs.grid(
            load("vgg16"), tiny_cluster(replicas * parts, 1, device), PlanColumns.of([plan])
        )
        steps = ReplicaSteps(jobs, np.array([parts]), Constants())
        share = np.full(1, 1.0 / parts)
        found[parts] = steps.parts(index, share, share)["server compute"][0]
    assert found[1] < found[8] < 1.1 * found[1]


def forecast(work, parts, predictor=None, **plan):
    """Return what is said of one replica of 32 samples, or more, on so many machines for each."""
    device = load_catalog().device("v100-sxm2-32gb")[0]
    plan = Plan(
        **{"micro_batch": 32, "global_batch": 32 * plan.get("dp", 1), **plan}, partitions=parts
    )
    job = Job(work, tiny_cluster(plan.world_size, 1, device), plan)
    return (predictor or AnalyticPredictor.shipped()).predict(Jobs.of([job]))


def net(*ops):
    return Workload("net", complete(list(ops), "sgd"), precision="fp32", framework="pytorch")


def test_a_job_whose_layers_are_cut_holds_and_computes_a_part() -> None:
    """Two dense layers in four parts; each part gathers all 4096 inputs of the second, and their errors."""
    layers = dense("a", 4096, 4096), dense("b", 4096, 4096, 0)
    whole, cut = (forecast(net(*layers), parts) for parts in (1, 4))
    moved = cut.parts["tensor comm"][0]
    assert whole.parts["tensor comm"][0] == 0
    inputs = 32 * 4096 * 4.0
    near = tiny_cluster(4, 1, load_catalog().device("v100-sxm2-32gb")[0]).inter
    assert moved > 2 * (3 * near.latency_seconds + 0.75 * inputs / near.bytes_per_second)
    assert cut.seconds[0, 1] == pytest.approx(sum(float(v[0]) for v in cut.parts.values()))
    assert (np.diff(cut.seconds[0]) > 0).all()
    assert cut.seconds[0, 1] >= cut.floor_seconds[0] == pytest.approx(whole.floor_seconds[0] / 4)
    for name in ("weights", "gradients", "optimizer"):
        assert cut.memory_parts[name][0] == pytest.approx(whole.memory_parts[name][0] / 4)
    # Of what two layers save, a quarter is a part's own, and three quarters are gathered.
    assert cut.memory_parts["activations"][0] == pytest.approx(whole.memory_parts["activations"][0])


def test_memory_is_that_of_the_largest_part_and_layers_too_narrow_stay_whole() -> None:
    layers = dense("a", 10, 4096), dense("b", 3, 10, 0)
    held = {p: forecast(net(*layers), p).memory_parts["weights"][0] for p in (1, 3, 4, 10)}
    whole = 4096 * 10 + 10 * 3
    assert held[3] / held[1] == pytest.approx((4 * 4096 + 10) / whole)
    assert held[4] / held[1] == pytest.approx((3 * 4096 + 10 * 3) / whole)
    assert held[10] / held[1] == pytest.approx((4096 + 10 * 3) / whole)
    (reason,) = forecast(net(*layers), 11).declined
    assert (
        reason
        == "the widest layer of net has 10 channels, neurons or heads to cut; use partitions=10 at most"
    )


def test_servers_hold_the_model_once_whatever_it_is_cut_into() -> None:
    """Two replicas, and as many workers that each push a quarter, fill a servers' host alike."""
    found = {}
    for parts in (1, 4):
        device = load_catalog().device("v100-sxm2-32gb")[0]
        plan = Plan(
            dp=2,
            micro_batch=16,
            global_batch=32,
            sync="ps-sync",
            parameter_servers=2,
            partitions=parts,
        )
        cluster = replace(tiny_cluster(2 * parts, 1, device), host_memory_bytes=2e9)
        said = AnalyticPredictor.shipped().predict(Jobs.of([Job(load("vgg16"), cluster, plan)]))
        found[parts] = said.usable_bytes[0] / said.peak_bytes[0, 1]
        assert 0 < said.fit_probability[0] < 1
    assert found[4] == pytest.approx(found[1], rel=1e-3)


@pytest.mark.parametrize("name", ["", "pytorch"])
def test_cut_jobs_are_answered_alike_alone_among_others_and_without_details(name: str) -> None:
    device = load_catalog().device("v100-sxm2-32gb")[0]
    work = replace(load("vgg16"), framework=name)
    jobs = Jobs.of([
        Job(work, tiny_cluster(n, 1, device), Plan(dp=n // p, micro_batch=8, global_batch=32, partitions=p, sync=sync))
        for n, p in ((4, 1), (4, 2), (4, 4), (2, 2), (2, 1)) for sync in ("allreduce", "ps-async")
    ])  # fmt: skip
    predictor = AnalyticPredictor.shipped()
    together = predictor.predict(jobs)
    assert together.answered.all()
    for i in range(len(jobs)):
        alone = predictor.predict(Jobs.of([jobs[i]]))
        assert alone.seconds[0] == pytest.approx(together.seconds[i], rel=1e-9)
        assert alone.peak_bytes[0] == pytest.approx(together.peak_bytes[i], rel=1e-9)
    assert predictor.predict(jobs, detail=False).seconds == pytest.approx(
        together.seconds, rel=1e-9
    )


def four_a_node(parts, nodes=2, device="v100-sxm2-32gb", predictor=None, name="vgg16", **plan):
    """Return what is said of vgg16 on slow links between nodes of four devices, 8 samples a replica."""
    kind = load_catalog().device(device)[0]
    cluster = tiny_cluster(nodes, 4, kind)
    slow = replace(cluster.inter, bytes_per_second=1e8)
    cluster = replace(cluster, inter=slow, vcpus_per_device=4.0)
    plan = Plan(**{"dp": 4 * nodes // parts, "micro_batch": 8, **plan}, partitions=parts)
    plan = replace(plan, global_batch=8 * plan.dp)
    work = replace(load(name), framework="pytorch")
    return (predictor or AnalyticPredictor.shipped()).predict(Jobs.of([Job(work, cluster, plan)]))


def test_a_servers_host_has_the_link_of_a_whole_node() -> None:
    """Eight workers that push a quarter each take a quarter of what they take with the whole."""
    found = [four_a_node(p, sync="ps-sync", parameter_servers=2).parts for p in (1, 4)]
    whole, cut = (parts["worker link"][0] + parts["server link"][0] for parts in found)
    assert cut == pytest.approx(whole / 4, rel=0.02)


def test_servers_beside_workers_take_a_devices_share_of_a_cpu_node() -> None:
    added = {}
    for parts in (1, 4):
        apart, beside = (
            four_a_node(
                parts,
                device="cpu",
                sync="ps-sync",
                parameter_servers=2,
                servers_with_workers=where,
            ).memory_parts["weights"][0]
            for where in (False, True)
        )
        added[parts] = beside - apart
    # Each of two nodes has half of all weights, and a device a quarter of them.
    assert added[1] == pytest.approx(load("vgg16").params * 4.0 / 2 / 4, rel=1e-3)
    assert added[4] == pytest.approx(added[1], rel=1e-3)


def test_replicas_of_cut_models_on_one_node_are_fewer() -> None:
    """Two replicas in two parts on four devices reduce inside the node, in four parts they do not."""
    inside, outside = (four_a_node(p, nodes=p // 2).parts["data comm"][0] for p in (2, 4))
    assert inside < 0.1 * outside


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_cutting_divides_no_launches_and_the_exchange_is_counted_once(name: str) -> None:
    """One sample on A100s waits for the host: in more parts it still does, and layers' costs say what they exchange."""
    work, device = replace(load(name), framework="pytorch"), load_catalog().device("a100-sxm4-80gb")[0]  # fmt: skip
    predictor, steps = AnalyticPredictor.shipped(), {}
    for parts in (1, 2, 8):
        cluster = tiny_cluster(1, parts, device)
        plan = Plan(micro_batch=1, global_batch=1, partitions=parts)
        steps[parts] = predictor.predict(Jobs.of([Job(work, cluster, plan)])).parts
        if parts == 1:
            continue
        link = links_of([cluster]).effective(predictor.constants)
        pairs = tuple(float(link[n][0]) for n in LINK_FIELDS)
        found = layer_costs(
            work, device, Ways.of([parts], False), 1.0, 1.0, pairs, parts, 0.0, predictor.constants
        )
        way, depth = np.isfinite(found.seconds[:, 1]) * 1, np.arange(len(found.seconds))
        moved = found.exchange[depth[:-1], way[:-1], way[1:]].sum()
        assert steps[parts]["tensor comm"][0] == pytest.approx(moved, rel=0.02)
    hosts = [step["host"][0] for step in steps.values()]
    assert hosts[0] > steps[1]["forward"][0]
    assert min(hosts) >= hosts[0] * (1 - 1e-9)
    # No less than the launches of all layers, which no part is spared.
    layers = [
        sum(step[n][0] for n in ("forward", "backward", "tensor comm", "host"))
        for step in steps.values()
    ]
    assert min(layers) > 0.95 * layers[0]


def test_a_slower_machine_has_a_slower_host() -> None:
    device = load_catalog().device("a100-sxm4-80gb")[0]
    plan = PlanColumns.of([Plan(micro_batch=1, global_batch=1)])
    jobs = Jobs.grid(load("gpt2"), tiny_cluster(1, 1, device), plan)
    steps, one = ReplicaSteps(jobs, np.ones(1, int), Constants()), np.ones(1)
    usual, slow = (steps.parts(np.zeros(1, int), one * by, one, by) for by in (1.0, 2.0))
    for name in ("forward", "backward", "host"):
        assert slow[name][0] == pytest.approx(2 * usual[name][0], rel=1e-9)


@pytest.mark.parametrize("sync", ["allreduce", "ps-sync", "ps-async", "ps-stale"])
def test_each_part_reads_its_replicas_whole_batch(sync: str) -> None:
    """Where decoding limits, a step is as slow as that of one replica's host, whatever it is cut into."""
    slow = replace(AnalyticPredictor.shipped().constants, decode_seconds_per_byte=1.0)
    servers = {"sync": sync, "parameter_servers": 2 * (sync != "allreduce")}
    whole, cut = (
        four_a_node(parts, nodes=parts, predictor=AnalyticPredictor(slow), name="resnet50", dp=4, **servers).seconds[0, 1]
        for parts in (1, 4)
    )  # fmt: skip
    assert whole > 1.0
    assert cut == pytest.approx(whole, rel=1e-2)


@pytest.mark.parametrize("sync", ["ps-async", "ps-stale"])
def test_staleness_is_of_replicas_and_of_the_cut_jobs_cycle(sync: str) -> None:
    plan = {"dp": 4, "sync": sync, "parameter_servers": 2, "stale_bound": 2 * (sync == "ps-stale")}
    whole, cut = (forecast(replace(load("vgg16"), framework="pytorch"), p, **plan).staleness for p in (1, 4))  # fmt: skip
    assert cut["mean"][0] == pytest.approx(3.0, rel=0.05)  # of four replicas, not sixteen workers
    assert cut["p95"][0] < 12
    # Cycles are shorter in parts, and vary by another share of themselves.
    assert any(cut[name][0] != whole[name][0] for name in cut)
