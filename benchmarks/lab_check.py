"""How true the lab is: link rates, latency, CPU shares and all-reduce, measured beside physics.

`python benchmarks/lab_check.py [--ray]`, as root, on a quiet machine. Last lines:
`worst_rate_error`, `worst_share_error`, `worst_allreduce_error` (of messages from 1 MB),
`worst_busy_share_error`, `up_seconds`, `down_seconds` and, with --ray, `ray_up_seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from forerun.measure.lab import HostSpec, Lab

ROOT = Path(__file__).resolve().parents[1]
RATES_MBIT = (50.0, 300.0, 1000.0)
SHARES = (0.1, 0.22, 0.45)
ELEMENTS = (16_384, 262_144, 788_000)  # float32: 66 kB, 1.05 MB, 3.15 MB
WORLDS = (2, 3, 4)

RECEIVE = """
import json, socket, sys, time
server = socket.create_server((sys.argv[1], 5001))
print("{}", flush=True)
while True:
    link, _ = server.accept()
    got, since, began = 0, 0, 0.0
    while data := link.recv(1 << 18):
        got += len(data)
        if not began and got >= 500_000:
            began, since = time.perf_counter(), got
    seconds = time.perf_counter() - began
    print(json.dumps({"rate": (got - since) / seconds}), flush=True)
"""
SEND = """
import socket, sys
left = int(sys.argv[2])
with socket.create_connection((sys.argv[1], 5001)) as link:
    while left > 0:
        left -= link.send(bytes(min(left, 1 << 18)))
"""
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 5002))
print("{}", flush=True)
link, _ = server.accept()
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := link.recv(1):
    link.sendall(data)
"""
PING = """
import json, socket, sys, time
with socket.create_connection((sys.argv[1], 5002)) as link:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        link.sendall(b"x"), link.recv(1)
        times.append(time.perf_counter() - began)
times.sort()
print(json.dumps({"median": times[250], "p95": times[475]}))
"""
BURN = """
import json, sys, time
began, used, last, gaps = time.perf_counter(), time.process_time(), time.perf_counter(), []
while last - began < 3:
    now = time.perf_counter()
    if now - last > 5e-4:
        gaps.append(now - last)
    last = now
gaps.sort()
share = (time.process_time() - used) / (last - began)
print(json.dumps({"share": share, "gap": gaps[len(gaps) // 2] if gaps else 0.0}))
"""
ALLREDUCE = """
import json, statistics, sys, time
import torch, torch.distributed as dist
rank, world, master = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", f"tcp://{master}:29500", rank=rank, world_size=world)
dist.all_reduce(torch.ones(1))
print("{}", flush=True)
sys.stdin.readline()
for count in map(int, sys.argv[4:]):
    tensor, times = torch.ones(count), []
    for step in range(23):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
        tensor.fill_(1.0)
    kept = times[3:]
    told = {"median": statistics.median(kept), "mean": statistics.fmean(kept)}
    print(json.dumps(told), flush=True)
dist.destroy_process_group()
"""


def words(program: str, *arguments: object) -> list[str]:
    """Return the words that start a program."""
    return [sys.executable, "-c", program, *map(str, arguments)]


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the JSON of a program's next line."""
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def rates(lab: Lab) -> float:
    """Print a transfer's rate by link rate beside physics; return the largest relative error."""
    print("\nlink rate: one TCP stream from h2 to h1, 1448 of 1514 bytes of a frame are payload")
    print("Mbit/s   physics MB/s   measured MB/s   error")
    worst, to = 0.0, lab.host("h1").address
    with lab.start("h1", words(RECEIVE, to), stdout=subprocess.PIPE, text=True) as receiver:
        told(receiver)
        for mbit in RATES_MBIT:
            for host in lab.hosts:
                lab.rate(host, mbit)
            physics, found = HostSpec(0.22, mbit).payload_bytes_per_second, []
            for _ in range(3):
                lab.run("h2", words(SEND, to, int(physics) + 500_000))
                found.append(told(receiver)["rate"])
            error = median(found) / physics - 1
            worst = max(worst, abs(error))
            print(
                f"{mbit:6.0f}   {physics / 1e6:12.2f}   {median(found) / 1e6:13.2f}   {error:+.1%}"
            )
        receiver.kill()
    for host, spec in zip(lab.hosts, lab.specs, strict=True):
        lab.rate(host, spec.link_mbit)
    return worst


def latency(lab: Lab) -> None:
    """Print the time of one byte there and back."""
    with lab.start(
        "h1", words(ECHO, lab.host("h1").address), stdout=subprocess.PIPE, text=True
    ) as echo:
        told(echo)
        done = lab.run("h2", words(PING, lab.host("h1").address), capture_output=True, text=True)
        times = json.loads(done.stdout)
        echo.wait()
    print("\nlatency: one byte there and back over TCP, h2 to h1, 500 times")
    print(f"median {times['median'] * 1e6:.0f} us, 95th percentile {times['p95'] * 1e6:.0f} us")


def shares(lab: Lab) -> float:
    """Print what a busy loop gets by share; return the largest relative error."""
    print("\nCPU share: a busy loop of 3 s on one host, and how long it usually stands still")
    print("asked    given    error   stands still")
    worst = 0.0
    for cpus in SHARES:
        lab.slow("h1", cpus)
        found = json.loads(lab.run("h1", words(BURN), capture_output=True, text=True).stdout)
        error = found["share"] / cpus - 1
        worst = max(worst, abs(error))
        print(f"{cpus:5.2f}   {found['share']:6.3f}   {error:+6.1%}   {found['gap'] * 1e3:9.1f} ms")
    lab.slow("h1", lab.specs[0].cpus)
    return worst


def together(lab: Lab) -> float:
    """Print what all hosts get when all are busy; return the largest relative error."""
    burning = [lab.start(h, words(BURN), stdout=subprocess.PIPE, text=True) for h in lab.hosts]
    found = [json.loads(process.communicate()[0])["share"] for process in burning]
    asked = [spec.cpus for spec in lab.specs]
    print("\nCPU share: all hosts busy at once, each asked for", ", ".join(f"{c:g}" for c in asked))
    print("given   ", ", ".join(f"{share:.3f}" for share in found))
    return max(abs(share / cpus - 1) for share, cpus in zip(found, asked, strict=True))


def all_reduces(lab: Lab) -> float:
    """Print gloo's all-reduce by workers and size; return the worst error from 1 MB upward."""
    print("\nall-reduce: gloo, float32, one worker a host at 300 Mbit/s and 0.22 core, 20 times")
    print("workers       MB   physics s   median s   mean s    error")
    worst = 0.0
    for world in WORLDS:
        hosts = lab.hosts[:world]
        with lab.full_speed():  # while torch is imported
            workers = [
                lab.start(
                    host, words(ALLREDUCE, rank, world, hosts[0].address, *ELEMENTS),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"},
                )
                for rank, host in enumerate(hosts)
            ]  # fmt: skip
            for worker in workers:
                told(worker)
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        began, before = (
            time.perf_counter(),
            [lab.group(host).cpu_seconds() or 0.0 for host in hosts],
        )
        for count in ELEMENTS:
            found = min((told(worker) for worker in workers), key=lambda each: each["median"])
            volume = 2 * (world - 1) / world * count * 4
            physics = volume / lab.specs[0].payload_bytes_per_second
            error = found["median"] / physics - 1
            if count * 4 >= 1e6:
                worst = max(worst, abs(error))
            print(f"{world:7d}   {count * 4e-6:6.3f}   {physics:9.4f}   {found['median']:8.4f}"
                  f"   {found['mean']:6.4f}   {error:+6.1%}")  # fmt: skip
        took = time.perf_counter() - began
        used = [(lab.group(h).cpu_seconds() or 0.0) - b for h, b in zip(hosts, before, strict=True)]
        print(
            f"{world:7d}   cores that a host used: {max(used) / took:.3f} of {lab.specs[0].cpus:g}"
        )
        for worker in workers:
            worker.communicate()
    return worst


def ray_seconds(lab: Lab) -> float:
    """Print how long a Ray cluster takes to start, and what it costs a host to idle."""
    with lab.ray() as cluster:
        print(f"\nRay: {cluster.nodes()} nodes alive after {cluster.start_seconds:.1f} s")
        time.sleep(2)
        before = [lab.group(host).cpu_seconds() or 0.0 for host in lab.hosts]
        time.sleep(5)
        idle = [
            ((lab.group(h).cpu_seconds() or 0.0) - b) / 5
            for h, b in zip(lab.hosts, before, strict=True)
        ]
        print("idle, cores a host:", ", ".join(f"{share:.3f}" for share in idle))
        found, began = cluster.start_seconds, time.perf_counter()
    print(f"ended in {time.perf_counter() - began:.2f} s")
    return found


def birth() -> str:
    """Return when, by what and on what this was measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    ).stdout.strip()  # fmt: skip
    cpu = next(
        (x.partition(":")[2].strip() for x in Path("/proc/cpuinfo").read_text().splitlines()
         if x.startswith("model name")), platform.machine(),
    )  # fmt: skip
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    return (
        f"date {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit}\n"
        f"{cpu}, {os.cpu_count()} cores, Linux {platform.release()}, Python"
        f" {platform.python_version()}, load before {load}"
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", action="store_true", help="start a Ray cluster as well")
    asked = parser.parse_args()
    print(birth())
    began = time.perf_counter()
    lab = Lab([HostSpec(cpus=0.22, link_mbit=300)] * max(WORLDS)).up()
    up_seconds = time.perf_counter() - began
    found = {}
    try:
        for host in lab.hosts[:2]:
            lab.slow(host, 0.45)  # so that the link limits, and not the sender
        found["worst_rate_error"] = rates(lab)
        latency(lab)
        found["worst_share_error"] = shares(lab)
        for host in lab.hosts[:2]:
            lab.slow(host, 0.22)
        found["worst_busy_share_error"] = together(lab)
        found["worst_allreduce_error"] = all_reduces(lab)
        if asked.ray:
            found["ray_up_seconds"] = ray_seconds(lab)
    finally:
        began = time.perf_counter()
        lab.down()
        found |= {"up_seconds": up_seconds, "down_seconds": time.perf_counter() - began}
    print("\nload after " + ", ".join(f"{load:.2f}" for load in os.getloadavg()))
    for name, value in found.items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
