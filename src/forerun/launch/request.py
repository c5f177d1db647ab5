"""LaunchRequest: what a launch configuration must state of a job, and which targets can run its plan."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from forerun import packaged, registry
from forerun.arrays import BoolArray
from forerun.catalog import load_catalog
from forerun.catalog.frameworks import Software, frameworks, having
from forerun.domain.estimate import Estimate
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan, PlanColumns
from forerun.domain.workload import Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.units import counted, format_bytes, format_dollars, format_probability, format_seconds

_Names = Mapping[str, Mapping[str, str]]


@cache
def _targets() -> dict[str, Any]:
    found: dict[str, Any] = packaged.table(__file__, "targets.json")
    return found


def framework_for(target: str) -> str:
    """Return the framework that a target starts, "" for one that starts a script of any."""
    return str(_targets().get(target, {}).get("framework", ""))


_CALLED = {"accelerator": "device", "provider": "cloud (--cluster, --providers or --exclude)"}
# Operations that decoders alone do not have: of a second stack, of BERT's head, of Transformer-XL's memory.
_NOT_DECODERS = re.compile(r"encoder\.|head\.(transform|pooler)$|layer\.\d+\.memory$")


def names_of(target: str) -> _Names:
    """Return a target's own words by field (precision, optimizer, accelerator) and value of it."""
    names: _Names = _targets().get(target, {}).get("names", {})
    return names


@cache
def limits_of(target: str) -> Software:
    """Return what a target cannot run, as the table of a framework."""
    registry.load("targets", target)  # known
    rows = _targets()
    own = [software.cannot for software in frameworks() if software.name == framework_for(target)]
    tables = [rows["all"], rows.get(target, {}).get("cannot", {}), *own]
    each = {
        feature: why for table in tables for key, why in table.items() for feature in key.split()
    }
    return Software(target, "", (), each)


def _lacks(target: str, fields: Mapping[str, Any]) -> tuple[str, str] | None:
    for name, words in names_of(target).items():
        if name in fields and fields[name] not in words:
            return f"{name}={fields[name]}", f"it knows {', '.join(words)}"
    return limits_of(target).refusal(fields)


def refuse(target: str, fields: Mapping[str, Any]) -> None:
    """Raise RequestError where a target cannot run one of some plan fields, or such a job (`LaunchRequest.fields`).

    Raises:
        RequestError: it names the feature, why the target lacks it, and which targets have it.
    """
    found = _lacks(target, fields)
    if found is not None:
        able = [name for name in registry.names("targets") if _lacks(name, fields) is None]
        refusal(target, *found, able)


# What a target lacks of fields together: of which plans (one, or columns) with so many layers, the feature, why, and
# fields that it runs.
_TOGETHER: Mapping[str, Sequence[tuple[Callable[[Any, int], Any], str, str, str]]] = {
    "deepspeed": [(
        lambda plan, _: (plan.pp > 1) & (plan.zero_stage > 1),
        "zero_stage={p.zero_stage} and pp={p.pp}", "its pipeline takes ZeRO up to stage 1", "zero_stage=1",
    )],
    "megatron": [(
        lambda plan, n: (n % (plan.pp * plan.vpp) > 0) & ((n + 2) % (plan.pp * plan.vpp) > 0),
        "pp={p.pp}", "{n} layers do not divide into {stages} equal stages", "pp={even},vpp=1",
    )],
    "torchtitan": [(
        lambda plan, _: (plan.dp ** (plan.zero_stage > 1) * plan.cp * plan.tp) % plan.ep > 0,
        "ep={p.ep} and zero_stage=0", "its experts lie on the ranks that shard", "zero_stage=2",
    ), (
        lambda plan, n: (plan.vpp > 1) & (-(-n // -(-n // (plan.pp * plan.vpp))) != plan.pp * plan.vpp),
        "vpp={p.vpp}", "{n} layers do not divide into {stages} stages", "pp={even},vpp=1",
    )],
}  # fmt: skip


def refused_plans(target: str, plans: PlanColumns, layers: int) -> dict[str, BoolArray]:
    """Return which plans a target cannot run, (n,), by the reason."""
    found = {
        f"{target} lacks {feature}: {why}": having(plans, feature)
        for feature, why in limits_of(target).cannot.items()
    }
    for lacks, _, why, fixed in _TOGETHER.get(target, ()):
        fix = "" if "{" in fixed else f" (fix: {fixed})"
        found[f"{target}: {why.format(n=layers, stages='pp x vpp')}{fix}"] = lacks(plans, layers)
    return found


def place_fields(workload: Workload, cluster: Cluster) -> dict[str, Any]:
    """Return the fields of workload and cluster that a target may lack."""
    device = cluster.device
    return {
        "precision": workload.precision, "optimizer": workload.optimizer, "task": workload.task,
        "lora_rank": workload.lora_rank, "device": device.generation, "provider": cluster.provider,
        "accelerator": "cpu" if device.kind == "cpu" else device.vendor,
    }  # fmt: skip


def startable(target: str, workload: Workload, clusters: Sequence[Cluster]) -> list[Cluster]:
    """Return the clusters on which a target starts a workload. Raises RequestError for none, as `refuse`."""
    able = [c for c in clusters if _lacks(target, place_fields(workload, c)) is None]
    if not able:
        refuse(target, place_fields(workload, clusters[0]))
    return able


def refusal(target: str, feature: str, why: str, able: Sequence[str] = (), fixed: str = "") -> None:
    """Raise RequestError for a feature that a target lacks.

    able: the targets that have it. fixed: plan fields that it runs; by default the usual value of the feature's.
    """
    name = feature.partition("=")[0]
    other = f", or emit for a target that can ({', '.join(able)})" if able else ""
    if not fixed and name in (usual := Plan().as_dict()):
        fixed = f"{name}={str(usual[name]).lower()}"
    # Whoever chose the field, the search or the command line: this names a value.
    todo = f"fix it with --plan {fixed}" if fixed else f"choose another {_CALLED.get(name, name)}"
    asked, found = f"{feature} with --emit {target}", f"{target} lacks it: {why}"
    raise RequestError(asked, found, f"{todo}{other}")


@dataclass(frozen=True)
class LaunchRequest:
    """A chosen job with its estimate, and what a file says of where it comes from.

    Attributes:
        target: a name of the registry's group `targets`.
        script: the training script, "" where the target's usual one is meant.
        command, written: the command line, and the version and time, that the file names as its origin.
        settings: precision, sequences, optimizer and framework in words.
    """

    target: str
    job: Job
    estimate: Estimate
    script: str = ""
    command: str = ""
    written: str = ""
    settings: str = ""

    @property
    def nodes(self) -> int:
        """Nodes of the cluster."""
        return self.job.cluster.nodes

    @property
    def per_node(self) -> int:
        """Processes on each node, one a device."""
        return self.job.cluster.devices // self.job.cluster.nodes

    @property
    def accumulation(self) -> int:
        """Passes of each device before an optimizer step."""
        return int(self.job.plan.micro_batches)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return max(math.ceil(self.estimate.steps), 1)

    @property
    def accelerator(self) -> str:
        """`cpu`, or the vendor of the devices."""
        return str(self.fields["accelerator"])

    @property
    def fields(self) -> dict[str, Any]:
        """The plan's fields, and those of workload and cluster that a target may lack."""
        return {**self.job.plan.as_dict(), **place_fields(self.job.workload, self.job.cluster)}

    def named(self, field: str) -> str:
        """Return the target's own word for the value of a field."""
        return names_of(self.target)[field][self.fields[field]]

    @property
    def label(self) -> str:
        """The workload's name as Kubernetes takes it: lower case, digits and dashes, a letter first, at most 40."""
        name = re.sub(r"[^a-z0-9]+", "-", self.job.workload.name.lower())
        return name.lstrip("-0123456789")[:40].rstrip("-") or "job"

    @property
    def environment(self) -> dict[str, str]:
        """What a script is given of the plan, as environment variables that begin with PLAN_."""
        workload, plan = self.job.workload, self.job.plan
        served = ("partitions", "parameter_servers", "stale_bound", "gradient_bits", "servers_with_workers",
                  "sync")  # fmt: skip
        fields = {name: value for name, value in plan.as_dict().items() if name not in served}
        fields |= {
            "gradient_accumulation": self.accumulation, "steps": self.steps,
            "world_size": plan.world_size, "precision": workload.precision,
            "optimizer": workload.optimizer, "task": workload.task, "workload": workload.name,
        }  # fmt: skip
        sizes: dict[str, int | str] = {
            "seq_len": workload.seq_len, "image_size": workload.image_size,
            "lora_rank": workload.lora_rank, "lora_targets": workload.lora_targets,
            "weight_bits": 4 if workload.task == "qlora" else 0,
        }  # fmt: skip
        fields |= {name: size for name, size in sizes.items() if size}
        return {
            f"PLAN_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }

    @property
    def with_plan(self) -> str:
        """The words of a shell that begin a command with the plan in its environment."""
        return " ".join(["env", *(f"{n}={shlex.quote(v)}" for n, v in self.environment.items())])

    @property
    def expert_tensor_parallel(self) -> int:
        """Tensor ranks of an expert in Megatron: 1 where data-parallel ranks cannot hold all experts alone."""
        plan = self.job.plan
        return 1 if plan.dp * plan.cp % plan.ep else int(plan.tp)

    @property
    def limit(self) -> tuple[int, int]:
        """Hours and minutes in which 95 % of such runs end; (0, 0) where that is not known."""
        seconds = self.estimate.wall_seconds[2]
        return divmod(math.ceil(seconds / 60), 60) if math.isfinite(seconds) else (0, 0)

    @property
    def device_name(self) -> str:
        """What SkyPilot calls a device: its family, with the memory where that leaves the device open."""
        device = self.job.cluster.device
        family = device.id.partition("-")[0].upper()
        try:
            meant = load_catalog().device(family)[0].id == device.id
        except UnknownNameError:
            meant = True
        return family if meant else f"{family}-{device.memory_bytes / 1e9:.0f}GB"

    @property
    def model_names(self) -> tuple[str, str]:
        """The workload's name and its size as torchtitan names modules and configurations: letters and digits."""
        module, _, size = self.job.workload.name.lower().rpartition("-")
        return re.sub(r"[^a-z0-9]", "_", module) or "llama3", re.sub(r"[^a-z0-9]", "_", size)

    @property
    def origin(self) -> dict[str, str]:
        """Where the file comes from and what was predicted, by label."""
        plan, estimate, device = self.job.plan, self.estimate, self.job.cluster.device
        step = tuple(seconds / estimate.steps for seconds in estimate.run_seconds)
        peak = estimate.forecast.peak_bytes if estimate.forecast else (math.nan,) * 3
        rows: dict[str, tuple[tuple[float, ...], Callable[[float], str]]] = {
            "step": (step, format_seconds), "wall": (estimate.wall_seconds, format_seconds),
            "cost": (estimate.dollars, format_dollars), "memory": (peak, format_bytes),
        }  # fmt: skip
        words = {
            name: f"{write(row[1])} ({write(row[0])} to {write(row[2])})"
            if math.isfinite(row[1]) else "unknown"
            for name, (row, write) in rows.items()
        }  # fmt: skip
        words["memory"] += f" of {format_bytes(device.memory_bytes)} a device"
        fits = format_probability(estimate.fit_probability)
        found = {
            "written": f"by forerun {self.written}", "command": self.command,
            "job": f"{self.job.workload.name} on {self.job.cluster.name}",
            "plan": f"{plan}, global batch {plan.global_batch:,}, gradient accumulation {self.accumulation:,}",
            "settings": self.settings, "notes": "; ".join(self.job.workload.notes),
            "length": counted(self.steps, "optimizer step"),
            "predicted": "medians, and 5 to 95 %", **words, "fits": f"probability {fits}",
        }  # fmt: skip
        # A command may hold a line's end, which would end a comment.
        return {name: " ".join(text.split()) for name, text in found.items() if text}

    def header(self, *remarks: str) -> str:
        """Return the origin, and remarks, as lines of comments."""
        lines = [f"{name:<10}{text}" for name, text in self.origin.items()]
        return "".join(f"# {line}".rstrip() + "\n" for line in (*lines, "", *remarks))


def _refuse_network(request: LaunchRequest) -> None:
    """Raise RequestError where a target trains causal language models alone, and a workload is none that it writes."""
    trains = _targets().get(request.target, {}).get("trains", "")
    if not trains:
        return
    workload, ops = request.job.workload, request.job.workload.graph.ops
    shape, found = workload.shape, ""
    # A fused attention without a mask has 4 FLOPs for each element of its square.
    fused = [op for op in ops if op.name.endswith("attention.core")]
    unmasked = any(op.flops > 3 * math.prod(op.dims) for op in fused)
    if not (shape.layers and shape.hidden and shape.heads and workload.seq_len):
        found = "it trains transformers on sequences alone"
    elif unmasked or any(_NOT_DECODERS.match(op.name) for op in ops):
        found = "it trains decoders alone, and this has an encoder or a memory"
    elif trains == "plain decoders" and any(op.name.endswith("attention.kv_down") for op in ops):
        found = "the file writes no latent attention"
    if found:
        todo = "emit for torchrun, accelerate or deepspeed"
        raise RequestError(f"--emit {request.target} of {workload.name}", found, todo)


def emit(request: LaunchRequest) -> str:
    """Return the text of the target's launch configuration.

    Raises:
        RequestError: a target that is not known, a plan that it cannot run, or devices unevenly placed.
    """
    write = registry.load("targets", request.target)
    _refuse_network(request)
    refuse(request.target, request.fields)
    plan, cluster = request.job.plan, request.job.cluster
    layers = request.job.workload.shape.layers
    for lacks, feature, why, fixed in _TOGETHER.get(request.target, ()):
        if lacks(plan, layers):
            # The most stages, a divisor of pp, into which the layers divide.
            even = next(n for n in range(plan.pp, 0, -1) if plan.pp % n == 0 and layers % n == 0)
            words = {"p": plan, "n": layers, "stages": plan.pp * plan.vpp, "even": even}
            asked, found, todo = (text.format(**words) for text in (feature, why, fixed))
            refusal(request.target, asked, found, fixed=todo)
    if not float(plan.micro_batches).is_integer():
        passes = plan.micro_batch * plan.dp
        raise RequestError(
            f"--emit {request.target} with a global batch of {plan.global_batch}",
            f"it is no multiple of micro_batch x dp = {passes}, and launched jobs run whole passes",
            f"choose a multiple, e.g. --global-batch {math.ceil(plan.global_batch / passes) * passes}",
        )
    if len(set(cluster.placement)) > 1:
        raise RequestError(
            f"--emit {request.target} on {cluster.name}", f"its nodes use {cluster.placement} devices",
            "name a cluster whose nodes use equally many",
        )  # fmt: skip
    return str(write(request))
