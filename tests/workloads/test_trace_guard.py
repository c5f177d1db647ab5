"""A user's code under guard: what it raises is told, what it prints stays off stdout, it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.workloads.trace import recorder, trace_module, workload_from_reference

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")

SOURCE = """
import sys
import torch
from torch import nn

class Odd(BaseException): pass
class Quits(nn.Linear):
    def forward(self, x): sys.exit(0)

def leaves(): sys.exit(0)
def odd(): raise Odd("no luck")
def interrupted(): raise KeyboardInterrupt
def quits(): return Quits(4, 4), torch.zeros(2, 4)
def chatty():
    print("a line of mine")
    return nn.Linear(4, 4), torch.zeros(2, 4)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder with an importable file, forgotten afterwards."""
    (tmp_path / "guarded_here.py").write_text(SOURCE)
    (tmp_path / "leaving_here.py").write_text("raise SystemExit('bye')\n")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("guarded_here", None)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("guarded_here:leaves", "the callable raised SystemExit"),
        ("guarded_here:odd", "the callable raised Odd: no luck"),
        ("guarded_here:quits", "the module raised SystemExit"),
        ("leaving_here:build", "importing leaving_here raised SystemExit: bye"),
    ],
)
def test_code_that_leaves_is_told(reference: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        workload_from_reference(reference)
    assert words in caught.value.found


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(RequestError, match="it is a function, not a torch"):
        trace_module(lambda x: x, torch.zeros(2, 4))


def test_an_interruption_from_the_keyboard_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        workload_from_reference("guarded_here:interrupted")


def test_what_it_prints_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    workload_from_reference("guarded_here:chatty")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "a line of mine\n"


class Endless(torch.nn.Module):  # type: ignore[misc]
    """Never ends: whether it goes on hangs on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        """Return never."""
        while x.abs().sum() >= 0:
            x = x * 1.0
        return self.inner(x)


def test_a_forward_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorder.MOST_OPERATIONS == 200_000
    monkeypatch.setattr(recorder, "MOST_OPERATIONS", 300)
    with pytest.raises(RequestError, match="300 operations and had not ended"):
        trace_module(Endless(), torch.zeros(2, 4))
