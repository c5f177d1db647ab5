"""Each run is compared by one measured figure, turned into the predictor's quantity, or says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.tables import Runs, Table
from forerun.tables.measured import measured_seconds
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_workload


def runs(**cells: Any) -> Runs:
    """Return one run of a small transformer with the given measured cells."""
    jobs = tiny_jobs((tiny_cluster(1, 4),), (tiny_workload(),), (64,)).take(np.arange(1))
    row = {"devices": 4, "global_batch": 64, "seq_len": 128, **cells}
    return Runs(jobs, Table.from_rows([row]))


@pytest.mark.parametrize(
    ("cells", "seconds", "origin"),
    [
        ({"step_time_s": 0.5, "samples_per_s": 1.0}, 0.5, "step"),
        ({"samples_per_s": 128.0}, 0.5, "throughput"),
        ({"tokens_per_s": 128.0 * 128}, 0.5, "throughput"),
        ({"epoch_time_s": 50.0, "dataset_size": 6400}, 0.5, "epoch"),
        ({"time_to_train_s": 100.0, "epochs_to_target": 2, "dataset_size": 6400}, 0.5, "whole run"),
        ({"time_to_train_s": 100.0, "samples_to_target": 12800}, 0.5, "whole run"),
    ],
)
def test_a_step_comes_from_the_first_figure_that_tells_it(
    cells: dict[str, float], seconds: float, origin: str
) -> None:
    found = measured_seconds(runs(**cells), "step")
    assert found.seconds[0] == pytest.approx(seconds)
    assert (found.origin[0], found.reason[0]) == (origin, None)


@pytest.mark.parametrize("stated_dp", [True, False])
@pytest.mark.parametrize("sync", ["allreduce", "ps-sync", "ps-async", "ps-stale"])
def test_all_statements_of_one_run_say_the_same_step(sync: str, stated_dp: bool) -> None:
    """Four workers take 64 samples in 0.5 s, each 16; a step of ps-async is one worker's update."""
    one = runs()
    graph, samples = one.jobs.workloads[0].graph, 16 if sync == "ps-async" else 64
    a_sample = graph.forward_flops + graph.backward_flops
    rate, again = 64 / 0.5, {"dataset_size": 6400}
    found = [
        measured_seconds(runs(sync=sync, **({"dp": 4} if stated_dp else {}), **cells), "step").seconds[0]
        for cells in (
            {"step_time_s": 0.5 * samples / 64},
            {"samples_per_s": rate},
            {"tokens_per_s": rate * 128},
            {"tflops_per_device": rate * a_sample / 4 / 1e12},
            {"epoch_time_s": 6400 / rate, **again},
            {"time_to_train_s": 2 * 6400 / rate, "epochs_to_target": 2, **again},
            {"time_to_train_s": 1000 / rate, "samples_to_target": 1000},
        )
    ]  # fmt: skip
    assert found == pytest.approx([0.5 * samples / 64] * len(found))


def test_a_flop_rate_is_turned_into_a_step_by_the_models_flops() -> None:
    one = runs(tflops_per_device=50.0)
    graph = one.jobs.workloads[0].graph
    by_hand = (graph.forward_flops + graph.backward_flops) * 64 / (50e12 * 4)
    assert measured_seconds(one, "step").seconds[0] == pytest.approx(by_hand)


def test_the_trillion_parameter_step_of_narayanan_takes_102_seconds() -> None:
    """Their table 1 (1008 B parameters, 3,072 GPUs, batch 3,072, 163 TFLOP/s) and section 5.1.

    The latter says 84 days for 450 B tokens, which is 101.5 s a step of 6.29 M tokens.
    """
    from dataclasses import replace

    one = runs(
        tflops_per_device=163.0, devices=3072, global_batch=3072, layers=128, hidden=25600,
        seq_len=2048, vocab=51200, recompute="full",
    )  # fmt: skip
    plans = replace(one.jobs.plans, recompute=np.array([2], dtype=np.int32))
    full = Runs(replace(one.jobs, plans=plans), one.table)
    assert measured_seconds(full, "step").seconds[0] == pytest.approx(101.5, rel=0.02)


def test_the_epoch_of_a_row_without_dataset_size_uses_the_workloads() -> None:
    found = measured_seconds(runs(epoch_time_s=10_000 / 64), "step")
    assert found.seconds[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"status": "oom", "step_time_s": 1.0}, "ended oom"),
        ({"status": "timeout", "time_to_train_s": 600.0}, "lower bound"),
        ({"samples_per_s": 5.0, "global_batch": ""}, "a rate without a batch size"),
        ({"time_to_train_s": 5.0}, "a whole run without"),
        ({"memory_gb": 5.0}, "no step time measured"),
        ({"step_time_s": -1.0}, "no step time measured"),
    ],
)
def test_a_row_that_cannot_be_compared_says_why(cells: dict[str, Any], words: str) -> None:
    found = measured_seconds(runs(**cells), "step")
    assert not found.comparable[0]
    assert words in str(found.reason[0])


def test_epochs_and_runs_are_compared_as_they_are() -> None:
    one = runs(epoch_time_s=7.0, time_to_train_s=70.0, step_time_s=0.1)
    assert measured_seconds(one, "epoch").seconds[0] == 7.0
    assert measured_seconds(one, "run").seconds[0] == 70.0
