"""Frameworks: how each spends time and memory, priors by the names that labels carry.

See `constants` for where the figures come from and which tables they have seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from forerun.domain.workload import Workload


@dataclass(frozen=True)
class Framework:
    """How a training framework spends time and memory beside the device's own work and tensors.

    Attributes:
        host_seconds: of host work for each kernel it launches (Python and dispatch).
        gap_seconds: that a new device idles at each kernel beside `launch_seconds`, for want of the
            next one (executors that schedule operation by operation).
        step_seconds: fixed cost of a step.
        filter_passes: over each filter at every call of a convolution, beside the kernel's own: two
            slow ones (at half the bandwidth, so four) where the framework stores filters height
            first (HWIO) and reorders them for the library (TensorFlow).
        grad_bytes: bytes of a gradient as it is reduced and kept, for 16-bit transformers.
        fusion: share of element-wise traffic that remains after its own fusions.
        context_bytes: device memory that its runtime takes beside the allocator.
        compute, bandwidth: its rates over those of its device's constants.
        states_share: weights, gradients and optimizer states over what their types say.
        wide_weights: 1 where shards of ZeRO-3 are the fp32 masters (FSDP), 0 where 16-bit weights
            stand beside masters.
        bucket_copies: of all gradients, in buckets for their reduction, below ZeRO-2.
        unfused: 1 where a gate's activation and its product are two operations, each with its kept
            inputs.
        kept_share: activations kept for backward over what the graph's operations need;
            chosen_share: the same of what selective recomputation keeps (both of transformers).
        logits_share: of logits and their gradients over what their types say.
        whole_inputs: of layers that sequence parallelism gathers, held at once; inputs_ahead: more
            of them where no pipeline makes the host wait for its device.
        counts_head: 1 where layers are dealt to stages with the head counted as work, by parameters
            (nanotron's block costs), 0 where each stage gets the same number of layers.
        fills_pipeline: 1 where a schedule refuses fewer micro-batches than stages less one.
        workspace_bytes: of matrix libraries, inside the allocator.
        usable_share: of the stated memory of a GPU that can be filled before allocation fails.
        sigma_memory: log standard deviation of a peak; sigma_fits: of a peak against what a device
            can hold.
        half_grad_bytes: of a gradient as it is reduced in fp16 training, 0 where as in bf16.
        recompute: share of a layer's forward that full recomputation does again. PyTorch's
            checkpoints stop once all that backward needs is there, before a layer's last product,
            a third of a transformer's.
        shard_power: p of the norm joining a step and its ZeRO-3 traffic; 1 where nothing hides.
        shard_messages: collectives that gather a layer's parameters in ZeRO-3.
        shard_gathers: times that they are gathered in a step with full recomputation.
        scatter_gather: share of pipeline transfers that is cut over the tensor ranks.
        loss_traffic: bytes moved by the loss over those of one pass over 16-bit logits forward and
            one backward. An unfused cross entropy in fp32 (cast, maximum, difference, exponential,
            sum, quotient; product and cast backward) moves 52 bytes a logit, which is 3.2.
        accumulate_bytes: moved for each parameter of a device in every micro-batch to add its
            gradient to a buffer of its own: 2 + 4 read and 4 written with fp32 buffers.
        bare_gradients: share of the gradient traffic that nothing hides: the last bucket, or nearly
            all where hooks gather gradients in buffers of their own before they are reduced.
        bare_shards: the least of it in ZeRO-1 and 2, whose gradients some frameworks scatter in one
            go after the last micro-batch, where nothing is left to hide them.
        stall_seconds: lost in each exchange between stages by a run that stalls, see `stalls`.
        stall_chance: that a run with a pipeline stalls, for each node beyond the first;
            whole_stall_chance: more of it where replicas reduce whole gradients (ultrascale: 2 of 87
            runs on 2 and 4 nodes, 5 of 92 on 8, 13 of 118 on 16; of whole gradients, where dp is at
            most 16, 6 of 12 and then nearly all).
        bucket_bytes: of gradients in one collective, at least; rank_bucket_bytes: more for each
            replica, so that latency, which grows with their ring, does not bind (Megatron-Core:
            a million parameters a replica, no fewer than 40 million); rank_shard_bytes: the same
            of ZeRO-1 and 2 alone, where their collectives are joined and whole gradients' are not.
        gather_share: of the gathering of updated parameters that forward does not hide, over
            `gather_exposed`.
        pass_seconds: of host time in every micro-batch beside its kernels.
        tensor_pipeline_seconds: of host time a layer, micro-batch and tensor rank where tensor
            groups and pipelines meet over several nodes (nanotron: 7.6, 11.7, 20 and 45 ms a layer
            at tp 2, 4, 8 and 16, whatever its size; measured on ultrascale).
    """

    host_seconds: float = 16e-6
    gap_seconds: float = 0.0
    step_seconds: float = 5e-3
    filter_passes: float = 0.0
    grad_bytes: float = 4.0
    fusion: float = 0.9
    context_bytes: float = 1.5e9
    compute: float = 1.0
    bandwidth: float = 1.0
    states_share: float = 1.0
    wide_weights: float = 0.0
    bucket_copies: float = 0.0
    unfused: float = 0.5
    kept_share: float = 1.0
    chosen_share: float = 1.0
    logits_share: float = 1.0
    whole_inputs: float = 2.0
    inputs_ahead: float = 0.0
    counts_head: float = 0.0
    fills_pipeline: float = 0.0
    workspace_bytes: float = 0.3e9
    usable_share: float = 1.02
    sigma_memory: float = 0.16
    sigma_fits: float = 0.16
    half_grad_bytes: float = 0.0
    recompute: float = 1.0
    shard_power: float = 1.5
    shard_messages: float = 1.0
    shard_gathers: float = 2.0
    scatter_gather: float = 1.0
    loss_traffic: float = 1.0
    accumulate_bytes: float = 0.0
    bare_gradients: float = 0.05
    bare_shards: float = 0.0
    bucket_bytes: float = 25e6
    rank_bucket_bytes: float = 0.0
    rank_shard_bytes: float = 0.0
    gather_share: float = 1.0
    pass_seconds: float = 0.0
    stall_seconds: float = 0.0
    stall_chance: float = 0.0
    whole_stall_chance: float = 0.0
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
    # Whole gradients go through DistributedDataParallel's hooks, in buckets and beside backward;
    # ZeRO-1's are scattered at once when the last micro-batch is over.
    "nanotron": Framework(
        host_seconds=130e-6, step_seconds=40e-3, pass_seconds=8e-3, fusion=2.2, loss_traffic=3.2,
        accumulate_bytes=10.0, bare_gradients=0.5, bare_shards=1.0, rank_shard_bytes=2e6,
        counts_head=1.0, tensor_pipeline_seconds=2e-3,
        stall_seconds=0.28, stall_chance=0.006, whole_stall_chance=0.15, context_bytes=5e9,
        bucket_copies=0.5, unfused=1.0, kept_share=1.1, inputs_ahead=40.0, fills_pipeline=1.0,
    ),
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
    # What vendors enter in contests: convolutions in nhwc with their normalisation fused in, graphs
    # launched whole, input decoded on the device.
    "mlperf": Framework(host_seconds=3e-6, step_seconds=0.2e-3, fusion=0.55, compute=1.15,
                       half_grad_bytes=2.0, unfused=0.0, bucket_bytes=80e6,
                       rank_bucket_bytes=2e6, gather_share=0.2),
    "oneflow": Framework(host_seconds=6e-6, step_seconds=3e-3, fusion=0.8, half_grad_bytes=2.0),
}  # fmt: skip
# Which frameworks spend host and device time alike: a new one borrows from its kind.
FRAMEWORK_KINDS: Mapping[str, str] = {
    "pytorch": "eager", "megatron": "eager", "deepspeed": "eager", "nanotron": "eager",
    "composer": "eager", "nemo": "fused", "mlperf": "fused", "torchtitan": "fused", "tensorflow": "graph",
    "mxnet": "graph", "oneflow": "graph", "jax": "graph",
}  # fmt: skip
# How labels in the wild name them; the first that is contained in the label wins.
_FRAMEWORK_WORDS: tuple[tuple[str, str], ...] = (
    ("mlperf", "mlperf"), ("megatron-bridge", "nemo"), ("nemo", "nemo"), ("deepspeed", "deepspeed"),
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


def scale_key(workload: Workload) -> str:
    """Return the name of a workload in `workload_scale`: two frameworks' versions are two."""
    key = framework_key(workload.framework)
    return f"{workload.name} on {key}" if key else workload.name
