"""Server: one parameter server: `python -m forerun.measure.servers.server FOLDER NUMBER ADDRESS WORKERS`."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.measure.failures import reason_of
from forerun.measure.loop import make_optimizer
from forerun.measure.measurement import write_json
from forerun.measure.processes import die_with_parent
from forerun.measure.servers.messages import (
    ERROR,
    HELLO,
    LOOKUP,
    PUSH,
    STOP,
    Channel,
    server_path,
)


class Session:
    """One task's part of the parameters, and the turns in which its workers may change and read it.

    Synchronous: gradients of all workers are added as they come, and the last one's arrival updates
    and lets all go on. Otherwise each updates by itself, and goes on unless it is more than `stale_bound`
    steps ahead of the slowest (stale synchronous parallel, Ho et al. 2013).
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._turn = threading.Condition()
        self._terms: dict[str, Any] = {}
        self._version = self._arrived = self._first = 0
        self._clocks = [0.0] * workers  # steps that each worker has pushed
        self._stopped = False
        self._failure = ""

    def serve(self, channel: Channel) -> None:
        """Answer one worker until it leaves."""
        rank = -1
        try:
            while (message := channel.receive()) is not None:
                kind, first, second, _ = message
                if kind == HELLO:
                    rank = self._begin(channel, first)
                elif kind == LOOKUP:
                    self._look_up(channel, first, second)
                elif kind == PUSH:
                    self._take(channel, rank, first, second)
                elif kind == STOP:
                    with self._turn:
                        self._stopped = True
        except ConnectionError:
            pass  # its runner knows better why it has gone
        except Exception as error:  # noqa: BLE001  (whatever it is, the workers must not wait)
            with self._turn:
                self._failure = self._failure or reason_of(error)
            with suppress(OSError):
                channel.send_json(ERROR, {"reason": self._failure})
        finally:
            with self._turn:
                if rank >= 0:
                    self._clocks[rank] = float("inf")
                self._turn.notify_all()
            channel.close()

    def _begin(self, channel: Channel, length: int) -> int:
        import torch

        terms = channel.read_json(length)
        dtype, rank = getattr(torch, terms["dtype"]), int(terms["rank"])
        sizes = [(terms["dense"],), *map(tuple, terms["tables"])]
        with self._turn:
            if rank == 0:
                channel.receive()  # what follows are the first worker's weights
                self._held = [channel.read(torch.empty(size, dtype=dtype)) for size in sizes]
                self._parameters = [torch.nn.Parameter(tensor) for tensor in self._held]
                self._optimizer = make_optimizer(
                    terms["optimizer"], self._parameters, terms["learning_rate"]
                )
                self._room = [torch.empty_like(self._held[0]) for _ in range(self._workers)]
                self._rows: list[list[tuple[Any, Any]]] = [[] for _ in terms["tables"]]
                self._terms = terms
                self._turn.notify_all()
            self._wait(lambda: bool(self._terms))
        channel.send(HELLO, tensors=self._held)
        return rank

    def _wait(self, until: Any) -> None:
        self._turn.wait_for(lambda: bool(self._failure) or until())
        if self._failure:
            raise RuntimeError(self._failure)

    def _look_up(self, channel: Channel, table: int, count: int) -> None:
        import torch

        rows = channel.read(torch.empty(count, dtype=torch.int64))
        with self._turn:
            found = self._held[1 + table][rows]
        channel.send(LOOKUP, tensors=[found])

    def _take(self, channel: Channel, rank: int, pulled: int, counts: int) -> None:
        """Receive a worker's gradients, of a pull at version `pulled`, update, and answer with weights."""
        import torch

        dense = channel.read(self._room[rank])
        sparse = []
        for table in self._held[1:]:
            count = torch.empty(1, dtype=torch.int64)
            rows = channel.read(torch.empty(int(channel.read(count)), dtype=torch.int64))
            values = torch.empty((len(rows), table.shape[1]), dtype=table.dtype)
            sparse.append((rows, channel.read(values)))
        with self._turn:
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
                    self._wait(lambda: self._version > before)
                weights = self._held[0]  # none changes them before all have them
            else:
                self._update(dense, 1.0)
                self._clocks[rank] += 1.0
                bound = self._terms["stale_bound"]
                self._turn.notify_all()
                if bound is not None:
                    own = self._clocks[rank]
                    self._wait(lambda: self._stopped or own - min(self._clocks) <= bound)
                weights = dense.copy_(self._held[0])
            version, stopped = self._version, self._stopped
        channel.send(PUSH, version, staleness, int(stopped), tensors=[weights])

    def _update(self, dense: Any, share: float) -> None:
        """Make one update of gradients times `share`; the caller has the turn."""
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
        self._turn.notify_all()


def main(folder: str, number: str, address: str, workers: str) -> None:
    """Serve one task after another, until the runner ends this process."""
    die_with_parent()
    import torch

    torch.set_num_threads(1)
    count = int(workers)
    with socket.create_server((address, 0), backlog=4 * count) as listener:
        place = {"address": address, "port": listener.getsockname()[1]}
        write_json(server_path(Path(folder), int(number)), place)
        while True:
            session = Session(count)
            threads = [
                threading.Thread(target=session.serve, args=(Channel(listener.accept()[0]),))
                for _ in range(count)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
