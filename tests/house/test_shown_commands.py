"""Every command that the README and the page of five jobs show does what it says, as printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from forerun.cli import main
from forerun.measure.lab import missing

ROOT = Path(__file__).resolve().parents[2]
RUNS = [
    f"llama3-8b,{nodes}x8xh100-sxm-80gb,64,{layout},{(9 + i) / nodes**0.9:.3f}"
    for i, layout in enumerate(('"tp=2,micro_batch=1"', '"micro_batch=1,zero_stage=3"'))
    for nodes in (1, 2, 4, 8)
]
# A study of one quick run, and a log of a job: what commands are shown with.
STUDY = """
workloads: {mlp: {entry: "examples.lab_models:mlp"}}
vary: {global_batch: 4}
steps: {warmup: 1, least: 2, most: 3}
device: mine
"""
# Words beside those shown: the whole catalogue is searched elsewhere, a probe of a minute and five folds are
# too long for a test, and a log of yesterday is asked as of its end.
BESIDE = {
    "leaderboard": ["--folds", "2"],
    "recommend": ["--clusters", "8x8xh100-sxm-80gb,4x8xb200"],
    "probe": ["--seconds", "8"],
    "eta": ["--as-of", "last"],
}


def shown(page: str) -> list[str]:
    """Return the commands in a page's blocks of code, continued lines joined, remarks left out."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = text.split("\n```")[1::2]  # fences open and close in turn
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("forerun ")]


def test_both_pages_show_commands() -> None:
    assert len(shown("README.md")) >= 8
    assert len(shown("docs/jobs.md")) == 5


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder that has the files which the pages name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = "\n".join(("workload,cluster,global_batch,plan,step_time_s", *RUNS)) + "\n"
    for name in ("RUNS.csv", "MY_RUNS.csv"):
        (tmp_path / name).write_text(text)
    jobs = text.replace(",step_time_s", ",note").replace("4x8x", "4x4x")
    (tmp_path / "JOBS.csv").write_text(jobs)
    (tmp_path / "study.yaml").write_text(STUDY)
    space = STUDY.replace("global_batch: 4", "global_batch: [4, 8]")
    (tmp_path / "SPACE.yaml").write_text(f"{space}price_usd_per_worker_hour: 0.05\n")
    (tmp_path / "train.log").symlink_to(ROOT / "benchmarks" / "logs" / "own" / "plain.log")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", ["README.md", "docs/jobs.md"])
def test_shown_commands_are_answered_in_their_order(
    here: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in shown(page):
        words = shlex.split(command)[1:]
        if words[0] == "lab" and missing():
            continue  # its own tests say what the machine lacks
        try:
            code = main([*words, *BESIDE.get(words[0], [])], standalone_mode=False)
            assert code == 0, f"{command}: {capsys.readouterr().err}"
        finally:
            if words[0] == "lab":
                main(["lab", "down"], standalone_mode=False)
