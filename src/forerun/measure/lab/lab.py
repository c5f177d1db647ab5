"""Lab: real hosts on one machine, each with its own network, link rate and share of the cores.

Guard: a sleeping shell that learns of its owner's death by a closed pipe, and removes the lab.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forerun.errors import RequestError, UnknownNameError
from forerun.measure.hosts import Host
from forerun.measure.lab import entering, network, overview, removing, state, system
from forerun.measure.lab.cgroups import Controllers, HostGroup
from forerun.measure.lab.names import LabId, checked_name, this_process
from forerun.measure.lab.place import LabHost, lifted, places, settle
from forerun.measure.lab.spec import HostSpec, check_cpus, check_rate, check_sum
from forerun.measure.lab.state import HostState, LabState

if TYPE_CHECKING:
    from forerun.measure.lab.raycluster import RayCluster

import contextlib
import sys

from forerun.measure.lab.names import parse_id

# Read returns at once when the last writer has gone; a word before that is the owner's good-bye.
_SCRIPT = 'read -r word && exit 0; exec "$@"'


class Guard:
    """Removes a lab when the process that made this guard dies without saying good-bye."""

    def __init__(self, lab: LabId) -> None:
        self._process = subprocess.Popen(
            ("sh", "-c", _SCRIPT, str(lab), sys.executable, "-m", __name__, str(lab)),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the owner's terminal must not end it
        )  # fmt: skip

    def dismiss(self) -> None:
        """Say good-bye: the lab has been removed."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(b"done\n")
        self._process.wait()


def main(text: str) -> None:
    """Remove the lab that a guard was made for, unless that has been done."""
    from forerun.measure.lab import removing, state

    lab = parse_id(text)
    if lab is not None and lab.abandoned:
        with state.locked():
            removing.remove(lab)


if __name__ == "__main__":
    main(sys.argv[1])


class Lab:
    """A context manager: hosts that exist from `with` to the end of its block.

    ```python
    with Lab([HostSpec(cpus=0.22, link_mbit=300)] * 4) as lab:
        lab.run(lab.hosts[0], ["python", "train.py"])
    ```

    Hosts reach one another and nothing else. They end with the process that made them, also where
    that is killed. `Lab.open(name)` takes hold of one that `forerun lab up` keeps up.

    Args:
        hosts: what each host has, or how many hosts of the usual kind.
        name: what to call it; "" takes a free one.
        crowded: allow shares that sum up to more than the machine's cores.

    Raises:
        RequestError: shares, rates or sizes that cannot be kept, or a name that cannot be used.
    """

    def __init__(
        self, hosts: Sequence[HostSpec] | int = 2, *, name: str = "", crowded: bool = False
    ) -> None:
        specs = [HostSpec()] * hosts if isinstance(hosts, int) else list(hosts)
        check_sum(specs, crowded)
        self.specs: tuple[HostSpec, ...] = tuple(specs)
        self._name = checked_name(name) if name else ""
        self._state: LabState | None = None
        self._guard: Guard | None = None
        self._pid = 0
        self._hosts: tuple[LabHost, ...] = ()

    @classmethod
    def open(cls, name: str) -> Lab:
        """Return a lab that is up, to use it without owning it.

        Hosts that a process held to another share when it was killed get their own again.

        Raises:
            UnknownNameError: no such lab is up.
        """
        system.require()
        labs = {each.lab.name: each.lab for each in overview.labs() if not each.lab.abandoned}
        found = settle(labs[name]) if name in labs else None
        if found is None:
            raise UnknownNameError("lab", name, labs, "start one: forerun lab up")
        specs = [HostSpec(h.cpus, h.link_mbit, h.memory_bytes) for h in found.hosts]
        lab = cls(specs, name=name, crowded=True)
        lab._take(found)
        return lab

    def up(self, keep: bool = False) -> Lab:
        """Make the hosts; first remove every lab whose owner is dead.

        Args:
            keep: leave them when this process ends, until `forerun lab down`.

        Raises:
            RequestError: what this machine lacks and what to do, or the name is taken.
        """
        system.require()
        with state.locked():
            removing.sweep()
            subnet = state.free_subnet()
            name = self._free_name(subnet)
            lab = LabId(name) if keep else LabId.of_this_process(name)
            made = datetime.now(UTC).isoformat(timespec="seconds")
            hosts = tuple(map(HostState.of, self.specs))
            first = LabState(
                lab, subnet, made, hosts, Controllers.found(), maker=this_process()
            )  # fmt: skip
            state.write(first)  # before the first part is made, so that no crash hides one
            whole = replace(first, maker="")
            try:
                self._make(first)
                state.write(whole)
            except BaseException:
                removing.remove(lab)
                raise
        self._take(whole)
        if not keep:
            self._pid = os.getpid()
            self._guard = Guard(lab)
            atexit.register(self._at_exit)
        return self

    def down(self) -> None:
        """End the hosts' processes and remove the hosts; nothing happens where they are gone."""
        if self._state is None:
            return
        lab = self._state.lab
        with state.locked():
            removing.remove(lab)
        self._state, self._hosts = None, ()
        atexit.unregister(self._at_exit)
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    def __enter__(self) -> Lab:
        return self.up()

    def __exit__(self, *raised: object) -> None:
        self.down()

    @property
    def hosts(self) -> list[LabHost]:
        """The hosts, as places where a runner starts processes."""
        self._up()
        return list(self._hosts)

    @property
    def id(self) -> LabId:
        """Its name with its owner."""
        return self._up().lab

    @property
    def name(self) -> str:
        """What it is called."""
        return self.id.name

    def state(self) -> LabState:
        """Return what each host has at present, also where another process has changed it."""
        return state.read(self.id) or self._up()

    def start(self, host: Host | str | int, command: Sequence[str], **how: Any) -> Any:
        """Start a command on a host; `how` is what `subprocess.Popen` takes, which is returned."""
        return subprocess.Popen(self.host(host).command(command), **how)

    def run(
        self, host: Host | str | int, command: Sequence[str], **how: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Carry out a command on a host; `how` is what `subprocess.run` takes."""
        return subprocess.run(
            self.host(host).command(command), check=how.pop("check", False), **how
        )

    def slow(self, host: Host | str | int, cpus: float) -> None:
        """Give a host another share of the cores from now on: a straggler."""
        check_cpus(cpus)
        number = self._number(host)
        self._change(number, cpus=cpus)  # first: what the kernel has is settled by it
        self._group(number).limit_cpus(cpus)

    def rate(self, host: Host | str | int, link_mbit: float) -> None:
        """Give a host's link another rate from now on."""
        check_rate(link_mbit)
        number = self._number(host)
        network.set_rate(self.id, number, link_mbit)
        self._change(number, link_mbit=link_mbit)

    def cut(self, host: Host | str | int, kill: bool = True) -> None:
        """Lose a host: its cable is pulled, then all its processes are killed.

        The others learn nothing of it, as with a host whose power fails: no connection is closed.

        Args:
            host: which one.
            kill: False only pulls the cable; its processes go on by themselves.
        """
        number = self._number(host)
        network.set_link(self.id, number, up=False)
        if kill:
            self._group(number).kill(self.state().hosts[number - 1].cpus)
        self._change(number, linked=False)

    def mend(self, host: Host | str | int) -> None:
        """Put a lost host's cable back; what was killed stays dead."""
        number = self._number(host)
        network.set_link(self.id, number, up=True)
        self._change(number, linked=True)

    @contextmanager
    def full_speed(self) -> Iterator[None]:
        """Lift every share for a while: programs start in seconds that would take a minute.

        As with `LabHost.hold`, whoever uses the lab next sets right what a killed process left.
        """
        with lifted(self._up()):
            yield

    def pids(self, host: Host | str | int) -> list[int]:
        """Return a host's processes."""
        return self.group(host).pids()

    def cpu_seconds(self, host: Host | str | int) -> float | None:
        """Return the processor time that a host has used; None where the kernel counts none."""
        return self.group(host).cpu_seconds()

    def oom_kills(self, host: Host | str | int) -> int:
        """Return how many processes of a host were killed for want of memory."""
        return self.group(host).oom_kills()

    def group(self, host: Host | str | int) -> HostGroup:
        """Return the control group of a host: what it limits and counts."""
        return self._group(self._number(host))

    def ray(self, **how: Any) -> RayCluster:
        """Return a Ray cluster over the hosts, a context manager; `how`: see RayCluster."""
        from forerun.measure.lab.raycluster import RayCluster

        return RayCluster(self, **how)

    def host(self, host: Host | str | int) -> LabHost:
        """Return a host by its name (`h2`), by its place in `hosts`, or by itself.

        Raises:
            UnknownNameError: it is none of this lab's.
        """
        if isinstance(host, int) and -len(self._hosts) <= host < len(self._hosts):
            return self._hosts[host]
        wanted = host.name if isinstance(host, Host) else str(host)
        names = {known.name: known for known in self.hosts}
        if wanted not in names:
            raise UnknownNameError("host", wanted, names, f"in lab {self.name}: {', '.join(names)}")
        return names[wanted]

    def prefix(self, number: int, group: str = "") -> tuple[str, ...]:
        """Return the words that put a command into a host (from 1), and into a group within it."""
        return entering.words(self._up(), number, group)

    def _make(self, first: LabState) -> None:
        network.make(first.lab, first.subnet, self.specs)
        for number, spec in enumerate(self.specs, start=1):
            group = first.group(number)
            group.make()
            group.limit_cpus(spec.cpus)
            if spec.memory_bytes is not None:
                group.limit_memory(spec.memory_bytes)
        first.controllers.favour(first.lab, True)

    def _take(self, found: LabState) -> None:
        self._state = found
        self._hosts = places(found)

    def _free_name(self, subnet: int) -> str:
        taken = {lab.name for lab in removing.every()}
        if self._name in taken:
            raise RequestError(
                f"a lab named {self._name!r}", "one of that name is up",
                f"choose another name, or remove it: forerun lab down {self._name}",
            )  # fmt: skip
        return self._name or next(n for i in range(subnet, 999) if (n := f"lab{i}") not in taken)

    def _up(self) -> LabState:
        if self._state is None:
            raise RequestError("the hosts of a lab", "it is not up", "enter it: with Lab(2) as lab")
        return self._state

    def _number(self, host: Host | str | int) -> int:
        return self.host(host).number

    def _group(self, number: int) -> HostGroup:
        return self._up().group(number)

    def _change(self, number: int, **fields: Any) -> None:
        with state.locked():
            now = self.state()
            self._state = now.with_host(number, replace(now.hosts[number - 1], **fields))
            state.write(self._state)

    def add_folder(self, folder: str) -> None:
        """Write down a temporary folder that goes with the lab."""
        with state.locked():
            now = self.state()
            self._state = replace(now, folders=(*now.folders, folder))
            state.write(self._state)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:  # a forked child leaves the lab to its owner
            self.down()
