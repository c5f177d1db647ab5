"""What the lab's tests share: a lab of two hosts, programs that run on them, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.measure.lab import HostSpec, Lab, missing
from forerun.measure.lab.state import PREFIX
from forerun.measure.processes import started_at
from tests.needs import require

PROGRAMS = Path(__file__).parent / "programs"
Program = Callable[..., list[str]]


@pytest.fixture(scope="session")
def able() -> None:
    """Go on where a lab can be made on this machine."""
    lacks = missing()
    require("lab", not lacks, "; ".join(f"{found}: {todo}" for found, todo in lacks))


@pytest.fixture(scope="module")
def lab(able: None) -> Iterator[Lab]:
    """Two hosts, which the tests of one file share and leave as they found them."""
    with Lab([HostSpec(cpus=0.45, link_mbit=200)] * 2) as made:
        yield made


@pytest.fixture
def program() -> Program:
    """Return the words that start one of the programs beside the tests."""
    return lambda name, *words: [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, words)]


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the JSON of a program's next line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the program ended with {process.wait(10)} and said nothing"
    told: dict[str, Any] = json.loads(line)
    return told


def left_of(lab_id: str) -> list[str]:
    """Return every trace of a lab: processes, namespaces, groups, links and files."""
    found = [str(path) for path in Path("/run/netns").glob(f"{lab_id}*")]
    found += [str(path) for path in Path("/run/forerun-lab").glob(f"{lab_id}*")]
    groups = (Path(name) for name, _, _ in os.walk("/sys/fs/cgroup"))
    found += [str(group) for group in groups if group.name.startswith(lab_id)]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or started_at(int(entry.name)) is None:
            continue  # a zombie keeps the name of its group until its parent asks for it
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "cgroup").read_bytes()
        except OSError:
            continue
        if lab_id.encode() in words:
            found.append(str(entry))
    return found


def machines_links() -> set[str]:
    """Return the names of the machine's own network devices."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def group_share(lab: Lab, host: str) -> float:
    """Return the share that the kernel has for a host."""
    folder = lab.group(host).folders["cpu"]
    if lab.group(host).versions["cpu"] == 2:
        quota, period = (folder / "cpu.max").read_text().split()
    else:
        quota, period = ((folder / f"cpu.cfs_{x}_us").read_text() for x in ("quota", "period"))
    return int(quota) / int(period)


assert PREFIX == "frlab"  # what left_of looks for begins with it
