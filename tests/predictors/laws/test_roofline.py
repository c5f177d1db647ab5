"""Roofline: what runs on some devices say of a workload on another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.hardware import Device
from forerun.errors import RequestError
from forerun.predictors.choice import Auto
from forerun.predictors.laws.roofline import Roofline, log_rates
from forerun.tables import Jobs
from forerun.testing import PredictorContract
from tests.predictors.choice.rows import catalog, jobs_of, runs_of
from tests.predictors.laws.rows import UnfittedContract

DEVICES = ("k80", "p100-pcie-16gb", "v100-sxm2-16gb", "t4", "a100-sxm-40gb")
# Seconds of a sample in products, traffic and on the host, on a device of 10 TFLOP/s and 1 TB/s; of a step.
COSTS = {"job-a": (8e-3, 2e-3, 2e-4, 4e-3), "job-b": (1e-3, 6e-3, 1e-4, 2e-3)}


def seconds(workload: str, device: str, precision: str, batch: float) -> float:
    """Return the step that the law describes, by the catalogue's rates."""
    plain, convolved, memory, slower = np.exp(log_rates(catalog().device(device)[0], precision))
    products = plain**0.3 * convolved**0.7
    a, b, host, fixed = COSTS[workload]
    return batch * (a * 1e13 / products + b * 1e12 / memory + host * slower) + fixed * slower


def rows(
    devices: Sequence[str] = DEVICES, workloads: Sequence[str] = tuple(COSTS), **cells: Any
) -> list[dict[str, Any]]:
    """Return runs of workloads that no zoo knows."""
    return [
        {"workload": workload, "device": device, "nodes": 1, "devices": 1, "precision": "fp32",
         "framework": "pytorch", "global_batch": batch, "micro_batch": batch,
         "step_time_s": seconds(workload, device, "fp32", batch), **cells}
        for workload in workloads for device in devices for batch in (8, 32)
    ]  # fmt: skip


@cache
def law() -> Roofline:
    """Return the law of all devices."""
    return Roofline().fit(runs_of(rows()))


def on(device: Device, workload: str = "job-a") -> Jobs:
    """Return a job on a device of any figures."""
    jobs = jobs_of(rows(["h100-sxm-80gb"], [workload])[:1])
    return replace(jobs, clusters=tuple(replace(c, device=device) for c in jobs.clusters))


class TestRoofline(PredictorContract):
    """Fitted to two workloads on five devices, asked on a sixth."""

    def make_predictor(self) -> Roofline:
        return law()

    def make_jobs(self) -> Jobs:
        unknown = rows(["t4"], device="no-such-gpu")
        return jobs_of([*rows((*DEVICES[:2], "rtx-3090")), *unknown])

    def make_runs(self) -> Any:
        return runs_of(rows())


class TestUnfittedRoofline(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> Roofline:
        return Roofline()


@pytest.mark.parametrize("left_out", DEVICES)
def test_a_device_without_runs_is_answered_by_its_data_sheet_and_runs_elsewhere(
    left_out: str,
) -> None:
    fitted = Roofline().fit(runs_of(rows([name for name in DEVICES if name != left_out])))
    asked = rows([left_out])
    answer = fitted.predict(jobs_of(asked))
    truth = np.array([row["step_time_s"] for row in asked])
    off = np.log(answer.seconds[:, 1] / truth)
    assert np.abs(off).max() < 0.25
    assert ((answer.seconds[:, 0] < truth) & (truth < answer.seconds[:, 2])).all()


def test_one_run_of_any_workload_there_moves_all_workloads_there() -> None:
    """A device of 1 / 1.4 of the catalogue's speed, and one that no catalogue knows."""
    for name in ("rtx-3090", "no-such-gpu"):
        known = rows(["rtx-3090"], ["job-a"], device=name)[:1]
        known[0]["step_time_s"] *= 1.4
        asked = jobs_of(rows(["rtx-3090"], ["job-b"], device=name))
        before = law().predict(asked)
        after = Roofline().fit(runs_of([*rows(), *known])).predict(asked)
        truth = 1.4 * np.array([seconds("job-b", "rtx-3090", "fp32", batch) for batch in (8, 32)])
        off = np.abs(np.log(after.seconds[:, 1] / truth))
        if name == "rtx-3090":
            assert (off < 0.8 * np.abs(np.log(before.seconds[:, 1] / truth))).all()
        else:
            assert off.max() < np.log(2.0)
            assert ((after.seconds[:, 0] < truth) & (truth < after.seconds[:, 2])).all()
            assert all("no run is on it" in str(why) for why in before.declined)


@given(st.floats(1.0, 4.0), st.floats(1.0, 4.0), st.sampled_from(sorted(COSTS)))
@settings(max_examples=40, deadline=None)
def test_more_flops_and_bandwidth_are_never_slower(
    flops: float, memory: float, workload: str
) -> None:
    device = catalog().device("v100-sxm2-16gb")[0]
    slow, fast = (
        replace(
            device, id="twin", memory_bytes_per_second=device.memory_bytes_per_second * m,
            peak_flops={name: rate * f for name, rate in device.peak_flops.items()},
        )
        for f, m in ((1.0, 1.0), (flops, memory))
    )  # fmt: skip
    before, after = (law().predict(on(one, workload)).seconds[0] for one in (slow, fast))
    assert after[1] <= before[1] * (1.0 + 1e-12)


def test_twins_take_the_same_time() -> None:
    device = catalog().device("rtx-3090")[0]
    one, other = (law().predict(on(replace(device, id=name))).seconds for name in ("one", "other"))
    np.testing.assert_allclose(one, other, rtol=1e-12)


@given(st.floats(0.01, 100.0))
@settings(max_examples=5, deadline=None)
def test_in_other_units_the_answer_is_the_same(scale: float) -> None:
    scaled = [{**row, "step_time_s": row["step_time_s"] * scale} for row in rows()]
    asked = jobs_of(rows(["rtx-3090", "t4"]))
    found = Roofline().fit(runs_of(scaled)).predict(asked).seconds
    np.testing.assert_allclose(found, scale * law().predict(asked).seconds, rtol=1e-6)


def test_bands_grow_with_how_far_a_device_lies_from_those_that_ran() -> None:
    fitted = Roofline().fit(runs_of(rows(["t4", "rtx-2080ti"])))
    widths = []
    for name in ("t4", "quadro-rtx-6000", "h100-sxm-80gb"):
        low, _, high = fitted.predict(jobs_of(rows([name])[:1])).seconds[0]
        widths.append(high / low)
    assert widths == sorted(widths)
    assert widths[-1] > 1.3 * widths[0]


def test_what_it_costs_is_told_in_parts() -> None:
    answer = law().predict(jobs_of(rows(["rtx-3090"])))
    a, b = (answer.parts["products"] / answer.seconds[:, 1]).reshape(2, 2).mean(axis=1)
    assert a > 2.0 * b


def test_a_saved_law_answers_alike_and_one_of_no_runs_is_refused() -> None:
    asked = jobs_of(rows(["rtx-3090", "t4"]))
    again = Roofline.from_json(law().to_json())
    np.testing.assert_allclose(again.predict(asked).seconds, law().predict(asked).seconds)
    with pytest.raises(RequestError, match="fitting roofline"):
        Roofline().fit(runs_of(rows()[:2]))


def test_other_settings_are_answered_wider() -> None:
    same, other = (
        law().predict(jobs_of(rows(["rtx-3090"], framework=name)))
        for name in ("pytorch", "tensorflow")
    )
    assert (
        other.seconds[:, 2] / other.seconds[:, 0] > 1.3 * same.seconds[:, 2] / same.seconds[:, 0]
    ).all()


def test_auto_answers_a_workload_that_nobody_knows_on_a_device_that_it_never_ran_on() -> None:
    fitted = Auto().fit(runs_of(rows()))
    asked = rows(["rtx-3090"])
    answer = fitted.predict(jobs_of(asked))
    assert answer.by is not None
    assert {name.partition(" (")[0] for name in answer.by} == {"auto: roofline"}
    truth = np.array([row["step_time_s"] for row in asked])
    assert np.abs(np.log(answer.seconds[:, 1] / truth)).max() < 0.25


def test_a_whole_run_takes_as_long_as_its_samples() -> None:
    """Rows that say how many samples a run took: twice of them take twice as long, without they decline."""
    own = [
        {**row, "samples_to_target": n * row["global_batch"], "step_time_s": None,
         "time_to_train_s": n * row["step_time_s"]}
        for row, n in zip(rows(), [500, 900, 1600, 400] * 5, strict=True)
    ]  # fmt: skip
    fitted = Roofline().fit(runs_of(own))
    asked = [{**own[0], "samples_to_target": n * 8, "device": "t4"} for n in (1000, 2000)]
    once, twice = fitted.predict(jobs_of(asked)).seconds[:, 1]
    assert twice == pytest.approx(2.0 * once)
    assert once == pytest.approx(1000 * seconds("job-a", "t4", "fp32", 8), rel=0.1)
    silent = {k: v for k, v in asked[0].items() if k != "samples_to_target"}
    (reason,) = fitted.declines(jobs_of([silent]))
    assert reason is not None
    assert "how many samples" in reason


def test_a_new_device_is_less_sure_where_fewer_devices_ran() -> None:
    few, many = (Roofline().fit(runs_of(rows(some))) for some in (DEVICES[1:3], DEVICES))
    ends = [one.predict(jobs_of(rows(["rtx-3090"])[:1])).seconds[0] for one in (few, many)]
    assert ends[0][2] / ends[0][0] > 1.3 * ends[1][2] / ends[1][0]
