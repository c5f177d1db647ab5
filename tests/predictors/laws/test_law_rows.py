"""LawRows: what tables and plans say of sizes, nodes and batches, and what they leave open."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.predictors.laws.law_rows import LawRows, filled, placement_counts
from forerun.testing.samples import tiny_jobs
from tests.predictors.laws.rows import jobs_of

NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "devices", "counts"),
    [("134", 8, (3, 4, 1)), ("4-4-2", 10, (3, 4, 2)), ("16", 16, (1, 16, 16)),
     ("88", 16, (2, 8, 8)), ("[8, 8]", 16, (2, 8, 8)), ("4,0,4", 8, (2, 4, 4)),
     ("12-12", 24, (2, 12, 12)), ("1", 1, (1, 1, 1))],
)  # fmt: skip
def test_a_placement_is_a_digit_a_node_or_counts_with_separators(
    text: str, devices: int, counts: tuple[int, int, int]
) -> None:
    assert placement_counts(text, devices) == counts


@pytest.mark.parametrize("text", ["", "spread", "-", "0"])
def test_what_is_no_placement_says_nothing(text: str) -> None:
    assert np.isnan(placement_counts(text, 4)).all()


def test_nodes_come_from_the_placement_then_the_columns_and_one_device_has_one_node() -> None:
    rows = LawRows(jobs_of(
        devices=[8, 8, 8, 8, 1, 6], placement=["134", "", "", "", "", ""],
        nodes=[2, 2, NAN, NAN, 3, 4], devices_per_node=[NAN, NAN, 4, NAN, NAN, NAN],
    ))  # fmt: skip
    np.testing.assert_array_equal(rows.placements.nodes, [3, 2, 2, NAN, 1, 4])
    np.testing.assert_array_equal(rows.placements.most, [4, 4, 4, NAN, 1, 2])
    np.testing.assert_array_equal(rows.placements.fewest, [1, 4, 4, NAN, 1, 1])


def test_passes_are_batch_over_micro_batch_and_replicas_before_what_is_labelled() -> None:
    rows = LawRows(jobs_of(
        devices=[4, 4, 4, 4, 8], global_batch=[256, 256, 256, NAN, 64],
        micro_batch=[16, NAN, 64, 8, 16], grad_accum=[3, 2, NAN, 5, NAN],
        dp=[NAN, NAN, NAN, NAN, 2],
    ))  # fmt: skip
    np.testing.assert_array_equal(rows.micro_batch, [16, 32, 64, 8, 16])
    np.testing.assert_array_equal(rows.accumulation, [4, 2, 1, 5, 2])


def test_plans_without_labels_say_their_batches_themselves() -> None:
    jobs = tiny_jobs()
    rows = LawRows(jobs)
    passes = jobs.plans.global_batch / (jobs.plans.micro_batch * jobs.plans.dp)
    np.testing.assert_allclose(rows.accumulation, np.maximum(passes, 1))
    assert np.isfinite(rows.placements.nodes).all()


def test_kinds_differ_in_any_setting_whether_it_is_text_or_a_number() -> None:
    rows = LawRows(jobs_of(
        devices=[1] * 6, framework=["a", "a", "b", "b", "a", " a"],
        image_size=[224, 299, 224, 224, 224, 224], sync=["", "", "", "ps-async", "", ""],
    ))  # fmt: skip
    kinds, index = rows.kinds
    assert len(kinds) == 4
    assert index[0] == index[4] == index[5]
    assert kinds[index[1]] == ("sgd-job", "core", "a", "", "", "299", "", "allreduce", "", "")
    assert kinds[index[3]][7] == "ps-async"


def test_what_a_worker_is_given_makes_another_kind_but_for_whoever_reads_numbers() -> None:
    jobs = jobs_of(devices=[1] * 4, cpus_per_worker=[1, 2, 1, ""], node_gbps=[10, 10, 25, ""])
    kinds, index = LawRows(jobs).kinds
    assert len(kinds) == 4
    assert kinds[index[2]][-2:] == ("1", "25")
    assert len(LawRows(jobs, apart=False).kinds[0]) == 1


def test_a_resource_that_never_varied_may_be_left_out_of_a_question() -> None:
    known = LawRows(jobs_of(devices=[1, 2], cpus_per_worker=[2, 2], node_gbps=[10, 10])).kinds[0]
    blank = LawRows(jobs_of(devices=[4])).kinds[0]
    assert filled(blank, known) == known
    both = LawRows(jobs_of(devices=[1, 2], cpus_per_worker=[2, 4], node_gbps=[10, 10])).kinds[0]
    assert filled(blank, both) == blank  # which of the two is meant, nobody says
    part = LawRows(jobs_of(devices=[4], cpus_per_worker=[4])).kinds[0]
    assert filled(part, both)[0][-2:] == ("4", "10")
    other = LawRows(jobs_of(devices=[4], cpus_per_worker=[8])).kinds[0]
    assert filled(other, both) == other
