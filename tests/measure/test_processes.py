"""The end of a launch takes its children's children with it, whatever they have made of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from forerun.measure.processes import MARK, descendants, end_all

# A child in a session of its own, without the mark that its parent had.
CHILD = "import time; time.sleep(60)"
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {child!r}], env={{}},"
    " start_new_session=True); print(child.pid, flush=True); time.sleep(60)"
)


def test_children_without_the_mark_end_too() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(child=CHILD)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, MARK: "test-ending"}, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert descendants([process.pid]) == [child]
    end_all([process], "test-ending")
    process.stdout.close()
    until = time.monotonic() + 5.0
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        if ") Z " in Path(f"/proc/{child}/stat").read_text():  # nobody has fetched it yet
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_a_wait_that_a_signal_broke_off_holds_up_no_end() -> None:
    """A handler that raises between CPython's taking of the lock and its `try` leaves the lock taken for ever."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env={**os.environ, MARK: "test-broken"},
        start_new_session=True,
    )
    process._waitpid_lock.acquire()
    ending = threading.Thread(target=end_all, args=([process], "test-broken"), daemon=True)
    ending.start()
    ending.join(30.0)
    assert not ending.is_alive()
    assert not Path(f"/proc/{process.pid}").exists()  # fetched, too
