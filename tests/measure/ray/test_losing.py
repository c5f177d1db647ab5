"""A Ray node that is lost in mid-run: the run fails with its reason, the campaign goes on and resumes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

from forerun.measure.campaign import Campaign, CampaignProgress, carry_out
from forerun.measure.campaign_file import campaign
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
    """Runs of two workers: three of half a CPU each, which fit on one node, and one of a whole."""
    pauses = {"short": 0.0, "long": 0.7, "last": 0.0, "wide": 0.0}
    return campaign({
        "name": "losing",
        "workloads": {
            name: {"entry": "toys:slow", "settings": {"pause": pause, "rehearse": False},
                   "cpus_per_worker": [1.0 if name == "wide" else 0.5]}
            for name, pause in pauses.items()
        },
        "vary": {"workers": [2], "global_batch": [2]},
        "steps": {"warmup": 1, "least": 12, "most": 12, "seconds": "60s"}, "timeout": "3min",
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

    def lose(one: CampaignProgress) -> None:
        if one.point.asked["workload"] == "short":  # the long one has begun
            Timer(3.5, lab.cut, ["h2"]).start()

    done = carry_out(asked, runner, notes, lose)
    ends = {point.asked["workload"]: notes.kept[point.key] for point in asked.points}
    assert (done.made, done.left) == ({"ok": 2, "failed": 2}, 2), ends
    # Which rank was on it is Ray's to say: nodes get theirs as they come.
    assert re.search(r"worker [01] of 2 was lost with its node", ends["long"].reason)
    assert "in step" in ends["long"].reason
    assert ends["last"].status == "ok", "what still fits is run"
    assert "do not fit: this cluster of 1 nodes has room for 1" in ends["wide"].reason

    lab.mend("h2")
    ray.rejoin("h2")
    again = carry_out(asked, runner, notes)
    assert (again.before, again.made, again.left) == (2, {"ok": 2}, 0)
    for point in asked.points:
        kept, before = notes.kept[point.key], ends[point.asked["workload"]]
        assert kept.status == "ok"
        assert before.status == "failed" or kept is before, "what was finished is not run again"
