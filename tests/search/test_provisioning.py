"""The provisioning search against trying everything."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from forerun.predictors.analytic.partition import LayerCosts as Chain
from forerun.search.provisioning import TICK, Setups, provision


def instance(seed: int):
    """Return (chains, setups, cost) with whole small costs, so that ties are many and exact."""
    rng = np.random.default_rng(seed)
    depth, counts = int(rng.integers(1, 5)), [1, 2, 4][: int(rng.integers(1, 4))]
    parts = np.array([*counts, *(counts[1:] if rng.random() < 0.4 else [])])
    ways = len(parts)
    chains = []
    for _ in range(int(rng.integers(1, 3))):
        seconds = rng.integers(1, 7, (depth, ways)) * TICK
        seconds[:, 1:][rng.random((depth, ways - 1)) < 0.15] = np.inf
        between = rng.integers(0, 3, (max(depth - 1, 0), ways, ways)) * TICK
        sent, held = rng.integers(0, 6, (2, depth, ways)).astype(float)
        chains.append(Chain(seconds, between, sent, held, parts))
    rows = [
        (c, largest, kind, replicas * largest + servers, replicas, servers)
        for c in range(len(chains)) for largest in counts for kind in range(3)
        for replicas in (1, 2) for servers in ((0,) if kind == 0 else (1, 2))
    ]  # fmt: skip
    chain, largest, kind, machines, replicas, servers = np.array(rows).T
    rank = np.lexsort((np.arange(len(rows)), chain, servers, kind, machines)).argsort()
    room = rng.integers(depth, 6 * depth + 1, len(rows)).astype(float)
    asked = 2 * kind + (largest > 1)
    setups = Setups(chain, largest, asked, machines, rank, room)
    weight = float(rng.integers(1, 4))

    def cost(index, seconds, sent):
        ticks, per = seconds / TICK, replicas[index]
        link, server = weight * sent, 4.0 * per / np.maximum(servers[index], 1)
        exchanged = np.maximum(link, server)
        turn = np.where(kind[index] == 1, ticks + exchanged, np.maximum(ticks, exchanged))
        return np.where(kind[index] == 0, ticks + weight * sent + per, turn) * 16.0 / per

    return chains, setups, cost


def every_cut(chain):
    """Return each cut of a chain (cuts, depth), and its seconds, bytes sent and held, and parts."""
    depth, ways = chain.seconds.shape
    cuts = np.array(list(itertools.product(range(ways), repeat=depth)))
    d = np.arange(depth)
    seconds = chain.seconds[d, cuts].sum(1)
    seconds = seconds + chain.exchange[d[:-1], cuts[:, :-1], cuts[:, 1:]].sum(1)
    return cuts, seconds, chain.sent[d, cuts].sum(1), chain.held[d, cuts].sum(1), chain.parts[cuts]


def all_cuts(chains, setups, cost, barred):
    """Return for each setup the least of the keys of all its cuts; barred: ways of layers that none may have."""
    tried, found = [every_cut(chain) for chain in chains], []
    for row in range(len(setups)):
        cuts, seconds, sent, held, parts = tried[setups.chain[row]]
        may = np.isfinite(seconds) & (held <= setups.capacity[row])
        may &= parts.max(1) == setups.largest[row]
        may &= ~barred[np.arange(cuts.shape[1]), cuts].any(1)
        if not may.any():
            found.append(None)
            continue
        cuts, seconds, sent, held, parts = (a[may] for a in (cuts, seconds, sent, held, parts))
        ticks = np.round(seconds / TICK)
        value = cost(np.full(len(cuts), row), ticks * TICK, sent).round(6)
        keys = (value, ticks, sent, held, parts.sum(1), *cuts.T)
        least = np.lexsort(keys[::-1])[0]  # by the first key, then the next
        first, *others = (key[least] for key in keys)
        found.append((first, setups.rank[row], *others))
    return found


@pytest.mark.parametrize("batch", range(10))
def test_the_optimum_equals_trying_everything_with_ties(batch):
    equals_trying_everything(range(100 * batch, 100 * batch + 100))


def test_labels_setups_and_planes_in_many_parts_are_those_in_one(monkeypatch):
    """What a long chain on many machines has many of: blocks of labels, setups bounded at once, planes."""
    for name, most in (("_BLOCK", 2), ("_TOGETHER", 3), ("_BINDING", 2)):
        monkeypatch.setattr(f"forerun.search.provisioning.{name}", most)
    equals_trying_everything(range(1000, 1100))


@pytest.mark.parametrize("batch", range(3))
def test_with_a_layer_s_parts_stated_the_optimum_equals_trying_all_others(batch):
    """What is stated is infinite elsewhere, and stated threads leave setups of one chain alone."""
    equals_trying_everything(range(2000 + 100 * batch, 2100 + 100 * batch), stated=True)


def with_one_stated(seed, chains, setups, cost):
    """Return chains whose layers allow no other than stated parts, setups of one chain, and their cost."""
    rng = np.random.default_rng(seed)
    parts = chains[0].parts
    layers = rng.random(len(chains[0].seconds)) < 0.5
    barred = layers[:, None] & (parts != rng.choice(parts, len(layers))[:, None])
    at = np.flatnonzero(setups.chain == rng.integers(0, len(chains)))
    less = Setups(*(values[at] for values in vars(setups).values()))
    narrow = [replace(c, seconds=np.where(barred, np.inf, c.seconds)) for c in chains]
    return narrow, less, lambda index, *sums: cost(at[index], *sums), barred


def equals_trying_everything(seeds, stated=False):
    for seed in seeds:
        whole, setups, cost = instance(seed)
        chains, barred = whole, np.zeros(whole[0].seconds.shape, dtype=bool)
        if stated:
            chains, setups, cost, barred = with_one_stated(seed, whole, setups, cost)
        keys = all_cuts(whole, setups, cost, barred)
        found = provision(chains, setups, cost)

        def expect(row, among, keys=keys, found=found, seed=seed):
            best = min((keys[i] for i in np.flatnonzero(among) if keys[i]), default=None)
            assert (row is None) == (best is None), seed
            if row is not None:
                here = (found.value[row].round(6), found.setups.rank[row], found.seconds[row],
                        found.sent[row], found.held[row])  # fmt: skip
                assert here == best[:5], seed
                assert tuple(found.paths[found.path[row]]) == best[6:], seed

        expect(found.best(), np.ones(len(setups), dtype=bool))
        for kind in np.unique(setups.kind):
            expect(found.best(setups.kind == kind), setups.kind == kind)
        for count in np.unique(setups.machines):
            expect(found.best(setups.machines <= count), setups.machines <= count)
        assert set(found.curve()) == {
            found.best(setups.machines <= count) for count in np.unique(setups.machines)
        } - {None}
