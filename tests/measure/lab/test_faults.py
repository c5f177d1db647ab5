"""Faults on the lab are real: a straggler, a lost host, a pulled cable."""

from __future__ import annotations

import subprocess
import time

import pytest

from forerun.errors import RequestError
from forerun.measure.lab import HostSpec, Lab
from tests.measure.lab.conftest import Program, group_share, said


def started(lab: Lab, host: str, words: list[str]) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = lab.start(
        host, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process


def test_a_slowed_host_is_a_straggler_beside_the_other(lab: Lab, program: Program) -> None:
    lab.slow("h2", 0.1)
    try:
        with started(lab, "h1", program("burn", 1)) as fast, started(
            lab, "h2", program("burn", 1)
        ) as slow:  # fmt: skip
            said(fast), said(slow)
            shares = said(fast)["share"], said(slow)["share"]
    finally:
        lab.slow("h2", 0.45)
    assert shares[1] < 0.12
    assert shares[0] > 1.5 * shares[1]
    assert lab.state().hosts[1].cpus == 0.45


def test_a_share_is_held_for_one_run_and_given_back(lab: Lab, program: Program) -> None:
    host = lab.hosts[0]
    assert group_share(lab, host.name) == pytest.approx(0.45, rel=1e-3)
    host.hold(0.15)
    assert group_share(lab, host.name) == pytest.approx(0.15, rel=1e-3)
    assert lab.state().hosts[0].cpus == 0.45
    host.release()
    assert group_share(lab, host.name) == pytest.approx(0.45, rel=1e-3)


def test_a_host_of_a_lab_that_is_gone_says_so(able: None) -> None:
    with Lab([HostSpec(0.1, 100)]) as short:
        host = short.hosts[0]
    with pytest.raises(RequestError, match="the lab is gone"):
        host.hold(0.1)
    host.release()


def test_a_lost_host_falls_silent_and_its_processes_are_dead(lab: Lab, program: Program) -> None:
    address = lab.host("h2").address
    with started(lab, "h2", program("receive", address)) as receiver:
        said(receiver)
        with started(lab, "h1", program("send", address, 10**9)) as sender:
            time.sleep(0.3)
            lab.cut("h2")
            assert receiver.wait(5) == -9
            assert lab.group("h2").pids() == []
            assert sender.poll() is None, "nobody closed the connection: the sender waits on"
            assert not lab.state().hosts[1].linked
            sender.kill()
    lab.mend("h2")
    assert lab.state().hosts[1].linked


def test_a_pulled_cable_leaves_the_processes_alive_and_can_be_put_back(
    lab: Lab, program: Program
) -> None:
    address = lab.host("h2").address
    with started(lab, "h2", program("receive", address)) as receiver:
        said(receiver)
        lab.cut("h2", kill=False)
        asked = lab.run("h1", program("reach", address), capture_output=True, text=True)
        assert "refused" not in asked.stdout
        assert receiver.pid in lab.group("h2").pids()
        lab.mend("h2")
        lab.run("h1", program("send", address, 1_000_000), timeout=20)
        assert said(receiver)["bytes"] == 1_000_000
        receiver.kill()


def test_an_all_reduce_takes_what_the_link_allows_also_on_small_shares(
    able: None, program: Program
) -> None:
    torch = pytest.importorskip("torch")
    assert torch.distributed.is_available()
    count, tries = 800_000, 15
    with Lab([HostSpec(cpus=0.22, link_mbit=300)] * 2) as small:
        hosts = small.hosts
        words = [program("allreduce", rank, 2, hosts[0].address, count, tries) for rank in range(2)]
        with small.full_speed():  # importing torch at a fifth of a core would be most of the test
            workers = [
                started(small, host.name, ["env", "OMP_NUM_THREADS=1",
                                           f"GLOO_SOCKET_IFNAME={host.interface}", *each])
                for host, each in zip(hosts, words, strict=True)
            ]  # fmt: skip
            for worker in workers:
                said(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told = [said(worker) for worker in workers]
        for worker in workers:
            worker.communicate(timeout=20)
        physics = count * 4 / small.specs[0].payload_bytes_per_second
    assert [each["first"] for each in told] == [2.0 ** (tries + 1)] * 2, "each doubles the sum"
    # Whatever else runs here can only make one slower; that all are quicker than the link, nothing.
    assert physics * 0.93 < told[0]["usual"]
    assert told[0]["best"] < physics * 1.15
