"""Threads that train beside one another: what the probe says of their slowdown, and what training shows.

    python benchmarks/interference.py [--out benchmarks/results/interference.md]

Threads share the weights of a dense net, each with samples of its own, as workers of a machine do in
Yan et al. 2015 (KDD, C_muladd(H)). The probe times products alone, at other sizes. Needs a machine that does
nothing else, with two cores or more.
"""

from __future__ import annotations

import argparse
import datetime
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn

from forerun.domain.measured import Curve, Measured
from forerun.measure.probe.collectives import co_running

WIDTHS, ROWS, SECONDS, TURNS = (180, 724, 1448, 2896, 5792), 8, 0.25, 5


def rate(net: nn.Module, width: int, threads: int) -> float:
    """Return steps a second of each of so many threads: forward and gradients."""
    start, parameters = threading.Barrier(threads), list(net.parameters())

    def train(_: int) -> float:
        x = torch.randn(ROWS, width)

        def step() -> None:
            torch.autograd.grad(net(x).square().mean(), parameters)

        step()
        start.wait()
        count, begun = 0, time.perf_counter()
        while (taken := time.perf_counter() - begun) < SECONDS or count < 3:
            step()
            count += 1
        return count / taken

    with ThreadPoolExecutor(threads) as pool:
        return float(np.mean(list(pool.map(train, range(threads)))))


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path)
    out = asked.parse_args().out
    torch.set_num_threads(1)
    found = co_running(torch, min(float(os.cpu_count() or 1), 2.0))
    if found is None:
        raise SystemExit("two cores are needed")
    measured = Measured({}, co_running=Curve.from_dict(found))
    lines = [
        "# Threads beside one another", "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}, {os.cpu_count()} cores, load"
        f" {os.getloadavg()[0]:.2f}. `python benchmarks/interference.py`. Probe, bytes of weights: slowdown of two"
        " threads: " + ", ".join(f"{b:.2g}: {s:.2f}" for b, s in zip(
            found["axes"][0], found["seconds"][1::2], strict=True)) + ".", "",
        "| weights, MB | predicted slowdown of two | trained | spread | error |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    errors = []
    for width in WIDTHS:
        net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        turns = np.array([rate(net, width, 1) / rate(net, width, 2) for _ in range(TURNS)])
        said, true = float(measured.thread_slowdown(8.0 * width**2, 2.0)), float(np.median(turns))
        errors.append(abs(said / true - 1.0))
        lines.append(f"| {8e-6 * width**2:.2f} | {said:.2f} | {true:.2f} | {np.ptp(turns) / true:.0%} |"
                     f" {said / true - 1:+.0%} |")  # fmt: skip
    lines += ["", f"Mean error {100 * np.mean(errors):.1f} %, worst {100 * max(errors):.0f} %."]
    print("\n".join(lines))
    if out:
        out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
