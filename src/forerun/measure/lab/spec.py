"""HostSpec: what a host of the lab is given: a share of a core, a link rate, and memory."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import RequestError

MOST_HOSTS = 250
LEAST_CPUS, MOST_MBIT, LEAST_MBIT = 0.01, 100_000.0, 0.1
LEAST_MEMORY_BYTES = 16_000_000
# Of the 1514 bytes of an Ethernet frame that a link rate counts, TCP carries 1448.
PAYLOAD_SHARE = 1448 / 1514
_MBIT = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_AMOUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host: how much of the machine it may use.

    Args:
        cpus: share of the machine's cores, e.g. 0.22 of one.
        link_mbit: rate of its link in each direction, in 10^6 bits a second of Ethernet frames.
        memory_bytes: most memory that its processes may hold; None for no limit. Beyond it the
            kernel kills one of them, as on a real host.

    Raises:
        RequestError: a share, rate or size outside of what the kernel can keep.
    """

    cpus: float = 0.22
    link_mbit: float = 300.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        check_cpus(self.cpus)
        check_rate(self.link_mbit)
        if self.memory_bytes is not None and self.memory_bytes < LEAST_MEMORY_BYTES:
            raise RequestError(
                f"a host with {self.memory_bytes:,} bytes of memory",
                "less than a process needs to start", "give it at least 16MB",
            )  # fmt: skip

    @property
    def payload_bytes_per_second(self) -> float:
        """What a TCP connection can carry over its link, headers taken off."""
        return self.link_mbit * 1e6 / 8 * PAYLOAD_SHARE


def check_cpus(cpus: float) -> None:
    """Raise RequestError unless a share of cores can be kept."""
    cores = os.cpu_count() or 1
    if not (math.isfinite(cpus) and LEAST_CPUS <= cpus <= cores):
        raise RequestError(
            f"a host with {cpus:g} cores", f"a share lies from {LEAST_CPUS:g} to {cores}"
            f" (the cores of this machine)", "choose one, for example 0.22",
        )  # fmt: skip


def check_rate(link_mbit: float) -> None:
    """Raise RequestError unless a link rate can be kept."""
    if not (math.isfinite(link_mbit) and LEAST_MBIT <= link_mbit <= MOST_MBIT):
        raise RequestError(
            f"a link of {link_mbit:g} Mbit/s", f"a rate lies from {LEAST_MBIT:g} to"
            f" {MOST_MBIT:,.0f} Mbit/s", "choose one, for example 300mbit",
        )  # fmt: skip


def check_sum(specs: Sequence[HostSpec], crowded: bool) -> None:
    """Raise RequestError unless all hosts can have their share at once, or may be crowded."""
    if not 1 <= len(specs) <= MOST_HOSTS:
        raise RequestError(
            f"a lab of {len(specs)} hosts",
            f"a lab has 1 to {MOST_HOSTS}",
            f"ask for 1 to {MOST_HOSTS} hosts",
        )
    cores, wanted = os.cpu_count() or 1, sum(spec.cpus for spec in specs)
    if wanted > cores and not crowded:
        raise RequestError(
            f"{len(specs)} hosts with {wanted:.4g} cores in all",
            f"this machine has {cores}: contention is what would be measured",
            f"give each at most {0.9 * cores / len(specs):.2g}, or ask for a crowded lab",
        )


def parse_rate(text: str, asked: str = "a link rate") -> float:
    """Return a link rate in Mbit/s from text such as `300mbit`, `1gbit` or `300`.

    Raises:
        RequestError: no number, another unit, or a rate that no link can keep.
    """
    rate = _amount(text, asked, _MBIT, "mbit", "300mbit or 1gbit")
    check_rate(rate)
    return rate


def parse_memory(text: str, asked: str = "memory") -> int:
    """Return bytes from text such as `512MB` or `2GiB`. Raises RequestError."""
    return int(_amount(text, asked, _BYTES, "", "512MB or 2GB"))


def _amount(
    text: str, asked: str, units: dict[str, float], usual: str, examples: str
) -> float:  # fmt: skip
    match = _AMOUNT.fullmatch(text.strip().lower().removesuffix("/s"))
    unit = (match[2] or usual) if match else ""
    if match is None or unit not in units:
        raise RequestError(
            f"{asked} {text!r}", f"not a number with a unit of {', '.join(units)}",
            f"write for example {examples}",
        )  # fmt: skip
    return float(match[1]) * units[unit]
