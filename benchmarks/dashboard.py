"""The dashboard in Debian's Chromium on this machine: how large it is, when it is painted, when it answers.

    python benchmarks/dashboard.py [TIMES]

Each time is a new browser context with nothing kept. Painted is the first contentful paint, which is the form;
usable is when the form can be filled in; answered is when time, cost and memory stand there.
"""

from __future__ import annotations

import gzip
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from forerun import wire

BUNDLE = Path(wire.__file__).parent / "web"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PAGES = {
    "ask": ("ask?workload=llama3-8b&cluster=4x8xh100-sxm-80gb&count=10B&unit=tokens&framework=torchtitan", "dl.keys"),
    "recommend": ("recommend?workload=resnet50&clusters=1x8xa100-sxm-80gb,h100-sxm-80gb&count=90&unit=epochs&deadline=24h", "dl.keys"),
    "scale": ("scale?workload=resnet50&cluster=1x8xv100-sxm2-16gb&count=90&unit=epochs&most=8", "figure .u-over"),
}  # fmt: skip
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def opened(browser: Any, address: str, shown: str) -> tuple[float, float, float]:
    """Return the milliseconds until a page is painted, usable and answered."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("form button")
    usable = page.evaluate("performance.now()")
    page.wait_for_selector(shown, timeout=60_000)
    answered = page.evaluate("performance.now()")
    painted = page.wait_for_function(PAINTED).json_value()
    context.close()
    return painted, usable, answered


def main() -> None:
    """Serve, open each page as often as asked, and write the result file."""
    from playwright.sync_api import sync_playwright

    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    lines = []
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        words = ["serve", "--port", str(port), "--store", f"{folder}/runs.db"]
        server = subprocess.Popen([sys.executable, "-m", "forerun", *words], stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=[*FLAGS])
            for name, (query, shown) in PAGES.items():
                first, *more = [opened(browser, f"http://127.0.0.1:{port}/#/{query}", shown) for _ in range(times + 1)]  # fmt: skip
                painted, usable, kept = (median(column) for column in zip(*more, strict=True))
                lines.append(f"| {name} | {first[0]:,.0f} | {painted:,.0f} | {max(one[0] for one in more):,.0f} | {usable:,.0f} | {first[2]:,.0f} | {kept:,.0f} |")  # fmt: skip
            browser.close()
        server.terminate()
        server.wait(30)
    sizes = [
        f"| {path.name} | {path.stat().st_size / 1e3:,.1f} | {len(gzip.compress(path.read_bytes())) / 1e3:,.1f} |"
        for path in sorted(BUNDLE.iterdir())
    ]
    load = os.getloadavg()[0]
    text = "\n".join([
        "# The dashboard", "",
        f"`python benchmarks/dashboard.py {times}`, {time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores shared with the service and other work (load {load:.1f}); Debian's Chromium without a window, loopback.", "",
        f"Milliseconds from the start of a navigation: the first visit of a page, then the median (and the slowest) of {times} more, each with an empty browser cache. Answered: the first time computed, then kept by the service.", "",
        "| page | painted first | painted | slowest | usable | answered first | answered again |", "|---|---|---|---|---|---|---|", *lines, "",
        "| file | kB | kB compressed |", "|---|---|---|", *sizes, "",
    ])  # fmt: skip
    Path(__file__).with_name("results").joinpath("dashboard.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
