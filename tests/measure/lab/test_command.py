"""forerun lab: up, status, run, set, cut, mend and down, as a person types them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from forerun.cli import main
from forerun.measure.lab import labs, remove_labs

NAME = f"cmd{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def kept(able: None) -> Iterator[None]:
    """One kept lab for all tests here, removed also where they fail."""
    words = ["lab", "up", "--hosts", "2", "--cpus", "0.2,0.1", "--rate", "100mbit,50mbit"]
    assert main([*words, "--memory", "500MB", "--name", NAME], standalone_mode=False) == 0
    try:
        yield
    finally:
        if NAME in [state.lab.name for state in labs()]:
            remove_labs([NAME])


def call(*words: str) -> int:
    code: int = main(["lab", *words], standalone_mode=False)
    return code


def test_a_command_runs_on_its_host_and_its_exit_code_is_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shell = "echo $GLOO_SOCKET_IFNAME; ip -br -4 addr show eth0; exit 7"
    assert call("run", "--name", NAME, "h2", "--", "sh", "-c", shell) == 7
    said = capfd.readouterr().out
    assert said.startswith("eth0\n")
    assert ".2/24" in said


def test_status_says_what_each_host_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("status", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    mine = next(lab for lab in told["labs"] if lab["name"] == NAME)
    assert told["ready"] is True
    assert mine["owner_pid"] is None
    assert [(h["name"], h["cpus"], h["link_mbit"]) for h in mine["hosts"]] == [
        ("h1", 0.2, 100), ("h2", 0.1, 50),
    ]  # fmt: skip
    assert mine["hosts"][0]["memory_bytes"] == 500_000_000
    assert call("status") == 0
    assert NAME in capsys.readouterr().out


def test_a_host_is_slowed_cut_and_mended(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("set", "h1", "--cpus", "0.05", "--rate", "10mbit", "--name", NAME) == 0
    assert call("cut", "h2", "--name", NAME) == 0
    now = next(state for state in labs() if state.lab.name == NAME)
    assert (now.hosts[0].cpus, now.hosts[0].link_mbit, now.hosts[1].linked) == (0.05, 10, False)
    assert call("mend", "h2", "--name", NAME) == 0
    assert next(s for s in labs() if s.lab.name == NAME).hosts[1].linked
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--name", NAME), "one of that name is up"),
        (("up", "--cpus", "half"), "not a share of a core"),
        (("up", "--rate", "3 furlongs"), "not a number with a unit"),
        (("up", "--hosts", "3", "--cpus", "0.1,0.2"), "2 values for 3 hosts"),
        (("up", "--hosts", "4", "--cpus", "99"), "a share lies from"),
        (("up", "--memory", "much"), "not a number with a unit"),
        (("up", "--name", "../lab"), "a name has 1 to 24 small letters"),
        (("down", "nosuchlab"), "no such lab"),
        (("run", "--name", NAME, "h9", "ls"), "no such host"),
        (("run", "--name", "nosuchlab", "h1", "ls"), "no such lab"),
        (("set", "h1", "--name", NAME), "nothing to change"),
        (("set", "h1", "--rate", "0mbit", "--name", NAME), "a rate lies from"),
        (("cut", "h0", "--name", NAME), "no such host"),
    ],
)
def test_a_mistake_is_said_in_words(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    assert said in capsys.readouterr().err
    assert {NAME} <= {state.lab.name for state in labs()}


def test_down_removes_the_named_lab_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("down", NAME) == 0
    assert capsys.readouterr().out == f"removed {NAME}\n"
    assert NAME not in [state.lab.name for state in labs()]
