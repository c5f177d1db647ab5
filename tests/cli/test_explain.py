"""forerun explain: parts that add up, changes that are predicted, a trace that a browser reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

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
