"""A lab leaves nothing behind: at its end, after kill -9 of its owner, and by `lab down`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun.errors import RequestError, UnknownNameError
from forerun.measure.lab import HostSpec, Lab, labs, network, remove_labs, state
from forerun.measure.lab.lab import sweep
from forerun.measure.lab.state import LabId
from forerun.measure.processes import started_at
from tests.measure.lab.conftest import Program, left_of, said

pytestmark = pytest.mark.usefixtures("able")
SMALL = [HostSpec(cpus=0.1, link_mbit=100)]


def test_nothing_is_left_at_the_end_of_the_block() -> None:
    with Lab(SMALL * 2) as lab:
        name = str(lab.id)
        stubborn = lab.start(0, ["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 600; done"])
        while len(lab.group(0).pids()) < 2:
            time.sleep(0.01)
        assert left_of(name)
    assert left_soon(name) == []
    assert stubborn.wait(5) == -signal.SIGKILL


def test_nothing_is_left_where_the_block_raises() -> None:
    names = []

    def broken() -> None:
        with Lab(SMALL) as lab:
            names.append(str(lab.id))
            raise ZeroDivisionError("in the block")

    with pytest.raises(ZeroDivisionError, match="in the block"):
        broken()
    assert left_soon(names[0]) == []


def test_nothing_is_left_where_the_making_fails() -> None:
    cpu = Path("/sys/fs/cgroup/cpu")
    if not (cpu / "cpu.cfs_quota_us").exists():
        pytest.skip("only version 1 refuses a share beyond that of the group around it")
    around = cpu / f"forerun-test-{os.getpid()}"
    around.mkdir()
    try:
        (around / "cpu.cfs_quota_us").write_text("40000")  # 0.4 of a core
        script = f"echo 0 > {around}/cgroup.procs; exec {sys.executable} -c '{BEYOND}'"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert "RequestError: the limits of a host: writing" in done.stderr
        assert "a limit around this process is lower" in done.stderr
        assert left_soon(done.stdout.strip()) == []
    finally:
        around.rmdir()


BEYOND = """
from forerun.measure.lab import HostSpec, Lab, LabId
print(LabId.of_this_process("beyond"), flush=True)
Lab([HostSpec(0.2, 100), HostSpec(0.9, 100)], name="beyond").up()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_guard_removes_the_lab_of_an_owner_that_was_killed(
    program: Program, how: signal.Signals
) -> None:
    with subprocess.Popen(program("own"), stdout=subprocess.PIPE, text=True) as owner:
        name = said(owner)["id"]
        assert left_of(name)
        owner.send_signal(how)
    assert left_soon(name) == []


def test_the_next_lab_sweeps_what_owner_and_guard_left_when_both_were_killed(
    program: Program,
) -> None:
    with subprocess.Popen(program("own"), stdout=subprocess.PIPE, text=True) as owner:
        name = said(owner)["id"]
        guards = [int(p.removeprefix("/proc/")) for p in left_of(name) if is_guard(p)]
        assert len(guards) == 1
        os.kill(guards[0], signal.SIGKILL)
        owner.kill()
    assert left_of(name), "somebody has to sweep"
    with Lab(SMALL):
        assert left_soon(name) == []


def is_guard(trace: str) -> bool:
    """Say whether a trace of a lab is its sleeping guard."""
    if not trace.startswith("/proc/"):
        return False
    words = (Path(trace) / "cmdline").read_text().split("\0")
    return words[:2] == ["sh", "-c"] and "forerun.measure.lab.lab" in words


def left_soon(name: str) -> list[str]:
    """Return what is left of a lab once nothing is, or after 15 s."""
    until = time.monotonic() + 15
    while left_of(name) and time.monotonic() < until:
        time.sleep(0.05)
    return left_of(name)


def test_a_lab_without_its_file_is_swept_by_its_names(program: Program) -> None:
    with subprocess.Popen(program("own"), stdout=subprocess.PIPE, text=True) as owner:
        name = said(owner)["id"]
        for path in state.FOLDER.glob(f"{name}*"):
            path.write_text('{"half of it')
        owner.kill()
    with state.locked():
        sweep()
    assert left_soon(name) == []  # the guard looks for something to remove, and ends


def test_sweeping_leaves_the_labs_of_the_living() -> None:
    with Lab(SMALL) as lab:
        with state.locked():
            assert lab.id not in sweep()
        assert lab.run(0, ["true"]).returncode == 0
        assert str(lab.id) in [str(each.lab) for each in labs()]
        remove_labs()
        assert lab.run(0, ["true"]).returncode == 0


def test_namespaces_of_others_are_left_alone() -> None:
    strange = f"strange-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", strange], check=True)
    try:
        with Lab(SMALL) as lab:
            assert network.namespaces(lab.id) == [lab.id.host(1), lab.id.switch]
        shown = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        assert strange in shown
    finally:
        subprocess.run(["ip", "netns", "del", strange], check=True)


def test_a_forked_child_does_not_take_the_lab_down() -> None:
    with Lab(SMALL) as lab:
        done = subprocess.run(
            [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True
        )
        told = json.loads(done.stdout)
        assert told == {"alive": True}
        assert lab.run(0, ["true"]).returncode == 0


FORKING = """
import json, os, sys
from forerun.measure.lab import Lab, HostSpec
lab = Lab([HostSpec(0.1, 100)]).up()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(json.dumps({"alive": lab.run(0, ["true"]).returncode == 0}))
"""


def test_a_kept_lab_is_found_by_name_and_removed_by_name() -> None:
    name = f"kept{os.getpid()}"
    Lab(SMALL, name=name).up(keep=True)
    try:
        found = Lab.open(name)
        assert found.run("h1", ["true"]).returncode == 0
        found.rate("h1", 50)
        assert Lab.open(name).state().hosts[0].link_mbit == 50
        with pytest.raises(RequestError, match="one of that name is up"):
            Lab(SMALL, name=name).up()
    finally:
        gone = remove_labs([name])
    assert [lab.name for lab in gone] == [name]
    assert left_soon(str(gone[0])) == []
    with pytest.raises(UnknownNameError):
        Lab.open(name)


def test_the_start_of_a_process_tells_it_from_a_later_one_of_the_same_number() -> None:
    mine = LabId.of_this_process("x")
    assert not mine.abandoned
    assert LabId("x", mine.pid, mine.start - 1).abandoned
    with subprocess.Popen(["true"]) as gone:
        while started_at(gone.pid) is not None:
            time.sleep(0.01)
        assert LabId("x", gone.pid, 1).abandoned, "a zombie owns nothing any more"
