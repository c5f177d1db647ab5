"""--emit: a launch configuration to stdout or a file, behind the answer that it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run

PREDICT = ("predict", "llama3-8b", "--cluster", "4x8xh100-sxm-80gb", "--tokens", "10B")
RECOMMEND = ("recommend", "llama3-8b", "--clusters", "4x8xh100-sxm-80gb", "--tokens", "10B")


@pytest.mark.parametrize("ask", [PREDICT, RECOMMEND], ids=["predict", "recommend"])
def test_the_configuration_alone_goes_to_stdout(forerun: Run, ask: tuple[str, ...]) -> None:
    done = forerun(*ask, "--emit", "slurm")
    assert done.code == 0
    assert done.out.startswith("#!/usr/bin/env bash\n#SBATCH --job-name=llama3-8b\n")
    assert f"# command   forerun {' '.join(ask)} --emit slurm\n" in done.out


@pytest.mark.parametrize("ask", [PREDICT, RECOMMEND], ids=["predict", "recommend"])
def test_a_framework_s_target_is_planned_and_timed_as_that_framework(
    forerun: Run, tmp_path: Path, ask: tuple[str, ...]
) -> None:
    path = tmp_path / "overrides.yaml"
    done = forerun(*ask, "--emit", "nemo", "--emit-to", str(path), "--json")
    best = done.json()
    best = best.get("best", best)
    best = best.get("job", best)
    plan, told = best["plan"], yaml.safe_load(path.read_text())
    assert told["model"]["tensor_model_parallel_size"] == plan["tp"]
    assert told["train"]["micro_batch_size"] == plan["micro_batch"]
    assert ", nemo\n" in path.read_text()


def test_the_file_is_named_behind_the_answer_and_is_not_written_over(
    forerun: Run, tmp_path: Path
) -> None:
    path = tmp_path / "ds_config.json"
    ask = (*PREDICT, "--emit", "deepspeed", "--emit-to", str(path))
    done = forerun(*ask, "--script", "my.py")
    assert "llama3-8b on 4x8xh100-sxm-80gb" in done.out
    assert done.out.endswith(f"launch configuration for deepspeed written to {path}\n")
    body = json.loads(path.read_text())
    assert body["forerun"]["start"].endswith("my.py --deepspeed_config FILE")
    again = forerun(*ask)
    assert again.code == 2
    assert "--force" in again.err
    assert json.loads(path.read_text()) == body
    assert forerun(*ask, "--force").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--emit", "torchrn"), "did you mean torchrun"),
        (("--emit", "accelerate", "--plan", "tp=8"), "tp=8 with --emit accelerate"),
        (("--emit", "fsdp", "--plan", "pp=2"), "torchrun, deepspeed, megatron"),
        (("--emit", "megatron", "--plan", "zero_stage=3"), "its distributed optimizer is ZeRO-1"),
        (("--emit", "slurm", "--plan", "sync=ps-sync"), "no parameter servers"),
        (("--emit", "megatron", "--precision", "fp64"), "precision=fp64 with --emit megatron"),
        (("--emit", "torchtitan", "--framework", "jax"), "chosen and timed as jax"),
        (("--emit", "k8s", "--json"), "--emit-to"),
        (("--emit", "k8s", "--plot"), "--emit k8s with --plot"),
        (("--emit", "k8s", "--html", "x.html"), "--emit k8s with --html"),
        (("--emit", "k8s", "--emit-to", "."), "it is a folder"),
        (("--emit-to", "x.yaml"), "it belongs to --emit"),
        (("--script", "x.py"), "it belongs to --emit"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_words(
    forerun: Run, words: tuple[str, ...], said: str
) -> None:
    done = forerun(*PREDICT, *words)
    assert done.code == 2
    assert said in done.err
    assert "next:" in done.err
    assert done.out == ""


def test_nothing_is_emitted_where_nothing_qualifies(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    done = forerun(*RECOMMEND, "--deadline", "1s", "--emit", "slurm", "--emit-to", str(path))
    assert done.code == 3
    assert not path.exists()


def test_tables_and_provisions_emit_nothing(forerun: Run, jobs: Path) -> None:
    assert "--emit" in forerun("predict", "--table", str(jobs), "--emit", "slurm").err
    done = forerun("recommend", "alexnet", "--provision", "--clusters", "aws:c4.2xlarge",
                   "--machines", "2", "--emit", "slurm")  # fmt: skip
    assert (done.code, "--provision with --emit" in done.err) == (2, True)


def test_what_cannot_be_emitted_is_refused_before_an_answer_is_shown(
    forerun: Run, tmp_path: Path
) -> None:
    ask = (*PREDICT, "--plan", "pp=2,zero_stage=2", "--emit", "deepspeed")
    done = forerun(*ask, "--emit-to", str(tmp_path / "x.json"))
    assert (done.code, done.out) == (2, "")
    assert "its pipeline takes ZeRO up to stage 1" in done.err
    assert not list(tmp_path.iterdir())


def test_a_choice_is_made_among_the_clouds_that_the_target_knows(forerun: Run) -> None:
    ask = ("recommend", "resnet50", "--epochs", "1", "--emit", "skypilot")
    done = forerun(*ask)
    assert done.code == 0
    assert "infra: hyperstack" not in done.out
    refused = forerun(*ask, "--providers", "hyperstack")
    assert refused.code == 2
    assert "choose another cloud (--cluster, --providers or --exclude)" in refused.err
