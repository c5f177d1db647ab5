"""Says which of some addresses answer a connection, and what the network says of the others."""

import json
import socket
import sys

answers = {}
for address in sys.argv[1:]:
    try:
        socket.create_connection((address, 9), timeout=0.5).close()
        answers[address] = "connected"
    except OSError as error:
        answers[address] = type(error).__name__ if error.errno is None else error.strerror
print(json.dumps(answers), flush=True)
