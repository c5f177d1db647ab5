"""Probed devices: a step is made of measured operations, and of what was measured beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.graph import Graph, Op, OpKind, Phase
from forerun.domain.hardware import Cluster, Link
from forerun.domain.job import Job
from forerun.domain.measured import Curve, Exchange, Measured, Update
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.layout import lay_out
from forerun.predictors.analytic.measured import BUCKETS, buckets_of
from forerun.tables import Jobs, Runs, Table
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_workload
from forerun.wire import clean, job_key, read
from forerun.workloads.zoo import zoo_workload

FLAT = ((1.0, 1e9),)
PRODUCT = ((1.0, 1e9), (1.0, 1e9), (1.0, 1e9))


def flat(seconds: float) -> Curve:
    """Return a curve over one size that is the same everywhere."""
    return Curve(FLAT, (seconds, seconds))


def product(seconds: float) -> Curve:
    """Return a curve over three sizes that is the same everywhere."""
    return Curve(PRODUCT, (seconds,) * 8)


def measured(**changes: object) -> Measured:
    """Return figures that are easily told apart in a sum."""
    curves = {
        "fp32/matmul.forward": product(1e-3), "fp32/matmul.dgrad": product(2e-3),
        "fp32/matmul.wgrad": product(4e-3), "fp32/relu": flat(1e-4), "fp32/elementwise": flat(8e-4),
    }  # fmt: skip
    given = {"updates": {"sgd": Update(1e-5, 0.0, 0.0)}, **changes}
    return Measured(curves, **given)  # type: ignore[arg-type]


def linear_net(layers: int = 1) -> Workload:
    """Return layers of 1024 x 1024, an activation after each, and their gradients."""
    n = 1024
    cells = {"reads": float(n), "writes": float(n)}
    work = {"flops": 2.0 * n * n, "weights": float(n * n)}
    ops = (
        Op("fc.addmm", OpKind.MATMUL, dims=(1, n, n, 1), params=n * n, repeat=layers, **cells, **work),
        Op("act.relu", OpKind.ELEMENTWISE, repeat=layers, **cells),
        Op("act.threshold_backward", OpKind.ELEMENTWISE, Phase.BACKWARD, repeat=layers, **cells),
        Op("fc.addmm.dgrad", OpKind.MATMUL, Phase.BACKWARD, dims=(1, n, n, 1), repeat=layers,
           **cells, **work),
        Op("fc.addmm.wgrad", OpKind.MATMUL, Phase.BACKWARD, dims=(n, n, 1, 1), repeat=layers,
           reads=2.0 * n, **work),
        Op("optimizer.sgd", OpKind.OPTIMIZER, Phase.OPTIMIZER, reads=2.0 * n * n, writes=1.0 * n * n),
    )  # fmt: skip
    return Workload("net", Graph(ops), precision="fp32", optimizer="sgd", framework="pytorch")


def cluster(known: Measured | None, nodes: int = 1) -> Cluster:
    """Return nodes of one probed CPU each."""
    device = tiny_device("probed", kind="cpu", measured=known, peak_flops={"fp32": 1e15})
    link = Link("measured", 0.0, 1e8)
    return tiny_cluster(nodes, 1, device, intra=link, inter=link)


def seconds(known: Measured, nodes: int = 1, workload: Workload | None = None) -> float:
    """Return the predicted step with priors, 8 samples a worker."""
    job = Job(workload or linear_net(), cluster(known, nodes),
              Plan(dp=nodes, micro_batch=8, global_batch=8 * nodes))  # fmt: skip
    return float(AnalyticPredictor().predict(Jobs.of([job])).seconds[0, 1])


def test_each_operation_costs_what_its_own_curve_says_and_its_class_else() -> None:
    # forward 1 ms + relu 0.1 ms; backward: class of elementwise 0.8 ms, 2 ms and 4 ms.
    assert seconds(measured()) == pytest.approx(1e-3 + 1e-4 + 8e-4 + 2e-3 + 4e-3 + 1e-5)


def conv_net(side: int) -> Workload:
    """Return one convolution of 3 x 3 on images of a side, 512 channels to 512."""
    n, pixels = 512, side * side
    dims = (pixels, n, 9 * n, 1)
    conv = Op("c.conv", OpKind.CONV, dims=dims, flops=2.0 * pixels * n * 9 * n, weights=9.0 * n * n)
    return Workload("net", Graph((conv,)), precision="fp32", optimizer="none", framework="pytorch")


def test_a_convolution_beyond_what_was_timed_changes_as_plain_products_do() -> None:
    timed = ((512.0, 4096.0), (16.0, 128.0), (27.0, 1152.0))
    plain = ((8.0, 512.0), (10.0, 1024.0), (10.0, 1024.0))
    # Plain products grow by 2 from 8 to 512 rows; by 3 and 5 in the other sizes.
    grown = tuple(2.0**i * 3.0**j * 5.0**k * 1e-3 for i in (0, 1) for j in (0, 1) for k in (0, 1))
    known = measured()
    curves = {
        **known.curves, "fp32/conv.forward": Curve(timed, (1.0,) * 8), "fp32/matmul.forward": Curve(plain, grown),
    }  # fmt: skip
    known = Measured(curves, updates=known.updates)
    product = Curve(plain, grown)
    small = seconds(known, workload=conv_net(1))  # 8 samples of one pixel
    expected = product.at(8.0, 512.0, 4608.0) / product.at(512.0, 128.0, 1152.0)
    assert small - 1e-5 == pytest.approx(float(expected))  # less the optimizer's
    inside = seconds(known, workload=conv_net(16))  # 2,048 rows, which were timed
    whole = product.at(512.0, 512.0, 4608.0) / product.at(512.0, 128.0, 1152.0)
    assert inside - 1e-5 == pytest.approx(float(whole))


def test_few_pixels_of_many_channels_are_as_much_work_as_more_of_fewer() -> None:
    known = measured()
    curve = Curve(((512.0, 4096.0), (16.0, 256.0)), (1e-3, 16e-3, 8e-3, 128e-3))
    curves = {**known.curves, "fp32/conv_depthwise.forward": curve}
    known = Measured(curves, updates=known.updates)

    def step(pixels: int, channels: int) -> float:
        dims = (pixels, 1, 9, channels)
        flops = 18.0 * pixels * channels
        op = Op("c.conv", OpKind.CONV_DEPTHWISE, dims=dims, flops=flops, weights=9.0 * channels)
        net = Workload("net", Graph((op,)), precision="fp32", optimizer="none", framework="pytorch")
        return seconds(known, workload=net)

    # 8 samples: 32 pixels of 256 channels are 512 of 16.
    assert step(4, 256) == pytest.approx(step(64, 16))


def test_calls_steps_gradients_and_loaders_are_added() -> None:
    more = measured(
        forward_call_seconds=1e-5, backward_call_seconds=1e-4, gradient_seconds=1e-3,
        step_seconds=1e-2, batch_seconds=0.1, sample_seconds=1.0,
    )  # fmt: skip
    added = 2 * 1e-5 + 3 * 1e-4 + 1e-3 + 1e-2 + 0.1 + 8.0
    assert seconds(more) - seconds(measured()) == pytest.approx(added)


def test_what_lies_far_away_takes_longer_the_larger_the_step() -> None:
    near = measured()
    memory = Curve(((1e4, 1e9),), (1e-10, 1e-8))
    far = replace(near, curves={**near.curves, "fp32/memory": memory})
    small, large = seconds(far), seconds(far, workload=linear_net(20))
    assert small > 1.05 * seconds(near)
    # Of 20 layers each waits longer than the only one: what it needs was touched longer ago.
    assert large - seconds(near, workload=linear_net(20)) > 1.5 * 20 * (small - seconds(near))


def test_a_slower_neighbour_slows_what_is_computed() -> None:
    assert seconds(measured(hosts_together=(1.0, 3.0)), 1) == seconds(measured(), 1)
    slow, quick = (seconds(measured(hosts_together=(1.0, by)), 2) for by in (3.0, 1.0))
    assert slow - quick == pytest.approx(2.0 * seconds(measured()))


def test_all_reduces_are_added_but_for_what_backward_hides() -> None:
    curve = Curve(((4.0, 1e9),), (0.05, 0.05))
    link = {"inter": Exchange(0.0, 1e8, all_reduces={2: curve})}
    alone = seconds(measured(links=link), 1)
    # One layer: its gradient is the last thing that backward makes.
    assert seconds(measured(links=link), 2) - alone == pytest.approx(0.05, rel=1e-6)
    several = seconds(measured(links=link), 2, linear_net(4))
    # 4 gradients of 4 MB: the first bucket closes at once, the others wait for backward's end.
    assert several - seconds(measured(links=link), 1, linear_net(4)) < 2 * 0.05


def test_a_bucket_closes_when_it_is_full_and_the_last_one_waits_for_the_end_of_backward() -> None:
    mega = 2.0**20
    found = buckets_of([(0.6 * mega, 0.2), (0.6 * mega, 0.4), (2 * mega, 0.9), (0.1 * mega, 1.0)])
    assert found[0] == (pytest.approx(1.2 / 3.3), 0.4)
    assert found[1] == (pytest.approx(2.1 / 3.3), 1.0)
    assert found[2:] == [(0.0, 1.0)] * (BUCKETS - 2)


def test_many_buckets_are_joined_and_lose_nothing() -> None:
    found = buckets_of([(30 * 2.0**20, (i + 1) / 40) for i in range(40)])
    assert len(found) == BUCKETS
    assert sum(share for share, _ in found) == pytest.approx(1.0)
    assert [ready for _, ready in found] == sorted(ready for _, ready in found)


def test_runs_correct_measured_products() -> None:
    """Calibration moves what was measured, though not far: the probe is trusted."""
    job = Job(linear_net(), cluster(measured()), Plan(micro_batch=8, global_batch=8))
    jobs = Jobs.of([job] * 3)
    before = float(AnalyticPredictor().predict(jobs).seconds[0, 1])
    runs = Runs(jobs, Table({"step_time_s": np.full(3, 1.2 * before)}, 3))
    after = float(AnalyticPredictor().fit(runs).predict(jobs).seconds[0, 1])
    assert before < after <= 1.25 * before


def test_an_answer_about_a_probed_device_is_surer_than_one_by_its_data_sheet() -> None:
    plan = Plan(micro_batch=8, global_batch=8)
    known, busy, unknown = (
        AnalyticPredictor().predict(Jobs.of([Job(linear_net(), cluster(m), plan)])).seconds[0]
        for m in (measured(), measured(sureness=0.2), None)
    )
    assert known[2] / known[0] < busy[2] / busy[0] < unknown[2] / unknown[0]
    assert busy[1] == known[1]


def test_a_brief_answer_of_a_probed_device_is_that_of_the_whole_one() -> None:
    """Also where some columns hold one value and others do not."""
    known = measured(cold_call_seconds=1e-4, links=meeting(5e-3))
    jobs = Jobs.of([
        Job(linear_net(), cluster(known, nodes), Plan(
            dp=nodes, micro_batch=8, global_batch=8 * nodes, sync=sync, parameter_servers=servers))
        for nodes in (2, 4) for sync, servers in (("allreduce", 0), ("ps-sync", 2), ("ps-async", 1))
    ])  # fmt: skip
    whole, brief = (AnalyticPredictor().predict(jobs, detail=detail) for detail in (True, False))
    assert np.isfinite(whole.seconds).all()
    assert np.allclose(brief.seconds, whole.seconds, rtol=1e-12)


def test_workers_and_servers_begin_each_step_with_cold_caches() -> None:
    """Each kind of operation of the worker, five, and of its server, three, adds a cold call; all-reduce has none."""

    def step(cold: float, layers: int, sync: str) -> float:
        job = Job(linear_net(layers), cluster(measured(cold_call_seconds=cold)), Plan(
            micro_batch=8, global_batch=8, sync=sync, parameter_servers=int(sync == "ps-sync")))  # fmt: skip
        return float(AnalyticPredictor().predict(Jobs.of([job])).seconds[0, 1])

    added = [step(1e-3, n, "ps-sync") - step(0.0, n, "ps-sync") for n in (1, 6)]
    assert added == pytest.approx([8e-3, 8e-3], rel=0.01)
    assert step(1e-3, 1, "allreduce") == step(0.0, 1, "allreduce")


def test_tables_by_rows_take_a_worker_sixteen_kinds_of_operations_and_its_server_six() -> None:
    job = Job(zoo_workload("dlrm").with_(framework="pytorch"), cluster(measured()), Plan(
        micro_batch=8, global_batch=8, sync="ps-sync", parameter_servers=1))  # fmt: skip
    kinds = float(lay_out(Jobs.of([job]), Constants()).rows(Constants()).work["kinds"][0])

    def step(cold: float) -> float:
        probed = replace(job, cluster=cluster(measured(cold_call_seconds=cold)))
        return float(AnalyticPredictor().predict(Jobs.of([probed])).seconds[0, 1])

    assert step(1e-3) - step(0.0) == pytest.approx((kinds + 16 + 3 + 6) * 1e-3, rel=0.01)


def test_devices_beside_a_probed_one_are_answered_as_without_it() -> None:
    plain = Job(tiny_workload(), tiny_cluster(1, 1), Plan(micro_batch=4, global_batch=4))
    probed = Job(linear_net(), cluster(measured(jitter_seconds=1.0), 2),
                 Plan(dp=2, micro_batch=8, global_batch=16))  # fmt: skip
    alone = AnalyticPredictor().predict(Jobs.of([plain])).seconds[0]
    beside = AnalyticPredictor().predict(Jobs.of([plain, probed])).seconds[0]
    assert beside.tolist() == alone.tolist()


def test_a_job_on_a_probed_device_comes_back_from_the_wire_and_figures_make_its_key() -> None:
    plan = Plan(micro_batch=8, global_batch=8)
    job = Job(linear_net(), cluster(measured()), plan)
    again = read(Job, clean(job))
    assert again.cluster.device.measured == job.cluster.device.measured
    assert job_key(again) == job_key(job)
    other = Job(linear_net(), cluster(measured(step_seconds=1.0)), plan)
    assert job_key(other) != job_key(job)


def meeting(rested: float) -> dict[str, Exchange]:
    """Return a link whose all-reduces take 0.2 s one after the other, and `rested` the first."""
    steady = Curve(((4.0, 1e9),), (0.2, 0.2))
    first = Curve(((4.0, 1e9),), (rested, rested))
    return {"inter": Exchange(0.0, 1e8, all_reduces={2: steady}, rested={2: first})}


def test_a_link_that_rested_while_there_was_work_is_the_faster_and_no_step_beats_its_rate() -> None:
    busy = linear_net(60)  # computes for longer than an all-reduce takes
    steady, rested = (seconds(measured(links=meeting(r)), 2, busy) for r in (0.2, 0.15))
    assert steady - rested == pytest.approx(0.05, rel=0.01)
    # A step of 8 ms gathers no more than 8 ms of its all-reduces.
    idle = linear_net(1)
    steady, rested = (seconds(measured(links=meeting(r)), 2, idle) for r in (0.2, 0.01))
    assert 0.2 <= rested < steady
    assert steady - rested == pytest.approx(seconds(measured(), 1, idle), rel=0.01)


def test_a_smaller_part_of_a_core_takes_the_longer_and_threads_are_no_more_cores() -> None:
    known = measured(about={"cpu_share": "0.2", "threads": "1"}, step_seconds=1e-3)
    job = Job(linear_net(), cluster(known), Plan(micro_batch=8, global_batch=8))

    def at(share: str) -> float:
        labels = Table({"cpus_per_worker": np.array([share], dtype=object)}, 1)
        jobs = replace(Jobs.of([job]), labels=labels)
        return float(AnalyticPredictor().predict(jobs).seconds[0, 1])

    usual = seconds(known)
    assert at("") == at("0.2") == usual
    assert at("0.1") == pytest.approx(2.0 * usual)
    assert at("1") == at("4") == pytest.approx(0.2 * usual)
