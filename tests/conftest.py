"""All tests: which of them one process carries out, where several share them (`make test`)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Where `make setup` keeps a torchvision of another build than torch.
sys.path.append(str(Path(sys.prefix, "torchvision")))

# With the usual thresholds a tenth of the time of collecting goes into looking through what was imported.
gc.set_threshold(100_000, 50, 100)

# These start Ray clusters of this machine, or whole trainings and searches: they wait for processes.
STARTS = (
    "tests/measure/ray/",
    "tests/measure/lab/test_ray.py",
    "tests/advisor/test_elastic.py",
    "tests/measure/elastic/",
    "tests/cli/test_live_search.py",
    "tests/cli/test_profile.py",
    "tests/cli/test_train.py",
)
# These make hosts, or time what runs: one process carries them out, so that they keep out of each
# other's way.
MACHINE = (
    "tests/measure/lab/",
    "tests/measure/probe/",
    "tests/measure/test_exams.py",
    "tests/measure/test_faults.py",
    "tests/measure/test_local.py",
    "tests/measure/test_timing.py",
    "tests/house/test_shown_commands.py",
)


def company(nodeid: str) -> str:
    """Return what a test is carried out together with: those that start, of the machine, or of its file."""
    if nodeid.startswith(STARTS):
        return "starts"
    return "machine" if nodeid.startswith(MACHINE) else nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Heed signals that whoever started the tests ignores (`&` in a script, nohup): some tests send them."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes share the tests: one a core, and one that waits for clusters."""
    return (os.cpu_count() or 1) + 1


class ByFile(LoadScopeScheduling):
    """Gives each file to one process, so that what its tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return company(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Return who gives tests to processes, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first where several processes share the tests."""
    if hasattr(config, "workerinput"):
        first = {"starts": 0, "machine": 1}
        items.sort(key=lambda item: first.get(company(item.nodeid), len(first)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector the tests: a recorder has it look through everything, for half a second."""
    gc.collect()
    gc.freeze()
