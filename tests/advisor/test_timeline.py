"""Timeline: the drawn schedule is one that real pipelines can run, and as long as theory says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.advisor import Advisor
from forerun.advisor.timeline import chrome_trace, schedule
from forerun.domain.plan import Plan
from forerun.errors import RequestError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 3))
def test_every_pass_is_drawn_once_and_no_stage_does_two_at_a_time(
    pp: int, m: int, vpp: int
) -> None:
    slots = schedule(pp, m, vpp if pp > 1 else 1, 1.0, 2.0)
    passes = [(s.stage, s.forward, s.micro_batch, s.chunk) for s in slots]
    chunks = 1 + max(s.chunk for s in slots)
    assert len(set(passes)) == len(passes) == 2 * pp * m * chunks
    for stage in range(pp):
        mine = sorted((s.start, s.start + s.duration) for s in slots if s.stage == stage)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12))
def test_a_pass_waits_for_the_one_it_needs(pp: int, m: int) -> None:
    ended = {(s.stage, s.forward, s.micro_batch): s.start + s.duration
             for s in schedule(pp, m, 1, 1.0, 2.0)}  # fmt: skip
    for s in schedule(pp, m, 1, 1.0, 2.0):
        if s.forward and s.stage:
            assert s.start >= ended[s.stage - 1, True, s.micro_batch] - 1e-9
        if not s.forward and s.stage < pp - 1:
            assert s.start >= ended[s.stage + 1, False, s.micro_batch] - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12))
def test_1f1b_lasts_m_plus_pp_minus_one_passes(pp: int, m: int) -> None:
    """Narayanan et al. 2021: (m + pp - 1)(t_f + t_b)."""
    slots = schedule(pp, m, 1, 1.0, 2.0)
    assert max(s.start + s.duration for s in slots) == pytest.approx((m + pp - 1) * 3.0)


def test_interleaving_shortens_the_bubble() -> None:
    """Narayanan et al. 2021: the bubble is divided by the number of chunks."""

    def total(vpp: int) -> float:
        return max(s.start + s.duration for s in schedule(4, 8, vpp, 1.0, 2.0))

    assert total(1) == pytest.approx(8 * 3 + 3 * 3)
    assert total(2) == pytest.approx(8 * 3 + 3 * 3 / 2)


def test_a_trace_of_too_many_passes_is_refused() -> None:
    answer = Advisor().predict(
        "resnet50", "1x1xt4", Plan(micro_batch=1, global_batch=1_000_000, dp=1)
    )
    with pytest.raises(RequestError, match="events"):
        chrome_trace(answer)
