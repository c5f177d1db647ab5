"""A browser, and a service whose pages it opens: Debian's Chromium without a window, driven by playwright."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require
from tests.server.conftest import Client

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
RUN = {"workload": "resnet50", "device": "v100-sxm2-16gb", "global_batch": 1024, "framework": "pytorch", "step_time_s": 0.4}  # fmt: skip
HOSTILE = "<script>window.reached = true</script>"


@dataclass
class Watched:
    """A page of the browser, and what it should not have done: errors, and requests to another host."""

    page: Any
    root: str
    faults: list[str] = field(default_factory=list)

    def open(self, address: str) -> Any:
        """Open an address of the dashboard, and return the page when its answers are there."""
        self.page.goto(f"{self.root}/#/{address}")
        return self.settled()

    def settled(self) -> Any:
        """Return the page when nothing on it loads any more."""
        self.page.wait_for_selector("main h1")
        self.page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
        return self.page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a Chromium that was started for these tests."""
    path = shutil.which("chromium") or ""
    require("chromium", bool(path), "install it (Debian: apt install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        require("chromium", False, "pip install playwright axe-playwright-python")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=[*FLAGS])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Return a service as `forerun serve` starts it, with some runs, one of which has a hostile name."""
    folder = tmp_path_factory.mktemp("service")
    with started(folder) as client:
        rows = [{**RUN, "devices": n, "step_time_s": 3.2 / n} for n in (1, 2, 4, 8)]
        rows += [{**RUN, "devices": 1, "workload": HOSTILE}]
        assert client.post("/v1/runs", {"rows": rows}).status == 200
        yield client


class started:  # noqa: N801 (it is used as a function)
    """The command `forerun serve` in a folder until the block ends; it can be killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.client = Client(free.getsockname()[1])
        words = ["serve", "--port", str(self.client.port), "--store", str(folder / "runs.db"), "--audit", str(folder / "audit.jsonl")]  # fmt: skip
        self._words, self._folder = [*words, *options], folder
        self._process = self._begun()

    def _begun(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "forerun", *self._words]
        return subprocess.Popen(words, cwd=self._folder, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """End the service as a machine that fails does, its connections with it."""
        self._process.kill()
        self._process.wait(30)

    def again(self) -> None:
        """Start the service anew on the same port, and wait until it answers."""
        self._process = self._begun()
        self.__enter__()

    def __enter__(self) -> Client:
        for _ in range(300):
            try:
                self.client.get("/v1/health")
                return self.client
            except OSError:
                assert self._process.poll() is None
                time.sleep(0.1)
        raise AssertionError("the service did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def watched(browser: Any, service: Client) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens a page; at the end no page may have had a fault."""
    made = []

    def open_page(width: int = 1400, theme: str = "light", port: int = service.port) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        page = context.new_page()
        page.set_default_timeout(30_000)
        found = Watched(page, f"http://127.0.0.1:{port}")
        made.append((context, found))
        page.on("pageerror", lambda error: found.faults.append(str(error)))
        page.on("console", lambda m: found.faults.append(m.text) if m.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith(found.root) else found.faults.append(r.url))  # fmt: skip
        return found

    yield open_page
    for context, _ in made:
        context.close()
    assert not [fault for _, found in made for fault in found.faults]


def answer_with(page: Any, path: str, body: Any, kind: str = "application/json") -> None:
    """Let a route of the service answer with a body of the test's own."""
    text = body if isinstance(body, str) else json.dumps(body)
    page.route(f"**/v1/{path}", lambda route: route.fulfill(body=text, content_type=kind))
