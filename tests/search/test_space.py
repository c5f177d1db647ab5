"""The space of plans: complete, legal and without repeats."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forerun.domain.plan import RECOMPUTE, Plan
from forerun.domain.plan_columns import OK, Limits, PlanColumns, plan_problems
from forerun.errors import RequestError
from forerun.search.space import Space
from forerun.testing.samples import tiny_cluster, tiny_workload

WORKLOAD = tiny_workload(layers=6)


def space(**changes: object) -> Space:
    """Return a small space of the sample transformer."""
    fields = {"workload": WORKLOAD, "clusters": (tiny_cluster(1, 4),), "global_batches": (16, 48),
              "micro_batches": (1, 2, 4)}  # fmt: skip
    return Space(**{**fields, **changes})  # type: ignore[arg-type]


def brute_force(devices: int) -> set[Plan]:
    """Return every legal and distinct plan by trying all of them, one at a time."""
    found = set()
    degrees = range(1, devices + 1)
    for dp, tp, pp, vpp, micro, batch, zero, word, sp in itertools.product(
        degrees, degrees, degrees, (1, 2, 4, 8), (1, 2, 4), (16, 48), (0, 1, 2, 3), RECOMPUTE,
        (False, True),
    ):  # fmt: skip
        shape = WORKLOAD.shape
        legal = (
            dp * tp * pp == devices and shape.heads % tp == 0 and pp * vpp <= shape.layers
            and pp <= shape.layers and (vpp == 1 or pp > 1) and micro * dp <= batch
            and (not sp or tp > 1) and (zero == 0 or dp > 1) and (zero < 2 or pp == 1)
        )  # fmt: skip
        if legal or (dp * tp * pp == devices and pp == vpp == 1 and shape.heads % tp == 0
                     and micro * dp <= batch and (not sp or tp > 1)
                     and (zero == 0 or dp > 1)):  # fmt: skip
            found.add(Plan(dp=dp, tp=tp, pp=pp, vpp=vpp, micro_batch=micro, global_batch=batch,
                           zero_stage=zero, recompute=word, sequence_parallel=sp))  # fmt: skip
    return found


@pytest.mark.parametrize("devices", [1, 2, 4, 6, 8])
def test_the_space_is_what_brute_force_finds(devices: int) -> None:
    """Every legal plan is enumerated, once, and no other."""
    plans, _ = space(clusters=(tiny_cluster(1, devices),)).plans(devices)
    listed = [plans[i] for i in range(len(plans))]
    assert len(set(listed)) == len(listed)
    assert set(listed) == brute_force(devices)


def test_every_enumerated_plan_is_legal() -> None:
    """The rules applied to whole plans agree with the rules applied while enumerating."""
    shape = WORKLOAD.shape
    for devices in (8, 12, 24):
        plans, _ = space().plans(devices)
        limits = Limits(shape.layers, shape.heads, shape.kv_heads, 0, WORKLOAD.seq_len, devices, 1)
        assert len(plans)
        assert np.all(plan_problems(plans, limits) == OK)


def test_what_is_fixed_is_not_searched() -> None:
    """Given fields keep their values, the others vary."""
    plans, _ = space(fixed={"tp": 2, "zero_stage": 1, "recompute": "full"}).plans(4)
    assert set(plans.tp) == {2}
    assert set(plans.zero_stage) == {1}
    assert set(plans.recompute) == {RECOMPUTE.index("full")}
    assert len(set(plans.micro_batch)) > 1


def test_refused_plans_are_counted_with_their_reason() -> None:
    """Three heads cannot be cut by two: the reason and the number of plans are told."""
    odd = tiny_workload().with_(shape=type(WORKLOAD.shape)(layers=4, hidden=256, heads=3))
    _, refused = space(workload=odd).plans(4)
    assert any("heads" in reason and count > 0 for reason, count in refused.items())


def test_a_workload_without_heads_or_layers_is_data_parallel_only() -> None:
    """A convolutional net is not cut by tensor or pipeline parallelism."""
    plain = tiny_workload().with_(shape=type(WORKLOAD.shape)())
    plans, _ = space(workload=plain).plans(8)
    assert set(plans.tp) == {1}
    assert set(plans.pp) == {1}
    assert set(plans.dp) == {8}


def test_an_empty_space_is_a_wrong_request() -> None:
    """No cluster and no batch are refused with words, not with an empty answer."""
    with pytest.raises(RequestError, match="no cluster"):
        space(clusters=())
    with pytest.raises(RequestError, match="global batches"):
        space(global_batches=(0,))


def test_plan_columns_and_plans_agree() -> None:
    """A plan read back from the columns is the plan that was written."""
    plans, _ = space().plans(4)
    listed = [plans[i] for i in range(0, len(plans), 7)]
    again = PlanColumns.of(listed)
    assert [again[i] for i in range(len(listed))] == listed
