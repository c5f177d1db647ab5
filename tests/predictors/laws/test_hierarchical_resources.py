"""Hierarchical and resources: time falls with cores and link rate, exponents are found, blanks are owned up to."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.predictors.laws.hierarchical import AT, Hierarchical, step_seconds
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.rows import jobs_from_table, runs_from_table
from tests.predictors.laws.test_hierarchical import inputs, theta

CATALOG = load_catalog()
GRADIENTS_GB, SAMPLES = 3.2e-3, 960.0
Columns = dict[str, Any]


def law(columns: Columns, share: float = 1.0, cores: float = 1.0) -> np.ndarray[Any, Any]:
    """Return seconds of an epoch of a made-up network on small hosts; powers of a share and of cores."""
    k, c = columns["devices"], columns["cpus_per_worker"]
    batch = columns["global_batch"] / k
    slow = np.minimum(c, 1.0) ** share * np.maximum(c, 1.0) ** cores
    compute = (0.002 + 0.0008 * batch) / slow
    sending = np.where(k > 1, 6e-4 * 2 * (k - 1) / np.minimum(c, 1.0) ** share, 0.0)
    wire = GRADIENTS_GB * 2 * (k - 1) / k / (0.9 * columns["node_gbps"] / 8)
    step = ((compute + sending) ** 1.5 + wire**1.5) ** (1 / 1.5)
    return np.asarray(step * np.ceil(columns["dataset_size"] / columns["global_batch"]))


def grid(**values: Any) -> Columns:
    """Return every combination of the values of columns, those of a small lab where not given."""
    usual = {"devices": (1, 2, 4), "global_batch": (24, 48), "cpus_per_worker": (0.2,),
             "node_gbps": (0.3,), "dataset_size": (SAMPLES,)}  # fmt: skip
    names, axes = zip(*{**usual, **values}.items(), strict=True)
    found = np.meshgrid(*(np.array(axis, dtype=float) for axis in axes), indexing="ij")
    return {name: one.ravel() for name, one in zip(names, found, strict=True)}


def table(columns: Columns, seconds: Any = None, **more: Any) -> Table:
    """Return the rows of a network of known size on hosts that no catalogue knows."""
    n = len(columns["devices"])
    usual = {"workload": "my-net", "device": "my-host", "framework": "pytorch", "precision": "fp32",
             "params": GRADIENTS_GB * 1e9 / 4, "gmacs": 0.001}  # fmt: skip
    every = {**usual, "nodes": columns["devices"], **columns, **more}
    rows = {name: [v] * n if np.ndim(v) == 0 else list(v) for name, v in every.items()}
    if seconds is not None:
        rows["epoch_time_s"] = list(seconds)
    return Table.from_columns(rows, "sample rows")


def runs(columns: Columns, seconds: Any, noise: float = 0.0, **more: Any) -> Runs:
    luck = np.exp(np.random.default_rng(0).normal(0.0, noise, len(seconds)))
    return runs_from_table(table(columns, seconds * luck, **more), CATALOG)


def jobs(columns: Columns, **more: Any) -> Jobs:
    return jobs_from_table(table(columns, **more), CATALOG)


def width(seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.log(seconds[:, 2] / seconds[:, 0]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(1.05, 30.0))
def test_more_of_a_core_more_cores_and_a_faster_wire_are_never_slower(
    seed: int, nodes: int, times: float
) -> None:
    values = theta(2, seed=seed, cores=0.6)
    for columns in (
        {"log_cores": [-np.log(times), 0.0]}, {"log_cores": [0.0, np.log(times)]},
        {"inter_rate": [1.25, 1.25 * times]},
    ):  # fmt: skip
        x = inputs(devices=nodes, nodes=nodes, busy=1, **columns)
        slow, fast = step_seconds(values, x)[0].log
        assert fast <= slow + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(1, 4))
def test_messages_take_longer_with_every_device(seed: int, nodes: int, more: int) -> None:
    values = theta(2, seed=seed, volume=-30.0, single=0.0)
    x = inputs(devices=[nodes, nodes + more], nodes=[nodes, nodes + more], busy=1)
    few, many = step_seconds(values, x)[0].log
    assert many > few


def test_larger_shares_faster_links_more_workers_and_data_are_foreseen() -> None:
    taught = grid(cpus_per_worker=(0.12, 0.16), node_gbps=(0.1, 0.3), dataset_size=(480, 960))
    fitted = Hierarchical().fit(runs(taught, law(taught), noise=0.08))
    for beyond in ({"cpus_per_worker": (0.24, 0.5)}, {"node_gbps": (0.6, 1.0)},
                   {"devices": (6, 8)}, {"dataset_size": (1920, 4000)}):  # fmt: skip
        asked = grid(**{"cpus_per_worker": (0.14,), **beyond})
        answer = fitted.predict(jobs(asked)).seconds
        assert np.mean(np.abs(answer[:, 1] / law(asked) - 1.0)) < 0.08, beyond
        inside = (law(asked) > answer[:, 0]) & (law(asked) < answer[:, 2])
        assert inside.mean() > 0.9, beyond


@pytest.mark.parametrize("power", [0.5, 0.8])
def test_the_power_of_whole_cores_is_found(power: float) -> None:
    taught = grid(cpus_per_worker=(1, 2, 4), node_gbps=(10,))
    fitted = Hierarchical().fit(runs(taught, law(taught, cores=power), noise=0.03))
    assert fitted.model is not None
    assert abs(fitted.model.posterior.theta[0, AT["cores"]] - power) < 0.12
    asked = grid(cpus_per_worker=(8,), node_gbps=(10,))
    answer = fitted.predict(jobs(asked)).seconds[:, 1]
    assert np.mean(np.abs(answer / law(asked, cores=power) - 1.0)) < 0.12


def test_a_share_that_helps_less_than_it_should_is_believed() -> None:
    taught = grid(cpus_per_worker=(0.1, 0.2, 0.4))
    fitted = Hierarchical().fit(runs(taught, law(taught, share=0.8), noise=0.02))
    assert fitted.model is not None
    assert 0.7 < fitted.model.posterior.theta[0, AT["share"]] < 0.9


@cache
def of_one_share(noise: float = 0.03) -> Hierarchical:
    taught = grid(dataset_size=(480, 960))
    return Hierarchical().fit(runs(taught, law(taught), noise=noise))


def test_bands_widen_beyond_the_measured_shares_and_rates() -> None:
    for name, values in (("cpus_per_worker", (0.2, 0.4, 0.8)), ("node_gbps", (0.3, 0.6, 1.2))):
        asked = grid(devices=(4,), global_batch=(24,), **{name: values})
        answer = of_one_share().predict(jobs(asked))
        for figure in (width(answer.seconds), answer.distance):
            assert figure[0] < figure[1] < figure[2], name


def test_cores_beyond_the_threads_do_not_help() -> None:
    asked = grid(devices=(1,), global_batch=(24,), cpus_per_worker=(1, 4))
    one, four = of_one_share().predict(jobs(asked)).seconds[:, 1]
    assert four < 0.6 * one
    one, four = of_one_share().predict(jobs(asked, threads=1)).seconds[:, 1]
    assert four == one


def test_whoever_leaves_out_what_never_varied_means_that() -> None:
    asked = grid()
    blank = {name: v for name, v in asked.items() if name not in ("cpus_per_worker", "node_gbps")}
    said = of_one_share().predict(jobs(asked))
    unsaid = of_one_share().predict(jobs(blank))
    assert np.allclose(said.seconds, unsaid.seconds, rtol=1e-9)
    assert np.array_equal(said.distance, unsaid.distance)


def test_whoever_leaves_out_what_varied_gets_the_middle_and_a_wide_band() -> None:
    taught = grid(cpus_per_worker=(0.1, 0.4))
    fitted = Hierarchical().fit(runs(taught, law(taught), noise=0.03))
    asked = grid(cpus_per_worker=(0.1, 0.2, 0.4), devices=(1,), global_batch=(24,))
    low, middle, high = fitted.predict(jobs(asked)).seconds
    blank = grid(devices=(1,), global_batch=(24,))
    del blank["cpus_per_worker"]
    answer = fitted.predict(jobs(blank))
    assert np.isclose(answer.seconds[0, 1], middle[1])
    assert answer.seconds[0, 0] < high[1] < low[1] < answer.seconds[0, 2]
    assert answer.distance[0] >= 0.5


def test_a_run_that_says_no_share_among_those_that_differ_teaches_nothing() -> None:
    taught = grid(cpus_per_worker=(0.1, 0.2, 0.4))
    seconds = law(taught)
    blanked = {**taught, "cpus_per_worker": taught["cpus_per_worker"].copy()}
    blanked["cpus_per_worker"][3] = np.nan
    spoiled = seconds.copy()
    spoiled[3] *= 9.0
    fitted = Hierarchical().fit(runs(blanked, seconds))
    (warning,) = fitted.predict(jobs(taught)).warnings
    assert f"of {len(seconds)} runs 1 state no cpus_per_worker" in warning
    one = fitted.predict(jobs(taught)).seconds
    other = Hierarchical().fit(runs(blanked, spoiled)).predict(jobs(taught)).seconds
    assert np.array_equal(one, other)


def test_a_share_that_no_run_states_widens_the_band() -> None:
    taught = grid()
    del taught["cpus_per_worker"]
    seconds = law(grid())
    fitted = Hierarchical().fit(runs(taught, seconds))
    silent, stated = fitted.predict(jobs(taught)), fitted.predict(jobs(grid()))
    assert np.array_equal(silent.seconds[:, 1], stated.seconds[:, 1])
    assert (width(stated.seconds) > width(silent.seconds)).all()
    assert (stated.distance > silent.distance).all()


def test_processors_beside_an_accelerator_hardly_matter() -> None:
    taught = grid(cpus_per_worker=(4,), node_gbps=(25,))
    fitted = Hierarchical().fit(runs(taught, law(taught), device="t4"))
    asked = grid(cpus_per_worker=(4, 8), node_gbps=(25,), devices=(1,), global_batch=(48,))
    few, many = fitted.predict(jobs(asked, device="t4")).seconds[:, 1]
    assert 0.85 * few < many <= few


def test_the_last_step_of_an_epoch_is_a_step() -> None:
    asked = grid(dataset_size=(960, 961, 984), devices=(4,), global_batch=(24,))
    exact, more, whole = of_one_share().predict(jobs(asked)).seconds[:, 1]
    assert np.isclose(more, exact * 41 / 40)
    assert np.isclose(more, whole)


def test_a_saved_law_reads_resources_alike() -> None:
    fitted, asked = of_one_share(), jobs(grid(cpus_per_worker=(0.1, 0.3), node_gbps=(0.1, 0.5)))
    again = Hierarchical.from_json(fitted.to_json())
    assert np.allclose(again.predict(asked).seconds, fitted.predict(asked).seconds)
    assert np.allclose(again.log_covariance(asked), fitted.log_covariance(asked))


def test_its_formula_tells_of_cores_and_messages() -> None:
    taught = grid(cpus_per_worker=(0.12, 0.24))
    (text,) = Hierarchical().fit(runs(taught, law(taught), noise=0.02)).formulas.values()
    for words in ("(part of a core)^", "messages = ", "x 2(K-1)", "(compute + messages)^p"):
        assert words in text, text
