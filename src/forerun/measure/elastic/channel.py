"""Channel: messages in JSON between the driver of a training and one of its workers."""

from __future__ import annotations

import json
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]


class MessageChannel:
    """One end of a connection; a message is a mapping whose `is` says what it is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.close = connection.close

    def send(self, kind: str, **more: Any) -> None:
        """Send a message; one to an end that is gone is dropped, and `receive` says so."""
        with suppress(ConnectionError):
            self._connection.send_bytes(json.dumps({"is": kind, **more}).encode())

    def receive(self, seconds: float) -> Message | None:
        """Return the next message, None where none came in so many seconds. Raises EOFError when none can."""
        if not self._connection.poll(seconds):
            return None
        try:
            message: Message = json.loads(self._connection.recv_bytes())
        except OSError:  # the other end has gone, perhaps in the middle of a message
            raise EOFError from None
        return message
