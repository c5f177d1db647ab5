"""Load on `forerun serve` from another process: requests a second, latency, and the server's CPU a request.

    python benchmarks/serve_load.py [SECONDS]
    python benchmarks/serve_load.py million [REQUESTS]

Kept and distinct jobs are asked over connections that stay open, as fast as they go and at 300 a second;
then batches of 100,000 distinct rows as columns, of which many have one plan and other lengths, or none has
another's plan. Their seconds end when the whole answer has come in. The server's CPU is that of its process.
Distinct jobs differ in their length alone, which moves no plan, or in their batch, for which the plan is
searched anew.
`million` asks for a kept answer so often, and prints the server's memory on the way.
"""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from forerun.domain.plan import Plan

JOB = {
    "workload": "llama3-8b",
    "cluster": "4x8xh100-sxm-80gb",
    "framework": "megatron",
    "tokens": 1e9,
}
WHOLE = Plan(tp=2, dp=16, micro_batch=1, global_batch=512, zero_stage=1).as_dict()
ROWS, CONNECTIONS = 100_000, 8
Latencies = list[float]


def cpu_seconds(process: int) -> float:
    """Return what a process has used of the CPU, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(process: int) -> float:
    """Return what a process holds in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


def ask(
    port: int, bodies: Iterator[bytes], until: float, every: float, into: multiprocessing.Queue
) -> None:
    """Post bodies over one connection until a time, at most one in `every` seconds; give the latencies."""
    wire, found = http.client.HTTPConnection("127.0.0.1", port), []
    due = time.monotonic()
    while time.monotonic() < until:
        if every:
            time.sleep(max(due - time.monotonic(), 0))
            due += every
        start = time.monotonic()
        wire.request("POST", "/v1/predict", next(bodies), {"Content-Type": "application/json"})
        reply = wire.getresponse()
        content = reply.read()
        assert reply.status == 200, content
        found.append(time.monotonic() - start)
    into.put(found)


def bodies(job: dict[str, object], first: int) -> Iterator[bytes]:
    """Yield a job again and again; from 0 on, with another length each time."""
    for n in itertools.count():
        each: dict[str, object] = {"tokens": 1e9 + first * 10_000_000 + n}
        if "global_batch" in job:
            each = {"global_batch": 64 * (1 + CONNECTIONS * n + first % CONNECTIONS)}
        yield json.dumps({**job, **(each if first >= 0 else {})}).encode()


def load(
    port: int, process: int, job: dict[str, object], seconds: float, rate: float, first: int
) -> str:
    """Ask for some seconds, and return what was measured as cells of a table."""
    queue: multiprocessing.Queue = multiprocessing.Queue()
    before, until = cpu_seconds(process), time.monotonic() + seconds
    askers = [
        multiprocessing.Process(target=ask, args=(
            port, bodies(job, first + i if first >= 0 else -1), until, CONNECTIONS / rate if rate else 0, queue))
        for i in range(CONNECTIONS)
    ]  # fmt: skip
    for one in askers:
        one.start()
    found = np.array([value for _ in askers for value in queue.get()])
    for one in askers:
        one.join()
    used = cpu_seconds(process) - before
    p50, p99 = np.quantile(found, [0.5, 0.99]) * 1e3
    return f"{len(found) / seconds:,.0f} | {p50:.1f} | {p99:.1f} | {used / len(found) * 1e3:.2f}"


def batch(port: int, process: int, framework: str, plans: bool) -> str:
    """Send rows of which no two are equal, or no two plans, and return the seconds that they took."""
    draw = np.random.default_rng(1)
    nodes, micro, steps = (
        draw.integers(1, 9, ROWS),
        draw.integers(1, 9, ROWS),
        draw.integers(1, 4, ROWS),
    )
    if plans:
        steps = np.arange(ROWS) + 1
    columns = {
        "workload": draw.choice(["resnet50", "llama3-8b", "bert-large", "gpt2", "vit-b-16"], ROWS).tolist(),
        "cluster": [f"{n}x8xh100-sxm-80gb" for n in nodes], "framework": [framework] * ROWS,
        "dp": (8 * nodes).tolist(), "micro_batch": micro.tolist(),
        "global_batch": (8 * nodes * micro * steps).tolist(), "zero_stage": draw.integers(0, 4, ROWS).tolist(),
        "steps": (np.arange(ROWS) + 1).tolist(),
    }  # fmt: skip
    names = [name for name in columns if name != "steps"]
    different = len(set(zip(*(columns[name] for name in names), strict=True)))
    body = json.dumps({"columns": columns}).encode()
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    before, start = cpu_seconds(process), time.monotonic()
    wire.request("POST", "/v1/predict/batch", body, {"Content-Type": "application/json"})
    reply = wire.getresponse()
    answer = reply.read()
    took, used = time.monotonic() - start, cpu_seconds(process) - before
    answered = json.loads(answer)["answered"]
    return f"{framework or 'none'} | {answered:,} | {different:,} | {took:.1f} | {used:.1f}"


def often(port: int, requests: int) -> None:
    """Ask for one kept answer again and again over one connection."""
    body = json.dumps(JOB).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", port)) as wire:
        size = 0
        for _ in range(requests):
            wire.sendall(f"{head}\r\n\r\n".encode() + body)
            found = wire.recv(65_536)
            while size and len(found) < size:
                found += wire.recv(65_536)
            if not size:
                start, _, content = found.partition(b"\r\n\r\n")
                whole = int(start.lower().partition(b"content-length: ")[2].split()[0])
                while len(content) < whole:
                    content += wire.recv(65_536)
                size = len(start) + 4 + whole
            elif len(found) != size or not found.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(found[:200])


def million(port: int, process: int, requests: int) -> None:
    """Ask so many requests, and print what the server holds after each tenth of them."""
    often(port, 10)
    print("\n| requests | memory, MB | CPU ms a request |\n|---|---|---|")
    print(f"| 10 | {memory_mb(process):.1f} | |", flush=True)
    for part in range(1, 11):
        before = cpu_seconds(process)
        askers = [
            multiprocessing.Process(target=often, args=(port, requests // 10 // CONNECTIONS))
            for _ in range(CONNECTIONS)
        ]
        for one in askers:
            one.start()
        for one in askers:
            one.join()
            assert one.exitcode == 0
        used = (cpu_seconds(process) - before) / (requests / 10) * 1e3
        print(f"| {requests * part // 10:,} | {memory_mb(process):.1f} | {used:.2f} |", flush=True)


def main() -> None:
    """Start the server, ask, and print the page of the results."""
    many = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    if "million" in sys.argv:
        sys.argv[1:] = []
    else:
        many = 0
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [sys.executable, "-u", "-m", "forerun", "serve", "--port", "0", "--timeout", "10min", "--store", f"{folder}/r.db"],
        stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            port, at = int(server.stdout.readline().split("/v1")[0].rpartition(":")[2]), server.pid
            if many:
                million(port, at, many)
                return
            load(port, at, {**JOB, "plan": WHOLE}, 1.0, 0, 0)
            print("# Load on `forerun serve`\n")
            busy = os.getloadavg()[0]
            print(f"`python benchmarks/serve_load.py {seconds:g}`, {platform.machine()}, {os.cpu_count()} cores"
                  f" shared with the load generator and other work (load {busy:.1f}); {CONNECTIONS} connections.\n")  # fmt: skip
            print(
                "| question | asked | requests/s | p50 ms | p99 ms | CPU ms a request |\n|---|---|---|---|---|---|"
            )
            held = memory_mb(at)
            for words, job, first, rate in (
                ("kept answer", JOB, -1, 0), ("kept answer", JOB, -1, 300),
                ("distinct, whole plan", {**JOB, "plan": WHOLE}, 100, 0),
                ("distinct, plan searched", JOB, 200, 0),
                ("distinct, no framework", {**JOB, "framework": None}, 304, 0),
                ("distinct batches, plan searched", {**JOB, "global_batch": 0}, 400, 0),
            ):  # fmt: skip
                cells = load(port, at, job, seconds, rate, first)
                print(
                    f"| {words} | {f'at {rate}/s' if rate else 'at once'} | {cells} |", flush=True
                )
            print(f"\nMemory: {held:.0f} MB before, {memory_mb(at):.0f} MB after.\n")
            print(
                "| batch, framework | rows answered | different plans | seconds | CPU seconds |\n|---|---|---|---|---|"
            )
            for plans, framework in itertools.product((False, True), ("pytorch", "")):
                print(f"| {batch(port, at, framework, plans)} |", flush=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
