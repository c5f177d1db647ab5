"""Messages: what a worker and a parameter server say to one another over TCP, tensors as they lie."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SERVERS = "FORERUN_SERVERS"  # the folder in which servers say where they listen
# Terms and first weights; rows of a table; gradients, answered by weights; an end for all; what went wrong.
HELLO, LOOKUP, PUSH, STOP, ERROR = range(5)
_HEAD = struct.Struct("<Bqqq")


class ServerError(RuntimeError):
    """A parameter server could not go on."""


class Channel:
    """One connection: a message is a kind, three numbers and any number of tensors of known sizes."""

    def __init__(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = link
        self.sent = 0  # bytes

    def send(self, kind: int, *numbers: int, tensors: Sequence[Any] = ()) -> None:
        """Send a message; tensors are contiguous and of the processor."""
        parts = [memoryview(_HEAD.pack(kind, *numbers, *(0,) * (3 - len(numbers))))]
        parts += [memoryview(t.numpy()).cast("B") for t in tensors if t.numel()]
        self.sent += sum(part.nbytes for part in parts)
        done = self._link.sendmsg(parts)  # small ones share a packet
        for part in parts:
            self._link.sendall(part[done:])
            done = max(done - part.nbytes, 0)

    def receive(self) -> tuple[int, int, int, int] | None:
        """Return the next message's kind and numbers, None where the other side has closed.

        Raises ServerError where the message is that the server could not go on.
        """
        head = bytearray(_HEAD.size)
        if not self._fill(memoryview(head)):
            return None
        kind, first, second, third = _HEAD.unpack(head)
        if kind == ERROR:
            raise ServerError(self.read_json(first)["reason"])
        return kind, first, second, third

    def read(self, tensor: Any) -> Any:
        """Fill a contiguous tensor with what follows, and return it. Raises ConnectionError."""
        if tensor.numel() and not self._fill(memoryview(tensor.numpy()).cast("B")):
            raise ConnectionError("connection closed by peer in the middle of a message")
        return tensor

    def send_json(self, kind: int, data: Mapping[str, Any]) -> None:
        """Send a message with plain data, its length among the numbers."""
        import torch

        text = bytearray(json.dumps(data).encode())
        self.send(kind, len(text), tensors=[torch.frombuffer(text, dtype=torch.uint8)])

    def read_json(self, length: int) -> dict[str, Any]:
        """Return the plain data of `send_json` that follow."""
        import torch

        data: dict[str, Any] = json.loads(
            bytes(self.read(torch.empty(length, dtype=torch.uint8)).numpy())
        )
        return data

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _fill(self, room: memoryview) -> bool:
        while room.nbytes:
            got = self._link.recv_into(room)
            if not got:
                return False
            room = room[got:]
        return True


def server_path(folder: Path, number: int) -> Path:
    """Return the file in which a server says where it listens."""
    return folder / f"server-{number}.json"


def part(size: int, number: int, count: int) -> tuple[int, int]:
    """Return where the part of one of `count` servers begins and ends, of so many elements or rows."""
    return size * number // count, size * (number + 1) // count
