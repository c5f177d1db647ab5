"""The constants of the analytic predictor and of frameworks; what most of them are, `families` says.

Priors are round numbers from data sheets and papers; docs/accuracy.md says which met public runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from forerun import packaged
from forerun.catalog.frameworks import framework_of
from forerun.domain.workload import Workload


@dataclass(frozen=True)
class Framework:
    """How a training framework spends time and memory beside the device's own work and tensors."""

    host_seconds: float = 16e-6
    gap_seconds: float = 0.0
    step_seconds: float = 5e-3
    # Passes over each filter at every call of a convolution, beside the kernel's own: filters
    # stored height first (HWIO) are reordered for the library at half the bandwidth.
    filter_passes: float = 0.0
    fusion: float = 0.9
    compute: float = 1.0
    bandwidth: float = 1.0
    # PyTorch's checkpoints stop before a layer's last product, a third of a transformer's.
    recompute: float = 1.0
    # An unfused cross entropy in fp32 (cast, maximum, difference, exponential, sum, quotient;
    # product and cast backward) moves 52 bytes a logit, 3.2 times the two passes in 16 bits.
    loss_traffic: float = 1.0
    # Autocast runs norms in fp32: casts, two readings and a write move 20 bytes where 16 bits need 4.
    norm_traffic: float = 1.0
    tensor_pipeline_seconds: float = 0.0
    # Share of tensor traffic that may hide: backward's behind gradients of weights (Korthikanti et al.
    # 2022, 6.2), forward's behind products cut into chunks (Transformer Engine's user buffers).
    backward_overlap: float = 0.0
    forward_overlap: float = 0.0
    # 1 where fused attention is written for the device's own generation (cuDNN's), not for Ampere.
    own_attention: float = 0.0
    # ZeRO-3: power of the norm joining compute and traffic, collectives that gather one layer, and
    # times it is gathered with full recomputation; 1 where each fabric of many nodes shards by itself.
    shard_power: float = 1.5
    shard_messages: float = 1.0
    shard_gathers: float = 2.0
    fabric_shards: float = 0.0
    # Share of pipeline transfers that is cut over the tensor ranks; of 1F1B's bubble that the schedule
    # leaves; of experts' all-to-alls exposed elsewhere.
    scatter_gather: float = 1.0
    bubble_share: float = 1.0
    expert_share: float = 1.0
    # 1 where each local expert's product, and its cast to 8 bits, is a kernel of its own (Transformer
    # Engine's grouped layers, launched from C++: no time of the host's).
    expert_kernels: float = 0.0
    # `bare_shards`: the least of it under ZeRO-1 and 2. Buckets hold at least `bucket_bytes`, and
    # at least `rank_bucket_bytes` (ZeRO-1 and 2: `rank_shard_bytes`) for each replica, so that
    # latency does not bind. `gather_share`: of gathering updated parameters, over `gather_exposed`.
    bare_gradients: float = 0.05
    bare_shards: float = 0.0
    bucket_bytes: float = 25e6
    rank_bucket_bytes: float = 0.0
    rank_shard_bytes: float = 0.0
    gather_share: float = 1.0
    # Of transfers to and from parameter servers that go tensor by tensor, as gradients are made.
    push_overlap: float = 0.0
    # 1 where layers and head are dealt to stages by their weights, not evenly.
    counts_head: float = 0.0
    # Bytes of a transformer's 16-bit gradient, kept and reduced; 0: fp16 reduces the same.
    grad_bytes: float = 4.0
    half_grad_bytes: float = 0.0
    # Memory: 1 where ZeRO-3's shards are the fp32 masters (FSDP), 0 where 16-bit weights stand
    # beside them; 1 where a gate's activation and its product are two operations.
    wide_weights: float = 0.0
    unfused: float = 0.5
    states_share: float = 1.0
    bucket_copies: float = 0.0
    kept_share: float = 1.0
    chosen_share: float = 1.0
    logits_share: float = 1.0
    # Of layers with sequence parallelism; `inputs_ahead` where no pipeline makes the host wait.
    whole_inputs: float = 2.0
    inputs_ahead: float = 0.0
    workspace_bytes: float = 0.3e9
    context_bytes: float = 1.5e9
    # Data sheets say GB where cards hold GiB; firmware takes most of the 7 % back.
    usable_share: float = 1.02
    # Log standard deviations of a peak, and of a peak against what a device can hold.
    sigma_memory: float = 0.16
    sigma_fits: float = 0.16


# The rows of priors.csv: value by name, by table; profiles of frameworks are tables of their own.
PRIORS: dict[str, dict[str, float]] = {}
for _row in packaged.table(__file__, "priors.csv"):
    PRIORS.setdefault(_row["table"], {})[_row["name"]] = float(_row["value"])
FRAMEWORKS: Mapping[str, Framework] = {
    table.removeprefix("framework."): Framework(**values)
    for table, values in PRIORS.items()
    if table.startswith("framework.")
}
# Which frameworks spend host and device time alike: a new one borrows from its kind.
FRAMEWORK_KINDS: Mapping[str, str] = {
    "pytorch": "eager", "megatron": "eager", "deepspeed": "eager", "nanotron": "eager",
    "composer": "eager", "nemo": "fused", "dualpipe": "fused", "tuned": "fused", "torchtitan": "fused",
    "tensorflow": "graph", "mxnet": "graph", "oneflow": "graph", "jax": "graph",
}  # fmt: skip


@lru_cache(maxsize=4096)
def framework_key(label: str) -> str:
    """Return the profile name that a framework label belongs to, "" where none does."""
    found = framework_of(label)
    return found.profile if found else ""


def framework_name(label: str) -> str:
    """Return the profile's name where there is one, else the label: what runs are counted under."""
    return framework_key(label) or label.strip().lower()


def scale_key(workload: Workload) -> str:
    """Return the name of a workload in `workload_scale`: two frameworks' versions are two."""
    key = framework_key(workload.framework)
    return f"{workload.name} on {key}" if key else workload.name


GENERATION_LATENCY = {"kepler": 4.0, "maxwell": 2.0, "pascal": 1.3}
# So many runs halve what is not known of a device, a framework, a link or a workload; of a place.
HALF_KNOWN, HALF_KNOWN_PLACE = 1.5, 0.5


def _table(values: Mapping[str, Any]) -> Any:
    return field(default_factory=lambda: dict(values))


@dataclass(frozen=True)
class Constants:
    """All constants; times in seconds, sizes in bytes, shares without unit; see `families`."""

    tensor_efficiency: Mapping[str, float] = _table(PRIORS["tensor_efficiency"])
    vector_efficiency: Mapping[str, float] = _table(PRIORS["vector_efficiency"])
    double_efficiency: Mapping[str, float] = _table(PRIORS["double_efficiency"])
    narrow_efficiency: Mapping[str, float] = _table(PRIORS["narrow_efficiency"])
    bandwidth_efficiency: Mapping[str, float] = _table(PRIORS["bandwidth_efficiency"])
    generation_factor: Mapping[str, float] = _table(PRIORS["generation_factor"])
    generation_latency: Mapping[str, float] = _table(GENERATION_LATENCY)
    # Kepler needs pairs of independent instructions to fill its units, which libraries seldom find.
    vector_share: Mapping[str, float] = _table({"kepler": 0.55, "maxwell": 0.9})
    precision_factor: Mapping[str, float] = _table({"fp8": 0.9, "fp4": 0.5, "tf32": 0.85})
    link_efficiency: Mapping[str, float] = _table(PRIORS["link_efficiency"])
    link_latency: Mapping[str, float] = _table(PRIORS["link_latency"])
    # What the TCP streams of a node carry, however wide its Ethernet: clouds hold one to 5 or 10 Gb/s,
    # several reach 32 of 100 Gb/s (Zhang et al. 2020, arXiv 2006.10103).
    tcp_bytes_per_second: float = 1.25e9
    # In the ring of a tensor group that spans nodes (7 ms a layer with 15 hops, 14.5 with 31).
    tensor_hop_seconds: float = 50e-6
    # Kernels of one generation feed the next one's units less well (Shah et al. 2024,
    # FlashAttention-3: version 2 reaches 35 % of an H100's rate, and far more of an A100's).
    attention_factor: Mapping[str, float] = _table({"hopper": 0.75, "blackwell": 0.75})
    frameworks: Mapping[str, Framework] = _table(FRAMEWORKS)
    device_compute: Mapping[str, float] = _table({})
    device_bandwidth: Mapping[str, float] = _table({})
    device_host: Mapping[str, float] = _table({})
    workload_scale: Mapping[str, float] = _table({})
    shape_scale: Mapping[str, float] = _table({})
    # Of all steps in a setting (label `cluster`), where runs of several were fitted.
    setting_scale: Mapping[str, float] = _table({})
    # Ranks that meet in every layer wait for the slowest host.
    tensor_jitter: float = 0.05
    launch_seconds: float = 4e-6
    # Where the device is a CPU; and a framework's step time and context there over those on a GPU.
    cpu_launch_seconds: float = 1e-6
    cpu_overhead_share: float = 0.3
    roofline_power: float = 3.0
    pointwise_flops: float = 9.0
    double_share: float = 0.08
    narrow_bandwidth_share: float = 0.45
    # On vector units Winograd's algorithm spares 5/9 to 3/4 of the products of 3 x 3 and 5 x 5 at
    # stride 1 (Lavin and Gray 2015); their filters of 3 x 3 numbers become 4 x 4 or 6 x 6, which
    # are written and read again (3.6 or 8 passes).
    direct_share: float = 0.33
    winograd_passes: float = 4.0
    # Channels of a group over 16, up to 64.
    group_width_power: float = 0.5
    channels_last_share: float = 0.75
    channels_last_grouped: float = 0.6
    # Length at which a weight gradient's reduction is split.
    split_reduction: float = 512.0
    # Sustained over boost clock of GPUs of fewer watts whose boost clock is not known.
    low_power_share: float = 0.9
    low_power_watts: float = 100.0
    tile: float = 32.0
    # Of vector units over it: tiles are as large, and take longer.
    wave_flops_per_element: float = 7e8
    vector_wave_share: float = 0.2
    layer_power: float = 8.0
    overlap_power: float = 2.5
    gather_exposed: float = 0.95
    context_exposed: float = 0.5
    point_to_point_exposed: float = 0.6
    expert_exposed: float = 0.6
    expert_imbalance: float = 1.2
    group_buffer_bytes: float = 0.2e9
    straggler_share: float = 0.01
    dataparallel_contention: float = 0.08
    replicate_share: float = 1.0
    pageable_bytes_per_second: float = 3e9
    # What one process of parameter servers moves in memory; what its link loses where many send at
    # once (Phanishayee et al. 2008: TCP's incast); what pulls that end one after another spare; how
    # irregular its times and those of workers are.
    server_bytes_per_second: float = 8e9
    incast_share: float = 0.2
    # Of host time: what a message to or from a parameter server takes, over an operation's.
    message_calls: float = 10.0
    stagger_share: float = 0.45
    server_variability: float = 0.25
    worker_spread: float = 0.03
    usable_host: float = 0.95
    # Share of activations lost to the allocator.
    fragmentation: float = 0.05
    # Host time to read and decode input, one core.
    decode_seconds_per_byte: float = 2e-8
    # Log standard deviations by cause, see `uncertainty.exposures`.
    sigma_residual: float = 0.10
    sigma_setting: float = 0.08
    sigma_workload: float = 0.08
    sigma_device: float = 0.12
    sigma_framework: float = 0.15
    sigma_convolution: float = 0.12
    sigma_convolution_setting: float = 0.20
    sigma_convolution_workload: float = 0.20
    sigma_convolution_device: float = 0.15
    sigma_convolution_framework: float = 0.20
    sigma_network: float = 0.50
    sigma_host: float = 0.45
    sigma_pipeline: float = 0.35
    sigma_servers: float = 0.40
    sigma_unverified: float = 0.10
    sigma_unnamed: float = 0.12
    sigma_totals: float = 0.45
    sigma_scale: float = 0.05
    sigma_width: float = 0.18
    sigma_precision: float = 0.24
    sigma_memory_pipeline: float = 0.05
    sigma_memory_scale: float = 0.03
    # Share of the residual's variance that each plan has alone, see `uncertainty.step_causes`.
    plan_share: float = 0.5
    # How far the 5 % and 95 % quantiles lie in units of a normal distribution's.
    tail_low: float = 1.0
    tail_high: float = 1.0
    # Posterior log standard deviations of fitted constants by name: the next fit starts from them.
    settled: Mapping[str, float] = _table({})
    # Runs of a `workload:`, `device:`, `framework:`, `precision:`, `link:` or `setting:`, and the most
    # `devices`, `hidden` and `1/hidden` that one had; empty where nothing was measured.
    run_counts: Mapping[str, float] = _table({})

    def framework(self, label: str) -> Framework:
        """Return the profile for a framework's label; the general one where it is not known."""
        return self.frameworks[framework_key(label)]

    def knows_framework(self, label: str) -> bool:
        """Return whether a label has a profile, or runs that bear it were fitted."""
        return bool(framework_key(label)) or f"framework:{framework_name(label)}" in self.run_counts

    def evidence(self, kind: str, name: str) -> float:
        """Return how much runs say of something: 0 nothing, towards 1."""
        runs = self.run_counts.get(f"{kind}:{name}", 0.0)
        return runs / (runs + (HALF_KNOWN_PLACE if kind == "setting" else HALF_KNOWN))


NEW_GENERATION = 0.85
MEASURED = "measured"  # the kind of a link that a probe measured: what software reached


def link_key(kind: str) -> str:
    """Return the kind of link whose constants a link takes: RDMA over Ethernet has those of InfiniBand."""
    return "infiniband" if kind == "roce" else kind


def constant_of(family: str, known: Mapping[str, float], key: str) -> float:
    """Return the constant of a key of a table of `Constants`; what it lacks is as its like, or 1."""
    if key in known:
        return known[key]
    if family in ("link_efficiency", "link_latency"):
        return 1.0 if key == MEASURED else known["unknown"]
    if family == "generation_factor":
        return next((v for k, v in known.items() if key.startswith(k)), NEW_GENERATION)
    return 1.0
