"""The space of plans: complete, legal and without repeats."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forerun.domain.job import Job
from forerun.domain.plan import (
    HEADS,
    OK,
    PROBLEMS,
    RECOMPUTE,
    Divisors,
    Plan,
    PlanColumns,
    plan_problems,
)
from forerun.domain.workload import LayerShape, Workload
from forerun.errors import RequestError
from forerun.search.space import Space, default_micro_batches, refuse_fixed, rule_words
from forerun.testing.samples import tiny_cluster, tiny_workload

WORKLOAD = tiny_workload(layers=6)


def space(**changes: object) -> Space:
    """Return a small space of the sample transformer."""
    fields = {"workload": WORKLOAD, "clusters": (tiny_cluster(1, 4),), "global_batches": (16, 48)}  # fmt: skip
    return Space(**{**fields, **changes})  # type: ignore[arg-type]


MICRO = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


def brute_force(devices: int) -> set[Plan]:
    """Return every legal and distinct plan by trying all of them, one at a time."""
    found = set()
    degrees = range(1, devices + 1)
    for dp, tp, pp, vpp, micro, batch, zero, word, sp in itertools.product(
        degrees, degrees, degrees, (1, 2, 4, 8), MICRO, (16, 48), (0, 1, 2, 3), RECOMPUTE,
        (False, True),
    ):  # fmt: skip
        shape = WORKLOAD.shape
        legal = (
            dp * tp * pp == devices and shape.heads % tp == 0
            and (pp * vpp <= shape.layers or (vpp > 1 and pp * vpp == shape.layers + 2))
            and pp <= shape.layers and (vpp == 1 or pp > 1) and micro * dp <= batch
            and (not sp or tp > 1) and (zero == 0 or dp > 1) and (zero < 2 or pp == 1)
        )  # fmt: skip
        exact = batch % (micro * dp) == 0
        turns = vpp == 1 or (shape.layers % (pp * vpp) == 0 and batch // (micro * dp) % pp == 0)
        turns |= (shape.layers + 2) % (pp * vpp) == 0 and batch // (micro * dp) % pp == 0
        if not (exact and turns):
            continue
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
        limits = Divisors(
            shape.layers, shape.heads, shape.kv_heads, 0, WORKLOAD.seq_len, devices, 1
        )
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


FIXED = (
    {"sync": "ps-sync"}, {"sync": "ps-async", "parameter_servers": 2}, {"sync": "dataparallel"},
    {"sync": "ps-sync", "recompute": "full"}, {"sync": "ps-sync", "zero_stage": 1},
    {"sync": "ps-sync", "tp": 2}, {"vpp": 2}, {"vpp": 3}, {"pp": 2}, {"pp": 3, "zero_stage": 3},
    {"cp": 2}, {"ep": 2}, {"ep": 3}, {"tp": 2}, {"tp": 8, "sequence_parallel": True}, {"dp": 1},
    {"dp": 3}, {"dp": 2, "tp": 2}, {"micro_batch": 3}, {"micro_batch": 64}, {"zero_stage": 3},
    {"sequence_parallel": True}, {"memory_format": "nhwc"}, {"parameter_servers": 3}, {},
)  # fmt: skip
MIXTURE = tiny_workload("tiny-mixture", layers=6, seq_len=4096).with_(
    shape=LayerShape(layers=6, hidden=256, heads=8, kv_heads=4, ffn=1024, vocab=1000, experts=4,
                     experts_per_token=2, moe_layers=6),
)  # fmt: skip
PLAIN = tiny_workload("tiny-plain").with_(shape=LayerShape())


@pytest.mark.parametrize("fixed", FIXED, ids=str)
@pytest.mark.parametrize("workload", [WORKLOAD, MIXTURE, PLAIN], ids=lambda w: w.name)
def test_every_enumerated_plan_is_a_job_on_its_cluster(
    workload: Workload, fixed: dict[str, object]
) -> None:
    """Whatever is fixed, each plan of a cluster is legal on it, keeps the field, and is there once."""
    clusters = tuple(tiny_cluster(n, d) for n, d in ((1, 1), (1, 4), (2, 2), (3, 2), (2, 8)))
    asked = space(workload=workload, clusters=clusters, fixed=fixed)
    for plans, positions, refused in asked.worlds():
        listed = [plans[i] for i in range(len(plans))]
        assert len(set(listed)) == len(listed)
        assert listed or refused, "nothing is enumerated and nothing says why"
        assert all(count > 0 for count in refused.values())
        for position in positions:
            for plan in listed[:: max(1, len(listed) // 60)]:
                Job(workload, clusters[position], plan)  # raises where it is not legal
                assert all(getattr(plan, name) == value for name, value in fixed.items())


def test_one_process_is_not_spread_over_nodes() -> None:
    """One process, dataparallel, is enumerated on one node, and refused with its reason on two."""
    asked = space(clusters=(tiny_cluster(1, 4), tiny_cluster(2, 2)), fixed={"sync": "dataparallel"})
    found = {positions[0]: (len(plans), refused) for plans, positions, refused in asked.worlds()}
    assert found[0][0] > 0
    assert found[1][0] == 0
    assert any("one node" in reason for reason in found[1][1])


def test_what_is_looked_at_is_counted_once() -> None:
    """Refused plans are distinct ones: with three heads only the splits by tp 2 and 4 are out."""
    odd = WORKLOAD.with_(shape=LayerShape(layers=1, hidden=256, heads=3))
    for micro in (1, 2, 4):
        fixed = {"zero_stage": 0, "recompute": "none", "micro_batch": micro}
        plans, refused = space(workload=odd, fixed=fixed, global_batches=(16,)).plans(4)
        # dp x tp = 2 x 2 and 1 x 4, with and without sequence parallelism
        assert refused == {rule_words(HEADS): 2 * 2}
        assert len(plans) == 1


def test_every_rule_has_words_that_fit_all_plans() -> None:
    """No rule is told with a hole in it."""
    words = [rule_words(code) for code in range(1, len(PROBLEMS))]
    assert len(set(words)) == len(words)
    for text in words:
        assert not set("{};") & set(text)
        assert "= cp" not in text
        assert "  " not in text


@pytest.mark.parametrize(
    ("seq_len", "most"), [(8192, 32), (2048, 128), (512, 512), (128, 1024), (0, 1024), (10**6, 1)]
)
def test_micro_batches_are_capped_by_tokens(seq_len: int, most: int) -> None:
    """Short sequences come in large micro-batches; there is always one of a sample."""
    sizes = default_micro_batches(WORKLOAD.with_(seq_len=seq_len))
    assert sizes[0] == 1
    assert sizes[-1] == most
    assert len(sizes) <= 11


def test_no_micro_batch_is_larger_than_the_global_batch() -> None:
    """What no plan could use is not looked at."""
    assert default_micro_batches(WORKLOAD, 128)[-1] == 128
    assert default_micro_batches(WORKLOAD, 48) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    assert default_micro_batches(WORKLOAD, 1) == (1,)


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


@pytest.mark.parametrize("fixed", [{"zero_stage": 1}, {"pp": 2}])
def test_a_fixed_plan_that_breaks_a_rule_is_told_what_keeps_it(fixed: dict[str, int]) -> None:
    """The refusal names the rule's own way out."""
    asked = space(fixed={"sync": "ps-async", **fixed})
    _, refused = asked.plans(4)
    with pytest.raises(RequestError) as error:
        refuse_fixed(asked, refused)
    assert "use tp=1, pp=1, cp=1 and zero_stage=0" in error.value.next_step
