"""Provisioning: the best replicas, partition of their layers, threads and servers, exactly.

Outer loops are columns of setups. Inside, a dynamic program over layers keeps every cut of the layers so far that
none beats in seconds, in what is sent and in memory at once, and that may still end below the best known: the
objective need only grow with seconds and with what is sent. Costs are whole ticks, so that ties are ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray

TICK = 1e-10  # seconds
_BITS = 33  # of an objective that count: ten digits
_STEP, _BESIDE = (
    1e-6,
    3e-3,
)  # of slopes, and how far beside a point, where kinks may be, they are taken
# Off any line through the origin, on which sums and maxima have kinks.
_SIDES = np.array([(1.0, 0.6), (0.7, -1.0), (-1.0, 0.8), (-0.6, -1.0), (5.0, 3.0)])
_SLACK = 1e-7  # what slopes may be off by
# (positions of setups, seconds of a replica's layers, what one machine sends) -> what is to be least.
Cost = Callable[[IntArray, FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True)
class Chain:
    """D layers in a row and o ways to cut each, whole first: (D, o), exchange (D - 1, o, o); parts (o,)."""

    seconds: FloatArray
    exchange: FloatArray
    sent: FloatArray
    held: FloatArray
    parts: IntArray


@dataclass(frozen=True)
class Setups:
    """n setups as columns: each a chain whose most-cut layer has `largest` parts.

    kind, machines: whose best is asked. rank: the simplest first, where objectives tie. capacity: bytes.
    """

    chain: IntArray
    largest: IntArray
    kind: IntArray
    machines: IntArray
    rank: IntArray
    capacity: FloatArray

    def __len__(self) -> int:
        return len(self.chain)


@dataclass
class Solution:
    """What each setup reaches, (n,), infinite where it cannot be; a setup that wins nothing may be off its best.

    seconds (in ticks), sent, held: of a replica's busiest machine, (n,). path: which of `paths`, (D,) positions of
    ways, each takes.
    """

    setups: Setups
    value: FloatArray
    seconds: FloatArray
    sent: FloatArray
    held: FloatArray
    path: IntArray
    paths: list[IntArray] = field(default_factory=list)

    def best(self, among: BoolArray | None = None) -> int | None:
        """Return the setup with the least value, the simplest where they tie; None where none can be."""
        value = self.value if among is None else np.where(among, self.value, np.inf)
        order = np.lexsort((self.setups.rank, value))
        return int(order[0]) if len(order) and np.isfinite(value[order[0]]) else None

    def curve(self) -> list[int]:
        """Return the setups that are best of all with no more machines, by rising machines."""
        found: list[int] = []
        for count in np.unique(self.setups.machines):
            here = self.best(self.setups.machines <= count)
            if here is not None and here not in found:
                found.append(here)
        return found


def provision(chains: Sequence[Chain], setups: Setups, cost: Cost) -> Solution:
    """Return the best cut of every setup that is the best of its kind or of its number of machines.

    Ties go to the lower rank, then to fewer seconds of layers, less that is sent, less that is held, fewer parts in
    all, and ways that come first.
    The cost must grow with both and be convex, as sums, maxima and norms are; what is sent may not matter more where
    layers take longer.
    """
    n = len(setups)
    blank = np.full(n, np.inf)
    path = np.full(n, -1, dtype=np.int64)
    found = Solution(setups, blank, blank.copy(), blank.copy(), blank.copy(), path)
    low = np.full(n, np.inf)
    groups: list[_Group] = []
    for largest in np.unique(setups.largest):
        mine = setups.largest == largest
        for group in _groups(chains, np.unique(setups.chain[mine]), int(largest)):
            group.rows = np.flatnonzero(mine & (setups.chain == group.chain))
            if not np.isfinite(group.least[0]):
                continue
            group.first = len(found.paths)
            group.try_path(found, group.fastest, cost)
            fits = setups.capacity[group.rows] >= group.least[2]
            seconds, sent = (np.full(len(group.rows), value) for value in group.least[:2])
            bound = _rounded(cost(group.rows, seconds * TICK, sent))
            low[group.rows] = np.where(fits, bound, np.inf)
            groups.append(group)
    for group in sorted(groups, key=lambda g: float(low[g.rows].min(initial=np.inf))):
        for row in _open(group, found, low):
            planes, was = group.planes(found, int(row), cost), -1
            while was != found.path[row] and planes.least < found.value[row]:
                was = found.path[row]
                planes = planes.joined(group.planes(found, int(row), cost))
            most = min(float(_target(found, np.array([row]))[0]), float(found.value[row]))
            if low[row] <= most and planes.least <= most * (1.0 + _SLACK):
                group.search(found, int(row), most, planes, cost)
    return found


def _target(found: Solution, rows: IntArray) -> FloatArray:
    """Return the value above which a setup is best neither of its kind nor of its machines."""
    setups, value = found.setups, found.value
    kinds = np.full(int(setups.kind.max()) + 1, np.inf)
    np.minimum.at(kinds, setups.kind, value)
    counts = np.full(int(setups.machines.max()) + 1, np.inf)
    np.minimum.at(counts, setups.machines, value)
    counts = np.minimum.accumulate(counts)
    return np.asarray(np.maximum(kinds[setups.kind[rows]], counts[setups.machines[rows]]))


def _open(group: _Group, found: Solution, low: FloatArray) -> IntArray:
    """Return the setups of a group that may be better than what is known of them, and then win."""
    rows = group.rows
    exact = (found.value[rows] <= low[rows]) & (found.path[rows] == group.first)
    wins = np.isfinite(low[rows]) & (low[rows] <= _target(found, rows))
    return np.asarray(rows[~exact & wins])


def _rounded(values: FloatArray) -> FloatArray:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**_BITS) / 2.0**_BITS, exponent)


def _groups(chains: Sequence[Chain], wanted: IntArray, largest: int) -> list[_Group]:
    """Return the groups of some chains with one largest number of parts."""
    by_ways: dict[tuple[int, ...], list[int]] = {}
    for i in wanted:
        by_ways.setdefault((*chains[i].parts, *chains[i].seconds.shape), []).append(int(i))
    groups = []
    for members in by_ways.values():
        kept = np.flatnonzero(chains[members[0]].parts <= largest)
        full = chains[members[0]].parts[kept] == largest
        costs = [
            np.stack([np.round(getattr(chains[i], name)[:, kept] / unit) for i in members])
            for name, unit in (("seconds", TICK), ("sent", 1.0), ("held", 1.0))
        ]
        between = np.stack([
            np.round(chains[i].exchange[:, kept][:, :, kept] / TICK) for i in members
        ])  # fmt: skip
        nothing = np.zeros((1, max(between.shape[1], 1), 1, 1))
        for cost in costs[1:]:
            cost[~np.isfinite(costs[0])] = np.inf
        left = [_left(c, between if i == 0 else nothing, full) for i, c in enumerate(costs)]
        for j, i in enumerate(members):
            groups.append(_Group(
                i, kept, chains[i].parts[kept], full, [c[j] for c in costs], between[j],
                [each[:, j] for each in left],
            ))  # fmt: skip
    return groups


def _left(cost: FloatArray, between: FloatArray, full: BoolArray) -> FloatArray:
    """Return the least cost of the layers behind each, (D, chains, 2, o): where none so far was cut most, or one."""
    chains, depth, ways = cost.shape
    left = np.full((depth, chains, 2, ways), np.inf)
    left[-1, :, 1] = 0.0
    for i in range(depth - 2, -1, -1):
        # From way o to way p: what comes after p counts with its own cut.
        for reached in (0, 1):
            after = np.where(full | bool(reached), left[i + 1, :, 1], left[i + 1, :, 0])
            step = between[:, i if between.shape[1] > 1 else 0] + (cost[:, i + 1] + after)[:, None]
            left[i, :, reached] = step.min(axis=2)
    return left


@dataclass
class _Group:
    """A chain with one largest number of parts: ticks, sent and held by layer, and the least that is left."""

    chain: int
    kept: IntArray
    parts: IntArray
    full: BoolArray
    costs: list[FloatArray]
    between: FloatArray
    left: list[FloatArray]
    rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: int = -1  # which of the solution's paths is the fastest

    @property
    def least(self) -> list[float]:
        """The least seconds, sent and held that any cut of this group has, each alone."""
        reached = self.full * 1
        ways = np.arange(len(self.parts))
        return [
            float((cost[0] + left[0, reached, ways]).min())
            for cost, left in zip(self.costs, self.left, strict=True)
        ]

    @property
    def fastest(self) -> IntArray:
        """The cut with the least seconds; of several as ties go."""
        given = self.costs[0][None], self.between[None], self.left[0][:, None]
        first, last = (self._traces(*given, last=end)[0] for end in (False, True))
        if (first == last).all():
            return np.asarray(first)
        parts = np.broadcast_to(self.parts, self.costs[0].shape).astype(np.float64)
        return self.cheapest([*self.costs, parts])

    def cheapest(self, costs: Sequence[FloatArray]) -> IntArray:
        """Return the ways, (D,), with the least first cost, neighbours' exchange counted; then the second, ..."""
        depth, n = costs[0].shape
        ways, zero = np.arange(n), np.zeros((n, n))
        left = np.full((len(costs), depth, 2, n), np.inf)
        left[:, -1, 1] = 0.0
        chosen = np.zeros((depth, 2, n), dtype=np.int64)  # behind each way
        for i in range(depth - 2, -1, -1):
            for reached in (0, 1):
                then, best = (self.full | bool(reached)) * 1, np.ones((n, n), dtype=bool)
                for j, cost in enumerate(costs):
                    after = cost[i + 1] + left[j, i + 1, then, ways]
                    whole = np.where(best, (zero if j else self.between[i]) + after, np.inf)
                    left[j, i, reached] = whole.min(axis=1)
                    best &= whole <= left[j, i, reached][:, None]
                chosen[i, reached] = best.argmax(axis=1)
        first = [c[0] + each[0, self.full * 1, ways] for c, each in zip(costs, left, strict=True)]
        path = [int(np.lexsort((ways, *first[::-1]))[0])]
        for i in range(depth - 1):
            path.append(int(chosen[i, int(self.full[path].any()), path[-1]]))
        return np.array(path)

    def _sums(self, ways: IntArray) -> tuple[float, float, float]:
        """Return (ticks, sent, held) of a cut."""
        depth = np.arange(len(ways))
        seconds, sent, held = (float(c[depth, ways].sum()) for c in self.costs)
        seconds += float(self.between[depth[:-1], ways[:-1], ways[1:]].sum())
        return seconds, sent, held

    def try_path(self, found: Solution, ways: IntArray, cost: Cost) -> None:
        """Give a cut to the setups of the group that it betters."""
        seconds, sent, held = self._sums(ways)
        n, rows = len(self.rows), self.rows
        value = _rounded(cost(rows, np.full(n, seconds * TICK), np.full(n, sent)))
        value = np.where(found.setups.capacity[rows] >= held, value, np.inf)
        equal = (value == found.value[rows]) & (seconds < found.seconds[rows])
        better = rows[(value < found.value[rows]) | (np.isfinite(value) & equal)]
        found.value[better] = value[(value < found.value[rows]) | (np.isfinite(value) & equal)]
        found.seconds[better], found.sent[better], found.held[better] = seconds, sent, held
        found.path[better] = len(found.paths)
        found.paths.append(self.kept[ways])

    def planes(self, found: Solution, row: int, cost: Cost) -> _Planes:
        """Return planes below the cost of a setup, by tangents beside its best cut; try the cuts that they favour."""
        x, y = found.seconds[row], found.sent[row]
        if not np.isfinite(x):
            x, y = self.least[0], self.least[1]
        room = found.setups.capacity[row]
        amounts = [np.where(np.isfinite(self.costs[0]), c, 0.0) for c in self.costs]
        most_held = amounts[2].max(axis=1).sum()
        side = 1.0 + _BESIDE * _SIDES
        at = np.array([max(x, 1.0), max(y, 1.0)]) * side
        moved = at[:, None] * (1.0 + _STEP * np.array([(0, 0), (1, 0), (0, 1)]))
        value = cost(
            np.full(moved.size // 2, row), moved[..., 0].ravel() * TICK, moved[..., 1].ravel()
        )
        value = value.reshape(len(at), 3)
        slope = np.maximum((value[:, 1:] - value[:, :1]) / (at * _STEP), 0.0)
        start, third = value[:, 0] - (slope * at).sum(axis=1), np.zeros(len(at))
        if (
            most_held > room
        ):  # a limit's price: no cut that keeps it gets dearer by being paid for what it leaves
            price = slope[:, 0] * amounts[0].max(axis=1).sum() / max(most_held - self.least[2], 1.0)
            prices = np.outer([0.0, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 30.0], price).ravel()
            slope, start = np.tile(slope, (8, 1)), np.tile(start, 8) - prices * room
            third = prices
        weights = np.column_stack([slope, third])
        whole = np.einsum("kc,cdo->kdo", weights, np.stack(amounts))
        whole[:, ~np.isfinite(self.costs[0])] = np.inf
        between = weights[:, 0, None, None, None] * self.between
        left = _left(
            whole, between if between.shape[1] else between.reshape(-1, 1, 1, 1), self.full
        )
        reached, ways = self.full * 1, np.arange(len(self.parts))
        least = start + (whole[:, 0] + left[0][:, reached, ways]).min(axis=1)
        paths = np.unique(self._traces(whole, between, left), axis=0)
        sums = [self._sums(path) for path in paths]
        tried, sent, held = np.array(sums).T
        value = cost(np.full(len(paths), row), tried * TICK, sent)
        value = np.where(held <= room, value, np.inf)
        if np.isfinite(value).any():
            self.try_path(found, paths[value.argmin()], cost)
        return _Planes(start, weights, left, float(least.max()))

    def _traces(
        self, whole: FloatArray, between: FloatArray, left: FloatArray, last: bool = False
    ) -> IntArray:
        """Return the ways, (k, D), of least cost under k costs (k, D, o); of equals the first, or the last."""
        k, depth, n = whole.shape
        each, order = np.arange(k), np.arange(n)[::-1] if last else np.arange(n)
        paths, reached = np.zeros((k, depth), dtype=np.int64), np.zeros(k, dtype=np.int64)
        for i in range(depth):
            then = self.full | (reached[:, None] > 0)
            here = whole[:, i] + np.where(then, left[i, :, 1], left[i, :, 0])
            here = here + between[each, i - 1, paths[:, i - 1]] if i else here
            paths[:, i] = order[here[:, order].argmin(axis=1)]
            reached |= self.full[paths[:, i]]
        return paths

    def search(self, found: Solution, row: int, most: float, planes: _Planes, cost: Cost) -> None:
        """Find the best cut of a setup; `most`: the value that it must not exceed."""
        room = found.setups.capacity[row]
        costs, left = self.costs, self.left
        finite = np.isfinite(costs[0])
        worst = [float(np.where(finite, c, 0.0).max(axis=1).sum()) for c in costs]
        start, two = self.least, np.full(2, row)
        sent = cost(two, np.full(2, start[0] * TICK), np.array([start[1], worst[1]]))
        counts = [True, bool(sent[0] < sent[1]), worst[2] > room]
        n, ways = len(self.parts), np.arange(len(self.parts))
        # Labels: their way, whether one layer was cut most, and (ticks, sent, held) so far.
        way, reached = ways[finite[0]], self.full[finite[0]] * 1
        sums = np.stack([c[0][finite[0]] for c in costs])
        parts, rank = self.parts[way].astype(np.float64), np.arange(len(way))
        back: list[tuple[IntArray, IntArray]] = []
        for i in range(len(costs[0])):
            old = np.arange(len(way))
            if i:
                old, new = np.divmod(np.arange(len(way) * n), n)
                grown = sums[:, old] + np.stack([c[i][new] for c in costs])
                grown[0] += self.between[i - 1][way[old], new]
                ok = np.isfinite(grown[0])
                old, way, sums = old[ok], new[ok], grown[:, ok]
                reached = reached[old] | self.full[way]
                parts, rank = parts[old] + self.parts[way], rank[old] * n + way
            value = planes.start[:, None] + planes.weights @ sums + planes.left[i][:, reached, way]
            fits = sums[2] + left[2][i, reached, way] <= room
            kept = np.flatnonzero(fits & (value <= most * (1.0 + _SLACK)).all(axis=0))
            state = way[kept] * 2 + reached[kept]
            kept = kept[_undominated(state, sums[:, kept], parts[kept], rank[kept], counts)]
            way, reached, sums, parts = way[kept], reached[kept], sums[:, kept], parts[kept]
            rank = np.argsort(np.argsort(rank[kept], kind="stable"), kind="stable")
            back.append((way, old[kept]))
        self._finish(found, np.array([row]), sums, parts, rank, back, cost)

    def _finish(
        self, found: Solution, rows: IntArray, sums: FloatArray, parts: FloatArray, rank: IntArray,
        back: list[tuple[IntArray, IntArray]], cost: Cost,
    ) -> None:  # fmt: skip
        labels = sums.shape[1]
        for row in rows if labels else ():
            value = _rounded(cost(np.full(labels, row), sums[0] * TICK, sums[1]))
            value = np.where(sums[2] <= found.setups.capacity[row], value, np.inf)
            i = int(np.lexsort((rank, parts, *sums[::-1], value))[0])
            if value[i] > found.value[row] or not np.isfinite(value[i]):
                continue
            found.value[row] = value[i]
            found.seconds[row], found.sent[row], found.held[row] = sums[:, i]
            ways = []
            for way, old in reversed(back):
                ways.append(way[i])
                i = int(old[i])
            found.path[row] = len(found.paths)
            found.paths.append(self.kept[np.array(ways[::-1])])


@dataclass(frozen=True)
class _Planes:
    """Planes below a cost: start (k,), weights of ticks, sent and held (k, 3), what is left (D, k, 2, o)."""

    start: FloatArray
    weights: FloatArray
    left: FloatArray
    least: float

    def joined(self, other: _Planes) -> _Planes:
        """Return these planes and others."""
        return _Planes(
            np.concatenate([self.start, other.start]), np.concatenate([self.weights, other.weights]),
            np.concatenate([self.left, other.left], axis=1), max(self.least, other.least),
        )  # fmt: skip


def _undominated(
    state: IntArray, sums: FloatArray, parts: FloatArray, rank: IntArray, counts: Sequence[bool]
) -> IntArray:
    """Return the positions of labels that no other of their state beats in each sum that counts.

    Of equals the one stays that `provision` prefers.
    """
    sent, held = sums[1:]
    order = np.lexsort((rank, parts, *sums[::-1], state))
    kept: list[int] = []
    for block in np.split(order, np.flatnonzero(np.diff(state[order])) + 1) if len(order) else ():
        if not counts[1] and not counts[2]:
            kept.extend(block[:1])
        elif counts[1] and counts[2]:
            a, b = sent[block], held[block]
            alive = np.ones(len(block), dtype=bool)
            for i in range(len(block)):
                if alive[i]:
                    alive[i + 1 :] &= (a[i + 1 :] < a[i]) | (b[i + 1 :] < b[i])
            kept.extend(block[alive])
        else:
            one = sent[block] if counts[1] else held[block]
            least = np.minimum.accumulate(one)
            kept.extend(block[np.concatenate([[True], one[1:] < least[:-1]])])
    return np.array(kept, dtype=np.int64)
