"""recommend --html: one self-contained page, whose plot draws and answers a click."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run

ASK = ("recommend", "resnet50", "--clusters", "a100-sxm-80gb,v100-sxm-16gb")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--window-size=1200,1600", "--virtual-time-budget=4000")  # fmt: skip
# Clicks the plot's first point, and notes how much of the plot is inked.
CLICK = """<script>
const place = window.report.charts.front.getDatasetMeta(0).data[0].getProps(["x", "y"], true);
const canvas = document.getElementById("front");
const box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new MouseEvent("click", {bubbles: true, view: window,
  clientX: box.left + place.x, clientY: box.top + place.y}));
const ink = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
document.body.dataset.ink = String(ink.filter((v, i) => i % 4 === 3 && v > 0).length);
document.body.dataset.first = String(window.report.priced[0].index);
</script></body>"""


@pytest.fixture
def page(forerun: Run, tmp_path: Path) -> Path:
    """Return a report."""
    path = tmp_path / "report.html"
    assert forerun(*ASK, "--html", str(path)).code == 0
    return path


def test_the_page_loads_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", text.partition("<script>")[0])
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert len(text) < 500_000


def test_the_page_has_the_options_the_refused_the_assumptions_and_the_prices(page: Path) -> None:
    text = page.read_text()
    assert "an hour on demand" in text
    assert "images of 224 pixels" in text
    for heading in ("Time against cost", "The median step", "Peak memory", "Assumptions", "Prices"):
        assert f">{heading}" in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    data = json.loads(found[1])
    assert len(data["options"]) == text.count("<button")
    assert data["options"][data["best"]]["parts"]


def test_the_page_has_bands_short_labels_the_command_and_the_date(
    forerun: Run, tmp_path: Path
) -> None:
    path = tmp_path / "long names.html"
    long = "nebius:gpu-b200-sxm_8gpu-160vcpu-1792gb"
    named = ("--clusters", f"1x{long},1x8xa100-sxm-80gb")
    assert forerun("recommend", "resnet50", *named, "--html", str(path)).code == 0
    text = path.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    for option in data["options"]:
        low, high, least, most = option["bands"]
        assert low < option["hours"] < high
        assert least < option["dollars"] < most
        assert len(option["label"]) <= 28
    assert {o["label"] for o in data["options"]} <= {
        "1x8xb200-sxm-180gb nebius",
        "1x8xa100-sxm-80gb",
    }
    footer = text.partition("<footer")[2].partition("</footer>")[0]
    assert re.search(r"Written on \d{4}-\d\d-\d\d", footer)
    assert f"forerun recommend resnet50 --clusters 1x{long},1x8xa100-sxm-80gb --html" in footer
    assert "long names.html&#39;</code>" in footer  # quoted, so that it can be pasted


def test_the_page_says_each_reason_once_with_its_examples(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "refused.html"
    ask = ("recommend", "llama3-8b", "--clusters", "v100-sxm-16gb", "--max-devices", "64")
    done = forerun(*ask, "--html", str(path), "--json")
    data, text = done.json(), path.read_text()
    counts = data["counts"]["refused"]
    assert len([r for r in data["refused"] if r["limit"] == "does not fit in memory"]) > 1
    table = text.partition("<details>")[2].partition("</details>")[0]  # folded
    for limit, count in counts.items():
        assert table.count(f">{limit}</td>") == 1
        assert table.count(f'data-label="plans">{count:,}</td>') == 1
    assert table.count("<tr>") == 1 + len(counts)
    for refusal in data["refused"]:
        assert refusal["job"]["plan"] in table


def test_a_name_cannot_break_out_of_the_page(tmp_path: Path, forerun: Run) -> None:
    from forerun.advisor import Advisor
    from forerun.cli.report import report_page

    found = Advisor().recommend("resnet50", clusters=["1x8xa100-sxm-80gb"])
    text = report_page("</title><script>alert(1)</script>", found)
    assert "<script>alert" not in text


def test_a_name_cannot_turn_the_writing_of_the_page(tmp_path: Path, forerun: Run) -> None:
    spec, path = tmp_path / "spec.yaml", tmp_path / "report.html"
    spec.write_text(
        'name: "net\\u202Egnp\\e[2J"\n'
        "transformer: {layers: 2, hidden: 64, heads: 2, vocab: 500, seq_len: 16}\n"
    )
    ask = ("recommend", str(spec), "--clusters", "1x8xa100-sxm-80gb", "--html", str(path))
    assert forerun(*ask).code == 0
    text = path.read_text()
    assert not set(text) & set("\u202e\x1b")
    assert "net\\u202egnp" in text


def test_a_page_for_what_nothing_satisfies_shows_the_nearest_misses(
    forerun: Run, tmp_path: Path
) -> None:
    path = tmp_path / "none.html"
    assert forerun(*ASK, "--deadline", "1s", "--html", str(path)).code == 3
    assert "Nothing satisfies the limits" in path.read_text()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: the plot was NOT looked at")
def test_the_plot_draws_and_a_click_chooses_its_point(page: Path, tmp_path: Path) -> None:
    clicked = tmp_path / "clicked.html"
    clicked.write_text(page.read_text().replace("</body>", CLICK))
    done = subprocess.run(
        [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         clicked.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    body = re.search(r"<body([^>]*)>", done.stdout)
    assert body, done.stderr[-2000:]
    marks = dict(re.findall(r'data-(\w+)="(\d+)"', body[1]))
    assert int(marks["drawn"]) > 1
    assert int(marks["ink"]) > 1000
    assert marks["selected"] == marks["first"]
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1])  # type: ignore[index]
    assert f'id="chosen-cluster">{data["options"][int(marks["first"])]["cluster"]}<' in done.stdout
