"""Words at the command line: hints that help, files that are safe, names that complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from forerun.cli import options as completion
from tests.cli.conftest import Run

ON_A100 = ("--cluster", "1x8xa100-sxm-80gb")
BOARD = ("leaderboard", "--runs", "{jobs}", "--cache", "{folder}/c.jsonl")
RESNET = ("predict", "resnet50", *ON_A100)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*RESNET, "--framework", "pytorh"), "did you mean pytorch"),
        ((*RESNET, "--framework", "torchtitn"), "did you mean torchtitan"),
        ((*RESNET, "--plan", "qqqq=2"), "zero_stage, recompute"),
        (("predict", "resnet50", "--cluster", "1x8"), "names no device"),
        (("predict", "resnet50", "--cluster", "1xaws:p5.48xlarge@mars"), "8 regions are known"),
        (("predict", "resnet50", "--cluster", "1x8xA100 80GBx"), "did you mean a100-sxm-80gb"),
        (("recommend", "resnet50", "--clusters", "1x1xt4", "--deadline", "1e999d"), "longer than"),
    ],
)
def test_a_hint_names_what_is_there(forerun: Run, arguments: tuple[str, ...], words: str) -> None:
    done = forerun(*arguments)
    assert done.code == 2
    assert words in done.err


def test_as_many_devices_are_known_as_are_listed(forerun: Run) -> None:
    count = len(forerun("devices").out.splitlines()) - 1
    assert (
        f"{count} devices are known" in forerun("predict", "resnet50", "--cluster", "1x8xqqq").err
    )


def test_an_answer_shows_what_moves_it_most(forerun: Run) -> None:
    text = forerun(*RESNET, "--precision", "fp16", "--framework", "pytorch").out
    assert "settings  fp16, images of 224 pixels a side, momentum, pytorch\n" in text
    text = forerun("recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb").out
    assert "settings  bf16, images of 224 pixels a side, momentum, any framework\n" in text
    text = forerun("predict", "llama3-8b", *ON_A100, "--task", "lora").out
    assert "settings  bf16, sequences of 8,192 tokens, adamw, any framework, lora\n" in text


def test_one_sample_is_one(forerun: Run, tmp_path: Path) -> None:
    spec = tmp_path / "w.yaml"
    spec.write_text("totals: {params: 1e6, gmacs: 1}\nseq_len: 8192\n")
    on_many = ("--cluster", "16x8xa100-sxm-80gb")
    assert "global batch 128: one sample a device" in forerun("predict", str(spec), *on_many).out
    assert "global batch 64: assumed: 0.5M tokens" in forerun("predict", str(spec), *ON_A100).out


def test_a_misspelt_column_is_warned_of_once_and_rows_are_answered(
    forerun: Run, tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("Workload,cluster,precison\n" + "resnet50,1x8xa100-sxm-80gb,fp16\n" * 3)
    done = forerun("predict", "--table", str(table))
    assert done.code == 0
    assert done.err == (
        "warning: 1 column is not known, and not read: 'precison' (did you mean 'precision'?); if so:"
        " --map 'precison=precision'\n"
        "  3 rows without a framework: bands cover the usual ones\n"
    )


def test_a_table_without_an_answer_says_its_reason_once(forerun: Run, tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "o.csv"
    table.write_text("workload,device\nno-such-net,t4\n")
    done = forerun("predict", "--table", str(table), "--out", str(out))
    assert done.code == 3
    assert (done.out + done.err).count("is not in the zoo") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "--table", "{jobs}", "--out", "{folder}/x.xyz"), ".csv or .parquet or .pq"),
        (("predict", "--table", "{jobs}", "--out", "{folder}/x"), "no ending"),
        (("predict", "--table", "{jobs}", "--out", "{jobs}"), "read by this very command"),
        (("recommend", "resnet50", "--html", "{folder}/r.txt"), ".html or .htm"),
        (("explain", "resnet50", *ON_A100, "--trace", "{folder}/t.txt"), ".json"),
        (("fit", "--runs", "{jobs}", "--out", "{folder}/m.txt"), ".json"),
        (("fit", "--runs", "{jobs}", "--force", "--out", "{jobs}"), "read by this very command"),
        ((*BOARD, "--page", "{folder}/p.txt"), ".md"),
        ((*BOARD, "--page", "{jobs}"), "read by this very command"),
    ],
)
def test_a_file_is_written_in_its_own_format_and_never_over_an_input(
    forerun: Run, jobs: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    before = jobs.read_text()
    done = forerun(*(a.format(jobs=jobs, folder=tmp_path) for a in arguments))
    assert done.code == 2
    assert words in done.err
    assert jobs.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == [jobs.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device_is_told_and_is_no_defect() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "forerun", "devices"], stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize(
    ("complete", "incomplete", "expected"),
    [
        (completion.complete_workload, "resnet15", "resnet152"),
        (completion.complete_cluster, "4x8xh100-s", "4x8xh100-sxm-80gb"),
        (completion.complete_cluster, "4xaws:p5.48", "4xaws:p5.48xlarge"),
        (completion.complete_cluster, "t4,h100-s", "t4,h100-sxm-80gb"),
    ],
)
def test_names_complete(complete: object, incomplete: str, expected: str) -> None:
    assert callable(complete)
    context = click.Context(click.Command("x"))
    found = [item.value for item in complete(context, click.Argument(["x"]), incomplete)]
    assert expected in found
    assert all(value.startswith(incomplete) for value in found)


def test_the_shell_is_offered_workloads() -> None:
    environment = {**os.environ, "_FORERUN_COMPLETE": "bash_complete", "COMP_CWORD": "2",
                   "COMP_WORDS": "forerun predict resnet15"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from forerun.cli import main; main(prog_name='forerun')"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "plain,resnet152" in done.stdout
