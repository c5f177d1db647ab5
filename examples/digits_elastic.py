"""A small CNN learns handwritten digits: a training function for `forerun train examples/digits.yaml --elastic`."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset


def digits(held: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of scikit-learn's 1,797 digits: every fifth one is held out."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).div(16).unsqueeze(1)
    chosen = (torch.arange(len(images)) % 5 == 0) == held
    return images[chosen], torch.tensor(found.target)[chosen]


def network() -> nn.Module:
    """Return the CNN: scores (n, 10) of images (n, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train(job: Any) -> None:
    """Train until the driver ends it, and report the held-out accuracy once an epoch."""
    torch.manual_seed(job.seed)
    data, (images, labels), model = TensorDataset(*digits(held=False)), digits(held=True), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.settings["learning_rate"], momentum=0.9)
    run = job.prepare(model, optimizer, data)
    for inputs, targets in run:
        run.backward(functional.cross_entropy(model(inputs), targets))
        run.step()
        if run.passed(len(data)) and run.rank == 0:
            with torch.no_grad():
                right = model(images).argmax(1) == labels
            run.report(accuracy=right.float().mean())
