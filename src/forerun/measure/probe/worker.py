"""Worker: a process that measures on one host: `python -m forerun.measure.probe.worker REQUEST`.

REQUEST is JSON in hexadecimal digits, so that any shell on the way leaves it as it is. Rank 0 writes
lines of JSON to stdout: what the machine is (`machine`), what is being timed (`doing`), and at last
all that was found; the others take part in what needs several.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from forerun.measure.fingerprint import fingerprint
from forerun.measure.precision import use_tf32
from forerun.measure.probe.busy import is_busy, look
from forerun.measure.probe.clock import Clock
from forerun.measure.probe.collectives import Ring, jitter
from forerun.measure.probe.curves import Measurements
from forerun.measure.probe.elements import CLASSES, element_grids, memory_grid
from forerun.measure.probe.framework import (
    OPTIMIZERS,
    framework_costs,
    loader_costs,
    optimizer_costs,
)
from forerun.measure.probe.machine import memory_bytes, nominal_flops
from forerun.measure.probe.products import Grid, product_grids
from forerun.measure.probe.sizes import LAUNCHES, sizes_of

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
# What most steps hold; the rest follows in its own order.
FIRST = (
    "memory",
    "matmul.forward",
    "matmul.dgrad",
    "matmul.wgrad",
    "add",
    "sum",
    "relu",
    "threshold_backward",
    "conv.forward",
    "conv.dgrad",
    "conv.wgrad",
    "native_layer_norm",
    "native_layer_norm_backward",
    "_log_softmax",
    "_log_softmax_backward_data",
    "nll_loss_forward",
    "nll_loss_backward",
    "clone",
    "gelu",
    "gelu_backward",
    "attention.forward",
    "attention.backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "embedding",
    "embedding.backward",
)
# Without these no step could be priced.
NEEDED = ("memory", "matmul.forward", "matmul.dgrad", "matmul.wgrad", "add")
_FEW_REPEATS = 2  # on a busy machine: that it is timed at all is worth more than a third repeat
_MANY_REPEATS = 5  # of threads, whose fastest tells what the wall clock of the others hides
LONGER = 1.5  # times what was asked, for what no step can do without
_WAIT_SECONDS = 300.0


def measured(torch: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return what one process finds on this host.

    request: device (cpu or cuda), threads, dtypes, seconds (of measuring, at most), only (names of
    grids; all where there is none).
    """
    use_tf32(False)
    device, threads = str(request["device"]), int(request["threads"])
    begun, allowed = time.monotonic(), float(request["seconds"])
    machine = look(torch, device, threads)
    busy = is_busy(machine)
    tell(machine=machine)
    clock = Clock(device, threads, until=begun + allowed)
    if busy and threads == 1:
        clock = replace(clock, repeats=_FEW_REPEATS)
    elif busy:
        clock = replace(clock, repeats=_MANY_REPEATS, fastest=True)
    found = Measurements(told=lambda name: tell(doing=name))
    full_precision(torch)
    launch = clock.launch_seconds(torch)
    # What no step can do without comes first, and may take half as long again.
    longer = replace(clock, until=begun + LONGER * allowed)
    costs = {**framework_costs(torch, device, longer), **loader_costs(torch, longer.on_host())}
    updates: dict[str, list[float]] = {}
    for position, dtype in enumerate(request["dtypes"]):
        number = getattr(torch, DTYPES[dtype])
        sizes = sizes_of(torch, device, number.itemsize)
        grids = in_order(
            [memory_grid(torch, device, number, sizes, LAUNCHES * launch)],
            product_grids(torch, device, number, sizes),
            element_grids(torch, device, number, sizes),
        )
        only = request.get("only")
        grids = [grid for grid in grids if not only or grid.name in only]
        first = [grid for grid in grids if grid.name in NEEDED] if position == 0 else []
        found.add(dtype, first, longer)
        if position == 0:
            updates = optimizer_costs(torch, device, clock)
        found.add(dtype, [grid for grid in grids if grid not in first], clock)
        for name, source in CLASSES.items():
            if f"{dtype}/{source}" in found.curves:
                found.curves[f"{dtype}/{name}"] = found.curves[f"{dtype}/{source}"]
    return {
        "fingerprint": fingerprint(),
        "memory_bytes": memory_bytes(torch, device),
        "nominal_flops": nominal_flops(threads) if device == "cpu" else 0.0,
        **machine,
        "jitter_seconds": jitter(torch) if device == "cpu" else 0.0,
        "framework": costs,
        "updates": updates,
        "curves": found.curves,
        "left_out": [*found.left_out, *(f"update/{n}" for n in OPTIMIZERS if n not in updates)],
        "refused": found.refused,
        "launch_seconds": launch,
        "spread": sorted(clock.spreads)[len(clock.spreads) // 2],
        "seconds": time.monotonic() - begun,
        "asked_seconds": allowed,
    }


def tell(**words: Any) -> None:
    """Write one line of JSON for whoever waits; what was found is the last line."""
    print(json.dumps(words), flush=True)  # noqa: T201 (stdout is how it tells)


def full_precision(torch: Any) -> None:
    """Let products in fp32 be just that: libraries may round their inputs to TF32's ten bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def in_order(*sources: Iterable[Grid]) -> list[Grid]:
    """Return the grids with those first that most steps need, so that these are never left out."""
    grids = [grid for source in sources for grid in source]
    return sorted(grids, key=lambda g: FIRST.index(g.name) if g.name in FIRST else len(FIRST))


def talk(torch: Any, request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return what the groups of ranks that the request names find among themselves.

    groups: name to ranks (`inter` between hosts, `intra` on one); in each, its first two ranks and
    all of them are timed.
    """
    dist = torch.distributed
    found: dict[str, Any] = {}
    for name, ranks in request["groups"].items():
        rings = [ranks[:2], ranks] if len(ranks) > 2 else [ranks]
        found[name] = {
            "all_reduces": {}, "rested": {}, "messages": [], "together": [], "replicas": [],
        }  # fmt: skip
        for members in rings:
            group = dist.new_group(members)
            if rank in members:
                ring = Ring(torch, members, group, rank)
                one = found[name]
                one["all_reduces"][str(len(members))] = ring.all_reduces()
                one["rested"][str(len(members))] = ring.rested()
                if members is rings[0]:
                    one["messages"] = ring.messages()
                    one["replicas"] = ring.replicas()
                if members is rings[-1]:
                    one["together"] = ring.together()
            dist.barrier()
    return found


def main(arguments: list[str]) -> int:
    """Measure what the request asks for; rank 0 prints it.

    It ends with whoever started it, over ssh with the connection.
    """
    from forerun.measure.worker import die_with_parent

    die_with_parent()
    request = json.loads(bytes.fromhex(arguments[0]))
    rank, world = int(request.get("rank", 0)), int(request.get("world", 1))
    os.environ.update(request.get("environment", {}))
    sys.path[:0] = [path for path in request.get("paths", []) if path not in sys.path]
    import torch

    torch.set_num_threads(int(request["threads"]))
    if world > 1:
        wait = datetime.timedelta(seconds=_WAIT_SECONDS + float(request["seconds"]))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world, timeout=wait)
    found = measured(torch, request) if rank == 0 else {}
    if world > 1:
        torch.distributed.barrier()
        if rank == 0:
            tell(doing="links")
        found["groups"] = talk(torch, request, rank)
        torch.distributed.destroy_process_group()
    if rank == 0:
        tell(**found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
