"""Task: one run to carry out: what is trained, by how many workers, with what, for how long."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.units import counted

# Settings that say how gradients are exchanged, by the names of a plan's fields.
THROUGH_SERVERS = ("ps-sync", "ps-async", "ps-stale")
EXCHANGES = ("allreduce", *THROUGH_SERVERS)
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16")
ENTRY = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"  # package.module:callable
# How long a run is measured or waited for is no part of what is measured.
_EFFORT = ("steps", "timeout_seconds", "hang_seconds")
OF_SERVERS = ("parameter_servers", "stale_bound", "servers_with_workers")
_ABOVE_0 = math.ulp(0.0)


def _check(asked: str, given: object, lowest: Mapping[str, float], whole: bool = True) -> None:
    """Raise RequestError unless each of the named fields is a number, `lowest` at least."""
    for name, least in lowest.items():
        value = getattr(given, name)
        kind = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not kind or not math.isfinite(value) or value < least:
            what = f"a{' whole' * whole} number from {least:g}"
            what = "a number above 0" if least == _ABOVE_0 else what
            todo = f"give {name} as {what}"
            raise RequestError(f"{asked} with {name}={value}", f"not {what}", todo)


@dataclass(frozen=True, slots=True)
class Steps:
    """How many steps are measured: until the step time is known well enough, or a cap.

    Attributes:
        warmup: first steps that are not counted, at least; slower ones after these are not either.
        least, most: counted steps.
        half_width: of the 95 % interval of the step time, as a share of it: that is enough.
        seconds: stop after so many seconds of stepping, the warm-up among them.
        epochs: above 0, so many whole epochs are run and timed, whatever the four above say.
    """

    warmup: int = 3
    least: int = 20
    most: int = 200
    half_width: float = 0.03
    seconds: float = 120.0
    epochs: int = 0

    def __post_init__(self) -> None:
        _check("steps", self, {"warmup": 0, "least": 1, "most": 1, "epochs": 0})
        if self.most < self.least:
            asked = f"steps with least={self.least} and most={self.most}"
            raise RequestError(asked, "at least more than at most", "make most as large as least")
        if not 0 < self.half_width < 1:
            asked, todo = f"steps with half_width={self.half_width}", "give for example 0.03"
            raise RequestError(asked, "not a share between 0 and 1", todo)
        _check("steps", self, {"seconds": _ABOVE_0}, whole=False)


@dataclass(frozen=True)
class Task:
    """One run to carry out.

    Attributes:
        entry: `package.module:callable` that returns an nn.Module and example inputs; or a
            training function of one mapping, its configuration; or a script (`.py`).
        global_batch: samples in one optimizer step, over all workers; a multiple of `replicas`.
        dataset_size: samples in one epoch; 0 where it does not matter.
        cpus_per_worker: cores that a worker may use, 0 where that is not held.
        settings: of the training loop (`loop.SETTINGS`), and arguments of the callable.
        timeout_seconds: of the whole run, start included; then it is ended with status timeout.
        hang_seconds: without a step for so long, a run is ended; 0 means only by its time limit.
        instance_type: of the machines, by the name of what they offer as a resource of Ray; blank: any.
    """

    entry: str
    arguments: tuple[str, ...] = ()
    workers: int = 1
    global_batch: int = 1
    dataset_size: int = 0
    cpus_per_worker: float = 0.0
    gpus_per_worker: int = 0
    threads: int = 0
    precision: str = "fp32"
    optimizer: str = "sgd"
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: Steps = Steps()
    timeout_seconds: float = 600.0
    hang_seconds: float = 0.0
    seed: int = 0
    instance_type: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(str(word) for word in self.arguments))
        object.__setattr__(self, "settings", dict(self.settings))
        if not (self.is_script or re.fullmatch(ENTRY, self.entry)):
            found = "neither package.module:callable nor a script"
            todo = "write for example examples.resnet50:build, or train.py"
            raise RequestError(f"entry {self.entry!r}", found, todo)
        lowest = {"dataset_size": 0, "gpus_per_worker": 0, "threads": 0, "seed": 0}
        _check(self.entry, self, {"workers": 1, "global_batch": 1, **lowest})
        limits = {"timeout_seconds": _ABOVE_0, "cpus_per_worker": 0, "hang_seconds": 0}
        _check(self.entry, self, limits, whole=False)
        self._check_partitions()
        self._check_batch()
        self._check_exchange()
        if self.precision not in PRECISIONS:
            found, todo = "no training loop has this precision", one_of(self.precision, PRECISIONS)
            raise RequestError(f"{self.entry} in {self.precision}", found, todo)
        try:
            json.dumps(self.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            todo = "use numbers, texts, lists and mappings"
            raise RequestError(f"settings of {self.entry}", str(error), todo) from None

    def _check_partitions(self) -> None:
        parts = self.settings.get("partitions", 1)
        asked = f"settings.partitions={parts} of {self.entry} on {counted(self.workers, 'worker')}"
        if type(parts) is not int or parts < 1:
            raise RequestError(asked, "not a whole number from 1", "give partitions=1 or more")
        for wrong, found, todo in (
            (self.workers % parts, f"replicas of {parts} workers leave some over",
             f"use {self.workers - self.workers % parts or parts} workers"),
            (parts > 1 and self.sync in THROUGH_SERVERS, f"with sync={self.sync} each worker trains a whole model",
             "leave out sync, or partitions"),
            (parts > 1 and self.is_script, "a script exchanges its activations itself",
             "name a package.module:callable that returns a module and its inputs"),
            (parts > 1 and self.gpus_per_worker and self.precision == "fp16",
             "parts would scale their losses apart", "use bf16"),
        ):  # fmt: skip
            if wrong:
                raise RequestError(asked, found, todo)

    def _check_batch(self) -> None:
        rest = self.global_batch % self.replicas
        lower, passes = self.global_batch - rest, self.settings.get("accumulate", 1)
        near = " or ".join(str(n) for n in (lower, lower + self.replicas) if n)
        shares = "workers" if self.replicas == self.workers else "replicas"
        for wrong, asked, found, todo in (
            (rest, f"a global batch of {self.global_batch} on {self.replicas} {shares}",
             f"{rest} samples are left over", f"use {near}"),
            (type(passes) is not int or passes < 1 or self.batch % passes,
             f"settings.accumulate={passes} with {self.batch} samples a worker",
             "they do not divide it evenly", "choose a divisor of the batch of one worker"),
            (0 < self.dataset_size < self.global_batch,
             f"a dataset of {self.dataset_size} samples",
             f"it holds less than one global batch of {self.global_batch}",
             "make the dataset larger or the batch smaller"),
            (self.steps.epochs and not self.dataset_size,
             f"{self.steps.epochs} epochs of {self.entry}",
             "the size of its dataset is not given", "give dataset_size"),
        ):  # fmt: skip
            if wrong:
                raise RequestError(asked, found, todo)

    def _check_exchange(self) -> None:
        given = self.settings
        if self.sync not in EXCHANGES:
            asked = f"settings.sync={self.sync} of {self.entry}"
            raise RequestError(asked, "no such exchange", one_of(str(self.sync), EXCHANGES))
        for name, least in (("parameter_servers", 1), ("stale_bound", 0)):
            if name in given and (type(given[name]) is not int or given[name] < least):
                asked, todo = f"settings.{name}={given[name]}", f"give {name}={least} or more"
                raise RequestError(asked, f"not a whole number from {least}", todo)
        servers = [n for n in OF_SERVERS if n in given]
        if servers and not self.servers:
            asked = f"settings {', '.join(servers)} of {self.entry}"
            found, todo = f"its sync is {self.sync}", f"add sync: {THROUGH_SERVERS[0]}"
            raise RequestError(asked, found, todo)
        if "stale_bound" in given and self.sync != "ps-stale":
            asked = f"settings.stale_bound={given['stale_bound']} of {self.entry}"
            found, todo = f"its sync is {self.sync}", "use sync: ps-stale, or leave the bound out"
            raise RequestError(asked, found, todo)
        if self.servers and self.is_script:
            found = "a script exchanges its gradients itself"
            todo = "name a package.module:callable that returns a module and its inputs"
            raise RequestError(f"{self.entry} with sync={self.sync}", found, todo)

    @property
    def sync(self) -> str:
        """How its workers exchange gradients, as a plan's `sync`."""
        return str(self.settings.get("sync", EXCHANGES[0]))

    @property
    def servers(self) -> int:
        """Parameter servers beside the workers; 0 where these reduce among themselves."""
        through = self.sync in THROUGH_SERVERS
        return int(self.settings.get("parameter_servers", 1)) if through else 0

    @property
    def partitions(self) -> int:
        """Workers of one replica, each with a part of every layer."""
        return int(self.settings.get("partitions", 1))

    @property
    def replicas(self) -> int:
        """Replicas of the model that have samples of their own."""
        return self.workers // self.partitions

    @property
    def stale_bound(self) -> int | None:
        """Steps that a worker may be ahead of the slowest; None of asynchronous ones: any number."""
        return None if self.sync == "ps-async" else int(self.settings.get("stale_bound", 0))

    @property
    def in_step(self) -> bool:
        """Whether every update is one of all workers."""
        return self.stale_bound == 0

    @property
    def is_script(self) -> bool:
        """Whether the entry is a script rather than something to import."""
        return self.entry.endswith(".py")

    @property
    def batch(self) -> int:
        """Samples of one worker in one optimizer step; those of a cut replica have the same ones."""
        return self.global_batch // self.replicas

    @property
    def backend(self) -> str:
        """Backend of the workers' process group: as set, else nccl for GPUs and gloo for CPUs."""
        usual = "nccl" if self.gpus_per_worker else "gloo"
        return str(self.settings.get("backend") or usual).lower()

    @property
    def rehearses(self) -> bool:
        """Whether workers train a tiny step before anything is measured."""
        return bool(self.settings.get("rehearse", True))

    @property
    def key(self) -> str:
        """SHA-256 of what is measured; how long is no part of it, except the number of epochs."""
        data = {name: value for name, value in self.to_json().items() if name not in _EFFORT}
        data["epochs"] = self.steps.epochs
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.key)

    def with_(self, **changes: Any) -> Task:
        """Return a copy with the named fields changed, checked again."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = {**asdict(self), "arguments": list(self.arguments)}
        if not self.instance_type:  # an earlier task keeps its key
            del data["instance_type"]
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Task:
        """Return the task of `to_json`. Raises RequestError where a field is unknown or wrong."""
        known = sorted(f.name for f in fields(Task))
        unknown = sorted(set(data) - set(known))
        if unknown or "entry" not in data:
            found = f"unknown fields {', '.join(unknown)}" if unknown else "it has no entry"
            raise RequestError("reading a task", found, f"its fields are {', '.join(known)}")
        return Task(**{**data, "steps": Steps(**data.get("steps", {}))})


def sharing(tasks: Sequence[Task]) -> list[list[int]]:
    """Return positions of tasks (no scripts) that one set of processes can carry out, in order."""
    groups: dict[Any, list[int]] = {}
    for i, task in enumerate(tasks):
        resources = (
            task.workers, task.cpus_per_worker, task.gpus_per_worker, task.threads,
            task.backend, task.rehearses, task.servers, task.instance_type,
            bool(task.settings.get("servers_with_workers")), i if task.is_script else -1,
        )  # fmt: skip
        groups.setdefault(resources, []).append(i)
    return list(groups.values())
