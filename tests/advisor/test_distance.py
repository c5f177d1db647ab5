"""How far an answer lies from what was measured goes with the user's own runs."""

from __future__ import annotations

import pytest

from forerun.advisor import Advisor
from forerun.domain.forecast import meaning
from forerun.tables import Table

JOB = {"workload": "llama3-8b", "device": "h100-sxm-80gb", "nodes": 1, "devices": 8,
       "global_batch": 64}  # fmt: skip
LAYOUTS = ({"tp": 2, "micro_batch": 1, "zero_stage": 1}, {"micro_batch": 1, "zero_stage": 3},
           {"tp": 4, "micro_batch": 1, "zero_stage": 1})  # fmt: skip
ROWS = [{**JOB, **layout, "step_time_s": 9.0 + i} for i, layout in enumerate(LAYOUTS)]


def asked(advisor: Advisor, cluster: str = "1x8xh100-sxm-80gb") -> tuple[float, str]:
    """Return the distance of an answer about the job, and its words."""
    found = advisor.predict("llama3-8b", cluster, "tp=2,micro_batch=1", global_batch=64).forecast
    return found.distance, meaning(found.distance, found.distance_parts)


@pytest.mark.parametrize("start", ["priors", "shipped"])
def test_three_runs_of_this_very_job_bring_an_answer_beside_measured_runs(start: str) -> None:
    before, _ = asked(Advisor(start=start))
    distances = [asked(Advisor(start=start).fit(Table.from_rows(ROWS[:n])))[0] for n in (1, 2, 3)]
    assert before > distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.15 < 0.5 <= before
    assert asked(Advisor(start=start).fit(Table.from_rows(ROWS)))[1].startswith(
        "beside measured runs"
    )


def test_without_a_run_nothing_was_measured_of_this() -> None:
    assert asked(Advisor(start="priors"))[1].startswith("physics only, nothing measured")
    # What was published of the device counts; of the workload and of the place nothing is known.
    words = asked(Advisor(start="shipped"))[1]
    assert "no run of this workload or where it will run" in words


def test_another_device_stays_farther_than_the_one_that_was_measured() -> None:
    fitted = Advisor(start="priors").fit(Table.from_rows(ROWS))
    near, far = asked(fitted), asked(fitted, "1x8xa100-sxm-80gb")
    assert far[0] > near[0] + 0.2
    assert "no run on this device" in far[1]


def test_runs_of_several_places_do_not_say_where_it_will_run() -> None:
    rows = [{**row, "cluster": place} for row, place in zip(ROWS, "abc", strict=True)]
    assert "no run where it will run" in asked(Advisor().fit(Table.from_rows(rows)))[1]
