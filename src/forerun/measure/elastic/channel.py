"""Channel: messages in lines of JSON between the driver of a training and one of its workers."""

from __future__ import annotations

import json
import select
import socket
import time
from contextlib import suppress
from typing import Any

Message = dict[str, Any]


class MessageChannel:
    """One end of a connection; a message is a mapping whose `is` says what it is."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._buffer = connection, b""

    def fileno(self) -> int:
        """Return the number of the connection, for `select`."""
        return self._connection.fileno()

    def send(self, kind: str, **more: Any) -> None:
        """Send a message; one to an end that is gone is dropped, and `receive` says so."""
        line = json.dumps({"is": kind, **more}).encode() + b"\n"
        with suppress(ConnectionError):
            self._connection.sendall(line)

    def receive(self, seconds: float) -> Message | None:
        """Return the next message, None where none came in so many seconds. Raises EOFError when none can."""
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = max(until - time.monotonic(), 0.0)
            if not select.select([self._connection], [], [], left)[0]:
                return None
            try:
                data = self._connection.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
