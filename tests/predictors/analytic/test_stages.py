"""Pipeline stages of unequal weight, and what a framework's own ways cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.graph import SHARD_INDEX, Shard
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.communication import dispatch
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import Keys, Rows, distinct_ops, product_sizes
from forerun.predictors.analytic.layout import lay_out
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster
from forerun.workloads.transformer import TransformerSpec, transformer_workload


def llama(layers: int, hidden: int, ffn: int, tied: bool, framework: str) -> Workload:
    """Return a Llama-like network with a vocabulary of 131,072."""
    spec = TransformerSpec(
        layers=layers, hidden=hidden, heads=32, ffn=ffn, vocab=131072, seq_len=4096, gated=True,
        norm="rmsnorm", positions="rope", bias=False, tied=tied,
    )  # fmt: skip
    return transformer_workload(spec, f"llama-{layers}", framework=framework)


def rows_of(workload: Workload, cluster: Cluster, plan: Plan) -> Rows:
    """Return the rows of one job by priors."""
    constants = Constants()
    return lay_out(Jobs.of([Job(workload, cluster, plan)]), constants).rows(constants)


def parts_of(
    workload: Workload, plan: Plan, cluster: Cluster, **changes: float
) -> dict[str, float]:
    """Return the parts of a step where nanotron's profile is changed."""
    priors = Constants()
    profile = replace(priors.frameworks["nanotron"], **changes)  # type: ignore[arg-type]
    constants = replace(priors, frameworks={**priors.frameworks, "nanotron": profile})
    job = Jobs.of([Job(workload, cluster, plan)])
    return dict(AnalyticPredictor(constants).predict(job)[0].parts)


@given(st.integers(2, 80), st.sampled_from([1, 2, 3, 4, 8, 16]), st.booleans())
def test_stages_hold_every_layer(layers: int, pp: int, tied: bool) -> None:
    """The fullest stage, pp times, has room for all layers, and no stage holds more than them."""
    if pp > layers:
        return
    workload = llama(layers, 1024, 4096, tied, "nanotron")
    rows = rows_of(workload, tiny_cluster(pp, 1), Plan(pp=pp, global_batch=pp))
    fullest, last = (float(share[0]) for share in rows.layer_shares)
    assert 0.0 <= last <= fullest <= 1.0
    assert (pp - 1) * fullest + last >= 1.0 - 1e-9
    assert np.all(np.stack(rows.local_params[:2]) > 0)


def test_a_pipeline_takes_the_sum_of_its_stages_and_the_fullest_again_and_again() -> None:
    """T = sum t + (m - 1) t_max: each micro-batch more adds the fullest stage, nothing else."""
    workload = llama(32, 4096, 14336, False, "nanotron")
    names = ("forward", "backward", "host", "imbalance", "pipeline bubble")

    def busy(m: int) -> float:
        parts = parts_of(workload, Plan(pp=4, global_batch=m), tiny_cluster(1, 4))
        return sum(parts[n] for n in names)

    four, five, nine = busy(4), busy(5), busy(9)
    fullest = five - four
    assert nine == pytest.approx(four + 5 * fullest)
    first = four - 3 * fullest
    assert 3 * fullest < first < 4 * fullest  # stages are unequal: the sum is less than 4 x t_max


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "tied", "pp", "fullest", "last"),
    [
        (32, 4096, 14336, False, 2, 18, 14), (32, 4096, 14336, False, 16, 3, 0),
        (16, 2048, 8192, True, 2, 10, 6), (16, 2048, 8192, True, 4, 5, 1),
    ],
)  # fmt: skip
def test_a_head_of_so_many_layers_is_dealt_to_stages_like_layers(
    layers: int, hidden: int, ffn: int, tied: bool, pp: int, fullest: int, last: int
) -> None:
    """Nanotron weighs the head by its parameters: 2.2 layers of the 8B network, 4 of the 1B's."""
    workload = llama(layers, hidden, ffn, tied, "nanotron")
    plan = Plan(pp=pp, global_batch=pp)
    rows = rows_of(workload, tiny_cluster(pp, 1), plan)
    assert np.concatenate(rows.layer_shares) * layers == pytest.approx([fullest, last])
    even = rows_of(replace(workload, framework="megatron"), tiny_cluster(pp, 1), plan)
    assert np.concatenate(even.layer_shares) == pytest.approx([1 / pp, 1 / pp])


def test_a_pipeline_whose_last_stage_would_be_empty_is_refused() -> None:
    """A 1B network and its head leave nothing for the last of 16 stages; 8 have work."""
    workload = llama(16, 2048, 8192, True, "nanotron")
    for pp, words in ((16, "leaves the last without any; lower pp"), (8, "")):
        job = Job(workload, tiny_cluster(pp, 1), Plan(pp=pp, global_batch=pp))
        forecast = AnalyticPredictor().predict(Jobs.of([job]))
        assert words in str(forecast.declined[0])
        assert (not words) == (forecast.declined[0] is None)
        assert not words or forecast.fit_probability[0] == 0.0


def test_the_wait_where_tensor_groups_meet_pipelines_is_a_floor() -> None:
    """It binds small micro-batches, hides behind large ones and leaves the bubble; one node has none."""
    workload = llama(16, 2048, 8192, True, "nanotron")
    two_nodes, one_node = tiny_cluster(2, 8), tiny_cluster(1, 16)

    def lost(micro: int, tp: int, cluster: Cluster) -> float:
        plan = Plan(tp=tp, pp=2, dp=8 // tp, micro_batch=micro, global_batch=8 * 32,
                    sequence_parallel=tp > 1)  # fmt: skip
        parts = parts_of(workload, plan, cluster)
        without = parts_of(workload, plan, cluster, tensor_pipeline_seconds=0.0)
        assert parts["pipeline bubble"] == pytest.approx(without["pipeline bubble"])
        m = plan.global_batch / (micro * plan.dp)
        return (parts["host"] - without["host"]) / m

    assert lost(1, 8, two_nodes) > 1.5 * lost(1, 4, two_nodes) > 0
    assert lost(1, 8, one_node) == lost(1, 1, two_nodes) == 0
    assert lost(32, 2, two_nodes) < 0.02 * lost(1, 2, two_nodes)


def test_bare_gradients_are_not_hidden_by_backward() -> None:
    """All bare: the ring's whole time is exposed; the share between lies between."""
    workload = llama(16, 2048, 8192, True, "nanotron")
    plan = Plan(dp=4, micro_batch=4, global_batch=16)

    def exposed(share: float) -> float:
        return parts_of(workload, plan, tiny_cluster(1, 4), bare_gradients=share)["data comm"]

    assert exposed(0.0) < exposed(0.5) < exposed(1.0)
    assert exposed(0.5) == pytest.approx((exposed(0.0) + exposed(1.0)) / 2)
    assert exposed(1.0) >= 2 * 3 / 4 * 4.0 * workload.params / 100e9


def test_two_layers_fewer_than_chunks_leave_the_ends_one_each() -> None:
    """Llama 3.1 405B: 126 layers in 16 stages of 8 chunks; the loss stands for a layer."""
    workload = llama(126, 1024, 4096, False, "megatron")
    plan = Plan(pp=16, vpp=8, global_batch=16, micro_batch=1)
    fullest, last = (float(s[0]) for s in rows_of(workload, tiny_cluster(16, 1), plan).layer_shares)
    assert (126 * fullest, 126 * last) == pytest.approx((8.0, 7.0))


@given(st.integers(1, 64), st.sampled_from([1, 2, 8]))
def test_no_stage_holds_more_micro_batches_than_a_step_has(m: int, vpp: int) -> None:
    rows = rows_of(
        llama(64, 1024, 4096, False, "megatron"), tiny_cluster(8, 1),
        Plan(pp=8, vpp=vpp, global_batch=m, micro_batch=1),
    )  # fmt: skip
    assert float(rows.in_flight[0]) <= m


def test_gradients_of_interleaved_chunks_leave_once_for_pp_micro_batches() -> None:
    """ZeRO-2 over 2 replicas of 4 stages: 8 micro-batches are 2 turns where chunks take them."""
    cluster = tiny_cluster(8, 1)
    workload = llama(16, 1024, 4096, False, "pytorch")
    plans = [Plan(dp=2, pp=4, vpp=v, zero_stage=2, global_batch=16, micro_batch=1) for v in (1, 4)]
    jobs = Jobs.of([Job(workload, cluster, plan) for plan in plans])
    one, four = AnalyticPredictor().predict(jobs)
    assert four.parts["data comm"] < 0.6 * one.parts["data comm"]


def test_a_rank_of_fewer_experts_sees_more_tokens_of_each() -> None:
    """The products' rows go with ep, their number against it: the work stays."""
    spec = TransformerSpec(
        layers=2, hidden=1024, heads=16, ffn=2048, vocab=1000, seq_len=512, experts=8,
        experts_per_token=2,
    )  # fmt: skip
    workload = transformer_workload(spec, "mixture")
    ops = distinct_ops(workload)
    one, many = (
        product_sizes(ops, Keys(*(np.array([v]) for v in (1.0, 1.0, 1.0, ep, 0.0, 0, 0.0))))
        for ep in (1.0, 4.0)
    )
    experts = ops.dims[:, 3] > 1
    experts &= ops.shard == SHARD_INDEX[Shard.EXPERT]
    sizes = [np.prod(products, axis=0)[0, experts] for products in (one, many)]
    assert experts.any()
    assert sizes[0] == pytest.approx(sizes[1])
    assert many[3][0, experts] == pytest.approx(one[3][0, experts] / 4)


def test_routing_to_few_groups_of_experts_crosses_fewer_nodes() -> None:
    """8 copies over 8 nodes reach 5.25 of them, in 4 groups 3.6 (DeepSeek-V3)."""
    link = (0.0, 1e30, 0.0, 1e9)
    free, limited = (dispatch(1e9, 8, 64, 8, link, groups) for groups in (np.inf, 4.0))
    assert free == pytest.approx(8 * (1 - (7 / 8) ** 8) * 7 / 8)
    assert limited == pytest.approx(4 * (1 - (3 / 4) ** 8) * 7 / 8)
