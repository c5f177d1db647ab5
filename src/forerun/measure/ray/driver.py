"""Driver: asks a Ray cluster to train, and reports in its output: `python -m forerun.measure.ray.driver PLAN`."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from forerun.measure.processes import RUNNER, die_with_parent, loading
from forerun.measure.ray.failures import failures, in_one_line
from forerun.measure.ray.worker import LINE, Mailbox, Message, carry_out_plan, unpacked
from forerun.units import counted

_POLL_SECONDS = 0.2
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
    with loading():
        import ray

    init = partial(ray.init, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": plan["variables"]})  # fmt: skip
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


def lacking(nodes: Sequence[Mapping[str, float]], workers: int, need: Mapping[str, float], placement: str) -> str:  # fmt: skip
    """Return why workers that need resources each do not fit on nodes that offer them, "" where they do."""
    most = 1 if placement == "STRICT_SPREAD" else workers
    room = [min(most, *(int(node.get(name, 0.0) / each + 1e-9) for name, each in need.items())) for node in nodes]  # fmt: skip
    count = max(room, default=0) if placement == "STRICT_PACK" else sum(room)
    if count >= workers:
        return ""
    each = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
    what = f"{counted(workers, 'worker')} of {each} each ({placement})"
    return f"{what} do not fit: this cluster of {len(nodes)} nodes has room for {count}"


def _train(plan: Mapping[str, Any], first: int) -> int:
    need = plan["resources"]
    config = {"tasks": plan["tasks"], "first": first, "hold": plan["hold"]}
    fit, mailbox = begun(
        carry_out_plan, config, plan["storage"], plan["backend"], num_workers=plan["workers"],
        use_gpu=bool(need.get("GPU")), resources_per_worker=need, placement_strategy=plan["placement"],
    )  # fmt: skip
    done, last, heard = [0] * len(plan["tasks"]), len(plan["tasks"]) - 1, False
    for messages in polled(fit, mailbox):
        for message in messages:
            heard = True
            _report(message)
            if message["kind"] == "record":
                done[message["task"]] += message["record"]["status"] == "ok"
        if not (heard or fit.done() or _fits(plan)):  # a node was lost before it began
            return last
    if (error := fit.exception()) is None:
        return last
    failed = next((i for i in range(first, len(done)) if done[i] < plan["workers"]), last)
    _report({"kind": "failed", "task": failed, "failures": failures(error)})
    return failed


def begun(
    loop: Callable[..., None], config: Mapping[str, Any], storage: str, backend: str, **scaling: Any
) -> tuple[Future[Any], Mailbox]:
    """Begin a fit in a thread: return what it will return or raise, and the `mailbox` that its workers are told."""
    with loading():
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

    mailbox, fit = Mailbox(f"forerun-{uuid.uuid4().hex}"), Future[Any]()
    once = FailureConfig(max_failures=0)
    trainer = TorchTrainer(
        loop, train_loop_config={**config, "mailbox": mailbox.name},
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(name=mailbox.name, storage_path=storage or None, failure_config=once),
        torch_config=TorchConfig(backend=backend or None),
    )  # fmt: skip

    def train() -> None:
        try:
            fit.set_result(trainer.fit())
        except BaseException as error:  # noqa: BLE001  (whoever waits has it, whatever it is)
            fit.set_exception(error)

    threading.Thread(target=train, daemon=True).start()
    return fit, mailbox


def polled(fit: Future[Any], mailbox: Mailbox) -> Iterator[list[Message]]:
    """Yield what workers sent since the last time, until their fit has ended."""
    alive = True
    while alive:
        alive = bool(wait([fit], _POLL_SECONDS).not_done)
        yield mailbox.take()


if __name__ == "__main__":
    status = main(sys.argv[1])
    with suppress(Exception):
        import ray

        ray.shutdown()
    sys.exit(status)
