"""Parallel: a function of one's own runs in several workers of Ray Train at once, and what it returns comes back."""

from __future__ import annotations

import pickle
import tempfile
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import ExitStack
from typing import Any

from forerun.errors import RequestError
from forerun.measure.ray.driver import POLL_SECONDS, connect, in_thread
from forerun.measure.ray.failures import failures, in_one_line, unreachable
from forerun.measure.ray.worker import Mailbox, Message, sender

# Called with a worker's rank, how many there are, and what passes arguments on to whoever started them.
Work = Callable[[int, int, Callable[..., None]], Any]


def in_workers(
    work: Work, most: int, report: Callable[..., None], variables: Mapping[str, str], address: str = ""
) -> list[Any]:  # fmt: skip
    """Return what the work returned in each of up to `most` workers of a CPU each, by rank.

    In each worker the process group of torch.distributed is there (gloo). report: is called here with what a worker
    passes on. The cluster is the one that this process is connected to, else that of the address.

    Raises RequestError where no cluster answers, where no CPU is free, or where a worker fails.
    """
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    asked = "training on Ray Train"
    with ExitStack() as ending:
        if not ray.is_initialized():
            try:
                connect({"address": address, "variables": variables})
            except (Exception, SystemExit) as error:  # noqa: BLE001  (Ray raises many kinds, some its own)
                found, _, todo = unreachable(in_one_line(error)).partition("; ")
                raise RequestError(asked, found, todo or "see `ray status`") from None
            ending.callback(ray.shutdown)
        workers = min(most, int(ray.available_resources().get("CPU", 0.0)))
        if workers < 1:
            raise RequestError(
                asked, "no CPU of the cluster is free",
                "wait for one, or unset RAY_ADDRESS to train in this process",
            )  # fmt: skip
        mailbox = Mailbox(f"forerun-{uuid.uuid4().hex}")
        storage = ending.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        fit = in_thread(TorchTrainer(
            _work, train_loop_config={"work": work, "mailbox": mailbox.name},
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                name=mailbox.name, storage_path=storage,
                failure_config=FailureConfig(max_failures=0),
            ),
            torch_config=TorchConfig(backend="gloo"),
        ))  # fmt: skip
        results: dict[int, Any] = {}
        alive = True
        while alive:
            alive = bool(wait([fit], POLL_SECONDS).not_done)
            for message in mailbox.take():
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
