"""Timing: intervals of steps, parts of a step, communication, and what a worker leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.measure.cgroups import (
    Holding,
    cpu_controller,
    identity,
    refusal,
    usable_cores,
    wait_until_held,
)
from forerun.measure.communication import Timeline, WallClock, covered_seconds
from forerun.measure.failures import is_peer_lost, reason_of, status_of
from forerun.measure.hosts import Host, free_port
from forerun.measure.measurement import (
    Measurement,
    merged,
    read_records,
    record_path,
    write_json,
)
from forerun.measure.processes import PeakMemory, sent_bytes
from forerun.measure.progress import STEPPING, ProgressFile, read_progress
from forerun.measure.recorder import Agreement, Recorder, record
from forerun.measure.step_times import is_narrow, step_times
from forerun.measure.task import Steps, Task
from tests.needs import require, require_root


def test_the_interval_of_the_median_holds_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        times = step_times(rng.lognormal(0.0, 0.5, size=30))
        assert times is not None
        assert times.low is not None
        assert times.high is not None
        held += times.low <= 1.0 <= times.high
    assert 930 <= held <= 990


def test_steps_that_cling_to_their_neighbours_count_for_less() -> None:
    rng = np.random.default_rng(0)
    apart = rng.normal(1.0, 0.1, size=200)
    slow = np.repeat(rng.normal(1.0, 0.1, size=10), 20)
    widths = [times.half_width for s in (apart, slow) if (times := step_times(s)) is not None]
    assert widths[1] > 2 * widths[0]


def test_few_steps_have_no_interval_and_are_never_enough() -> None:
    times = step_times([1.0, 1.0, 1.0])
    assert times is not None
    assert times.low is None
    assert step_times([]) is None
    assert not is_narrow(Steps(), [1.0, 1.0, 1.0])
    assert is_narrow(Steps(), [1.0] * 6)


def test_an_agreement_stops_when_it_is_tight_at_the_cap_and_when_time_is_up() -> None:
    steps = Steps(least=10, most=40, half_width=0.05, seconds=1000)
    noisy = np.random.default_rng(0).lognormal(0.0, 2.0, size=40).tolist()

    def stops_at(seconds: list[float], asked: Steps) -> tuple[int, str]:
        agreement = Agreement(asked, 1)
        for count in range(1, 41):
            if agreement.due(count) and agreement.decide(count, seconds[:count]):
                return count, agreement.reason
        return 0, ""

    assert stops_at([1.0] * 40, steps) == (10, "")
    count, reason = stops_at(noisy, steps)
    assert count == 40
    assert "interval wider" in reason
    count, reason = stops_at(noisy, Steps(least=10, seconds=1e-9))
    assert count == 1
    assert "wider than requested" in reason


def test_parts_of_a_step_add_up_and_what_belongs_to_none_is_left_out() -> None:
    class Counted(WallClock):
        moment = 0.0

        def now(self) -> float:  # type: ignore[override]
            self.moment += 1.0
            return self.moment

    timeline = Timeline(Counted())
    timeline.begin()
    for part in ("input", "", "forward", "backward", "forward", "backward", "optimizer"):
        timeline.switch(part)
    timeline.end()
    timeline.end()
    totals, parts = timeline.read()
    assert totals == [8.0, 1.0]
    assert parts == [{"input": 1.0, "forward": 2.0, "backward": 2.0, "optimizer": 1.0}, {}]
    assert timeline.read() == ([], [])


def test_overlapping_collectives_are_counted_once() -> None:
    assert covered_seconds([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.2, 5.5)]) == 4.0
    assert covered_seconds([]) == 0.0


def test_gradients_are_reduced_as_without_the_hook_and_made_up_ones_are_not_looked_at() -> None:
    torch = pytest.importorskip("torch", reason="training needs the extra torch")
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        told, gradients = {}, []
        for made_up in (None, False, True):
            torch.manual_seed(0)
            module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
            recorder = Recorder(Steps(warmup=1), workers=2, norms_every=1)
            if made_up is not None:
                recorder.reduce_through(module)
            if made_up:
                recorder.use_synthetic_data()
            optimizer = torch.optim.SGD(module.parameters())
            for _ in range(3):
                module.zero_grad()
                module(torch.ones(3, 4)).square().mean().backward()
                recorder.gradients.updated(optimizer)
                recorder.step()
            gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
            told[made_up] = recorder.record()
    finally:
        dist.destroy_process_group()
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])
    assert told[False]["local_sqr"] == pytest.approx(float(gradients[0].square().sum()))
    assert told[False]["mean_sqr"] == pytest.approx(told[False]["local_sqr"])
    assert told[True]["sync_bytes"] == told[False]["sync_bytes"] == 4 * 10
    assert told[True]["local_sqr"] is told[True]["mean_sqr"] is None
    assert told[True]["made_up"]


def test_progress_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "progress-0"
    assert read_progress(path) is None
    code = (
        "import sys, time, pathlib\nfrom forerun.measure.progress import ProgressFile\n"
        f"p = ProgressFile(pathlib.Path({str(path)!r}))\np.begin()\n"
        "for i in range(9000): p.step(i * 0.001)\n"
        "print('here', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"here\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    told = read_progress(path)
    assert told is not None
    assert (told.phase, told.steps) == (STEPPING, 9000)
    assert told.seconds[-1] == pytest.approx(8.999)
    assert len(told.seconds) == 8192
    assert told.place() == "in step 9001"


def test_progress_on_a_full_disk_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    require_root()
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(folder)], check=True)
    try:
        with pytest.raises(OSError, match="No space left"):
            ProgressFile(folder / "progress-0")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_records_of_workers_become_one_measurement(tmp_path: Path) -> None:
    recorder = Recorder(Steps(warmup=1, least=6, most=6))
    recorder.explicit = True
    while not recorder.step():
        recorder.switch("forward")
    first = {**recorder.record(), "seconds": [0.1] * 9, "network_bytes_per_second": 5.0}
    second = {**first, "rank": 1, "seconds": [0.2] * 9, "peak_bytes": 7e9, "parts": {}}
    for one in (first, second):
        write_json(record_path(tmp_path, one["rank"]), one)
    measured = merged(read_records(tmp_path), 8, 3.0)
    assert measured.step_seconds == 0.2, "the slowest worker's"
    assert measured.samples_per_second == pytest.approx(40.0)
    assert measured.peak_bytes == 7e9
    assert measured.parts == {}, "a part that one worker could not tell is no part of the whole"
    late = {**second, "warmup_steps": first["warmup_steps"] + 2, "seconds": [0.05] * 7}
    measured = merged([first, late], 8, 3.0)
    assert (measured.warmup_steps, measured.steps) == (first["warmup_steps"] + 2, 7)
    assert measured.step_seconds == 0.1, "of the same steps, the slower worker's"


def test_the_three_lines_work_without_a_runner(tmp_path: Path) -> None:
    out, begun = tmp_path / "m.json", list[float]()
    with record(samples=4, out=out) as r:
        for _ in r.steps(range(20)):
            begun.append(time.perf_counter())
            time.sleep(0.002)
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert (measured.status, measured.steps + measured.warmup_steps) == ("ok", 20)
    assert measured.step_seconds is not None
    assert 0.002 <= measured.step_seconds <= max(np.diff(begun)), "a busy machine sleeps longer"
    assert measured.samples_per_second is not None


def test_a_measurement_that_cannot_be_written_leaves_the_one_before_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.json"
    out.write_text("before")

    def full(stream: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forerun.measure.measurement.os.fsync", full)
    with pytest.raises(RequestError, match="No space left"), record(out=out) as r:
        for _ in r.steps(range(6)):
            pass
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_log_of_steps_is_written_for_whoever_waits(tmp_path: Path) -> None:
    log, begun = tmp_path / "steps.jsonl", list[float]()
    with record(log=log) as r:
        for _ in r.steps(range(25)):
            begun.append(time.perf_counter())
            time.sleep(0.05)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1]["step"] == 25, "whoever follows it must see the end"
    between, first = np.diff(begun), lines[0]  # a busy machine sleeps longer
    counted = first["step"] - 1
    assert 0.05 <= first["step_time_s"] <= max(between)
    assert 1.0 <= counted * first["step_time_s"] <= 1.0 + 2 * max(between), "a line a second"
    with record(log=log, resumed_at=20) as r:
        for _ in r.steps(range(3)):
            time.sleep(0.01)
    assert json.loads(log.read_text().splitlines()[-1])["step"] == 23


def test_a_host_that_holds_by_itself_is_asked_once_for_all_its_workers() -> None:
    class Holder(Host):
        told: list[object] = []  # noqa: RUF012

        def hold(self, cpus: float) -> None:
            self.told.append(cpus)

        def release(self) -> None:
            self.told.append("released")

    host = Holder("h1", "10.0.0.1", prefix=("env",))
    task = Task("m:f", workers=2, global_batch=2, cpus_per_worker=0.3)
    assert refusal(task, [host]) is None
    holding = Holding(task, [host, host])
    holding.begin()
    holding.apply(0, os.getpid())
    holding.release()
    assert Holder.told == ["released", 0.6, "released"]
    assert holding.groups == []
    Holding(task.with_(cpus_per_worker=0.0), [host, host]).begin()
    assert Holder.told[3:] == ["released"], (
        "also where nothing is asked: it may be held since a crash"
    )
    away = Host("h2", "10.0.0.2", prefix=("env",))
    assert "host h2 cannot hold" in (refusal(task, [away]) or "")


def test_peak_memory_is_that_above_the_start() -> None:
    kept = np.ones(2_000_000)
    peak = PeakMemory()
    more = np.ones(12_500_000)
    del more
    after = peak.bytes()
    assert after is not None
    assert 95e6 <= after <= 140e6
    assert len(kept) == 2_000_000


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        (ValueError("out of memory, said a user"), "failed"),
        (RuntimeError("shapes differ"), "failed"),
    ],
)  # fmt: skip
def test_want_of_memory_is_told_from_other_failures(error: Exception, status: str) -> None:
    assert status_of(error) == status


def test_a_reason_is_one_line_with_its_place() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        reason = reason_of(error)
    assert "\n" not in reason
    assert reason.startswith("JSONDecodeError: Expecting property name")
    assert is_peer_lost("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer")
    assert not is_peer_lost("ValueError: wrong shape")


def test_bytes_that_were_sent_are_counted() -> None:
    before = sent_bytes("lo")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as there,
        server.accept()[0] as here,
    ):
        for _ in range(20):
            there.sendall(bytes(50_000))
            left = 50_000
            while left:
                left -= len(here.recv(left))
    after = sent_bytes("lo")
    assert before is not None
    assert after is not None
    assert after - before >= 1_000_000


def test_whole_cores_are_held_by_affinity() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        Holding(Task("m:f", cpus_per_worker=1.0)).apply(0, child.pid)
        assert os.sched_getaffinity(child.pid) == {usable_cores()[0]}
    finally:
        child.kill()
        child.wait()


def test_parts_of_a_core_are_held_by_a_quota_and_its_group_is_removed() -> None:
    require_root()
    require("cgroups", cpu_controller(os.getpid()) is not None, "a cpu controller to write to")
    task = Task("m:f", cpus_per_worker=0.2)
    assert refusal(task) is None
    code = (
        "import sys, time\nsys.stdin.readline()\n"  # until it is held
        "w, c = time.time(), time.process_time()\nwhile time.time() < w + 1: pass\n"
        "print((time.process_time() - c) / (time.time() - w))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    holding = Holding(task)
    holding.apply(0, child.pid)
    groups = list(holding.groups)
    used = float(child.communicate("held\n")[0])
    holding.release()
    assert used <= 0.25
    assert len(groups) == 1
    assert not groups[0].exists()


def test_more_cores_than_there_are_cannot_be_held() -> None:
    cores = len(usable_cores())
    assert refusal(Task("m:f", cpus_per_worker=float(cores))) is None
    assert f"{cores} may be used here" in (refusal(Task("m:f", cpus_per_worker=cores + 1.0)) or "")


THREADED = """
import os, sys, threading, time
event = threading.Event()
threading.Thread(target=event.wait, daemon=True).start()
from forerun.measure.cgroups import is_held, identity, wait_until_held
import json
print(json.dumps(identity()), is_held(1.0), flush=True)
wait_until_held(1.0, 20.0)
print(len(os.listdir("/proc/self/task")), is_held(1.0), flush=True)
"""


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core: nothing can be held to less")
def test_a_worker_is_held_with_all_its_threads_and_waits_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", THREADED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said, held = process.stdout.readline().rsplit(" ", 1)
    assert held.strip() == "False"
    holding = Holding(Task("m:f", cpus_per_worker=1))
    holding.take(0, json.loads(said))
    threads, held = process.stdout.readline().split()
    assert (held, process.wait(20)) == ("True", 0)
    assert int(threads) >= 2
    process.stdout.close()


def test_a_worker_of_another_machine_is_not_taken_for_one_of_this() -> None:
    holding = Holding(Task("m:f", cpus_per_worker=1))
    for changed in ({"boot": "another"}, {"processes": "pid:[1]"}):
        with pytest.raises(OSError, match="worker 3 runs on another machine"):
            holding.take(3, {**identity(), **changed})
    with pytest.raises(TimeoutError, match="nothing held this worker to"):
        wait_until_held(0.5, 0.05)


def test_an_address_that_is_not_of_this_machine_has_no_free_port_and_is_named() -> None:
    with pytest.raises(RequestError, match=r"192\.0\.2\.1"):
        free_port(Host("elsewhere", "192.0.2.1", ""))
