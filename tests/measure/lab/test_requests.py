"""Requests to the lab: what cannot be kept is refused in words, and what is missing is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure.cgroups import ControlGroup, period_and_quota_us
from forerun.measure.lab import HostSpec, Lab, parse_memory, parse_rate
from forerun.measure.lab.state import LabId, checked_name, parse_id
from tests.needs import require_root

CORES = os.cpu_count() or 1


def test_shares_beyond_the_machine_are_refused_unless_crowded() -> None:
    many = [HostSpec(cpus=0.9)] * (2 * CORES)
    with pytest.raises(RequestError, match="contention is what would be measured"):
        Lab(many)
    assert len(Lab(many, crowded=True).specs) == 2 * CORES


@pytest.mark.parametrize(
    "wrong",
    [{"cpus": 0}, {"cpus": -1}, {"cpus": float("nan")}, {"cpus": CORES + 1}, {"cpus": 0.001},
     {"link_mbit": 0}, {"link_mbit": float("inf")}, {"link_mbit": 1e9}, {"memory_bytes": 1000}],
)  # fmt: skip
def test_a_host_that_no_kernel_can_keep_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        HostSpec(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 251])
def test_a_lab_has_one_to_250_hosts(count: int) -> None:
    with pytest.raises(RequestError, match="a lab has 1 to 250"):
        Lab([HostSpec(0.01)] * count, crowded=True)


@pytest.mark.parametrize(
    ("text", "mbit"),
    [("300mbit", 300), ("1gbit", 1000), ("500 kbit", 0.5), ("10", 10), ("1.5Gbit/s", 1500)],
)
def test_a_rate_is_read_with_its_unit(text: str, mbit: float) -> None:
    assert parse_rate(text) == mbit


@pytest.mark.parametrize("text", ["", "fast", "3 furlongs", "-1mbit", "0mbit", "1e3", "inf", "1mb"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_rate(text)


def test_memory_is_read_in_decimal_and_binary_units() -> None:
    assert parse_memory("512MB") == 512_000_000
    assert parse_memory("2GiB") == 2 * 2**30
    with pytest.raises(RequestError, match="write for example"):
        parse_memory("2")


def test_a_small_share_has_a_longer_period_since_the_kernel_refuses_a_shorter_quota() -> None:
    assert period_and_quota_us(0.22) == (5000, 1100)
    assert period_and_quota_us(0.05) == (20000, 1000)
    assert period_and_quota_us(2) == (5000, 10000)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a/../b", "x" * 25, "ä"])
def test_a_name_that_could_not_be_found_again_is_refused(name: str) -> None:
    with pytest.raises(RequestError):
        checked_name(name)


def test_a_name_tells_its_owner() -> None:
    lab = LabId("my-lab", 12, 345)
    assert parse_id(str(lab)) == lab
    assert LabId("x").kept
    assert parse_id("frlab-lab") is None


def test_a_lab_that_is_not_up_has_no_hosts() -> None:
    with pytest.raises(RequestError, match="it is not up"):
        _ = Lab(2).hosts


def test_the_processor_is_found_in_version_1_and_2(tmp_path: Path) -> None:
    root = tmp_path / "unified"
    (root / "user.slice" / "session.scope").mkdir(parents=True)
    (root / "cgroup.subtree_control").write_text("cpu io memory")
    (root / "user.slice" / "cgroup.subtree_control").write_text("memory")
    (root / "user.slice" / "session.scope" / "cgroup.subtree_control").write_text("")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mounts").write_text(f"cgroup2 {root} cgroup2 rw,nosuid 0 0\n")
    (proc / "cgroup").write_text("0::/user.slice/session.scope\n")
    found = ControlGroup.found(proc)
    assert found.versions == {"cpu": 2, "memory": 2}
    assert set(found.folders.values()) == {root}, "its own groups hold processes, or lack cpu"
    group = found.group(str(LabId("x")), "h1")
    assert group.places == (root / "frlab-0-0-x" / "h1",), "a process is in one group alone"


def test_a_controller_that_is_not_given_to_groups_is_said_with_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "unified"
    root.mkdir()
    (root / "cgroup.subtree_control").write_text("memory")
    (tmp_path / "mounts").write_text(f"cgroup2 {root} cgroup2 rw 0 0\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    with pytest.raises(RequestError, match=r"echo '\+cpu \+memory' > "):
        ControlGroup.found(tmp_path)
    (tmp_path / "mounts").write_text("")
    with pytest.raises(RequestError, match="no cpu cgroup is mounted"):
        ControlGroup.found(tmp_path)


def test_limits_are_written_as_each_version_reads_them(tmp_path: Path) -> None:
    (tmp_path / "lab" / "h1").mkdir(parents=True)
    group = ControlGroup({"cpu": tmp_path / "lab" / "h1"}, {"cpu": 2})
    group.make()
    group.limit_cpus(0.22)
    assert (tmp_path / "lab" / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "lab" / "h1" / "cpu.max").read_text() == "1100 5000"
    group.limit_cpus(None)
    assert (tmp_path / "lab" / "h1" / "cpu.max").read_text() == "max 5000"


UP = [sys.executable, "-m", "forerun", "lab", "up"]
# Loads what it needs while it may read it, then becomes nobody.
AS_NOBODY = """
import os, sys
import forerun.cli.commands.lab, forerun.measure.lab.lab
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from forerun.cli import main
main(["lab", "up"])
"""


@pytest.mark.parametrize(
    ("words", "found", "next_step"),
    [
        ([sys.executable, "-c", AS_NOBODY], "you are not root", "run it as root (sudo)"),
        (["setpriv", "--bounding-set", "-net_admin", *UP], "root lacks CAP_NET_ADMIN", "--privileged"),
        (["unshare", "-m", "sh", "-c",
          'for f in /usr/sbin /sbin; do mount -t tmpfs none "$f"; done; exec "$@"', "x", *UP],
         "no program", "install iproute2"),
        (["unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup; umount -Rl /sys/fs/cgroup;'
          ' mount -t sysfs none /sys; exec "$@"', "x", *UP],
         "no cpu cgroup is mounted", "mount"),
    ],
    ids=["root", "capabilities", "iproute2", "cgroups"],
)  # fmt: skip
def test_what_is_missing_is_said_with_what_to_do(
    words: list[str], found: str, next_step: str
) -> None:
    require_root()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"found: {found}" in done.stderr
    assert next_step in done.stderr.partition("next:")[2]
    assert "Traceback" not in done.stderr
