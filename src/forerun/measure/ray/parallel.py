"""Parallel: a function of one's own runs in several workers of Ray Train at once, and what it returns comes back."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import Any

from forerun.errors import RequestError
from forerun.measure.ray.driver import begun, connect, polled
from forerun.measure.ray.failures import failures, in_one_line, unreachable
from forerun.measure.ray.worker import Message, sender

_WAIT_SECONDS = 1.0
# Called with a worker's rank, how many there are, and what passes arguments on to whoever started them.
Work = Callable[[int, int, Callable[..., None]], Any]


def in_workers(
    work: Work, most: int, report: Callable[..., None], variables: Mapping[str, str], address: str = "",
    waits: bool = False,
) -> list[Any]:  # fmt: skip
    """Return what the work returned in each of up to `most` workers of a CPU each, by rank. waits: for a free CPU.

    In each worker the process group of torch.distributed is there (gloo). report: is called here with what a worker
    passes on. The cluster is the one that this process is connected to, else that of the address.

    Raises RequestError where no cluster answers, where no CPU is free, or where a worker fails.
    """
    import ray

    asked = "training on Ray Train"
    with ExitStack() as ending:
        if not ray.is_initialized():
            try:
                connect({"address": address, "variables": variables})
            except (Exception, SystemExit) as error:  # noqa: BLE001  (Ray raises many kinds, some its own)
                found, _, todo = unreachable(in_one_line(error)).partition("; ")
                raise RequestError(asked, found, todo or "see `ray status`") from None
            ending.callback(ray.shutdown)
        while not (workers := min(most, int(ray.available_resources().get("CPU", 0.0)))) and waits:
            time.sleep(_WAIT_SECONDS)
        if workers < 1:
            todo = "wait for one, or unset RAY_ADDRESS to train in this process"
            raise RequestError(asked, "no CPU of the cluster is free", todo)
        storage = ending.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        fit, mailbox = begun(_work, {"work": work}, storage, "gloo", num_workers=workers)
        results: dict[int, Any] = {}
        for message in chain.from_iterable(polled(fit, mailbox)):
            if message["kind"] == "report":
                report(*message["arguments"])
            else:
                results[message["rank"]] = pickle.loads(message["result"])
        if (wrong := fit.exception()) is not None:
            found = "; ".join(failures(wrong).values())
            raise RequestError(asked, found, "see the workers' logs, or unset RAY_ADDRESS")
        return [results[rank] for rank in range(workers)]


def _work(config: Mapping[str, Any]) -> None:
    from ray import train

    context, send = train.get_context(), sender(str(config["mailbox"]))
    rank = int(context.get_world_rank())

    def pass_on(*arguments: Any) -> None:
        send(Message(kind="report", arguments=arguments))

    result = config["work"](rank, int(context.get_world_size()), pass_on)
    # As one piece of bytes: arrays would lie in Ray's memory, which is gone when this process leaves the cluster.
    send({"kind": "result", "rank": rank, "result": pickle.dumps(result)})
