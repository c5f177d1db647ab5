"""RayCluster: a Ray cluster with a node on every host of a lab, ended with all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

from forerun.errors import MissingExtraError, RequestError
from forerun.measure.cgroups import pids_under
from forerun.measure.hosts import Host
from forerun.measure.lab.lab import Lab, prefix
from forerun.measure.lab.network import INTERFACE
from forerun.measure.lab.state import PREFIX
from forerun.measure.processes import kill_all
from forerun.measure.ray.runner import OF_CLUSTERS

_PORT = 6379
_GROUP = "ray"  # within each host's group: holds the processes of a cluster
_STORE_BYTES = 80_000_000  # of shared memory a node: Ray refuses less than 75 MiB
_TIMEOUT_SECONDS = 120.0  # for all nodes to start
_PAUSE_SECONDS = 0.1
# Asks the head for its living nodes; a small program, since a whole driver takes seconds to start.
_ASK = (
    "import sys; from ray._raylet import GcsClient;"
    " print(sum(n.state == 0 for n in GcsClient(address=sys.argv[1]).get_all_node_info().values()))"
)


class RayCluster:
    """A Ray cluster over a lab, head on the first host; each node offers `cpus` logical CPUs (docs/lab.md).

    Raises MissingExtraError without Ray.
    """

    def __init__(self, lab: Lab, *, cpus: int = 1) -> None:
        self._lab, self._cpus = lab, cpus
        self._folder: Path | None = None

    @property
    def head(self) -> Host:
        """The first host, as a place where the driver is started."""
        return self._place(1)

    def _place(self, number: int) -> Host:
        host = self._lab.hosts[number - 1]
        words = prefix(self._lab.state(), number, _GROUP)
        return Host(host.name, host.address, host.interface, words)

    @property
    def _groups(self) -> list[Path]:
        groups = map(self._lab.group, self._lab.hosts)
        return [place / _GROUP for group in groups for place in group.places]

    @property
    def address(self) -> str:
        """What a driver passes to `ray.init`; RAY_ADDRESS in `environment` is the same."""
        return f"{self._lab.hosts[0].address}:{_PORT}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of every node and of the driver."""
        return {
            **OF_CLUSTERS, "RAY_ADDRESS": self.address, "RAY_AUTH_MODE": "disabled", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }  # fmt: skip

    def _variables(self, around: Mapping[str, str]) -> dict[str, str]:
        """Return variables of nodes and drivers; a proxy of this machine is out of their reach."""
        kept = {k: v for k, v in around.items() if not k.lower().endswith("_proxy")}
        return {**kept, **self.environment}

    def run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[Any]:
        """Carry out a driver on the first host; `how` is what `subprocess.run` takes."""
        how["env"] = self._variables(how.get("env") or os.environ)
        return subprocess.run(self.head.command(command), check=how.pop("check", False), **how)

    def nodes(self) -> int:
        """Return how many nodes are alive."""
        done = self.run(
            [sys.executable, "-c", _ASK, self.address], capture_output=True, text=True,
            timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
        return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout else 0

    def pids(self) -> list[int]:
        """Return the cluster's processes, the drivers' too."""
        return sorted({pid for group in self._groups for pid in pids_under(group)})

    def up(self) -> RayCluster:
        """Start the nodes, and return once all are alive. Raises RequestError with Ray's own words."""
        if find_spec("ray") is None:
            raise MissingExtraError("a Ray cluster on the lab", "ray", "ray")
        for group in self._groups:
            group.mkdir(exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-ray-{self._lab.id.pid}-"))
        self._lab.add_folder(str(self._folder))
        try:
            with self._lab.full_speed():
                self._start_nodes()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """End everything that the cluster started, at once and on every host."""
        with self._lab.full_speed():
            kill_all(self.pids)
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> RayCluster:
        return self.up()

    def __exit__(self, *raised: object) -> None:
        self.down()

    def _start_nodes(self) -> None:
        count = len(self._lab.hosts)
        self._check(1, self._node(1))
        others = [(number, self._node(number)) for number in range(2, count + 1)]
        for number, process in others:
            self._check(number, process)
        until = time.monotonic() + _TIMEOUT_SECONDS
        while (alive := self.nodes()) < count:
            if time.monotonic() > until:
                asked = f"a Ray cluster of {count} nodes"
                todo = "make the hosts' shares larger, or read the nodes' logs"
                raise RequestError(asked, f"{alive} are alive after {_TIMEOUT_SECONDS:g} s", todo)
            time.sleep(_PAUSE_SECONDS)

    def _node(self, number: int) -> subprocess.Popen[str]:
        host = self._place(number)
        head = ["--head", f"--port={_PORT}", "--include-dashboard=false"]
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start",
            *(head if number == 1 else [f"--address={self.address}"]),
            # A folder a node: nodes that start at once in one folder take each other's sockets.
            f"--temp-dir={self._folder}/{host.name}",
            f"--node-ip-address={host.address}", f"--num-cpus={self._cpus}", "--num-gpus=0",
            f"--object-store-memory={_STORE_BYTES}", "--disable-usage-stats",
        ]  # fmt: skip
        return subprocess.Popen(
            host.command(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, env=self._variables(os.environ),
        )  # fmt: skip

    def _check(self, number: int, process: subprocess.Popen[str]) -> None:
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            output = f"no node after {_TIMEOUT_SECONDS:g} s"
        if process.returncode != 0:
            process.kill()
            process.wait()
            last = " ".join(output.split()[-60:])
            todo = "end what else holds the machine or its ports"
            raise RequestError(f"a Ray node on h{number}", f"`ray start` wrote: {last}", todo)
