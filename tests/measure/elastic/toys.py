"""What tests train elastically, and the account of which sample ids went into which step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from forerun.measure.elastic.driver import ElasticWorkers
from forerun.measure.elastic.job import TrainingJob
from forerun.measure.elastic.samples import SampleStream

SIZE = 90  # samples of the dataset

# Each worker writes, before a step, which ids it has taken for it in which group.
TOYS = f"""
import json, os, resource, time
import torch
from torch import nn

SIZE = {SIZE}


class Numbered(torch.utils.data.Dataset):
    def __init__(self):
        made = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SIZE, 6, generator=made)
        self.targets = self.inputs[:, :1] * self.inputs[:, 1:2] + 0.1 * torch.randn(SIZE, 1, generator=made)

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return i, self.inputs[i], self.targets[i]


def prepared(job):
    torch.manual_seed(job.seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, job.prepare(model, optimizer, Numbered())


def train(job):
    model, run = prepared(job)
    ids_file = open(f"ids-{{os.getpid()}}.jsonl", "a", buffering=1)
    for ids, inputs, targets in run:
        run.backward((model(inputs) - targets).square().mean())
        print(json.dumps([run.steps, run._generation, run.batch, ids.tolist()]), file=ids_file)
        time.sleep(job.settings.get("pause", 0.0))
        run.step()


def reporting(job):
    model, run = prepared(job)
    for ids, inputs, targets in run:
        run.backward((model(inputs) - targets).square().mean())
        time.sleep(job.settings.get("pause", 0.0))
        run.step()
        if run.passed(SIZE):
            run.report(share=run.position / 6000.0)


def greedy(job):
    model, run = prepared(job)
    for ids, inputs, targets in run:
        if len(ids) > job.settings["most"]:
            torch.empty(1 << 60)
        run.backward((model(inputs) - targets).square().mean())
        run.step()


def infinite(job):
    model, run = prepared(job)
    for ids, inputs, targets in run:
        loss = (model(inputs) - targets).square().mean()
        run.backward(loss * float("nan") if 20 <= run.steps < 23 and run.rank == 0 else loss)
        run.step()


def full_disk(job):
    model, run = prepared(job)
    for ids, inputs, targets in run:
        if run.steps == 20:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        run.backward((model(inputs) - targets).square().mean())
        run.step()


def wrong(job):
    model, run = prepared(job)
    for ids, inputs, targets in run:
        raise ValueError("the third layer has no weights")


def forgetful(job):
    model, run = prepared(job)
    for ids, inputs, targets in run:
        run.backward((model(inputs) - targets).square().mean())
"""


def job(entry: str = "train", **fields: Any) -> TrainingJob:
    """Return a job of the toys: up to two workers, batch 12, a fixed learning rate."""
    given = {"workers": (1, 2), "global_batch": (12,), "reference_batch": 12, "rule": "none",
             "hang_seconds": 20.0, "epochs": 1e6}  # fmt: skip
    return TrainingJob(f"elastic_toys:{entry}", **{**given, **fields})


def steps_taken(workers: ElasticWorkers, count: int) -> list[dict[str, Any]]:
    """Return the next so many reports of steps."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        event = workers.take(30.0)
        assert event is not None, "nothing was reported for half a minute"
        if event["is"] == "step":
            found.append(event)
    return found


def check_ids(folder: Path, seed: int, steps: int) -> int:
    """Assert that the steps that count saw each id once an epoch, in order; return how many samples.

    Of a step that was taken twice, the last group's attempt counts: it began from the step before.
    """
    taken: dict[int, dict[int, tuple[int, list[int]]]] = {}
    for path in folder.glob("ids-*.jsonl"):
        for line in path.read_text().splitlines():
            step, generation, batch, ids = json.loads(line)
            _, some = taken.setdefault(step, {}).setdefault(generation, (batch, []))
            some += ids
    stream, position, seen = SampleStream(SIZE, seed), 0, []
    for step in range(steps):
        batch, ids = taken[step][max(taken[step])]
        assert sorted(ids) == sorted(stream.ids(position, batch).tolist()), f"step {step}"
        position += batch
        seen += stream.ids(position - batch, batch).tolist()
    whole = seen[: position // SIZE * SIZE]
    assert set(Counter(whole).values()) == {position // SIZE}
    return position
