"""forerun probe: hosts measured for real become a device that predictions price, or say why not."""

from __future__ import annotations

import builtins
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from forerun.catalog import load_catalog
from forerun.cli import main
from forerun.errors import MissingExtraError, RequestError, UnsatisfiedError
from forerun.measure import Host, local_host
from forerun.measure.probe import probing
from forerun.measure.probe.clock import CallTimer
from forerun.measure.probe.findings import device_entry, exchange_of, warnings_of
from forerun.measure.probe.machine import cpu_share
from forerun.measure.probe.probing import Probe, probe

FEW = ("memory", "matmul.forward", "matmul.dgrad", "matmul.wgrad", "add")


@pytest.fixture(scope="module")
def probed() -> Probe:
    """Two processes of this machine, as two hosts, timed at what every step needs."""
    here = local_host()
    hosts = [here, Host("second", here.address, here.interface)]
    return probe(hosts, name="two", seconds=20, only=FEW)


@pytest.fixture(scope="module")
def written(probed: Probe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from forerun.measure.probe.findings import catalogue_text

    path = tmp_path_factory.mktemp("probe") / "two.yaml"
    path.write_text(catalogue_text(probed.entry))
    return path


def test_a_probed_device_is_read_from_its_file_as_it_was_measured(
    probed: Probe, written: Path
) -> None:
    device, _ = load_catalog([written]).device("two")
    assert device.measured is not None
    assert device.measured.to_dict() == probed.entry["measured"]
    assert set(FEW) <= {name.removeprefix("fp32/") for name in device.measured.curves}


def test_every_figure_says_where_it_comes_from(probed: Probe, written: Path) -> None:
    device, _ = load_catalog([written]).device("two")
    assert all("probe" in f.source or "not measured" in f.source for k, f in device.facts.items()
               if k not in ("id", "aliases"))  # fmt: skip
    assert device.measured is not None
    about = device.measured.about
    assert {"date", "torch", "cpu", "spread", "cpu_share", "threads"} <= set(about)
    assert all(curve.spread >= 0 for curve in device.measured.curves.values())


def test_its_links_carry_what_was_measured_between_its_hosts(written: Path) -> None:
    cluster = load_catalog([written]).cluster("2x1xtwo")
    measured = cluster.device.measured
    assert measured is not None
    assert cluster.inter.kind == "measured"
    assert cluster.inter.bytes_per_second == measured.links["inter"].bytes_per_second
    assert 1e6 < cluster.inter.bytes_per_second < 1e12
    small, large = (measured.links["inter"].all_reduce_seconds(s, 2) for s in (4.0, 1e7))
    assert 1e-6 < small < large < 10.0
    link = measured.links["inter"]
    assert set(link.rested) == {2}
    assert 0.0 <= link.spared_seconds(1e6, 2) < link.all_reduce_seconds(1e6, 2)


def test_a_model_is_predicted_on_it_with_no_run_at_all(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "examples.lab_models:mlp", "--cluster", "2x1xtwo", "--global-batch", "32",
             "--optimizer", "sgd", "--catalog", str(written), "--json"]  # fmt: skip
    assert main(words, standalone_mode=False) in (0, None)
    told = json.loads(capsys.readouterr().out)
    step = told["step_seconds"]["p50"]
    assert 1e-4 < step < 10.0
    assert told["parts"]["data comm"] > 0


def test_best_of_the_products_stands_as_the_peak(probed: Probe) -> None:
    entry = probed.entry
    curve = entry["measured"]["curves"]["fp32/matmul.forward"]
    rows, columns, depth = (axis[-1] for axis in curve["axes"])
    largest = 2.0 * rows * columns * depth / curve["seconds"][-1]
    assert entry["fp32_tflops"] * 1e12 >= 0.999 * largest


def test_too_little_time_is_said_and_no_device_is_made(probed: Probe) -> None:
    curves = {k: v for k, v in probed.found["curves"].items() if "wgrad" not in k}
    found = {**probed.found, "curves": curves}
    with pytest.raises(UnsatisfiedError, match=r"no time for matmul\.wgrad.*--seconds"):
        device_entry(found, "x", ["fp32"], "here")


def test_a_busy_machine_is_warned_of() -> None:
    quiet = {
        "spread": 0.02,
        "cpu_share_spread": 0.01,
        "cpu_share": 1.0,
        "left_out": [],
        "refused": {},
    }
    assert warnings_of(quiet) == []
    busy = {**quiet, "spread": 0.4, "cpu_share_spread": 0.6, "left_out": ["fp32/gelu"]}
    assert [word for word in ("busy", "by turns", "fp32/gelu")
            if any(word in said for said in warnings_of(busy))] == ["busy", "by turns", "fp32/gelu"]  # fmt: skip


def test_the_steps_of_a_ring_are_told_from_what_every_call_takes() -> None:
    """Times made of a call of 1 ms, 0.1 ms a step and 10 MB/s are taken apart again."""

    def points(ranks: int) -> list[list[float]]:
        return [[size, 1e-3 + 2 * (ranks - 1) * 1e-4 + 2 * (ranks - 1) / ranks * size / 1e7, 0.0]
                for size in (4.0, 1e5, 1e6)]  # fmt: skip

    group = {"all_reduces": {"2": points(2), "4": points(4)}, "messages": []}
    found = exchange_of(group, 1.0)
    assert found.call_seconds == pytest.approx(1e-3, rel=0.01)
    assert found.latency_seconds == pytest.approx(1e-4, rel=0.01)
    assert found.bytes_per_second == pytest.approx(1e7, rel=0.01)
    assert found.all_reduce_seconds(1e6, 4) == pytest.approx(points(4)[-1][1])


def test_what_a_link_lets_go_at_once_is_told_from_the_bytes_that_follow() -> None:
    """All-reduces of 1 ms and 10 MB/s; after a pause ranks wake 5 ms apart, and 50 kB find room."""
    group = {
        "all_reduces": {"2": [[size, 1e-3 + size / 1e7, 0.0] for size in (4.0, 1e5, 1e6)]},
        "messages": [],
        "rested": {"2": [[4.0, 6e-3], [1e5, 11e-3], [1e6, 101e-3]]},
    }
    found = exchange_of(group, 1.0)
    for size in (1e5, 1e6, 1e9):
        assert found.spared_seconds(size, 2) == pytest.approx(5e-3, rel=0.01)


def test_a_cpu_is_timed_in_its_own_seconds_and_waiting_is_none() -> None:
    import time

    assert CallTimer(batch_seconds=1e-4, repeats=1).time(lambda: time.sleep(2e-3)) < 1e-3
    assert CallTimer(threads=2, batch_seconds=1e-3, repeats=1).time(
        lambda: time.sleep(2e-3)
    ) >= 2e-3  # fmt: skip


def test_a_busy_process_gets_at_most_a_core() -> None:
    share, spread = cpu_share(0.1)
    assert 0 < share <= 1.05
    assert spread >= 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dtypes": ["fp31"]}, "fp31"),
        ({"seconds": 0.5}, "--seconds 60"),
        ({"device": "abacus"}, "abacus"),
        ({"hosts": [local_host(), local_host()]}, "twice"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_started(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        probe(**given)


def test_a_cuda_device_that_is_not_there_is_said() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RequestError, match="torch finds none"):
        probe(device="cuda")


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise ImportError("no torch")
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"forerun\[torch\]"):
        probe()


@pytest.mark.parametrize(
    "prefix", [("no-such-word-at-all",), ("sh", "-c", "echo no route to it >&2; exit 255")]
)
def test_a_host_that_cannot_be_reached_is_named_with_what_it_said(prefix: tuple[str, ...]) -> None:
    host = Host("far", "127.0.0.1", prefix=prefix)
    with pytest.raises(RequestError, match=r"probing far: its worker failed: .*no"):
        probe([host])


def test_one_dead_host_of_two_ends_the_other_too() -> None:
    dead = Host("dead", "127.0.0.1", "lo", ("sh", "-c", "exit 3"))
    with pytest.raises(RequestError, match="probing dead"):
        probe([local_host(), dead], seconds=30)


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("devices: {}\n")
    assert main(["probe", "--out", str(mine)], standalone_mode=False) == 2
    assert "--force" in capsys.readouterr().err
    assert yaml.safe_load(mine.read_text()) == {"devices": {}}


@pytest.mark.parametrize(
    "spoilt",
    ["measured: nonsense", "measured: {curves: {a: {axes: [[2, 1]], seconds: [1, 2]}}}",
     "measured: {curves: {}, step_seconds: -1}"],
)  # fmt: skip
def test_a_spoilt_catalogue_is_named(tmp_path: Path, spoilt: str) -> None:
    eight = ("memory_gb", "memory_gb_per_s", "fp32_tflops", "fp16_tflops", "watts",
             "link_gb_per_s", "host_gb_per_s", "devices_per_node")  # fmt: skip
    lines = [f"    {name}: 1" for name in eight]
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(["devices:", "  mine:", *lines, f"    {spoilt}"]) + "\n")
    with pytest.raises(RequestError, match="forerun probe"):
        load_catalog([path]).device("mine")


def test_no_line_of_a_worker_is_lost_while_it_writes_and_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes = "import json\nfor i in range(4000): print(json.dumps({'line': i}), flush=True)"
    host = local_host()
    monkeypatch.setattr(type(host), "command", lambda self, words: [sys.executable, "-c", writes])
    with ExitStack() as stack:
        worker, found, running = probing._Worker(host, {}, stack), [], True
        while running:
            running = worker.process.poll() is None
            found += [message["line"] for message in worker.messages()]
    assert found == list(range(4000))
