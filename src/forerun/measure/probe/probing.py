"""Probing: hosts measured and told as a catalogue entry, with what a reader must know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.errors import MissingExtraError, RequestError, one_of
from forerun.measure.hosts import Host, check_hosts, local_host
from forerun.measure.probe.busy import allowed_cores, is_busy, said
from forerun.measure.probe.findings import device_entry, warnings_of
from forerun.measure.probe.fleet import probe_hosts
from forerun.measure.probe.worker import DTYPES, LONGER

LEAST_SECONDS = 5.0


@dataclass(frozen=True)
class Probe:
    """What was asked and what was found.

    Attributes:
        entry: the device as a catalogue file's fields.
        found: what workers told, as plain values.
        warnings: what a reader must know.
    """

    entry: Mapping[str, Any]
    found: Mapping[str, Any]
    warnings: Sequence[str] = field(default=())


def probe(
    hosts: Sequence[Host] = (), *, name: str = "probed", seconds: float = 60.0, threads: int = 1,
    dtypes: Sequence[str] = ("fp32",), device: str = "cpu", beside: int = 1, version: str = "",
    only: Sequence[str] = (), told: Callable[[str], None] = lambda words: None,
    doing: Callable[[str], None] = lambda words: None,
) -> Probe:  # fmt: skip
    """Measure hosts, the first one's operations and the links among all.

    Args:
        hosts: this machine by default.
        name: the device's id in the catalogue.
        seconds: for measuring; links and the start of processes take more.
        threads: of one operation.
        dtypes: precisions, the most important first.
        device: cpu or cuda.
        beside: processes on the first host that are set to work at once.
        version: of forerun, written beside the figures.
        only: names of operations to time (`matmul.forward`, `add` ...); all where there is none.
        told: called at once where the machine is found to be busy, in words.
        doing: called with what is being timed, again and again.

    Raises:
        MissingExtraError: torch is not installed.
        RequestError: no such precision or device, too few seconds, links between CUDA devices, a
            host that cannot be reached.
        UnsatisfiedError: the time did not suffice for what every step needs.
    """
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise RequestError(f"precision {dtype!r}", "it cannot be timed", one_of(dtype, DTYPES))
    if seconds < LEAST_SECONDS:
        raise RequestError(
            f"a probe of {seconds:g} s", f"it takes {LEAST_SECONDS:g} s at the very least",
            "give --seconds 60",
        )  # fmt: skip
    places = check_hosts(tuple(hosts) or (local_host(),))
    _check_device(device, places, beside)
    _check_threads(threads, device, places)
    for (
        place
    ) in places:  # a host of a lab may be held at another share, by a runner that was killed
        if callable(release := getattr(place, "release", None)):
            release()

    def hear(letter: Mapping[str, Any]) -> None:
        if is_busy(letter.get("machine", {})):
            told(
                f"{said(letter['machine'])}: what every step needs is timed first, in {LONGER:g} x"
                " the time where it must be, and bands will be wider"
            )
        if "silent" in letter:
            told(
                f"after {letter['silent']:.0f} s {places[0].name} has not imported torch yet: it is"
                " busy, or slow"
            )
        if isinstance(letter.get("doing"), str):
            doing(letter["doing"])

    found = probe_hosts(
        places, seconds=seconds, threads=threads, dtypes=dtypes, device=device, beside=beside,
        only=only, told=hear,
    )  # fmt: skip
    found["threads"] = threads
    where = f"{places[0].name}" + (f" of {len(places)} hosts" if len(places) > 1 else "")
    entry = device_entry(found, name, dtypes, version, where)
    return Probe(entry, found, warnings_of(found))


def _check_threads(threads: int, device: str, places: Sequence[Host]) -> None:
    """Raise RequestError where more threads are asked than there are cores for.

    The wall clock would tell how fast they are between two pauses, and not with them.
    """
    allowed = allowed_cores()
    if device == "cpu" and threads > 1 and places[0].is_local and threads > allowed + 0.05:
        raise RequestError(
            f"probing with {threads} threads", f"a process may have {allowed:.2g} cores here",
            f"give --threads {max(int(allowed), 1)}",
        )  # fmt: skip


def _check_device(device: str, places: Sequence[Host], beside: int) -> None:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("forerun probe", "torch", "torch") from None
    if device not in ("cpu", "cuda"):
        raise RequestError(f"device {device!r}", "it cannot be probed", "give cpu or cuda")
    if device == "cuda" and (len(places) > 1 or beside > 1):
        raise RequestError(
            "probing links between CUDA devices (several --hosts, or --beside)",
            "only links between processors are measured so far",
            "leave --hosts and --beside out: one CUDA device is timed by itself",
        )  # fmt: skip
    if device == "cuda" and places[0].is_local and not torch.cuda.is_available():
        raise RequestError(
            "probing a CUDA device", "torch finds none on this machine",
            "give --device cpu, or run it where there is one",
        )  # fmt: skip
