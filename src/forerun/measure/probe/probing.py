"""Probing: hosts measured by a worker on each, as a catalogue entry, with what a reader must know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from forerun.errors import RequestError, one_of, optional
from forerun.measure.hosts import Host, check_hosts, free_port, local_host
from forerun.measure.probe.findings import device_entry, warnings_of
from forerun.measure.probe.machine import allowed_cores, busy_text, is_busy
from forerun.measure.probe.worker import DTYPES, LONGER
from forerun.measure.processes import import_path

WORKER = "forerun.measure.probe.worker"
# Beside what is asked for measuring: starting, importing torch under a quota, talking over links.
_MORE_SECONDS = 300.0
Message = dict[str, Any]
_TAIL = 400
LEAST_SECONDS = 5.0


def _run_workers(
    hosts: Sequence[Host], beside: int, request: Message, report: Callable[[Message], None]
) -> Message:
    ranks = [*hosts, *[hosts[0]] * (beside - 1)]
    groups: dict[str, list[int]] = {}
    if len(hosts) > 1:
        groups["inter"] = list(range(len(hosts)))
    if beside > 1:
        groups["intra"] = [0, *range(len(hosts), len(ranks))]
    threads = str(request["threads"])
    environment = {
        "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(free_port(hosts[0])),
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
    }  # fmt: skip
    with ExitStack() as stack:
        workers = []
        for rank, host in enumerate(ranks):
            own = {"GLOO_SOCKET_IFNAME": host.interface} if host.interface else {}
            asked = {
                **request, "world": len(ranks), "groups": groups, "rank": rank,
                "environment": {**environment, **own},
            }  # fmt: skip
            workers.append(_Worker(host, asked, stack))
        until = time.monotonic() + float(request["seconds"]) + _MORE_SECONDS
        last, running = Message(), True
        while running:
            codes = [worker.process.poll() for worker in workers]
            running = None in codes
            for last in workers[0].messages():
                report(last)
            for worker, code in zip(workers, codes, strict=True):
                if code:
                    raise worker.failure()
                if code is None and time.monotonic() > until:
                    todo = "see that the host can reach the first one, or probe fewer hosts"
                    found = "its worker did not answer in time"
                    raise RequestError(f"probing {worker.host.name}", found, todo)
            time.sleep(0.05 * running)
        return last


class _Worker:
    def __init__(self, host: Host, request: Message, stack: ExitStack) -> None:
        self.host, self._read = host, 0
        # Nameless files: a pipe would fill and stop it.
        self.out, self.err = (stack.enter_context(TemporaryFile()) for _ in range(2))  # noqa: SIM115
        words = [sys.executable, "-m", WORKER, json.dumps(request).encode().hex()]
        try:
            self.process = subprocess.Popen(
                host.command(words), stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                env={**os.environ, "PYTHONPATH": import_path(os.environ.get("PYTHONPATH", ""))},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise self.failure(str(error)) from None
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    def messages(self) -> list[Message]:
        """Return what it has written since the last call, but for lines of other libraries."""
        # The worker writes where this file stands: to seek in it would have a line written over another.
        file = self.out.fileno()
        written = os.pread(file, os.fstat(file).st_size - self._read, self._read)
        whole, newline, _ = written.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        found = []
        for line in whole.decode(errors="replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [message for message in found if isinstance(message, dict)]

    def failure(self, reason: str = "") -> RequestError:
        self.err.seek(0)
        written = " ".join(self.err.read().decode(errors="replace").split())
        name, words = self.host.name, reason or written or "it wrote nothing"
        return RequestError(
            f"probing {name}", f"its worker failed: {words[-_TAIL:]}",
            f"see that `ssh {name} true` works without a password where it is another machine, that"
            f" forerun and torch are installed there for {sys.executable}, and that the hosts reach"
            " one another",
        )  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """The catalogue's entry, what the workers found, and what a reader must know."""

    entry: Mapping[str, Any]
    found: Mapping[str, Any]
    warnings: Sequence[str]


def probe(
    hosts: Sequence[Host] = (), *, name: str = "probed", seconds: float = 60.0, threads: int = 1,
    dtypes: Sequence[str] = ("fp32",), device: str = "cpu", beside: int = 1,
    only: Sequence[str] = (), warn: Callable[[str], None] = lambda words: None,
    doing: Callable[[str], None] = lambda words: None,
) -> Probe:  # fmt: skip
    """Measure hosts, the first one's operations and the links among all.

    Args:
        seconds: for measuring; links and the start of processes take more.
        dtypes: precisions, the most important first.
        beside: processes on the first host that are set to work at once.
        only: names of operations to time (`matmul.forward`, `add` ...); all where there is none.

    Raises RequestError, MissingExtraError without torch, UnsatisfiedError where the time was too short.
    """
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise RequestError(f"precision {dtype!r}", "it cannot be timed", one_of(dtype, DTYPES))
    if seconds < LEAST_SECONDS:
        why = f"it takes {LEAST_SECONDS:g} s at the very least"
        raise RequestError(f"a probe of {seconds:g} s", why, "give --seconds 60")
    places = check_hosts(hosts or (local_host(),))
    _check_device(device, places, beside)
    allowed = allowed_cores()
    # The wall clock would tell how fast threads are between two pauses, and not with them.
    if device == "cpu" and threads > 1 and places[0].is_local and threads > allowed + 0.05:
        asked = f"probing with {threads} threads"
        todo = f"give --threads {max(int(allowed), 1)}"
        raise RequestError(asked, f"a process may have {allowed:.2g} cores here", todo)
    # A host of a lab may be held at another share, by a runner that was killed.
    for place in places:
        if callable(release := getattr(place, "release", None)):
            release()

    def report(message: Message) -> None:
        if is_busy(message.get("machine", {})):
            warn(
                f"{busy_text(message['machine'])}: what every step needs is timed first, in {LONGER:g} x"
                " the time where it must be, and bands will be wider"
            )
        if "doing" in message:
            doing(message["doing"])

    request = {
        "seconds": seconds, "threads": threads, "dtypes": list(dtypes), "device": device,
        "only": list(only),
    }  # fmt: skip
    found = _run_workers(places, beside, request, report)
    found["threads"] = threads
    where = places[0].name + (f" of {len(places)} hosts" if len(places) > 1 else "")
    return Probe(device_entry(found, name, dtypes, where), found, warnings_of(found))


def _check_device(device: str, places: Sequence[Host], beside: int) -> None:
    with optional("forerun probe", "torch", "torch"):
        import torch
    if device not in ("cpu", "cuda"):
        raise RequestError(f"device {device!r}", "it cannot be probed", "give cpu or cuda")
    if device == "cuda" and (len(places) > 1 or beside > 1):
        asked = "probing links between CUDA devices (several --hosts, or --beside)"
        todo = "leave --hosts and --beside out: one CUDA device is timed by itself"
        raise RequestError(asked, "only links between processors are measured so far", todo)
    if device == "cuda" and places[0].is_local and not torch.cuda.is_available():
        advice = "give --device cpu, or run it where there is one"
        raise RequestError("probing a CUDA device", "torch finds none on this machine", advice)
