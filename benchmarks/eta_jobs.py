"""Makes the real jobs of the ETA's benchmark: sixteen kinds of training, beside whatever else runs.

`python benchmarks/eta_jobs.py FOLDER [KIND ...]` trains each kind to its end (minutes each), one
after another, with one thread, and writes one log a job. Nothing is slowed or killed on purpose: what
their speed does is what the machine, its other users, the data and the evaluations do to it. How many
steps a job has is settled before it starts, by a pilot of a few steps.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROWS = 220  # of a log
PILOT_SECONDS = 8.0
Parts = tuple[nn.Module, Callable[[int], torch.Tensor], dict[str, int]]


def _mlp() -> Parts:
    """A wide MLP on vectors; nothing beside its steps."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(),
                          nn.Linear(1024, 10))  # fmt: skip
    return model, lambda i: _labels(model(torch.randn(128, 256)), 10), {}


def _gpt() -> Parts:
    """A small decoder; evaluated at 15 places, saved at 6."""
    model = _Decoder(128, 3, 512)
    return model, lambda i: model.loss(8, 64), {"evaluate": 15, "save": 6}


def _cnn() -> Parts:
    """A CNN on images that are cropped and flipped one by one in this process; evaluated an epoch."""
    model, images = _convolutions(3, 24), torch.randn(2048, 3, 36, 36)
    loader = _endless(torch.utils.data.DataLoader(_Cropped(images), 32, shuffle=True))
    return model, lambda i: _labels(model(next(loader)), 10), {"evaluate": 9}


def _loader() -> Parts:
    """A CNN whose images come from a worker process that is about as slow as the model."""
    model, images = _convolutions(3, 16), torch.randn(2048, 3, 36, 36)
    loader = _endless(torch.utils.data.DataLoader(
        _Cropped(images, 12), 32, shuffle=True, num_workers=1, prefetch_factor=4,
    ))  # fmt: skip
    return model, lambda i: _labels(model(next(loader)), 10), {"save": 5}


def _lstm() -> Parts:
    """A language model of LSTM layers; a large checkpoint is written at 12 places."""
    embed, cell, head = nn.Embedding(2000, 192), nn.LSTM(192, 192, 2), nn.Linear(192, 2000)
    model = nn.ModuleList([embed, cell, head])

    def loss(i: int) -> torch.Tensor:
        tokens = torch.randint(0, 2000, (33, 16))
        return functional.cross_entropy(
            head(cell(embed(tokens[:-1]))[0]).flatten(0, 1), tokens[1:].flatten()
        )

    return model, loss, {"save": 12}


def _vae() -> Parts:
    """A variational autoencoder; nothing beside its steps."""
    encode, decode = nn.Linear(784, 400), nn.Linear(40, 784)
    middle = nn.Linear(400, 80)

    def loss(i: int) -> torch.Tensor:
        pictures = torch.rand(256, 784)
        mean, log = middle(torch.relu(encode(pictures))).chunk(2, 1)
        again = decode(mean + torch.randn_like(mean) * torch.exp(log / 2))
        return functional.mse_loss(again, pictures) + (mean**2 + log.exp() - log - 1).mean()

    return nn.ModuleList([encode, middle, decode]), loss, {}


def _ragged() -> Parts:
    """An encoder on texts of any length up to 160, each batch as long as its longest."""
    layer = nn.TransformerEncoderLayer(96, 4, 384, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))

    def loss(i: int) -> torch.Tensor:
        longest = int(torch.distributions.LogNormal(4.0, 0.5).sample((8,)).max().clamp(16, 160))
        return model(torch.randn(8, longest, 96)).square().mean()

    return model, loss, {"evaluate": 7}


def _gan() -> Parts:
    """Two networks in turn: each second step trains the other one as well."""
    maker = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784))
    judge = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 1))

    def loss(i: int) -> torch.Tensor:
        made = maker(torch.randn(192, 64))
        found = functional.softplus(-judge(made)).mean()
        return found + functional.softplus(judge(made.detach())).mean() if i % 2 else found

    return nn.ModuleList([maker, judge]), loss, {"save": 8}


def _recommender() -> Parts:
    """Embeddings of 60,000 things; at each epoch's end all of it is shuffled and scored."""
    embed = nn.EmbeddingBag(60_000, 48)
    top = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 2))
    return nn.ModuleList([embed, top]), lambda i: _labels(
        top(embed(torch.randint(0, 60_000, (256, 20)))), 2
    ), {"evaluate": 5}  # fmt: skip


def _accumulated() -> Parts:
    """A decoder with eight micro-batches a step: few and long steps; evaluated at 6 places."""
    model = _Decoder(128, 2, 512)
    return (
        model,
        lambda i: torch.stack([model.loss(4, 64) for _ in range(8)]).mean(),
        {"evaluate": 6},
    )


def _curriculum() -> Parts:
    """A decoder whose sequences grow from 32 to 80 tokens in four stages, as is usual."""
    model = _Decoder(96, 2, 512)
    return model, lambda i: model.loss(8, 32 + 16 * min(3, i * 4 // JOB.steps)), {"save": 4}


def _graph() -> Parts:
    """Messages on random graphs of 200 to 600 nodes; evaluated at 10 places."""
    layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def loss(i: int) -> torch.Tensor:
        nodes = int(torch.randint(200, 600, ()))
        edges = torch.randint(0, nodes, (2, nodes * 8))
        x = torch.randn(nodes, 64)
        for layer in layers:
            x = torch.relu(layer(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])) / 8)
        return x.square().mean()

    return layers, loss, {"evaluate": 10}


def _rollouts() -> Parts:
    """A policy trained on episodes that Python steps through, longer as it learns."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))

    def loss(i: int) -> torch.Tensor:
        length = 20 + min(30, 60 * i // JOB.steps) + int(torch.randint(0, 10, ()))
        state, total = torch.zeros(4, 8), torch.zeros(())
        for _ in range(length):
            chosen = torch.distributions.Categorical(logits=policy(state))
            action = chosen.sample()
            total = total + (chosen.log_prob(action) * state.sum(1).detach()).mean()
            state = 0.9 * state + 0.1 * torch.randn(4, 8)
        return total / length

    return policy, loss, {"evaluate": 4}


def _distilled() -> Parts:
    """A small CNN that learns from a larger one; evaluated at 5 places, saved at 5 others."""
    teacher, model = _convolutions(3, 32).eval(), _convolutions(3, 12)

    def loss(i: int) -> torch.Tensor:
        images = torch.randn(24, 3, 32, 32)
        with torch.no_grad():
            aim = teacher(images)
        return functional.mse_loss(model(images), aim)

    return model, loss, {"evaluate": 5, "save": 5}


def _audio() -> Parts:
    """One-dimensional convolutions on long waves, with a spectrum computed for each batch."""
    model = nn.Sequential(nn.Conv1d(33, 64, 5, 2), nn.ReLU(), nn.Conv1d(64, 64, 5, 2), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10))  # fmt: skip
    window = torch.hann_window(64)

    def loss(i: int) -> torch.Tensor:
        waves = torch.randn(16, 8000)
        return _labels(model(torch.stft(waves, 64, window=window, return_complex=True).abs()), 10)

    return model, loss, {"evaluate": 12}


def _parallel() -> Parts:
    """DDP of two processes of this machine, over gloo, on a CNN."""
    model = nn.parallel.DistributedDataParallel(_convolutions(3, 16))
    return model, lambda i: _labels(model(torch.randn(16, 3, 32, 32)), 10), {"save": 5}


# In turn one for choosing constants and one for the report (eta.DEVELOPMENT), settled before any log.
KINDS: dict[str, Callable[[], Parts]] = {
    "mlp": _mlp, "gpt": _gpt, "cnn": _cnn, "loader": _loader, "lstm": _lstm, "vae": _vae,
    "ragged": _ragged, "gan": _gan, "recommender": _recommender, "accumulated": _accumulated,
    "curriculum": _curriculum, "graph": _graph, "rollouts": _rollouts, "distilled": _distilled,
    "audio": _audio, "parallel": _parallel,
}  # fmt: skip
SECONDS = (90.0, 150.0, 110.0, 130.0)  # that a job should take, in turn


class JOB:
    """The job that this process trains."""

    steps = 1


class _Decoder(nn.Module):
    """A causal transformer."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = words
        self.embed = nn.Embedding(words, width)
        one = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def loss(self, batch: int, length: int) -> torch.Tensor:
        """Return the loss of a random batch."""
        tokens = torch.randint(0, self.words, (batch, length + 1))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        out = self.head(self.body(self.embed(tokens[:, :-1]), mask=mask, is_causal=True))
        return functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())


class _Cropped(torch.utils.data.Dataset[torch.Tensor]):
    """Images that are cropped and flipped when asked for, `times` over."""

    def __init__(self, images: torch.Tensor, times: int = 1) -> None:
        self.images, self.times = images, times

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> torch.Tensor:
        for _ in range(self.times):
            a, b = (int(torch.randint(0, 5, ())) for _ in range(2))
            image = self.images[i, :, a : a + 32, b : b + 32].flip(2)
            image = (image - image.mean()) / image.std()
        return image


def _convolutions(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


def _endless(loader: Any) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def _labels(out: torch.Tensor, classes: int) -> torch.Tensor:
    return functional.cross_entropy(out, torch.randint(0, classes, (len(out),)))


def train(kind: str, path: Path, steps: int) -> float:
    """Train a job to its end, logging about ROWS of its steps; return the mean seconds of a step.

    0 steps is a pilot of PILOT_SECONDS, which logs nothing.
    """
    JOB.steps = max(steps, 1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    model, loss_of, pauses = KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    log = _log(path) if steps and not rank else None
    every, begun, step = max(1, steps // ROWS), time.perf_counter(), 0
    spent = time.process_time()
    # A pilot of several processes must end at the same step everywhere.
    while step < (steps or 40) and (steps or kind == "parallel" or _since(begun) < PILOT_SECONDS):
        step += 1
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log and (step % every == 0 or step == steps):
            log.info("step %d/%d cpu=%.2f", step, steps, time.process_time() - spent)
        if log and (places := pauses.get("save")) and step % (steps // places) == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, path.with_suffix(".pt"))
            log.info("saved checkpoint")
        if (places := pauses.get("evaluate")) and steps and step % (steps // places) == 0:
            with torch.no_grad():
                for i in range(max(2, steps // places // 12)):
                    loss_of(step + i)
            if log and places % 2:  # every other job says so
                log.info("evaluated")
    return _since(begun) / step


def _since(begun: float) -> float:
    return time.perf_counter() - begun


def _log(path: Path) -> logging.Logger:
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("train")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return log


def forked(kind: str, path: Path, steps: int) -> float:
    """Train in a child of this process, which has torch in it already; return a step's seconds."""
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    ranks = 2 if kind == "parallel" else 1
    store = str(path.with_suffix(f".{steps}.store"))

    def child(rank: int) -> None:
        if ranks > 1:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
            )
        found.put(train(kind, path, steps))

    children = [context.Process(target=child, args=(rank,)) for rank in range(ranks)]
    for one in children:
        one.start()
    for one in children:
        one.join()
        if one.exitcode:
            raise SystemExit(f"{kind}: the job ended with {one.exitcode}")
    return float(found.get())


def run(kind: str, folder: Path) -> None:
    """Settle a job's length by a pilot, then train it."""
    path = folder / f"{kind}.log"
    aim = SECONDS[list(KINDS).index(kind) % len(SECONDS)]
    forked(kind, path, max(60, round(aim / forked(kind, path, 0))))
    for left in (*folder.glob(f"{kind}.*store"), *folder.glob(f"{kind}.pt")):
        left.unlink()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for one in sys.argv[2:] or KINDS:
        run(one, target)
