"""Tables that stand for a black box: a made-up parameter-server law, and the measured ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from forerun.catalog import load_catalog
from forerun.search.landscape import Goal
from forerun.search.replay import Replay
from forerun.tables import Runs, Table, read_table
from forerun.workloads.rows import runs_from_table
from tests.needs import published


def runs_of_rows(rows: list[dict[str, Any]]) -> Runs:
    """Return rows of a runs table as runs."""
    return runs_from_table(Table.from_rows(rows), load_catalog())


def made_up_rows(seed: int = 0, noise: float = 0.05) -> list[dict[str, Any]]:
    """Return 96 configurations of two machines: workers whose servers saturate, and batches."""
    rng = np.random.default_rng(seed)
    server = rng.uniform(4, 20)
    rows: list[dict[str, Any]] = []
    for (power, price), workers, batch, rate, sync in product(
        ((1.0, 0.03), (3.0, 0.12)), (1, 2, 4, 8, 12, 16), (16, 256), (1e-4, 1e-3),
        ("ps-sync", "ps-async"),
    ):  # fmt: skip
        speed = ((workers * power) ** -4 + server**-4) ** -0.25
        steps = (600 if batch == 16 else 250) * (1.6 if rate == 1e-4 else 1.0)
        steps *= 1 + 0.05 * workers * (sync == "ps-async")
        seconds = steps / speed * np.exp(noise * rng.standard_normal())
        rows.append({
            "workload": "made-up", "device": "cpu", "nodes": workers, "devices": workers,
            "parameter_servers": 1, "price_usd_per_hour": price * (workers + 1),
            "micro_batch": batch, "learning_rate": rate, "sync": sync,
            "time_to_train_s": min(seconds, 500.0),
            "status": "ok" if seconds < 500 else "timeout",
        })  # fmt: skip
    return rows


def made_up(seed: int = 0, minimize: str = "cost", deadline: float = 150.0) -> Replay:
    """Return the made-up table as a black box."""
    return Replay.of(runs_of_rows(made_up_rows(seed)), Goal(minimize, deadline))


def measured(table: str, goal: Goal, **where: float) -> Replay:
    """Return a measured table as a black box."""
    rows = read_table(published(table))
    for column, value in where.items():
        rows = rows.take(rows.numbers(column) == value)
    return Replay.of(runs_from_table(rows, load_catalog()), goal)
