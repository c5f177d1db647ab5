"""Plan: nonsense is refused at birth, and the names of other tools are understood."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.plan import (
    ALIASES,
    FIELDS,
    INTEGER_FIELDS,
    MEMORY_FORMATS,
    RECOMPUTE,
    SYNC,
    Plan,
    parse_plan,
    plan_value,
)
from forerun.errors import RequestError, UnknownNameError

DEGREES = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "global_batch", "partitions")
ONE_UP = st.integers(1, 2**31 - 1)
PLANS = st.builds(
    Plan,
    **dict.fromkeys(DEGREES, ONE_UP),
    zero_stage=st.integers(0, 3),
    recompute=st.sampled_from(RECOMPUTE),
    sequence_parallel=st.booleans(),
    sync=st.sampled_from(SYNC),
    parameter_servers=st.integers(0, 64),
    stale_bound=st.integers(0, 64),
    servers_with_workers=st.booleans(),
    gradient_bits=st.sampled_from([0, 1, 8]),
    memory_format=st.sampled_from(MEMORY_FORMATS),
)


@pytest.mark.parametrize("name", DEGREES)
@pytest.mark.parametrize("value", [0, -1, 1.0, "2", None, 2**31])
def test_a_degree_is_a_whole_number_above_zero(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name} must be a whole number"):
        Plan(**{name: value})  # type: ignore[arg-type]


def test_a_number_of_a_gradient_has_64_bits_at_most() -> None:
    assert Plan(gradient_bits=64).gradient_bits == 64
    with pytest.raises(RequestError, match="gradient_bits must be a whole number, 0 to 64"):
        Plan(gradient_bits=65)


@pytest.mark.parametrize(
    ("name", "value", "offer"),
    [("zero_stage", 4, "0, 1, 2, 3"), ("recompute", "partial", "none, selective, full"),
     ("sync", "gossip", "allreduce"), ("memory_format", "chwn", "nchw, nhwc")],
)  # fmt: skip
def test_a_choice_that_is_none_is_refused_with_the_choices(
    name: str, value: object, offer: str
) -> None:
    with pytest.raises(
        RequestError, match=rf"no such {name}; (did you mean \w+\? )?use one of {offer}"
    ):
        Plan(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["parameter_servers", "stale_bound"])
@pytest.mark.parametrize("value", [-1, 1.5, 2**31])
def test_servers_and_the_bound_on_staleness_are_whole_and_not_negative(
    name: str, value: float
) -> None:
    with pytest.raises(RequestError, match=f"{name}.*0 or more"):
        Plan(**{name: value})  # type: ignore[arg-type]


@given(PLANS)
def test_a_plan_written_field_by_field_reads_back_as_itself(plan: Plan) -> None:
    text = ",".join(f"{name}={value}" for name, value in plan.as_dict().items())
    assert Plan(**parse_plan(text)) == plan  # type: ignore[arg-type]


@given(PLANS)
def test_a_plan_as_it_is_shown_reads_back_as_itself(plan: Plan) -> None:
    shown = {**parse_plan(str(plan)), "global_batch": plan.global_batch}
    assert Plan(**{**shown, "memory_format": plan.memory_format}) == plan  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (  # Megatron
            "tensor_model_parallel_size=2 pipeline_model_parallel_size=4 micro_batch_size=1"
            " global_batch_size=512 virtual_pipeline_model_parallel_size=3"
            " recompute_granularity=selective expert_model_parallel_size=2"
            " context_parallel_size=2",
            {"tp": 2, "pp": 4, "micro_batch": 1, "global_batch": 512, "vpp": 3,
             "recompute": "selective", "ep": 2, "cp": 2},
        ),
        (  # DeepSpeed
            "train_batch_size=64,train_micro_batch_size_per_gpu=4,zero_optimization_stage=3",
            {"global_batch": 64, "micro_batch": 4, "zero_stage": 3},
        ),
        (  # torchtitan
            "data_parallel_shard_degree=8;tensor_parallel_degree=2;pipeline_parallel_degree=2;"
            "context_parallel_degree=1;expert_parallel_degree=4;activation_checkpoint=full",
            {"dp": 8, "tp": 2, "pp": 2, "cp": 1, "ep": 4, "recompute": "full"},
        ),
        (  # HuggingFace
            "per_device_train_batch_size=8 gradient_checkpointing=True",
            {"micro_batch": 8, "recompute": "full"},
        ),
        ("TP=2, PP=4.0  sp=yes", {"tp": 2, "pp": 4, "sequence_parallel": True}),
        ("gradient_checkpointing=false", {"recompute": "none"}),
        ("", {}),
    ],
)  # fmt: skip
def test_the_names_of_other_tools_mean_our_fields(text: str, fields: dict[str, object]) -> None:
    assert parse_plan(text) == fields


def test_every_alias_leads_to_a_field_and_hides_none() -> None:
    assert set(ALIASES.values()) <= set(FIELDS)
    assert not set(ALIASES) & set(FIELDS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp", "'tp' is not name=value"),
        ("tp=", "'tp=' is not name=value"),
        ("tp=2,tensor_parallel_size=2", "tp is given twice"),
        ("tp=two", "not a whole number"),
        ("tp=2.5", "not a whole number"),
        ("tp=nan", "not a whole number"),
        ("tp=inf", "not a whole number"),
        ("sp=maybe", "neither true nor false"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        parse_plan(text)


def test_an_unknown_field_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean micro_batch") as caught:
        parse_plan("micro_bach=2")
    assert "micro_batch" in caught.value.nearest


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.tuples(st.sampled_from((*FIELDS, *ALIASES)), st.text("-+.0123456789eEtruefal_∞", max_size=6)),
            max_size=3,
        ).map(lambda pairs: ",".join(f"{k}={v}" for k, v in pairs)),
    )
)  # fmt: skip
def test_any_text_is_fields_or_a_request_error_and_never_a_traceback(text: str) -> None:
    try:
        fields = parse_plan(text)
        plan = Plan(**fields)  # type: ignore[arg-type]
    except RequestError:
        return
    assert plan.world_size >= 1


@pytest.mark.parametrize("key", INTEGER_FIELDS)
def test_a_whole_number_in_any_dress_is_that_integer(key: str) -> None:
    for value in (2, 2.0, "2", "2.0", " 2 ", "2e0"):
        number = plan_value(key, value)
        assert number == 2
        assert type(number) is int


def test_world_size_and_micro_batches_are_products() -> None:
    plan = Plan(dp=3, tp=2, pp=5, cp=7, micro_batch=2, global_batch=21)
    assert plan.world_size == 210
    assert plan.micro_batches == 3.5
