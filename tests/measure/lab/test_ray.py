"""A Ray cluster on the lab: tasks on every node, a node that is lost in mid-run, and no remains."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from forerun.advisor import Advisor
from forerun.advisor.measuring import Profiling
from forerun.errors import MissingExtraError
from forerun.measure.campaign import CampaignProgress
from forerun.measure.campaign_file import read_campaign
from forerun.measure.lab import HostSpec, Lab
from forerun.measure.lab.raycluster import RayCluster
from forerun.measure.processes import started_at
from forerun.measure.ray import RayRunner
from forerun.store import open_store
from tests.measure.ray.conftest import drivers, later, notice_ends_soon, on_steps
from tests.needs import require

ROOT = Path(__file__).resolve().parents[3]
Cluster = tuple[Lab, RayCluster]
# Three silences are a loss; as long a pause as a wait.
LOSS = {"period_ms": "1200", "timeout_ms": "1200", "failure_threshold": "3"}


@pytest.fixture(scope="module")
def cluster(able: None) -> Iterator[Cluster]:
    """Two hosts with a Ray node each, which is lost once it is silent for some seconds."""
    require("ray", find_spec("ray") is not None, "install it: pip install 'forerun[ray]'")
    with ExitStack() as stack:
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in LOSS.items():
            variables.setenv(f"RAY_health_check_{name}", value)
        lab = stack.enter_context(Lab([HostSpec(0.9, 300)] * 2))
        ray = stack.enter_context(lab.ray())
        stack.enter_context(lab.full_speed())
        yield lab, ray


DRIVER = """
import sys
import ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=1)
def where(number, folder):
    import pathlib, time
    pathlib.Path(folder, str(number)).touch()
    until = time.monotonic() + 120  # each waits for the other, so that each node gets one
    while len(list(pathlib.Path(folder).iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    return ray.util.get_node_ip_address()

print("NODES", sorted(ray.get([where.remote(number, sys.argv[1]) for number in range(2)])))
"""


def test_tasks_run_on_every_node(cluster: Cluster, tmp_path: Path) -> None:
    lab, ray = cluster
    assert ray.nodes() == 2
    words = [sys.executable, "-c", DRIVER, str(tmp_path)]
    done = ray.run(words, capture_output=True, text=True)
    assert f"NODES {sorted(host.address for host in lab.hosts)}" in done.stdout, done.stderr


# Runs of two workers of a fifth of a CPU each, which fit on one node too.
CAMPAIGN = """
name: losing
workloads:
  short: {entry: "toys:slow", settings: {pause: 0.0, rehearse: false}}
  long: {entry: "toys:slow", settings: {pause: 0.4, rehearse: false}}
"""
BEFORE = """\
  last: {entry: "toys:slow", settings: {pause: 0.0, rehearse: false}}
  late: {entry: "toys:slow", settings: {pause: 0.3, stalls: 8, rehearse: false}}
"""
AFTER = """\
  busy: {entry: "toys:mlp", settings: {width: 256, depth: 3, rehearse: false}}
  dies: {entry: "toys:dying", settings: {rehearse: false}}
"""
VARY = """
vary: {workers: 2, global_batch: 1024, cpus_per_worker: 0.2}
steps: {warmup: 1, least: 12, most: 30, seconds: 60s, half_width: 50%}
timeout: 10min
"""


@pytest.mark.slow
def test_a_campaign_outlives_a_lost_node_and_resumes_when_it_is_back(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures and the time limit are told apart; the resumed workers are held to their share."""
    lab, ray = cluster
    notice_ends_soon(monkeypatch)
    file, store = folder / "losing.yaml", folder / "s.db"
    file.write_text(CAMPAIGN + BEFORE + VARY)
    runner = RayRunner(
        ray.address, host=ray.head, folder=folder / "runs", placement="SPREAD",
        environment={**ray.environment, "PYTHONPATH": f"{folder}:{ROOT / 'src'}"},
    )  # fmt: skip
    # "long", the second task, has begun; the fourth, "late", has made steps enough to be timed.
    steps = {1: (2, lambda: lab.cut("h2")), 3: (6, later(monkeypatch))}
    on_steps(monkeypatch, steps)
    asked, ends = read_campaign(file), dict[str, CampaignProgress]()
    with open_store(str(store)) as opened:
        profiling = Profiling(asked, runner, opened, Advisor())
        done = profiling.carried_out(
            lambda one: ends.update({str(one.point.asked["workload"]): one})
        )
    found = {name: one.measurement for name, one in ends.items()}
    assert (done.made, done.left) == ({"ok": 2, "failed": 1, "timeout": 1}, 1), found
    # Which rank was on it is Ray's to say: nodes get theirs as they come.
    assert re.search(r"worker [01] of 2 was lost with its node", found["long"].reason)
    assert "in step" in found["long"].reason
    assert found["last"].status == "ok", "what still fits is run"
    assert found["late"].step_seconds is not None
    assert 0.3 <= found["late"].step_seconds < 1.0
    wide = runner.measure(asked.points[0].task.with_(cpus_per_worker=1.0))
    assert "do not fit: this cluster of 1 nodes has room for 1" in wide.reason
    assert not drivers(), "the driver has ended"

    lab.mend("h2")
    ray._check(2, ray._node(2))  # what was killed is started once more
    assert ray.nodes() == 2
    file.write_text(CAMPAIGN + AFTER + VARY)
    again = resumed(lab.name, folder)
    assert {name: run["status"] for name, run in again.items()} == {
        "short": "ok", "last": "ok", "late": "timeout", "long": "ok", "busy": "ok", "dies": "failed",
    }  # fmt: skip
    for name in ("short", "last"):
        assert float(again[name]["step_time_s"]) == pytest.approx(found[name].step_seconds)
    assert again["busy"]["placement"] == "1-1"
    assert 0.1 < float(again["busy"]["cpu_share"]) < 0.25, "held to 0.2 of a core"
    assert re.search(r"worker 1 of 2 died without a message .* in step 12", again["dies"]["note"])


def resumed(name: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the runs of a store, by workload, once a campaign has gone on at a lab's Ray cluster."""
    words = ["profile", "losing.yaml", "--on", "ray", "--lab", name, "--store", "s.db"]
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words, "--out", "runs.csv"], cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = csv.DictReader((folder / "runs.csv").read_text().splitlines())
    return {row["workload"]: row for row in rows}


def test_nothing_is_left_of_the_cluster(cluster: Cluster) -> None:
    lab, ray = cluster
    left, folders = set(ray.pids()), lab.state().folders
    assert left
    ray.down()
    assert ray.pids() == []
    assert not [pid for pid in left if started_at(pid) is not None]
    assert folders
    assert not any(map(Path.exists, map(Path, folders)))
    assert lab.run("h1", ["true"]).returncode == 0, "the hosts stay"


def test_where_ray_is_not_installed_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forerun.measure.lab.raycluster.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"forerun\[ray\]"):
        RayCluster(Lab(2)).up()
