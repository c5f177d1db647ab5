"""What tests let workers train: modules, training functions, and functions that go wrong."""

from __future__ import annotations

from forerun.measure import Steps

FEW = Steps(warmup=2, least=6, most=12, half_width=0.5, seconds=20)
QUICK = {"rehearse": False}  # settings of functions that use no optimizer: they need not load one

ENTRIES = '''
import os, signal, sys, time
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def mlp(width=64, depth=1):
    inner = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(32, width), *inner, nn.Linear(width, 4)), (torch.zeros(2, 32),)


def words():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

        def forward(self, tokens, mask=None):
            return {"loss": self.head(self.embed(tokens)).logsumexp(-1).mean()}

    return {"module": Words(), "inputs": {"tokens": torch.randint(0, 50, (2, 8))}}


def no_module():
    return 7, (torch.zeros(1),)


def regression(config):
    """A plain data-parallel loop that knows nothing of forerun and never ends by itself."""
    torch.manual_seed(config["rank"])
    model = nn.Linear(8, 1)
    model = DistributedDataParallel(model) if config["workers"] > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    while True:
        inputs = torch.randn(config["batch"], 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _step():
    from forerun.measure.recorder import current

    time.sleep(0.005)
    return current().step()


def killed(config):
    while True:
        for _ in range(11):
            _step()
        if config["rank"] == config["workers"] - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def dying(config):
    for _ in range(11):
        _step()
    time.sleep(1.2)
    if config["rank"] == config["workers"] - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def raising(config):
    _step()
    raise ValueError("the third\\nlayer has no weights")


def waiting(config):
    if config["rank"] == 0:
        raise ValueError("rank 0 is at fault")
    torch.distributed.barrier()


def hoarding(config):
    _step()
    torch.ones(10**15)


def stuck(config):
    for _ in range(4):
        _step()
    time.sleep(600)


def slow(config):
    steps = 0
    while not _step():
        steps += 1
        time.sleep(600 if steps == config.get("stalls") else config.get("pause", 0.1))


def with_children(config):
    import subprocess

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    while not _step():
        pass


def eating(config):
    _step()
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1)) * 10_000_000)


def leaving(config):
    _step()
    os._exit(3)
'''

SCRIPT = """
import sys
import torch
from forerun.measure import record

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = [torch.randn(int(sys.argv[1]), 8) for _ in range(1000)]
with record() as r:
    r.watch(model)
    for batch in r.steps(loader):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print("the rest of the script runs", file=sys.stderr)
"""
