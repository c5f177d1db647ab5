"""Hosts: places where a process can be started, each with its address and network interface."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from forerun.errors import RequestError

_LOW, _HIGH = 20000, 32000  # ports below those that the kernel hands out itself


@dataclass(frozen=True, slots=True)
class Host:
    """A place for a process; what `prefix` starts must become it (exec), so that signals reach it."""

    name: str
    address: str
    interface: str = ""
    prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("address", self.address)):
            if not value.strip():
                raise RequestError(f"host {self.name!r}", f"it has no {field}", f"give its {field}")
        object.__setattr__(self, "prefix", tuple(self.prefix))

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the words that start a command on this host."""
        return [*self.prefix, *words]

    @property
    def is_local(self) -> bool:
        """Whether its processes are plain processes of this machine."""
        return not self.prefix


def local_host() -> Host:
    """Return this machine: workers find one another on its loopback interface."""
    names = {name for _, name in socket.if_nameindex()}
    return Host("localhost", "127.0.0.1", next((n for n in ("lo", "lo0") if n in names), ""))


def blocks(workers: int, hosts: int) -> tuple[int, ...]:
    """Return how many workers each host that is used gets: blocks as even as can be."""
    used = min(workers, hosts)
    return tuple(workers // used + (i < workers % used) for i in range(used))


def check_hosts(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts. Raises RequestError where there is none or two share a name."""
    if not hosts:
        found = "no process can be started"
        raise RequestError("a run on no hosts", found, "give one host or more")
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        asked, found = f"a run on hosts {', '.join(names)}", f"{twice!r} is there twice"
        raise RequestError(asked, found, "give each host its own name")
    return tuple(hosts)


def free_port(host: Host) -> int:
    """Return a port that is free on this machine; on another host, one that is likely to be."""
    for _ in range(100):
        port = random.SystemRandom().randrange(_LOW, _HIGH)
        if not host.is_local:
            return port
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host.address, port))
            return port
    raise RequestError(
        f"a free port of {host.name}", f"none of 100 at {host.address} was", "check the address"
    )
