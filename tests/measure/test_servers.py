"""Parameter servers: real processes, whose updates are those of one machine, or as stale as they may be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forerun.advisor.measuring import PointFacts
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.errors import RequestError
from forerun.measure import Host, Steps, Task
from forerun.measure.campaign_file import campaign
from forerun.measure.local import LocalRunner
from forerun.measure.processes import MARK
from forerun.measure.runner import task_of
from forerun.measure.servers.client import _as_it_lies
from forerun.measure.servers.messages import (
    HELLO,
    PUSH,
    Channel,
    ServerError,
    Talk,
    at_once,
    server_path,
)
from forerun.measure.servers.server import Session
from forerun.testing.samples import tiny_cluster
from tests.measure.entries import FEW
from tests.measure.test_exams import job_of
from tests.processes import alive

NETS = '''
import os, time
from pathlib import Path
import torch
from torch import nn


class Traced(nn.Module):
    """A net that writes its parameters down in every forward: of words, some looked up by sparse tables."""

    def __init__(self, sparse, trace, slow, slow_rank):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, 6, mode="sum", sparse=sparse) for n in (40, 7))
        self.body = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 3))
        self.trace, self.slow, self.slow_rank = trace, slow, slow_rank
        self.rank = int(os.environ.get("RANK", "0"))

    def forward(self, words):
        if self.trace and self.rank == 0:
            flat = torch.cat([p.detach().flatten() for p in self.parameters()])
            with Path(self.trace).open("ab") as file:
                file.write(flat.numpy().tobytes())
        time.sleep(self.slow * (self.rank == self.slow_rank))
        found = torch.cat([self.tables[0](words), self.tables[1](words % 7)], dim=1)
        return (self.body(found) - 1.0).square().mean()


def net(sparse=False, trace="", slow=0.0, slow_rank=0):
    torch.manual_seed(0)
    return Traced(sparse, trace, slow, slow_rank), (torch.randint(0, 40, (2, 5)),)
'''


def test_one_thread_holds_many_conversations_and_ends_where_they_wait_for_one_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = [
            (Channel(socket.create_connection(listener.getsockname())), Channel(listener.accept()[0]))
            for _ in range(2)
        ]  # fmt: skip
    large, said = torch.arange(2_000_000.0), []  # more than a socket holds

    def asks(channel: Channel) -> Talk:
        yield from channel.send(PUSH, 7, tensors=[large])
        return (yield from channel.receive())

    def answers(channel: Channel, others: int) -> Talk:
        assert (yield from channel.receive()) == (PUSH, 7, 0, 0)
        said.append((yield from channel.read(torch.empty_like(large))))
        yield lambda: len(said) >= others
        yield from channel.send(PUSH, len(said))

    heads = at_once(*(asks(near) for near, _ in pairs), *(answers(far, 2) for _, far in pairs))
    assert heads == [(PUSH, 2, 0, 0), (PUSH, 2, 0, 0), None, None]
    assert all(torch.equal(one, large) for one in said)
    for channel in (end for pair in pairs for end in pair):
        channel.close()

    def waits() -> Talk:
        yield lambda: len(said) > 2

    with pytest.raises(RuntimeError, match="wait for one that has gone"):
        at_once(waits(), waits())


def test_parameters_keep_their_layout_in_memory() -> None:
    last = torch.randn(3, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    for tensor in (last, torch.randn(3, 4), torch.tensor(1.0)):
        lying, back = _as_it_lies(tensor)
        assert lying.is_contiguous()
        again = lying.flatten().view(lying.shape).permute(back)
        assert torch.equal(again, tensor)
        assert again.stride() == tensor.stride()


@pytest.fixture
def runner(folder: Path) -> LocalRunner:
    """A runner in a folder that holds the nets as the module `nets`."""
    (folder / "nets.py").write_text(NETS)
    return LocalRunner(folder=folder / "runs")


def test_workers_in_step_train_as_data_parallel_ones_do_dense_or_by_rows(
    runner: LocalRunner, folder: Path
) -> None:
    import numpy as np

    steps = Steps(warmup=1, least=5, most=5)
    ways = {
        "reduce": {}, "sync": {"sync": "ps-sync", "parameter_servers": 3},
        "rows": {"sync": "ps-sync", "parameter_servers": 3, "sparse": True},
        "bound": {"sync": "ps-stale", "parameter_servers": 3, "stale_bound": 0, "sparse": True},
    }  # those with as many servers share their processes  # fmt: skip
    tasks = [
        Task("nets:net", workers=2, global_batch=8, steps=steps, settings={
            "trace": str(folder / name), "learning_rate": 0.5, **way})
        for name, way in ways.items()
    ]  # fmt: skip
    found = runner.measure_many(tasks)
    assert [m.status for m in found] == ["ok"] * 4, [m.reason for m in found]
    wanted, *traces = (np.fromfile(folder / name, dtype=np.float32) for name in ways)
    weights = wanted.reshape(6, -1)
    assert np.abs(weights[-1] - weights[0]).max() > 0.01, "it learns"
    # Rows that no batch has looked up since are not pulled: the dense part follows, and they are counted.
    body = 12 * 9 + 9 + 9 * 3 + 3
    np.testing.assert_allclose(traces[0].reshape(6, -1), weights, atol=1e-5)
    for trace in traces[1:]:
        np.testing.assert_allclose(trace.reshape(6, -1)[:, -body:], weights[:, -body:], atol=1e-5)
    assert [m.staleness for m in found] == [None, 0.0, 0.0, 0.0]
    dense, rows = found[1].sync_bytes, found[2].sync_bytes
    assert dense is not None
    assert rows is not None
    assert dense > 4 * (47 * 6 + body) > rows > 4 * body


def test_a_slow_worker_is_left_behind_as_far_as_the_bound_allows(runner: LocalRunner) -> None:
    steps = Steps(warmup=2, least=8, most=8)
    free, bound, other = (
        Task("nets:net", workers=2, global_batch=8, steps=steps, settings={"slow": 0.3, **way})
        for way in (
            {"sync": "ps-async"}, {"sync": "ps-stale", "stale_bound": 2}, {"sync": "ps-async", "slow_rank": 1})
    )  # fmt: skip
    loose, tight, second = runner.measure_many(
        [free, bound, other.with_(steps=Steps(warmup=2, least=3, most=5))]
    )
    assert (loose.status, tight.status) == ("ok", "ok"), loose.reason + tight.reason
    assert second.status == "ok", second.reason  # it lasted until the slow worker had counted steps
    # The slow one sees hundreds of updates between its pull and its push, and at most the bound's.
    assert loose.staleness is not None
    assert tight.staleness is not None
    assert tight.staleness <= 3 < 10 < loose.staleness
    # Of asynchronous workers a step is any one's update; bounded ones step with the slowest.
    assert loose.step_mean_seconds is not None
    assert tight.step_mean_seconds is not None
    assert tight.step_seconds is not None
    assert loose.step_mean_seconds < 0.06 < 0.3 <= tight.step_seconds < 0.6
    assert loose.samples_per_second == pytest.approx(4 / loose.step_mean_seconds)
    assert tight.samples_per_second == pytest.approx(8 / tight.step_mean_seconds)


def test_a_message_out_of_turn_is_an_error_and_no_gradient() -> None:
    def asks(channel: Channel, *messages: tuple[int, dict[str, int]]) -> Talk:
        for kind, terms in messages:
            yield from channel.send_json(kind, terms) if terms else channel.send(kind)
        yield from channel.receive()

    no_place = {"rank": 2, "dtype": "float32", "dense": 0, "tables": []}
    for messages, reason in (
        ([(PUSH, {})], "out of turn"), ([(77, {})], "out of turn"),
        ([(HELLO, no_place)], "no place for a worker 2 of 2"), ([(HELLO, {})], "a message of 0 bytes"),
    ):  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = Channel(socket.create_connection(listener.getsockname()))
            far = Channel(listener.accept()[0])
        with pytest.raises(ServerError, match=reason):
            at_once(Session(2).serve(far), asks(near, *messages))
        near.close()


def test_a_connection_that_is_no_worker_of_this_launch_takes_no_place(tmp_path: Path) -> None:
    """Silent, of another launch, an eager scanner, or gone at once: a server goes on to its worker."""
    words = ["-m", "forerun.measure.servers.server", str(tmp_path), "0", "127.0.0.1", "1"]
    server = subprocess.Popen([sys.executable, *words], env={**os.environ, MARK: "a" * 32})
    late = threading.Timer(60, server.kill)  # where it waits for a stray, nobody waits for it
    late.start()
    try:
        until = time.monotonic() + 60
        while not server_path(tmp_path, 0).exists() and time.monotonic() < until:
            time.sleep(0.05)
        port = json.loads(server_path(tmp_path, 0).read_text())["port"]

        def connected(said: bytes) -> socket.socket:
            link = socket.create_connection(("127.0.0.1", port), timeout=30)
            link.sendall(said)
            return link

        strays = [
            connected(said) for said in (b"", b"b" * 32, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        ]
        connected(b"").close()
        link = connected(b"a" * 10)
        time.sleep(0.1)  # the network may cut it
        link.sendall(b"a" * 22)
        worker, sizes = Channel(link), {"dense": 3, "tables": []}
        terms = {"rank": 0, "in_step": True, "optimizer": "sgd", "learning_rate": 1.0}

        def asks() -> Talk:
            yield from worker.send_json(HELLO, {**terms, **sizes, "dtype": "float32"})
            yield from worker.send(HELLO, tensors=[torch.arange(3.0)])
            yield from worker.receive()
            return (yield from worker.read(torch.empty(3)))

        assert torch.equal(at_once(asks())[0], torch.arange(3.0))
        for stray in strays:
            with suppress(ConnectionResetError):
                assert stray.recv(1) == b""  # closed
            stray.close()
        worker.close()
    finally:
        late.cancel()
        server.kill()
        server.wait()


def test_a_server_that_is_killed_is_named_and_nothing_is_left(
    runner: LocalRunner, tmp_path: Path
) -> None:
    settings = {"sync": "ps-sync", "parameter_servers": 2, "slow": 0.05}
    task = Task(
        "nets:net", workers=2, global_batch=4, settings=settings, steps=Steps(least=1000, most=1000)
    )
    results = runner.each([task])
    runs, until = tmp_path / "runs", time.monotonic() + 60

    def kill() -> None:
        def wait() -> None:
            while time.monotonic() < until:
                servers = [p for p in alive("forerun.measure.servers") if str(runs) in _words(p)]
                if servers and list(runs.glob("*/0/progress-1")):
                    os.kill(max(servers), signal.SIGKILL)
                    return
                time.sleep(0.1)

        threading.Thread(target=wait).start()

    kill()
    _, measured = next(results)
    assert measured.status == "failed"
    assert (
        "parameter server 1 was killed by signal 9 (SIGKILL) while others trained"
        in measured.reason
    )
    assert not alive(str(runs))


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_jobs_and_campaigns_name_the_servers_and_mistakes_say_what_to_do(
    runner: LocalRunner,
) -> None:
    plan = {"sync": "ps-stale", "parameter_servers": 2, "stale_bound": 3}
    job = job_of("nets:net")
    asked = Job(job.workload, job.cluster, replace(job.plan, **plan))
    task = task_of(asked, {}, FEW, 60.0)
    assert (task.sync, task.servers, task.stale_bound) == ("ps-stale", 2, 3)
    cut = task_of(
        Job(job.workload, tiny_cluster(2, 1, job.cluster.device), Plan(partitions=2)), {}, FEW, 60.0
    )
    assert (cut.workers, cut.partitions, cut.global_batch) == (2, 2, 1)
    packed = replace(asked, plan=replace(asked.plan, gradient_bits=8))
    with pytest.raises(RequestError, match="with gradient_bits=8"):  # its servers do not decompress
        task_of(packed, {}, FEW, 60.0)
    points = campaign({
        "workloads": {"net": {"entry": "nets:net"}},
        "vary": {"workers": [2], "global_batch": [8],
                 "settings": {"sync": ["allreduce", "ps-sync"]}},
    }).points  # fmt: skip
    assert [p.asked["sync"] for p in points] == ["allreduce", "ps-sync"]
    assert [p.task.servers for p in points] == [0, 1]
    known = PointFacts(job.workload, tiny_cluster(2, 1, job.cluster.device))
    plans = [jobs[0].plan for p in points if (jobs := known.jobs(p)) is not None]
    assert [(p.sync, p.parameter_servers) for p in plans] == [("allreduce", 0), ("ps-sync", 1)]
    four = [Host(f"h{n}", f"127.0.0.{n}") for n in range(1, 5)]
    task = Task(
        "nets:net", workers=4, global_batch=8, settings={"sync": "ps-async", "parameter_servers": 2}
    )
    assert LocalRunner(four).placement(task) == (2, 2)
    beside = task.with_(settings={**task.settings, "servers_with_workers": True})
    assert LocalRunner(four).placement(beside) == (1, 1, 1, 1)
    for servers in (4, 5, 6, 9):
        many = task.with_(settings={"sync": "ps-async", "parameter_servers": servers})
        need = f"{servers} parameter servers and a worker need {servers + 1} hosts, and there are 4"
        assert need in str(LocalRunner(four).refuses(many))
    for settings, words in (
        ({"sync": "ps-asink"}, "ps-async"), ({"sync": "ps-sync", "parameter_servers": 0}, "parameter_servers=1 or more"),
        ({"sync": "ps-stale", "stale_bound": -1}, "stale_bound=0 or more"),
        ({"parameter_servers": 2}, "add sync: ps-sync"),
        ({"sync": "ps-sync", "stale_bound": 3}, "use sync: ps-stale"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=words):
            Task("nets:net", settings=settings)
    with pytest.raises(RequestError, match="a script exchanges"):
        Task("train.py", settings={"sync": "ps-sync"})
