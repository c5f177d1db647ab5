"""A signal that asks for the end is met in order, and its exit code is the one that shells know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from forerun.cli.interrupting import Interrupted, interruptible, orderly


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    """Give signals back as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may be run by nohup
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_what_is_under_way_is_ended_in_order_and_a_second_signal_changes_nothing(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    @orderly("stopped; it goes on from here")
    def command() -> None:
        try:
            os.kill(os.getpid(), number)
            raise AssertionError("the signal had no effect")
        finally:
            os.kill(os.getpid(), signal.SIGINT)  # impatient, while it is being ended
            ended.append("its processes")

    with pytest.raises(SystemExit) as left:
        command()
    assert left.value.code == code
    assert ended == ["its processes"]
    os.kill(os.getpid(), signal.SIGTERM)  # also while the interpreter leaves
    assert capsys.readouterr().err == "stopped; it goes on from here\n"


def test_signals_that_are_ignored_stay_so_and_others_come_back() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    before = signal.getsignal(signal.SIGTERM)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_a_terminal_that_is_gone_takes_no_word_and_does_no_harm() -> None:
    code = (
        "import os, signal\n"
        "from forerun.cli.interrupting import orderly\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "@orderly('stopped')\n"
        "def command():\n"
        "    os.close(2)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "command()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 129
    assert done.stderr == b""
