"""forerun lab: a small real cluster on this machine: up, down, status, run, set, cut and mend."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.inputs import NAMES
from forerun.cli.options import json_option, write_json
from forerun.cli.printing import echo
from forerun.cli.showing import Screen
from forerun.errors import RequestError

if TYPE_CHECKING:
    from forerun.measure.lab import Lab, LabState

_name_option = click.option("--name", metavar="LAB", help="Which lab, where several are up.")


@click.group()
def lab() -> None:
    """A small real cluster on this machine: hosts with their own network, link rate and CPU share.

    Needs Linux, root, iproute2 and util-linux. Hosts reach one another and nothing else.
    """


@lab.command()
@click.option("--hosts", type=click.IntRange(1), help="How many hosts (4, or as many as listed).")
@click.option(
    "--cpus", type=NAMES, default="0.22", show_default=True, metavar="SHARE[,...]",
    help="Share of a core a host: one for all, or one each.",
)  # fmt: skip
@click.option(
    "--rate", type=NAMES, default="300mbit", show_default=True, metavar="RATE[,...]",
    help="Rate of a host's link in each direction: one for all, or one each.",
)  # fmt: skip
@click.option(
    "--memory", type=NAMES, metavar="SIZE[,...]",
    help="Most memory a host, e.g. 2GB; beyond it the kernel kills a process of the host.",
)  # fmt: skip
@click.option("--name", default="lab", show_default=True, help="What to call it.")
@click.option("--crowded", is_flag=True, help="Allow shares beyond the machine's cores in all.")
@click.option("--ray", is_flag=True, help="Start a Ray node on each host, the head on h1.")
@json_option
def up(
    hosts: int | None, cpus: Sequence[str], rate: Sequence[str], memory: Sequence[str] | None,
    name: str, crowded: bool, ray: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make hosts that stay until `forerun lab down`."""
    from forerun.measure.lab import HostSpec, Lab, parse_memory, parse_rate

    given: dict[str, tuple[Sequence[str], Callable[[str], Any]]] = {
        "--cpus": (cpus, _share), "--rate": (rate, lambda text: parse_rate(text, "--rate")),
        "--memory": (memory or (), lambda text: parse_memory(text, "--memory")),
    }  # fmt: skip
    count = hosts or next((len(values) for values, _ in given.values() if len(values) > 1), 4)
    columns = []
    for option, (values, read) in given.items():
        if len(values) not in (0, 1, count):
            raise RequestError(
                f"forerun lab up {option} {','.join(values)}",
                f"{len(values)} values for {count} hosts", "give one for all, or one a host",
            )  # fmt: skip
        column = [read(text) for text in values] or [None]
        columns.append(column * count if len(column) == 1 else column)
    specs = [HostSpec(*one) for one in zip(*columns, strict=True)]
    made = Lab(specs, name=name, crowded=crowded).up(keep=True)
    if ray:
        try:
            made.ray().up()
        except BaseException:
            made.down()
            raise
    if as_json:
        write_json("lab", {"lab": _described(made.state())})
        return
    screen = _show(made.state())
    screen.line(f"start something:  forerun lab run --name {name} h1 -- COMMAND")
    screen.line(f"remove it:        forerun lab down {name}")


@lab.command()
@click.argument("names", nargs=-1, metavar="[LAB ...]")
@click.option("--all", "all_of_them", is_flag=True, help="Also those of programs that still run.")
@json_option
def down(names: Sequence[str], all_of_them: bool, as_json: bool) -> None:
    """Remove the named labs, or every one; what runs on their hosts is ended first.

    Without names, labs that a running program made for itself stay, unless --all is given.
    """
    from forerun.measure.lab import remove_labs

    gone = remove_labs(names, of_the_living=all_of_them)
    if as_json:
        write_json("labs", {"removed": [each.name for each in gone]})
    else:
        echo("\n".join(f"removed {each.name}" for each in gone) or "no lab is up")


@lab.command()
@json_option
def status(as_json: bool) -> None:
    """The labs that are up, with what each host has, or what this machine lacks for one."""
    from forerun.measure.lab import labs, missing

    found, lacks = labs(), missing()
    if as_json:
        needs = [{"found": what, "next": todo} for what, todo in lacks]
        labs_up = [_described(state) for state in found]
        write_json("labs", {"labs": labs_up, "ready": not lacks, "missing": needs})
        return
    screen = _show(*found)
    screen.items("missing for a lab", (f"{what}: {todo}" for what, todo in lacks))
    if not found and not lacks:
        screen.line("no lab is up; start one: forerun lab up")


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@_name_option
def run(host: str, command: Sequence[str], name: str | None) -> int:
    """Carry out a COMMAND on a HOST (h1, h2 ...), and leave with its exit code.

    Example: forerun lab run h2 -- python train.py. Where the lab has Ray (`lab up --ray`), its
    address is set: on h1, ray.init(address="auto") finds it.
    """
    place = _opened(name)
    words = list(command[1:] if command[0] == "--" else command)
    own = {"GLOO_SOCKET_IFNAME": place.host(host).interface}
    if place.ray().pids():
        own |= place.ray().environment
    try:
        return place.run(host, words, env={**os.environ, **own}).returncode
    except KeyboardInterrupt:
        return 130


@lab.command("set")
@click.argument("host")
@click.option("--cpus", metavar="SHARE", help="Another share of the cores.")
@click.option("--rate", metavar="RATE", help="Another link rate, e.g. 50mbit.")
@_name_option
def change(host: str, cpus: str | None, rate: str | None, name: str | None) -> None:
    """Change what a HOST has while it is up: a straggler, a slow link."""
    from forerun.measure.lab import parse_rate

    if cpus is None and rate is None:
        next_step = "give --cpus 0.1 or --rate 50mbit"
        raise RequestError("forerun lab set", "nothing to change", next_step)

    share = None if cpus is None else _share(cpus)
    speed = None if rate is None else parse_rate(rate, "--rate")
    place = _opened(name)
    if share is not None:
        place.slow(host, share)
    if speed is not None:
        place.rate(host, speed)
    _show(place.state())


@lab.command()
@click.argument("host")
@click.option("--link-only", is_flag=True, help="Pull the cable, and leave its processes alive.")
@_name_option
def cut(host: str, link_only: bool, name: str | None) -> None:
    """Lose a HOST: its cable is pulled, then its processes are killed."""
    place = _opened(name)
    place.cut(host, kill=not link_only)
    _show(place.state())


@lab.command()
@click.argument("host")
@_name_option
def mend(host: str, name: str | None) -> None:
    """Put the cable of a lost HOST back."""
    place = _opened(name)
    place.mend(host)
    _show(place.state())


def _share(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    raise RequestError(f"--cpus {text!r}", "not a share of a core", "write e.g. 0.22")


def _opened(name: str | None) -> Lab:
    from forerun.measure.lab import Lab, labs, require

    require()
    up_now = [state.lab.name for state in labs() if not state.lab.abandoned]
    if name is None and len(up_now) != 1:
        listed = f"{len(up_now)} are up: {', '.join(up_now)}" if up_now else "none is up"
        next_step = "name one: --name LAB" if up_now else "start one: forerun lab up"
        raise RequestError("a host of the lab", listed, next_step)
    return Lab.open(name or up_now[0])


def _described(state: LabState) -> dict[str, Any]:
    hosts = [
        {
            "name": f"h{number}", "address": state.address(number),
            "namespace": state.lab.host(number), "cpus": host.cpus, "link_mbit": host.link_mbit,
            "memory_bytes": host.memory_bytes, "linked": host.linked,
            "processes": len(state.group(number).pids()),
        }
        for number, host in enumerate(state.hosts, start=1)
    ]  # fmt: skip
    return {
        "name": state.lab.name, "id": str(state.lab),
        "owner_pid": None if state.lab.kept else state.lab.pid,
        "abandoned": state.lab.abandoned, "made": state.made, "hosts": hosts,
    }  # fmt: skip


def _show(*states: LabState) -> Screen:
    screen = Screen()
    rows = []
    for lab in map(_described, states):
        until = f"process {lab['owner_pid']} ends" if lab["owner_pid"] else "down"
        until = "swept (its owner is dead)" if lab["abandoned"] else until
        rows += [
            (lab["name"], host["name"], host["address"], f"{host['cpus']:g}",
             f"{host['link_mbit']:g}",
             f"{host['memory_bytes'] / 1e6:g}" if host["memory_bytes"] else "",
             "up" if host["linked"] else "cut", host["processes"], until)
            for host in lab["hosts"]
        ]  # fmt: skip
    if rows:
        screen.table(("lab", "host", "address", "cores", "Mbit/s", "memory MB", "link", "processes",
                      "until"), rows)  # fmt: skip
    return screen
