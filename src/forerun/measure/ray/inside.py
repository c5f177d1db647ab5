"""Inside: what runs in a Ray Train worker: a plan's tasks one after another, within one fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from forerun.measure.limits import itself, wait_until_held
from forerun.measure.ray.letterbox import Postman, posting
from forerun.measure.task import Task
from forerun.measure.usage import GPU
from forerun.measure.worker import carry_out, prepare


def tell_gpu() -> None:
    """Note which GPU Ray Train has given this worker: how it numbers them is its own affair."""
    from ray.train.torch import get_device

    device = get_device()
    if device.type == "cuda" and device.index is not None:
        os.environ[GPU] = str(device.index)


class TaskFailedError(Exception):
    """A task failed in this worker: its fit ends, so that its neighbours do not wait for it."""


def carry_out_plan(config: Mapping[str, Any]) -> None:
    """Carry out tasks in this worker, and post the record of each.

    Args:
        config: `tasks` (as `Task.to_json`), `first`, the position from which on they are to be
            carried out, and `box`, the letterbox's name; `hold`, where the runner is to hold this
            worker to so many cores before it begins.

    Raises:
        TaskFailedError: a task failed; its record was posted before.
    """
    from ray import train

    context = train.get_context()
    rank = context.get_world_rank()
    os.environ["LOCAL_RANK"] = str(context.get_local_rank())
    tell_gpu()
    post = posting(str(config["box"]))
    if config.get("hold"):
        # What torch loads at first use would take minutes at a tenth of a core; where it cannot
        # be loaded, carrying out the first task says so.
        with suppress(Exception):
            prepare(Task.from_json(config["tasks"][int(config["first"])]))
        post({"kind": "ready", "rank": rank, **itself()})
        wait_until_held(float(config["hold"]))
    for i in range(int(config["first"]), len(config["tasks"])):
        men: list[Postman] = []

        def progress(rank: int, i: int = i, men: list[Postman] = men) -> Postman:
            men.append(Postman(post, i, rank))
            return men[0]

        record = carry_out(Task.from_json(config["tasks"][i]), rank, progress)
        for man in men:
            man.stop()
        post({"kind": "record", "task": i, "rank": rank, "record": record})
        if record["status"] != "ok":
            raise TaskFailedError(record["reason"])
