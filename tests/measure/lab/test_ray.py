"""A Ray cluster on the lab: a node on every host, tasks on each, and an end without remains."""

from __future__ import annotations

import csv
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from forerun.errors import MissingExtraError
from forerun.measure.lab import HostSpec, Lab
from forerun.measure.lab.raycluster import RayCluster
from forerun.measure.processes import started_at
from tests.measure.entries import ENTRIES
from tests.needs import require

DRIVER = """
import ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=1)
def where():
    import time
    time.sleep(1)  # long enough that each node gets one
    return ray.util.get_node_ip_address()

print("NODES", sorted(ray.get([where.remote() for _ in range(2)])))
"""


CAMPAIGN = """
name: held
workloads: {busy: {entry: "entries:mlp", settings: {width: 256, depth: 3, rehearse: false}}}
vary: {workers: 2, global_batch: 1024, cpus_per_worker: 0.2}
steps: {warmup: 1, least: 30, most: 60, seconds: 6s, half_width: 50%}
"""


def test_tasks_run_on_every_node_and_nothing_is_left_of_the_cluster(
    able: None, tmp_path: Path
) -> None:
    require("ray", find_spec("ray") is not None, "install it: pip install 'forerun[ray]'")
    with Lab([HostSpec(0.45, 300)] * 2) as lab:
        with lab.ray() as cluster:
            assert cluster.nodes() == 2
            with lab.full_speed():
                done = cluster.run([sys.executable, "-c", DRIVER], capture_output=True, text=True)
            assert f"NODES {sorted(host.address for host in lab.hosts)}" in done.stdout, done.stderr
            with lab.full_speed():  # the worker is held all the same
                run = profiled(lab.name, tmp_path)
            assert run["placement"] == "1-1"
            assert 0.1 < float(run["cpu_share"]) < 0.25, "held to 0.2 of a core"
            left = set(cluster.pids())
            folders = lab.state().folders
            assert left
        assert cluster.pids() == []
        assert not [pid for pid in left if started_at(pid) is not None]
        assert folders
        assert not any(map(Path.exists, map(Path, folders)))
        assert lab.run("h1", ["true"]).returncode == 0, "the hosts stay"


def profiled(name: str, folder: Path) -> dict[str, str]:
    """Return the one run of a campaign on a lab's Ray cluster."""
    (folder / "entries.py").write_text(ENTRIES)
    (folder / "held.yaml").write_text(CAMPAIGN)
    words = ["profile", "held.yaml", "--on", "ray", "--lab", name, "--store", "s.db"]
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words, "--out", "runs.csv"], cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [run] = csv.DictReader((folder / "runs.csv").read_text().splitlines())
    assert run["status"] == "ok", run
    return run


def test_where_ray_is_not_installed_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forerun.measure.lab.raycluster.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"forerun\[ray\]"):
        RayCluster(Lab(2))
