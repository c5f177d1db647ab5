"""Tasks: what can be measured is checked at birth, and one key names it for good."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch.distributed as dist

from forerun.errors import RequestError
from forerun.measure.task import Steps, Task, sharing
from forerun.measure.worker import prepare


def test_a_task_comes_back_from_json_with_its_key() -> None:
    task = Task(
        "examples.resnet50:build", workers=2, global_batch=8, dataset_size=64,
        settings={"bucket_mb": 5, "width": 3}, steps=Steps(least=5, most=9, epochs=1), seed=4,
    )  # fmt: skip
    back = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert back == task
    assert back.key == task.key
    assert hash(back) == hash(task)


@pytest.mark.parametrize(
    "change", [{"steps": Steps(most=50)}, {"timeout_seconds": 5.0}, {"hang_seconds": 5.0}]
)
def test_how_long_is_measured_takes_no_part_in_the_key(change: dict[str, object]) -> None:
    task = Task("m:f", global_batch=4, dataset_size=8)
    assert task.with_(**change).key == task.key


@pytest.mark.parametrize(
    "change",
    [{"entry": "m:g"}, {"workers": 2}, {"global_batch": 8}, {"settings": {"bucket_mb": 1}},
     {"threads": 2}, {"steps": Steps(epochs=1)}, {"seed": 1}, {"precision": "bf16"}],
)  # fmt: skip
def test_what_is_measured_is_in_the_key(change: dict[str, object]) -> None:
    task = Task("m:f", global_batch=4, dataset_size=8)
    assert task.with_(**change).key != task.key


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"entry": "resnet50"}, "neither package.module:callable nor a script"),
        ({"workers": 3, "global_batch": 8}, "2 samples are left over; use 6 or 9"),
        ({"workers": 3, "global_batch": 2}, "2 samples are left over; use 3$"),
        ({"workers": 0}, "not a whole number from 1"),
        ({"workers": True}, "not a whole number from 1"),
        ({"global_batch": 8, "dataset_size": 7}, "less than one global batch of 8"),
        ({"steps": Steps(epochs=1)}, "the size of its dataset is not given"),
        ({"timeout_seconds": 0}, "not a number above 0"),
        ({"timeout_seconds": math.inf}, "not a number above 0"),
        ({"cpus_per_worker": -1.0}, "not a number from 0"),
        ({"precision": "fp31"}, "did you mean fp32"),
        ({"settings": {"x": math.nan}}, "use numbers, texts"),
        ({"settings": {"x": object()}}, "use numbers, texts"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_to_do(
    given: dict[str, object], found: str
) -> None:
    with pytest.raises(RequestError, match=found):
        Task(**{"entry": "m:f", **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [{"least": 0}, {"most": 5}, {"half_width": 0.0}, {"half_width": 1.0}, {"seconds": 0.0},
     {"warmup": -1}, {"epochs": -1}, {"least": 2.5}],
)  # fmt: skip
def test_steps_that_can_never_be_enough_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        Steps(**given)  # type: ignore[arg-type]


def test_a_field_that_no_task_has_is_named() -> None:
    with pytest.raises(RequestError, match="unknown fields wrokers"):
        Task.from_json({"entry": "m:f", "wrokers": 2})
    with pytest.raises(RequestError, match="it has no entry"):
        Task.from_json({})


def test_tasks_share_processes_where_only_batch_or_data_differ() -> None:
    one = Task("m:f", workers=2, global_batch=4)
    tasks = [
        one, one.with_(global_batch=8), one.with_(workers=1), one.with_(entry="m:g"),
        one.with_(threads=2), Task("t.py", workers=2, global_batch=4),
        Task("t.py", workers=2, global_batch=8),
    ]  # fmt: skip
    assert sharing(tasks) == [[0, 1, 3], [2], [4], [5], [6]]


def test_tasks_of_another_backend_or_without_a_rehearsal_get_processes_of_their_own() -> None:
    one = Task("m:f", workers=2, global_batch=4)
    tasks = [
        one, one.with_(settings={"backend": "mpi"}), one.with_(settings={"rehearse": False}),
        one.with_(settings={"backend": "gloo", "rehearse": True, "bucket_mb": 1}),
    ]  # fmt: skip
    assert sharing(tasks) == [[0, 3], [1], [2]]
    assert one.with_(gpus_per_worker=1).backend == "nccl"


def test_a_live_process_group_of_another_backend_is_refused(tmp_path: Path) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        prepare(Task("m:f", settings={"rehearse": False}))
        with pytest.raises(RequestError, match="workers already talk through gloo"):
            prepare(Task("m:f", settings={"backend": "nccl", "rehearse": False}))
    finally:
        dist.destroy_process_group()
