"""Network: a namespace a host, one more with the bridge between them, and a rate on each link."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.lab.state import LabId, LabState

# Every host has the same name for it, so that one GLOO_SOCKET_IFNAME serves all.
INTERFACE = "eth0"
_BRIDGE = "br0"
# What may leave at once: a millisecond's worth, but room for a packet of 64 kB as the sender's kernel
# hands it down (69 kB with headers). A smaller bucket has it cut into frames there, which made an
# all-reduce cost hosts five times the processor time.
_BURST_SECONDS, _LEAST_BURST_BYTES = 1e-3, 80_000
_QUEUE_MILLISECONDS = 50
FOLDER = Path("/run/netns")
_CALL_SECONDS = 60
# What ip and tc write where they fail, and what to do.
_ADVICE = (
    ("qdisc kind is unknown|Specified qdisc",
     "the kernel lacks the token-bucket filter; load it (modprobe sch_tbf)"),
    ("Operation not permitted", "run it as root with CAP_NET_ADMIN and CAP_SYS_ADMIN"),
    ("Unknown device type|Operation not supported",
     "the kernel lacks veth or bridge devices; load them (modprobe veth bridge)"),
    ("", "remove what it names, then `forerun lab down`, and try again"),
)  # fmt: skip


def make(lab: LabState) -> None:
    """Make the namespaces, the bridge and the links of a lab, none in the machine's own namespace."""
    switch = lab.lab.switch
    call(("ip", "netns", "add", switch))
    _batch(switch, "ip", [
        f"link add {_BRIDGE} type bridge mcast_snooping 0",
        f"link set {_BRIDGE} addrgenmode none", f"link set {_BRIDGE} up",
    ])  # fmt: skip
    for number, host in zip(lab.numbers, lab.hosts, strict=True):
        space, port = lab.lab.host(number), f"p{number}"
        call(("ip", "netns", "add", space))
        _batch(switch, "ip", [
            f"link add {port} type veth peer name {INTERFACE} netns {space}",
            f"link set {port} addrgenmode none",  # hosts speak IPv4 alone
            f"link set {port} master {_BRIDGE}", f"link set {port} up",
        ])  # fmt: skip
        _batch(space, "ip", [
            f"link set {INTERFACE} addrgenmode none", "link set lo up",
            f"addr add {lab.address(number)}/24 dev {INTERFACE}", f"link set {INTERFACE} up",
        ])  # fmt: skip
        set_rate(lab.lab, number, host.link_mbit)


def set_rate(lab: LabId, number: int, link_mbit: float) -> None:
    """Give a host's link a rate in each direction, in Mbit/s, from now on."""
    burst = max(_LEAST_BURST_BYTES, round(link_mbit * 1e6 / 8 * _BURST_SECONDS))
    bucket = (
        f"root tbf rate {round(link_mbit * 1e6)}bit burst {burst} latency {_QUEUE_MILLISECONDS}ms"
    )
    _batch(lab.host(number), "tc", [f"qdisc replace dev {INTERFACE} {bucket}"])
    _batch(lab.switch, "tc", [f"qdisc replace dev p{number} {bucket}"])


def set_link(lab: LabId, number: int, up: bool) -> None:
    """Pull a host's cable out of the switch, or put it back; what is sent meanwhile is lost."""
    _batch(lab.switch, "ip", [f"link set p{number} {'up' if up else 'down'}"])


def delete(namespace: str) -> None:
    """Remove a namespace with its links; no process is left in it."""
    call(("ip", "netns", "del", namespace))


def namespaces(lab: LabId) -> list[str]:
    """Return the namespaces of a lab that exist now."""
    names = sorted(path.name for path in FOLDER.glob(f"{lab}-*"))
    return [name for name in names if re.fullmatch(rf"{lab}-(sw|h\d+)", name)]


def _batch(namespace: str, program: str, lines: Sequence[str]) -> None:
    flag = "-n" if program == "ip" else "-netns"
    call((program, flag, namespace, "-batch", "-"), "\n".join(lines) + "\n")


@cache
def tool(name: str) -> str | None:
    """Return where a program lies; a user's path often lacks the folders of root's programs."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return shutil.which(name, path=path)


def call(words: Sequence[str], stdin: str = "") -> str:
    """Run a tool and return what it wrote. Raises RequestError with its own words where it failed."""
    program = tool(words[0]) or words[0]
    done = subprocess.run(
        [program, *words[1:]], input=stdin, capture_output=True, text=True, check=False,
        timeout=_CALL_SECONDS,
    )  # fmt: skip
    if done.returncode == 0:
        return done.stdout
    error = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    advice = next(todo for pattern, todo in _ADVICE if re.search(pattern, error))
    raise RequestError("the lab", f"`{' '.join(words)}` failed: {error}", advice)
