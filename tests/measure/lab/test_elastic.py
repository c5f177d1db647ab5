"""Elastic training on the hosts of a lab: groups meet over its links, and a worker that dies is replaced where it was."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from forerun.measure.elastic.driver import TRAINING, ElasticWorkers, _Member
from forerun.measure.lab import Lab
from tests.measure.elastic.conftest import folder as folder
from tests.measure.elastic.toys import check_ids, job


def test_a_group_trains_across_hosts_and_is_made_whole_again(lab: Lab, folder: Path) -> None:
    hosts, asked = lab.hosts, job("train", workers=(2,), settings={"pause": 0.01})
    with ElasticWorkers(asked, "training", hosts) as workers:
        assert workers.form(2, 6) == 2
        until = time.monotonic() + 120.0
        for steps in (10, 40):
            last, members = -1, list[_Member]()
            while last < steps or len(members) < 2:
                assert time.monotonic() < until, "no group of two for two minutes"
                event = workers.take(0.2)
                last = event["step"] if event and event["is"] == "step" else last
                members = [m for m in workers._members if m.state == TRAINING]
                if len(members) < 2 and workers.available == 2:
                    assert workers.form(2, 6) == 2
            spaces = {Path(f"/proc/{m.process.pid}/ns/net").readlink() for m in members}
            assert sorted(m.host.name for m in members) == sorted(host.name for host in hosts)
            assert len(spaces | {Path("/proc/self/ns/net").readlink()}) == 3
            if steps == 10:
                os.kill(members[1].process.pid, signal.SIGKILL)
        workers.finish()
    assert check_ids(folder, asked.seed, 40) > 0
