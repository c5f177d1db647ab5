"""--plot and --html: drawn in the terminal, as a picture and as a page that no screen is too narrow for."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_report import BROWSER, FLAGS

ROOT = Path(__file__).resolve().parents[2]
H100 = "2x8xh100-sxm-80gb"
RUNS = """workload,device,nodes,devices,global_batch,plan,step_time_s
resnet50,a100-sxm-80gb,1,8,256,dp=8,0.020
resnet50,a100-sxm-80gb,2,16,512,dp=16,0.021
resnet50,a100-sxm-80gb,4,32,1024,dp=32,0.023
resnet50,a100-sxm-80gb,8,64,2048,dp=64,0.024
"""
# What each command draws, by a word of its charts.
COMMANDS = {
    "predict": "Scaling of llama3-8b",
    "explain": "The median peak of memory",
    "compare": "Wall time",
    "eta": "Progress of part",
    "evaluate": "Forecast against measured",
}


@pytest.fixture
def asks(tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """Return a command line for each command that can be seen."""
    log, runs = tmp_path / "part.log", tmp_path / "runs.csv"
    lines = (ROOT / "benchmarks" / "logs" / "own" / "plain.log").read_text().splitlines(True)
    log.write_text("".join(lines[:90]))
    runs.write_text(RUNS)
    llama = ("llama3-8b", "--cluster", H100, "--plan", "tp=8", "--framework", "megatron")
    return {
        "predict": ("predict", *llama, "--tokens", "1B"),
        "explain": ("explain", *llama, "--tokens", "1B"),
        "compare": ("compare", *llama, "--cluster", "1x8xa100-sxm-80gb", "--tokens", "1B"),
        "eta": ("eta", str(log), "--as-of", "last", "--total-steps", "900", "--deadline", "10min"),
        "evaluate": ("evaluate", "--runs", str(runs), "--predictors", "analytic", "--start", "priors"),
    }  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_plot_without_a_file_is_drawn_below_the_answer(
    forerun: Run, asks: dict[str, tuple[str, ...]], command: str
) -> None:
    plain, drawn = forerun(*asks[command]), forerun(*asks[command], "--plot")
    assert drawn.code == 0, drawn.err
    assert drawn.out.startswith(plain.out)
    chart = drawn.out[len(plain.out) :]
    assert COMMANDS[command] in chart
    assert max(map(len, chart.splitlines())) <= 80
    assert chart.isascii()


def test_a_plot_before_the_workload_does_not_take_it_for_a_file(forerun: Run) -> None:
    done = forerun("predict", "--plot", "resnet50", "--cluster", "1x8xa100-sxm-80gb")
    assert done.code == 0
    assert "Scaling of resnet50" in done.out


def test_fitted_runs_are_points_of_the_plot(forerun: Run, tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(RUNS)
    ask = (
        "predict",
        "resnet50",
        "--cluster",
        "4x8xa100-sxm-80gb",
        "--fit",
        str(runs),
        "--predictor",
        "analytic",
    )
    chart = forerun(*ask, "--plot").out.partition("Scaling")[2].partition("The median step")[0]
    assert "o measured" in chart
    plot = chart.partition("o measured")[0]
    assert sum("o" in line.partition("|")[2] for line in plot.splitlines() if "|" in line[:12]) >= 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--plot", "--json"), "name a picture"),
        (("--plot", "a.gif"), "name a file that ends in .png"),
        (("--plot", "a.xyz"), "name a file that ends in .png"),
        (("--plot", "nowhere/a.png"), "there is no folder"),
        (("--html", "a.txt"), "name a file that ends in .html"),
        (("--plot", "a.png", "--html", "a.png"), "name two files"),
    ],
)
def test_what_cannot_be_written_is_one_message_before_the_work(
    forerun: Run, words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.advisor.Advisor.predict", None)
    done = forerun("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", *words)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("error:") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_picture_without_its_library_says_what_to_install(
    forerun: Run, asks: dict[str, tuple[str, ...]], command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "a.png"
    done = forerun(*asks[command], "--plot", str(path))
    assert done.code == 2
    assert "pip install 'forerun[plot]'" in done.err
    assert not path.exists()


def test_a_picture_is_written_beside_json(
    forerun: Run, asks: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no picture was drawn")
    for command, ask in asks.items():
        path = tmp_path / f"{command}.png"
        assert forerun(*ask, "--plot", str(path), "--json").json()
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_table_has_no_plot(forerun: Run, jobs: Path) -> None:
    done = forerun("predict", "--table", str(jobs), "--plot")
    assert done.code == 2
    assert "--table with --plot" in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_has_the_answer_the_charts_the_command_and_the_date(
    forerun: Run, asks: dict[str, tuple[str, ...]], command: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    done = forerun(*asks[command], "--html", str(path))
    assert done.code == 0, done.err
    text = path.read_text()
    head = text.partition('<script type="application/json"')[0]
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", head)
    assert "default-src 'none'" in head
    words = html.unescape(re.sub(r"<[^>]*>", " ", head))
    for line in done.out.splitlines()[:3]:  # what the screen says, the page says
        for part in re.split(r"\s{2,}", line.strip()):
            assert part in words
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert any(COMMANDS[command] in chart["title"] for chart in data["charts"])
    assert head.count("<canvas") == len(data["charts"])
    assert re.search(r"Written on \d{4}-\d\d-\d\d \d\d:\d\d", words)
    assert f"forerun {command} " in words
    assert f"written to {path}" in done.out


def test_a_name_cannot_break_out_of_the_page(forerun: Run, tmp_path: Path) -> None:
    spec, path = tmp_path / "spec.yaml", tmp_path / "page.html"
    spec.write_text(
        'name: "</title><script>alert(1)</script>\\u202E"\n'
        "transformer: {layers: 2, hidden: 64, heads: 2, vocab: 500, seq_len: 16}\n"
    )
    ask = (
        "predict",
        str(spec),
        "--cluster",
        "1x8xa100-sxm-80gb",
        "--steps",
        "5",
        "--html",
        str(path),
    )
    assert forerun(*ask).code == 0
    text = path.read_text()
    assert "<script>alert" not in text
    assert "\u202e" not in text


MEASURE = """<script>
addEventListener("load", () => setTimeout(() => {
  document.body.dataset.found = JSON.stringify([...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument, all = [...page.querySelectorAll("*")];
    const inner = all.filter((e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX)
      && e.scrollWidth > e.clientWidth);
    const ink = [...page.querySelectorAll("canvas")].map((c) =>
      c.getContext("2d").getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v > 0).length);
    return [frame.title, page.documentElement.scrollWidth, frame.clientWidth, inner.length, page.body.dataset.drawn,
      Math.min(...ink)];
  }));
}, 300));
</script>"""


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium is installed: the pages were NOT looked at"
)
def test_no_page_scrolls_sideways_on_a_wide_or_a_narrow_screen(
    forerun: Run, asks: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    asks["recommend"] = ("recommend", "resnet50", "--clusters", "a100-sxm-80gb,aws:p5.48xlarge")
    asks["eight"] = (
        "compare",
        "resnet50",
        "--cluster",
        *(f"{n}x8xa100-sxm-80gb" for n in range(1, 9)),
    )
    asks["search"] = (
        "search",
        "--replay",
        str(ROOT / "examples" / "ernest_runs.csv"),
        "--max-runs",
        "4",
    )
    frames = []
    for name, ask in asks.items():
        path = tmp_path / f"{name}.html"
        assert forerun(*ask, "--html", str(path)).code == 0
        page = html.escape(path.read_text())
        frames += [
            f'<iframe title="{name}" style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>'
            for width in (400, 1400)
        ]
    whole = tmp_path / "all.html"
    whole.write_text(f"<!doctype html><html><body>{''.join(frames)}{MEASURE}</body></html>")
    done = subprocess.run(
        [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", whole.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    body = re.search(r'<body data-found="([^"]*)"', done.stdout)
    assert body, done.stderr[-2000:]
    found = json.loads(html.unescape(body[1]))
    assert len(found) == 2 * len(asks)
    for name, needs, has, scrolling, drawn, ink in found:
        assert needs <= has, f"{name} is {needs} pixels wide on a screen of {has}"
        assert not scrolling, f"parts of {name} scroll sideways on a screen of {has}"
        assert int(drawn) > 0, name
        assert ink > 500, f"a plot of {name} is blank"
