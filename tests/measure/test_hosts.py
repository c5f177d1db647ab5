"""Hosts: where processes are started, and what cannot be one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forerun.errors import RequestError
from forerun.measure.hosts import Host, check_hosts, local_host


def test_a_command_on_a_host_is_started_by_its_prefix() -> None:
    host = Host("h1", "10.77.0.1", "eth0", ("ip", "netns", "exec", "h1"))
    assert host.command(["python", "x.py"]) == ["ip", "netns", "exec", "h1", "python", "x.py"]
    assert not host.is_local


def test_a_prefix_that_sets_the_environment_reaches_the_process() -> None:
    host = Host("here", "127.0.0.1", prefix=("env", "FORERUN_SAYS=so"))
    words = host.command([sys.executable, "-c", "import os; print(os.environ['FORERUN_SAYS'])"])
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "so\n"


def test_the_local_host_is_reached_on_its_loopback() -> None:
    host = local_host()
    assert host.is_local
    assert host.address == "127.0.0.1"
    assert host.interface in ("lo", "lo0")


@pytest.mark.parametrize("field", ["name", "address"])
def test_a_host_without_name_or_address_is_refused(field: str) -> None:
    given = {"name": "h", "address": "10.0.0.1", field: " "}
    with pytest.raises(RequestError, match=f"it has no {field}"):
        Host(**given)


def test_no_hosts_and_two_of_one_name_are_refused() -> None:
    with pytest.raises(RequestError, match="no process can be started"):
        check_hosts([])
    with pytest.raises(RequestError, match="'h' is there twice"):
        check_hosts([Host("h", "10.0.0.1"), Host("h", "10.0.0.2")])
