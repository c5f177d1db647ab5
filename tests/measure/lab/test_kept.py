"""A kept lab outlives whoever used it, by kill -9 too: its hosts get their own shares again."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.errors import UnknownNameError
from forerun.measure.cgroups import Holding, quota
from forerun.measure.lab import HostSpec, Lab, labs, remove_labs, state
from forerun.measure.lab.state import LabId
from forerun.measure.task import Task
from tests.measure.lab.conftest import Program, left_of, said

pytestmark = pytest.mark.usefixtures("able")
OWN = 0.2


@pytest.fixture
def kept() -> Iterator[str]:
    """The name of a lab of two hosts that nobody owns."""
    name = f"kept{os.getpid()}"
    Lab([HostSpec(cpus=OWN, link_mbit=100)] * 2, name=name).up(keep=True)
    yield name
    remove_labs([name])


def shares(lab: Lab) -> list[float]:
    return [quota(lab.group(host).folders["cpu"]) for host in lab.hosts]


def killed_while(program: Program, lab: Lab, how: str) -> subprocess.Popen[str]:
    """Return a program that had changed shares of a lab when it was killed."""
    with subprocess.Popen(
        program("change", lab.name, how), stdout=subprocess.PIPE, text=True
    ) as user:
        said(user)
        changed = shares(lab)
        assert changed == (pytest.approx([0.05, OWN]) if how == "hold" else [math.inf] * 2)
        other = Lab.open(lab.name)
        other.hosts[0].release()
        assert shares(lab) == changed, "while its holder lives, nobody takes it from it"
        user.kill()
    return user


def test_a_process_keeps_its_own_changes_and_another_s(kept: str, program: Program) -> None:
    lab = Lab.open(kept)
    lab.hosts[0].hold(0.05)
    assert shares(Lab.open(kept)) == pytest.approx([0.05, OWN])
    with subprocess.Popen(
        program("change", kept, "full_speed"), stdout=subprocess.PIPE, text=True
    ) as user:
        said(user)
        lab.hosts[0].release()
        assert shares(lab) == [math.inf] * 2, "the other has lifted them still"
        lab.hosts[0].hold(0.05)
        user.kill()
    assert shares(Lab.open(kept)) == pytest.approx([0.05, OWN]), "its holder lives"
    lab.hosts[0].release()
    assert shares(lab) == pytest.approx([OWN, OWN])


@pytest.mark.parametrize("how", ["hold", "full_speed"])
@pytest.mark.parametrize("next_user", ["open", "run"])
def test_the_next_user_gives_hosts_their_own_shares_again(
    kept: str, program: Program, how: str, next_user: str
) -> None:
    lab = Lab.open(kept)
    killed_while(program, lab, how)
    assert shares(lab) != pytest.approx([OWN, OWN])
    if next_user == "open":
        assert shares(Lab.open(kept)) == pytest.approx([OWN, OWN])
    else:
        holding = Holding(Task("m:f", workers=2, global_batch=2), lab.hosts)
        holding.begin()  # it asks for no share of its own
        assert shares(lab) == pytest.approx([OWN, OWN])
        holding.release()
    folder = lab.group("h1").folders["cpu"].parent
    weight = "cpu.weight" if lab.group("h1").versions["cpu"] == 2 else "cpu.shares"
    assert int((folder / weight).read_text()) > 1024, "its hosts come before everything else again"


def test_a_share_that_was_changed_for_good_stays(kept: str) -> None:
    Lab.open(kept).slow("h2", 0.1)
    assert shares(Lab.open(kept)) == pytest.approx([OWN, 0.1])


def test_a_kept_lab_whose_maker_was_killed_is_not_up_and_the_next_one_sweeps_it() -> None:
    name = f"half{os.getpid()}"
    file = state.FOLDER / f"{LabId(name)}.json"
    with subprocess.Popen(
        [sys.executable, "-c", MAKING, name], stdout=subprocess.PIPE, text=True
    ) as maker:
        said(maker)
        maker.kill()
    try:
        assert left_of(str(LabId(name))), "it was killed in the middle"
        found = state.read(LabId(name))
        assert found is not None
        assert not found.is_whole
        assert name not in [each.lab.name for each in labs()]
        with pytest.raises(UnknownNameError):
            Lab.open(name)
        Lab([HostSpec(0.1, 100)], name=name).up(keep=True)
        assert name in [each.lab.name for each in labs()]
        assert Lab.open(name).run("h1", ["true"]).returncode == 0
    finally:
        remove_labs([name])
    assert not Path(file).exists()


# It stands still in the midst: the first host has its limits, the second has none yet.
MAKING = """
import json, sys, time
from forerun.measure.cgroups import ControlGroup
from forerun.measure.lab import HostSpec, Lab

limit = ControlGroup.limit_cpus

def limit_and_stay(group, cpus):
    limit(group, cpus)
    print(json.dumps({"limited": cpus}), flush=True)
    time.sleep(600)

ControlGroup.limit_cpus = limit_and_stay
Lab([HostSpec(0.1, 100)] * 2, name=sys.argv[1]).up(keep=True)
"""
