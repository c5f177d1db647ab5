"""Burns processor time for some seconds, and says which share of a core it was given."""

import json
import sys
import time

print(json.dumps({"ready": True}), flush=True)
began, used = time.perf_counter(), time.process_time()
while time.perf_counter() - began < float(sys.argv[1]):
    pass
share = (time.process_time() - used) / (time.perf_counter() - began)
print(json.dumps({"share": share}), flush=True)
