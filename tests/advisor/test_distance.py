"""How far an answer lies from what was measured goes with the user's own runs."""

from __future__ import annotations

import pytest

from forerun.advisor import Advisor
from forerun.domain.forecast import MOST_SURE, meaning
from forerun.domain.workload import Length
from forerun.tables import Table
from forerun.workloads.rows import jobs_from_table

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


SURE = {"plan": "micro_batch=1,tp=8", "deadline": "300d", "budget": 1e9}
LONG = Length("tokens", 1e9)


def chances(advisor: Advisor, cluster: str) -> tuple[set[float], str]:
    """Return the probabilities of what is sure, and the answer's warnings."""
    found = advisor.predict("llama3-8b", cluster, length=LONG, framework="megatron", **SURE)
    assert found.to_json()["fits"] == found.chance["fits"] == found.estimate.fit_probability
    return set(found.chance.values()), " ".join(found.warnings)


def test_no_probability_is_above_99_in_100_on_a_device_that_no_run_is_on() -> None:
    """Neither the shipped constants' runs nor one's own; with one of these, or a probe, it may be."""
    known, warnings = chances(Advisor(), "1x8xh100-sxm-80gb")
    assert min(known) > MOST_SURE
    assert "no probability" not in warnings
    for advisor, cluster in (
        (Advisor(), "1x8xb300-sxm-270gb"), (Advisor(start="priors"), "1x8xh100-sxm-80gb"),
    ):  # fmt: skip
        found, warnings = chances(advisor, cluster)
        assert found == {MOST_SURE}
        assert "no probability above 0.99 is stated; give runs on it" in warnings
    own = [{**row, "device": "b300-sxm-270gb"} for row in ROWS]
    found, warnings = chances(Advisor().fit(Table.from_rows(own)), "1x8xb300-sxm-270gb")
    assert min(found) > MOST_SURE
    assert "no probability" not in warnings


def test_a_recommendation_is_no_surer_than_its_runs() -> None:
    """The options have it, at 99.5 % confidence as the reason of a refusal."""
    ask = {"clusters": ["1x8xb300-sxm-270gb"], "length": LONG, "framework": "megatron",
           "deadline": "300d", "plan": SURE["plan"]}  # fmt: skip
    best = Advisor().recommend("llama3-8b", **ask).best
    assert set(best.chance.values()) == {MOST_SURE}
    assert any("no probability above 0.99" in words for words in best.warnings)
    found = Advisor().recommend("llama3-8b", confidence=0.995, **ask)
    assert found.best is None
    assert "P(all, and it fits) = 99 %" in str(found.near_misses[0].misses)
    ask["clusters"] = ["1x8xh100-sxm-80gb"]
    assert Advisor().recommend("llama3-8b", confidence=0.995, **ask).best is not None


@pytest.mark.parametrize("name", ["analytic", "residual", "constant-mfu", "roofline", "auto"])
def test_predictors_know_on_which_devices_runs_are(name: str) -> None:
    runs = [
        {**JOB, "zero_stage": 3, "micro_batch": 1, "global_batch": batch, "device": device,
         "step_time_s": seconds * batch / 64}
        for batch in (64, 128, 256) for device, seconds in (("h100-sxm-80gb", 9.0), ("mi300x", 12.0))
    ]  # fmt: skip
    advisor = Advisor(predictor=name, start="" if name == "constant-mfu" else "priors")
    advisor = advisor.fit(Table.from_rows(runs))
    asked = [{**runs[0], "device": device} for device in ("mi300x", "b300-sxm-270gb")]
    jobs = jobs_from_table(Table.from_rows(asked), advisor.catalog)
    assert advisor.predictor.predict(jobs).unmeasured.tolist() == [False, True]
