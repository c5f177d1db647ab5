"""A GRU learns to spell Python: the next character of a module's source, until it is surprised little enough.

A training function for `forerun train examples/text.yaml --elastic`.
"""

from __future__ import annotations

import argparse
import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

LENGTH = 48


class Speller(nn.Module):
    """Scores of the next character at each place of texts (n, length)."""

    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.layers = nn.GRU(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, characters)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """Return scores (n, characters, length)."""
        return self.head(self.layers(self.embed(texts))[0]).transpose(1, 2)


def train(job: Any) -> None:
    """Train until the driver ends it; the last tenth of the text is held out."""
    torch.manual_seed(job.seed)
    source = inspect.getsource(argparse)
    known = {character: i for i, character in enumerate(sorted(set(source)))}
    text = torch.tensor([known[character] for character in source])
    windows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    seen = len(windows) * 9 // 10
    data, held = TensorDataset(windows[:seen]), windows[seen:]
    model = Speller(len(known), job.settings["width"])
    optimizer = torch.optim.Adam(model.parameters(), lr=job.settings["learning_rate"])

    def loss_of(texts: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(texts[:, :-1]), texts[:, 1:])

    run = job.prepare(model, optimizer, data)
    for (texts,) in run:
        run.backward(loss_of(texts))
        run.step()
        if run.passed(len(data)) and run.rank == 0:
            with torch.no_grad():
                run.report(bits_per_character=loss_of(held) / math.log(2))
