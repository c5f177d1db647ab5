"""Comparing: which of several answers is best, and how surely, by the errors that they share."""

from __future__ import annotations

import json

import numpy as np
import pytest

import forerun
from forerun.advisor import Advisor, Answer
from forerun.errors import RequestError
from forerun.wire import dumps

H100, A100, V100 = "1x8xh100-sxm-80gb", "1x8xa100-sxm-80gb", "1x8xv100-sxm2-16gb"

WHOLE = "dp=8,tp=1,pp=1,cp=1,ep=1,vpp=1,micro_batch=1,zero_stage=0,recompute=full,sequence_parallel=false"


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """Return one network on three clusters."""
    return [Advisor().predict("resnet50", place, epochs=90) for place in (A100, H100, V100)]


def test_chances_of_each_pair_add_up_and_agree_with_what_recommend_says(
    answers: list[Answer],
) -> None:
    found = forerun.compare(*answers)
    for aim in ("time", "cost"):
        beats = found.beats[aim]
        off = ~np.eye(3, dtype=bool)
        assert (beats + beats.T)[off] == pytest.approx(1.0, abs=1e-6)
        assert np.isnan(np.diag(beats)).all()
        medians = [
            getattr(a.estimate, {"time": "wall_seconds", "cost": "dollars"}[aim])[1]
            for a in answers
        ]
        assert found.best[aim] == int(np.argmin(medians))
    plan = answers[0].job.plan
    advice = Advisor().recommend(
        "resnet50", clusters=[A100, H100], epochs=90, plan=plan, minimize="time"
    )
    pair = forerun.compare(
        *(Advisor().predict("resnet50", c, plan, epochs=90) for c in (A100, H100))
    )
    assert advice.best is not None
    assert advice.runner_up is not None
    best = pair.names.index(advice.best.job.cluster.name)
    assert pair.best["time"] == best
    assert pair.beats["time"][best][1 - best] == pytest.approx(
        advice.runner_up.beaten["time"], abs=1e-6
    )


def test_shared_errors_make_the_order_surer_than_the_bands() -> None:
    """Two clusters of one device err together: half as much money is surely less, though the bands overlap."""
    one, two = (Advisor().predict("resnet50", A100, epochs=90, price=p) for p in (10.0, 11.0))
    found = forerun.compare(one, two)
    assert one.estimate.dollars[2] > two.estimate.dollars[0]
    assert found.beats["cost"][0][1] == pytest.approx(1.0)
    assert found.beats["time"][0][1] == pytest.approx(0.5)


def test_a_job_that_does_not_fit_is_never_the_best() -> None:
    advisor = Advisor()
    fits = advisor.predict("llama3-8b", H100, "tp=8", tokens="1B")
    unfit = advisor.predict("llama3-8b", V100, WHOLE, tokens="1B", price=0.01)
    found = forerun.compare(unfit, fits)
    assert unfit.estimate.dollars[1] < fits.estimate.dollars[1]
    assert set(found.best.values()) == {1}
    assert forerun.compare(unfit, unfit).best == {}


def test_names_tell_the_jobs_apart_by_what_differs(answers: list[Answer]) -> None:
    found = forerun.compare(*answers)
    assert found.names == (A100, H100, V100)
    assert "cluster" in found.differs
    assert "workload" not in found.differs
    same = forerun.compare(answers[0], answers[0])
    assert same.differs == ()
    assert len(set(same.names)) == 2


def test_a_comparison_is_json_and_charts(answers: list[Answer]) -> None:
    found = forerun.compare(*answers)
    data = json.loads(dumps(found.to_json()))
    assert [job["cluster"]["name"] for job in data["jobs"]] == [A100, H100, V100]
    assert data["beats"]["time"][0][0] is None
    wall, cost = found.charts
    assert wall.series[0].low[0] < wall.series[0].y[0] < wall.series[0].high[0]
    assert cost.series[0].y == [a.estimate.dollars[1] for a in answers]


@pytest.mark.parametrize(("number", "found"), [(1, "nothing to compare"), (9, "at most 8")])
def test_too_few_and_too_many_are_one_message(
    answers: list[Answer], number: int, found: str
) -> None:
    with pytest.raises(RequestError, match=found):
        forerun.compare(*[answers[0]] * number)


def test_no_order_is_surer_than_may_be_said_of_a_device_without_runs() -> None:
    """Also in a recommendation, where one side is measured."""
    advisor = Advisor()
    places = ("1x1xb300", "1x1xt4")
    jobs = [advisor.predict("resnet50", place, epochs=90) for place in places]
    assert any(one.forecast.unmeasured for one in jobs)
    beats = forerun.compare(*jobs).beats["time"]
    assert sorted((beats[0, 1], beats[1, 0])) == pytest.approx([0.01, 0.99])
    found = advisor.recommend("resnet50", clusters=places, epochs=90, minimize="time")
    assert found.runner_up is not None
    assert found.runner_up.beaten["time"] == pytest.approx(0.99)
