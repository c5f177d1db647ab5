"""Collectives: published volumes, and physics that holds for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.plan import Plan
from forerun.predictors.analytic import communication
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from tests.predictors.analytic import physics

SIZES = st.floats(1.0, 1e12)
RANKS = st.integers(1, 4096)
RATES = st.floats(1e6, 1e12)
LATENCIES = st.floats(0.0, 1e-3)
CATALOG = load_catalog()


def test_a_ring_moves_twice_the_buffer_less_one_share() -> None:
    """64 MB over 2 hosts at 1 Gb/s takes 0.512 s, the bound the lab's measurement approaches."""
    rate = 1e9 / 8
    assert communication.all_reduce(64e6, 2, 1, (0.0, 1e12, 0.0, rate)) == pytest.approx(0.512)


@pytest.mark.parametrize(("ranks", "share"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_ring_volume_is_two_k_minus_one_over_k(ranks: int, share: float) -> None:
    """The bandwidth term is 2 (K-1)/K S / BW."""
    link = (0.0, 1e9, 0.0, 1e9)
    assert communication.all_reduce(1e9, ranks, ranks, link) == pytest.approx(share)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_rings_carry_nearly_twice_the_buffer_through_every_node(nodes: int) -> None:
    """Over 2 nodes as over 16: 2 (K-1)/K of the buffer through the network of a node."""
    ranks = 8 * nodes
    seconds = communication.all_reduce(1e9, ranks, 8, (0.0, 1e12, 0.0, 1e9))
    assert seconds == pytest.approx(2 * (ranks - 1) / ranks * 1e9 / 8e9)


@given(SIZES, st.integers(1, 64), LATENCIES, RATES, LATENCIES, RATES)
def test_more_nodes_are_never_faster(
    size: float, nodes: int, near: float, fast: float, far: float, slow: float
) -> None:
    """One more node of eight never shortens a collective over all of them."""
    link = (near, max(fast, slow), max(near, far), min(fast, slow) / 8)
    for collective in (communication.all_reduce, communication.all_gather):
        few = collective(size, 8 * nodes, 8, link)
        assert collective(size, 8 * (nodes + 1), 8, link) >= few * (1 - 1e-9)


@given(SIZES, LATENCIES, RATES)
def test_one_rank_has_nothing_to_say(size: float, latency: float, rate: float) -> None:
    """A group of one communicates nothing in any collective."""
    link = (latency, rate, latency, rate)
    for collective in (
        communication.all_reduce,
        communication.all_gather,
        communication.all_to_all,
    ):
        assert collective(size, 1, 1, link) == 0.0


@given(SIZES, RANKS, LATENCIES, RATES, st.floats(1.0, 100.0))
def test_more_bandwidth_is_never_slower(
    size: float, ranks: int, latency: float, rate: float, factor: float
) -> None:
    """No collective slows down on a faster network or a faster node."""
    per_node = min(ranks, 8)
    for collective in (
        communication.all_reduce,
        communication.all_gather,
        communication.all_to_all,
    ):
        slow = collective(size, ranks, per_node, (latency, rate, latency, rate))
        fast_inside = collective(size, ranks, per_node, (latency, rate * factor, latency, rate))
        fast_outside = collective(size, ranks, per_node, (latency, rate, latency, rate * factor))
        assert fast_inside <= slow * (1 + 1e-9)
        assert fast_outside <= slow * (1 + 1e-9)


@given(SIZES, RANKS, LATENCIES, RATES)
def test_an_all_gather_is_half_an_all_reduce_in_one_node(
    size: float, ranks: int, latency: float, rate: float
) -> None:
    """Reduce-scatter and all-gather together are the ring all-reduce."""
    link = (latency, rate, latency, rate)
    gather = communication.all_gather(size, ranks, ranks, link)
    assert 2 * gather == pytest.approx(float(communication.all_reduce(size, ranks, ranks, link)))


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(1.0, 20.0))
def test_a_p_norm_lies_between_the_larger_and_the_sum(a: float, b: float, power: float) -> None:
    """Overlap never beats the longer part and never costs more than doing both in turn."""
    joined = float(communication.p_norm(a, b, power))
    assert max(a, b) * (1 - 1e-12) <= joined <= (a + b) * (1 + 1e-9)


def test_small_buffers_climb_a_tree_of_nodes() -> None:
    """Latency binds small buffers: 256 nodes are 2 x 8 hops, where a gather's ring has 255."""
    link = (0.0, 1e12, 1e-5, 1e12)
    assert communication.all_reduce(1.0, 256, 1, link) == pytest.approx(16e-5, rel=1e-3)
    assert communication.all_gather(1.0, 256, 1, link) == pytest.approx(255e-5, rel=1e-3)


def test_columns_and_scalars_agree() -> None:
    """A column of groups costs what each costs alone."""
    ranks = np.array([1.0, 2.0, 8.0, 64.0])
    per_node = np.minimum(ranks, 8.0)
    together = communication.all_reduce(1e8, ranks, per_node, (1e-6, 1e11, 1e-5, 1e10))
    alone = [
        float(communication.all_reduce(1e8, r, p, (1e-6, 1e11, 1e-5, 1e10)))
        for r, p in zip(ranks, per_node, strict=True)
    ]
    assert together == pytest.approx(alone)


@pytest.mark.parametrize(("framework", "apart"), [("maxtext", True), ("torchtitan", False)])
def test_slices_of_tpus_shard_each_for_itself(framework: str, apart: bool) -> None:
    """JAX keeps a copy of the weights in each slice: only reduced gradients cross between slices."""
    workload = physics.transformer(hidden=4096).with_(framework=framework, precision="bf16")
    held, seconds = [], []
    for slices in (1, 4):
        cluster = CATALOG.cluster(f"{32 * slices}x8xtpu-v5e")
        plan = Plan(dp=256 * slices, micro_batch=4, global_batch=1024 * slices, zero_stage=3)
        found = physics.ask(workload, cluster, plan)
        held.append(found.memory_parts["optimizer"])
        seconds.append(found.parts["data comm"])
    assert (held[1] == pytest.approx(held[0])) is apart
    assert (seconds[1] < 1.3 * seconds[0]) is apart


def test_experts_of_each_slice_of_tpus_are_sharded_there() -> None:
    spec = TransformerSpec(
        layers=8, hidden=1024, heads=16, ffn=4096, vocab=32000, seq_len=1024, experts=64,
        experts_per_token=2,
    )  # fmt: skip
    workload = transformer_workload(spec, "mixture").with_(framework="maxtext", precision="bf16")
    held = []
    for slices in (1, 4):
        plan = Plan(dp=256 * slices, ep=8, micro_batch=1, global_batch=256 * slices, zero_stage=3)
        found = physics.ask(workload, CATALOG.cluster(f"{32 * slices}x8xtpu-v5e"), plan)
        held.append(found.memory_parts["optimizer"])
    assert held[1] == pytest.approx(held[0])


@pytest.mark.parametrize("framework", ["maxtext", "torchtitan"])
def test_processors_of_several_nodes_share_states(framework: str) -> None:
    workload = physics.transformer(hidden=1024).with_(framework=framework, precision="fp32")
    held = []
    for nodes in (1, 4):
        plan = Plan(dp=nodes, micro_batch=4, global_batch=4 * nodes, zero_stage=3)
        found = physics.ask(workload, CATALOG.cluster(f"{nodes}x1xcpu-vcpu"), plan)
        held.append(found.memory_parts["optimizer"])
    assert held[1] == pytest.approx(held[0] / 4)
