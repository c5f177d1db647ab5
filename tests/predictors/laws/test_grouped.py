"""Laws by kind: who answers whom, and what is said of runs that cannot teach."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.predictors.laws.ernest import Ernest
from tests.predictors.laws.rows import jobs_of, runs_of

MACHINES = np.tile([1.0, 2.0, 4.0, 8.0], 3)
SECONDS = 3.0 + 80.0 / MACHINES


def test_a_workload_of_one_setting_has_one_law_told_once() -> None:
    law = Ernest().fit(runs_of(devices=MACHINES, framework="torch", time_to_train_s=SECONDS))
    assert len(law.laws) == 2
    assert list(law.formulas) == ["sgd-job on core (torch)"]


def test_two_settings_have_a_law_each_and_one_together() -> None:
    framework = ["torch"] * 6 + ["tf"] * 6
    law = Ernest().fit(runs_of(devices=MACHINES, framework=framework, time_to_train_s=SECONDS))
    assert sorted(law.formulas) == [
        "sgd-job on core (tf)", "sgd-job on core (torch)",
        "sgd-job on core, all settings",
    ]  # fmt: skip


def test_a_saved_law_of_one_setting_is_told_once_too() -> None:
    law = Ernest().fit(runs_of(devices=MACHINES, framework="torch", time_to_train_s=SECONDS))
    assert Ernest.from_json(law.to_json()).formulas == law.formulas


def test_synchronisation_by_servers_is_named() -> None:
    sync = ["allreduce"] * 6 + ["ps-sync"] * 6
    law = Ernest().fit(runs_of(devices=MACHINES, sync=sync, time_to_train_s=SECONDS))
    assert {"sgd-job on core", "sgd-job on core (ps-sync)"} <= set(law.formulas)
    text = next(iter(law.formulas.values()))
    assert "[ ] hold 90 % (5 to 95 %)" in text


def test_times_that_span_thousands_with_their_sizes_are_of_one_unit() -> None:
    size = np.repeat([1.0, 100.0, 10000.0], 4)
    runs = runs_of(devices=MACHINES, dataset_size=size, time_to_train_s=0.1 + size / MACHINES)
    assert Ernest().fit(runs).laws


def test_one_kind_that_cannot_teach_leaves_the_others_their_laws_and_is_told() -> None:
    names = ["good"] * 12 + ["bad"] * 2
    runs = runs_of(workload=names, devices=[*MACHINES, 1, 2], time_to_train_s=[*SECONDS, 5.0, 4.0])
    law = Ernest().fit(runs)
    answer = law.predict(jobs_of(workload=["good", "bad"], devices=[4, 4]))
    assert answer.declined[0] is None
    assert "no law of bad on core: only 2 different runs" in str(answer.declined[1])
    assert any("bad on core" in warning for warning in answer.warnings)


@pytest.mark.parametrize(
    ("seconds", "status", "found"),
    [([0.0, -1.0, 2.0], ["ok", "ok", "timeout"], r"1 did not end.*2 have a time of 0 or below"),
     ([9.0, 9.0, 9.0], ["timeout"] * 3, r"3 did not end \(their times are lower bounds\)")],
)  # fmt: skip
def test_runs_of_which_none_can_teach_are_counted_by_reason(
    seconds: list[float], status: list[str], found: str
) -> None:
    with pytest.raises(RequestError, match=found):
        Ernest().fit(runs_of(devices=[1, 2, 4], time_to_train_s=seconds, status=status))


def test_runs_that_teach_nothing_among_others_are_counted_in_every_forecast() -> None:
    seconds = np.append(SECONDS, [0.0, -4.0, 600.0])
    status = ["ok"] * 14 + ["timeout"]
    machines = np.append(MACHINES, [1.0, 2.0, 4.0])
    law = Ernest().fit(runs_of(devices=machines, time_to_train_s=seconds, status=status))
    assert law.laws["sgd-job", "core"].runs == 12
    assert law.predict(jobs_of(devices=[4])).warnings[:2] == (
        "of 15 runs 1 did not end (their times are lower bounds) and are left out",
        "of 15 runs 2 have a time of 0 or below and are left out",
    )


def test_runs_that_say_no_devices_are_named_as_such() -> None:
    with pytest.raises(RequestError, match="of 3 runs none states the number of devices"):
        Ernest().fit(runs_of(devices=[np.nan] * 3, time_to_train_s=[1.0, 2.0, 3.0]))


def test_linear_features_are_those_of_the_law() -> None:
    law = Ernest().fit(runs_of(devices=MACHINES, dataset_size=MACHINES, time_to_train_s=SECONDS))
    jobs = jobs_of(devices=[4, 8], dataset_size=[8, 8])
    x = law.linear_features(jobs)
    np.testing.assert_allclose(x, [[1, 2, np.log(4), 4], [1, 1, np.log(8), 8]])
    np.testing.assert_allclose(
        x @ law.laws["sgd-job", "core"].theta, law.predict(jobs).seconds[:, 1]
    )


def test_terms_that_move_together_in_all_runs_are_named() -> None:
    weak = Ernest().fit(
        runs_of(devices=MACHINES, global_batch=32 * MACHINES, step_time_s=0.2 + 0.01 * MACHINES)
    )
    (note,) = weak.laws["sgd-job", "core"].notes
    assert "cannot tell fixed from shared work" in note
    assert any("cannot tell" in warning for warning in weak.predict(jobs_of(devices=[4])).warnings)
    size = np.repeat([1.0, 2.0, 3.0], 4)
    strong = Ernest().fit(runs_of(devices=MACHINES, dataset_size=size, time_to_train_s=SECONDS))
    assert strong.laws["sgd-job", "core"].notes == ()


def test_bands_beyond_the_runs_are_as_wide_as_the_runs_themselves_show() -> None:
    machines = np.tile([1.0, 2, 4, 8, 16], 3)
    rng = np.random.default_rng(0)
    lawful = (3 + 80 / machines) * np.exp(rng.normal(0, 0.01, 15))
    cliff = np.where(machines > 8, 2.0, 1.0) * lawful
    widths = []
    for seconds in (lawful, cliff):
        law = Ernest().fit(runs_of(devices=machines, time_to_train_s=seconds))
        near, far = law.predict(jobs_of(devices=[8, 64])).seconds
        widths.append(np.log(far[2] / far[0]))
        assert widths[-1] > np.log(near[2] / near[0])
    assert widths[1] > 1.5 * widths[0]


def test_the_learning_rate_tells_whole_runs_apart_and_steps_not() -> None:
    rates = np.repeat([0.1, 0.001], 6)
    for column, kinds in (("time_to_train_s", 3), ("step_time_s", 2)):
        law = Ernest().fit(
            runs_of(devices=MACHINES, learning_rate=rates, **{column: SECONDS / rates})
            if column == "time_to_train_s"
            else runs_of(devices=MACHINES, learning_rate=rates, step_time_s=SECONDS)
        )
        assert len(law.laws) == kinds
    assert law.quantity == "step"
