"""Three small models for hosts with little to compute with: a CNN, an MLP and a transformer.

Each callable returns a module whose output is its loss, and example inputs of one batch:

    forerun predict examples.lab_models:cnn --cluster 4x1xMY-HOST --global-batch 64 --optimizer sgd
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WORDS, TOKENS = 10, 1000, 32


class Classifier(nn.Module):
    """A network of logits with its cross entropy: forward(images, labels) is the loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images (n, channels, side, side) with labels (n,)."""
        return functional.cross_entropy(self.body(images), labels)


class Block(nn.Module):
    """One pre-norm transformer layer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for x (n, tokens, width)."""
        n, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).view(n, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Language(nn.Module):
    """A language model: forward(words, next words) is the loss."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(TOKENS, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        """Return the loss of words and the words that follow them, both (n, tokens)."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        logits = self.head(self.norm(self.layers(x)))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def images(batch: int, channels: int = 3, side: int = 32) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    return torch.randn(batch, channels, side, side), torch.randint(0, CLASSES, (batch,))


def cnn(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a plain convolutional net for images of 32 x 32, 60 k parameters."""
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, CLASSES),
    )  # fmt: skip
    return Classifier(body), images(batch)


def mlp(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a perceptron of three layers for images of 28 x 28, 0.79 M parameters."""
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 512), nn.ReLU(),
        nn.Linear(512, CLASSES),
    )  # fmt: skip
    return Classifier(body), images(batch, 1, 28)


def transformer(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a language model of two layers of width 96 on 32 tokens, 0.42 M parameters."""
    words = torch.randint(0, WORDS, (batch, TOKENS))
    return Language(96, 4, 2), (words, words.roll(-1, 1))
