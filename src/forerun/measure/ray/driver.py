"""Driver: asks a Ray cluster to train, and reports in its output: `python -m forerun.measure.ray.driver PLAN`."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from forerun.measure.processes import RUNNER, die_with_parent
from forerun.measure.ray.failures import failures, in_one_line
from forerun.measure.ray.worker import LINE, Mailbox, carry_out_plan, unpacked
from forerun.units import counted

POLL_SECONDS = 0.2
_CONNECT_SECONDS = 10.0


def main(argument: str) -> int:
    """Carry out a plan; return the exit status, 0 where what happened could be reported."""
    if os.environ.get(RUNNER):
        die_with_parent()
    plan = unpacked(argument)
    try:
        connect(plan)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (Ray raises many kinds, some its own)
        _report({"kind": "unreachable", "reason": in_one_line(error)})
        return 0
    _report({"kind": "connected"})
    first = 0
    while first < len(plan["tasks"]) and _fits(plan):
        first = _train(plan, first) + 1
    return 0


def _report(message: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{LINE}{json.dumps(message)}\n")
    sys.stdout.flush()


def connect(plan: Mapping[str, Any]) -> None:
    """Connect this process to a plan's `address`, else that of RAY_ADDRESS; `variables`: of workers. Raises what Ray does."""
    import ray

    init = partial(
        ray.init, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": plan["variables"]},
    )  # fmt: skip
    address = plan["address"] or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        init(address=address, include_dashboard=False, num_cpus=os.cpu_count() or 1)
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():  # Ray would try for minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"{address}: {error}") from None
    init(address=address)


def _fits(plan: Mapping[str, Any]) -> bool:
    """Whether the cluster has room for the workers now; report what it lacks: Ray waits forever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if why := lacking(nodes, plan["workers"], plan["resources"], plan["placement"]):
        _report({"kind": "refused", "reason": why})
    return not why


def lacking(
    nodes: Sequence[Mapping[str, float]], workers: int, need: Mapping[str, float], placement: str
) -> str:
    """Return why workers that need resources each do not fit on nodes that offer them, "" where they do."""
    most = 1 if placement == "STRICT_SPREAD" else workers
    room = [
        min(most, *(int(node.get(name, 0.0) / each + 1e-9) for name, each in need.items()))
        for node in nodes
    ]
    count = max(room, default=0) if placement == "STRICT_PACK" else sum(room)
    if count >= workers:
        return ""
    each = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
    return (
        f"{counted(workers, 'worker')} of {each} each ({placement}) do not fit: this cluster of {len(nodes)} nodes"
        f" has room for {count}"
    )


def _train(plan: Mapping[str, Any], first: int) -> int:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    mailbox = Mailbox(f"forerun-{uuid.uuid4().hex}")
    trainer = TorchTrainer(
        carry_out_plan,
        train_loop_config={
            "tasks": plan["tasks"], "first": first, "mailbox": mailbox.name, "hold": plan["hold"],
        },
        scaling_config=ScalingConfig(
            num_workers=plan["workers"], use_gpu=bool(plan["resources"].get("GPU")),
            resources_per_worker=plan["resources"], placement_strategy=plan["placement"],
        ),
        run_config=RunConfig(
            name=mailbox.name, storage_path=plan["storage"] or None,
            failure_config=FailureConfig(max_failures=0),
        ),
        torch_config=TorchConfig(backend=plan["backend"] or None),
    )  # fmt: skip
    fit = in_thread(trainer)
    done, last = [0] * len(plan["tasks"]), len(plan["tasks"]) - 1
    alive, begun = True, False
    while alive:
        alive = bool(wait([fit], POLL_SECONDS).not_done)
        for message in mailbox.take():
            begun = True
            _report(message)
            if message["kind"] == "record":
                done[message["task"]] += message["record"]["status"] == "ok"
        if alive and not begun and not _fits(plan):  # a node was lost before it began
            return last
    if (error := fit.exception()) is None:
        return last
    failed = next((i for i in range(first, len(done)) if done[i] < plan["workers"]), last)
    _report({"kind": "failed", "task": failed, "failures": failures(error)})
    return failed


def in_thread(trainer: Any) -> Future[Any]:
    """Begin a trainer's fit in a thread of its own, and return what it will return or raise."""
    fit: Future[Any] = Future()

    def train() -> None:
        try:
            fit.set_result(trainer.fit())
        except BaseException as error:  # noqa: BLE001  (whoever waits has it, whatever it is)
            fit.set_exception(error)

    threading.Thread(target=train, daemon=True).start()
    return fit


if __name__ == "__main__":
    status = main(sys.argv[1])
    with suppress(Exception):
        import ray

        ray.shutdown()
    sys.exit(status)
