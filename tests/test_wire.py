"""Wire: jobs survive the round trip, keys are stable, and JSON is strict."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import wire
from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.workloads.zoo import zoo_names, zoo_workload

SAMPLE = zoo_names()[:: max(1, len(zoo_names()) // 12)]


def job_of(name: str, **plan: object) -> Job:
    """Return a zoo workload on eight devices."""
    cluster = load_catalog().cluster("1x8xa100-sxm-80gb")
    return Job(zoo_workload(name), cluster, Plan(**{"dp": 8, "global_batch": 64, **plan}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_zoo_job_survives_the_round_trip(name: str) -> None:
    job = job_of(name)
    again = wire.read(Job, json.loads(wire.dumps(wire.clean(job))))
    assert again == job
    assert wire.job_key(again) == wire.job_key(job)


def test_every_field_of_a_job_but_its_description_changes_the_key() -> None:
    job = job_of("resnet50")
    key = wire.job_key(job)
    cluster, workload = job.cluster, job.workload
    others = [
        job_of("resnet50", micro_batch=2),
        job_of("resnet18"),
        replace(job, workload=workload.with_(precision="fp32")),
        replace(job, workload=workload.with_(sparse_fraction=0.1)),
        *(job_of("resnet50", sync="ps-stale", stale_bound=bound) for bound in (0, 1)),
        job_of("resnet50", servers_with_workers=True),
        job_of("resnet50", gradient_bits=8),
        job_of("resnet50", dp=job.plan.dp // 2, partitions=2),
        replace(job, cluster=replace(cluster, device=replace(cluster.device, memory_bytes=1.0))),
        replace(job, cluster=replace(cluster, intra=replace(cluster.intra, bytes_per_second=1.0))),
    ]
    assert len({key, *map(wire.job_key, others)}) == len(others) + 1


def test_a_field_that_came_later_and_says_nothing_is_not_written() -> None:
    written = wire.clean(job_of("resnet50"))
    assert (
        not {"stale_bound", "servers_with_workers", "gradient_bits", "partitions"}
        & written["plan"].keys()
    )
    assert "sparse_fraction" not in written["workload"]


def test_a_price_a_note_or_a_source_leaves_the_key_as_it_is() -> None:
    job = job_of("resnet50")
    other = replace(
        job,
        cluster=replace(job.cluster, dollars_per_hour=1.0, price_source="x", warnings=("y",)),
        workload=job.workload.with_(notes=("z",), source="elsewhere"),
    )
    assert wire.job_key(other) == wire.job_key(job)


JSONABLE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(JSONABLE)
def test_json_never_holds_nan_or_infinity(value: object) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(wire.dumps({"value": value}), parse_constant=refuse)


def test_arrays_and_their_scalars_become_plain_numbers() -> None:
    data = wire.clean({"a": np.array([1.0, math.nan]), "b": np.float64(2), "c": np.int32(3)})
    assert data == {"a": [1.0, None], "b": 2.0, "c": 3}


def test_quantiles_that_are_not_known_are_null() -> None:
    assert wire.quantiles((math.nan,) * 3) is None
    assert wire.quantiles((1.0, 2.0, 3.0)) == {"p05": 1.0, "p50": 2.0, "p95": 3.0}


def test_a_key_is_the_hash_of_the_whole_job_written_at_once() -> None:
    """Its parts are written apart, and that of a workload once; workloads that are copied have their own."""
    job = job_of("resnet50")
    for workload in (job.workload, job.workload, job.workload.with_(framework="jax"), job.workload):
        one = replace(job, workload=workload)
        data = {"schema": wire.SCHEMA, **wire.clean(one)}
        for part, names in wire._NOT_IN_KEY.items():
            for name in names:
                (data["cluster"]["device"] if part == "device" else data[part]).pop(name)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        assert wire.job_key(one) == hashlib.sha256(text.encode()).hexdigest()
