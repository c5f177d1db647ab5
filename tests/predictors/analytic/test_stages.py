"""Pipeline stages of unequal weight, and what a framework's own ways cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows, lay_out
from forerun.predictors.analytic.stages import stage_params, stage_shares
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
    return lay_out(Jobs.of([Job(workload, cluster, plan)]), constants, {}).rows(constants)


def parts_of(
    workload: Workload, plan: Plan, cluster: Cluster, **changes: float
) -> dict[str, float]:
    """Return the parts of a step where nanotron's profile is changed."""
    priors = Constants()
    profile = replace(priors.frameworks["nanotron"], **changes)  # type: ignore[arg-type]
    constants = replace(priors, frameworks={**priors.frameworks, "nanotron": profile})
    job = Jobs.of([Job(workload, cluster, plan)])
    return dict(AnalyticPredictor(constants).predict(job)[0].parts)


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "tied", "pp", "fullest", "last"),
    [
        (32, 4096, 14336, False, 2, 18, 14), (32, 4096, 14336, False, 4, 9, 6),
        (32, 4096, 14336, False, 8, 5, 2), (32, 4096, 14336, False, 16, 3, 0),
        (16, 2048, 8192, True, 2, 10, 6), (16, 2048, 8192, True, 4, 5, 1),
        (16, 2048, 8192, True, 8, 3, 0),
    ],
)  # fmt: skip
def test_a_head_of_so_many_layers_is_dealt_to_stages_like_layers(
    layers: int, hidden: int, ffn: int, tied: bool, pp: int, fullest: int, last: int
) -> None:
    """Nanotron weighs the head by its parameters: 2.2 layers of the 8B network, 4 of the 1B's."""
    workload = llama(layers, hidden, ffn, tied, "nanotron")
    rows = rows_of(workload, tiny_cluster(pp, 1), Plan(pp=pp, global_batch=pp))
    shares = np.concatenate(stage_shares(rows))
    assert shares * layers == pytest.approx([fullest, last])
    even = rows_of(
        replace(workload, framework="megatron"), tiny_cluster(pp, 1), Plan(pp=pp, global_batch=pp)
    )
    assert np.concatenate(stage_shares(even)) == pytest.approx([1 / pp, 1 / pp])


@given(st.integers(2, 80), st.sampled_from([1, 2, 3, 4, 8, 16]), st.booleans(), st.booleans())
def test_stages_hold_every_layer(layers: int, pp: int, tied: bool, weighed: bool) -> None:
    """The fullest stage, pp - 1 times, and the last together have room for all layers."""
    if pp > layers:
        return
    framework = "nanotron" if weighed else "megatron"
    workload = llama(layers, 1024, 4096, tied, framework)
    rows = rows_of(workload, tiny_cluster(pp, 1), Plan(pp=pp, global_batch=pp))
    shares = stage_shares(rows)
    fullest, last = shares[0][0], shares[1][0]
    assert 0.0 <= last <= fullest <= 1.0
    assert (pp - 1) * fullest + last >= 1.0 - 1e-9
    assert np.all(np.stack(stage_params(rows, *shares)) > 0)


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


def test_the_loss_where_tensor_groups_meet_pipelines_is_a_floor() -> None:
    """It binds small micro-batches and hides behind the work of large ones; one node has none."""
    workload = llama(16, 2048, 8192, True, "nanotron")
    two_nodes, one_node = tiny_cluster(2, 8), tiny_cluster(1, 16)

    def lost(micro: int, tp: int, cluster: Cluster) -> float:
        plan = Plan(tp=tp, pp=2, dp=8 // tp, micro_batch=micro, global_batch=8 * 32,
                    sequence_parallel=tp > 1)  # fmt: skip
        parts = parts_of(workload, plan, cluster)
        without = parts_of(workload, plan, cluster, tensor_pipeline_seconds=0.0)
        m = plan.global_batch / (micro * plan.dp)
        return (parts["host"] - without["host"]) / m

    assert lost(1, 8, two_nodes) > 1.5 * lost(1, 4, two_nodes) > 0
    assert lost(1, 8, one_node) == lost(1, 1, two_nodes) == 0
    assert lost(32, 2, two_nodes) < 0.02 * lost(1, 2, two_nodes)


def test_gradients_that_join_a_buffer_are_moved_in_every_micro_batch() -> None:
    """Ten bytes a parameter and micro-batch at the device's bandwidth, divided by tp."""
    workload = llama(16, 2048, 8192, False, "nanotron")
    for tp in (1, 4):
        plan = Plan(tp=tp, micro_batch=1, global_batch=8)
        with_, without = (
            parts_of(workload, plan, tiny_cluster(1, tp), accumulate_bytes=b) for b in (10.0, 0.0)
        )
        rate = 1e12 * Constants().bandwidth_efficiency["optimizer"]
        expected = 8 * 10.0 * workload.params / tp / rate
        assert with_["backward"] - without["backward"] == pytest.approx(expected, rel=1e-3)


def test_bare_gradients_are_not_hidden_by_backward() -> None:
    """All bare: the ring's whole time is exposed; the share between lies between."""
    workload = llama(16, 2048, 8192, True, "nanotron")
    plan = Plan(dp=4, micro_batch=4, global_batch=16)

    def exposed(share: float) -> float:
        return parts_of(workload, plan, tiny_cluster(1, 4), bare_gradients=share)["data comm"]

    assert exposed(0.0) < exposed(0.5) < exposed(1.0)
    assert exposed(0.5) == pytest.approx((exposed(0.0) + exposed(1.0)) / 2)
    assert exposed(1.0) >= 2 * 3 / 4 * 4.0 * workload.params / 100e9
