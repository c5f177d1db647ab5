"""The physical constants of the analytic predictor, with their units and where they come from.

Every value here is a *prior*, a round number that no program fitted. Most are read from data
sheets and papers. Some were read off simple models of public runs or set after a look at them, so
a forecast of these tables is not blind:

* vtrain, ultrascale: host time of Megatron and nanotron;
  ultrascale, torchtitan, llm_foundry: what these frameworks hold in memory, and how full a device can be;
* timm, pytorch_gpu_benchmark, profet: shares of peak and bandwidth of convolutions, host time of
  PyTorch and TensorFlow, the width of the bands of convolutional nets;
  pytorch_gpu_benchmark: that its boards do not keep their stated clocks (the clocks themselves are
  data sheets' and one round pair a generation), and that samples are copied while devices wait;
  tf_benchmarks, profet: that 5 x 5 convolutions are Winograd's too, and direct_share;
  profet: that filters move more than once, that vector units fill slowly, and on which images and
  maps Winograd's algorithm is not worth it;
* llm_foundry: that PyTorch's checkpoints stop early, that composer's loss is fused, and what
  fused attention reaches on Hopper; vtrain: waits of tensor ranks; narayanan2021, mtnlg: how
  DeepSpeed gathers parameters and that its pipelines send whole activations; dlperf_gpt:
  OneFlow's 16-bit gradients; nvidia_nemo: that experts are learned; and for all of these how
  closely the constants of links are known;
* mlperf: MXNet's fusions, the time to decode input, the profile of what vendors tune, that BERT is
  timed without padding and GPT-3 in 8 bits, interleaved and sharded, Megatron-Core's buckets;
  pollux, sia: what Ethernet carries and the width of network bands; gavel, profet, tf_benchmarks: what Kepler reaches of its vector rate.

Profiles of nemo, torchtitan, composer, jax and oneflow, low_power_share and the efficiencies of
matrix products by generation are judgement, unverified. Calibration replaces what runs identify.
Beside this file and `families`, `step`, `calibration.parameters` and the shares of `uncertainty`
hold figures of this kind.

Frameworks: how each spends time and memory, priors by the names that labels carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from forerun.domain.graph import KINDS, OpKind
from forerun.domain.workload import Workload


@dataclass(frozen=True)
class Framework:
    """How a training framework spends time and memory beside the device's own work and tensors.

    Times in seconds, sizes in bytes; shares and factors over what types or operations need.
    """

    # Host work for each kernel it launches (Python and dispatch); what a new device idles at each
    # beside `launch_seconds`, where executors schedule operation by operation; of a step.
    host_seconds: float = 16e-6
    gap_seconds: float = 0.0
    step_seconds: float = 5e-3
    # Passes over each filter at every call of a convolution, beside the kernel's own: two slow ones
    # (at half the bandwidth, so four) where filters are stored height first (HWIO) and reordered
    # for the library (TensorFlow).
    filter_passes: float = 0.0
    # Of a gradient as it is reduced and kept, for 16-bit transformers.
    grad_bytes: float = 4.0
    # Share of element-wise traffic that remains after its own fusions.
    fusion: float = 0.9
    # Device memory that its runtime takes beside the allocator.
    context_bytes: float = 1.5e9
    # Rates over those of the device's constants.
    compute: float = 1.0
    bandwidth: float = 1.0
    # Weights, gradients and optimizer states.
    states_share: float = 1.0
    # 1 where shards of ZeRO-3 are the fp32 masters (FSDP), 0 where 16-bit weights stand beside them.
    wide_weights: float = 0.0
    # Copies of all gradients, in buckets for their reduction, below ZeRO-2.
    bucket_copies: float = 0.0
    # 1 where a gate's activation and its product are two operations, each with its kept inputs.
    unfused: float = 0.5
    # Activations kept for backward, of transformers; of what selective recomputation keeps.
    kept_share: float = 1.0
    chosen_share: float = 1.0
    # Logits and their gradients.
    logits_share: float = 1.0
    # Inputs of layers that sequence parallelism gathers, held at once; more of them where no
    # pipeline makes the host wait for its device.
    whole_inputs: float = 2.0
    inputs_ahead: float = 0.0
    # Of matrix libraries, inside the allocator.
    workspace_bytes: float = 0.3e9
    # Of the stated memory of a GPU, what can be filled before allocation fails.
    usable_share: float = 1.02
    # Log standard deviations of a peak, and of a peak against what a device can hold.
    sigma_memory: float = 0.16
    sigma_fits: float = 0.16
    # Of a gradient as it is reduced in fp16 training, 0 where as in bf16.
    half_grad_bytes: float = 0.0
    # Share of a layer's forward that full recomputation does again. PyTorch's checkpoints stop once
    # all that backward needs is there, before a layer's last product, a third of a transformer's.
    recompute: float = 1.0
    # p of the norm joining a step and its ZeRO-3 traffic (1 where nothing hides); collectives that
    # gather a layer's parameters, and times that they are gathered with full recomputation.
    shard_power: float = 1.5
    shard_messages: float = 1.0
    shard_gathers: float = 2.0
    # Share of pipeline transfers that is cut over the tensor ranks.
    scatter_gather: float = 1.0
    # Bytes moved by the loss over those of one pass over 16-bit logits forward and one backward. An
    # unfused cross entropy in fp32 (cast, maximum, difference, exponential, sum, quotient; product
    # and cast backward) moves 52 bytes a logit, which is 3.2.
    loss_traffic: float = 1.0
    # Share of the gradient traffic that nothing hides: the last bucket; the least of ZeRO-1 and 2
    # (1: shards are scattered at once when the last micro-batch is over).
    bare_gradients: float = 0.05
    bare_shards: float = 0.0
    # Of gradients in one collective, at least; more for each replica, so that latency, which grows
    # with their ring, does not bind (Megatron-Core: a million parameters a replica, no fewer than 40
    # million); the least of ZeRO-1 and 2 a replica.
    bucket_bytes: float = 25e6
    rank_bucket_bytes: float = 0.0
    rank_shard_bytes: float = 0.0
    # Of the gathering of updated parameters that forward does not hide, over `gather_exposed`.
    gather_share: float = 1.0
    # 1 where layers and head are dealt to stages by their weights, 0 where layers are dealt evenly.
    counts_head: float = 0.0
    # Of host time a layer, micro-batch and tensor rank where tensor groups and pipelines meet over
    # several nodes.
    tensor_pipeline_seconds: float = 0.0


# PyTorch spends 32 us of CPU time for an operation's forward and backward kernels together, and
# about 7 ms a step; TensorFlow 2.5 35-120 us an operation; compiled graphs launch from the device.
# Megatron and nanotron were found to spend about 3.2 ms of host time a transformer layer, forward
# and backward, which is some 100 us for each of the 30 kernels that a layer's graph states.
# Memory. Without fusions a gated layer keeps the gate's activation too, and rotated queries and
# keys beside the unrotated. Eager losses make fp32 logits, their log-softmax and both gradients,
# 12-14 bytes a logit where 8 are counted, compiled ones 10, fused ones that write gradients over
# the logits 4-6. DistributedDataParallel keeps gradients and buckets of them; nanotron 16-bit
# buckets beside fp32 accumulators, and many communicators beside the allocator. torchtitan's
# selective recomputation does every second product again: 6.75 h of 9.5 h elements are kept.
# Data sheets say GB where cards hold GiB, 7 % more; firmware and the allocator's last blocks
# take most of it back.
FRAMEWORKS: Mapping[str, Framework] = {
    "": Framework(host_seconds=12e-6),
    "pytorch": Framework(host_seconds=30e-6, step_seconds=5e-3, fusion=1.0, wide_weights=1.0,
                         bucket_copies=1.0, unfused=1.0, kept_share=1.1, logits_share=1.5),
    "megatron": Framework(host_seconds=100e-6, fusion=0.8, context_bytes=2.5e9, unfused=0.0,
                          half_grad_bytes=2.0),
    # Each of a layer's 12 tensors is gathered apart, when a module asks for it, and again when
    # recomputation has let it go; pipelines send whole activations from every tensor rank.
    "deepspeed": Framework(host_seconds=100e-6, fusion=0.8, context_bytes=2.5e9, unfused=0.0,
                           half_grad_bytes=2.0, shard_power=1.0, shard_messages=12.0,
                           shard_gathers=3.0, scatter_gather=0.0),
    "nemo": Framework(host_seconds=8e-6, fusion=0.7, context_bytes=2.5e9, unfused=0.0,
                      bucket_bytes=80e6, rank_bucket_bytes=2e6, gather_share=0.2),
    "nanotron": Framework(host_seconds=130e-6, step_seconds=40e-3, fusion=2.2, loss_traffic=3.2,
                          context_bytes=5e9, bucket_copies=0.5, unfused=1.0, kept_share=1.1, inputs_ahead=40.0,
                          tensor_pipeline_seconds=2e-3, counts_head=1.0, bare_shards=1.0, rank_shard_bytes=2e6),
    "torchtitan": Framework(host_seconds=6e-6, fusion=0.6, context_bytes=2e9, wide_weights=1.0,
                            unfused=0.0, chosen_share=0.7, logits_share=1.25, recompute=0.75),
    # Its fused loss moves 6 bytes a logit where 16 are counted, and its metrics read them again.
    "composer": Framework(host_seconds=14e-6, grad_bytes=2.0, context_bytes=2e9, wide_weights=1.0,
                          unfused=1.0, logits_share=0.6, recompute=0.75, loss_traffic=0.5),
    "tensorflow": Framework(host_seconds=30e-6, gap_seconds=20e-6, step_seconds=1e-3,
                              filter_passes=4.0),
    "jax": Framework(host_seconds=2e-6, step_seconds=2e-3, fusion=0.6, wide_weights=1.0,
                     unfused=0.0),
    "mxnet": Framework(host_seconds=8e-6, step_seconds=3e-3, fusion=0.55),
    # Any of these as vendors tune it: convolutions in nhwc with their normalisation fused in, CUDA
    # graphs launched whole, input decoded on the device.
    "tuned": Framework(host_seconds=3e-6, step_seconds=0.2e-3, fusion=0.55, compute=1.15,
                       half_grad_bytes=2.0, unfused=0.0, bucket_bytes=80e6,
                       rank_bucket_bytes=2e6, gather_share=0.2),
    "oneflow": Framework(host_seconds=6e-6, step_seconds=3e-3, fusion=0.8, half_grad_bytes=2.0),
}  # fmt: skip
# Which frameworks spend host and device time alike: a new one borrows from its kind.
FRAMEWORK_KINDS: Mapping[str, str] = {
    "pytorch": "eager", "megatron": "eager", "deepspeed": "eager", "nanotron": "eager",
    "composer": "eager", "nemo": "fused", "tuned": "fused", "torchtitan": "fused", "tensorflow": "graph",
    "mxnet": "graph", "oneflow": "graph", "jax": "graph",
}  # fmt: skip
# How labels in the wild name them; the first that is contained in the label wins.
_FRAMEWORK_WORDS: tuple[tuple[str, str], ...] = (
    ("tuned", "tuned"), ("megatron-bridge", "nemo"), ("nemo", "nemo"), ("deepspeed", "deepspeed"),
    ("megatron", "megatron"),
    ("nanotron", "nanotron"), ("torchtitan", "torchtitan"), ("composer", "composer"),
    ("llm-foundry", "composer"), ("libai", "oneflow"), ("oneflow", "oneflow"),
    ("mxnet", "mxnet"), ("maxtext", "jax"), ("jax", "jax"), ("tensorflow", "tensorflow"),
    ("pytorch", "pytorch"), ("torch", "pytorch"), ("adaptdl", "pytorch"), ("paddle", "mxnet"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def framework_key(label: str) -> str:
    """Return the profile name that a framework label belongs to, "" where none does."""
    lowered = label.lower()
    return next((key for word, key in _FRAMEWORK_WORDS if word in lowered), "")


def framework_name(label: str) -> str:
    """Return the profile's name where there is one, else the label: what runs are counted under."""
    return framework_key(label) or label.strip().lower()


def scale_key(workload: Workload) -> str:
    """Return the name of a workload in `workload_scale`: two frameworks' versions are two."""
    key = framework_key(workload.framework)
    return f"{workload.name} on {key}" if key else workload.name


# Share of the peak rate that a large operation of a class reaches, on a 16-bit matrix unit.
# Matrix products: vendor libraries reach 0.6-0.8 of a data sheet's rate. Convolutions: the
# measured shares of consumer and data-centre cards (.43 dense, .16 pointwise, .42 grouped).
TENSOR_EFFICIENCY: Mapping[str, float] = {
    OpKind.MATMUL: 0.68, OpKind.CONV: 0.50, OpKind.CONV_1X1: 0.50, OpKind.CONV_GROUPED: 0.20,
    OpKind.CONV_DEPTHWISE: 0.05, OpKind.ATTENTION: 0.42, OpKind.RECURRENT: 0.35,
}  # fmt: skip
# The same on a vector unit (fp32, fp64): Winograd lets a 3x3 convolution pass its nominal peak.
VECTOR_EFFICIENCY: Mapping[str, float] = {
    OpKind.MATMUL: 0.80, OpKind.CONV: 1.50, OpKind.CONV_1X1: 0.65, OpKind.CONV_GROUPED: 0.40,
    OpKind.CONV_DEPTHWISE: 0.25, OpKind.ATTENTION: 0.60, OpKind.RECURRENT: 0.50,
}  # fmt: skip
# The same in fp64, of the fp64 rate: no Winograd, and scalar work in its shadow.
DOUBLE_EFFICIENCY: Mapping[str, float] = {
    OpKind.MATMUL: 0.80, OpKind.CONV: 0.85, OpKind.CONV_1X1: 0.75, OpKind.CONV_GROUPED: 0.50,
    OpKind.CONV_DEPTHWISE: 0.35, OpKind.ATTENTION: 0.60, OpKind.RECURRENT: 0.50,
}  # fmt: skip
# Numbers of 16 bits on a device without a matrix unit for them, of the fp32 rate that computes.
NARROW_EFFICIENCY: Mapping[str, float] = {
    OpKind.MATMUL: 0.60, OpKind.CONV: 1.30, OpKind.CONV_1X1: 0.70, OpKind.CONV_GROUPED: 0.30,
    OpKind.CONV_DEPTHWISE: 0.05, OpKind.ATTENTION: 0.45, OpKind.RECURRENT: 0.40,
}  # fmt: skip
# Share of the memory bandwidth that a class reaches when bytes bind it.
BANDWIDTH_EFFICIENCY: Mapping[str, float] = {
    OpKind.MATMUL: 0.75, OpKind.CONV: 0.50, OpKind.CONV_1X1: 0.70, OpKind.CONV_GROUPED: 0.20,
    OpKind.CONV_DEPTHWISE: 0.20, OpKind.ATTENTION: 0.70, OpKind.RECURRENT: 0.60,
    OpKind.NORM: 0.60, OpKind.BATCH_NORM: 0.52, OpKind.ELEMENTWISE: 0.72, OpKind.SOFTMAX: 0.65,
    OpKind.POOL: 0.80, OpKind.REDUCE: 0.60, OpKind.EMBEDDING: 0.40, OpKind.COPY: 0.70,
    OpKind.OPTIMIZER: 0.75, OpKind.UNKNOWN: 0.40,
}  # fmt: skip
# Matrix-unit share of one generation over the next: newer units are harder to feed, and power
# limits bind (H100 and later run below their stated clock in long products).
GENERATION_FACTOR: Mapping[str, float] = {
    "volta": 0.95, "turing": 0.75, "ampere": 1.05, "ada": 0.95, "hopper": 0.88,
    "blackwell": 0.85, "cdna": 0.65, "cdna1": 0.6, "cdna2": 0.65, "cdna3": 0.62, "cdna4": 0.62,
    "gaudi": 0.85, "gaudi2": 0.85, "gaudi3": 0.8, "pascal": 1.0, "maxwell": 0.9, "kepler": 0.6,
}  # fmt: skip
# Kepler needs pairs of independent instructions to fill its units, which libraries seldom find.
VECTOR_SHARE: Mapping[str, float] = {"kepler": 0.55, "maxwell": 0.9}
# Latency of one generation over the newest: of starting a kernel and of each step of a reduction.
GENERATION_LATENCY: Mapping[str, float] = {"kepler": 4.0, "maxwell": 2.0, "pascal": 1.3}
PRECISION_FACTOR: Mapping[str, float] = {"fp8": 0.72, "fp4": 0.5, "tf32": 0.85}
# Share of a link's nominal rate that a large collective reaches. Over plain Ethernet it is a few
# TCP streams: 0.3-0.6 GB/s of a nominal 6 were seen.
LINK_EFFICIENCY: Mapping[str, float] = {
    "nvlink": 0.75, "xgmi": 0.65, "ici": 0.75, "pcie": 0.50, "infiniband": 0.80, "roce": 0.75,
    "efa": 0.60, "ethernet": 0.12, "memory": 0.30, "unknown": 0.50,
}  # fmt: skip
# Latency of a hop of a collective over that of the bare link, by the link's kind: the protocol that
# moves large messages takes 3.4 us a hop over NVLink, 5.7 over PCIe and 14 over a network (NCCL,
# src/graph/tuning.cc, hwLat of the ring and the Simple protocol).
LINK_LATENCY_FACTOR: Mapping[str, float] = {
    "nvlink": 3.4, "xgmi": 2.3, "pcie": 2.8, "infiniband": 2.8, "roce": 2.8, "efa": 1.3,
    "ici": 2.0, "ethernet": 1.0, "memory": 1.0, "unknown": 2.8,
}  # fmt: skip
# Share of the 16-bit rate that fused attention reaches of one generation over Ampere, beside what
# matrix products lose: kernels of one generation feed the next one's units less well (Shah et al.
# 2024, FlashAttention-3: version 2 reaches 35 % of an H100's rate, and far more of an A100's).
ATTENTION_FACTOR: Mapping[str, float] = {"hopper": 0.75, "blackwell": 0.75}

# So many runs halve what is not known of a device, a framework, a link or a workload.
HALF_KNOWN = 1.5
# Of what is peculiar to a place, which moves all of its runs alike, a run says more.
HALF_KNOWN_PLACE = 0.5


def _table(values: Mapping[str, Any]) -> Any:
    """Return a field that is a table: a copy for each `Constants`."""
    return field(default_factory=lambda: dict(values))


@dataclass(frozen=True)
class Constants:
    """All constants; times in seconds, sizes in bytes, shares without unit."""

    tensor_efficiency: Mapping[str, float] = _table(TENSOR_EFFICIENCY)
    vector_efficiency: Mapping[str, float] = _table(VECTOR_EFFICIENCY)
    bandwidth_efficiency: Mapping[str, float] = _table(BANDWIDTH_EFFICIENCY)
    generation_factor: Mapping[str, float] = _table(GENERATION_FACTOR)
    double_efficiency: Mapping[str, float] = _table(DOUBLE_EFFICIENCY)
    narrow_efficiency: Mapping[str, float] = _table(NARROW_EFFICIENCY)
    generation_latency: Mapping[str, float] = _table(GENERATION_LATENCY)
    vector_share: Mapping[str, float] = _table(VECTOR_SHARE)
    precision_factor: Mapping[str, float] = _table(PRECISION_FACTOR)
    link_efficiency: Mapping[str, float] = _table(LINK_EFFICIENCY)
    # Network wait of a hop in the ring of a tensor group that spans nodes (15 hops at tp 16, 31 at
    # tp 32: 7 and 14.5 ms a layer measured on ultrascale).
    tensor_hop_seconds: float = 50e-6
    link_latency: Mapping[str, float] = _table(LINK_LATENCY_FACTOR)
    attention_factor: Mapping[str, float] = _table(ATTENTION_FACTOR)
    frameworks: Mapping[str, Framework] = _table(FRAMEWORKS)
    # Rates of single devices over those of their generation; host seconds a kernel of the machines
    # that they sit in over the usual.
    device_compute: Mapping[str, float] = _table({})
    device_bandwidth: Mapping[str, float] = _table({})
    device_host: Mapping[str, float] = _table({})
    # Device time of single workloads (see `scale_key`) over what their operations say; time of
    # layers as they are cut (see `layout.cut_shapes`) over what their parts say.
    workload_scale: Mapping[str, float] = _table({})
    shape_scale: Mapping[str, float] = _table({})
    # Host time of a layer gained with each further tensor rank: ranks that meet in every layer wait
    # for the slowest host.
    tensor_jitter: float = 0.05
    # Device time lost at each kernel (about 4 us with PyTorch); where the device is a CPU; and a
    # framework's step time and context there over those on a GPU.
    launch_seconds: float = 4e-6
    cpu_launch_seconds: float = 1e-6
    cpu_overhead_share: float = 0.3
    # p of the norm joining arithmetic and traffic of an operation; infinite: a roofline's maximum.
    roofline_power: float = 3.0
    # Scalar operations for each element that anything but a product moves; they count in fp64, where
    # many devices compute slowly.
    pointwise_flops: float = 9.0
    # fp64 products' limit as a share of the fp32 rate, by their instructions.
    double_share: float = 0.08
    # Bandwidth with 16-bit numbers on devices without a unit for them.
    narrow_bandwidth_share: float = 0.45
    # Efficiency of dense convolutions that are not 3 x 3 or 5 x 5 at stride 1, on vector units, over
    # those that are: Winograd's algorithm, which does not reach them, spares 5/9 to 3/4 of the
    # products (F(2x2, 3x3), F(4x4, 3x3); Lavin and Gray 2015). Bytes moved to bring a filter into
    # its form, over its own: of 3 x 3 numbers it makes 4 x 4 or 6 x 6, which are written and read
    # again (3.6 or 8).
    direct_share: float = 0.33
    winograd_passes: float = 4.0
    # Efficiency of a grouped convolution grows with the channels of a group (over 16, up to 64) to
    # this power.
    group_width_power: float = 0.5
    # Time of 16-bit convolutions in nhwc over nchw (.67-.87 measured); efficiency of grouped ones in
    # nhwc over that at 16 channels a group in nchw: wide groups lose there.
    channels_last_share: float = 0.75
    channels_last_grouped: float = 0.6
    # Length at which a weight gradient's reduction is split to fill a device.
    split_reduction: float = 512.0
    # Weight gradients and trained parameters of LoRA.
    lora_gradient_share: float = 0.02
    lora_trained_share: float = 0.01
    # Sustained over boost clock of boards of fewer watts whose clock `operations` does not know.
    low_power_share: float = 0.9
    low_power_watts: float = 100.0
    # Size of a matrix dimension at which a matrix unit is half filled.
    tile: float = 32.0
    # Peak rate per output element in flight (device fill); the same of vector units over it: tiles
    # are as large, and take longer (64 x 64 to 128 x 128 elements a multiprocessor of 100-200
    # GFLOP/s, with split reductions).
    wave_flops_per_element: float = 7e8
    vector_wave_share: float = 0.2
    # p of the norm joining device time and host floor (3.5-9 measured).
    layer_power: float = 8.0
    # p of the norm joining gradient traffic and the backward it hides behind.
    overlap_power: float = 2.5
    # Shares that nothing hides: of ZeRO-1's and 2's gathering of parameters, of the ring of keys and
    # values, of pipeline transfers, of the experts' all-to-alls.
    gather_exposed: float = 0.95
    context_exposed: float = 0.5
    point_to_point_exposed: float = 0.6
    expert_exposed: float = 0.6
    # Load of the fullest expert over the mean.
    expert_imbalance: float = 1.2
    # Of a communicator.
    group_buffer_bytes: float = 0.2e9
    # Step time lost for each doubling of nodes.
    straggler_share: float = 0.01
    # Of one process on several devices: time that these lose at each doubling of them; host time of
    # copying modules, scattering and gathering over that of a forward's launches; rate at which
    # samples are copied from memory that is not pinned (2-6 GB/s usual).
    dataparallel_contention: float = 0.08
    replicate_share: float = 1.0
    pageable_bytes_per_second: float = 3e9
    # p of the norm joining parameter servers and workers.
    server_power: float = 4.0
    # Share of a host's memory that a job on its CPU can fill.
    usable_host: float = 0.95
    # Share of activations lost to the allocator.
    fragmentation: float = 0.05
    # Host time to read and decode input, one core.
    decode_seconds_per_byte: float = 2e-8
    # Log standard deviations by cause, see `uncertainty.exposures`.
    sigma_residual: float = 0.10
    sigma_setting: float = 0.10
    sigma_workload: float = 0.08
    sigma_device: float = 0.14
    sigma_framework: float = 0.18
    sigma_convolution_workload: float = 0.26
    sigma_convolution_device: float = 0.18
    sigma_convolution_framework: float = 0.26
    sigma_network: float = 0.70
    sigma_host: float = 0.60
    sigma_pipeline: float = 0.35
    sigma_unverified: float = 0.10
    sigma_unnamed: float = 0.12
    sigma_totals: float = 0.45
    sigma_scale: float = 0.03
    sigma_memory_pipeline: float = 0.05
    sigma_memory_scale: float = 0.03
    # Share of the residual's variance that each plan has alone, see `uncertainty.step_causes`.
    plan_share: float = 0.5
    # How far the 5 % and 95 % quantiles lie in units of a normal distribution's.
    tail_low: float = 1.0
    tail_high: float = 1.0
    # Posterior log standard deviations of fitted constants, by the name of their parameter; the next
    # fit starts from them.
    settled: Mapping[str, float] = _table({})
    # How many runs there were of a `workload:`, `device:`, `framework:`, `link:` or `setting:`, and
    # the most `devices` that one used; empty where nothing was measured.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


# Of a generation that no table knows, nor one that its name begins with.
NEW_GENERATION = 0.85
# The kind of a link whose figures a probe measured.
MEASURED = "measured"


def constant_of(family: str, known: Mapping[str, float], key: str) -> float:
    """Return the constant of a key of a family (a field of `Constants` that is a table).

    A measured link's rate is what software reached. A link of an unknown kind is as `unknown` ones
    are; a generation as the one whose name its own begins with; anything else is 1, a multiplier
    that changes nothing.
    """
    if key in known:
        return known[key]
    if family in ("link_efficiency", "link_latency"):
        return 1.0 if key == MEASURED else known["unknown"]
    if family == "generation_factor":
        return next((v for k, v in known.items() if key.startswith(k)), NEW_GENERATION)
    return 1.0


def by_kind(values: Mapping[str, float], default: float) -> list[float]:
    """Return a value for each operation class, in the order of `KINDS`."""
    return [values.get(kind, default) for kind in KINDS]
