"""Client: a worker's side of parameter servers: gradients are pushed to all shards, and weights pulled."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import RequestError
from forerun.measure.processes import MARK
from forerun.measure.recorder import Recorder
from forerun.measure.servers import messages
from forerun.measure.task import Task

_START_SECONDS = 300.0  # a small share of a core takes most of a minute to import torch


class Servers:
    """Parameters of a module whose gradients servers apply; those of sparse tables by rows touched.

    Dense parameters and gradients become views of one flat tensor each. Rows of an embedding with
    sparse gradients are pulled as a batch looks them up.

    Raises RequestError where no gradient is asked for, or the parameters have several types.
    """

    def __init__(self, task: Task, module: Any, recorder: Recorder, learning_rate: float) -> None:
        import torch

        self._recorder = recorder
        self.stopped = False  # the first worker has measured enough
        self.slowest = 0  # steps of the slowest worker, unless all are in step
        self._count = task.servers
        named = [p for p in module.parameters() if p.requires_grad]
        tables = [
            m for m in module.modules()
            if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag) and m.sparse
        ]  # fmt: skip
        self._tables = [m.weight for m in tables]
        by_row = set(map(id, self._tables))
        dense = [p for p in named if id(p) not in by_row]
        if len(types := {p.dtype for p in named}) != 1:
            kinds = ", ".join(sorted(map(str, types))) or "none that is trained"
            todo = "give its parameters one type"
            raise RequestError(f"{task.entry} with {task.sync}", f"parameters: {kinds}", todo)
        laid = [_as_it_lies(p.detach()) for p in dense]
        self._weights = torch.cat([p.flatten() for p, _ in laid] or [torch.empty(0)])
        self._gradients = torch.zeros_like(self._weights)
        begin = 0
        for p, (lying, back) in zip(dense, laid, strict=True):
            view = slice(begin, begin + p.numel())
            p.data = self._weights[view].view(lying.shape).permute(back)
            p.grad = self._gradients[view].view(lying.shape).permute(back)
            begin += p.numel()
        on_cpu = self._weights.device.type == "cpu"
        self._received = self._weights if on_cpu else torch.empty_like(self._weights, device="cpu")
        self._versions = [0] * self._count
        self._channels: list[messages.Channel] = []
        terms = {
            "rank": recorder.rank, "in_step": task.in_step, "stale_bound": task.stale_bound,
            "optimizer": task.optimizer, "learning_rate": learning_rate,
            "dtype": str(self._weights.dtype).removeprefix("torch."),
        }  # fmt: skip
        for number in range(self._count):
            path = messages.server_path(Path(os.environ[messages.SERVERS]), number)
            until = time.monotonic() + _START_SECONDS
            while not path.exists():
                if time.monotonic() > until:
                    raise ConnectionError(f"parameter server {number} did not start")
                time.sleep(0.01)
            place = json.loads(path.read_text())
            link = socket.create_connection((place["address"], place["port"]), timeout=None)
            link.sendall(os.environ[MARK].encode())
            self._channels.append(messages.Channel(link))
        self._each(partial(self._begin, terms))
        self._weights.copy_(self._received)
        if task.workers > 1:
            torch.distributed.barrier()
        for at, module_ in enumerate(tables):
            module_.register_forward_pre_hook(partial(self._look_up, at))

    def _each(self, talk: Callable[[int], messages.Talk]) -> list[Any]:
        """Return what a conversation returns with each server; all are held at once."""
        return messages.at_once(*map(talk, range(self._count)))

    def _part(self, tensor: Any, number: int) -> Any:
        first, last = messages.part(len(tensor), number, self._count)
        return tensor[first:last]

    def _begin(self, terms: dict[str, Any], number: int) -> messages.Talk:
        """Tell a server the terms and, of the first worker, the weights; return once all have theirs."""
        channel = self._channels[number]
        dense = self._part(self._weights.cpu(), number)
        tables = [self._part(t.detach().cpu(), number).contiguous() for t in self._tables]
        shapes = {"dense": len(dense), "tables": [list(t.shape) for t in tables]}
        yield from channel.send_json(messages.HELLO, {**terms, **shapes})
        if self._recorder.rank == 0:
            yield from channel.send(messages.HELLO, tensors=[dense, *tables])
        yield from channel.receive()
        yield from channel.read(self._part(self._received, number))
        for table, mine in zip(self._tables, tables, strict=True):
            self._part(table.data, number).copy_((yield from channel.read(mine)))

    def _look_up(self, at: int, module: Any, inputs: Sequence[Any]) -> None:
        """Pull the rows of a table that a batch is about to look up."""
        rows = inputs[0].detach().flatten().unique().cpu()  # in order
        table = self._tables[at].data
        self._recorder.switch("sync")

        def pull(number: int) -> messages.Talk:
            first, last = messages.part(len(table), number, self._count)
            own = rows[(rows >= first) & (rows < last)]
            if not len(own):
                return
            channel = self._channels[number]
            yield from channel.send(messages.LOOKUP, at, len(own), tensors=[own - first])
            yield from channel.receive()
            values = table.new_empty((len(own), table.shape[1]), device="cpu")
            table[own] = (yield from channel.read(values)).to(table.device)

        self._each(pull)
        self._recorder.switch("forward")

    def exchange(self) -> None:
        """Push the gradients, wait for the weights, and forget the gradients."""
        sent = sum(channel.sent for channel in self._channels)
        gradients = self._gradients.cpu()
        sparse = [t.grad.coalesce().cpu() if t.grad is not None else None for t in self._tables]
        staleness, slowest = zip(*self._each(partial(self._push, gradients, sparse)), strict=True)
        self.slowest = min(slowest)
        if self._received is not self._weights:
            self._weights.copy_(self._received)
        self._gradients.zero_()
        for table in self._tables:
            table.grad = None
        pushed = sum(channel.sent for channel in self._channels) - sent
        self._recorder.pushed(float(pushed), float(np.mean(staleness)))

    def _push(self, gradients: Any, sparse: Sequence[Any], number: int) -> messages.Talk:
        import torch

        channel = self._channels[number]
        tensors = [self._part(gradients, number)]
        for table, gradient in zip(self._tables, sparse, strict=True):
            first, last = messages.part(len(table), number, self._count)
            rows = torch.empty(0, dtype=torch.int64)
            values = torch.empty((0, table.shape[1]), dtype=table.dtype)
            if gradient is not None:
                begin, end = np.searchsorted(gradient.indices()[0].numpy(), (first, last))
                rows = gradient.indices()[0][begin:end] - first
                values = gradient.values()[begin:end].contiguous()
            tensors += [torch.tensor([len(rows)]), rows, values]
        yield from channel.send(messages.PUSH, self._versions[number], tensors=tensors)
        if (answer := (yield from channel.receive())) is None:
            raise ConnectionError(f"connection closed by peer: parameter server {number} has gone")
        _, self._versions[number], staleness, slowest = answer
        yield from channel.read(self._part(self._received, number))
        self.stopped |= slowest < 0
        return staleness, slowest

    def leave(self) -> None:
        """Leave the servers; where the first worker does, the others stop too."""
        for channel in self._channels:
            if self._recorder.rank == 0:
                messages.at_once(channel.send(messages.STOP))
            channel.close()


def _as_it_lies(tensor: Any) -> tuple[Any, list[int]]:
    """Return a tensor with its axes as they lie in memory, and the order that turns them back."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return tensor.permute(order), [order.index(axis) for axis in range(tensor.dim())]
