"""A stand-in for CUDA's events, for machines without a GPU: a stream of work beside its host."""

from __future__ import annotations

import pytest


class Stream:
    """A device that works through what it is given, one thing after another, while its host goes on.

    Attributes:
        host, device: seconds at which each will have done what it was told.
        waits: how often the host waited for the device.
    """

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.waits = 0

    def run(self, seconds: float, launch_seconds: float = 0.0) -> None:
        """Launch work of so many seconds."""
        self.host += launch_seconds
        self.device = max(self.device, self.host) + seconds

    def synchronize(self) -> None:
        """Let the host wait."""
        self.waits += 1
        self.host = max(self.host, self.device)

    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Stream:
        """Put it in the place of torch's CUDA for one test."""
        import torch

        stream = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing, "an event without timing tells nothing"
                self.at = float("nan")

            def record(self) -> None:
                self.at = max(stream.device, stream.host)

            def elapsed_time(self, later: Event) -> float:
                assert max(self.at, later.at) <= stream.host, "nobody waited for the event"
                return 1e3 * (later.at - self.at)  # milliseconds, as CUDA has it

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        return self
