"""A wrong request: one message that says asked, found and next, the right code, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Run

ON_A100 = ("--cluster", "1x8xa100-sxm-80gb")
LLAMA = ("predict", "llama3-8b", *ON_A100)
RESNET = ("predict", "resnet50", *ON_A100)
RECOMMEND = ("recommend", "resnet50", "--clusters", "a100-sxm-80gb")

# (command line, exit code, words that the message must hold)
WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("predict", "resnet5", *ON_A100), 2, "resnet50"),
    (("predict", "", *ON_A100), 2, "no such workload"),
    (("predict", "resnet50", "--cluster", "1x8xa100-sxm-8gb"), 2, "a100-sxm-80gb"),
    (("predict", "resnet50", "--cluster", "axb"), 2, "axb"),
    (("predict", "resnet50", "--cluster", ""), 2, "NODESxDEVICESxDEVICE"),
    (("predict", "resnet50", "--cluster", "0x8xa100-sxm-80gb"), 2, "at least one node"),
    (("predict", "resnet50", "--cluster", "99999999x8xa100-sxm-80gb"), 2, "99999999"),
    (("predict", "resnet50"), 2, "--cluster"),
    (("predict",), 2, "no workload"),
    ((*LLAMA, "--plan", "tp=3"), 2, "devices are not divisible by tp=3"),
    ((*LLAMA, "--plan", "tp=3,pp=2"), 2, "not divisible by tp=3 x pp=2 = 6"),
    ((*LLAMA, "--plan", "tp=5,dp=2"), 2, "product of 8"),
    ((*LLAMA, "--plan", "pp=4,vpp=16,dp=2"), 2, "layers"),
    ((*LLAMA, "--plan", "dp=8,tp=8"), 2, "64 devices"),
    ((*LLAMA, "--plan", "zz=3"), 2, "plan field"),
    ((*LLAMA, "--plan", "tp"), 2, "name=value"),
    ((*LLAMA, "--plan", "tp=2,tp=2"), 2, "twice"),
    ((*LLAMA, "--plan", "tp=1e30"), 2, "tp"),
    ((*LLAMA, "--plan", "micro_batch=-1"), 2, "micro_batch"),
    ((*LLAMA, "--plan", "micro_batch=nan"), 2, "micro_batch"),
    ((*LLAMA, "--plan", "zero_stage=7"), 2, "zero_stage"),
    ((*LLAMA, "--plan", "micro_batch=64,dp=8", "--global-batch", "8"), 2, "exceeds"),
    ((*RESNET, "--plan", "tp=2"), 2, "attention heads"),
    ((*RESNET, "--global-batch", "0"), 2, "--global-batch"),
    ((*RESNET, "--global-batch", "-5"), 2, "--global-batch"),
    ((*RESNET, "--global-batch", "1e30"), 2, "--global-batch"),
    ((*RESNET, "--global-batch", "nan"), 2, "--global-batch"),
    ((*RESNET, "--global-batch", "2.5"), 2, "whole number"),
    ((*RESNET, "--global-batch", "8", "--plan", "global_batch=16"), 2, "give it once"),
    ((*RESNET, "--price", "-3"), 2, "--price"),
    ((*RESNET, "--price", "1e30"), 2, "price"),
    ((*RESNET, "--steps", "1e30"), 2, "steps"),
    ((*RESNET, "--steps", "10", "--epochs", "1"), 2, "one length"),
    ((*RESNET, "--tokens", "1e9"), 2, "no tokens"),
    ((*RESNET, "--seq-len", "128"), 2, "seq_len"),
    ((*RESNET, "--image-size", "0"), 2, "--image-size"),
    ((*RESNET, "--precision", "fp12"), 2, "fp16"),
    ((*RESNET, "--optimizer", "magic"), 2, "adamw"),
    ((*RESNET, "--task", "guess"), 2, "finetune"),
    ((*RESNET, "--market", "black"), 2, "on-demand"),
    ((*RESNET, "--spot", "--market", "any"), 2, "two markets"),
    ((*RESNET, "--spot", "--preemption-rate", "-1"), 2, "--preemption-rate"),
    *(
        ((*RESNET, "--goodput", share), 2, "share of the wall time")
        for share in ("0", "120%", "nan", "x")
    ),
    ((*RESNET, "--spot", "--preemption-rate", "1e30"), 2, "preemption"),
    ((*RESNET, "--predictor", "analitic"), 2, "analytic"),
    ((*RESNET, "--model", "missing.json"), 2, "missing.json"),
    ((*RESNET, "--fit", "missing.csv"), 2, "missing.csv"),
    ((*RESNET, "--catalog", "missing.yaml"), 2, "missing.yaml"),
    ((*RESNET, "--out", "x.csv"), 2, "--table"),
    ((*RESNET, "--clusterz", "3"), 2, "--cluster"),
    (("predict", "llama3-70b", "--cluster", "1x1xt4"), 3, "fits"),
    (("predict", "missing.onnx", *ON_A100), 2, "no such file"),
    (("predict", "missing.yaml", *ON_A100), 2, "no such file"),
    (("predict", "missing.json", *ON_A100), 2, "no such file"),
    (("predict", "examples/resnet50.py:build", *ON_A100), 2, "dots"),
    (("predict", "--table", "missing.csv"), 2, "no such file"),
    ((*RECOMMEND, "--deadline", "5parsecs"), 2, "--deadline"),
    ((*RECOMMEND, "--deadline", "-3h"), 2, "--deadline"),
    ((*RECOMMEND, "--deadline", "0h"), 2, "--deadline"),
    ((*RECOMMEND, "--budget", "nan"), 2, "--budget"),
    ((*RECOMMEND, "--budget", "-1"), 2, "--budget"),
    ((*RECOMMEND, "--confidence", "2"), 2, "probability"),
    ((*RECOMMEND, "--confidence", "nan"), 2, "probability"),
    ((*RECOMMEND, "--minimize", "fun"), 2, "knee"),
    ((*RECOMMEND, "--global-batch", "256,0"), 2, "--global-batch"),
    ((*RECOMMEND, "--plan", "tp=two"), 2, "tp"),
    ((*RECOMMEND, "--providers", "aws"), 2, "give one of them"),
    ((*RECOMMEND, "--budget", "0.001"), 3, "nearest"),
    (("recommend", "resnet50", "--clusters", "no-such-thing"), 2, "no such device"),
    (("recommend", "resnet50", "--clusters", "aws:no-such"), 2, "instance"),
    (("recommend", "resnet50", "--clusters", ","), 2, "empty"),
    (("recommend", "resnet50", "--region", "mars"), 2, "mars"),
    ((*RECOMMEND, "--region", "mars"), 2, "mars"),
    ((*RESNET, "--region", "mars"), 2, "mars"),
    (("recommend", "resnet50", "--providers", "nobody"), 2, "aws"),
    (("recommend", "resnet50", "--max-devices", "0"), 2, "--max-devices"),
    (("explain", "resnet50"), 2, "--cluster"),
    (("support",), 2, "WORKLOAD"),
    (("fit", "--runs", "missing.csv", "--out", "m.json"), 2, "missing.csv"),
    (("evaluate", "--runs", "missing.csv"), 2, "missing.csv"),
    (("evaluate", "--runs", "missing.csv", "--split", "guess"), 2, "split"),
    (("devices", "no-such-thing"), 2, "device"),
    (("predcit", "resnet50"), 2, "predict"),
    (("--wrong",), 2, "--wrong"),
]


def check(done: Done, code: int, words: str) -> None:
    """Assert that a command failed in the right way."""
    assert done.code == code, done.err
    assert done.err.count("error:") == 1
    for part in ("error: ", "\n found: ", "\n next: "):
        assert part in done.err
    assert words.lower() in done.err.lower()
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=lambda v: str(v)[:60])
def test_it_is_told_in_three_parts(
    forerun: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    check(forerun(*arguments), code, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x00\xff\xfe\x00binary\x80", "text"),
        (b"workload,workload\nresnet50,resnet50\n", "twice"),
        (b"workload,step_time_ms\nresnet50,3\n", "unit"),
        (b"workload,device\n", "no rows"),
        (b"workload,devices\nresnet50,many\n", "many"),
        (b"workload\nresnet50,extra,cells\n", "cells"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_told(forerun: Run, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    check(forerun("predict", "--table", str(path)), 2, words)
    check(forerun("fit", "--runs", str(path), "--out", str(tmp_path / "m.json")), 2, words)
    check(forerun("evaluate", "--runs", str(path)), 2, words)


@pytest.mark.parametrize("place", ["missing/out.csv", "."])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_computed(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, jobs: Path
) -> None:
    from forerun.advisor import Advisor

    def too_late(*_: object, **__: object) -> None:
        raise AssertionError("computed before the place was checked")

    for name in ("predict_table", "recommend", "explain", "fit"):
        monkeypatch.setattr(Advisor, name, too_late)
    where = str(tmp_path / place)
    for arguments in (
        ("predict", "--table", str(jobs), "--out", where),
        (*RECOMMEND, "--html", where),
        ("explain", "resnet50", *ON_A100, "--trace", where),
        ("fit", "--runs", str(jobs), "--out", where),
    ):
        check(forerun(*arguments), 2, "folder")


@pytest.mark.parametrize(
    ("text", "words"),
    [("devices: 3\n", "devices"), ("{", "YAML"), ("devices: [{id: x}]\n", "x")],
)
def test_a_wrong_catalogue_file_is_told(
    forerun: Run, tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    check(forerun(*RESNET, "--catalog", str(path)), 2, words)


@pytest.mark.parametrize("text", ["", "[1]", '{"predictor": "analytic"}', '{"predictor": "x"}'])
def test_a_wrong_model_file_is_told(forerun: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    check(forerun(*RESNET, "--model", str(path)), 2, "")


def test_a_module_that_raises_is_told(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="a module reference needs torch")
    (tmp_path / "raising_module.py").write_text("def build():\n    raise ValueError('no luck')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check(forerun("predict", "raising_module:build", *ON_A100), 2, "no luck")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("predict", "resnet5", *ON_A100), 2), (("predict", "llama3-70b", "--cluster", "1x1xt4"), 3),
     ((*RESNET, "--json"), 0), (("bogus",), 2), ((), 2)],
)  # fmt: skip
def test_the_process_exits_with_the_code(arguments: tuple[str, ...], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (code == 0)


def test_a_reader_who_leaves_ends_it_quietly() -> None:
    done = subprocess.run(
        f"{sys.executable} -m forerun instances | head -1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_count_s_advice_is_a_count(forerun: Run) -> None:
    done = forerun(*RECOMMEND, "--max-devices", "0")
    assert "not a whole number from 1" in done.err
    assert "2.5M" not in done.err


@pytest.mark.parametrize(
    "ask", [("--split", "leave-out:colour"), ("--split", "random", "--group-by", "colour")]
)
def test_a_wrong_column_is_told_before_the_runs_flags(
    forerun: Run, tmp_path: Path, ask: tuple[str, ...]
) -> None:
    path = tmp_path / "runs.csv"
    head = "workload,device,nodes,devices,global_batch,step_time_s"
    rows = [f"resnet50,a100-sxm-80gb,1,8,{64 * n},{s}" for n, s in ((8, 0.1), (4, 300), (2, 0.03))]
    path.write_text("\n".join((head, *rows)) + "\n")
    done = forerun("evaluate", "--runs", str(path), *ask)
    assert done.code == 2
    assert "colour" in done.err
    assert "flagged" not in done.err
    assert "1 of 3 runs is flagged" in forerun("evaluate", "--runs", str(path)).err
