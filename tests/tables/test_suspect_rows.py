"""Rows that teach nothing or little, each with its kind, its column and what to do about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.forecast import Forecasts
from forerun.tables import Runs, Table
from forerun.tables.suspects import KINDS, FlagKind, Flags, cleaned, suspects
from forerun.tables.suspects.judging import capacity_flags
from forerun.testing.samples import tiny_jobs, tiny_runs
from tests.tables.suspect_tables import GPT, grid, measured, runs_of, with_column

ROW = {
    "workload": "resnet50", "device": "a100-sxm-80gb", "nodes": 1, "devices": 8,
    "global_batch": 512, "precision": "fp16", "step_time_s": 0.09, "status": "ok",
}  # fmt: skip


def flags_of(*changes: dict[str, Any]) -> tuple[Runs, Forecasts, Flags]:
    """Return rows like `ROW` but for some cells, and their flags."""
    runs, forecasts = runs_of(*({**ROW, **change} for change in changes))
    return runs, forecasts, suspects(runs, forecasts)


def kinds(flags: Flags) -> list[FlagKind]:
    return [KINDS[k] for k in flags.kind]


def test_every_kind_has_its_policy() -> None:
    assert all(kind.meaning and kind.fate for kind in KINDS)


def test_a_sound_row_bears_no_flag() -> None:
    _, _, flags = flags_of({})
    assert len(flags) == 0
    assert flags.teaches_step.all()
    assert flags.as_dict()["counts"] == {}


@pytest.mark.parametrize(
    ("change", "kind", "column", "words"),
    [
        ({"device": "a100-sxm-81gb"}, FlagKind.CLUSTER, "device", "did you mean a100-sxm-80gb"),
        ({"nodes": 9}, FlagKind.CLUSTER, "devices nodes", "do not lie on 9 nodes"),
        ({"workload": "no-such-net"}, FlagKind.WORKLOAD, "workload", "not in the zoo"),
        ({"dp": 4}, FlagKind.DEVICES, "plan", "the cluster has 8"),
        ({"tp": 3}, FlagKind.DEVICES, "devices", "not divisible by tp x pp x cp = 3"),
        ({"tp": 2}, FlagKind.PLAN, "tp", "tp=2"),
        ({"workload": "gpt2", "precision": "bf16", "tp": 8}, FlagKind.PLAN, "tp heads", "12 attention heads are not divisible"),
        ({"partitions": 2}, FlagKind.CUT, "partitions", "no fit learns from such a run"),
        ({"global_batch": ""}, FlagKind.PLAN, "global_batch", "fill global_batch"),
        ({"status": "done"}, FlagKind.STATUS, "status", "one of ok oom failed timeout"),
        ({"status": "oom"}, FlagKind.ENDED, "status", "ran out of memory"),
        ({"status": "timeout"}, FlagKind.ENDED, "status", "lower bound"),
        ({"step_time_s": -3}, FlagKind.CELL, "step_time_s", "a number above zero"),
        ({"step_time_s": 0}, FlagKind.CELL, "step_time_s", "a number above zero"),
        ({"step_time_s": ""}, FlagKind.UNMEASURED, "step_time_s", "fill in step_time_s"),
    ],
)  # fmt: skip
def test_a_row_says_why_it_teaches_no_time(
    change: dict[str, Any], kind: FlagKind, column: str, words: str
) -> None:
    _, _, flags = flags_of({}, change)
    at = np.flatnonzero((flags.row == 1) & flags.of(kind))
    assert len(at), f"{kinds(flags)}: {[flags.text(i) for i in range(len(flags))]}"
    assert flags.column[at[0]] in column.split()
    assert words in flags.text(int(at[0]))
    assert flags.text(int(at[0])).startswith("row 2: ")
    assert flags.teaches_step.tolist() == [True, False]


def test_a_cut_run_is_not_said_to_lack_its_step_time() -> None:
    _, _, flags = flags_of({}, {"partitions": 2})
    assert kinds(flags) == [FlagKind.CUT]
    assert "--predictor" not in flags.text(0)


def test_a_cell_that_is_no_number_is_that_row_s_alone() -> None:
    _, _, flags = flags_of({}, {"step_time_s": "abc"})
    assert kinds(flags) == [FlagKind.CELL]
    assert flags.text(0) == "row 2: step_time_s='abc' is not a number; correct it"


def test_a_step_below_its_floor_names_the_precision_that_would_explain_it() -> None:
    runs, forecasts, _ = flags_of({"precision": "fp32"})
    floor = float(forecasts.floor_seconds[0])
    flags = suspects(with_column(runs, "step_time_s", np.array([0.7 * floor])), forecasts)
    assert kinds(flags) == [FlagKind.FLOOR]
    assert flags.text(0).endswith("fp32 is taken: fill in precision if it was 16-bit")


@settings(max_examples=50)
@given(seed=st.integers(0, 999), share=st.floats(0.0005, 0.97))
def test_no_step_below_its_floor_ever_teaches(seed: int, share: float) -> None:
    runs, forecasts, seconds = measured("step_time_s", seed)
    row = seed % len(runs)
    seconds = seconds.copy()
    seconds[row] = share * forecasts.floor_seconds[row]
    runs = with_column(runs, "step_time_s", seconds)
    flags = suspects(runs, forecasts)
    assert not flags.teaches_step[row]
    assert np.isnan(cleaned(runs, flags).step_seconds()[row])


def test_more_memory_than_the_device_has_teaches_no_memory() -> None:
    _, _, flags = flags_of({"memory_gb": 60.0}, {"memory_gb": 160.0})
    assert kinds(flags) == [FlagKind.CAPACITY]
    assert flags.teaches_step.all()
    assert flags.rows_with(flags.out_memory).tolist() == [False, True]


@given(share=st.floats(0.5, 1.5))
@settings(max_examples=25, deadline=None)
def test_memory_is_flagged_beyond_the_gib_of_what_is_sold_in_gb(share: float) -> None:
    """About 86e9 bytes of a card that is sold with 80 GB."""
    jobs = tiny_jobs()
    stated = jobs.per_cluster("device.memory_bytes")
    runs = tiny_runs(jobs, memory_gb=share * stated / 1e9)
    flagged = sum(len(raised.row) for raised in capacity_flags(runs))
    assert bool(flagged) == (share > 2**30 / 1e9)


def test_repeats_within_noise_are_no_contradiction() -> None:
    _, _, flags = flags_of({"step_time_s": 0.09}, {"step_time_s": 0.1}, {"step_time_s": 0.095})
    assert len(flags) == 0


def test_of_two_repeats_that_contradict_both_are_named_and_kept() -> None:
    _, _, flags = flags_of({"step_time_s": 0.09}, {"step_time_s": 0.2}, {"global_batch": 256})
    assert kinds(flags) == [FlagKind.REPEATS] * 2
    assert flags.row.tolist() == [0, 1]
    assert "expected near 0.2 s, which row 2 says of the same job" in flags.text(0)
    assert flags.teaches_step.all()


def test_of_many_repeats_only_the_odd_one_is_named() -> None:
    _, _, flags = flags_of(*({"step_time_s": s} for s in (0.09, 0.091, 0.092, 0.2)))
    assert flags.row.tolist() == [3]


def test_of_repeats_without_order_those_are_named_that_most_contradict() -> None:
    _, _, flags = flags_of(*({"step_time_s": s} for s in (0.1, 0.2, 0.101, 0.28)))
    assert kinds(flags) == [FlagKind.REPEATS] * 2
    assert flags.row.tolist() == [1, 3]
    assert "expected near 0.1005 s, as 2 of the 4 runs of the job say" in flags.text(0)


@pytest.mark.parametrize("steps", [(0.1, 0.2, 0.3), (0.1, 0.101, 0.2, 0.201)])
def test_repeats_of_which_no_most_agrees_are_all_named_and_it_is_said(
    steps: tuple[float, ...],
) -> None:
    _, _, flags = flags_of(*({"step_time_s": s} for s in steps))
    assert flags.row.tolist() == list(range(len(steps)))
    assert f"its {len(steps)} runs say 0.1 to {steps[-1]} s and no most of them agree" in (
        flags.text(0)
    )


def test_a_note_tells_jobs_apart() -> None:
    _, _, flags = flags_of({"step_time_s": 0.09}, {"step_time_s": 0.2, "note": "old driver"})
    assert len(flags) == 0


def test_a_row_in_another_unit_is_no_contradiction_of_its_repeat() -> None:
    _, _, flags = flags_of({"step_time_s": 0.09}, {"step_time_s": 90.0})
    assert kinds(flags) == [FlagKind.UNIT]


def test_columns_of_one_row_that_disagree_are_said() -> None:
    _, _, flags = flags_of({"samples_per_s": 5689.0}, {"samples_per_s": 7600.0})
    assert kinds(flags) == [FlagKind.COLUMNS]
    assert flags.row.tolist() == [1]
    assert "samples_per_s implies" in flags.text(0)
    assert flags.teaches_step.all()


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ({"micro_batch": 4, "global_batch": 64, "grad_accum": 2}, False),
        ({"micro_batch": 4, "global_batch": 64, "grad_accum": 3}, True),
        ({"micro_batch": 4, "global_batch": 64}, False),
        ({"micro_batch": 4, "global_batch": 65}, True),
        ({"global_batch": 64, "grad_accum": 2}, False),
    ],
)
def test_an_accumulation_that_does_not_multiply_out_is_said(
    cells: dict[str, Any], wrong: bool
) -> None:
    runs, forecasts = runs_of({**GPT, "devices": 8, "dp": 8, **cells, "step_time_s": 1.0})
    flags = suspects(with_column(runs, "step_time_s", forecasts.seconds[:, 1]), forecasts)
    assert kinds(flags) == ([FlagKind.ACCUMULATION] if wrong else [])
    assert flags.teaches_step.all()


def test_devices_that_do_not_divide_among_their_nodes_are_said_and_kept() -> None:
    uneven = {"devices": 30, "nodes": 4, "global_batch": 240, "step_time_s": 0.1}
    _, _, flags = flags_of(uneven, {**uneven, "placement": "8-8-7-7"})
    of = flags.of(FlagKind.PLACEMENT)
    assert flags.row[of].tolist() == [0]
    assert "devices is 30; expected 4 nodes to divide it" in flags.text(int(np.flatnonzero(of)[0]))
    assert flags.teaches_step.all()


def test_all_out_of_memory_teaches_no_time_and_every_row_says_so() -> None:
    _, _, flags = flags_of(*({"status": "oom", "step_time_s": ""} for _ in range(3)))
    assert flags.counts() == {"ended": 3}
    assert not flags.teaches_step.any()
    assert not flags.rows_with(flags.out_memory).any()
    assert not flags.suspect.any()


def test_what_physics_does_not_know_keeps_its_figures_for_those_who_learn_by_label() -> None:
    runs, _, flags = flags_of({"workload": "no-such-net"}, {"device": "no-such-gpu"}, {"dp": 4})
    assert not flags.teaches_step.any()
    assert np.isfinite(cleaned(runs, flags).step_seconds()).tolist() == [True, True, False]


def test_cleaning_keeps_rows_order_and_what_is_sound() -> None:
    runs, _, flags = flags_of({}, {"step_time_s": 90.0, "memory_gb": 10.0}, {"step_time_s": 0.1})
    clean = cleaned(runs, flags)
    assert len(clean) == 3
    assert np.isnan(clean.step_seconds()).tolist() == [False, True, False]
    assert clean.table.numbers("memory_gb")[1] == 10.0
    assert runs.step_seconds()[1] == 90.0  # what was given does not change


def test_flags_are_columns_with_file_line_and_all_that_is_to_be_known() -> None:
    _, _, flags = flags_of({}, {"step_time_s": 90.0}, {"dp": 4})
    table = flags.as_table()
    assert table.texts("kind").tolist() == ["unit", "devices"]
    assert table.numbers("line").tolist() == [2, 3]
    assert table.texts("column").tolist() == ["step_time_s", "plan"]
    assert table.texts("found")[0] == "90 s"
    assert table.columns["teaches_step_time"].tolist() == [False, False]
    said = flags.as_dict()
    assert said["suspect_rows"] == 2
    assert said["rows_that_teach_time"] == 1
    assert {len(column) for column in said["flags"].values()} == {2}


def test_no_rows_have_no_flags() -> None:
    runs, forecasts = grid()
    none = np.zeros(len(runs), dtype=bool)
    assert len(suspects(runs.take(none), forecasts.take(none))) == 0


def test_a_table_without_measured_columns_is_unmeasured() -> None:
    runs, forecasts = grid()
    flags = suspects(runs, forecasts)
    assert flags.counts() == {"unmeasured": len(runs)}
    assert isinstance(flags.as_table(), Table)


def test_a_unit_that_would_be_faster_than_the_device_says_so() -> None:
    """A figure that cannot be is told by its likely unit, and by the floor that it passes."""
    sound = [{"devices": n, "global_batch": 64 * n, "step_time_s": 0.08 + 0.001 * n}
             for n in (1, 2, 4, 8)]  # fmt: skip
    _, forecasts, flags = flags_of(*sound, {"step_time_s": 0.0015}, {"step_time_s": 90.0})
    fast, slow = (flags.text(int(i)) for i in np.flatnonzero(flags.of(FlagKind.UNIT)))
    assert "it looks like minutes" in fast
    assert f"no step under {forecasts.floor_seconds[4]:.3g} s is possible" in fast
    assert "it looks like ms" in slow
    assert "is possible" not in slow
