"""Sends a number of bytes to an address."""

import socket
import sys

left = int(sys.argv[2])
with socket.create_connection((sys.argv[1], 5001), timeout=10) as connection:
    while left > 0:
        left -= connection.send(bytes(min(left, 1 << 18)))
