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
from forerun.predictors.analytic.partition import LayerCosts

TICK = 1e-10  # seconds
_BITS = 33  # of an objective that count: ten digits
# Of slopes, and how far beside a point, where kinks may be, they are taken.
_STEP, _BESIDE = 1e-6, 3e-3
# Off any line through the origin, on which sums and maxima have kinks.
_SIDES = np.array([(1.0, 0.6), (0.7, -1.0), (-1.0, 0.8), (-0.6, -1.0), (5.0, 3.0)])
# Of what a limit on memory may cost, over seconds for bytes between the most and the least.
_PRICES = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 30.0)
_BLOCK = 256  # labels compared at once
_BEFORE = np.tri(_BLOCK, k=-1, dtype=bool)
_TOGETHER, _CELLS = 16, 2**18  # setups whose bounds are sought at once, and pairs of their ways
_MOST = 2**53  # of whole amounts, above any sum
_ROUNDS, _MIXTURES, _BINDING = 10, 33, 24
_SLACK = 1e-7  # what slopes may be off by
_GAIN = 3e-4  # of a mixture over the one before, below which planes about it bound hardly more
# (positions of setups, seconds of a replica's layers, what one machine sends) -> what is to be least.
Cost = Callable[[IntArray, FloatArray, FloatArray], FloatArray]


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

    def give(self, rows: IntArray, value: FloatArray, sums: FloatArray, path: IntArray) -> None:
        """Give each setup a path of `paths`, of (ticks, sent, held), where that betters what it has."""
        value = np.where(self.setups.capacity[rows] >= sums[2], _rounded(value), np.inf)
        equal = (value == self.value[rows]) & (sums[0] < self.seconds[rows])
        better = (value < self.value[rows]) | (np.isfinite(value) & equal)
        row = rows[better]
        self.value[row], self.path[row] = value[better], path[better]
        self.seconds[row], self.sent[row], self.held[row] = sums[:, better]

    def best(self, among: BoolArray | None = None) -> int | None:
        """Return the setup with the least value, the simplest where they tie; None where none can be."""
        value = self.value if among is None else np.where(among, self.value, np.inf)
        least = value.min(initial=np.inf)
        equal = np.flatnonzero(value == least)
        return int(equal[self.setups.rank[equal].argmin()]) if np.isfinite(least) else None

    def curve(self) -> list[int]:
        """Return the setups that are best of all with no more machines, by rising machines."""
        found: list[int] = []
        for count in np.unique(self.setups.machines):
            here = self.best(self.setups.machines <= count)
            if here is not None and here not in found:
                found.append(here)
        return found


def provision(chains: Sequence[LayerCosts], setups: Setups, cost: Cost) -> Solution:
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
    groups = [
        group
        for largest in np.unique(setups.largest)
        for group in _groups(chains, setups, int(largest))
        if np.isfinite(group.least[0])
    ]
    if not groups:
        return found
    rows = np.concatenate([group.rows for group in groups])
    first = np.repeat(np.arange(len(groups)), [len(group.rows) for group in groups])
    found.paths = [group.kept[group.fastest] for group in groups]
    least = np.array([group.least for group in groups])[first].T
    fastest = np.array([group.sums(group.fastest) for group in groups])[first].T
    low[rows] = _rounded(cost(rows, least[0] * TICK, least[1]))
    low[rows[setups.capacity[rows] < least[2]]] = np.inf
    found.give(rows, cost(rows, fastest[0] * TICK, fastest[1]), fastest, first)
    for i in np.argsort([low[group.rows].min() for group in groups], kind="stable"):
        group = groups[i]
        # Those that may be better than what is known of them, and then win.
        exact = (found.value[group.rows] <= low[group.rows]) & (found.path[group.rows] == i)
        wins = np.isfinite(low[group.rows]) & (low[group.rows] <= _target(found, group.rows))
        opened = group.rows[~exact & wins]
        bounded: list[tuple[int, float, _Planes]] = []
        together = max(min(_TOGETHER, _CELLS // max(group.between.size, 1)), 1)
        for some in np.split(opened, range(together, len(opened), together)):
            if len(asked := some[low[some] <= _target(found, some)]):
                planes = group.bounds(found, asked, opened, cost)
                bounded += zip(asked.tolist(), low[asked].tolist(), planes, strict=True)
                # What others reach only falls.
                most = np.minimum(_target(found, np.arange(n)), found.value) * (1.0 + _SLACK)
                bounded = [one for one in bounded if max(one[1], one[2].least) <= most[one[0]]]
        limits = np.minimum(_target(found, np.arange(n)), found.value).tolist()
        group.search(found, [(row, limits[row], planes) for row, _, planes in bounded], cost)
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


def _rounded(values: FloatArray) -> FloatArray:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**_BITS) / 2.0**_BITS, exponent)


def _groups(chains: Sequence[LayerCosts], setups: Setups, largest: int) -> list[_Group]:
    """Return the groups of some chains with one largest number of parts."""
    by_ways: dict[tuple[int, ...], list[int]] = {}
    mine = setups.largest == largest
    for i in np.unique(setups.chain[mine]):
        by_ways.setdefault((*chains[i].parts, *chains[i].seconds.shape), []).append(int(i))
    groups = []
    for members in by_ways.values():
        kept = np.flatnonzero(chains[members[0]].parts <= largest)
        parts = chains[members[0]].parts[kept]
        full = parts == largest
        costs = [
            np.stack([np.round(getattr(chains[i], name)[:, kept] / unit) for i in members])
            for name, unit in (("seconds", TICK), ("sent", 1.0), ("held", 1.0))
        ]
        between = np.stack([
            np.round(chains[i].exchange[:, kept][:, :, kept] / TICK) for i in members
        ])  # fmt: skip
        for cost in costs[1:]:
            cost[~np.isfinite(costs[0])] = np.inf
        left = [_left(costs[0], between, full)]
        left += [_left(cost, None, full) for cost in costs[1:]]
        first, last = (_traces(costs[0], between, left[0], full, end) for end in (False, True))
        for j, i in enumerate(members):
            group = _Group(
                kept, parts, full, [c[j] for c in costs], between[j], [each[:, j] for each in left],
                np.flatnonzero(mine & (setups.chain == i)), first[j],
            )  # fmt: skip
            if np.isfinite(group.least[0]) and (first[j] != last[j]).any():
                group.fastest = group.simplest()
            groups.append(group)
    return groups


def _left(cost: FloatArray, between: FloatArray | None, full: BoolArray) -> FloatArray:
    """Return the least cost of the layers behind each, (D, chains, 2, o): where none so far was cut most, or one.

    between: of neighbours, (chains, D - 1, o, o), or nothing.
    """
    chains, depth, ways = cost.shape
    left = np.full((depth, chains, 2, ways), np.inf, dtype=cost.dtype)
    left[-1, :, 1] = 0
    most = np.flatnonzero(full).tolist()
    if (
        between is not None
    ):  # to way p, of each chain, from way o: the first axis is reduced soonest
        between = np.ascontiguousarray(between.transpose(1, 3, 0, 2))[:, :, :, None]
    for i in range(depth - 2, -1, -1):
        # What comes after p counts with its own cut.
        after = left[i + 1].copy()
        for p in most:
            after[:, 0, p] = after[:, 1, p]
        after += cost[:, i + 1, None]
        if between is None:
            left[i] = after.min(axis=2, keepdims=True)
        else:
            np.minimum.reduce(between[i] + after.transpose(2, 0, 1)[..., None], out=left[i])
    return left


def _traces(
    whole: FloatArray, between: FloatArray, left: FloatArray, full: BoolArray, last: bool = False
) -> IntArray:
    """Return the ways, (k, D), of least cost under k costs (k, D, o); of equals the first, or the last."""
    k, depth, n = whole.shape
    order = np.arange(n)[:: -1 if last else 1]
    rest = left.copy()
    rest[:, :, 0, full] = left[:, :, 1, full]
    rest += whole.transpose(1, 0, 2)[:, :, None]
    if last:
        rest, between = rest[..., ::-1], between[..., ::-1]
    by_state, by_way = rest.reshape(depth, 2 * k, n), between.reshape(-1, n)
    states, ways = 2 * np.arange(k), n * (depth - 1) * np.arange(k)
    paths, most = np.zeros((depth, k), dtype=np.int64), full * 1
    reached = paths[0].copy()
    for i in range(depth):
        here = by_state[i].take(states + reached, axis=0)
        if i:
            here += by_way.take(ways + (n * (i - 1) + paths[i - 1]), axis=0)
        paths[i] = order.take(here.argmin(axis=1))
        reached |= most.take(paths[i])
    return paths.T


@dataclass
class _Group:
    """A chain with one largest number of parts: ticks, sent and held by layer, and the least that is left."""

    kept: IntArray
    parts: IntArray
    full: BoolArray
    costs: list[FloatArray]
    between: FloatArray
    left: list[FloatArray]
    rows: IntArray
    fastest: IntArray  # the cut with the least seconds; of several as ties go

    @property
    def least(self) -> list[float]:
        """The least seconds, sent and held that any cut of this group has, each alone."""
        reached, ways = self.full * 1, np.arange(len(self.parts))
        return [
            float((cost[0] + left[0, reached, ways]).min())
            for cost, left in zip(self.costs, self.left, strict=True)
        ]

    def simplest(self) -> IntArray:
        """Return the ways, (D,), with the least seconds, then the least sent, held and parts, then the first."""
        finite, whole = np.isfinite(self.costs[0]), np.zeros(self.costs[0].shape, dtype=object)
        # One whole number of any size, which floats could not hold.
        for amounts in (*self.costs, np.broadcast_to(self.parts, finite.shape)):
            whole = whole * _MOST + np.where(finite, amounts, 0).astype(np.int64).astype(object)
        whole[~finite] = np.inf
        between = self.between[None].astype(np.int64).astype(object) * _MOST**3
        left = _left(whole[None], between, self.full)
        return np.asarray(_traces(whole[None], between, left, self.full)[0])

    def sums(self, ways: IntArray) -> tuple[float, float, float]:
        """Return (ticks, sent, held) of a cut."""
        depth = np.arange(len(ways))
        seconds, sent, held = (float(c[depth, ways].sum()) for c in self.costs)
        seconds += float(self.between[depth[:-1], ways[:-1], ways[1:]].sum())
        return seconds, sent, held

    def bounds(
        self, found: Solution, rows: IntArray, opened: IntArray, cost: Cost
    ) -> list[_Planes]:
        """Return planes below the costs of `rows`, by tangents at their lowest mixtures of cuts (Frank and Wolfe 1956).

        The cuts that they favour are tried for all setups in `opened`.
        """
        room, lowest = found.setups.capacity[rows], found.value[rows].copy()
        at = np.stack([found.seconds[rows], found.sent[rows], found.held[rows]], axis=1)
        at = np.where(np.isfinite(lowest)[:, None], at, self.least)
        (planes, favoured), active = self.planes(found, rows, at, cost), np.arange(len(rows))
        for left in range(_ROUNDS, -1, -1):
            lower, shares = [], np.linspace(0.0, 1.0, _MIXTURES)[1:, None, None]
            tried = [(at[j] + shares * (planes[j].points - at[j])).reshape(-1, 3) for j in active]
            of, mixed = np.repeat(active, [len(points) for points in tried]), np.concatenate(tried)
            # Mixtures, and the cuts themselves for all setups, are priced together: each call takes its time.
            whole = np.array([sums for _, sums in favoured])
            every = np.concatenate([mixed, np.repeat(whole, len(opened), axis=0)])
            index = np.concatenate([rows[of], np.tile(opened, len(whole))])
            values = cost(index, every[:, 0] * TICK, every[:, 1])
            value = np.where(mixed[:, 2] <= room[of], values[: len(of)], np.inf)
            of_cuts = values[len(of) :].reshape(len(whole), -1)
            for (path, sums), each in zip(favoured, of_cuts, strict=True):
                many = np.tile(sums[:, None], len(opened))
                found.give(opened, each, many, np.full(len(opened), len(found.paths)))
                found.paths.append(self.kept[path])
            for j in active:
                least = value[of == j]
                i = int(least.argmin())
                if planes[j].least < found.value[rows[j]] and least[i] < lowest[j] * (1.0 - _GAIN):
                    at[j], lowest[j] = mixed[of == j][i], least[i]
                    lower.append(j)
            active = np.array(lower, dtype=np.int64)
            if not left or not len(active):
                break
            more, favoured = self.planes(found, rows[active], at[active], cost)
            for j, added in zip(active, more, strict=True):
                planes[j] = planes[j].joined(added)
        return [each.highest() for each in planes]

    def planes(
        self, found: Solution, rows: IntArray, at: FloatArray, cost: Cost
    ) -> tuple[list[_Planes], list[tuple[IntArray, FloatArray]]]:
        """Return tangents to the costs of setups about points, (k, 3), and the cuts that they favour with their sums."""
        room = found.setups.capacity[rows]
        amounts = np.where(np.isfinite(self.costs[0]), np.stack(self.costs), 0.0)
        longest, most_held = amounts[[0, 2]].max(axis=2).sum(axis=1)
        at = np.maximum(at[:, None, :2], 1.0) * (1.0 + _BESIDE * _SIDES)
        moved = at[:, :, None] * (1.0 + _STEP * np.array([(0, 0), (1, 0), (0, 1)]))
        each = np.repeat(rows, moved.size // 2 // len(rows))
        value = cost(each, moved[..., 0].ravel() * TICK, moved[..., 1].ravel())
        value = value.reshape(moved.shape[:3])
        slope = np.maximum((value[..., 1:] - value[..., :1]) / (at * _STEP), 0.0)
        start = value[..., 0] - (slope * at).sum(axis=2)
        planes: dict[int, _Planes] = {}
        favoured: list[tuple[IntArray, FloatArray]] = []
        tight = np.arange(len(rows))
        for prices in (np.zeros(1), np.array(_PRICES)):
            # A limit's price: no cut that keeps it gets dearer by being paid for what it leaves.
            full_price = slope[tight, :, 0] * longest / max(most_held - self.least[2], 1.0)
            third = prices[:, None] * full_price[:, None]
            pair = np.broadcast_to(slope[tight, None], (*third.shape, 2))
            weights = np.concatenate([pair, third[..., None]], axis=3).reshape(-1, 3)
            whole = np.einsum("kc,cdo->kdo", weights, amounts)
            whole[:, ~np.isfinite(self.costs[0])] = np.inf
            between = weights[:, 0, None, None, None] * self.between
            left = _left(whole, between, self.full)
            begin = (start[tight, None] - third * room[tight, None, None]).ravel()
            ends = whole[:, 0] + left[0][:, self.full * 1, np.arange(len(self.parts))]
            ends = begin + ends.min(axis=1)
            traces = _traces(whole, between, left, self.full)
            cuts = [*map(tuple, traces.tolist())]
            paths = sorted(set(cuts))
            sums = np.array([self.sums(np.array(path)) for path in paths])
            held = sums[np.array([*map(paths.index, cuts)]).reshape(len(tight), -1), 2]
            for j, k in zip(
                tight.tolist(), np.split(np.arange(len(begin)), len(tight)), strict=True
            ):
                made = _Planes(begin[k], weights[k], left[:, k], ends[k], sums)
                planes[j] = planes[j].joined(made) if j in planes else made
            favoured += zip(map(np.array, paths), sums, strict=True)
            tight = tight[(held > room[tight, None]).any(axis=1)]
            if not len(tight):
                break
        return [planes[j] for j in range(len(rows))], favoured

    def search(
        self, found: Solution, asked: Sequence[tuple[int, float, _Planes]], cost: Cost
    ) -> None:
        """Find the best cuts of setups, each with the value that it must not exceed and planes below its cost."""
        if not asked:
            return
        rows = np.array([row for row, _, _ in asked])
        rooms, costs, left = found.setups.capacity[rows], np.stack(self.costs), self.left
        finite = np.isfinite(costs[0])
        worst = [float(np.where(finite, c, 0.0).max(axis=1).sum()) for c in costs]
        start, shape = self.least, (len(rows), 2)
        sent = cost(
            np.repeat(rows, 2), np.full(2 * len(rows), start[0] * TICK),
            np.tile([start[1], worst[1]], len(rows)),
        ).reshape(shape)  # fmt: skip
        counts = [True, bool((sent[:, 0] < sent[:, 1]).any()), bool((worst[2] > rooms).any())]
        n, ways = len(self.parts), np.arange(len(self.parts))
        # Labels: their way, whether one layer was cut most, and (ticks, sent, held) so far.
        way, reached = ways[finite[0]], self.full[finite[0]] * 1
        sums = costs[:, 0, finite[0]]
        parts, rank = self.parts[way].astype(np.float64), np.arange(len(way))
        back: list[tuple[IntArray, IntArray]] = []
        for i in range(costs.shape[1]):
            old = np.arange(len(way))
            if i:
                new = ways[finite[i]]
                sums = (sums[:, :, None] + costs[:, i][:, None, new]).reshape(3, -1)
                sums[0] += self.between[i - 1][way][:, new].ravel()
                old, way = np.repeat(old, len(new)), np.tile(new, len(way))
                reached = reached[old] | self.full[way]
                parts, rank = parts[old] + self.parts[way], rank[old] * n + way
            # What no setup can use any more goes.
            held, kept = sums[2] + left[2][i, reached, way], np.zeros(0, dtype=np.int64)
            rest = np.arange(len(way))
            for (_, most, planes), room in zip(asked, rooms, strict=True):
                value = planes.at(i, sums[:, rest], reached[rest], way[rest])
                useful = (held[rest] <= room) & (value <= most * (1.0 + _SLACK)).all(axis=0)
                kept, rest = np.concatenate([kept, rest[useful]]), rest[~useful]
            kept.sort()
            state = way[kept] * 2 + reached[kept]
            kept = kept[_undominated(state, sums[:, kept], parts[kept], rank[kept], counts)]
            way, reached, sums, parts = way[kept], reached[kept], sums[:, kept], parts[kept]
            rank = np.argsort(np.argsort(rank[kept], kind="stable"), kind="stable")
            back.append((way, old[kept]))
        for row, room in zip(rows, rooms, strict=True) if len(way) else ():
            value = _rounded(cost(np.full(len(way), row), sums[0] * TICK, sums[1]))
            value = np.where(sums[2] <= room, value, np.inf)
            i = int(np.lexsort((rank, parts, *sums[::-1], value))[0])
            if np.isfinite(value[i]) and value[i] <= found.value[row]:
                found.value[row], found.path[row] = value[i], len(found.paths)
                found.seconds[row], found.sent[row], found.held[row] = sums[:, i]
                ways = np.zeros(len(back), dtype=np.int64)
                for depth in range(len(back))[::-1]:
                    ways[depth], i = (each[i] for each in back[depth])
                found.paths.append(self.kept[ways])


@dataclass(frozen=True)
class _Planes:
    """Planes below a cost: start (k,), weights of ticks, sent and held (k, 3), what is left (D, k, 2, o).

    ends: what each leaves at the least, (k,). points: (m, 3), the same of cuts.
    """

    start: FloatArray
    weights: FloatArray
    left: FloatArray
    ends: FloatArray
    points: FloatArray

    @property
    def least(self) -> float:
        """What no cut can be below."""
        return float(self.ends.max())

    def highest(self) -> _Planes:
        """Return those that bound the most, `_BINDING` of them: many are near copies, and each takes time."""
        k = np.argsort(-self.ends, kind="stable")[:_BINDING]
        return _Planes(self.start[k], self.weights[k], self.left[:, k], self.ends[k], self.points)

    def at(self, layer: int, sums: FloatArray, reached: IntArray, way: IntArray) -> FloatArray:
        """Return what cuts with such sums so far, (3, n), cost at the least by each plane, (k, n)."""
        so_far = self.start[:, None] + self.weights @ sums
        return np.asarray(so_far + self.left[layer][:, reached, way])

    def joined(self, other: _Planes) -> _Planes:
        """Return these planes and others."""
        return _Planes(
            np.concatenate([self.start, other.start]), np.concatenate([self.weights, other.weights]),
            np.concatenate([self.left, other.left], axis=1), np.concatenate([self.ends, other.ends]),
            np.unique(np.concatenate([self.points, other.points]), axis=0),
        )  # fmt: skip


def _undominated(
    state: IntArray, sums: FloatArray, parts: FloatArray, rank: IntArray, counts: Sequence[bool]
) -> IntArray:
    """Return the positions of labels that no other of their state beats in each sum that counts.

    Of equals the one stays that `provision` prefers.
    """
    if len(state) < 2:
        return np.arange(len(state))
    sent, held = sums[1:] * np.array(counts[1:])[:, None]
    order = np.lexsort((rank, parts, *sums[::-1], state))
    kept: list[int] = []
    for block in np.split(order, np.flatnonzero(np.diff(state[order])) + 1):
        # Of the labels so far, none slower, the least held of those that send no more: by rising sent.
        stairs = np.array([[-np.inf], [np.inf]])
        for new in np.split(block, range(_BLOCK, len(block), _BLOCK)):
            a, b = sent[new], held[new]
            beaten = stairs[1, np.searchsorted(stairs[0], a, "right") - 1] <= b
            no_more = (a <= a[:, None]) & (b <= b[:, None])
            beaten |= (no_more & _BEFORE[: len(new), : len(new)]).any(axis=1)
            kept.extend(new[~beaten])
            both = np.concatenate([stairs, [a[~beaten], b[~beaten]]], axis=1)
            both = both[:, np.lexsort(both[::-1])]
            lower = np.minimum.accumulate(both[1])
            stairs = both[:, np.r_[True, lower[1:] < lower[:-1]]]
    return np.array(kept, dtype=np.int64)
