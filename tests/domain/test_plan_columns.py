"""Plan columns: many plans at once are judged as one plan is judged by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.plan import (
    MEMORY_FORMATS,
    OFFLOAD,
    PROBLEMS,
    RECOMPUTE,
    SYNC,
    Divisors,
    Plan,
    PlanColumns,
    concatenate,
    plan_problems,
)


class Shape(NamedTuple):
    """What a plan must divide, as plain integers."""

    layers: int
    heads: int
    kv_heads: int
    experts: int
    seq_len: int
    devices: int
    nodes: int
    params: int = 0


def complaint(plan: Plan, shape: Shape) -> str | None:  # noqa: C901  (one rule a branch)
    """Return a phrase of the words for the first broken rule, judged without arrays."""
    kv = shape.kv_heads or shape.heads
    one_way = plan.tp == plan.pp == plan.cp == 1 and plan.zero_stage == 0
    if plan.partitions > 1 and not (one_way and plan.ep == 1 and plan.sync != "dataparallel"):
        return "of data-parallel replicas alone"
    if plan.partitions > 1 and plan.dp * plan.partitions != shape.devices:
        return "x partitions="
    if plan.dp * plan.tp * plan.pp * plan.cp * plan.partitions != shape.devices:
        return "tp x pp x dp x cp ="
    if plan.micro_batch * plan.dp > plan.global_batch:
        return "exceeds the global batch"
    if plan.tp > 1 and shape.heads == 0:
        return "needs attention heads"
    if shape.heads and shape.heads % plan.tp:
        return "not divisible by tp"
    if shape.heads and kv % plan.tp and plan.tp % kv:
        return "do not divide one another"
    if plan.pp > 1 and shape.layers == 0:
        return "needs repeated layers"
    chunks = plan.pp * plan.vpp
    if plan.pp > 1 and chunks > shape.layers and (plan.vpp == 1 or chunks != shape.layers + 2):
        return "lower pp or vpp"
    if plan.vpp > 1 and plan.pp == 1:
        return "but pp=1"
    if plan.cp > 1 and (shape.heads == 0 or shape.seq_len < 2):
        return "no attention over a sequence"
    if plan.ep > 1 and (shape.experts == 0 or shape.experts % plan.ep):
        return "divides experts"
    if (plan.dp * plan.cp * plan.tp) % plan.ep:
        return "must divide dp x cp"
    if plan.sync != "allreduce" and not one_way:
        return "data parallel only"
    if plan.sync == "dataparallel" and shape.nodes > 1:
        return "one process in one node"
    if plan.cp > 1 and shape.seq_len % (2 * plan.cp):
        return "not divisible by 2 x cp"
    if plan.stale_bound and plan.sync != "ps-stale":
        return "bounds workers that run ahead"
    if 0 < shape.params < plan.parameter_servers:
        return "do not make parameter_servers"
    if plan.offload in ("parameters", "nvme") and plan.dp * plan.cp > 1 and plan.zero_stage < 3:
        return "takes weights from where replicas share them"
    if plan.offload != "none" and (plan.sync != "allreduce" or plan.partitions > 1 or plan.pp > 1):
        return "only replicas that all-reduce, whole, offload"
    return None


# Few values, so that legal plans and each broken rule are all met often.
SMALL = st.sampled_from([1, 1, 2, 2, 3, 4])
PLANS = st.builds(
    Plan,
    dp=SMALL,
    tp=SMALL,
    pp=SMALL,
    cp=st.sampled_from([1, 1, 1, 2]),
    ep=st.sampled_from([1, 1, 2, 4]),
    vpp=st.sampled_from([1, 1, 2]),
    micro_batch=st.integers(1, 3),
    global_batch=st.integers(1, 24),
    zero_stage=st.sampled_from([0, 0, 1, 3]),
    recompute=st.sampled_from(RECOMPUTE),
    sequence_parallel=st.booleans(),
    sync=st.sampled_from(["allreduce", *SYNC]),
    parameter_servers=st.integers(0, 2),
    stale_bound=st.sampled_from([0, 0, 3]),
    servers_with_workers=st.booleans(),
    gradient_bits=st.sampled_from([0, 1, 8]),
    partitions=st.sampled_from([1, 1, 1, 2, 3]),
    offload=st.sampled_from(["none", *OFFLOAD]),
    offload_activations=st.booleans(),
    memory_format=st.sampled_from(MEMORY_FORMATS),
)
SHAPES = st.builds(
    Shape,
    layers=st.sampled_from([0, 3, 4, 12]),
    heads=st.sampled_from([0, 4, 6, 12]),
    kv_heads=st.sampled_from([0, 1, 2, 3, 4]),
    experts=st.sampled_from([0, 4, 6]),
    seq_len=st.sampled_from([0, 1, 6, 16]),
    devices=st.integers(1, 16),
    nodes=st.integers(1, 2),
    params=st.sampled_from([0, 1, 10**9]),
)


@st.composite
def cases(draw: st.DrawFn) -> list[tuple[Plan, Shape]]:
    """Return plans with shapes, most of them on a cluster of the plan's own size."""
    pairs = draw(st.lists(st.tuples(PLANS, SHAPES, st.integers(0, 4)), min_size=1, max_size=12))
    return [
        (plan, shape._replace(devices=plan.world_size) if own else shape)
        for plan, shape, own in pairs
    ]


@settings(max_examples=400)
@given(cases())
def test_columns_find_the_first_broken_rule_that_a_person_finds(
    pairs: list[tuple[Plan, Shape]],
) -> None:
    limits = Divisors(*(np.array(column) for column in zip(*(s for _, s in pairs), strict=True)))
    codes = plan_problems(PlanColumns.of([plan for plan, _ in pairs]), limits)
    for code, (plan, shape) in zip(codes, pairs, strict=True):
        phrase = complaint(plan, shape)
        if phrase is None:
            assert code == 0, (plan, shape, PROBLEMS[code])
        else:
            assert phrase in PROBLEMS[code], (plan, shape, PROBLEMS[code])


def test_the_oracle_meets_every_rule() -> None:
    rng = np.random.default_rng(7)
    met, unmet = set[str | None](), list[str]()
    for drawn in range(20_000):
        tp, pp, cp, vpp = (
            int(rng.choice(c)) for c in ((1, 1, 2, 3, 4), (1, 1, 2), (1, 1, 2), (1, 2))
        )
        plan = Plan(
            dp=int(rng.integers(1, 4)), tp=tp, pp=pp, cp=cp, ep=int(rng.choice((1, 2, 3, 4))),
            vpp=vpp, micro_batch=int(rng.integers(1, 3)), global_batch=int(rng.choice((4, 8))),
            zero_stage=int(rng.choice((0, 1))), sync=str(rng.choice(("allreduce", *SYNC))),
            stale_bound=int(rng.choice((0, 0, 4))), parameter_servers=int(rng.integers(0, 3)),
            partitions=int(rng.choice((1, 1, 1, 2))), offload=str(rng.choice(("none", *OFFLOAD))),
        )  # fmt: skip
        shape = Shape(
            *(int(rng.choice(c)) for c in ((0, 2, 3, 8), (0, 4, 6, 12), (0, 2, 4), (0, 4, 12), (1, 6, 8))),
            devices=plan.world_size + int(rng.integers(0, 9) == 0), nodes=int(rng.integers(1, 3)),
            params=int(rng.choice((0, 1, 8))),
        )  # fmt: skip
        met.add(complaint(plan, shape))
        if drawn % 500 == 499:
            unmet = [p for p in PROBLEMS if not any(phrase and phrase in p for phrase in met)]
            if unmet == [""] and None in met:
                break
    assert unmet == [""], "a rule without a case is a rule without a test"
    assert None in met


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=3, tp=1431655768, global_batch=100),  # 2**32 + 8 in 32 bits is 8
        Plan(dp=2**16, tp=2**16, pp=2**16, cp=2**16, global_batch=2**20),
        Plan(dp=2**31 - 1, tp=2**31 - 1, pp=2**31 - 1, cp=2**31 - 1, global_batch=2**31 - 1),
    ],
)
def test_an_absurd_plan_does_not_wrap_round_to_a_legal_one(plan: Plan) -> None:
    for devices in (1, 8, plan.world_size % 2**32):
        limits = Divisors(24, 2**31, 0, 0, 4096, devices, 1)
        assert plan_problems(PlanColumns.of([plan]), limits)[0] == 1


def test_absurd_chunks_do_not_wrap_round_to_few() -> None:
    limits = Divisors(24, 8, 0, 0, 4096, 2, 1)
    code = plan_problems(PlanColumns.of([Plan(pp=2, vpp=2**30)]), limits)[0]
    assert "lower pp or vpp" in PROBLEMS[code]


@given(st.lists(PLANS, max_size=9))
def test_plans_survive_the_journey_through_columns(plans: list[Plan]) -> None:
    columns = PlanColumns.of(plans)
    assert len(columns) == len(plans)
    assert [columns[i] for i in range(len(plans))] == plans
    assert columns.world_size.tolist() == [plan.world_size for plan in plans]
    assert columns.step_samples.tolist() == [plan.step_samples for plan in plans]


@given(st.lists(PLANS, min_size=1, max_size=9), st.data())
def test_taking_by_mask_or_position_takes_those_plans(
    plans: list[Plan], data: st.DataObject
) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(plans), max_size=len(plans)))
    columns = PlanColumns.of(plans)
    wanted = [plan for plan, kept in zip(plans, keep, strict=True) if kept]
    for index in (np.array(keep), np.flatnonzero(keep)):
        part = columns.take(index)
        assert [part[i] for i in range(len(part))] == wanted


@given(st.lists(PLANS, max_size=4), st.lists(PLANS, max_size=4))
def test_joined_columns_keep_their_order(first: list[Plan], second: list[Plan]) -> None:
    both = concatenate([PlanColumns.of(first), PlanColumns.of(second)])
    assert [both[i] for i in range(len(both))] == first + second


def test_what_is_not_named_is_the_default_and_scalars_are_spread() -> None:
    columns = PlanColumns.build(3, tp=[1, 2, 4], global_batch=16)
    assert [columns[i] for i in range(3)] == [Plan(tp=t, global_batch=16) for t in (1, 2, 4)]


def test_an_unknown_column_is_a_programming_mistake() -> None:
    with pytest.raises(TypeError, match="pipeline"):
        PlanColumns.build(1, pipeline=2)
