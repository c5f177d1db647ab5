"""Models for small hosts: two dense ones, a convolutional one, and one of sparse tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.lab_models import Classifier, cnn, images

__all__ = ["cnn", "dense", "recommender", "wide"]
ROWS, WIDTH, WORDS = 20_000, 32, 20


def dense(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a perceptron for images of 28 x 28, 0.27 M parameters."""
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip
    return Classifier(body), images(batch, 1, 28)


def wide(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a perceptron of three wide layers for images of 28 x 28, 2.9 M parameters."""
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip
    return Classifier(body), images(batch, 1, 28)


class Recommender(nn.Module):
    """Words of a sample looked up in a table with sparse gradients, and a small net on top."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.body = nn.Sequential(nn.Linear(WORDS * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, words: Tensor) -> Tensor:
        """Return the loss of words (n, words)."""
        return (self.body(self.table(words).flatten(1)) - 1.0).square().mean()


def recommender(batch: int = 16) -> tuple[nn.Module, tuple[Tensor]]:
    """Return a recommender of 0.68 M parameters, 94 % of them in its table."""
    return Recommender(), (torch.randint(0, ROWS, (batch, WORDS)),)
