"""Scaling: a curve over nodes is what `predict` says of each, with the fitted runs of the job on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.advisor import Advisor
from forerun.advisor.scaling import measured_rates, scaling_chart

RUNS = """workload,device,nodes,devices,global_batch,plan,step_time_s,precision,framework
resnet50,a100-sxm-80gb,1,8,256,dp=8,0.020,bf16,pytorch
resnet50,a100-sxm-80gb,2,16,512,dp=16,0.021,bf16,pytorch
resnet50,a100-sxm-80gb,2,16,512,dp=16,0.050,fp32,pytorch
resnet50,a100-sxm-80gb,2,16,512,dp=16,0.022,bf16,jax
resnet50,v100-sxm-16gb,1,8,256,dp=8,0.090,bf16,pytorch
resnet18,a100-sxm-80gb,1,8,256,dp=8,0.009,bf16,pytorch
"""


def test_each_point_is_what_predict_answers() -> None:
    advisor = Advisor()
    answer = advisor.predict("resnet50", "2x8xa100-sxm-80gb", "dp=16", framework="pytorch")
    chart = scaling_chart(advisor, answer, "dp=16")
    curve, ideal = chart.series
    assert list(curve.x) == [8, 16, 32, 64]
    assert curve.y[1] == answer.throughput["samples_per_second"]
    assert curve.low[1] == pytest.approx(answer.job.plan.global_batch / answer.step_seconds[2])
    four = advisor.predict("resnet50", "4x8xa100-sxm-80gb", framework="pytorch")
    assert curve.y[2] == pytest.approx(four.throughput["samples_per_second"])
    assert ideal.y[3] == pytest.approx(8 * curve.y[0])


def test_runs_of_the_job_are_on_the_curve_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(RUNS)
    advisor = Advisor().fit(path)
    answer = advisor.predict("resnet50", "1x8xa100-sxm-80gb", framework="pytorch")
    devices, rates = measured_rates(advisor, answer)
    assert devices.tolist() == [8, 16]
    assert rates == pytest.approx([256 / 0.020, 512 / 0.021])
    assert scaling_chart(advisor, answer).series[-1].name == "measured"
    anywhere = advisor.predict("resnet50", "1x8xa100-sxm-80gb")
    assert measured_rates(advisor, anywhere)[0].tolist() == [8, 16, 16]


def test_tokens_count_where_a_sample_has_them_and_what_is_not_legal_has_no_point() -> None:
    advisor = Advisor()
    answer = advisor.predict("llama3-8b", "2x8xh100-sxm-80gb", "tp=8,pp=2", global_batch=16)
    chart = scaling_chart(advisor, answer, "tp=8,pp=2", 16)
    assert chart.y == "tokens a second"
    assert list(chart.series[0].x) == [16, 32, 64]  # one node cannot take 16 stages' devices
    rate = answer.throughput["tokens_per_second"]
    assert chart.series[0].y[0] == pytest.approx(rate)
