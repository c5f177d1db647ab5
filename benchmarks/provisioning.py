"""How long the provisioning of a network of 100 layers on up to 256 machines takes.

python benchmarks/provisioning.py [--machines 256] [--repeats 3]
"""

from __future__ import annotations

import argparse
import time

from forerun.advisor import Advisor
from forerun.domain.graph import Op, OpKind
from forerun.domain.workload import Length, Workload
from forerun.workloads.backward import complete

LAYERS, MACHINE = 100, "v100-sxm2-32gb"


def network(kind: str) -> Workload:
    """Return 100 dense layers of 4,096 neurons, or 97 convolutions and three dense layers of 4,096."""
    ops: list[Op] = []
    for i in range(LAYERS):
        inputs = (i - 1,) if i else ()
        if kind == "dense" or i >= LAYERS - 3:
            ops.append(Op(
                f"dense{i}", OpKind.MATMUL, flops=2.0 * 4096**2, reads=4096, writes=4096, weights=4096**2,
                params=4096**2, shape=(4096,), dims=(1, 4096, 4096), saved=4096, inputs=inputs,
            ))  # fmt: skip
            continue
        side = 64 // 2 ** (i // 33)
        channels, pixels = 64 * 2 ** (i // 33), side * side
        ops.append(Op(
            f"conv{i}", OpKind.CONV, flops=18.0 * pixels * channels**2, reads=channels * pixels,
            writes=channels * pixels, weights=9 * channels**2, params=9 * channels**2,
            shape=(channels, side, side), dims=(pixels, channels, 9 * channels), saved=channels * pixels,
            inputs=inputs,
        ))  # fmt: skip
    return Workload(kind, complete(ops, "momentum"), precision="fp32", framework="pytorch")


def main() -> None:
    """Print the least time of each network, and what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    advisor = Advisor()
    for kind in ("dense", "convolutional"):
        for batch in (256, 4096):
            seconds = []
            for _ in range(asked.repeats):
                work, start = network(kind), time.perf_counter()
                found = advisor.provision(
                    work,
                    MACHINE,
                    machines=asked.machines,
                    global_batch=batch,
                    length=Length("samples", 1e6),
                )
                seconds.append(time.perf_counter() - start)
            best = found.best
            print(
                f"{kind}, batch {batch}: {min(seconds):.2f} s for {found.considered:,} setups; {best.replicas} x"
                f" {best.largest_partition} parts, {best.sync}, {best.servers} servers, {best.machines} machines"
            )


if __name__ == "__main__":
    main()
