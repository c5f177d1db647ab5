"""Hierarchical: physics that holds for any parameters, constants recovered, few runs, bands, reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.predictors.laws import fitting, hierarchical
from forerun.predictors.laws.hierarchical import (
    AT,
    COUNT,
    PARAMETERS,
    GroupCorrection,
    Hierarchical,
    LawInputs,
    step_seconds,
)
from forerun.tables import Jobs, Runs, Table
from forerun.tables.files import read_table
from forerun.tables.jobs import join_runs
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_runs
from forerun.workloads.rows import jobs_from_table, runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import UnfittedContract
from tests.predictors.laws.rows import runs_of as law_runs

CATALOG = load_catalog()


def inputs(**columns: Any) -> LawInputs:
    """Return jobs of 8 devices on 2 nodes, but for the columns."""
    usual = {
        "devices": 8.0, "nodes": 2.0, "busy": 4.0, "micro_batch": 32.0, "accumulation": 1.0,
        "place": 0.5, "intra_rate": 16.0, "inter_rate": 6.0, "log_steps": 0.0,
        "log_cores": 0.0,
    }  # fmt: skip
    arrays = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in columns.items()}
    n = max((len(a) for a in arrays.values()), default=1)
    every = {**{k: np.full(n, v) for k, v in usual.items()}, **arrays}
    return LawInputs(**{name: np.broadcast_to(a, (n,)).astype(float) for name, a in every.items()})


def theta(n: int = 1, seed: int = 0, **changes: float) -> np.ndarray[Any, Any]:
    """Return plausible parameters of n jobs."""
    rng = np.random.default_rng(seed)
    of_resources = [AT[name] for name in ("share", "cores", "hop")]
    values = np.zeros(COUNT)
    values[np.setdiff1d(np.arange(COUNT), of_resources)] = rng.normal(0.0, 0.2, COUNT - 3)
    values[of_resources] = rng.normal(0.0, 0.2, 3)
    values[AT["fixed"]], values[AT["sample"]], values[AT["volume"]] = -2.5, -5.0, -1.5
    values[AT["share"]] += 1.0
    values[AT["hop"]] += -7.0
    for name, value in changes.items():
        values[AT[name]] = value
    return np.repeat(values[None], n, axis=0)


def table_of(seconds: Any = None, **columns: Any) -> Table:
    """Return rows of one workload on one device that no zoo and no catalogue know."""
    n = len(columns["devices"])
    usual: dict[str, Any] = {"workload": "my-net", "device": "my-card", "cluster": "lab"}
    spread = {k: [v] * n if np.ndim(v) == 0 else list(v) for k, v in {**usual, **columns}.items()}
    if seconds is not None:
        spread["step_time_s"] = list(seconds)
    return Table.from_columns(spread, "sample rows")


def runs_of(seconds: Any, **columns: Any) -> Runs:
    return runs_from_table(table_of(seconds, **columns), CATALOG)


def jobs_of(**columns: Any) -> Jobs:
    return jobs_from_table(table_of(**columns), CATALOG)


def grid(noise: float = 0.0, seed: int = 0) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Return columns and seconds of a made-up network on 1 to 16 devices."""
    rows = [
        (nodes, each, batch) for nodes in (1, 2, 3, 4) for each in (1, 2, 4)
        for batch in (8, 16, 32, 64)
    ]  # fmt: skip
    nodes, each, batch = np.array(rows, dtype=float).T
    columns = {"nodes": nodes, "devices": nodes * each, "devices_per_node": each,
               "micro_batch": batch, "global_batch": batch * nodes * each}  # fmt: skip
    x = inputs(devices=nodes * each, nodes=nodes, busy=each, micro_batch=batch, inter_rate=1.25,
               place=np.log(batch / 8) / np.log(8))  # fmt: skip
    truth = theta(len(batch), seed=1, **{f"shape_{i}": 0.0 for i in range(6)},
                  host_fixed=0.0, host_sample=0.0, single=0.0, overlap=0.5, hop=-10.0)  # fmt: skip
    seconds = np.exp(step_seconds(truth, x)[0].log)
    return columns, seconds * np.exp(np.random.default_rng(seed).normal(0, noise, len(seconds)))


class TestHierarchical(PredictorContract):
    """Fitted to small transformers."""

    def make_predictor(self) -> Hierarchical:
        return Hierarchical().fit(tiny_runs())


class TestHierarchicalOfLabels(PredictorContract):
    """Fitted to a workload and a device that nobody knows."""

    def make_predictor(self) -> Hierarchical:
        return Hierarchical().fit(self.make_runs())

    def make_jobs(self) -> Jobs:
        return jobs_of(**grid()[0])

    def make_runs(self) -> Runs:
        columns, seconds = grid(noise=0.03)
        return runs_of(seconds, **columns)


class TestUnfittedHierarchical(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> Hierarchical:
        return Hierarchical()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 8), st.floats(1.0, 500.0))
def test_time_is_above_compute_and_above_communication(
    seed: int, nodes: int, each: int, batch: float
) -> None:
    x = inputs(devices=nodes * each, nodes=nodes, busy=each, micro_batch=batch)
    values = theta(seed=seed)
    out, compute = step_seconds(values, x)
    lonely = theta(seed=seed, fixed=-60.0, sample=-60.0)
    network, _ = step_seconds(lonely, x)
    assert out.log[0] >= compute.log[0] - 1e-9
    if nodes * each > 1:
        assert out.log[0] >= network.log[0] - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 8), st.floats(1.1, 20.0))
def test_a_faster_link_is_never_slower(seed: int, nodes: int, each: int, times: float) -> None:
    values = theta(2, seed=seed)
    for link, usual in (("intra_rate", 16.0), ("inter_rate", 6.0)):
        x = inputs(devices=nodes * each, nodes=nodes, busy=each, **{link: [usual, usual * times]})
        slow, fast = step_seconds(values, x)[0].log
        assert fast <= slow + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(1.01, 30.0))
def test_a_larger_batch_or_more_passes_take_longer(seed: int, times: float) -> None:
    values = theta(2, seed=seed)
    for name in ("micro_batch", "accumulation"):
        low, high = step_seconds(values, inputs(**{name: [4.0, 4.0 * times]}))[0].log
        assert high > low


@pytest.mark.parametrize("passes", [1.0, 3.0])
def test_slopes_are_those_of_differences(passes: float) -> None:
    rng = np.random.default_rng(0)
    nodes, each = rng.integers(1, 5, 60).astype(float), rng.integers(1, 5, 60).astype(float)
    x = inputs(devices=nodes * each, nodes=nodes, busy=each, place=rng.random(60),
               micro_batch=rng.uniform(1, 300, 60), accumulation=np.full(60, passes))  # fmt: skip
    values = theta(60, seed=3)
    terms = step_seconds(values, x)
    for i in range(COUNT):
        moved = values.copy()
        moved[:, i] += 1e-6
        for term, other in zip(terms, step_seconds(moved, x), strict=True):
            step = (other.log - term.log) / 1e-6
            assert np.allclose(step, term.matrix(COUNT)[:, i], atol=2e-5), PARAMETERS[i]


def test_a_known_law_is_found_again() -> None:
    columns, seconds = grid()
    nodes = np.array(columns["nodes"])
    teach = nodes <= 2
    shown = {name: np.array(values)[teach] for name, values in columns.items()}
    fitted = Hierarchical().fit(runs_of(seconds[teach], **shown))
    answer = fitted.predict(jobs_of(**columns)).seconds[:, 1]
    error = np.abs(answer / seconds - 1.0)
    assert np.median(error[teach]) < 0.01
    assert np.median(error[~teach]) < 0.05


def test_the_order_of_the_runs_does_not_matter() -> None:
    columns, seconds = grid(noise=0.05)
    runs, jobs = runs_of(seconds, **columns), jobs_of(**columns)
    order = np.random.default_rng(0).permutation(len(runs))
    first = Hierarchical().fit(runs).predict(jobs).seconds
    second = Hierarchical().fit(runs.take(order)).predict(jobs).seconds
    assert np.allclose(first, second, rtol=1e-3)


def test_a_row_far_off_hardly_moves_the_law() -> None:
    columns, seconds = grid(noise=0.02)
    spoiled = seconds.copy()
    spoiled[5] *= 20.0
    jobs = jobs_of(**columns)
    clean = Hierarchical().fit(runs_of(seconds, **columns)).predict(jobs).seconds[:, 1]
    moved = Hierarchical().fit(runs_of(spoiled, **columns)).predict(jobs).seconds[:, 1]
    others = np.arange(len(seconds)) != 5
    assert np.median(np.abs(moved / clean - 1.0)[others]) < 0.02


def test_a_workload_that_is_wholly_off_on_a_new_cluster_moves_there() -> None:
    columns, seconds = grid(noise=0.02)
    devices = np.array(columns["devices"])
    few = (
        (devices < 4) & (np.array(columns["micro_batch"]) == 32) & (np.array(columns["nodes"]) == 1)
    )
    known = [(name, "lab", np.ones(len(few), dtype=bool), 1.0) for name in "abcd"]
    new = [(name, "new", few, 6.0 if name == "a" else 1.0) for name in "abcd"]
    parts = [
        {"workload": [name] * rows.sum(), "device": [at] * rows.sum(), "cluster": [at] * rows.sum(),
         "step_time_s": times * seconds[rows], **{k: np.array(v)[rows] for k, v in columns.items()}}
        for name, at, rows, times in [*known, *new]
    ]  # fmt: skip
    every = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    fitted = Hierarchical().fit(runs_of(every.pop("step_time_s"), **every))
    asked = jobs_of(**columns, workload="a", device="new", cluster="new")
    error = np.abs(fitted.predict(asked).seconds[:, 1] / (6.0 * seconds) - 1.0)
    assert np.median(error[few]) < 0.05
    assert np.median(error[devices == 1]) < 0.25


def test_what_the_law_misses_at_a_micro_batch_holds_on_far_layouts() -> None:
    """Equal micro-batches run the same kernels: 1 to 4 devices tell of 64, and nothing of other batches."""
    batch, devices = (v.ravel() for v in np.meshgrid([8.0, 32.0, 128.0], [1.0, 2.0, 4.0]))

    def points(batch: Any, devices: Any) -> np.ndarray[Any, Any]:
        x = inputs(micro_batch=batch, devices=devices, nodes=1.0, busy=devices)
        return hierarchical._points(x, np.zeros(len(x)))

    noise = np.random.default_rng(0).normal(0.0, 0.01, len(batch))
    found = GroupCorrection.of(points(batch, devices), np.where(batch == 32, 0.04, -0.02) + noise)
    assert found is not None
    shift, near = found.at(points([8.0, 32.0, 33.0], 64.0))
    assert shift[1] > 0.012
    assert shift[2] < 0.6 * shift[1]
    assert near[1] < 0.2  # bands stay those of a far layout


def test_bands_widen_with_devices_beyond_the_runs() -> None:
    columns, seconds = grid(noise=0.03)
    fitted = Hierarchical().fit(runs_of(seconds, **columns))
    far = {name: [v] * 3 for name, v in {"micro_batch": 32, "devices_per_node": 4}.items()}
    answer = fitted.predict(jobs_of(nodes=[4, 16, 64], devices=[16, 64, 256], **far))
    width = np.log(answer.seconds[:, 2] / answer.seconds[:, 0])
    assert width[0] < width[1] < width[2]
    assert answer.distance[0] < answer.distance[1] < answer.distance[2]


@pytest.mark.parametrize("each", [1, 2])
def test_the_link_in_a_node_matters_only_where_two_devices_share_one(each: int) -> None:
    columns, seconds = grid(noise=0.03)
    own = {"device": "v100-sxm2-16gb", "workload": "resnet50"}
    law = Hierarchical().fit(runs_of(seconds, **columns, **own))
    shape = {"nodes": [4], "devices": [4 * each], "devices_per_node": [each], "micro_batch": [16]}
    jobs = jobs_of(**shape, **own, global_batch=[64 * each])
    times = [
        law.predict(replace(jobs, clusters=tuple(
            replace(c, intra=replace(c.intra, bytes_per_second=rate)) for c in jobs.clusters
        ))).seconds[0, 1]
        for rate in (16e9, 150e9)
    ]  # fmt: skip
    assert len(jobs.clusters) == 1
    assert (times[0] == times[1]) == (each == 1)
    assert times[0] >= times[1]


def test_a_saved_law_answers_alike_and_another_version_is_refused() -> None:
    columns, seconds = grid(noise=0.03)
    fitted, jobs = Hierarchical().fit(runs_of(seconds, **columns)), jobs_of(**columns)
    text = fitted.to_json()
    again = Hierarchical.from_json(text)
    assert np.allclose(fitted.predict(jobs).seconds, again.predict(jobs).seconds)
    assert np.allclose(fitted.log_covariance(jobs), again.log_covariance(jobs))
    with pytest.raises(RequestError, match="version"):
        Hierarchical.from_json(json.dumps({**json.loads(text), "version": 99}))


def test_its_covariance_is_that_of_its_bands() -> None:
    columns, seconds = grid(noise=0.03)
    fitted, jobs = Hierarchical().fit(runs_of(seconds, **columns)), jobs_of(**columns)
    shared, answer = fitted.log_covariance(jobs), fitted.predict(jobs).seconds
    assert np.allclose(shared, shared.T)
    assert np.linalg.eigvalsh(shared).min() > 0
    reach = np.log(answer[:, 2] / answer[:, 1]) / 1.6448536
    assert np.allclose(np.sqrt(np.diag(shared)), reach, rtol=1e-6)


def test_its_formula_has_units_intervals_and_what_limits() -> None:
    columns, seconds = grid(noise=0.03)
    (name, text), *rest = Hierarchical().fit(runs_of(seconds, **columns)).formulas.items()
    assert not rest
    assert "my-net" in name
    for word in (
        "s a sample (",
        "x micro_batch",
        " to ",
        "p = ",
        "48 runs",
        "exposed communication",
    ):
        assert word in text, text


def test_it_says_why_it_does_not_answer() -> None:
    columns, seconds = grid(noise=0.03)
    fitted = Hierarchical().fit(runs_of(seconds, **columns))
    asked = {"devices": [2], "nodes": [1], "devices_per_node": [2]}
    for changes, words in (
        ({"workload": ["other"], "micro_batch": [8]}, "no run is of other"),
        ({"device": ["card-x"], "micro_batch": [8]}, "no run is on card-x"),
        ({"sync": ["ps-async"], "micro_batch": [8]}, "parameter servers"),
        ({"tp": [2], "dp": [1], "micro_batch": [8]}, "data-parallel"),
        ({}, "does not state a batch"),
    ):
        (reason,) = fitted.declines(jobs_of(**{**asked, **changes}))
        assert reason is not None
        assert words in reason


def test_what_no_run_taught_is_not_guessed() -> None:
    columns, seconds = grid(noise=0.03)
    wide = {"devices": [8], "nodes": [4], "devices_per_node": [2], "micro_batch": [16]}
    for bound, words in ((1, "on one device"), (2, "no run is on several nodes")):
        few = (columns["devices"] <= bound) & (columns["nodes"] == 1)
        shown = {name: values[few] for name, values in columns.items()}
        fitted = Hierarchical().fit(runs_of(seconds[few], **shown))
        (reason,) = fitted.declines(jobs_of(**wide))
        assert reason is not None
        assert words in reason
    (reason,) = fitted.declines(jobs_of(**wide, interconnect=["50 Gb/s Ethernet"]))
    assert reason is None


def test_too_few_runs_are_refused_with_what_is_needed() -> None:
    runs = runs_of([0.5, 0.6], devices=[1, 2], micro_batch=[8, 8])
    with pytest.raises(RequestError, match="at least 3"):
        Hierarchical().fit(runs)
    none = runs_of([-1.0, 0.0, float("nan"), float("nan")], devices=[1, 2, 3, 4])
    with pytest.raises(RequestError, match="at least 3"):
        Hierarchical().fit(none)


def test_it_learns_whole_runs_without_a_batch() -> None:
    devices = np.array([1, 2, 4, 8, 1, 2, 4, 8], dtype=float)
    data = np.repeat([1e4, 4e4], 4)
    seconds = 20.0 + 0.01 * data / devices
    table = table_of(devices=devices, dataset_size=data, time_to_train_s=seconds)
    fitted = Hierarchical().fit(runs_from_table(table, CATALOG))
    answer = fitted.predict(jobs_from_table(table, CATALOG))
    assert fitted.quantity == "run"
    assert np.median(np.abs(answer.seconds[:, 1] / seconds - 1.0)) < 0.1


@cache
def measured(name: str) -> Runs:
    return runs_from_table(read_table(published(name)), CATALOG)


@pytest.mark.parametrize(
    ("name", "bound", "limit"),
    [("pollux", 8, 0.045), ("sia", 8, 0.045), ("tf_benchmarks", 4, 0.04), ("dlperf", 4, 0.04)],
)
def test_it_holds_beyond_the_devices_that_taught_it(name: str, bound: int, limit: float) -> None:
    runs = measured(name)
    devices = runs.table.numbers("devices")
    fitted = Hierarchical().fit(runs.take(devices <= bound))
    rest = runs.take(devices > bound)
    answer, seconds = fitted.predict(rest.jobs), rest.step_seconds()
    rows = answer.answered & np.isfinite(seconds)
    assert rows.mean() >= 0.9
    assert np.median(np.abs(answer.seconds[rows, 1] / seconds[rows] - 1.0)) <= limit
    inside = (seconds >= answer.seconds[:, 0]) & (seconds <= answer.seconds[:, 2])
    assert inside[rows].mean() >= 0.85


def test_eight_runs_on_a_new_cluster_are_enough_to_start() -> None:
    second = measured("sia")
    quad = second.table.texts("cluster") == "quad"
    rng = np.random.default_rng(0)
    names = second.table.texts("workload")
    few = np.concatenate([
        rng.choice(np.flatnonzero(quad & (names == name)), 8, replace=False)
        for name in sorted(set(names))
    ])  # fmt: skip
    teach = second.take(np.r_[np.flatnonzero(~quad), few])
    rest = second.take(np.setdiff1d(np.flatnonzero(quad), few))
    fitted = Hierarchical().fit(teach)
    seconds, answer = rest.step_seconds(), fitted.predict(rest.jobs)
    assert np.median(np.abs(answer.seconds[:, 1] / seconds - 1.0)) <= 0.055


@pytest.mark.parametrize(("cluster", "limit"), [("rtx", 0.09), ("aws-t4", 0.15)])
def test_three_runs_on_one_node_foresee_several(cluster: str, limit: float) -> None:
    """The network is only named: a cloud's wire carries what one TCP flow may."""
    both = join_runs([measured("pollux"), measured("sia")])
    here = both.table.texts("cluster") == cluster
    one, names = both.table.numbers("nodes") == 1, both.table.texts("workload")
    rng = np.random.default_rng(0)
    few = np.concatenate([
        rng.choice(np.flatnonzero(here & one & (names == name)), 3, replace=False)
        for name in sorted(set(names[here]))
    ])  # fmt: skip
    fitted = Hierarchical().fit(both.take(np.r_[np.flatnonzero(~here), few]))
    rest = both.take(np.flatnonzero(here & ~one))
    answer, seconds = fitted.predict(rest.jobs), rest.step_seconds()
    assert np.median(np.abs(answer.seconds[:, 1] / seconds - 1.0)) <= limit


def test_terms_between_nodes_that_no_run_has_are_said_to_be_assumed() -> None:
    devices = np.tile([1.0, 2, 4, 8], 2)
    batch = np.repeat([32.0, 64.0], 4) * devices
    given = {"devices": devices, "global_batch": batch}
    seconds = 0.05 + 0.001 * batch / devices + 0.004 * devices
    one = Hierarchical().fit(law_runs(**given, nodes=np.ones(8), step_time_s=seconds))
    ((name, text),) = one.formulas.items()
    assert "allreduce" not in name
    assert text.count("(assumed: no run of it)") == 1
    assert "on two nodes (assumed: no run of it)" in text
    assert "intervals hold 90 % (5 to 95 %)" in text
    many = Hierarchical().fit(law_runs(**given, nodes=devices, step_time_s=seconds))
    (text,) = many.formulas.values()
    assert "on two nodes (assumed" not in text


def test_sparse_and_full_equations_have_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    net, lab, devices = (np.ravel(a) for a in np.meshgrid(range(4), range(3), [1, 2, 4, 8]))
    columns = {"workload": [f"net-{i}" for i in net], "cluster": [f"lab-{i}" for i in lab]}
    seconds, found = (0.1 + 0.05 * net) * (1.0 + 0.1 * lab) * devices**0.1, []
    runs = runs_of(seconds, devices=devices, nodes=1, global_batch=32 * devices, **columns)
    for share, rows in ((0.0, 0), (2.0, 0), (2.0, 400)):
        monkeypatch.setattr(fitting, "DENSE", share)
        monkeypatch.setattr(fitting, "FEW_ROWS", rows)
        monkeypatch.setattr(hierarchical, "_LATEST", {})
        found.append(Hierarchical().fit(runs).predict(runs.jobs).seconds)
    assert found[0] == pytest.approx(found[1], rel=1e-7)
    assert found[2] == pytest.approx(found[0], rel=1e-4)  # other steps lead there
