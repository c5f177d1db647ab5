"""Batches: the global batch of a job that states none, as published training of its kind and size has it."""

from __future__ import annotations

import math

from forerun.domain.workload import Workload

# Tokens a step of pre-training, up to so many parameters. Brown et al. 2020, table 2.1: 0.5M, 1M, 2M;
# Touvron et al. 2023 (Llama 2, 7B to 70B) and BLOOM-176B: 4M; Nemotron-4 340B: 9M, Llama 3.1 405B: 16M.
_TOKENS = ((1e9, 2**19), (3e9, 2**20), (2e10, 2**21), (2e11, 2**22), (math.inf, 2**23))
_SEQUENCES = 8192  # of them in a step at most, however short (Liu et al. 2019, RoBERTa)
# Sequences in a step of tuning: Taori et al. 2023 (Alpaca), Dettmers et al. 2023 (QLoRA, 7B and 13B),
# Rafailov et al. 2023 (DPO: 64 pairs).
_TUNING = {"finetune": 128, "lora": 128, "qlora": 16, "dpo": 128}
_VISION_TRANSFORMER = 1024  # Touvron et al. 2021 (DeiT)
_OTHER = 256  # Goyal et al. 2017, the reference of their linear rule
_MOST_OVER = 1 / 16  # that filling devices adds, where a coarser step would do


def usual_batch(workload: Workload) -> tuple[int, str]:
    """Return the usual samples in a step of a workload, and what says so."""
    stated = workload.default_global_batch
    if workload.task != "pretrain" and workload.seq_len > 0:
        usual = _TUNING[workload.task]
        return min(stated or usual, usual), f"usual for {workload.task}"
    if stated and workload.source.startswith("traced"):
        return stated, "assumed: that of its example inputs; give --global-batch"
    if stated:
        return stated, f"usual for {workload.name}"
    if workload.seq_len <= 0 and workload.shape.heads:
        return _VISION_TRANSFORMER, "assumed: usual for vision transformers; give --global-batch"
    if workload.seq_len <= 0:
        return _OTHER, "assumed: usual for its kind; give --global-batch"
    tokens = next(tokens for most, tokens in _TOKENS if workload.params <= most)
    batch = min(max(1, tokens // workload.seq_len), _SEQUENCES)
    size = f"{tokens / 2**20:.2g}M tokens a step"
    return batch, f"assumed: {size}, usual for models of its size; give --global-batch"


def filled_batch(batch: int, devices: int) -> int:
    """Return the least batch, no smaller, that data-parallel replicas on all devices can share out.

    Where there are more devices than samples, only their odd part must divide it: other degrees take
    the rest. A coarser multiple, which allows larger micro-batches, is taken where it adds little.
    """
    odd = devices // (devices & -devices)
    unit = devices if devices <= batch else odd
    if unit > batch or batch % unit == 0:
        return batch
    best = -(-batch // unit) * unit
    while (coarser := -(-batch // (unit := unit * 2)) * unit) <= batch * (1 + _MOST_OVER):
        best = coarser
    return best
