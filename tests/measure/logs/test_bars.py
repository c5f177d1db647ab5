"""Progress bars: epochs in several bars become one count with one clock, as the tools themselves write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.measure.logs import JobLength, eta_of, read_log

BARS = Path(__file__).with_name("samples") / "bars"


@pytest.mark.parametrize(
    ("name", "done", "total", "clock"),
    [
        ("slash_val", 400, 600, 120.0),  # Epoch 1/6 [train], then [val]
        ("nested", 396, 600, 108.0),  # a bar of epochs around, whose pauses count
        ("nested_val", 395, 600, 109.0),
        ("restart_epochs", 400, 600, 110.0),  # the steps of epoch 3 count once
        ("finals", 400, None, 100.0),
        ("val_same", 300, None, 95.0),
        ("zero_based", 300, None, 75.0),
        ("nototal", 400, None, 100.0),
    ],
)
def test_bars_one_after_another_are_one_job(
    name: str, done: float, total: float | None, clock: float
) -> None:
    series = read_log(BARS / f"{name}.txt")
    assert series.numbers("step")[-1] == done
    assert series.facts.get("total_steps") == total
    times = series.numbers("time_s")
    assert np.all(np.diff(times) >= 0)
    assert times[-1] - times[0] == pytest.approx(
        clock, rel=0.1
    )  # a bar's clock shows whole seconds
    eta = eta_of(series, None if total else JobLength(steps=600))
    assert eta.outlook.step_seconds == pytest.approx(0.25, rel=0.05)


def test_an_end_alone_of_each_bar_is_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "ends.log"
    ends = "train: 100%|###| 100/100 [00:25<00:00,  4.00it/s]\n"
    path.write_text(ends * 3)
    series = read_log(path)
    assert series.numbers("step").tolist() == [100, 200, 300]
    assert np.diff(series.numbers("time_s")).tolist() == [25, 25]


def test_the_bar_around_tells_epochs_and_an_evaluation_s_bar_does_not() -> None:
    assert read_log(BARS / "nested.txt").facts["total_epochs"] == 6
    assert eta_of(read_log(BARS / "nested.txt")).outlook.pauses[0].kind == "pause"
    assert eta_of(read_log(BARS / "slash_val.txt")).outlook.pauses[0].kind == "evaluation"
    assert "total_epochs" not in read_log(BARS / "val_same.txt").facts


def test_lightning_s_bar_that_is_reset_before_its_description_begins_an_epoch() -> None:
    series = read_log(BARS / "lightning.txt")
    steps = series.numbers("step")
    assert steps[-1] == 300
    assert np.all(np.diff(steps) >= 0)
    assert series.facts["steps_per_epoch"] == 100


def test_epochs_that_are_numbered_from_one_are_counted_so(tmp_path: Path) -> None:
    path = tmp_path / "one.log"
    path.write_text("".join(
        f"\rEpoch {e}:  {n}%|## | {n}/100 [00:{n // 4:02d}<00:20,  4.00it/s]" for e in (1, 2) for n in (20, 60, 100)
    ))  # fmt: skip
    assert read_log(path).numbers("step").tolist() == [20, 60, 100, 120, 160, 200]
