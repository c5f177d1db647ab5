"""Worker: a process that measures on one host: `python -m forerun.measure.probe.worker HEX_OF_JSON`."""

from __future__ import annotations

import datetime
import json
import os
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from forerun.measure.failures import status_of
from forerun.measure.loop import make_optimizer, use_tf32
from forerun.measure.measurement import fingerprint
from forerun.measure.probe.clock import CallTimer
from forerun.measure.probe.collectives import REST_SECONDS, Ring, co_running, jitter, rested_work
from forerun.measure.probe.grids import CLASSES, CPU, Grid, cuda_sizes, grids
from forerun.measure.probe.machine import BUSY_SHARE, cpu_access, is_busy, memory_bytes
from forerun.measure.servers.messages import PUSH, Channel, Talk, at_once

_LAYERS = 24
# Pauses after which a net runs, and kinds of operations of its forward and backward passes.
_PAUSES, _KINDS = 12, 8
_BATCHES = (4, 32)
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
_FEW, _MANY = 16, 1_000_000
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
# Without these no step could be priced.
NEEDED = ("memory", "matmul.forward", "matmul.dgrad", "matmul.wgrad", "add")
LONGER = 1.5  # times what was asked, for what no step can do without
_WAIT_SECONDS = 300.0


def framework_costs(torch: Any, device: str, clock: CallTimer) -> dict[str, float]:
    """Return seconds by the names of `domain.measured.Measured`."""
    nn, x = torch.nn, torch.randn(4, 4, device=device)

    def seconds(call: Any, *given: Any, **how: Any) -> float:
        return clock.time(partial(call, *given, **how))

    def phases(module: Any) -> tuple[float, float]:  # forward, and all that backward adds
        y = x.clone().requires_grad_()

        def step() -> None:
            module.zero_grad()
            module(y).sum().backward()

        forward = seconds(module, y)
        return forward, seconds(step) - forward

    forward, backward = phases(nn.Sequential(*(nn.ReLU() for _ in range(_LAYERS))))
    forward_call = forward / _LAYERS - seconds(torch.relu, x)
    gradient = torch.ops.aten.threshold_backward.default
    backward_call = backward / _LAYERS - seconds(gradient, x, x, 0)
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(_LAYERS))).to(device)
    product, bias = seconds(x.mm, x), seconds(x.sum, 0, keepdim=True)
    # Each layer goes back through one operation of autograd: two products and a sum.
    own = phases(layers)[1] / _LAYERS - 2.0 * product - bias - backward_call
    forward, backward = phases(nn.Linear(4, 4).to(device))
    step = forward + backward - forward_call - backward_call - 3.0 * product - bias - own
    found = {
        "forward_call_seconds": forward_call, "backward_call_seconds": backward_call,
        "gradient_seconds": own / 2.0, "step_seconds": step,
    }  # fmt: skip
    if device == "cpu":
        found["cold_call_seconds"] = _cold_call(torch)
    return {name: max(cost, 0.0) for name, cost in found.items()}


def _cold_call(torch: Any) -> float:
    nn, x = torch.nn, torch.randn(16, 64)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())

    def seconds(pause: float) -> float:
        taken = []
        for _ in range(_PAUSES):
            time.sleep(pause)
            begun = time.process_time()
            net(x).sum().backward()
            taken.append(time.process_time() - begun)
        return statistics.median(taken)

    seconds(0.0)
    return (seconds(REST_SECONDS) - seconds(0.0)) / _KINDS


def loader_costs(torch: Any, clock: CallTimer) -> dict[str, float]:
    """Return seconds that the framework's loader takes for a batch, and for each sample in it."""

    def batch_seconds(size: int) -> float:  # of samples that were made before
        count = 16 * size
        data = torch.utils.data.TensorDataset(torch.randn(count, 64), torch.zeros(count))
        loader = torch.utils.data.DataLoader(data, batch_size=size, shuffle=True)
        return clock.time(lambda: deque(loader, maxlen=0)) / 16

    few, many = map(batch_seconds, _BATCHES)
    each = max((many - few) / (_BATCHES[1] - _BATCHES[0]), 0.0)
    return {"batch_seconds": max(few - _BATCHES[0] * each, 0.0), "sample_seconds": each}


_MESSAGE_BYTES = (4, 1 << 20)


def message_costs(torch: Any, clock: CallTimer) -> dict[str, float]:
    """Return seconds of one side of a push to a parameter server and its answer, and for each byte of both."""

    def seconds(size: int) -> float:
        pushed, pulled = torch.ones(size // 4), torch.ones(size // 4)

        def ask() -> Talk:
            yield from near.send(PUSH, tensors=[pushed])
            yield from near.receive()
            yield from near.read(pushed)

        def answer() -> Talk:
            yield from far.receive()
            yield from far.read(pulled)
            yield from far.send(PUSH, tensors=[pulled])

        return clock.time(lambda: at_once(ask(), answer())) / 2.0

    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = Channel(socket.create_connection(listener.getsockname()))
        far = Channel(listener.accept()[0])
    few, many = map(seconds, _MESSAGE_BYTES)
    near.close()
    far.close()
    each = max(many - few, 0.0) / (2.0 * _MESSAGE_BYTES[1])
    return {"message_seconds": few, "message_byte_seconds": each}


def optimizer_costs(
    torch: Any, device: str, clock: CallTimer, names: Sequence[str] = OPTIMIZERS
) -> dict[str, list[float]]:
    """Return seconds (a step, a tensor, a parameter) of updates by optimizer, while time is left."""

    def stepped(name: str, sizes: list[int]) -> float:
        """Time zeroing gradients and updating; a step's backward makes new gradients."""
        parameters = [torch.nn.Parameter(torch.randn(n, device=device)) for n in sizes]
        gradients = [torch.randn_like(parameter) for parameter in parameters]
        optimizer = make_optimizer(name, parameters)

        def step() -> None:
            optimizer.zero_grad()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

        return clock.time(step)

    found = {}
    for name in names:
        if clock.is_over:
            break
        one, few = stepped(name, [4]), stepped(name, [4] * _FEW)
        many = stepped(name, [_MANY // 8] * 8)
        tensor = max((few - one) / (_FEW - 1), 0.0)
        step = max(one - tensor, 0.0)
        found[name] = [step, tensor, max((many - step - 8 * tensor) / _MANY, 1e-13)]
    return found


@dataclass
class Measurements:
    """Curves as plain values ({axes, seconds, spread}) by name, and what there is none of."""

    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # that there was no time for
    refused: dict[str, str] = field(default_factory=dict)  # why the device could not do them
    report: Callable[[str], None] = lambda name: None  # called with what is timed next

    def add(self, prefix: str, grids: Iterable[Grid], clock: CallTimer) -> None:
        """Time grids, in their order, as `prefix/name`."""
        for grid in grids:
            name = f"{prefix}/{grid.name}"
            self.report(name)
            try:
                curve = None if clock.is_over else timed(grid, clock)
            except RuntimeError as error:  # as torch has it for what a device or a precision lacks
                self.refused[name] = " ".join(str(error).split())[:200]
                continue
            if curve is None:
                self.left_out.append(name)
            else:
                self.curves[name] = curve


def timed(grid: Grid, clock: CallTimer) -> dict[str, Any] | None:
    """Return the curve of a grid, None where time ran out. Raises RuntimeError where the device cannot do it."""
    seconds: dict[tuple[float, ...], float] = {}
    spreads = []
    for point in grid.points:
        found = None
        if grid.flops(*point) <= grid.most_flops:
            if clock.is_over:
                return None
            try:
                found = clock.time(grid.make(*map(int, point)))
            except RuntimeError as error:
                if status_of(error) != "oom" or not seconds:
                    raise
        if found is None:
            ranks = [axis.index(v) for axis, v in zip(grid.axes, point, strict=True)]
            place = max(range(len(point)), key=lambda i: (ranks[i] > 0, grid.axes[i][ranks[i]]))
            below = grid.axes[place][ranks[place] - 1]
            neighbour = (*point[:place], below, *point[place + 1 :])
            seconds[point] = seconds[neighbour] * point[place] / below
        else:
            seconds[point] = max(found / grid.per(*point), 1e-13)
            spreads.append(clock.spreads[-1])
    return {
        "axes": [list(axis) for axis in grid.axes], "seconds": list(seconds.values()),
        "spread": statistics.median_high(spreads),
    }  # fmt: skip


def measured(torch: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return what one process finds on this host; the request is `probing.probe`'s."""
    use_tf32(False)
    device, threads = str(request["device"]), int(request["threads"])
    start, allowed = time.monotonic(), float(request["seconds"])
    machine = cpu_access(torch, device, threads)
    send(machine=machine)
    clock = CallTimer(device, threads, until=start + allowed)
    if is_busy(machine):  # of threads, the fastest has what the wall clock of the others hides
        clock.repeats, clock.fastest = (2, False) if threads == 1 else (5, True)
    # What no step can do without comes first, and may take half as long again.
    longer = replace(clock, until=start + LONGER * allowed)
    passes: list[dict[str, Any]] = []
    # The pace of a machine that others share wanders within minutes: time that is left goes into further passes.
    while not passes or time.monotonic() + passes[0]["seconds"] < start + allowed:
        passes.append(_gone_through(torch, request, machine, clock, longer))
    alone = device == "cpu" and threads == 1
    # Where a process does not get a core, as under a quota, threads would wait for that instead.
    shares = alone and machine["cpu_share"] >= BUSY_SHARE
    shares = shares and not request.get("only") and not clock.is_over
    return {
        **machine, "co_running": co_running(torch, machine["allowed_cores"]) if shares else None,
        "fingerprint": fingerprint(), "memory_bytes": memory_bytes(torch, device),
        **middle_of(passes), "spread": statistics.median_high(clock.spreads),
        "seconds": time.monotonic() - start,
    }  # fmt: skip


def _gone_through(
    torch: Any, request: dict[str, Any], machine: Mapping[str, Any], clock: CallTimer, longer: CallTimer
) -> dict[str, Any]:  # fmt: skip
    """Return what one pass over everything finds, with its seconds."""
    device, begun = clock.device, time.monotonic()
    found = Measurements(report=lambda name: send(doing=name))
    on_host = longer.on_host()
    costs = framework_costs(torch, device, longer) | loader_costs(torch, on_host)
    costs |= message_costs(torch, on_host)
    updates: dict[str, list[float]] = {}
    for position, dtype in enumerate(request["dtypes"]):
        number, sizes = getattr(torch, DTYPES[dtype]), CPU
        if device == "cuda":
            sizes = cuda_sizes(float(torch.cuda.mem_get_info()[0]), number.itemsize)
        only = request.get("only")
        left = [g for g in grids(torch, device, number, sizes) if not only or g.name in only]
        if position == 0:
            found.add(dtype, [grid for grid in left if grid.name in NEEDED], longer)
            updates = optimizer_costs(torch, device, clock)
            left = [grid for grid in left if grid.name not in NEEDED]
        found.add(dtype, left, clock)
        for name, source in CLASSES.items():
            if f"{dtype}/{source}" in found.curves:
                found.curves[f"{dtype}/{name}"] = found.curves[f"{dtype}/{source}"]
    return {
        "jitter_seconds": jitter(torch) if device == "cpu" else 0.0,
        "rested_work_seconds": (
            rested_work(torch, machine["cpu_share"]) if device == "cpu" and clock.threads == 1 else 0.0
        ),
        "framework": costs, "updates": updates, "curves": found.curves, "refused": found.refused,
        "left_out": [*found.left_out, *(f"update/{n}" for n in OPTIMIZERS if n not in updates)],
        "seconds": time.monotonic() - begun,
    }  # fmt: skip


def middle_of(passes: Sequence[Any]) -> Any:
    """Return the medians of numbers in nested mappings and lists of one form; all else is the first pass's."""
    first = passes[0]
    if isinstance(first, dict):
        return {key: middle_of([p[key] for p in passes if key in p]) for key in first}
    if isinstance(first, list):
        return [middle_of(each) for each in zip(*passes, strict=False)] if first else first
    return statistics.median(passes) if isinstance(first, float) else first


def send(**words: Any) -> None:
    """Write one line of JSON for whoever waits; what was found is the last line."""
    print(json.dumps(words), flush=True)  # noqa: T201 (stdout is how it reports)


def measure_links(torch: Any, groups: Mapping[str, list[int]], rank: int) -> dict[str, Any]:
    """Return what the first two ranks of each group, and all of them, find among themselves."""
    found: dict[str, Any] = {}
    for name, ranks in groups.items():
        one = found[name] = {
            "all_reduces": {}, "rested": {}, "messages": [], "together": [], "replicas": [],
        }  # fmt: skip
        for members in [ranks[:2], ranks] if len(ranks) > 2 else [ranks]:
            ring = Ring(torch, members, torch.distributed.new_group(members), rank)
            if rank in members:
                one["all_reduces"][str(len(members))] = ring.all_reduces()
                one["rested"][str(len(members))] = ring.rested()
                if len(members) == 2:
                    one["messages"] = ring.messages()
                    one["replicas"] = ring.replicas()
                if members == ranks:
                    one["together"] = ring.together()
            torch.distributed.barrier()
    return found


def main(arguments: list[str]) -> int:
    """Measure what the request asks for; rank 0 prints it. It ends with whoever started it."""
    from forerun.measure.processes import die_with_parent, loading

    die_with_parent()
    request = json.loads(bytes.fromhex(arguments[0]))
    rank, world = int(request.get("rank", 0)), int(request.get("world", 1))
    os.environ.update(request.get("environment", {}))
    with loading():
        import torch

    torch.set_num_threads(int(request["threads"]))
    if world > 1:
        wait = datetime.timedelta(seconds=_WAIT_SECONDS + float(request["seconds"]))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world, timeout=wait)
    found = measured(torch, request) if rank == 0 else {}
    if world > 1:
        torch.distributed.barrier()
        if rank == 0:
            send(doing="links")
        found["groups"] = measure_links(torch, request["groups"], rank)
        torch.distributed.destroy_process_group()
    if rank == 0:
        send(**found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
