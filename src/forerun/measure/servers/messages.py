"""Messages: what a worker and a parameter server say to one another over TCP, tensors as they lie.

A conversation is a generator that yields what it waits for, so that one thread holds many at once:
threads that hand over to one another cost hosts with a share of a core milliseconds.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

SERVERS = "FORERUN_SERVERS"  # the folder in which servers say where they listen
# Terms and first weights; rows of a table; gradients, answered by weights; an end for all; what went wrong.
HELLO, LOOKUP, PUSH, STOP, ERROR = range(5)
_HEAD = struct.Struct("<Bqqq")
_PIECES = 512  # of one write; a kernel takes 1,024 at most
_MOST_TEXT = 1 << 24  # bytes


class ServerError(RuntimeError):
    """A parameter server could not go on."""


# It waits until a socket (number, event) is ready, or until what it calls is true.
Talk = Generator[tuple[int, int] | Callable[[], bool], None, Any]


def at_once(*talks: Talk) -> list[Any]:
    """Hold conversations side by side, and return what each returns. Raises what any of them raises.

    Raises RuntimeError where those left wait for one another.
    """
    found: list[Any] = [None] * len(talks)
    poller, blocked, held = select.poll(), dict[int, int](), dict[int, Callable[[], bool]]()
    ready = list(range(len(talks)))
    while ready or blocked or held:
        for at in ready:
            try:
                awaited = next(talks[at])
            except StopIteration as end:
                found[at] = end.value
                continue
            if callable(awaited):
                held[at] = awaited
            else:
                blocked[awaited[0]] = at
                poller.register(*awaited)
        ready = [at for at, is_met in held.items() if is_met()]
        for at in ready:
            del held[at]
        if not ready and not blocked and held:
            raise RuntimeError("workers wait for one that has gone")
        if not ready and blocked:
            for number, _ in poller.poll():
                poller.unregister(number)
                ready.append(blocked.pop(number))
    return found


class Channel:
    """One connection: a message is a kind, three numbers and any number of tensors of known sizes."""

    def __init__(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
        self._link = link
        self.sent = 0  # bytes

    def send(
        self, kind: int, *numbers: int, tensors: Sequence[Any] = (), text: bytes = b""
    ) -> Talk:
        """Send a message; tensors are contiguous and of the processor."""
        parts = [memoryview(_HEAD.pack(kind, *numbers, *(0,) * (3 - len(numbers))) + text)]
        parts += [_bytes(t) for t in tensors if t.numel()]
        self.sent += sum(part.nbytes for part in parts)
        while parts:
            try:
                done = self._link.sendmsg(parts[:_PIECES])  # small ones share a packet
            except BlockingIOError:
                yield self._link.fileno(), select.POLLOUT
                continue
            while parts and done >= parts[0].nbytes:
                done -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][done:]

    def receive(self) -> Talk:
        """Return the next message's kind and numbers, None where the other side has closed.

        Raises ServerError where the message is that the server could not go on.
        """
        head = bytearray(_HEAD.size)
        if not (yield from self._fill(memoryview(head))):
            return None
        kind, first, second, third = _HEAD.unpack(head)
        if kind == ERROR:
            raise ServerError((yield from self.read_json(first))["reason"])
        return kind, first, second, third

    def read(self, tensor: Any) -> Talk:
        """Fill a contiguous tensor with what follows, and return it. Raises ConnectionError."""
        if tensor.numel():
            yield from self._filled(_bytes(tensor))
        return tensor

    def send_json(self, kind: int, data: Mapping[str, Any]) -> Talk:
        """Send a message with plain data, its length among the numbers."""
        text = json.dumps(data).encode()
        yield from self.send(kind, len(text), text=text)

    def read_json(self, length: int) -> Talk:
        """Return the plain data of `send_json` that follow. Raises ServerError for none of such a length."""
        if not 0 < length < _MOST_TEXT:
            raise ServerError(f"a message of {length} bytes is none of a worker's")
        text = bytearray(length)
        yield from self._filled(memoryview(text))
        return json.loads(text)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _filled(self, room: memoryview) -> Talk:
        if not (yield from self._fill(room)):
            raise ConnectionError("connection closed by peer in the middle of a message")

    def _fill(self, room: memoryview) -> Talk:
        while room.nbytes:
            try:
                got = self._link.recv_into(room)
            except BlockingIOError:
                yield self._link.fileno(), select.POLLIN
                continue
            if not got:
                return False
            room = room[got:]
        return True


def _bytes(tensor: Any) -> memoryview:
    import torch

    return memoryview(tensor.detach().flatten().view(torch.uint8).numpy())


def server_path(folder: Path, number: int) -> Path:
    """Return the file in which a server says where it listens."""
    return folder / f"server-{number}.json"


def part(size: int, number: int, count: int) -> tuple[int, int]:
    """Return where the part of one of `count` servers begins and ends, of so many elements or rows."""
    return size * number // count, size * (number + 1) // count
