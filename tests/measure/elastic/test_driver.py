"""Driver: groups are formed anew at step boundaries, and the training is the one that no change touched."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.measure.elastic.checkpoint import newest_checkpoint, read_checkpoint
from forerun.measure.elastic.driver import TRAINING, ElasticWorkers
from tests.measure.elastic.toys import check_ids, job, steps_taken
from tests.processes import alive


def pid_of(workers: ElasticWorkers, rank: int) -> int:
    """Return the process of a rank of the group that trains."""
    return next(m.process.pid for m in workers._members if m.state == TRAINING and m.rank == rank)


def whole(workers: ElasticWorkers, count: int) -> ElasticWorkers:
    """Return the workers once so many could train."""
    until = time.monotonic() + 100
    while workers.available < count:
        workers.take(0.2)
        assert time.monotonic() < until, "workers do not start"
    return workers


def watched(workers: ElasticWorkers) -> list[dict[str, Any]]:
    """Return a list that gets all that is reported from now on."""
    kept: list[dict[str, Any]] = []
    take = workers.take

    def keeping(seconds: float) -> dict[str, Any] | None:
        event = take(seconds)
        kept.extend([event] if event else [])
        return event

    workers.take = keeping  # type: ignore[method-assign]
    return kept


def until(workers: ElasticWorkers, kind: str) -> dict[str, Any]:
    """Return the next report of a kind."""
    while (event := workers.take(30.0)) is not None:
        if event["is"] == kind:
            return event
    raise AssertionError(f"no {kind} was reported")


def test_workers_that_come_and_go_lose_no_sample_and_change_no_loss(folder: Path) -> None:
    """The same batches on one worker and on others in turn give the same losses, step by step."""
    draw = random.Random(3)
    with ElasticWorkers(job(workers=(1, 2, 3), settings={"pause": 0.001}), "moved") as workers:
        kept = watched(workers)
        for count in (1, 3, 2, 1, 2, 3, 1):
            assert whole(workers, count).form(count, 12) == count
            steps_taken(workers, draw.randint(1, 25))
        workers.finish()
        while workers.take(0.0) is not None:
            pass
    paused = [event["pause_seconds"] for event in kept if "pause_seconds" in event]
    losses = [(event["step"], event["loss"]) for event in kept if event["is"] == "step"]
    assert not alive(str(folder / "moved"))
    assert len(paused) == 6
    assert max(paused) < 5.0
    state = read_checkpoint(newest_checkpoint(folder / "moved" / "states") or Path())
    assert check_ids(folder, 0, state["steps"]) == state["position"] == 12 * state["steps"]
    assert (state["epoch"], state["in_epoch"]) == divmod(state["position"], 90)

    with ElasticWorkers(job(workers=(1,)), "still") as workers:
        workers.form(1, 12)
        still = {event["step"]: event["loss"] for event in steps_taken(workers, state["steps"])}
    assert len(losses) == state["steps"]
    assert [step for step, _ in losses] == list(range(1, len(losses) + 1)), "no step is thrown away"
    assert np.allclose([loss for _, loss in losses], [still[step] for step, _ in losses], rtol=1e-3)


def test_a_batch_that_changes_too_takes_the_next_samples(folder: Path) -> None:
    with ElasticWorkers(job(global_batch=(7, 12, 40), rule="adascale"), "training") as workers:
        for count, batch in ((2, 7), (1, 40), (2, 40), (2, 12), (1, 7)):
            whole(workers, count).form(count, batch)
            last = steps_taken(workers, 9)[-1]
        workers.finish()
    state = read_checkpoint(newest_checkpoint(folder / "training" / "states") or Path())
    assert check_ids(folder, 0, state["steps"]) == state["position"] >= last["position"]
    assert 0 < state["effective"] < state["position"]


def test_a_training_goes_on_from_the_newest_whole_state(folder: Path) -> None:
    for sitting in range(3):
        with ElasticWorkers(job(workers=(1,)), "training") as workers:
            workers.form(1, 12)
            first, *_, last = steps_taken(workers, 15)
            if sitting == 0:
                workers.finish()
                saved = read_checkpoint(newest_checkpoint(workers.states) or Path())["steps"]
                assert saved >= last["step"]
        if sitting == 1:
            assert first["step"] == saved + 1
            path = newest_checkpoint(folder / "training" / "states")
            assert path is not None
            path.write_bytes(path.read_bytes()[:-10])
    assert first["step"] == 1, "the only other state is that of the begin"


def test_one_driver_has_a_folder(folder: Path) -> None:
    second = ElasticWorkers(job(workers=(1,)), "training")
    found = rf"process {os.getpid()} on \S+ trains in it"
    with ElasticWorkers(job(workers=(1,)), "training"), pytest.raises(RequestError, match=found):
        second.__enter__()


def test_a_worker_killed_in_mid_step_costs_that_step_alone(folder: Path) -> None:
    with ElasticWorkers(job(settings={"pause": 0.01}), "training") as workers:
        workers.form(2, 12)
        for rank in (0, 1):
            last = steps_taken(workers, 20)[-1]["step"]
            os.kill(pid_of(workers, rank), signal.SIGKILL)
            lost = until(workers, "lost")
            assert "signal 9 (SIGKILL)" in lost["why"]
            assert lost["trained"]
            assert workers.form(2, 12) == 1, "the other one goes on at once"
            found = steps_taken(workers, 5)
            assert found[0]["step"] - last <= 3, "no step that was done is done again"
            assert whole(workers, 2).form(2, 12) == 2, "a new one has taken its place"
            steps_taken(workers, 5)
        workers.finish()
    state = read_checkpoint(newest_checkpoint(folder / "training" / "states") or Path())
    assert check_ids(folder, 0, state["steps"]) == state["position"]


def test_notice_a_kill_during_a_move_and_a_hang_lose_no_sample(folder: Path) -> None:
    asked = job(workers=(1, 2, 3), settings={"pause": 0.01}, hang_seconds=3.0)
    with ElasticWorkers(asked, "training") as workers:
        workers.form(3, 12)
        steps_taken(workers, 10)
        os.kill(pid_of(workers, 0), signal.SIGTERM)  # the machine will be taken away
        stopped = until(workers, "stopped")
        assert stopped["why"] == "notice"
        assert workers.form(3, 12) == 2
        steps_taken(workers, 10)

        dying, going = pid_of(workers, 1), workers._saved_state
        workers._saved_state = lambda: (os.kill(dying, signal.SIGKILL), going())[1]  # type: ignore[method-assign]
        assert 1 <= workers.form(2, 12) <= 2
        workers._saved_state = going  # type: ignore[method-assign]
        steps_taken(workers, 10)

        assert whole(workers, 2).form(2, 12) == 2
        steps_taken(workers, 10)
        os.kill(pid_of(workers, 1), signal.SIGSTOP)
        assert until(workers, "stopped")["why"] == "lost"
        assert workers.form(1, 12) == 1
        steps_taken(workers, 10)
        workers.finish()
    assert not alive(str(folder / "training"))
    state = read_checkpoint(newest_checkpoint(folder / "training" / "states") or Path())
    assert check_ids(folder, 0, state["steps"]) == state["position"]


def test_a_full_disk_stops_no_training_and_only_those_with_the_weights_go_on(folder: Path) -> None:
    with ElasticWorkers(job("full_disk", checkpoint_seconds=0.1), "training") as workers:
        workers.form(1, 12)
        steps_taken(workers, 21)
        assert "too large" in until(workers, "unsaved")["why"]
        kept = newest_checkpoint(workers.states)
        assert kept is not None
        assert whole(workers, 2).form(2, 12) == 1, "the other worker has no state to begin from"
        assert steps_taken(workers, 20)[-1]["step"] > 40
        assert newest_checkpoint(workers.states) == kept


@pytest.mark.parametrize(
    ("entry", "found"),
    [("wrong", "ValueError: the third layer has no weights"), ("forgetful", "without run.step"),
     ("missing", "no attribute 'missing'")],
)  # fmt: skip
def test_a_training_function_that_fails_is_named_with_its_reason(
    folder: Path, entry: str, found: str
) -> None:
    with (
        ElasticWorkers(job(entry, workers=(1,)), "training") as workers,
        pytest.raises(RequestError, match=found),
    ):
        assert workers.form(1, 12) == len(steps_taken(workers, 1))
