"""Opens a kept lab, changes shares of its hosts for a while as it is told, and waits to be killed."""

import json
import sys
import time

from forerun.measure.lab import Lab

lab = Lab.open(sys.argv[1])


def wait() -> None:
    print(json.dumps({"changed": True}), flush=True)
    time.sleep(600)


if sys.argv[2] == "hold":
    lab.hosts[0].hold(0.05)
    wait()
with lab.full_speed():
    wait()
