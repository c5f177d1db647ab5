"""Lab: real hosts on one machine, each with its own network, link rate and share of the cores."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from forerun.errors import RequestError, UnknownNameError
from forerun.measure.cgroups import ControlGroup, folders_named, pids_under, remove_group
from forerun.measure.hosts import Host
from forerun.measure.lab import network, state
from forerun.measure.processes import kill_all

if TYPE_CHECKING:
    from forerun.measure.lab.raycluster import RayCluster

MOST_HOSTS = 250
COULD_NOT_ENTER = 125  # the exit code of a command that could not be put into its host
_FAVOUR = 0  # in place of a host's number: that a lab's hosts run before everything else
# What this process has changed for a while, with locked files: the kernel unlocks a killed process's.
_CHANGED: dict[tuple[state.LabId, int], IO[str]] = {}
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # bits, linux/capability.h
# Read returns once the last writer has gone, the owner; a word before that is its good-bye.
_GUARD = 'read -r word && exit 0; exec "$@"'


@dataclass(frozen=True, slots=True)
class LabHost(Host):
    """A host of a lab that is up; its user need not hold the lab."""

    lab: state.LabId = field(default_factory=lambda: state.LabId("lab"))
    number: int = 1

    def hold(self, cpus: float) -> None:
        """Give the host another share of the cores for one run; `release` gives its own back.

        Raises RequestError where the share cannot be kept, or the lab is gone.
        """
        state.check_cpus(cpus)
        with state.locked():
            found = state.read(self.lab)
            if found is None:
                asked = f"host {self.name} of lab {self.lab.name}"
                raise RequestError(asked, "the lab is gone", "start one: forerun lab up")
            _change(found, [self.number], cpus)

    def release(self) -> None:
        """Give the host its own share again, unless the lab is gone or another process changed it."""
        restore_shares(self.lab, [self.number])


def _change(lab: state.LabState, numbers: Sequence[int], cpus: float | None) -> None:
    """Give hosts another share, each with a lock; the caller holds `state.locked()`."""
    for number in numbers:
        if (lab.lab, number) not in _CHANGED:
            file = _CHANGED[lab.lab, number] = state.shares_file(lab.lab, number).open("w")
            fcntl.flock(file, fcntl.LOCK_SH)
        _set(lab, number, cpus)


def _set(lab: state.LabState, number: int, cpus: float | None) -> None:
    if number == _FAVOUR:
        lab.controllers.group(str(lab.lab)).favour(cpus is not None)
    else:
        lab.group(number).limit_cpus(cpus)


def _is_changed(lab: state.LabId, number: int) -> bool:
    with state.shares_file(lab, number).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def prefix(lab: state.LabState, number: int, group: str = "") -> tuple[str, ...]:
    """Return the words that put a command into a host (from 1), and into a group within its own."""
    # A shell becomes nsenter, which becomes the command, so that a signal reaches it. `ip netns exec` would
    # hide /sys/fs/cgroup, by which a process knows its share of a core.
    places = [str(place / group) for place in lab.group(number).places]
    script = (
        f"for g in {' '.join(map(shlex.quote, places))}; do"
        f' echo 0 > "$g/cgroup.procs" || exit {COULD_NOT_ENTER}; done;'
        f" exec {shlex.quote(network.tool('nsenter') or 'nsenter')}"
        f' --net={network.FOLDER / lab.lab.host(number)} "$@"'
    )
    return ("sh", "-c", script, "forerun-lab")


def restore_shares(lab: state.LabId, numbers: Sequence[int] = ()) -> state.LabState | None:
    """Undo own changes of some hosts, or what dead processes left of all; return the lab, None if gone."""
    with state.locked():
        for number in numbers:
            if file := _CHANGED.pop((lab, number), None):
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have it open
                file.close()
        found = state.read(lab)
        if found is not None and found.is_whole:
            for number in {_FAVOUR, *(numbers or found.numbers)}:
                if not _is_changed(lab, number):
                    _set(found, number, found.hosts[number - 1].cpus if number else 1.0)
        return found


class Lab:
    """A context manager: hosts that exist to the end of its block (docs/lab.md). Raises RequestError."""

    def __init__(
        self, hosts: Sequence[state.HostSpec] | int = 2, *, name: str = "", crowded: bool = False
    ) -> None:
        self.specs = (state.HostSpec(),) * hosts if isinstance(hosts, int) else tuple(hosts)
        asked, cores = len(self.specs), os.cpu_count() or 1
        if not 1 <= asked <= MOST_HOSTS:
            found = f"a lab has 1 to {MOST_HOSTS}"
            raise RequestError(f"a lab of {asked} hosts", found, "ask for as many")
        wanted = sum(spec.cpus for spec in self.specs)
        if wanted > cores and not crowded:
            why = f"this machine has {cores}: contention is what would be measured"
            todo = f"give each at most {0.9 * cores / asked:.2g}, or ask for a crowded lab"
            raise RequestError(f"{asked} hosts with {wanted:.4g} cores in all", why, todo)
        self._name = state.checked_name(name) if name else ""
        self._state: state.LabState | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def open(cls, name: str) -> Lab:
        """Return a lab that is up, to use it without owning it; its hosts get their own shares again.

        Raises UnknownNameError where none of this name is up.
        """
        require()
        known = {each.lab.name: each.lab for each in labs() if not each.lab.abandoned}
        found = restore_shares(known[name]) if name in known else None
        if found is None:
            raise UnknownNameError("lab", name, known, "start one: forerun lab up")
        lab = cls(found.hosts, name=name, crowded=True)
        lab._state = found
        return lab

    def up(self, keep: bool = False) -> Lab:
        """Make the hosts, which end with this process unless they are kept. Raises RequestError."""
        require()
        with state.locked():
            sweep()
            names = {written.name for written in state.written()}
            if self._name in names:
                todo = f"choose another name, or remove it: forerun lab down {self._name}"
                raise RequestError(f"a lab named {self._name!r}", "one of that name is up", todo)
            name = self._name or next(n for i in count() if (n := f"lab{i}") not in names)
            lab = state.LabId(name) if keep else state.LabId.of_this_process(name)
            taken = {found.subnet for known in state.written() if (found := state.read(known))}
            subnet = next(n for n in count() if n not in taken)
            made = datetime.now(UTC).isoformat(timespec="seconds")
            whole = state.LabState(lab, subnet, made, self.specs, ControlGroup.found())
            # Written before the first part is made, so that no crash hides one.
            state.write(replace(whole, is_whole=False))
            try:
                network.make(whole)
                for number, spec in enumerate(self.specs, start=1):
                    group = whole.group(number)
                    group.make()
                    group.limit_cpus(spec.cpus)
                    if spec.memory_bytes is not None:
                        group.limit_memory(spec.memory_bytes)
                _set(whole, _FAVOUR, 1.0)
                state.write(whole)
            except BaseException:
                _remove(lab)
                raise
        self._state = whole
        if not keep:
            self._guard = subprocess.Popen(
                ("sh", "-c", _GUARD, str(lab), sys.executable, "-m", __name__, str(lab)),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the owner's terminal must not end it
            )  # fmt: skip
        return self

    def down(self) -> None:
        """End the hosts' processes and remove the hosts; nothing happens where they are gone."""
        if self._state is None:
            return
        with state.locked():
            _remove(self._state.lab)
        self._state = None
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"done\n")
            self._guard.wait()
            self._guard = None

    def __enter__(self) -> Lab:
        return self.up()

    def __exit__(self, *raised: object) -> None:
        self.down()

    def _up(self) -> state.LabState:
        if self._state is None:
            raise RequestError("the hosts of a lab", "it is not up", "enter it: with Lab(2) as lab")
        return self._state

    @property
    def hosts(self) -> list[LabHost]:
        """The hosts, as places where a runner starts processes."""
        lab = self._up()
        return [
            LabHost(f"h{n}", lab.address(n), network.INTERFACE, prefix(lab, n), lab.lab, n)
            for n in lab.numbers
        ]

    @property
    def id(self) -> state.LabId:
        """Its name with its owner."""
        return self._up().lab

    @property
    def name(self) -> str:
        """What it is called."""
        return self.id.name

    def state(self) -> state.LabState:
        """Return what each host has at present, also where another process has changed it."""
        return state.read(self.id) or self._up()

    def host(self, host: Host | str | int) -> LabHost:
        """Return a host by its name (`h2`), by its place in `hosts`, or by itself."""
        hosts = self.hosts
        if isinstance(host, int) and -len(hosts) <= host < len(hosts):
            return hosts[host]
        wanted = host.name if isinstance(host, Host) else str(host)
        names = {known.name: known for known in hosts}
        if wanted not in names:
            raise UnknownNameError("host", wanted, names, f"in lab {self.name}: {', '.join(names)}")
        return names[wanted]

    def group(self, host: Host | str | int) -> ControlGroup:
        """Return the control group of a host: what it limits and counts."""
        return self._up().group(self.host(host).number)

    def start(self, host: Host | str | int, command: Sequence[str], **how: Any) -> Any:
        """Start a command on a host; `how` is what `subprocess.Popen` takes, which is returned."""
        return subprocess.Popen(self.host(host).command(command), **how)

    def run(
        self, host: Host | str | int, command: Sequence[str], **how: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Carry out a command on a host; `how` is what `subprocess.run` takes."""
        check = how.pop("check", False)
        return subprocess.run(self.host(host).command(command), check=check, **how)

    def slow(self, host: Host | str | int, cpus: float) -> None:
        """Give a host another share of the cores from now on: a straggler."""
        state.check_cpus(cpus)
        self._change(host, cpus=cpus)  # first: after a crash, the kernel is set to what is written
        self.group(host).limit_cpus(cpus)

    def rate(self, host: Host | str | int, link_mbit: float) -> None:
        """Give a host's link another rate from now on."""
        state.check_rate(link_mbit)
        network.set_rate(self.id, self.host(host).number, link_mbit)
        self._change(host, link_mbit=link_mbit)

    def cut(self, host: Host | str | int, kill: bool = True) -> None:
        """Pull a host's cable and `kill` its processes, as a power cut: no connection is closed."""
        number = self.host(host).number
        network.set_link(self.id, number, up=False)
        if kill:
            self.group(host).kill(self.state().hosts[number - 1].cpus)
        self._change(host, linked=False)

    def mend(self, host: Host | str | int) -> None:
        """Put a lost host's cable back; what was killed stays dead."""
        network.set_link(self.id, self.host(host).number, up=True)
        self._change(host, linked=True)

    @contextmanager
    def full_speed(self) -> Iterator[None]:
        """Lift every share for a while: programs start in seconds that would take a minute."""
        lab = self._up()
        changed = (_FAVOUR, *lab.numbers)
        with state.locked():
            _change(lab, changed, None)
        try:
            yield
        finally:
            restore_shares(lab.lab, changed)

    def ray(self, cpus: int = 1) -> RayCluster:
        """Return a Ray cluster over the hosts, a context manager; each node offers so many CPUs."""
        from forerun.measure.lab.raycluster import RayCluster

        return RayCluster(self, cpus=cpus)

    def _change(self, host: Host | str | int, **fields: Any) -> None:
        at = self.host(host).number - 1
        with state.locked():
            hosts = list(self.state().hosts)
            hosts[at] = replace(hosts[at], **fields)
            self._write(hosts=tuple(hosts))

    def add_folder(self, folder: str) -> None:
        """Write down a temporary folder that is removed with the lab."""
        with state.locked():
            self._write(folders=(*self.state().folders, folder))

    def _write(self, **fields: Any) -> None:
        self._state = replace(self.state(), **fields)
        state.write(self._state)


def labs() -> list[state.LabState]:
    """Return the labs that are up on this machine, the abandoned ones too."""
    found = map(state.read, state.written())
    return [lab for lab in found if lab is not None and lab.is_whole]


def remove_labs(names: Sequence[str] = (), of_the_living: bool = False) -> list[state.LabId]:
    """Remove the named labs, or all but `of_the_living`; return what was removed. Raises UnknownNameError."""
    require()
    with state.locked():
        every = state.written()
        known = [lab.name for lab in every]
        for name in names:
            if name not in known:
                raise UnknownNameError("lab", name, known, "see: forerun lab status")
        if names:
            every = [lab for lab in every if lab.name in names]
        elif not of_the_living:
            every = [lab for lab in every if lab.kept or lab.abandoned]
        return [lab for lab in every if _remove(lab)]


def sweep() -> list[state.LabId]:
    """Remove every lab whose owner or maker has died; the caller holds `state.locked()`."""
    dead = [
        lab for lab in state.written()
        if lab.abandoned or ((found := state.read(lab)) and not found.is_whole)
    ]  # fmt: skip
    return [lab for lab in dead if _remove(lab)]


def _remove(lab: state.LabId) -> bool:
    """Remove a lab; return whether there was anything of it. The caller holds `state.locked()`."""
    spaces, groups, known = network.namespaces(lab), folders_named(str(lab)), state.read(lab)
    if known is not None:
        for number in known.numbers:  # processes of a small share take seconds to be taken down
            with suppress(RequestError):
                known.group(number).limit_cpus(None)
    kill_all(lambda: {pid for group in groups for pid in pids_under(group)})
    for space in spaces:
        network.delete(space)
    for group in groups:
        remove_group(group)
    for name in known.folders if known else ():
        if Path(name).name.startswith(state.PREFIX):
            shutil.rmtree(name, ignore_errors=True)
    state.forget(lab)
    return bool(spaces or groups or known)


def missing() -> list[tuple[str, str]]:
    """Return what this machine lacks for a lab, each as (what was found, what to do)."""
    if sys.platform != "linux":
        return [(f"this is {sys.platform}", "use a Linux machine; the local runner serves here")]
    lacks = []
    if os.geteuid() != 0:
        lacks.append(("you are not root", "run it as root (sudo)"))
    else:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        held = next((x.split()[1] for x in status.splitlines() if x.startswith("CapEff")), "0")
        if without := [n for n, bit in _CAPABILITIES.items() if not int(held, 16) >> bit & 1]:
            words = f"root lacks {' and '.join(without)}"
            lacks.append((words, "start the container with --privileged"))
    if gone := " and ".join(n for n in ("ip", "tc", "nsenter") if network.tool(n) is None):
        todo = "install iproute2 and util-linux (apt install iproute2 util-linux)"
        lacks.append((f"no program {gone}", todo))
    try:
        ControlGroup.found()
    except RequestError as error:
        lacks.append((error.found, error.next_step))
    return lacks


def require() -> None:
    """Raise RequestError, naming everything that is missing, unless a lab can be made here."""
    lacks = missing()
    if lacks:
        found, todo = ("; ".join(dict.fromkeys(words)) for words in zip(*lacks, strict=True))
        raise RequestError("a lab on this machine", found, todo)


if __name__ == "__main__":  # the guard of a lab whose owner has gone
    if left := state.parse_id(sys.argv[1]):
        with state.locked():
            _remove(left)
