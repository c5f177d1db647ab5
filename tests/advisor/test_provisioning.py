"""Provisioning: whole replicas are what the predictor says, and the best of them is found."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.domain.graph import Graph
from forerun.domain.measured import Curve
from forerun.domain.plan import SYNC
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.workloads.backward import complete
from tests.predictors.analytic.test_measured import measured
from tests.predictors.analytic.test_partition import dense

FOUR = "1x4xv100-sxm2-32gb"
MACHINE, EPOCH = "v100-sxm2-32gb", Length("epochs", 1)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return Advisor()


def forecast(advisor: Advisor, name: str, choice) -> tuple[float, float, float]:
    """Return the 5, 50 and 95 % quantiles of the predicted seconds of a choice of whole replicas."""
    answer = advisor.predict(
        name, f"{choice.replicas}x1x{MACHINE}", {
            "dp": choice.replicas, "sync": choice.sync, "parameter_servers": choice.servers,
            "micro_batch": choice.micro_batch, "zero_stage": 0, "recompute": "none",
        }, global_batch=choice.global_batch, length=EPOCH,
    )  # fmt: skip
    return answer.estimate.run_seconds


@pytest.mark.parametrize("name", ["resnet50", "wide_resnet50_2"])
def test_a_choice_of_whole_replicas_takes_what_is_predicted_of_its_plan(advisor, name) -> None:
    found = advisor.provision(name, MACHINE, machines=8, length=EPOCH)
    whole = [c for c in (found.best, *found.runners_up) if c.largest_partition == 1]
    assert {c.sync for c in whole} == {"allreduce", "ps-sync", "ps-async"}
    for choice in whole:
        low, run, high = forecast(advisor, name, choice)
        assert choice.run_seconds == pytest.approx(run, rel=2e-3)
        band = [end / choice.step_seconds for end in choice.step_range_seconds]
        assert band == pytest.approx([low / run, high / run], rel=2e-3)
    cut = [c for c in (found.best, *found.runners_up) if c.largest_partition > 1]
    for choice in cut:
        assert choice.step_range_seconds[0] < choice.step_seconds < choice.step_range_seconds[1]


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("sync", ["allreduce", "ps-sync", "ps-async"])
def test_a_plan_with_partitions_takes_what_the_same_cut_is_provisioned_with(
    advisor, sync, each
) -> None:
    layers = [dense(f"d{i}", 2048, 2048, *([i - 1] if i else [])) for i in range(6)]
    work = Workload("net", complete(layers, "momentum"), precision="fp32", framework="pytorch")
    plan = {"dp": 2, "sync": sync, "parameter_servers": 2 * (sync != "allreduce")}
    found = advisor.provision(
        work,
        f"1x{each}x{MACHINE}",
        machines=8 // each + 2,
        partitions=4,
        global_batch=64,
        plan=plan,
        length=Length("steps", 9),
    )
    best = found.best
    assert any("predict --partitions cuts all" in note for note in found.notes)
    assert [cut[1:] for cut in best.partitions] == [(4, "units")] * 6
    plan |= {"partitions": 4, "micro_batch": best.micro_batch}
    answer = advisor.predict(work, f"{8 // each}x{each}x{MACHINE}", plan, global_batch=64)
    assert any("all layers that can be cut are cut" in words for words in answer.warnings)
    assert answer.step_seconds[1] == pytest.approx(best.step_seconds, rel=1e-6)
    assert answer.forecast.parts["tensor comm"] == pytest.approx(best.parts["exchange"], rel=1e-6)


def test_a_choice_says_what_an_epoch_and_the_whole_run_take_and_cost(advisor) -> None:
    machine, asked = "aws:p3.2xlarge", {"machines": 4, "global_batch": 64}
    epoch = advisor.provision("resnet50", machine, length=EPOCH, **asked)
    usual = advisor.provision("resnet50", machine, **asked)  # 90 epochs
    stated = advisor.provision("resnet50", machine, length=Length("samples", 1e7), **asked)
    size = advisor.workload("resnet50").dataset_size
    for found, samples in ((epoch, size), (usual, 90 * size), (stated, 1e7)):
        for choice in (found.best, *found.runners_up, *found.curve):
            assert choice.steps == math.ceil(samples / choice.step_samples)
            assert choice.run_seconds == pytest.approx(choice.steps * choice.step_seconds)
            assert choice.epoch_seconds == pytest.approx(choice.run_seconds * size / samples, rel=1e-3)  # fmt: skip
            hours = choice.run_seconds / 3600
            assert choice.dollars == pytest.approx(hours * choice.dollars_per_hour)
    free = replace(advisor.catalog.cluster("1xaws:p3.2xlarge"), dollars_per_hour=None)
    endless = replace(advisor.workload("resnet50"), dataset_size=0.0, length=None)
    unknown = advisor.provision(endless, free, **asked).best
    assert (unknown.dollars, unknown.epoch_seconds, unknown.steps) == (None, None, 1000)


def test_a_choice_runs_to_the_target_where_the_predictor_forecasts_it(advisor) -> None:
    """Asynchronous updates need eight times the samples here: that their epochs are short is no gain."""

    class Targeted(AnalyticPredictor):
        def predict(self, jobs, detail=True):
            need = np.where(jobs.plans.sync == SYNC.index("ps-async"), 8e6, 1e6)
            samples = need[:, None] * (0.9, 1.0, 1.1)
            return replace(super().predict(jobs, detail), samples_to_target=samples)

    own = Advisor(predictor=Targeted(AnalyticPredictor.shipped().constants))
    asked = {"machines": 4, "global_batch": 64, "plan": "dp=2", "partitions": 1}
    for length in (None, EPOCH):
        found = own.provision("resnet50", MACHINE, length=length, **asked)
        choices = {c.kind: c for c in (found.best, *found.runners_up)}
        each = {kind: c.steps * c.step_samples for kind, c in choices.items()}
        if length is None:
            assert each["ps-async"] == pytest.approx(8 * each["ps-sync"]) == pytest.approx(8e6)
        else:  # what is stated counts
            assert each["ps-async"] == pytest.approx(each["ps-sync"], rel=1e-4)
        assert any("end at their target" in note for note in found.notes) == (length is None)


def test_no_whole_plan_is_better_and_more_machines_never_take_longer(advisor) -> None:
    found = advisor.provision("resnet50", MACHINE, machines=4, length=EPOCH, global_batch=64)
    sync = next(c for c in (found.best, *found.runners_up) if c.kind == "ps-sync")
    for replicas in (1, 2):
        for servers in range(1, 5 - replicas):
            other = replace(sync, replicas=replicas, servers=servers, micro_batch=64 // replicas)
            assert forecast(advisor, "resnet50", other)[1] >= sync.run_seconds * 0.998
    curve = [c.run_seconds for c in found.curve]
    assert curve == sorted(curve, reverse=True)
    assert min(c.behind for c in found.curve) == 1.0


def test_a_model_too_large_for_one_machine_is_cut(advisor) -> None:
    found = advisor.provision("llama3-8b", "a100-sxm-80gb", machines=8, global_batch=8)
    assert found.best.largest_partition > 1
    assert found.best.peak_bytes < 80e9
    assert any("does not fit" in note for note in found.notes)
    with pytest.raises(UnsatisfiedError, match="no cut fits in memory"):
        advisor.provision("llama3-8b", "t4", machines=2, global_batch=8)


@pytest.mark.parametrize(
    ("request_of", "next_step"),
    [
        ({"machines": 4, "partitions": 4000}, "between 1 and 2,048"),
        ({"machines": 4, "plan": "sync=ps-sync,parameter_servers=4"}, "at least 5 machines"),
        ({"machines": 4, "plan": "dp=8"}, "at least 8 machines"),
        ({"machines": 4, "plan": "parameter_servers=2"}, "give sync=ps-sync"),
        ({"machines": 4, "plan": "tp=2"}, "leave tp out"),
        ({"machines": 4, "plan": "sync=ps-async,pp=2"}, "leave pp out"),
        ({"machines": 4, "plan": "sync=ps-async,zero_stage=1"}, "leave zero_stage out"),
        ({"machines": 4, "plan": "sync=dataparallel"}, "use one of allreduce"),
        ({"machines": 4, "plan": "sync=ps-sync", "framework": "horovod"}, "use one of"),
        ({"machines": 0}, "such as 16"),
        ({"machines": 2.5}, "such as 16"),
        *(
            ({"machines": 4, "speeds": speeds}, "4 shares such as (1.0, 0.5, 0.5, 0.5)")
            for speeds in (
                (1.0, 0.5),
                "fast",
                (1, 1, 1, 0),
                (1, 1, 1, -1),
                (3, 1, 1, 1),
                (1, 1, 1, float("nan")),
                (0.5, 1, 1, 1),
            )
        ),
        ({"machines": 4, "partitions": 1.5}, "between 1 and 2,048"),
        (
            {"machines": 4, "partitions": {"layer1.0.conv1": 2, "layer4.0.con1": 2}},
            "did you mean layer4.0.conv1",
        ),
        ({"machines": 4, "partitions": {"stem": 2}}, "such as fc"),
        ({"machines": 4, "partitions": {"fc": 1001}}, "between 1 and 1,000"),
        ({"machines": 4, "partitions": {"layer1*": 65}}, "between 1 and 64"),
        ({"machines": 4, "partitions": {"fc": 0}}, "between 1 and 1,000"),
        ({"machines": 4, "partitions": {"fc": 8}}, "at least 8 machines"),
        ({"machines": 4, "threads": 2}, "leave threads out"),
        ({"machines": 4, "threads": 17, "on": "aws:c5.4xlarge"}, "between 1 and 16"),
        ({"machines": 4, "threads": 0, "on": "aws:c5.4xlarge"}, "between 1 and 16"),
        ({"machines": 4, "threads": 1.5, "on": "aws:c5.4xlarge"}, "between 1 and 16"),
        ({"dollars_per_hour": float("nan")}, "such as 20"),
        ({"dollars_per_hour": float("inf")}, "such as 20"),
        ({"machines": 4, "plan": "dp=3", "global_batch": 8}, "a global batch that"),
        ({"machines": 4, "plan": "dp=3", "global_batch": 8}, "such as 9, or dp=2"),
        ({"machines": 1, "plan": "sync=ps-sync"}, "at least 2 machines"),
        ({"machines": 8, "plan": "dp=5,sync=ps-sync,parameter_servers=2", "on": FOUR}, "give dp=4"),
        (
            {"machines": 2, "plan": "dp=8,sync=ps-sync,parameter_servers=2", "on": FOUR},
            "at least 4",
        ),
        ({"machines": 4, "partitions": 6, "global_batch": 7, "on": FOUR}, "such as 8"),
        ({"machines": 4, "plan": "micro_batch=100", "global_batch": 256}, "such as 300"),
        ({"machines": 4, "plan": "micro_batch=512", "global_batch": 256}, "such as 512"),
        ({"machines": 4, "plan": "sync=ps-sync,stale_bound=4"}, "give sync=ps-stale too"),
    ],
)
def test_a_wrong_request_names_the_smallest_that_works(advisor, request_of, next_step) -> None:
    with pytest.raises(RequestError) as error:
        advisor.provision("resnet50", request_of.pop("on", MACHINE), **request_of)
    assert next_step in error.value.next_step


def test_a_budget_pays_whole_machines_and_one_at_least(advisor) -> None:
    price = advisor.catalog.cluster("1xaws:p3.2xlarge").dollars_per_hour
    found = advisor.provision("resnet50", "aws:p3.2xlarge", dollars_per_hour=3.5 * price)
    assert found.most_machines == 3
    assert found.best.dollars_per_hour == pytest.approx(found.best.machines * price)
    with pytest.raises(RequestError, match="give at least"):
        advisor.provision("resnet50", "aws:p3.2xlarge", dollars_per_hour=0.9 * price)


def test_workers_with_a_bound_are_a_kind_of_their_own_and_stale(advisor) -> None:
    found = advisor.provision(
        "resnet50", MACHINE, machines=4, plan="sync=ps-stale,stale_bound=4,micro_batch=16",
        global_batch=64, partitions=1,
    )  # fmt: skip
    assert (found.best.kind, found.best.micro_batch) == ("ps-stale", 16)
    assert found.best.step_samples == 64
    assert any("stale" in note for note in found.notes)
    apart = advisor.provision(
        "resnet50", MACHINE, machines=4, plan="sync=ps-async", partitions=1
    ).best
    assert apart.step_samples * apart.replicas == apart.global_batch


def test_whole_replicas_take_as_long_as_the_slowest_machine_that_they_use(advisor) -> None:
    def step(replicas: int, *speeds: float):
        best = advisor.provision(
            "vgg16", MACHINE, machines=4, plan=f"dp={replicas},sync=allreduce", partitions=1,
            global_batch=64, length=EPOCH, speeds=speeds,
        ).best  # fmt: skip
        return best.parts["forward"] + best.parts["backward"], best.peak_bytes

    for replicas, times in ((1, 1.0), (2, 2.0), (4, 4.0)):
        (even, held), (uneven, same) = step(replicas), step(replicas, 1.0, 0.5, 0.5, 0.25)
        assert uneven == pytest.approx(times * even, rel=1e-6)
        assert same == held


def test_replicas_that_wait_for_none_go_at_their_own_pace(advisor) -> None:
    def rate(sync: str, replicas: int, *speeds: float) -> float:
        best = advisor.provision(
            "resnet50", MACHINE, machines=replicas + 1, plan=f"dp={replicas},sync={sync},parameter_servers=1,micro_batch=16",
            partitions=1, length=EPOCH, speeds=speeds,
        ).best  # fmt: skip
        return best.step_samples / best.step_seconds

    # As much as each alone gives, less what they wait for one another: most where all are fast.
    left = rate("ps-async", 4) / (4 * rate("ps-async", 1))
    for speeds in ((1.0, 0.1, 0.1, 0.1), (1.0, 0.5, 0.5, 0.25)):
        found = rate("ps-async", 4, *speeds, speeds[-1])  # the last machine is the server's
        alone = sum(rate("ps-async", 1, speed, speed) for speed in speeds)
        assert left * alone < found < alone
    even = rate("ps-async", 4, *[0.5] * 5)
    assert rate("ps-async", 4, *[0.5 + 1e-12] * 2, *[0.5] * 3) == pytest.approx(even, rel=1e-6)
    for sync in ("ps-sync", "ps-stale"):
        slow = rate(sync, 4, *[0.25] * 5)
        assert rate(sync, 4, 1.0, 0.5, 0.5, 0.25, 0.25) == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("share", ["x", True, 0.0, 1.5])
def test_a_sparse_fraction_is_a_share(advisor, share) -> None:
    with pytest.raises(RequestError, match=r"a share such as 0\.01"):
        advisor.workload("resnet50").with_(sparse_fraction=share)


def test_threads_are_chosen_where_a_probe_measured_them(advisor) -> None:
    node, asked = (
        advisor.catalog.cluster("1xaws:c5.4xlarge"),
        {"machines": 2, "global_batch": 16, "precision": "fp32"},
    )
    found = advisor.provision("resnet50", node, **asked)
    assert found.best.threads == 16
    assert any("no probe has measured threads" in note for note in found.notes)
    # By 16 threads each is 40 times slower than one alone.
    curve = Curve(((1e3, 1e9), (1.0, 16.0)), (1.0, 40.0, 1.0, 40.0))
    probed = replace(node, device=replace(node.device, measured=measured(co_running=curve)))
    found = advisor.provision("resnet50", probed, **asked)
    assert found.best.threads < 16
    assert not any("no probe" in note for note in found.notes)


@pytest.mark.parametrize(("slower", "threads"), [(1.2, 2), (2.2, 1)])
def test_threads_of_a_probed_machine_are_those_that_end_sooner(advisor, slower, threads) -> None:
    """A probe's rates are one thread's; two do twice as much, each slower by what it found."""
    curve = Curve(((1e3, 1e9), (1.0, 2.0)), (1.0, slower, 1.0, slower))
    found = {}
    for known in (None, curve):
        device = advisor.catalog.cluster("1xaws:c5.4xlarge").device
        device = replace(device, measured=measured(co_running=known))
        node = replace(
            advisor.catalog.cluster("1xaws:c5.4xlarge"), device=device, vcpus_per_device=0.0
        )
        asked = {"machines": 1, "global_batch": 16, "precision": "fp32", "framework": "pytorch"}
        found[known] = advisor.provision("resnet50", node, **asked).best
    assert found[curve].threads == threads
    one, best = (found[known].parts for known in (None, curve))
    share = slower / 2 if threads == 2 else 1.0
    assert best["backward"] == pytest.approx(share * one["backward"], rel=1e-3)


def test_stated_parts_of_layers_and_threads_give_the_best_of_all_that_have_them(advisor) -> None:
    """Every cut and number of threads is stated in turn; what is free takes the best of these."""
    layers = [dense("d0", 4096, 2048), dense("d1", 3, 4096, 0)]
    work = Workload("net", complete(layers, "sgd"), precision="fp32", framework="pytorch")
    # Four threads do less than one.
    curve = Curve(((1e3, 1e9), (1.0, 2.0, 4.0)), (1.0, 1.1, 5.0, 1.0, 1.3, 6.0))
    node = replace(advisor.catalog.cluster("1xaws:c5.4xlarge"), vcpus_per_device=4.0)
    node = replace(node, device=replace(node.device, measured=measured(co_running=curve)))
    asked = {"machines": 3, "plan": "micro_batch=64", "length": Length("samples", 6400)}
    asked["speeds"] = (1.0, 0.8, 0.5)

    def best(threads=None, **parts: int):
        found = advisor.provision(work, node, partitions=parts, threads=threads, **asked).best
        cut = {layer: count for layer, count, _ in found.partitions}
        assert parts.items() <= {"d0": 1, "d1": 1, **cut}.items()
        assert threads in (None, found.threads)
        return found.run_seconds

    each = {
        (d0, d1, threads): best(threads, d0=d0, d1=d1)
        for d0, d1, threads in itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 4))
    }
    assert len(set(each.values())) == len(each)
    for d0, d1, threads in itertools.product((None, 1, 2, 3), (None, 1, 2, 3), (None, 1, 2, 4)):
        given = {n: p for n, p in (("d0", d0), ("d1", d1)) if p}
        stated = (d0, d1, threads)
        if stated in each:
            continue
        least = min(
            s for k, s in each.items() if all(a in (None, b) for a, b in zip(stated, k, strict=True))
        )  # fmt: skip
        assert best(threads, **given) == pytest.approx(least, rel=1e-9), stated


def test_a_pattern_states_the_parts_of_layers_that_no_name_states(advisor) -> None:
    asked = {"machines": 6, "plan": "dp=1,sync=allreduce", "global_batch": 32}
    parts = {"classifier.3": 5, "classifier*": 3, "features.0": 1, "classifier.6": 6}
    found = dict(
        cut[:2] for cut in advisor.provision("vgg16", MACHINE, partitions=parts, **asked).best.partitions
    )  # fmt: skip
    stated = {"classifier.0": 3, "classifier.3": 5, "classifier.6": 6}
    assert stated.items() <= found.items()
    assert "features.0" not in found


def test_replicas_fill_machines_by_free_layers_cut_further_than_stated_ones(advisor) -> None:
    asked = {"machines": 2, "global_batch": 32, "plan": "dp=2,sync=allreduce"}
    best = advisor.provision("vgg16", FOUR, partitions={"classifier.0": 3}, **asked).best
    assert (best.machines, best.largest_partition) == (2, 4)
    assert ("classifier.0", 3) in [cut[:2] for cut in best.partitions]
    with pytest.raises(RequestError, match="they do not fill them"):
        advisor.provision("vgg16", FOUR, partitions={"*": 3}, **asked)


def test_threads_of_a_machine_that_no_probe_measured_share_its_cores(advisor) -> None:
    asked = {"machines": 1, "global_batch": 16, "precision": "fp32"}
    found = {
        n: advisor.provision("resnet50", "aws:c5.4xlarge", threads=n, **asked)
        for n in (None, 16, 4, 3)
    }
    assert [f.best.threads for f in found.values()] == [16, 16, 4, 3]
    runs = [f.best.run_seconds for f in found.values()]
    assert runs[0] == runs[1] < runs[2] < runs[3]
    assert any("with 4 of their 16 cores" in note for note in found[4].notes)


def test_runners_up_say_what_binds_them_and_by_how_much_they_lose(advisor) -> None:
    found = advisor.provision("vgg16", MACHINE, machines=4, global_batch=64, length=EPOCH)
    assert len(found.runners_up) == 3
    for choice in found.runners_up:
        assert choice.why.startswith(f"{choice.bottleneck} is ")
        assert f"{choice.behind:.3g} times as long: {choice.loses_by} takes " in choice.why
    served = next(c for c in found.runners_up if c.kind == "ps-sync")
    assert served.loses_by in ("server link", "server compute", "worker link")


def test_a_graph_without_parameters_is_refused(advisor) -> None:
    work = advisor.workload("resnet50")
    bare = replace(work, graph=Graph(tuple(replace(op, params=0.0) for op in work.graph.ops)))
    with pytest.raises(RequestError, match="its graph has no parameters"):
        advisor.provision(bare, MACHINE, machines=4)
