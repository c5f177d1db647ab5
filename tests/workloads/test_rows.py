"""Rows become jobs: what blanks mean, what is refused with which reason, and how fast it goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.plan import RECOMPUTE, SYNC
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.predictors.laws.ernest import Ernest
from forerun.predictors.laws.hierarchical import Hierarchical
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.regression.gaussian import Gaussian
from forerun.predictors.residual import ResidualPredictor
from forerun.store import open_store
from forerun.tables import Jobs, Table, read_table
from forerun.workloads.rows import (
    LayoutError,
    NodeLayout,
    jobs_from_table,
    layout_of,
    parse_placement,
    runs_from_table,
)
from tests.needs import published

GPT = {
    "workload": "a-gpt", "layers": 24, "hidden": 1024, "heads": 16, "vocab": 50304,
    "seq_len": 1024, "device": "a100-sxm-80gb",
}  # fmt: skip


def jobs(*rows: dict[str, Any]) -> Jobs:
    return jobs_from_table(Table.from_rows([{**GPT, **row} for row in rows]), load_catalog())


def job(**cells: Any) -> Jobs:
    return jobs(cells)


def reason(**cells: Any) -> str:
    return job(**cells).problem(0) or ""


def test_a_complete_row_is_the_job_that_it_says() -> None:
    found = job(devices=8, dp=2, tp=2, pp=2, micro_batch=4, global_batch=32)[0]
    assert found.workload.shape.layers == 24
    assert found.cluster.device.id == "a100-sxm-80gb"
    assert (found.plan.dp, found.plan.tp, found.plan.pp) == (2, 2, 2)
    assert (found.plan.micro_batch, found.plan.global_batch) == (4, 32)


def test_micro_batches_come_from_the_batches_and_not_from_grad_accum() -> None:
    found = job(devices=4, dp=4, micro_batch=2, global_batch=64, grad_accum=3)[0]
    assert found.plan.micro_batches == 8


def test_blank_dp_is_devices_over_the_other_degrees() -> None:
    assert job(devices=16, tp=2, pp=4, micro_batch=1, global_batch=16).plans.dp[0] == 2


def test_devices_that_the_degrees_do_not_divide_are_refused() -> None:
    assert "12 devices are not divisible by tp x pp x cp = 8" in reason(
        devices=12, tp=8, micro_batch=1, global_batch=16
    )


@pytest.mark.parametrize(
    ("cells", "micro"),
    [
        ({"global_batch": 64}, 16),
        ({"global_batch": 64, "grad_accum": 4}, 4),
        ({"global_batch": 66}, 16),
        ({"global_batch": 64, "dp": 1, "pp": 4}, 1),
    ],
    ids=["one pass", "accumulated", "uneven", "pipeline"],
)
def test_blank_micro_batch_follows_from_the_global_batch(cells: dict[str, int], micro: int) -> None:
    assert job(devices=4, **cells).plans.micro_batch[0] == micro


@pytest.mark.parametrize(("accumulate", "total"), [("", 32), (4, 128)])
def test_blank_global_batch_follows_from_the_micro_batch(accumulate: Any, total: int) -> None:
    found = job(devices=4, micro_batch=8, grad_accum=accumulate)
    assert found.plans.global_batch[0] == total


def test_a_row_without_any_batch_says_so() -> None:
    assert reason(devices=4).startswith("no batch size")


def test_an_integer_may_be_written_as_a_float() -> None:
    table = Table.from_rows([{**GPT, "devices": "8.0", "tp": "8.0", "global_batch": "16.0"}])
    found = jobs_from_table(table, load_catalog())[0]
    assert (found.plan.tp, found.plan.global_batch) == (8, 16)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"tp": 1.5}, "tp=1.5 is not a whole number above zero"),
        ({"dp": -2}, "dp=-2 is not a whole number above zero"),
        ({"micro_batch": 0}, "micro_batch=0 is not a whole number above zero"),
        ({"global_batch": 1e18}, "global_batch=1e+18 is not"),
        ({"global_batch": 1e30}, "global_batch=1e+30 is no figure of a run"),
        ({"zero_stage": 4}, "zero_stage is above 3"),
        ({"dp": 2**30, "tp": 2**30}, "multiply to more than 2^31"),
        ({"recompute": "sometimes"}, "no such recompute"),
        ({"sync": "gossip"}, "no such sync"),
        ({"memory_format": "hwcn"}, "no such memory_format"),
        ({"sequence_parallel": "perhaps"}, "neither true nor false"),
        ({"tp": 3, "dp": 1, "devices": 3}, "16 attention heads are not divisible by tp=3"),
    ],
)
def test_an_impossible_cell_is_a_reason_and_not_an_exception(
    cells: dict[str, Any], words: str
) -> None:
    assert words in reason(**{"devices": 4, "micro_batch": 1, "global_batch": 16, **cells})


def test_one_bad_row_leaves_the_others_alone() -> None:
    found = jobs(
        {"devices": 4, "global_batch": 8}, {"devices": 4, "global_batch": -8},
        {"devices": 4, "global_batch": 8},
    )  # fmt: skip
    assert found.resolved.tolist() == [True, False, True]


def test_words_of_a_plan_are_read_in_any_case_and_blanks_are_the_defaults() -> None:
    found = job(
        devices=8, tp=8, global_batch=8, recompute="Full", sequence_parallel="True", sync=""
    )[0].plan
    assert (found.recompute, found.sequence_parallel, found.sync) == ("full", True, "allreduce")
    assert (found.zero_stage, RECOMPUTE[0], SYNC[0]) == (0, "none", "allreduce")


def test_a_framework_that_shards_states_or_splits_sequences_does_so_where_nothing_is_stated() -> (
    None
):
    cells = {"devices": 32, "tp": 4, "pp": 8, "global_batch": 64}
    for framework, zero_stage, split in (
        ("NVIDIA NeMo", 1, False), ("Megatron-Bridge", 1, True), ("nanotron", 0, True),
        ("PyTorch", 0, False),
    ):  # fmt: skip
        plan = job(**cells, framework=framework)[0].plan
        assert (plan.vpp, plan.zero_stage, plan.sequence_parallel) == (1, zero_stage, split)
    stated = job(**cells, framework="NeMo", vpp=3, zero_stage=0)[0].plan
    assert (stated.vpp, stated.zero_stage) == (3, 0)


def test_a_parameter_server_job_has_a_server() -> None:
    assert job(devices=4, global_batch=8, sync="ps-async").plans.parameter_servers[0] == 1
    stale = job(
        devices=4, global_batch=8, sync="ps-stale", stale_bound=3, servers_with_workers="true"
    )
    plan = stale[0].plan
    assert (plan.stale_bound, plan.servers_with_workers, plan.parameter_servers) == (3, True, 1)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"stale_bound": -1}, "stale_bound=-1 is not a whole number from 0 upward"),
        ({"stale_bound": 2, "sync": "ps-async"}, "use sync=ps-stale or stale_bound=0"),
        ({"sparse_fraction": 0.0}, "above 0 and at most 1"),
        ({"sparse_fraction": 1.5}, "above 0 and at most 1"),
        ({"sync": "ps-async", "zero_stage": 1}, "data parallel only"),
        ({"servers_with_workers": "maybe"}, "write true or false"),
        ({"gradient_bits": 1.5}, "gradient_bits=1.5 is not a whole number from 0 upward"),
        ({"gradient_bits": 65}, "gradient_bits is above 64; write 0 to 64"),
    ],
)
def test_what_parameter_servers_cannot_be_asked_declines_the_row(
    cells: dict[str, Any], words: str
) -> None:
    assert words in str(job(devices=4, global_batch=8, **cells).problem(0))


def test_layers_cut_over_workers_are_answered_by_physics_alone_and_never_learned(
    tmp_path: Path,
) -> None:
    """They are no plain data parallelism to laws, in tables and from the store; no fit moves by their times."""
    rows = [
        {"workload": "resnet50", "framework": "pytorch", "device": "t4", "devices": n, "global_batch": 64,
         "micro_batch": 64 // n * p, "partitions": p, "step_time_s": 0.2 + 0.4 / n, "memory_gb": 3.0 * p}
        for n in (2, 4, 8, 16) for p in (1, 2)
    ]  # fmt: skip
    runs = runs_from_table(Table.from_rows(rows), load_catalog())
    with open_store(str(tmp_path / "runs.db")) as store:
        store.add_table(runs.table, runs.jobs)
        kept = store.runs()
    laws = Ernest().fit(runs), Hierarchical().fit(runs), Gaussian().fit(runs), ConstantMFU()
    whole = runs.take(np.flatnonzero(runs.jobs.plans.partitions == 1))
    for one in (runs, kept):
        cut = one.table.numbers("partitions") > 1
        assert one.jobs.plans.partitions.tolist() == one.table.numbers("partitions").tolist()
        assert one.jobs.plans.dp.tolist() == [2, 1, 4, 2, 8, 4, 16, 8]
        assert np.isnan(measured(one, "step")).tolist() == cut.tolist()
        for law in laws:
            declined = law.predict(one.jobs).declined
            assert [str(why).startswith("its layers are cut") for why in declined] == cut.tolist()
        for kind in (AnalyticPredictor, ResidualPredictor):
            fitted, without = (kind.shipped().fit(each) for each in (one, whole))
            found = fitted.predict(one.jobs)
            assert found.answered.all()
            assert (found.seconds == without.predict(one.jobs).seconds).all()
            physics = getattr(fitted, "physics", fitted)
            assert (found.seconds[cut] == physics.predict(one.jobs).seconds[cut]).all()


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"partitions": 0}, "partitions=0 is not a whole number above zero"),
        ({"partitions": 1.5}, "partitions=1.5 is not a whole number above zero"),
        ({"partitions": 3}, "4 devices are not divisible by partitions=3; choose a divisor"),
        ({"partitions": 2, "dp": 4}, "dp=4 x partitions=2 make 8 devices, but the cluster has 4"),
        ({"partitions": 2, "tp": 2}, "use tp=1, pp=1, cp=1, ep=1, zero_stage=0"),
        ({"partitions": 2, "zero_stage": 1}, "use tp=1, pp=1, cp=1, ep=1, zero_stage=0"),
    ],
)
def test_cuts_that_cannot_be_decline_the_row(cells: dict[str, Any], words: str) -> None:
    assert words in reason(devices=4, global_batch=8, **cells)


def test_an_unknown_workload_keeps_its_reason_beside_its_cluster() -> None:
    row = {"workload": "no-such-net", "device": "t4", "devices": 4, "global_batch": 8}
    found = jobs_from_table(Table.from_rows([row]), load_catalog())
    assert found.workload_index[0] == -1
    assert found.cluster_index[0] == 0
    assert "no-such-net" in (found.problem(0) or "")


def test_an_unknown_device_keeps_its_reason_and_its_plan() -> None:
    found = job(device="abacus-9000", devices=4, global_batch=8)
    assert found.cluster_index[0] == -1
    assert "abacus-9000" in str(found.cluster_problem[0])  # type: ignore[index]
    assert found.plans.dp[0] == 4


def test_equal_rows_share_their_workload_and_cluster() -> None:
    found = jobs(*({"devices": 4, "global_batch": 8 * i} for i in range(1, 50)))
    assert (len(found.workloads), len(found.clusters)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "devices", "nodes", "counts"),
    [
        ("4444", None, None, (4, 4, 4, 4)), ("134", 8, 3, (1, 3, 4)), ("4-4-2", None, 3, (4, 4, 2)),
        ("16-16", 32, 2, (16, 16)), ("16", 16, 1, (16,)), ("16", 7, 2, (1, 6)), ("", 4, 1, ()),
    ],
)  # fmt: skip
def test_a_placement_is_one_digit_a_node_or_counts_with_dashes(
    text: str, devices: int | None, nodes: int | None, counts: tuple[int, ...]
) -> None:
    assert parse_placement(text, devices, nodes) == counts


@pytest.mark.parametrize("text", ["4-x", "40", "four", "4--4", "-", "4.4", "\u0664"])
def test_a_placement_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match="placement"):
        parse_placement(text, None, None)


@pytest.mark.parametrize(
    ("cells", "layout"),
    [
        ({"devices": 8}, NodeLayout(8, 1, 8)),
        ({"devices": 32}, NodeLayout(32, 4, 8)),
        ({"devices": 3}, NodeLayout(3, 1, 3)),
        ({"nodes": 2}, NodeLayout(16, 2, 8)),
        ({"nodes": 2, "devices": 8}, NodeLayout(8, 2, 4)),
        ({"nodes": 1, "devices": 2, "devices_per_node": 8}, NodeLayout(2, 1, 2)),
        ({"devices": 12}, NodeLayout(12, 2, 6)),
        ({"devices": 12, "devices_per_node": 8}, NodeLayout(12, 2, 6)),
        ({"devices": 11, "devices_per_node": 8}, NodeLayout(11, 2, 8, (8, 3))),
        ({"devices": 10, "nodes": 3}, NodeLayout(10, 3, 4, (4, 3, 3))),
        ({"placement": "44", "devices": 8}, NodeLayout(8, 2, 4)),
        ({"placement": "134"}, NodeLayout(8, 3, 4, (1, 3, 4))),
    ],
)
def test_what_a_row_leaves_out_of_its_layout_follows_from_the_rest(
    cells: dict[str, Any], layout: NodeLayout
) -> None:
    assert layout_of(cells, 8) == layout


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({}, "how many devices is not stated"),
        ({"devices": 2.5}, "devices=2.5 is not a whole number"),
        ({"devices": 1e12}, "is not a whole number"),
        ({"devices": 2, "nodes": 4}, "2 devices do not lie on 4 nodes"),
        ({"devices": 20, "nodes": 2, "devices_per_node": 8}, "do not lie on 2 nodes of 8"),
        ({"placement": "44", "devices": 16}, "has 8 devices, but devices is 16"),
        ({"placement": "44", "nodes": 3}, "has 2 nodes, but nodes is 3"),
    ],
)
def test_counts_that_contradict_one_another_are_refused(cells: dict[str, Any], words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        layout_of(cells, 8)


def test_the_plan_tells_the_devices_where_the_cluster_columns_do_not() -> None:
    assert job(dp=2, tp=4, global_batch=8)[0].cluster.devices == 8


def test_an_uneven_placement_reaches_the_cluster() -> None:
    cluster = job(devices=8, placement="1-3-4", global_batch=8)[0].cluster
    assert (cluster.placement, cluster.nodes, cluster.devices) == ((1, 3, 4), 3, 8)


def test_a_row_that_names_a_known_machine_gets_its_devices_and_links() -> None:
    row = {"device": "", "instance_type": "aws:g4dn.12xlarge", "nodes": 2, "global_batch": 8}
    cluster = job(**row)[0].cluster
    named = load_catalog().cluster("2xaws:g4dn.12xlarge")
    assert (cluster.device.id, cluster.devices) == ("t4", 8)
    assert (cluster.intra, cluster.inter) == (named.intra, named.inter)


def test_part_of_a_known_machine_is_only_that_part() -> None:
    row = {"device": "t4", "instance_type": "aws:g4dn.12xlarge", "devices": 2, "global_batch": 8}
    assert job(**row)[0].cluster.devices == 2


def test_a_machine_with_other_devices_than_the_row_says_does_not_win() -> None:
    row = {"device": "v100", "instance_type": "aws:g4dn.12xlarge", "devices": 4, "global_batch": 8}
    assert job(**row)[0].cluster.device.id.startswith("v100")


def test_the_price_of_a_row_is_that_of_the_whole_cluster() -> None:
    found = job(devices=16, global_batch=16, price_usd_per_hour=64.0)
    assert found[0].cluster.dollars_per_hour == 64.0


def test_a_rate_becomes_a_step_through_the_batch_that_the_row_implies() -> None:
    row = {**GPT, "devices": 4, "micro_batch": 8, "samples_per_s": 64.0}
    runs = runs_from_table(Table.from_rows([row]), load_catalog())
    assert runs.step_seconds()[0] == pytest.approx(0.5)
    assert np.isnan(runs.jobs.labels.numbers("global_batch")[0])  # type: ignore[union-attr]


CELLS = st.one_of(st.floats(allow_nan=True), st.integers(-3, 70), st.just(""))


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(
            ["devices", "nodes", "devices_per_node", "dp", "tp", "pp", "cp", "ep", "vpp",
             "micro_batch", "global_batch", "grad_accum", "zero_stage", "parameter_servers",
             "price_usd_per_hour"]
        ),
        CELLS,
    ),
    st.text(max_size=4),
)  # fmt: skip
def test_no_row_of_numbers_raises(cells: dict[str, Any], text: str) -> None:
    """Whatever the cells hold, the row is a checked job or has a reason."""
    found = job(**cells, placement=text, recompute=text, sync=text)
    assert found.problem(0) is not None or found[0].plan.world_size == found[0].cluster.devices


def test_two_hundred_thousand_rows_take_seconds() -> None:
    """A million within a minute: a fifth of it within a fifth of the time."""
    n = 200_000
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {k: [v] * n for k, v in GPT.items()}
    columns["devices"] = rng.choice([8.0, 64.0], n)
    columns["tp"] = rng.choice([1.0, 2.0, 4.0, 8.0], n)
    columns["micro_batch"] = rng.choice([1.0, 2.0], n)
    columns["global_batch"] = rng.choice([256.0, 512.0], n)
    table = Table.from_columns(columns)
    start = time.perf_counter()
    found = jobs_from_table(table, load_catalog())
    assert time.perf_counter() - start < 12
    assert found.resolved.all()


@pytest.mark.data
@pytest.mark.parametrize("name", ["vtrain", "llm_foundry", "korthikanti2022", "mtnlg"])
def test_every_row_of_a_published_table_is_a_checked_job(name: str) -> None:
    assert jobs_from_table(read_table(published(name)), load_catalog()).resolved.all()


@pytest.mark.data
def test_every_placement_of_pollux_has_the_devices_that_its_row_says() -> None:
    table = read_table(published("pollux"))
    found = jobs_from_table(table, load_catalog())
    assert (found.cluster_index >= 0).all()
    assert np.array_equal(found.per_cluster("devices"), table.numbers("devices"))


@pytest.mark.data
def test_ultrascale_is_refused_only_where_stages_outnumber_layers() -> None:
    found = jobs_from_table(read_table(published("ultrascale")), load_catalog())
    reasons = [found.problem(int(i)) or "" for i in np.flatnonzero(~found.resolved)]
    assert reasons
    assert all("stages, but" in r for r in reasons)
