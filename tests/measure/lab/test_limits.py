"""The lab's limits are real: link rates, shares of the cores, memory, and no way out."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from forerun.measure.lab import HostSpec, Lab
from tests.measure.lab.conftest import Program, group_share, machines_links, said

TRIES = 4  # whatever else runs here can only make a transfer slower


def rate_between(lab: Lab, program: Program, mbit: float) -> tuple[float, float]:
    """Return the best and the expected bytes a second of a transfer from h2 to h1."""
    expected = HostSpec(0.22, mbit).payload_bytes_per_second
    rates = []
    receiver = lab.start(
        "h1", program("receive", lab.host("h1").address), stdout=subprocess.PIPE, text=True
    )
    with receiver:
        said(receiver)
        for _ in range(TRIES):
            lab.run("h2", program("send", lab.host("h1").address, int(expected * 0.25) + 500_000))
            rates.append(said(receiver)["bytes_per_second"])
            if rates[-1] > 0.95 * expected:
                break
        receiver.kill()
    return max(rates), expected


def test_a_tcp_transfer_runs_at_the_rate_of_the_link(lab: Lab, program: Program) -> None:
    found, expected = rate_between(lab, program, 200)
    assert found == pytest.approx(expected, rel=0.10)


def test_a_rate_can_be_changed_while_it_is_up(lab: Lab, program: Program) -> None:
    lab.rate("h2", 40)
    try:
        found, expected = rate_between(lab, program, 40)
    finally:
        lab.rate("h2", 200)
    assert found == pytest.approx(expected, rel=0.10)
    assert lab.state().hosts[1].link_mbit == 200


def share_of(lab: Lab, program: Program, seconds: float) -> float:
    done = lab.run("h1", program("burn", seconds), capture_output=True, text=True)
    share: float = json.loads(done.stdout.splitlines()[-1])["share"]
    return share


def test_a_share_holds_while_the_machine_is_busy(lab: Lab, program: Program) -> None:
    # More work than cores outside of the lab: a ceiling alone would leave the host a part of it.
    crowd = [subprocess.Popen(program("burn", 30), stdout=subprocess.DEVNULL) for _ in range(6)]
    try:
        share = max(share_of(lab, program, 0.7) for _ in range(2))
    finally:
        for process in crowd:
            process.kill()
            process.wait()
    assert share == pytest.approx(0.45, rel=0.15)


@pytest.mark.parametrize("cpus", [0.1, 0.3])
def test_a_busy_loop_gets_its_share_of_a_core(lab: Lab, program: Program, cpus: float) -> None:
    lab.slow("h1", cpus)
    try:
        before = lab.group("h1").cpu_seconds()
        share = max(share_of(lab, program, 0.7) for _ in range(2))
        used = lab.group("h1").cpu_seconds()
    finally:
        lab.slow("h1", 0.45)
    assert share == pytest.approx(cpus, rel=0.25)
    assert share < 1.1 * cpus
    assert used is not None
    assert before is not None
    assert used > before


def test_a_share_is_spread_over_milliseconds(lab: Lab) -> None:
    watch = (
        "import time\nlast, gaps, end = time.perf_counter(), [], time.perf_counter() + 0.5\n"
        "while last < end:\n now = time.perf_counter()\n gaps.append(now - last)\n last = now\n"
        "print(sorted(g for g in gaps if g > 1e-3)[len([g for g in gaps if g > 1e-3]) // 2])"
    )
    import sys

    done = lab.run("h1", [sys.executable, "-c", watch], capture_output=True, text=True)
    assert float(done.stdout) < 0.030, "the usual stand-still is far below that of a 100 ms period"


def test_hosts_reach_each_other_and_nothing_else(lab: Lab, program: Program) -> None:
    other = lab.host("h2").address
    done = lab.run("h1", program("reach", other, "192.0.2.1", "10.78.0.1"),
                   capture_output=True, text=True)  # fmt: skip
    answers = json.loads(done.stdout)
    assert answers.pop(other) == "Connection refused", "the other host is there and answers"
    assert set(answers.values()) == {"Network is unreachable"}


def test_every_host_has_the_same_interface_and_its_own_address(lab: Lab) -> None:
    for host in lab.hosts:
        shown = lab.run(host, ["ip", "-br", "-4", "addr"], capture_output=True, text=True).stdout
        assert host.interface == "eth0"
        assert f"{host.address}/24" in shown
    assert len({host.address for host in lab.hosts}) == 2


def test_the_process_that_is_started_is_the_command_itself(lab: Lab) -> None:
    with lab.start("h1", ["sleep", "60"]) as process:
        until = time.monotonic() + 10
        while process.pid not in lab.group("h1").pids() and time.monotonic() < until:
            time.sleep(0.01)
        assert lab.group("h1").pids() == [process.pid]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_a_host_that_wants_too_much_memory_has_a_process_killed(
    program: Program, able: None
) -> None:
    spec = HostSpec(cpus=0.45, link_mbit=100, memory_bytes=60_000_000)
    with Lab([spec]) as small:
        if "memory" not in small.group("h1").folders:
            pytest.skip("no memory controller is mounted")
        done = small.run("h1", program("hold"))
        assert done.returncode == -signal.SIGKILL
        assert small.group("h1").oom_kills() == 1


def test_two_labs_at_once_have_their_own_addresses_and_devices(lab: Lab, program: Program) -> None:
    before = machines_links()
    with Lab([HostSpec(0.2, 100)] * 2) as other:
        assert {h.address for h in other.hosts}.isdisjoint(h.address for h in lab.hosts)
        assert other.name != lab.name
        done = other.run(
            "h1", program("reach", lab.hosts[0].address), capture_output=True, text=True
        )
        assert set(json.loads(done.stdout).values()) == {"Network is unreachable"}
        assert machines_links() == before, "no device is made in the machine's own namespace"


def test_hosts_may_differ(able: None) -> None:
    with Lab([HostSpec(0.3, 100), HostSpec(0.1, 20)]) as mixed:
        said_by_kernel = [
            mixed.run(
                h, ["tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True
            ).stdout
            for h in mixed.hosts
        ]
        quotas = [group_share(mixed, h.name) for h in mixed.hosts]
    assert "rate 100Mbit" in said_by_kernel[0]
    assert "rate 20Mbit" in said_by_kernel[1]
    assert quotas == pytest.approx([0.3, 0.1])
