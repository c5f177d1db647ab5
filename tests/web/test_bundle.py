"""The dashboard's files: what is checked in is what a build makes, small, and served with a policy of its own."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needs import require
from tests.server.conftest import Client

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "src" / "forerun" / "web"
MOST_BYTES = 600_000


def test_the_script_is_small() -> None:
    size = len(gzip.compress((BUNDLE / "app.js").read_bytes()))
    assert 10_000 < size < MOST_BYTES


def test_the_bundle_is_what_a_build_makes(tmp_path: Path) -> None:
    npm = shutil.which("npm") or ""
    require("npm", bool(npm), "install Node.js with npm to build the dashboard anew")
    copy = tmp_path / "web"
    shutil.copytree(ROOT / "web", copy, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run([npm, "ci", "--silent"], cwd=copy, capture_output=True, text=True, check=False)  # fmt: skip
    require("npm", done.returncode == 0, f"no registry answered: {done.stderr[-300:]}")
    subprocess.run(["node", "build.mjs", str(tmp_path / "made")], cwd=copy, check=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    kept = {path.name: path.read_bytes() for path in BUNDLE.iterdir()}
    assert made.keys() == kept.keys()
    stale = [name for name, content in made.items() if content != kept[name]]
    assert not stale, f"{stale}: run `npm ci && npm run build` in web/"


@pytest.mark.parametrize("path", ["/", "/app.js", "/app.css", "/icon.svg", "/LICENSES.txt"])
def test_a_file_is_served_with_its_policy_and_entity_tag(service: Client, path: str) -> None:
    reply = service.get(path)
    assert reply.status == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert service.get(path, If_None_Match=reply.headers["etag"]).status == 304


def test_answers_keep_the_policy_that_lets_nothing_run(service: Client) -> None:
    policy = service.get("/v1/health").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert service.get("/../server/tokens.py").status == 404
    assert service.get("/app.js.map").status == 404


def test_no_file_names_another_host_or_holds_script_in_the_page() -> None:
    page = (BUNDLE / "index.html").read_text()
    assert "http" not in page
    assert "<style" not in page
    assert page.count("<script") == page.count("<script src=") == 1
    assert all(name in (ROOT / "NOTICE").read_text() for name in ("Preact", "uPlot"))
