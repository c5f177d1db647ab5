"""forerun probe: micro-benchmarks turn this machine or cluster into a catalogue's device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli.inputs import FILE, NAMES, WHOLE, YAML, at_most_one, writable, write_text
from forerun.cli.interrupting import orderly
from forerun.cli.options import force_option, json_option, write_json
from forerun.cli.printing import echo
from forerun.cli.showing import Screen, waiting
from forerun.units import GIGA, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.domain.measured import Measured
    from forerun.measure.hosts import Host
    from forerun.measure.probe.probing import Probe


@click.command()
@click.option("--out", type=FILE, metavar="FILE.yaml", help="Write a catalogue file for --catalog.")
@force_option
@click.option("--name", default="probed", show_default=True, metavar="ID", help="The device's id.")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Seconds, at most.")
@click.option(
    "--dtypes", type=NAMES, default="fp32", show_default=True, help="Of bf16, fp16, fp32, fp64."
)
@click.option("--threads", type=WHOLE, help="Threads of one operation (1; as a worker will have).")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
    help="What computes.",
)  # fmt: skip
@click.option("--beside", type=WHOLE, help="Processes on one host that work at once (1).")
@click.option(
    "--hosts", type=NAMES, metavar="NAME[=ADDRESS],...",
    help="Hosts reached by ssh, the first one is timed and the links among all.",
)  # fmt: skip
@click.option("--interface", default="", help="The hosts' network interface, if it must be named.")
@click.option("--lab", metavar="LAB", help="The hosts of a lab that `forerun lab up` made.")
@json_option
@orderly("stopped; nothing is written")
def probe(
    out: Path | None, force: bool, name: str, seconds: float, dtypes: Sequence[str],
    threads: int | None, device: str, beside: int | None, hosts: Sequence[str] | None,
    interface: str, lab: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure this machine, or hosts and their links, as a device that predictions know.

    Times operations by size, forward and both gradients, optimizers, the framework's own cost and,
    among several hosts, all-reduces and messages. Predictions for the device then price each
    operation at its own size, with no training run.

    After --out mine.yaml --name mine: forerun predict resnet50 --cluster 1xmine --catalog mine.yaml
    """
    from forerun.measure.probe.findings import catalogue_text
    from forerun.measure.probe.probing import probe as measure

    writable(out, YAML, replace=force)
    with waiting(f"measures for {seconds:g} s") as doing:
        found = measure(
            _hosts(hosts, interface, lab), name=name, seconds=seconds, threads=threads or 1,
            dtypes=dtypes, device=device, beside=beside or 1,
            warn=lambda words: echo(words, err=True),
            doing=lambda what: doing(f"measures for {seconds:g} s: {what}"),
        )  # fmt: skip
    if out is not None:
        write_text(out, catalogue_text(found.entry))
    if as_json:
        body = {"device": found.entry, "out": str(out or ""), "warnings": found.warnings}
        write_json("probe", body)
        return
    _show(found, out, name)


def _hosts(texts: Sequence[str] | None, interface: str, lab: str | None) -> tuple[Host, ...]:
    at_most_one("both name hosts", {"--hosts": texts, "--lab": lab})
    if lab is not None:
        from forerun.measure.lab import Lab

        return tuple(Lab.open(lab).hosts)
    from forerun.measure.hosts import Host

    made = []
    for text in texts or ():
        called, _, address = text.partition("=")
        ssh = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", called)
        made.append(Host(called, address or called, interface, ssh))
    return tuple(made)


def _show(found: Probe, out: Path | None, name: str) -> None:
    from forerun.domain.measured import Measured

    screen = Screen()
    measured, facts = Measured.from_dict(found.entry["measured"]), found.found
    screen.title(f"{name}: {found.entry['name']}, measured in {facts['seconds']:.0f} s")
    screen.table(("what", "measured"), _figures(measured))
    clock = f"a process gets {facts['cpu_share']:.2f} of a core"
    if int(facts["threads"]) > 1:
        clock = f"the wall clock of {facts['threads']:.0f} threads"
    screen.line(
        f"spread  repeats lie {format_percent(facts['spread'])} apart (median of all figures); {clock}"
    )
    screen.items("warnings", found.warnings)
    if out is not None:
        ask = f"forerun predict ... --cluster 1x{name} --catalog {out}"
        screen.line(f"written to {out}; ask: {ask}")


def _figures(measured: Measured) -> Iterator[tuple[str, str]]:
    """Yield what a reader compares with a data sheet: products at their largest size, calls, links."""
    for name, curve in measured.curves.items():
        precision, _, operation = name.partition("/")
        if operation.startswith(("matmul.", "conv.")):
            flops = 2.0 * math.prod(axis[-1] for axis in curve.axes) / curve.seconds[-1]
            text = "x".join(f"{axis[-1]:g}" for axis in curve.axes)
            yield f"{name} {text}", f"{flops / GIGA:,.4g} GFLOP/s"
        elif operation == "memory":
            moved = {"fp32": 8.0, "fp64": 16.0}.get(precision, 4.0)  # one read and one write
            for footprint, seconds in zip(curve.axes[0], curve.seconds, strict=True):
                yield f"{name} of {format_bytes(footprint)}", f"{moved / seconds / GIGA:.3g} GB/s"
    yield "framework, an operation forward", format_seconds(measured.forward_call_seconds)
    yield "framework, an operation backward", format_seconds(measured.backward_call_seconds)
    yield "a step beside its operations", format_seconds(measured.step_seconds)
    for name, update in measured.updates.items():
        each = f"{1.0 / update.parameter_seconds / GIGA:.2f} G parameters/s"
        yield f"{name} update", f"{format_seconds(update.step_seconds)} + {each}"
    for title, slower in (("processes", measured.together), ("hosts", measured.hosts_together)):
        if len(slower) > 1:
            yield f"{len(slower)} {title} at once", f"{slower[-1]:.2f} x slower"
    for name, link in measured.links.items():
        place = "between hosts" if name == "inter" else "on one host"
        send = f"{link.send_bytes_per_second / GIGA:.3f} GB/s"
        yield f"message {place}", f"{format_seconds(link.send_latency_seconds)} + {send}"
        call, step = map(format_seconds, (link.call_seconds, link.latency_seconds))
        rate = f"{link.bytes_per_second / GIGA:.3f} GB/s"
        yield f"all-reduce {place}", f"{call} + {step} a step + {rate}"
        busy = format_seconds(link.busy_seconds_per_byte * 1e6)
        yield f"processor's time of it {place}", f"{busy} a MB"
