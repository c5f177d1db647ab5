"""A Ray node that is lost in mid-run: the run fails with its reason, the campaign goes on and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from forerun.measure.campaign import Campaign
from forerun.measure.campaign_file import campaign
from forerun.measure.carrying import Progress, carry_out
from forerun.measure.lab import HostSpec, Lab, missing
from forerun.measure.lab.raycluster import RayCluster
from forerun.measure.ray import RayRunner
from tests.measure.conftest import Notes
from tests.needs import require

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cluster(able: None) -> Iterator[tuple[Lab, RayCluster]]:
    """Two hosts with a Ray node each, which is lost once it is silent for five seconds."""
    lacks = missing()
    require("lab", not lacks, "; ".join(f"{found}: {todo}" for found, todo in lacks))
    with ExitStack() as stack:
        lab = stack.enter_context(Lab([HostSpec(0.9, 300)] * 2))
        stack.enter_context(lab.full_speed())
        yield lab, stack.enter_context(lab.ray(loss_seconds=5.0, full_speed=False))


def study() -> Campaign:
    """Runs of two workers, which need both nodes: a short one, a long one, another; and of one worker."""
    pauses = {"short": 0.0, "long": 0.4, "last": 0.0}
    quick: dict[str, Any] = {"entry": "toys:slow", "workers": [2]}
    return campaign({
        "name": "losing",
        "workloads": {
            **{name: {**quick, "settings": {"pause": pause, "rehearse": False}}
               for name, pause in pauses.items()},
            "alone": {**quick, "workers": [1], "settings": {"pause": 0.0, "rehearse": False}},
        },
        "vary": {"global_batch": [2]},
        "steps": {"warmup": 1, "least": 20, "most": 20, "seconds": 60}, "timeout": "3min",
    })  # fmt: skip


def test_a_campaign_outlives_a_lost_node_and_resumes_when_it_is_back(
    cluster: tuple[Lab, RayCluster], folder: Path
) -> None:
    lab, ray = cluster
    runner = RayRunner(
        ray.address, host=ray.head, folder=folder / "runs", placement="SPREAD",
        environment={**ray.environment, "PYTHONPATH": f"{folder}:{ROOT / 'src'}"},
    )  # fmt: skip
    notes, asked = Notes(), study()

    def lose(one: Progress) -> None:
        if one.point.asked["workload"] == "short":  # the long one has begun
            Timer(3.0, lab.cut, ["h2"]).start()

    done = carry_out(asked, runner, notes, lose)
    ends = {point.asked["workload"]: notes.kept[point.key] for point in asked.points}
    assert done.made == {"ok": 2, "failed": 2}, ends
    assert done.left == 2
    assert ends["short"].status == ends["alone"].status == "ok", (
        "what fits on the other node is run"
    )
    assert "worker 1 of 2 was lost with its node" in ends["long"].reason
    assert "in step" in ends["long"].reason
    assert "this cluster of 1 nodes has room for 1" in ends["last"].reason

    lab.mend("h2")
    ray.rejoin("h2")
    again = carry_out(asked, runner, notes)
    assert (again.before, again.made, again.left) == (2, {"ok": 2}, 0)
    assert sorted(map(len, notes.kept.values())) == [1, 1, 2, 2], (
        "what was finished is not run again"
    )
