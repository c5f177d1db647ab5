"""forerun eta: the answer, its alert, and what follows as the log grows."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.measure.logs import made

Run = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of half a job: 500 of 1,000 steps of half a second, the last one just now."""
    path = tmp_path / "train.log"
    made.plain(path, range(10, 501, 10), 0.5, start=time.time() - 245)
    return path


def test_the_answer_has_what_is_left_its_band_and_its_cost(forerun: Run, log: Path) -> None:
    done = forerun("eta", str(log), "--price", "36", "--as-of", "last")
    assert done.code == 0
    assert "step 500 of 1,000, 50.0 % (the log says)" in done.out
    assert "left      4." in done.out
    assert "done at" in done.out
    assert "cost      $2.45 so far, $2." in done.out
    assert "what one takes is a guess of the band" in done.out


def test_json_has_the_same_in_si_units(forerun: Run, log: Path) -> None:
    found = forerun("eta", str(log), "--json", "--as-of", "last", "--price", "36").json()
    assert found["kind"] == "eta"
    assert found["remaining_seconds"]["p50"] == pytest.approx(250, rel=0.03)
    assert found["remaining_seconds"]["p05"] < found["remaining_seconds"]["p95"]
    assert found["dollars_left"]["p50"] == pytest.approx(2.5, rel=0.03)
    assert found["finish"]["p50"] > found["finish"]["p05"]
    assert found["deadline_seconds"] is None


def test_a_deadline_that_will_be_missed_is_an_alert(forerun: Run, log: Path) -> None:
    late = forerun("eta", str(log), "--deadline", "2min")
    assert late.code == 3
    assert "it will be missed with probability >0.99" in late.err
    assert "left" in late.out
    assert forerun("eta", str(log), "--deadline", "10min").code == 0
    assert "too many; it ends at 20" in late.err
    assert "add devices" in late.err


def test_a_deadline_that_has_passed_says_so_and_when_the_job_will_end(
    forerun: Run, log: Path, tmp_path: Path
) -> None:
    past = forerun("eta", str(log), "--deadline", "2020-01-01T00:00")
    assert past.code == 3
    assert "error: done by 20" in past.err
    assert "years ago, and 4." in past.err
    assert "min are left; it ends at 20" in past.err
    assert "add devices" not in past.err
    assert "deadline  it passed" in past.out
    kept = past.err.split("--deadline ")[1].strip()  # what it says would do, does
    assert forerun("eta", str(log), "--deadline", kept).code == 0
    whole = tmp_path / "whole.log"
    made.plain(whole, range(10, 1001, 10), 0.5, start=time.time() - 495)
    for deadline, words in (("2020-01-01T00:00", "too late"), ("2100-01-01T00:00", "before")):
        done = forerun("eta", str(whole), "--deadline", deadline)
        assert done.code == 0
        assert f"years {words}" in done.out


def test_an_alert_needs_the_asked_confidence(forerun: Run, log: Path) -> None:
    left = forerun("eta", str(log), "--json", "--as-of", "last").json()["remaining_seconds"]
    deadline = f"{left['p50'] * 0.999:.3f}s"
    words = ("eta", str(log), "--as-of", "last", "--deadline", deadline)
    assert forerun(*words, "--confidence", "0.9").code == 0
    assert forerun(*words, "--confidence", "0.3").code == 3


def test_the_price_may_come_from_the_catalogue(forerun: Run, log: Path) -> None:
    done = forerun("eta", str(log), "--cluster", "2xaws:p5.48xlarge")
    assert done.code == 0
    assert "an hour (aws:p5.48xlarge" in done.out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--deadline", "18:00"), "time of day or a duration"),
        (("--deadline", "soon"), "neither a duration nor a time"),
        (("--total-steps", "400"), "is at step 500 already"),
        (("--total-steps", "400", "--epochs", "3"), "steps and epochs are given"),
        (("--tokens", "1B"), "how many tokens a step has"),
        (("--as-of", "noon"), "it is no time"),
        (("--as-of", "2020-01-31T18:00"), "the log goes on until 20"),
        (("--price", "3", "--cluster", "8xh100-sxm-80gb"), "both give a price"),
        (("--pattern", "(?P<loss>x)"), "its named groups are loss"),
        (("--reader", "tensorboards"), "no such log reader"),
    ],
)  # fmt: skip
def test_a_slip_is_told_in_words(
    forerun: Run, log: Path, words: tuple[str, ...], found: str
) -> None:
    done = forerun("eta", str(log), *words)
    assert done.code == 2
    assert found in done.err


def test_a_job_that_is_done_needs_no_time_and_raises_no_alert(forerun: Run, tmp_path: Path) -> None:
    made.plain(tmp_path / "a.log", range(10, 1001, 10), 0.5)
    done = forerun("eta", str(tmp_path / "a.log"), "--deadline", "1s", "--as-of", "last")
    assert done.code == 0
    assert "nothing: it is done" in done.out


def test_several_logs_of_one_job_are_joined(forerun: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    last = made.plain(one, range(10, 401, 10), 0.5)
    made.plain(two, range(310, 601, 10), 0.5, start=last + 600)
    found = forerun("eta", str(two), str(one), "--json").json()
    assert (found["done"], found["restarts"], found["redone"]) == (600, 1, 100)
    assert found["away_seconds"] == pytest.approx(600)


def test_a_growing_log_is_followed(forerun: Run, log: Path) -> None:
    """A writer adds steps while the command looks again and again."""
    answered = threading.Event()

    def write() -> None:
        for step in range(510, 1000, 10):
            if answered.wait(0.25):
                return
            with log.open("a") as stream:
                stream.write(f"{made.stamp(time.time())} INFO step {step}/1000 loss=1.0\n")

    writer = threading.Thread(target=write)
    writer.start()
    done = forerun(
        "eta", str(log), "--follow", "--every", "50ms", "--times", "3", "--json", "--deadline", "1h",
    )  # fmt: skip
    answered.set()
    writer.join()
    assert done.code == 0
    answers = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert len(answers) == 3
    left = [answer["deadline_seconds"] for answer in answers]
    assert all(b < a <= 3600 for a, b in pairwise(left)), "a deadline stays where it is"
    steps = [answer["done"] for answer in answers]
    assert steps == sorted(set(steps))


def test_following_ends_with_the_alert_as_soon_as_it_is_sure(forerun: Run, log: Path) -> None:
    done = forerun("eta", str(log), "--follow", "--every", "50ms", "--deadline", "2min")
    assert done.code == 3
    assert "it will be missed with probability >0.99" in done.err
    assert done.out.count("deadline  in") == 1


def test_following_waits_for_the_file_and_for_its_first_steps(tmp_path: Path) -> None:
    path = tmp_path / "late.log"
    words = [sys.executable, "-m", "forerun", "eta", str(path), "--follow", "--every", "50ms"]
    with subprocess.Popen(
        [*words, "--times", "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "there is no such file or folder; waiting for" in process.stderr.readline()
        path.touch()
        assert "it is empty" in process.stderr.readline()
        made.plain(tmp_path / "whole.log", range(10, 101, 10), 0.5, start=time.time() - 45)
        (tmp_path / "whole.log").rename(path)
        assert "step 100 of 1,000" in process.stdout.read()
    assert process.returncode == 0


def test_a_log_that_vanishes_while_it_is_followed_is_told(log: Path) -> None:
    words = [sys.executable, "-m", "forerun", "eta", str(log), "--follow", "--every", "50ms"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        log.unlink()
        # `communicate` would lose what this reader holds behind the first line.
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 2
    assert "it was there, and is gone" in err
    assert "step 500" in first + out


def test_following_ends_when_the_job_is_done(forerun: Run, tmp_path: Path) -> None:
    made.plain(tmp_path / "a.log", range(10, 1001, 10), 0.5)
    done = forerun("eta", str(tmp_path / "a.log"), "--follow", "--every", "50ms")
    assert done.code == 0


def test_a_failed_job_is_said_to_have_failed(forerun: Run, log: Path) -> None:
    with log.open("a") as stream:
        stream.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    done = forerun("eta", str(log))
    assert "the log ends with: torch.OutOfMemoryError" in done.out


def test_one_run_of_a_store_is_chosen_by_its_name(forerun: Run, tmp_path: Path) -> None:
    store = str(made.mlflow_database(tmp_path / "mlflow.db"))
    several = forerun("eta", store, "--total-steps", "100")
    assert several.code == 2
    assert "2 runs are in it (name-r1, name-r2)" in several.err
    one = forerun("eta", store, "--total-steps", "100", "--run", "name-r1", "--json").json()
    assert (one["log"], one["done"]) == ("name-r1", 39)
    by_key = forerun("eta", store, "--total-steps", "100", "--run", "r1", "--json").json()
    assert by_key["log"] == "name-r1"
    assert forerun("eta", store, "--run", "name-r3").code == 2
