"""The dashboard in Debian's Chromium on this machine: how large it is, when it is painted, when it answers.

    python benchmarks/dashboard.py [TIMES]
    python benchmarks/dashboard.py pictures    # of docs/dashboard.md, anew

Each time is a new browser context with nothing kept. Painted is the first contentful paint, which is the form;
usable is when the form can be filled in; answered is when time, cost and memory stand there.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

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
# Pictures of the manual: width and height, theme, what is shown.
CLUSTERS = ("4x8xh100-sxm-80gb", "4x8xa100-sxm-80gb", "4xaws:p5.48xlarge")
JOB = "workload=llama3-8b&count=10B&unit=tokens&framework=torchtitan"
LIMITS = "deadline=2d&budget=3000&confidence=0.9&devices=h100,a100"
PICTURES = {
    "ask": (1400, 1000, "light", f"ask?{JOB}&cluster={CLUSTERS[0]}&deadline=24h&budget=3000"),
    "recommend": (1400, 1000, "dark", f"recommend?{JOB}&{LIMITS}"),
    "scale": (1400, 1150, "light", "scale?workload=resnet50&cluster=1x8xv100-sxm2-16gb&count=90&unit=epochs&most=8&global_batch=1024"),
    "compare": (1400, 560, "dark", "compare?" + "&".join(f"job={quote(f'{JOB}&cluster={one}')}" for one in CLUSTERS)),
    "phone": (400, 1100, "light", f"ask?{JOB}&cluster={CLUSTERS[0]}&deadline=24h&budget=3000"),
    "phone-recommend": (400, 1100, "dark", f"recommend?{JOB}&{LIMITS}"),
    "task": (1400, 1000, "light", "tasks?id="),
}  # fmt: skip
RUNS = [  # made up
    {"workload": "resnet50", "device": "v100-sxm2-16gb", "framework": "pytorch", "global_batch": 1024,
     "devices": n, "step_time_s": 3.2 / n**0.95}
    for n in (1, 2, 4, 8, 16)
]  # fmt: skip
TRAINING = {
    "entry": "forerun.measure.builtin:regression", "workers": [1, 2], "global_batch": [32, 64, 128], "epochs": 200,
    "within": "40s", "target": {"metric": "loss", "at_most": 0.001},
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


@contextmanager
def served() -> Iterator[tuple[Any, str]]:
    """Yield a browser, and the address of a service with an empty store."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        words = ["serve", "--port", str(port), "--store", f"{folder}/runs.db"]
        server = subprocess.Popen(
            [sys.executable, "-m", "forerun", *words], stdout=subprocess.PIPE,
            env={**os.environ, "XDG_CACHE_HOME": folder},
        )  # fmt: skip
        assert server.stdout is not None
        server.stdout.readline()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=[*FLAGS])
            yield browser, f"http://127.0.0.1:{port}"
            browser.close()
        server.terminate()
        server.wait(30)


def post(address: str, body: Any) -> Any:
    """Return what a route answers."""
    kind = {"content-type": "application/json"}
    with urlopen(Request(address, json.dumps(body).encode(), kind)) as reply:
        return json.load(reply)


def draw(folder: Path) -> None:
    """Draw the pictures of the manual: a service with some runs, and a training that has ended."""
    from PIL import Image

    with served() as (browser, address):
        post(f"{address}/v1/runs", {"rows": RUNS})
        task = post(f"{address}/v1/tasks/train", TRAINING)["task"]["id"]
        for name, (width, height, theme, query) in PICTURES.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)  # fmt: skip
            page = context.new_page()
            page.goto(f"{address}/#/{query}{task if name == 'task' else ''}")
            if name == "task":
                page.wait_for_selector(".tag.done", timeout=120_000)
            page.wait_for_function("() => document.querySelector('main h2, main figure') && !document.querySelector('[aria-busy=true]')")  # fmt: skip
            page.wait_for_timeout(500)
            page.screenshot(path=folder / f"{name}.png")
            with Image.open(folder / f"{name}.png") as drawn:
                small = drawn.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # fmt: skip
            small.save(folder / f"{name}.png", optimize=True)
            context.close()


def main() -> None:
    """Serve, open each page as often as asked, and write the result file."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    lines = []
    with served() as (browser, address):
        for name, (query, shown) in PAGES.items():
            first, *more = [opened(browser, f"{address}/#/{query}", shown) for _ in range(times + 1)]  # fmt: skip
            painted, usable, kept = (median(column) for column in zip(*more, strict=True))
            lines.append(f"| {name} | {first[0]:,.0f} | {painted:,.0f} | {max(one[0] for one in more):,.0f} | {usable:,.0f} | {first[2]:,.0f} | {kept:,.0f} |")  # fmt: skip
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
    if sys.argv[1:] == ["pictures"]:
        draw(Path(__file__).parents[1] / "docs" / "dashboard")
    else:
        main()
