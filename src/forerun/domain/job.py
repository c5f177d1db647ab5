"""Job: this workload on this cluster by this plan, checked at birth. Run: a job and its figures."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.hardware import Cluster
from forerun.domain.plan import (
    NVME_BYTES_PER_SECOND,
    OK,
    PROBLEMS,
    SERVER_SYNCS,
    SYNC,
    USUAL_HOST,
    Divisors,
    Plan,
    PlanColumns,
    plan_problems,
)
from forerun.domain.workload import Workload
from forerun.errors import RequestError


@dataclass(frozen=True)
class Job:
    """A workload laid on a cluster by a plan. Raises RequestError for a plan that breaks a rule."""

    workload: Workload
    cluster: Cluster
    plan: Plan

    def __post_init__(self) -> None:
        refuse_quantized(self.workload, self.cluster)
        if self._offloads and self.cluster.device.kind == "cpu":
            raise RequestError(
                f"{self.workload.name} on {self.cluster.name} with {self.plan}",
                "a CPU computes in its host's memory: there is nowhere else to keep anything",
                "leave offload and offload_activations out",
            )
        problem = job_problem(self.workload, self.cluster, self.plan)
        if problem is not None:
            found, _, next_step = problem.partition("; ")
            raise RequestError(
                f"{self.workload.name} on {self.cluster.name} with {self.plan}", found, next_step
            )

    def __str__(self) -> str:
        return f"{self.workload.name} on {self.cluster.name}, {self.plan}"

    @property
    def machines_paid(self) -> float:
        """Machines paid for over those of the cluster: servers' own are as those of the workers."""
        return 1.0 + self.plan.server_machines / self.cluster.nodes

    @property
    def _offloads(self) -> bool:
        return self.plan.offload != "none" or self.plan.offload_activations

    @property
    def _elsewhere(self) -> list[str]:
        """What is assumed of memory that is not the devices'."""
        notes = []
        if self._offloads and not self.cluster.host_memory_bytes:
            notes.append(
                f"the host's memory is not stated: {USUAL_HOST:g} times that of its devices is assumed for what is"
                " offloaded"
                " (name a machine, which states it)"
            )
        if self.workload.optimizer.startswith("paged"):
            notes.append(
                "pages of the optimizer's states are in the peak, and leave for the host where memory is short:"
                " they do not count against fitting"
            )
        if self.plan.offload == "nvme":
            notes.append(
                "offload=nvme: a node's drives are assumed to have room, and to move"
                f" {NVME_BYTES_PER_SECOND / 1e9:g} GB/s together"
            )
        return notes

    def dollars_per_hour(self, spot: bool) -> float | None:
        """Return what all machines cost, those of servers too; None where it is not known."""
        cluster = self.cluster
        price = cluster.spot_dollars_per_hour if spot else cluster.dollars_per_hour
        return None if price is None else price * self.machines_paid

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is legal but worth knowing."""
        facts = self.workload.facts
        notes = [
            note for note in (*self.workload.notes, *self.cluster.warnings) if note not in facts
        ]
        notes += precision_notes(self.workload.precision, self.cluster)
        plan = self.plan
        if plan.partitions > 1:
            notes.append(
                "all layers that can be cut are cut (recommend --provision cuts those that gain),"
                " and times of divided layers were checked on small hosts alone"
            )
        if SYNC.index(plan.sync) in SERVER_SYNCS:
            if not plan.parameter_servers:
                notes.append("parameter_servers is not given: one server is assumed")
        elif plan.parameter_servers or plan.servers_with_workers or plan.gradient_bits:
            notes.append(
                f"sync={plan.sync} has no servers: what the plan says of them does nothing"
            )
        if not float(plan.micro_batches).is_integer():
            notes.append(
                f"global batch {plan.global_batch} is not a multiple of micro_batch x dp ="
                f" {plan.micro_batch * plan.dp}; the accumulation is counted as"
                f" {plan.micro_batches:.4g} micro-batches"
            )
        notes += self._elsewhere
        if plan.sequence_parallel and plan.tp == 1:
            notes.append("sequence_parallel does nothing with tp=1")
        seq_len = self.workload.seq_len
        if plan.sequence_parallel and plan.tp > 1 and seq_len % plan.tp:
            notes.append(f"sequences of {seq_len} tokens do not divide over tp={plan.tp}")
        if plan.vpp > 1 and plan.micro_batches % plan.pp:
            notes.append(
                f"interleaved stages want micro-batches in multiples of pp={plan.pp}, and there"
                f" are {plan.micro_batches:.4g}"
            )
        layers = self.workload.shape.layers
        if plan.pp > 1 and layers % (plan.pp * plan.vpp):
            notes.append(
                f"{layers} layers do not divide evenly into {plan.pp * plan.vpp} stages; the"
                " largest stage sets the pace"
            )
        return tuple(notes)


# GPUs with kernels for weights in 4 bits: bitsandbytes 0.50.2, README, "Accelerator support". NVIDIA's have
# compute capability 6.0 from Pascal on; AMD's are all that the catalogue has (MI100 and newer).
_QUANTIZED_MAKERS, _BEFORE_PASCAL = ("nvidia", "amd", "intel"), ("fermi", "kepler", "maxwell")


def runs_quantized(workload: Workload, cluster: Cluster) -> bool:
    """Return whether the devices have kernels for weights in 4 bits, where the workload has any."""
    device = cluster.device
    able = device.kind == "gpu" and device.vendor.lower() in _QUANTIZED_MAKERS
    return not workload.graph.quantized or (able and device.generation not in _BEFORE_PASCAL)


def refuse_quantized(workload: Workload, cluster: Cluster) -> None:
    """Raise RequestError where devices lack the kernels for a workload's weights in 4 bits."""
    if not runs_quantized(workload, cluster):
        device = cluster.device
        of = f"generation {device.generation} of {device.vendor}"
        raise RequestError(
            f"{workload.name} with weights in 4 bits on {cluster.name}",
            f"{device.id} is {of if device.kind == 'gpu' else f'no GPU but of kind {device.kind}'}; their kernels"
            " (bitsandbytes) run on NVIDIA's GPUs of compute capability 6.0 (Pascal) or newer, AMD's and Intel's",
            "choose such a GPU, or --task lora, whose frozen weights stay in 16 bits",
        )


def precision_notes(precision: str, cluster: Cluster) -> list[str]:
    """Return what the devices make of a precision, where it is not what one would expect."""
    device = cluster.device
    used = device.computed_as(precision)
    if used != precision:
        return [
            f"{device.id} states no {precision} rate: it is counted at its {used} rate, so that"
            f" {precision} gains nothing"
        ]
    half = device.peak_flops.get("fp16", 0.0)
    if precision == "bf16" and device.peak_flops["bf16"] < 0.5 * half:
        return [f"{device.id} has no fast bf16 arithmetic; fp16 would be faster"]
    return []


def limits_of(workload: Workload, cluster: Cluster) -> Divisors:
    """Return what a plan of this workload on this cluster must divide."""
    shape = workload.shape
    return Divisors(
        layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, experts=shape.experts,
        seq_len=workload.seq_len, devices=cluster.devices, nodes=cluster.nodes,
        params=workload.params,
    )  # fmt: skip


def job_problem(workload: Workload, cluster: Cluster, plan: Plan) -> str | None:
    """Return why the plan is not legal (`found; what to do`), or None where it is."""
    code = int(plan_problems(PlanColumns.of([plan]), limits_of(workload, cluster))[0])
    return None if code == OK else problem_text(code, workload, cluster, plan)


def problem_text(code: int, workload: Workload, cluster: Cluster, plan: Plan) -> str:
    """Return the words for a broken rule, with the numbers of this job."""
    return PROBLEMS[code].format(
        workload=workload, cluster=cluster, plan=plan, samples=plan.micro_batch * plan.dp,
        chunks=plan.pp * plan.vpp, cp2=2 * plan.cp, dpcp=plan.dp * plan.cp * plan.tp,
        params=f"{workload.params:.0f}",
    )  # fmt: skip


STATUSES = ("ok", "oom", "failed", "timeout")


@dataclass(frozen=True)
class Run:
    """A fact; a field that was not measured is None. status: one of `STATUSES`; timeout: lower bounds."""

    job: Job
    status: str = "ok"
    step_seconds: float | None = None
    sync_seconds: float | None = None
    epoch_seconds: float | None = None
    time_to_train_seconds: float | None = None
    samples_per_second: float | None = None
    peak_bytes: float | None = None
    samples_to_target: float | None = None
    origin: str = ""
