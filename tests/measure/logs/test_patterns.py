"""Patterns: the line that each usual program prints is read by its own pattern, in our units."""

from __future__ import annotations

import pytest

from forerun.errors import RequestError
from forerun.measure.logs.text import GENERIC, SPECIFIC, Pattern, own_pattern

EXPECTED = {
    "torchtitan": {"step": 10, "loss": 8.1234, "memory_gb": 20.5 * 1.024**3},
    "megatron": {"step": 10, "total_steps": 500, "step_time_s": 12.3456, "global_batch": 256,
                 "samples": 2560, "loss": 10.43},
    "nanotron": {"step": 10, "tokens": 10.5e6, "step_time_s": 1.23, "tokens_per_s": 853e3},
    "deepspeed": {"step": 10, "samples_per_s": 12.52, "memory_gb": 10.21},
    "timm": {"in_epoch": 51, "epochs_before": 0, "samples_per_s": 2968.12, "step_time_s": 0.345},
    "torchvision": {"in_epoch": 11, "steps_per_epoch": 5005, "step_time_s": 0.315,
                    "data_time_s": 0.001, "memory_gb": 6789 * 1024**2 / 1e9},
    "detectron2": {"step": 20, "step_time_s": 0.4012, "loss": 1.234},
    "mmengine": {"in_epoch": 50, "epochs_before": 0, "step_time_s": 0.301, "loss": 1.2345},
    "fairseq": {"step": 100, "tokens_per_s": 21000, "global_batch": 256},
    "tf_cnn_benchmarks": {"step": 10, "samples_per_s": 123.4, "loss": 7.765},
    "keras": {"in_epoch": 1875, "step_time_s": 0.001, "loss": 0.2956},
    "nanogpt": {"step": 11, "step_time_s": 0.12345},
    "lightning": {"in_epoch": 450, "steps_per_epoch": 1000, "step_time_s": 1 / 5.5, "loss": 0.512},
    "tqdm": {"step": 450, "total_steps": 1000, "elapsed_s": 83},
}  # fmt: skip
FIRST = {p.name: p for p in reversed(SPECIFIC)}


@pytest.mark.parametrize("name", sorted({p.name for p in SPECIFIC}))
def test_a_program_s_line_is_read_in_our_units(name: str) -> None:
    pattern = FIRST[name]
    row = pattern.row(pattern.example)
    assert row is not None
    for column, value in EXPECTED[name].items():
        assert row[column] == pytest.approx(value), column


@pytest.mark.parametrize("pattern", SPECIFIC, ids=lambda p: f"{p.name} {p.hints[0]}")
def test_no_other_program_s_pattern_takes_a_line_first(pattern: Pattern) -> None:
    first = next(p for p in SPECIFIC if p.row(pattern.example))
    assert first.name == pattern.name


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("step 10/1000 loss=2.345 time=0.123s", {"step": 10, "total_steps": 1000, "step_time_s": 0.123}),
        ("Iteration: 7 | 812.5 images/s | loss: 1.5", {"step": 7, "samples_per_s": 812.5, "loss": 1.5}),
        ("[global_step=12] time 35 ms", {"step": 12, "step_time_s": 0.035}),
        ("step: 1,200 tokens/s: 3,400", {"step": 1200, "tokens_per_s": 3400}),
    ],
)  # fmt: skip
def test_a_line_of_nobody_in_particular_is_read_too(line: str, row: dict[str, float]) -> None:
    found = GENERIC.row(line)
    assert found is not None
    assert {k: found.get(k) for k in row} == pytest.approx(row)


@pytest.mark.parametrize(
    "line", ["steps/s: 12", "step 0.5 of the way", "10 steps were done", "step 45%"]
)
def test_a_line_that_only_speaks_of_steps_is_none(line: str) -> None:
    assert GENERIC.row(line) is None


def test_an_expression_of_one_s_own_names_its_units() -> None:
    pattern = own_pattern(r"it (?P<step>\d+) took (?P<step_time_ms>[\d.]+)")
    assert pattern.row("it 7 took 250.0") == {"step": 7, "step_time_s": 0.25}


@pytest.mark.parametrize(
    ("expression", "found"),
    [("step (", r"no regular expression.*\n    step \(\n         \^; "),
     ("step\n[1", r"no regular expression.*\n    \[1\n    \^; "), (r"loss (?P<loss>\d+)", "named groups are loss"),
     (r"(?P<step>\d+) (?P<time>\d+)", "has no unit"), ("step", "none")],
)  # fmt: skip
def test_an_expression_that_cannot_serve_says_why(expression: str, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        own_pattern(expression)
