"""Worker: the process that measures on one host: `python -m forerun.measure.probe.worker REQUEST`.

REQUEST is JSON; what was found goes to stdout as one line of JSON. It is started on every host that
is probed, by whatever words start a process there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from forerun.measure.probe.clock import Clock
from forerun.measure.probe.curves import Measurements
from forerun.measure.probe.elements import CLASSES, element_grids, memory_grid
from forerun.measure.probe.framework import framework_costs, optimizer_costs
from forerun.measure.probe.machine import cpu_share, fingerprint, memory_bytes
from forerun.measure.probe.products import product_grids

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Return what one process finds on this host.

    request: device (cpu or cuda), threads, dtypes, seconds (of measuring, at most).
    """
    import torch

    device, threads = str(request["device"]), int(request["threads"])
    torch.set_num_threads(threads)
    begun = time.monotonic()
    share, share_spread = cpu_share() if device == "cpu" and threads == 1 else (1.0, 0.0)
    clock = Clock(device, threads, until=begun + float(request["seconds"]))
    found = Measurements()
    costs = framework_costs(torch, device, clock)
    updates = optimizer_costs(torch, device, clock)
    for dtype in request["dtypes"]:
        number = getattr(torch, DTYPES[dtype])
        with torch.no_grad():
            found.add(dtype, [memory_grid(torch, device, number)], clock)
            found.add(dtype, element_grids(torch, device, number), clock)
        found.add(dtype, product_grids(torch, device, number), clock)
        for name, source in CLASSES.items():
            if f"{dtype}/{source}" in found.curves:
                found.curves[f"{dtype}/{name}"] = found.curves[f"{dtype}/{source}"]
    return {
        "fingerprint": fingerprint(torch, device, threads),
        "memory_bytes": memory_bytes(torch, device),
        "cpu_share": share,
        "cpu_share_spread": share_spread,
        "framework": costs,
        "updates": updates,
        "curves": found.curves,
        "left_out": found.left_out,
        "spread": sorted(clock.spreads)[len(clock.spreads) // 2],
        "seconds": time.monotonic() - begun,
    }


def main(arguments: list[str]) -> int:
    """Measure what the request asks for, and print it."""
    print(json.dumps(measured(json.loads(arguments[0]))))  # noqa: T201 (stdout is the answer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
