"""KDD 2015: servers bound what asynchronous replicas gain, and cutting a layer pays until its exchange costs more."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.partitions import MODELS, PARTS, RATES, Point, forecasts, read
from forerun.advisor import Advisor
from forerun.domain.workload import Length

ADVISOR = Advisor()
MACHINE, EPOCH = "v100-sxm2-32gb", Length("epochs", 1)


def seconds(plan: str, machines: int = 34, **request) -> float:
    request = {"global_batch": 256, **request}
    found = ADVISOR.provision(
        "vgg16", MACHINE, machines=machines, plan=plan, length=EPOCH, **request
    )
    return found.best.run_seconds


def test_asynchronous_replicas_stop_paying_once_the_servers_are_busy() -> None:
    workers = (1, 2, 4, 8, 16, 32)
    rows = [
        seconds(f"sync=ps-async,parameter_servers=2,dp={each}", partitions=1) for each in workers
    ]
    updates = np.array(workers) / np.array(rows)  # of an epoch, a second, over those of one worker
    assert (np.diff(updates) >= -1e-9 * updates[:-1]).all(), "more workers never update less often"
    # The batch is shared, so that twice the replicas send twice as often.
    served = [rows[i + 1] / rows[i] for i in range(len(rows) - 1)]
    assert rows[1] < 0.7 * rows[0]
    assert served[-1] == pytest.approx(
        2.0, rel=0.1
    )  # each epoch has twice the updates, at one rate


@pytest.mark.parametrize("sync", ["ps-sync", "ps-async"])
def test_servers_help_until_their_messages_cost_more(sync: str) -> None:
    """16 still share a model of vgg16's size; beyond, see tests/predictors/analytic/test_servers.py."""
    rows = [
        seconds(f"sync={sync},parameter_servers={n},dp=8", partitions=1) for n in (1, 2, 4, 8, 16)
    ]
    assert (np.diff(rows) <= 1e-9).all()
    assert rows[-1] < 0.5 * rows[0]


def test_one_replica_is_cut_until_the_exchange_costs_more() -> None:
    rows = {p: seconds("dp=1,sync=allreduce", partitions=p) for p in (1, 2, 4, 8, 32)}
    assert rows[4] < rows[2] < rows[1]
    assert rows[32] / rows[8] > rows[8] / rows[2]


def test_cut_steps_on_cpu_machines_are_foretold_from_a_probe() -> None:
    """Two networks in two to four parts at two link rates, of the lab's hosts of a fifth of a core: 9.0 % off."""
    pytest.importorskip("torch")
    points = [Point(*one) for one in product(RATES, MODELS, PARTS[1:])]
    rows = [
        (int(r["rate_mbit"]), r["model"], int(r["parts"]), float(r["step_mean_s"])) for r in read()
    ]
    measured = [np.median([t for *at, t in rows if Point(*at) == point]) for point in points]
    off = np.abs(forecasts(points).seconds[:, 1] / measured - 1)
    assert len(off) == 12
    assert off.mean() == pytest.approx(0.090, abs=0.005)
