"""Makes a lab with a process on each host, says its id, and waits to be killed."""

import json
import time

from forerun.measure.lab import Lab

lab = Lab(2).up()
for host in lab.hosts:
    lab.start(host, ["sleep", "600"])
while not all(lab.group(host).pids() for host in lab.hosts):
    time.sleep(0.01)
print(json.dumps({"id": str(lab.id)}), flush=True)
time.sleep(600)
