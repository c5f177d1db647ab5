"""forerun explain: parts that add up, changes that are predicted, a trace that a browser reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.advisor import Advisor
from tests.cli.conftest import Run
from tests.predictors.analytic.test_measured import measured

ASK = ("explain", "llama3-8b", "--cluster", "4x8xh100-sxm-80gb")


def test_parts_add_up_to_the_whole(forerun: Run) -> None:
    data = forerun(*ASK, "--json").json()
    assert sum(data["parts"].values()) == pytest.approx(data["step_seconds"]["p50"], rel=1e-6)
    assert sum(data["memory_parts"].values()) == pytest.approx(data["peak_bytes"]["p50"], rel=1e-6)
    assert data["limits"]


def test_a_what_if_says_what_predict_says_of_the_changed_job(forerun: Run) -> None:
    plan = "dp=16,tp=2,pp=1,cp=1,micro_batch=1,zero_stage=1,recompute=none"
    found = forerun(*ASK, "--plan", plan, "--json").json()
    what_if = next(w for w in found["what_ifs"] if w["change"] == "recompute none -> full")
    changed = forerun(
        "predict", *ASK[1:], "--plan", plan.replace("recompute=none", "recompute=full")
        + "".join(f",{k}={found['plan'][k]}" for k in ("ep", "vpp", "sequence_parallel")),
        "--json",
    ).json()  # fmt: skip
    assert what_if["step_seconds"] == pytest.approx(changed["step_seconds"]["p50"], rel=1e-6)
    assert what_if["peak_bytes"] == pytest.approx(changed["peak_bytes"]["p50"], rel=1e-6)


def test_faster_arithmetic_never_slows_the_run(forerun: Run) -> None:
    what_ifs = forerun(*ASK, "--json").json()["what_ifs"]
    faster = [w for w in what_ifs if "2x faster" in w["change"]]
    assert len(faster) == 4
    assert all(w["speedup"] >= 1 - 1e-9 for w in faster)


def test_the_trace_lasts_as_long_as_the_predicted_step(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done = forerun(*ASK, "--plan", "pp=4,tp=2", "--trace", str(path), "--json")
    trace = json.loads(path.read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert all({"name", "ts", "dur", "pid", "tid"} <= set(e) for e in events)
    assert {e["pid"] for e in events} == {0, 1, 2, 3}
    end = max(e["ts"] + e["dur"] for e in events) / 1e6
    assert end == pytest.approx(done.json()["step_seconds"]["p50"], rel=1e-6)


def test_words_show_the_waterfall_and_the_what_if_table(forerun: Run) -> None:
    done = forerun(*ASK)
    for text in ("the median step", "peak of memory", "what limits it", "what if", "100.0 %"):
        assert text in done.out


@pytest.mark.parametrize(
    ("servers", "limit"), [(1, "server link"), (64, "compute")]
)  # fmt: skip
def test_the_bottleneck_of_parameter_servers_is_named_with_what_to_change_first(
    forerun: Run, servers: int, limit: str
) -> None:
    plan = f"sync=ps-sync,parameter_servers={servers}"
    done = forerun(
        "explain",
        "resnet50",
        "--cluster",
        "8x1xv100-sxm2-32gb",
        "--plan",
        plan,
        "--global-batch",
        "512",
    )
    line = next(line for line in done.out.splitlines() if "the bottleneck is" in line)
    assert f"the bottleneck is {limit}" in line
    assert "change first: sync ps-sync -> allreduce" in line


def test_what_to_change_first_is_no_larger_job(forerun: Run) -> None:
    plan = ("--plan", "micro_batch=16", "--global-batch", "512")
    done = forerun("explain", "vgg16", "--cluster", "2x1xv100-sxm2-32gb", *plan)
    line = next(line for line in done.out.splitlines() if "the bottleneck is" in line)
    assert "change first: " in line
    assert "twice the nodes" not in line


@pytest.mark.parametrize(
    ("workload", "cluster", "plan", "batch", "limit"),
    [
        ("vgg16", "8x1xv100-sxm2-32gb", "dp=8,zero_stage=0", "64", "synchronisation"),
        ("vgg16", "2x1xv100-sxm2-32gb", "sync=ps-sync,parameter_servers=16", "16", "worker link"),
        ("vgg16", "8x1xv100-sxm2-32gb", "sync=ps-sync,gradient_bits=4", "64", "server compute"),
        ("resnet50", "1x1xh100-sxm-80gb", "dp=1", "256", "memory bandwidth"),
    ],
)
def test_each_bottleneck_is_named_with_what_to_change_first(
    forerun: Run, workload: str, cluster: str, plan: str, batch: str, limit: str
) -> None:
    asked = ("--plan", plan, "--global-batch", batch, "--framework", "pytorch")
    done = forerun("explain", workload, "--cluster", cluster, *asked)
    assert re.search(
        f"the bottleneck is {limit}, .*; change first: .* \\(.* times as fast\\)", done.out
    )


def test_workers_that_wait_for_the_slowest_are_told_to_wait_no_more() -> None:
    advisor = Advisor()
    node = advisor.catalog.cluster("8xaws:c5.4xlarge")
    probed = replace(node, device=replace(node.device, measured=measured(jitter_seconds=1.0)))
    asked = {"global_batch": 64, "precision": "fp32", "framework": "pytorch"}
    limit, *_ = advisor.explain(
        "resnet50", probed, "sync=ps-sync,parameter_servers=8", **asked
    ).limits
    assert "the bottleneck is straggler" in limit
    assert "change first: sync ps-sync -> ps-async, whose updates are stale" in limit


def test_what_to_change_first_fits_in_memory(forerun: Run) -> None:
    """Without recomputation the run would be 28 % faster, but for its memory."""
    plan = ("--plan", "zero_stage=3,recompute=full", "--framework", "pytorch")
    data = forerun(
        "explain", "gpt2-large", "--cluster", "8x1xa100-sxm-40gb", *plan, "--json"
    ).json()
    found = {w["change"]: w for w in data["what_ifs"] if not w["refused"]}
    wanted = found["recompute full -> none"]
    assert wanted["fit_probability"] < 0.01
    first = re.search(r"change first: (.*) \(", data["limits"][0]).group(1)
    assert found[first]["speedup"] < wanted["speedup"]
    assert found[first]["fit_probability"] > 0.9


def test_changes_are_compared_over_the_same_samples(forerun: Run) -> None:
    """A step of ps-async is one worker's update; with all-reduce it is one of all eight."""
    ask = ("explain", "resnet50", "--cluster", "8x1xv100-sxm2-32gb", "--global-batch", "256",
           "--plan", "sync=ps-async,parameter_servers=8", "--json")  # fmt: skip
    steps, samples = (
        {w["change"]: w["speedup"] for w in forerun(*ask, *length).json()["what_ifs"] if not w["refused"]}
        for length in (("--steps", "8000"), ("--samples", "256000"))
    )  # fmt: skip
    assert steps == pytest.approx(samples, rel=1e-9)


def test_layers_that_are_cut_too_much_are_cut_less_first(forerun: Run) -> None:
    done = forerun("explain", "resnet50", "--cluster", "4x1xa100-sxm-80gb", "--partitions", "4")
    assert "change first: partitions 4 -> 2, dp=2, micro_batch=128" in done.out


def test_a_law_names_its_own_terms_and_no_bottleneck_where_it_has_none(
    forerun: Run, tmp_path: Path
) -> None:
    runs = tmp_path / "runs.csv"
    head = "workload,device,framework,precision,devices,nodes,global_batch,micro_batch,sync,parameter_servers,step_time_s,status"
    rows = [
        f"resnet50,v100-sxm2-32gb,tensorflow,fp32,{n},{n},{32 * n},32,ps-async,1,{seconds},ok"
        for n, seconds in ((1, 0.1), (2, 0.055), (4, 0.03), (8, 0.025))
    ]
    runs.write_text("\n".join((head, *rows, "")))
    ask = ("explain", "resnet50", "--cluster", "4x1xv100-sxm2-32gb", "--precision", "fp32")
    served = (
        "--plan",
        "sync=ps-async,micro_batch=32",
        "--framework",
        "tensorflow",
        "--fit",
        str(runs),
    )
    done = forerun(*ask, "--global-batch", "128", "--predictor", "ps-saturation", *served)
    assert (
        "the bottleneck is workers, 56 % of the step; change first: parameter_servers" in done.out
    )
    assert "the bottleneck" not in forerun(*ask, "--predictor", "constant-mfu").out
