"""Batches that the plan does not multiply to, and those that are left blank, each by its row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.tables.suspects import KINDS, FlagKind, suspects
from tests.tables.suspect_tables import runs_of

ROW = {"workload": "resnet50", "device": "a100-sxm-80gb", "nodes": 1, "devices": 8,
       "precision": "fp16", "step_time_s": 0.09, "global_batch": 512}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind", "column", "words"),
    [
        ({"micro_batch": 48}, FlagKind.ACCUMULATION, "global_batch",
         "global_batch is 512 samples; expected a multiple of 384 = micro_batch x dp"),
        ({"plan": "micro_batch=48"}, FlagKind.ACCUMULATION, "global_batch", "a multiple of 384"),
        ({"global_batch": 500}, FlagKind.ACCUMULATION, "global_batch", "a multiple of 8 = dp"),
        ({"micro_batch": 64, "grad_accum": 3}, FlagKind.ACCUMULATION, "grad_accum",
         "grad_accum is 3; expected 1 = global_batch / (micro_batch x dp)"),
        ({"global_batch": "", "micro_batch": 64}, FlagKind.BATCH, "global_batch",
         "global_batch is blank; expected 512 = micro_batch x dp, which is taken; fill it in"),
        ({"global_batch": ""}, FlagKind.PLAN, "global_batch", "no batch size; fill global_batch"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_add_up_is_flagged(
    change: dict[str, Any], kind: FlagKind, column: str, words: str
) -> None:
    runs, forecasts = runs_of(ROW, {**ROW, **change})
    flags = suspects(runs, forecasts)
    own = np.flatnonzero((flags.row == 1) & (flags.column == column))
    assert [KINDS[k] for k in flags.kind[own]] == [kind]
    assert words in flags.text(int(own[0]))


@pytest.mark.parametrize(
    "change",
    [{}, {"micro_batch": 64}, {"micro_batch": 16}, {"micro_batch": 16, "grad_accum": 4},
     {"global_batch": "", "micro_batch": 16, "grad_accum": 4}, {"plan": "micro_batch=32"}],
)  # fmt: skip
def test_a_batch_that_adds_up_bears_no_flag(change: dict[str, Any]) -> None:
    runs, forecasts = runs_of({**ROW, **change})
    assert not suspects(runs, forecasts).of(FlagKind.ACCUMULATION, FlagKind.BATCH).any()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 64), st.integers(1, 20), st.integers(0, 600))
def test_a_batch_is_flagged_exactly_where_it_is_no_multiple(
    micro: int, times: int, more: int
) -> None:
    batch = 8 * micro * times + more
    runs, forecasts = runs_of({**ROW, "micro_batch": micro, "global_batch": batch})
    flagged = suspects(runs, forecasts).of(FlagKind.ACCUMULATION).any()
    assert flagged == (batch % (8 * micro) != 0)
