"""CSV logs: Lightning's, and those of one's own, with clocks, step times and restarts that nothing announces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure.logs import JobLength, eta_of, read_log
from forerun.measure.logs.eta import Eta
from tests.measure.logs import made

LIGHTNING = Path(__file__).with_name("samples") / "lightning"


def _eta(path: Path, steps: float = 1000) -> Eta:
    return eta_of(read_log(path), JobLength(steps=steps))


def test_lightning_s_metrics_are_read_with_their_epochs() -> None:
    for path in (LIGHTNING, LIGHTNING / "metrics.csv"):
        series = read_log(path)
        assert series.reader == "csv"
        eta = eta_of(series, JobLength(epochs=5))
        assert (eta.done, eta.total) == (300, 500)
        assert eta.outlook.step_seconds == pytest.approx(0.027, rel=0.15)


def test_a_log_without_any_time_says_what_to_log() -> None:
    with pytest.raises(RequestError, match=r"say no time.*ThroughputMonitor"):
        read_log(LIGHTNING / "no_times.csv")


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_clock_of_dates_or_of_seconds_gives_the_speed(tmp_path: Path, mark: str) -> None:
    for name, clock in (("elapsed", str), ("timestamp", lambda s: made.stamp(made.START + s))):
        path = tmp_path / f"{name}.csv"
        rows = [f"{step}{mark}{clock(step / 2)}{mark}1.5" for step in range(10, 501, 10)]
        path.write_text(
            "\n".join((f"step{mark}{name}{mark}loss", *rows)).replace(",000", "") + "\n"
        )
        eta = _eta(path)
        assert eta.done == 500
        assert eta.outlook.step_seconds == pytest.approx(0.5)


def test_a_time_that_does_not_rise_is_that_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{i},{0.5 + 0.01 * (i % 7)}" for i in range(1, 200)]
    path.write_text("\n".join(("iteration,time", *rows)) + "\n200,0.")
    series = read_log(path)
    assert series.numbers("step")[-1] == 199  # the last line is still being written
    assert "it is read as the seconds of a step" in series.notes[0]
    assert _eta(path).outlook.step_seconds == pytest.approx(0.53, rel=0.02)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize(("first", "redone"), [(510, 0), (410, 100)])
def test_a_clock_or_a_step_that_goes_back_is_a_restart(
    tmp_path: Path, first: int, redone: float, header: bool
) -> None:
    """No word says so; steps of before are counted once."""
    head, path = ["step,elapsed"], tmp_path / "log.csv"
    before = [f"{step},{step / 2}" for step in range(10, 501, 10)]
    after = [f"{step},{(step - first) / 2 + 5}" for step in range(first, 701, 10)]
    path.write_text("\n".join((*head, *before, *head * header, *after)) + "\n")
    eta = _eta(path)
    assert (eta.done, eta.redone, len(eta.intervals.restarts)) == (700, redone, 1)
    assert eta.outlook.step_seconds == pytest.approx(0.5)


def test_json_lines_whose_clock_goes_back_are_two_sessions(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [(s, s / 2) for s in range(10, 501, 10)] + [
        (s, s / 2 - 250) for s in range(510, 701, 10)
    ]
    path.write_text("".join(json.dumps({"step": s, "elapsed": t}) + "\n" for s, t in rows))
    assert len(_eta(path).intervals.restarts) == 1


def test_a_table_of_runs_is_no_csv_log(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("workload,devices,step_time_s\nresnet50,8,0.1\n")
    with pytest.raises(RequestError, match="no line has a step"):
        read_log(path)
