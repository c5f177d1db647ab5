"""Driver: the process that asks a Ray cluster to train: `python -m forerun.measure.ray.driver`.

It reads a plan from its argument (`letterbox.unpacked`), and tells what happens
in lines of its output that begin with `letterbox.LINE`: so it can be started here, on a lab's host, or by
`ray job submit`, and its measurements come home all the same.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from forerun.measure.ray.failures import failures, words_of
from forerun.measure.ray.worker import LINE, Letterbox, unpacked

_LOOK_SECONDS = 0.2
_KNOCK_SECONDS = 10.0


def main(argument: str) -> int:
    """Carry out a plan; return the exit status, 0 where what happened could be told."""
    from forerun.measure.worker import die_with_parent

    if os.environ.get("FORERUN_RUNNER"):
        die_with_parent()
    plan = unpacked(argument)
    try:
        connect(plan)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (Ray raises many kinds, some its own)
        tell({"kind": "unreachable", "reason": words_of(error)})
        return 0
    tell({"kind": "connected"})
    first = 0
    while first < len(plan["tasks"]) and fits(plan):
        first = train(plan, first) + 1
    return 0


def tell(letter: Mapping[str, Any]) -> None:
    """Print one letter, whole, on a line of its own."""
    sys.stdout.write(f"\n{LINE}{json.dumps(letter)}\n")
    sys.stdout.flush()


def connect(plan: Mapping[str, Any]) -> None:
    """Connect to the cluster that is named or found, or start one on this machine."""
    import ray

    given: dict[str, Any] = {
        "log_to_driver": False, "logging_level": "ERROR",
        "runtime_env": {"env_vars": plan["variables"]},
    }  # fmt: skip
    address = plan["address"] or os.environ.get("RAY_ADDRESS", "")
    if address and address != "local":
        knock(address)
        ray.init(address=address, **given)
    else:
        ray.init(address="local", include_dashboard=False, num_cpus=plan["local_cpus"], **given)


def knock(address: str) -> None:
    """Raise ConnectionError where nothing listens at an address; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from None


def fits(plan: Mapping[str, Any]) -> bool:
    """Say whether the cluster, as it is now, has room for the workers; tell what it lacks."""
    problem = shortage(plan)
    if problem:
        tell({"kind": "refused", "reason": problem})
    return not problem


def shortage(plan: Mapping[str, Any]) -> str:
    """Return what the cluster lacks for the workers of a plan, "" where nothing.

    Ray Train would wait for it without an end.
    """
    import ray

    need = plan["resources"]
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = [
        min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in need.items() if amount)
        for node in nodes
    ]
    if plan["placement"] == "STRICT_SPREAD":
        room = [min(count, 1) for count in room]
    fits = max(room, default=0) if plan["placement"] == "STRICT_PACK" else sum(room)
    if fits >= plan["workers"]:
        return ""
    asked = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
    return (
        f"{plan['workers']} workers of {asked} each ({plan['placement']}) do not fit: this cluster of"
        f" {len(nodes)} nodes has room for {fits}"
    )


def train(plan: Mapping[str, Any], first: int) -> int:
    """Fit once for the tasks from a first one on, and pass on letters meanwhile.

    Returns the last task that was carried out: it failed, or there is none after it.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from forerun.measure.ray.worker import carry_out_plan

    box = Letterbox(f"forerun-{uuid.uuid4().hex}")
    gpus = bool(plan["resources"].get("GPU"))
    trainer = TorchTrainer(
        carry_out_plan,
        train_loop_config={
            "tasks": plan["tasks"], "first": first, "box": box.name, "hold": plan["hold"],
        },
        scaling_config=ScalingConfig(
            num_workers=plan["workers"], use_gpu=gpus, resources_per_worker=plan["resources"],
            placement_strategy=plan["placement"],
        ),
        run_config=RunConfig(
            name=box.name, storage_path=plan["storage"] or None,
            failure_config=FailureConfig(max_failures=0),
        ),
        torch_config=TorchConfig(backend=plan["backend"] or None),
    )  # fmt: skip
    ended: list[BaseException | None] = []

    def fit() -> None:
        try:
            trainer.fit()
            ended.append(None)
        except BaseException as error:  # noqa: BLE001  (told to the runner, whatever it is)
            ended.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    done = [0] * len(plan["tasks"])
    begun: list[bool] = []

    def pass_on() -> None:
        for letter in box.take():
            begun.append(True)
            tell(letter)
            if letter["kind"] == "record":
                done[letter["task"]] += letter["record"]["status"] == "ok"

    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        pass_on()
        if not begun and not fits(plan):  # a node was lost before: Ray Train would wait for it
            return len(done) - 1
    pass_on()
    error = ended[0]
    if error is None:
        return len(done) - 1
    failed = next((i for i in range(first, len(done)) if done[i] < plan["workers"]), len(done) - 1)
    tell({"kind": "failed", "task": failed, "failures": failures(error)})
    return failed


if __name__ == "__main__":
    status = main(sys.argv[1])
    with suppress(Exception):
        import ray

        ray.shutdown()
    sys.exit(status)
