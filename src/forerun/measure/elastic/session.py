"""Session: a worker's side of an elastic training: its batches, its steps, and its places in groups."""

from __future__ import annotations

import math
import os
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import RequestError
from forerun.measure.elastic.channel import Message, MessageChannel
from forerun.measure.elastic.checkpoint import checkpoint_path, read_checkpoint, write_checkpoint
from forerun.measure.elastic.samples import SampleStream
from forerun.measure.elastic.scaling import efficiency, rate_factor
from forerun.measure.noise import GradientNoise

_RIDERS = 4  # numbers beside the gradients: squared norms, loss, notices, and the wish to stop
_COUNTS = ("steps", "position", "effective", "skipped", "scheduled")
_ALONE_EVERY = 8  # steps of a single worker, of which one is done in two passes, for the noise
_MEET_SECONDS = 5.0  # for all to come to a group, once each has said that it is ready
_LOOK_SECONDS = 0.2  # between two looks at whether a signal came


class ElasticJob:
    """What a training function is given: `settings` of the job file, its `seed`, and `prepare`."""

    def __init__(self, terms: Mapping[str, Any], channel: MessageChannel) -> None:
        self.settings: dict[str, Any] = dict(terms["settings"])
        self.seed = int(terms["seed"])
        self.terms, self.channel = terms, channel
        self.run: ElasticRun | None = None
        self.noticed = False  # that this worker's machine will be taken away
        self.place: Message | None = None  # in a group, given before the training function runs

    def prepare(
        self, model: Any, optimizer: Any, data: Any, scheduler: Any = None, **loader: Any
    ) -> ElasticRun:
        """Return the batches of this worker, over which the training loop runs.

        Args:
            model: a plain torch.nn.Module: `ElasticRun.step` averages its gradients over workers.
            data: a dataset with `len()` and `[i]`. loader: arguments of torch's DataLoader.
            scheduler: of the learning rate; it makes a step for each reference batch of samples.

        Raises:
            RequestError: the dataset is empty, or the model has nothing to train.
        """
        self.run = ElasticRun(self, model, optimizer, data, scheduler, loader)
        return self.run

    def receive(self) -> Message:
        """Return the next message of the driver; where it is gone, so is this process."""
        try:
            while (message := self.channel.receive(_LOOK_SECONDS)) is None:
                if self.noticed:
                    self.channel.send("notice")
        except EOFError:
            os._exit(1)
        if message["is"] == "leave":
            os._exit(0)
        return message


class ElasticRun:
    """The batches of one worker, across epochs and groups, until the driver ends the training.

    Attributes:
        rank, workers, batch: this worker's place in its group, and samples of a step of all of them.
        steps, position: updates, and samples that went into them or were skipped (an epoch has len(data)).
        effective: samples of the reference batch that would have taught as much.
        skipped: steps without an update, whose gradients were NaN or infinite. scheduled: the scheduler's.
    """

    def __init__(
        self, job: ElasticJob, model: Any, optimizer: Any, data: Any, scheduler: Any,
        loader: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._job, self._model, self._optimizer = job, model, optimizer
        self._data, self._scheduler, self._loader = data, scheduler, loader
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters or not len(data):
            found = f"its {'dataset' if self._parameters else 'model'} is empty"
            raise RequestError(f"training {job.terms['entry']}", found, "give what is trained")
        self._stream = SampleStream(len(data), job.seed)
        self._last_position = float(job.terms["epochs"]) * len(data)
        self._reference, self._rule = float(job.terms["reference_batch"]), str(job.terms["rule"])
        self._noise = GradientNoise()
        self.rank, self.workers, self.batch = 0, 1, 0
        self.steps = self.position = self.skipped = self.scheduled = 0
        self.effective = 0.0
        self._generation, self._saved, self._saved_at = 0, "", time.monotonic()
        self._group: Any = None
        self._trained = False  # whether its weights are those of the training
        self._passes: deque[tuple[int, bool]] = deque()  # samples, and whether it ends a step
        self._pass = (0, True)
        self._flat: Any = None  # what the passes of this step add up to
        self._squares: list[float] = []  # squared norms of each pass's mean gradient
        self._loss = 0.0  # summed over this worker's samples of this step
        self._stepped, self._why = True, ""

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches. Raises RequestError where one was not followed by `step`."""
        message, self._job.place = self._job.place or self.wait("ready"), None
        while self._join(message):
            yield from self._batches()
            message = self.wait(self._why)

    def backward(self, loss: Any) -> None:
        """Add the gradients of a batch's mean loss, a tensor."""
        import torch

        samples = self._pass[0]
        (loss * (samples / self.batch)).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([g.detach().reshape(-1).to("cpu", torch.float32) for g in grads])
        own = flat if self._flat is None else flat - self._flat
        norm = float(torch.linalg.vector_norm(own, dtype=torch.float64))
        self._squares.append((norm * self.batch / samples) ** 2)
        self._flat = flat
        self._loss += float(loss.detach()) * samples

    def step(self) -> None:
        """Average the gradients over all workers and update the weights; a step of several passes ends with its last.

        The loop ends after it where the driver wishes so, where a worker got notice or was lost.
        """
        if not self._pass[1]:
            return
        if self._flat is None:
            raise RequestError("run.step()", "no run.backward(loss) before it", "call it first")
        import torch

        own = [sum(self._squares), self._loss, float(self._job.noticed), float(self._is_paused())]
        reduced = torch.cat([self._flat, torch.tensor(own)])
        self._stepped = True
        if self._group is not None:
            try:
                self._group.allreduce([reduced]).wait()
            except RuntimeError:  # a peer is gone: this step never was
                self._why = "lost"
                return
        squares, loss, notices, stops = reduced[-_RIDERS:].tolist()
        mean, count = reduced[:-_RIDERS], self.workers * len(self._squares)
        square = float(torch.linalg.vector_norm(mean, dtype=torch.float64)) ** 2
        if math.isfinite(square):
            self._update(mean)
            if count > 1:
                self._noise.observe(squares / count, square, count, self.batch)
            share = float(efficiency(self.batch, self._reference, self._noise.phi))
            self.effective += self.batch * share
        else:
            self.skipped += 1
        self.steps += 1
        self.position += self.batch
        self._clear()
        if self.rank == 0:
            self._report(loss / self.batch)
        self._why = "notice" if notices else "asked" if stops else self._end()

    def _end(self) -> str:
        return "epochs" if self.position >= self._last_position else ""

    def report(self, **metrics: float) -> None:
        """Tell the driver of metrics evaluated now; those of rank 0 count."""
        if self.rank == 0:
            values = {name: float(value) for name, value in metrics.items()}
            place = {"position": self.position, "effective": self.effective}
            self._job.channel.send("metric", values=values, **place)

    def passed(self, samples: int) -> bool:
        """Whether the last step passed a multiple of so many samples, e.g. of len(data): a time to evaluate."""
        before = max(self.position - self.batch, 0)
        done = self._pass[1] and self._stepped and self._why != "lost"
        return done and self.position // samples > before // samples

    def wait(self, why: str) -> Message:
        """Leave the group, say why, and return the driver's order: a place in the next one, or the end."""
        self._group = None  # which closes its connections
        self._clear()
        self._passes.clear()
        self._job.channel.send(
            "stopped", why=why, generation=self._generation, step=self.steps, trained=self._trained,
            noticed=self._job.noticed, samples=self._stream.size,
            workers=self.workers, batch=self.batch,
        )  # fmt: skip
        while (message := self._job.receive())["is"] not in ("form", "end"):
            if message["is"] == "save":
                self._save()
        return message

    def _join(self, message: Message) -> bool:
        """Take a place in a group and meet the others; return False where the training ends."""
        while message["is"] != "end":
            if message["is"] == "form":
                self._take(message)
                self._job.channel.send("here", generation=self._generation)
            elif message["is"] == "go" and message["generation"] == self._generation:
                try:
                    self._group = self._meet(message) if self.workers > 1 else None
                    return True
                except RuntimeError:  # somebody died on the way
                    message = self.wait("lost")
                    continue
            message = self._job.receive()
        return False

    def _meet(self, where: Message) -> Any:
        """Return the group, through which nothing else goes. Raises RuntimeError where somebody does not come."""
        from torch.distributed import ProcessGroupGloo, TCPStore

        patience, hang = (timedelta(seconds=s) for s in (_MEET_SECONDS, self._job.terms["hang"]))
        store = TCPStore(where["address"], where["port"], None, self.rank == 0, patience, False)
        store.set(str(self.rank), "here")
        store.wait([str(rank) for rank in range(self.workers)], patience)
        return ProcessGroupGloo(store, self.rank, self.workers, hang)

    def _take(self, message: Message) -> None:
        import torch

        self._generation, self.rank = int(message["generation"]), int(message["rank"])
        self.workers, self.batch = int(message["workers"]), int(message["batch"])
        if message["load"] and message["load"] != self._saved:
            state = read_checkpoint(Path(message["load"]))
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if self._scheduler is not None:
                self._scheduler.load_state_dict(state["scheduler"])
            for name in _COUNTS:
                setattr(self, name, state[name])
            self._noise.restore(state["noise"])
            if self.rank == 0:
                ours, of_numpy, of_python = state["random"]
                torch.set_rng_state(ours)
                np.random.set_state(of_numpy)  # noqa: NPY002  (a user's code may draw from it)
                random.setstate(of_python)
        if self.rank:  # the first one goes on with its random numbers
            words = (self._job.seed, self.steps, self.rank)
            seed = int(np.random.SeedSequence(words).generate_state(1)[0])
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002  (a user's code may draw from it)
            random.seed(seed)
        self._trained = True

    def _batches(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        batches = iter(DataLoader(self._data, batch_sampler=self._ids(), **self._loader))
        self._why, self._stepped = self._end(), True
        while not self._why:
            if self._stepped:
                self._begun, self._stepped = time.perf_counter(), False
            batch = next(batches)
            self._pass = self._passes.popleft()  # which the loader has asked for by now
            yield batch
            if self._pass[1] and not self._stepped:
                found, todo = "a batch without run.step()", "call it once for each batch"
                raise RequestError(f"training {self._job.terms['entry']}", found, todo)

    def _ids(self) -> Iterator[list[int]]:
        """Yield the ids of each pass; a loader with processes of its own asks for some in advance."""
        position, step = self.position, self.steps
        while True:
            ids = self._stream.share(position, self.batch, self.rank, self.workers)
            halved = self.workers == 1 and len(ids) > 1 and step % _ALONE_EVERY == 0
            parts = np.array_split(ids, 2 if halved else 1)
            for i, part in enumerate(parts, 1):
                self._passes.append((len(part), i == len(parts)))
                yield part.tolist()
            position, step = position + self.batch, step + 1

    def _is_paused(self) -> bool:
        try:
            while self.rank == 0 and (message := self._job.channel.receive(0.0)) is not None:
                if message["is"] == "pause" and message["generation"] == self._generation:
                    return True
        except EOFError:
            os._exit(1)
        return False

    def _update(self, mean: Any) -> None:
        at = 0
        for parameter in self._parameters:
            part = mean[at : at + parameter.numel()].view(parameter.shape)
            parameter.grad = part.to(parameter.device, parameter.dtype)
            at += parameter.numel()
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        factor = rate_factor(self._rule, self.batch, self._reference, self._noise.phi)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        self._optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        # AdaScale's schedule counts in samples of the reference batch, as its gain does.
        done = self.effective if self._rule == "adascale" else self.position
        while self._scheduler is not None and self.scheduled < done // self._reference:
            self.scheduled += 1
            self._scheduler.step()

    def _clear(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._flat, self._squares = None, []
        self._loss = 0.0

    def _report(self, loss: float) -> None:
        noise = self._noise
        self._job.channel.send(
            "step", generation=self._generation, workers=self.workers, batch=self.batch,
            step=self.steps, position=self.position, effective=self.effective, skipped=self.skipped,
            seconds=time.perf_counter() - self._begun, at=time.time(), loss=loss,
            sqr=noise.sqr, var=noise.var, phi=noise.phi, stable=noise.stable,
        )  # fmt: skip
        if time.monotonic() - self._saved_at >= float(self._job.terms["checkpoint"]):
            self._save()

    def _save(self) -> None:
        import torch

        path = checkpoint_path(Path(self._job.terms["folder"]), self._generation, self.steps)
        self._saved_at = time.monotonic()
        try:
            if self._saved != str(path):
                epoch, at = divmod(self.position, self._stream.size)
                # Of the generators that training code draws from: of torch, NumPy and Python.
                drawn: Any = np.random.get_state()  # noqa: NPY002  (a user's code may draw from it)
                of_numpy = (drawn[0], drawn[1].tolist(), *drawn[2:])
                state = {
                    "model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(),
                    "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
                    **{name: getattr(self, name) for name in _COUNTS}, "epoch": epoch, "in_epoch": at,
                    "noise": self._noise.state(),
                    "random": (torch.get_rng_state(), of_numpy, random.getstate()),
                }  # fmt: skip
                write_checkpoint(path, state)
        except OSError as error:
            why = f"{error.strerror or error} ({path.parent})"
            self._job.channel.send("unsaved", why=why, step=self.steps)
            return
        self._saved = str(path)
        self._job.channel.send("saved", path=self._saved, step=self.steps)
