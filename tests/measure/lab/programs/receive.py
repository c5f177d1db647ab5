"""Receives on an address what `send` sends, and says the bytes a second between first and last."""

import json
import socket
import sys
import time

SKIPPED = 500_000  # bytes: what left at once from a full bucket, and the slow start

server = socket.create_server((sys.argv[1], 5001))
print(json.dumps({"ready": True}), flush=True)
while True:
    connection, _ = server.accept()
    got, since, began = 0, 0, 0.0
    while data := connection.recv(1 << 18):
        got += len(data)
        if not began and got >= SKIPPED:
            began, since = time.perf_counter(), got
    seconds = time.perf_counter() - began
    print(json.dumps({"bytes": got, "bytes_per_second": (got - since) / seconds}), flush=True)
