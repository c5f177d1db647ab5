"""Collectives: all-reduces and messages by size among processes, and what they cost one another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from forerun.measure.probe.clock import CallTimer

SIZES = (4, 16384, 262144, 1048576, 4194304, 16777216)
# A call longer than this says enough of larger ones.
LONG_SECONDS = 0.15
_LAYERS = (8, 32)
# A pause in which a link that lets go of so many bytes at once has room for them again.
REST_SECONDS = 0.03
RESTED_SIZES = SIZES[:4]
_ROUNDS = 12


@dataclass
class Ring:
    """Some ranks that talk among themselves; only they may call its methods."""

    torch: Any
    ranks: Sequence[int]
    group: Any
    rank: int

    def mean(self, value: float) -> float:
        """Return the mean of all ranks' values."""
        held = self.torch.tensor([value], dtype=self.torch.float64)
        self._reduce(held)
        return float(held) / len(self.ranks)

    def all_reduces(self) -> list[list[float]]:
        """Return [bytes, wall seconds, CPU seconds] of one all-reduce for each size."""
        return list(self._by_size(self._reduce, repeats=5))

    def messages(self) -> list[list[float]]:
        """Return [bytes, seconds one way] of a message between two ranks for each size."""
        found = self._by_size(self._back_and_forth, repeats=4)
        return [[size, wall / 2.0] for size, wall, _ in found]

    def _by_size(self, call: Callable[[Any], None], repeats: int) -> Iterator[list[float]]:
        for size in SIZES:
            wall, cpu = self._timed(partial(call, self.torch.ones(size // 4)), repeats)
            yield [float(size), wall, cpu]
            if wall > LONG_SECONDS:
                return

    def _reduce(self, held: Any) -> None:
        self.torch.distributed.all_reduce(held, group=self.group)

    def _back_and_forth(self, held: Any) -> None:
        first, second = self.ranks
        dist = self.torch.distributed
        calls = (dist.send, dist.recv) if self.rank == first else (dist.recv, dist.send)
        for call in calls:
            call(held, second if self.rank == first else first)

    def _timed(self, call: Callable[[], None], repeats: int) -> tuple[float, float]:
        call()
        start = time.perf_counter()
        call()
        once = self.mean(time.perf_counter() - start)
        calls = int(min(max(0.03 / max(once, 1e-6), 1), 200))
        walls, cpus = [], []
        for _ in range(1 if once > LONG_SECONDS else repeats):
            self.torch.distributed.barrier(group=self.group)
            start, spent = time.perf_counter(), time.process_time()
            for _ in range(calls):
                call()
            walls.append((time.perf_counter() - start) / calls)
            cpus.append((time.process_time() - spent) / calls)
        return self.mean(float(np.median(walls))), self.mean(float(np.median(cpus)))

    def rested(self) -> list[list[float]]:
        """Return [bytes, seconds] of all-reduces, each after a pause in which nothing was sent."""
        found = []
        for size in RESTED_SIZES:
            held = self.torch.ones(size // 4)
            walls = []
            for _ in range(_ROUNDS):
                time.sleep(REST_SECONDS)
                start = time.perf_counter()
                self._reduce(held)
                walls.append(time.perf_counter() - start)
            found.append([float(size), self.mean(float(np.median(walls)))])
            if found[-1][1] > LONG_SECONDS:
                break
        return found

    def together(self) -> list[float]:
        """Return how much slower a rank computes while n do, for n = 1 to all."""
        most, position = len(self.ranks), list(self.ranks).index(self.rank)
        counts = sorted({*(2**i for i in range(most.bit_length())), most})
        turns: list[list[float]] = []
        # Turn about, so that what disturbs the machine disturbs all counts.
        for _ in range(_TURNS):
            turns.append([])
            for count in counts:
                self.torch.distributed.barrier(group=self.group)
                rate = _work_rate(self.torch) if position < count else 0.0
                turns[-1].append(self.mean(rate) * most / count)
        slower = np.array(turns)[:, :1] / np.array(turns)
        middle = np.maximum(np.median(slower, axis=0), 1.0)
        return [float(np.interp(n, counts, middle)) for n in range(1, most + 1)]

    def replicas(self) -> list[float]:
        """Return CPU seconds (a step, a parameter tensor) of keeping replicas beside all-reduces."""
        extra = [self._replica_cost(layers) for layers in _LAYERS]
        tensor = max((extra[1] - extra[0]) / (2.0 * (_LAYERS[1] - _LAYERS[0])), 0.0)
        return [max(extra[0] - 2.0 * _LAYERS[0] * tensor, 0.0), tensor]

    def _replica_cost(self, layers: int) -> float:
        torch = self.torch
        x = torch.randn(4, 4)

        def net() -> Any:
            return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))

        def step(module: Any) -> None:
            module.zero_grad()
            module(x).sum().backward()

        alone = partial(step, net())
        kept = torch.nn.parallel.DistributedDataParallel(net(), process_group=self.group)
        for _ in range(3):  # buckets are made again after the first step
            step(kept)
        plain = CallTimer(batch_seconds=0.01).time(alone)
        joined = self._timed(partial(step, kept), 3)[1]
        reduced = self._timed(partial(self._reduce, torch.ones(20 * layers)), 3)[1]
        return joined - plain - reduced


_SPENT_SECONDS, _RATE_SECONDS = 0.2, 0.6  # what a rest saved up is spent first


def _work_rate(torch: Any) -> float:
    a, b = torch.randn(128, 256), torch.randn(256, 256)
    sweep, into = torch.randn(1 << 18), torch.empty(1 << 18)
    pieces, begun = 0, time.perf_counter() + _SPENT_SECONDS
    while (now := time.perf_counter()) < begun + _RATE_SECONDS or not pieces:
        for _ in range(4):
            a.mm(b)
        torch.mul(sweep, 2.0, out=into)
        pieces += now >= begun
    return pieces / (time.perf_counter() - begun)


# Sides of square weights, from what a core's cache holds to what no cache does; multiply-adds of a call.
_SIDES, _LEAST_MULADDS, _LEAST_ROWS = (256, 1024, 2048, 4096, 8192), 4e6, 8
_PIECE_SECONDS, _TURNS = 0.12, 3


def co_running(torch: Any, cores: float) -> dict[str, Any] | None:
    """Return how much slower each of n threads multiplies by the same weights, by their bytes; None of one core.

    Each thread has rows of its own, as workers have samples (C_muladd(H) of Yan et al. 2015).
    """
    counts = [n for n in (1, 2, 4, 8) if n <= cores]
    if len(counts) < 2:
        return None
    seconds, spreads = [], []
    for side in _SIDES:
        weights, rows = torch.randn(side, side), max(_LEAST_ROWS, int(_LEAST_MULADDS / side**2))
        # Turn about, so that what disturbs the machine disturbs all counts.
        turns = np.array([[_calls_each(torch, weights, rows, n) for n in counts]
                          for _ in range(_TURNS)])  # fmt: skip
        slower = turns[:, :1] / turns
        seconds += np.maximum.accumulate(np.maximum(np.median(slower, axis=0), 1.0)).tolist()
        spreads.append(float(np.ptp(slower[:, -1]) / np.median(slower[:, -1])))
    axes = [[4.0 * side**2 for side in _SIDES], [float(n) for n in counts]]
    return {"axes": axes, "seconds": seconds, "spread": float(np.median(spreads))}


def _calls_each(torch: Any, weights: Any, rows: int, threads: int) -> float:
    """Return products a second of each of so many threads, while all of them multiply."""
    start = threading.Barrier(threads)

    def multiply(_: int) -> float:
        x = torch.randn(rows, len(weights))
        into = torch.empty_like(x)
        torch.mm(x, weights, out=into)
        start.wait()
        calls, begun = 0, time.perf_counter()
        while (taken := time.perf_counter() - begun) < _PIECE_SECONDS:
            torch.mm(x, weights, out=into)
            calls += 1
        return calls / taken

    with ThreadPoolExecutor(threads) as pool:
        return float(np.mean(list(pool.map(multiply, range(threads)))))


def jitter(torch: Any, piece_seconds: float = 0.01, pieces: int = 40) -> float:
    """Return the standard deviation of a piece of work's wall time."""
    piece = _piece(torch, piece_seconds)
    kept = np.sort([piece()[0] for _ in range(pieces)])[: int(0.95 * pieces)]
    return float(np.std(kept))


def rested_work(torch: Any, share: float, piece_seconds: float = 0.01) -> float:
    """Return by how much a piece of work is done sooner after a pause than a share of a core lets it."""
    piece, spared = _piece(torch, piece_seconds), []
    for _ in range(_ROUNDS):
        time.sleep(REST_SECONDS)
        wall, cpu = piece()
        spared.append(cpu / share - wall)
    return max(float(np.median(spared)), 0.0)


def _piece(torch: Any, seconds: float) -> Callable[[], tuple[float, float]]:
    """Return work of about so many CPU seconds, which returns its wall and CPU seconds."""
    a, b = torch.randn(128, 256), torch.randn(256, 256)
    start = time.process_time()
    for _ in range(20):
        a.mm(b)
    calls = max(int(20 * seconds / max(time.process_time() - start, 1e-6)), 1)

    def piece() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            a.mm(b)
        return time.perf_counter() - wall, time.process_time() - cpu

    return piece


def fitted(points: Sequence[Sequence[float]], ranks: int) -> tuple[float, float]:
    """Return (seconds of no size, bytes/s) of ring all-reduces [bytes, wall, ...] (Patarasuk and Yuan 2009)."""
    sizes, walls = np.array([point[:2] for point in points]).T
    moved = 2.0 * (ranks - 1) / ranks * sizes
    matrix = np.stack([np.ones(len(sizes)), moved], axis=1) / walls[:, None]
    fixed, each = np.linalg.lstsq(matrix, np.ones(len(sizes)), rcond=None)[0]
    if fixed < 0 or each <= 0:  # the smallest and the largest say it
        fixed = walls.min()
        each = max(walls[-1] - fixed, 1e-12) / moved[-1]
    return float(fixed), float(1.0 / each)
