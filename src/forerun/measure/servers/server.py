"""Server: one parameter server: `python -m forerun.measure.servers.server FOLDER NUMBER ADDRESS WORKERS`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.measure.failures import reason_of
from forerun.measure.loop import make_optimizer
from forerun.measure.measurement import write_json
from forerun.measure.processes import MARK, die_with_parent, loading
from forerun.measure.servers import messages

_MARK_SECONDS = 3.0  # for a connection to prove its launch; a worker does so at once


class Session:
    """One task's part of the parameters, and the turns in which its workers may change and read it.

    Synchronous: gradients of all workers are added as they come, and the last one's arrival updates
    and lets all go on. Otherwise each updates by itself, and goes on unless it is more than `stale_bound`
    steps ahead of the slowest (stale synchronous parallel, Ho et al. 2013).
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._terms: dict[str, Any] = {}
        self._version = self._arrived = self._first = 0
        self._clocks = [0.0] * workers  # steps that each worker has pushed
        self._stopped = False
        self._failure = ""
        self._ranks: set[int] = set()

    def serve(self, channel: messages.Channel) -> messages.Talk:
        """Answer one worker until it leaves."""
        import torch

        rank = -1
        try:
            while (message := (yield from channel.receive())) is not None:
                kind, first, second, _ = message
                if kind == messages.HELLO and rank < 0:
                    rank = yield from self._begin(channel, first)
                elif rank < 0 or kind not in (messages.LOOKUP, messages.PUSH, messages.STOP):
                    raise messages.ServerError(f"message {kind} of worker {rank} is out of turn")
                elif kind == messages.LOOKUP:  # `second` rows of a table
                    rows = yield from channel.read(torch.empty(second, dtype=torch.int64))
                    yield from channel.send(messages.LOOKUP, tensors=[self._held[1 + first][rows]])
                elif kind == messages.PUSH:
                    yield from self._take(channel, rank, first)
                else:
                    self._stopped = True
        except ConnectionError:
            pass  # its runner knows better why it has gone
        except Exception as error:  # noqa: BLE001  (whatever it is, the workers must not wait)
            self._failure = self._failure or reason_of(error)
            with suppress(OSError):
                yield from channel.send_json(messages.ERROR, {"reason": self._failure})
        finally:
            if rank >= 0:
                self._clocks[rank] = float("inf")
            channel.close()

    def _begin(self, channel: messages.Channel, length: int) -> messages.Talk:
        import torch

        terms = yield from channel.read_json(length)
        dtype, rank = getattr(torch, terms["dtype"]), int(terms["rank"])
        if rank in self._ranks or not 0 <= rank < self._workers:
            raise messages.ServerError(f"there is no place for a worker {rank} of {self._workers}")
        self._ranks.add(rank)
        sizes = [(terms["dense"],), *map(tuple, terms["tables"])]
        if rank == 0:
            yield from channel.receive()  # what follows are the first worker's weights
            self._held = []
            for size in sizes:
                self._held.append((yield from channel.read(torch.empty(size, dtype=dtype))))
            self._parameters = [torch.nn.Parameter(tensor) for tensor in self._held]
            self._optimizer = make_optimizer(
                terms["optimizer"], self._parameters, terms["learning_rate"]
            )
            self._room = [torch.empty_like(self._held[0]) for _ in range(self._workers)]
            self._rows: list[list[tuple[Any, Any]]] = [[] for _ in terms["tables"]]
            self._terms = terms
        yield from self._wait(lambda: bool(self._terms))
        yield from channel.send(messages.HELLO, tensors=self._held)
        return rank

    def _wait(self, is_met: Callable[[], bool]) -> messages.Talk:
        yield lambda: bool(self._failure) or is_met()
        if self._failure:
            raise RuntimeError(self._failure)

    def _take(self, channel: messages.Channel, rank: int, pulled: int) -> messages.Talk:
        """Receive a worker's gradients, of a pull at version `pulled`, update, and answer with weights."""
        import torch

        dense = yield from channel.read(self._room[rank])
        sparse = []
        for table in self._held[1:]:
            count = yield from channel.read(torch.empty(1, dtype=torch.int64))
            rows = yield from channel.read(torch.empty(int(count), dtype=torch.int64))
            values = torch.empty((len(rows), table.shape[1]), dtype=table.dtype)
            sparse.append((rows, (yield from channel.read(values))))
        staleness = self._version - pulled
        for held, one in zip(self._rows, sparse, strict=True):
            held.append(one)
        if self._terms["in_step"]:
            if self._arrived:
                self._room[self._first].add_(dense)
            else:
                self._first = rank
            self._arrived += 1
            if self._arrived == self._workers:
                self._update(self._room[self._first], 1.0 / self._workers)
                self._arrived = 0
            else:
                before = self._version
                yield from self._wait(lambda: self._version > before)
            weights = self._held[0]  # none changes them before all have them
        else:
            self._update(dense, 1.0)
            self._clocks[rank] += 1.0
            bound = self._terms["stale_bound"]
            if bound is not None:
                own = self._clocks[rank]
                yield from self._wait(lambda: self._stopped or own - min(self._clocks) <= bound)
            weights = dense.copy_(self._held[0])
        slowest = -1 if self._stopped else min(self._clocks)
        numbers = (self._version, staleness, int(slowest))
        yield from channel.send(messages.PUSH, *numbers, tensors=[weights])

    def _update(self, dense: Any, share: float) -> None:
        """Make one update of gradients times `share`."""
        import torch

        first, *tables = self._parameters
        first.grad = dense.mul_(share) if share != 1.0 else dense
        for table, held in zip(tables, self._rows, strict=True):
            rows, values = (torch.cat(each) for each in zip(*held, strict=True))
            table.grad = torch.sparse_coo_tensor(
                rows[None], values * share, table.shape, check_invariants=False
            )
            held.clear()
        if self._optimizer is not None:
            self._optimizer.step()
        self._version += 1


def main(folder: str, number: str, address: str, workers: str) -> None:
    """Serve one task after another, until the runner ends this process."""
    die_with_parent()
    with loading():
        import torch

    torch.set_num_threads(1)
    count = int(workers)
    with socket.create_server((address, 0), backlog=4 * count) as listener:
        place = {"address": address, "port": listener.getsockname()[1]}
        write_json(messages.server_path(Path(folder), int(number)), place)
        while True:
            session = Session(count)
            messages.at_once(
                *[session.serve(messages.Channel(_worker(listener))) for _ in range(count)]
            )


def _worker(listener: socket.socket) -> socket.socket:
    """Return the next connection that begins with this launch's mark; all others are closed."""
    mark = os.environ[MARK].encode()
    while True:
        link = listener.accept()[0]
        link.settimeout(_MARK_SECONDS)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(mark))  # less wakes no one
        with suppress(OSError):
            if link.recv(len(mark)) == mark:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                return link
        link.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
