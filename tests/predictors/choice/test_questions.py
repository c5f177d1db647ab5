"""Questions: each job is classed by where it lies to the runs, alone as among others."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.arrays import IntArray
from forerun.predictors.choice.questions import (
    DEVICES,
    FEW,
    GIVEN,
    INSIDE,
    NETWORK,
    NODES,
    PLAN,
    SETTING,
    SIZE,
    UNSEEN,
    WORDS,
    JobColumns,
    RunSpan,
)
from forerun.tables import configurations
from tests.predictors.choice.rows import grid_rows, jobs_of, runs_of

ROW: dict[str, Any] = {
    "workload": "my-net", "device": "my-gpu", "nodes": 1, "devices": 4, "global_batch": 128,
}  # fmt: skip


def seen(rows: list[dict[str, Any]]) -> RunSpan:
    runs = runs_of(rows)
    return RunSpan.of(JobColumns.of(runs.jobs), configurations(runs.table)[1])


def asked(rows: list[dict[str, Any]]) -> IntArray:
    known = [*grid_rows(), *grid_rows(workload="other-net", device="other-gpu")]
    known += grid_rows(workload="new-net")[:5]
    return seen([{**row, "cluster": "ours"} for row in known]).kinds(JobColumns.of(jobs_of(rows)))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, INSIDE),
        ({"devices": 3}, INSIDE),
        ({"devices": 32, "global_batch": 1024}, DEVICES),
        ({"devices": 16, "nodes": 2, "global_batch": 512}, NODES),
        ({"global_batch": 8192}, SIZE),
        ({"precision": "fp16"}, SETTING),
        ({"cluster": "theirs"}, SETTING),
        ({"cluster": "ours"}, INSIDE),
        ({"zero_stage": 1}, PLAN),
        ({"device": "other-gpu"}, UNSEEN),
        ({"device": "no-gpu"}, UNSEEN),
        ({"workload": "no-net"}, NETWORK),
        ({"workload": "no-net", "device": "no-gpu"}, UNSEEN),
        ({"workload": "new-net"}, FEW),
    ],
)
def test_a_job_is_the_question_that_its_place_makes_it(change: dict[str, Any], kind: int) -> None:
    found = asked([{**ROW, **change}])
    assert WORDS[found[0]] == WORDS[kind]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"cpus_per_worker": 0.3, "node_gbps": 5}, INSIDE),
        ({"cpus_per_worker": 1.6}, GIVEN),
        ({"cpus_per_worker": 8, "threads": 1}, GIVEN),
        ({"cpus_per_worker": 0.2, "node_gbps": 20}, GIVEN),
        ({"cpus_per_worker": 0.8, "devices": 16, "global_batch": 512}, GIVEN),
        ({}, INSIDE),
    ],
)
def test_what_a_worker_is_given_is_a_number(change: dict[str, Any], kind: int) -> None:
    known = [
        {**row, "cpus_per_worker": share, "node_gbps": rate}
        for row in grid_rows() for share, rate in ((0.2, 1), (0.4, 10))
    ]  # fmt: skip
    found = seen(known).kinds(JobColumns.of(jobs_of([{**ROW, **change}])))
    assert WORDS[found[0]] == WORDS[kind]


def test_a_share_that_no_run_states_is_another_setting() -> None:
    assert asked([{**ROW, "cpus_per_worker": 0.3}])[0] == SETTING


def test_a_job_alone_is_the_same_question_as_among_others() -> None:
    rows = [{**ROW, "devices": n, "global_batch": 100 * n} for n in (1, 5, 9, 30)]
    assert [asked([row])[0] for row in rows] == asked(rows).tolist()
