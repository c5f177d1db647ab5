"""Connections: those that send headers slowly or without end, or do not take their answer, are closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BYTES = 65_536


class GuardedConnection(HttpToolsProtocol):  # type: ignore[misc]
    """A connection of uvicorn: so long for the headers of a request, and to take a part of an answer."""

    head_seconds, taking_seconds = 10.0, 30.0
    _ending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None
    _head, _left = 0, 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read on, unless the headers are too large by now."""
        if self._ending is not None:
            self._head += len(data)
        super().data_received(data)
        if self._ending is not None and self._head > _HEAD_BYTES:
            self._close()

    def on_message_begin(self) -> None:
        """Wait for the headers of a request, whose first byte is there."""
        super().on_message_begin()
        if self._ending is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Wait no longer."""
        self._ending = _cancelled(self._ending)
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._ending, self._taking = _cancelled(self._ending), _cancelled(self._taking)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to take what was sent."""
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size() + 1
        self._await_taking()

    def resume_writing(self) -> None:
        """Wait no longer."""
        super().resume_writing()
        self._taking = _cancelled(self._taking)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is silent; not while it takes an answer."""
        if self._taking is not None:
            wait = self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_later(
                wait, self.timeout_keep_alive_handler
            )
        elif self.transport.get_write_buffer_size():
            self._abort()
        else:
            super().timeout_keep_alive_handler()

    def _await_taking(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= self._left:
            self._abort()
            return
        self._left = left
        self._taking = self.loop.call_later(self.taking_seconds, self._await_taking)

    def _await_head(self) -> None:
        self._head = 0
        self._ending = self.loop.call_later(self.head_seconds, self._close)

    def _abort(self) -> None:
        self.pipeline.clear()
        if self.cycle is not None:
            self.cycle.disconnected = True  # nothing more is written
        self.transport.abort()

    def _close(self) -> None:
        self._ending = _cancelled(self._ending)
        self.transport.close()


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
