"""System: what the machine must have for a lab, and how its tools are called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from forerun.errors import RequestError

_TOOLS = ("ip", "tc")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # bits, linux/capability.h
_SECONDS = 60


@cache
def tool(name: str) -> str | None:
    """Return where a program lies; a user's path often lacks the folders of root's programs."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return shutil.which(name, path=path)


def missing() -> list[tuple[str, str]]:
    """Return what this machine lacks for a lab, each as (what was found, what to do)."""
    if sys.platform != "linux":
        return [(f"this is {sys.platform}", "use a Linux machine; the local runner serves here")]
    from forerun.measure.lab.cgroups import Controllers

    lacks = []
    if os.geteuid() != 0:
        lacks.append(("you are not root", "run it as root (sudo)"))
    elif without := _capabilities_missing():
        lacks.append(
            (f"root lacks {' and '.join(without)}", "start the container with --privileged")
        )
    if gone := [name for name in _TOOLS if tool(name) is None]:
        lacks.append(
            (f"no program {' and '.join(gone)}", "install iproute2 (apt install iproute2)")
        )
    try:
        Controllers.found()
    except RequestError as error:
        lacks.append((error.found, error.next_step))
    return lacks


def require() -> None:
    """Raise RequestError, naming everything that is missing, unless a lab can be made here."""
    lacks = missing()
    if lacks:
        raise RequestError(
            "a lab on this machine", "; ".join(found for found, _ in lacks),
            "; ".join(dict.fromkeys(what for _, what in lacks)),
        )  # fmt: skip


def call(words: Sequence[str], given: str = "", asked: str = "the lab") -> str:
    """Run a tool and return what it wrote; `given` is its standard input.

    Raises:
        RequestError: it failed; its own words are in the message.
    """
    program = tool(words[0]) or words[0]
    done = subprocess.run(
        [program, *words[1:]], input=given, capture_output=True, text=True, check=False,
        timeout=_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise RequestError(asked, f"`{' '.join(words)}` said: {said}", _advice(said))
    return done.stdout


def _advice(said: str) -> str:
    if "qdisc kind is unknown" in said or "Specified qdisc" in said:
        return "the kernel lacks the token-bucket filter; load it (modprobe sch_tbf)"
    if "Operation not permitted" in said:
        return "run it as root with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    if "Unknown device type" in said or "Operation not supported" in said:
        return "the kernel lacks veth or bridge devices; load them (modprobe veth bridge)"
    return "remove what it names, then `forerun lab down`, and try again"


def _capabilities_missing() -> list[str]:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    held = next((int(x.split()[1], 16) for x in status.splitlines() if x.startswith("CapEff")), 0)
    return [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
