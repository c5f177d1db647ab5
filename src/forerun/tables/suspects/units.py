"""Units: figures that are right in another unit than their column's.

A value is judged three times. Against physics alone: more than `FAR` off, and a unit explains it.
Against its siblings, whose bias is taken off (a wrong row among them is first brought to the unit
that physics suggests, so that it does not move them). And against the rows between: where honest
rows reach half-way out, the row is the end of a slow tail and no error of units.

Wholes: columns of which every row, or one of two kinds of rows, is in another unit.

Siblings: what the nearest rows of the same workload on the same device say of a row.

Readings: the step time that each measured column implies, and the units it may be in by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.jobs import Runs

THOUSAND, MINUTE, HOUR = np.log(1e3), np.log(60.0), np.log(3600.0)


@dataclass(frozen=True)
class Guess:
    """A unit that a column may hold by mistake.

    Attributes:
        unit: what it looks like.
        advice: how to mend it.
        log_factor: (n,) log of implied over true step seconds, NaN where it cannot be.
        reluctance: log factor by which it must explain a value better than others do.
        clear: whether so large a factor alone is proof; else only beside rows that agree.
        swapped: whether the column holds the inverse quantity.
    """

    unit: str
    advice: str
    log_factor: FloatArray
    reluctance: float = 0.0
    clear: bool = True
    swapped: bool = False


@dataclass(frozen=True)
class ImpliedStep:
    """One measured column: (n,) logs of the step seconds (or bytes) it implies; NaN where blank."""

    column: str
    unit: str
    values: FloatArray
    log_implied: FloatArray
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class Sizes:
    """Logs of what turns one quantity into another, (n,), NaN where not known."""

    batch: FloatArray
    devices: FloatArray
    seq_len: FloatArray
    epoch_steps: FloatArray
    passes: FloatArray
    predicted: FloatArray


def sizes_of(runs: Runs, log_predicted: FloatArray) -> Sizes:
    """Return the sizes of n runs; log_predicted (n,) is physics' log step seconds."""
    jobs, table = runs.jobs, runs.table
    batch = _log(table.numbers("global_batch"))
    dataset = _log(table.numbers("dataset_size"))
    known = np.array([w.dataset_size for w in jobs.workloads] + [0.0])[jobs.workload_index]
    dataset = np.where(np.isnan(dataset), _log(known), dataset)
    devices = np.array([float(c.devices) for c in jobs.clusters] + [np.nan])[jobs.cluster_index]
    length = np.array([float(w.seq_len) for w in jobs.workloads] + [np.nan])[jobs.workload_index]
    seq_len = _log(table.numbers("seq_len"))
    seq_len = np.where(np.isnan(seq_len), _log(length), seq_len)
    plans = jobs.plans
    passes = _log(plans.global_batch / (plans.micro_batch.astype(np.float64) * plans.dp))
    return Sizes(batch, _log(devices), seq_len, dataset - batch, passes, log_predicted)


def _log(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs), logs, np.nan)


def step_readings(runs: Runs, sizes: Sizes) -> tuple[ImpliedStep, ...]:
    """Return the reading of each column that tells a step time, those with no value left out."""
    table = runs.table
    measured = np.where(runs.status == "ok", 1.0, np.nan)
    made: tuple[tuple[str, str, FloatArray, Mapping[str, Guess]], ...] = (
        ("step_time_s", "s", np.zeros(len(runs)), _time_guesses(sizes)),
        ("samples_per_s", "samples/s", sizes.batch, _rate_guesses(sizes, "samples")),
        ("tokens_per_s", "tokens/s", sizes.batch + _log(table.numbers("seq_len")), _rate_guesses(sizes, "tokens")),
        ("epoch_time_s", "s", -sizes.epoch_steps, _epoch_guesses(sizes)),
    )  # fmt: skip
    found = []
    for column, unit, scale, guesses in made:
        values = table.numbers(column) * measured
        logs = _log(values)
        if np.isnan(logs).all():
            continue
        implied = scale - logs if column.endswith("per_s") else scale + logs
        found.append(ImpliedStep(column, unit, values, implied, tuple(guesses.values())))
    return tuple(found)


def memory_reading(runs: Runs) -> ImpliedStep | None:
    """Return the reading of memory_gb as bytes, None where it has no value."""
    values = runs.table.numbers("memory_gb")
    logs = _log(values)
    if np.isnan(logs).all():
        return None
    n = len(runs)
    guesses = tuple(
        Guess(unit, f"divide by {text}", np.full(n, np.log(factor)))
        for unit, text, factor in (
            ("MiB or MB", "953.7 (MiB) or 1000 (MB)", 1e3), ("kB", "1e6", 1e6),
            ("bytes", "1e9", 1e9),
        )
    )  # fmt: skip
    return ImpliedStep("memory_gb", "GB", values, logs + np.log(1e9), guesses)


def _constant(n: int, unit: str, factor: float, advice: str, reluctance: float = 0.0) -> Guess:
    return Guess(unit, advice, np.full(n, factor), reluctance)


def _time_guesses(sizes: Sizes) -> Mapping[str, Guess]:
    n = len(sizes.batch)
    swapped = sizes.batch - 2.0 * sizes.predicted
    return {
        "ms": _constant(n, "ms", THOUSAND, "divide by 1000"),
        "us": _constant(n, "us", 2 * THOUSAND, "divide by 1e6"),
        "ns": _constant(n, "ns", 3 * THOUSAND, "divide by 1e9"),
        "minutes": _constant(n, "minutes", -MINUTE, "multiply by 60"),
        "hours": _constant(n, "hours", -HOUR, "multiply by 3600"),
        "sixty": _constant(n, "seconds times 60", MINUTE, "divide by 60", reluctance=0.3),
        "epoch": Guess(
            "the time of an epoch", "name the column epoch_time_s, or divide by the steps of an"
            " epoch", sizes.epoch_steps, 0.2,
        ),
        "sample": Guess(
            "the time of one sample", "multiply by global_batch", -sizes.batch, 0.2, False
        ),
        "pass": Guess(
            "the time of one micro-batch", "multiply by the micro-batches of a step",
            -sizes.passes, 0.0, False,
        ),
        "device": Guess(
            "the time divided by the devices", "multiply by devices", -sizes.devices, 0.1, False
        ),
        "rate": Guess("samples per second", "name the column samples_per_s", swapped, 0.3, swapped=True),
        "tokens": Guess(
            "tokens per second", "name the column tokens_per_s", swapped + sizes.seq_len, 0.3,
            swapped=True,
        ),
    }  # fmt: skip


def _rate_guesses(sizes: Sizes, what: str) -> Mapping[str, Guess]:
    n = len(sizes.batch)
    found = {
        "device": Guess(
            f"{what}/s of one device", "multiply by devices: the column is of the whole cluster",
            sizes.devices, 0.0, False,
        ),
        "thousands": _constant(n, f"thousand {what}/s", THOUSAND, "multiply by 1000"),
        "millions": _constant(n, f"million {what}/s", 2 * THOUSAND, "multiply by 1e6"),
        "minute": _constant(n, f"{what} per minute", -MINUTE, "divide by 60"),
        "hour": _constant(n, f"{what} per hour", -HOUR, "divide by 3600"),
    }  # fmt: skip
    if what == "samples":
        found["batches"] = Guess("batches/s", "multiply by global_batch", sizes.batch, 0.1, False)
        found["tokens"] = Guess("tokens/s", "name the column tokens_per_s", -sizes.seq_len, 0.1)
        found["step"] = Guess(
            "the step time in s", "name the column step_time_s",
            sizes.batch - 2.0 * sizes.predicted, 0.3, swapped=True,
        )  # fmt: skip
    else:
        found["samples"] = Guess("samples/s", "name the column samples_per_s", sizes.seq_len, 0.1)
    return found


def _epoch_guesses(sizes: Sizes) -> Mapping[str, Guess]:
    n = len(sizes.batch)
    return {
        "ms": _constant(n, "ms", THOUSAND, "divide by 1000"),
        "minutes": _constant(n, "minutes", -MINUTE, "multiply by 60"),
        "hours": _constant(n, "hours", -HOUR, "multiply by 3600"),
        "step": Guess("the time of a step", "name the column step_time_s", -sizes.epoch_steps, 0.2),
    }


_EACH_SIDE = 4
_FEW = 3
LARGE_GROUP = 10


@dataclass(frozen=True)
class Kin:
    """m rows, grouped and ordered so that neighbours are alike.

    Attributes:
        group: (m,) rows of one file, workload and device share a number.
        span: (m,) and so do those of them on one device, in one node, or on several nodes: what
            physics has wrong of a link, they alone share.
        file: (m,) rows of one file share a number.
        order: (m,) rows by group, then by span, software, plan, devices and batch.
    """

    group: IntArray
    span: IntArray
    file: IntArray
    order: IntArray

    def take(self, rows: IntArray) -> Kin:
        """Return the kinship of some rows, positions (k,)."""
        place = np.empty(len(self.order), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        order = np.argsort(place[rows], kind="stable")
        return Kin(self.group[rows], self.span[rows], self.file[rows], order)


def kin_of(runs: Runs) -> Kin:
    """Return the kinship of n runs; unresolved rows are kin of one another."""
    jobs, plans = runs.jobs, runs.jobs.plans
    places = runs.table.places()
    names = _codes([w.name for w in jobs.workloads])[jobs.workload_index]
    devices = _codes([c.device.id for c in jobs.clusters])[jobs.cluster_index]
    software = _codes([f"{w.framework} {w.precision}" for w in jobs.workloads])
    count = _numbers([float(c.devices) for c in jobs.clusters])[jobs.cluster_index]
    file = places.file.astype(np.int64)
    code = (file * (int(names.max(initial=0)) + 1) + names) * (int(devices.max(initial=0)) + 1)
    _, group = np.unique(code + devices, return_inverse=True)
    nodes = _numbers([float(c.nodes) for c in jobs.clusters])[jobs.cluster_index]
    span = 3 * group.astype(np.int64) + (count > 1) + (nodes > 1)
    order = np.lexsort(
        (plans.global_batch, plans.micro_batch, count, plans.tp, plans.pp,
         software[jobs.workload_index], span)
    )  # fmt: skip
    return Kin(group.astype(np.int64), span, file, order.astype(np.int64))


def _codes(names: list[str]) -> IntArray:
    """Return each name's code from 1, and 0 at the end for a position of -1."""
    known = {name: i + 1 for i, name in enumerate(dict.fromkeys(names))}
    return np.array([known[name] for name in names] + [0], dtype=np.int64)


def _numbers(values: list[float]) -> FloatArray:
    return np.array([*values, 0.0])


def around(values: FloatArray, kin: Kin) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return (centre, spread, count) of each row's nearest siblings, the row itself left out.

    Args:
        values: (m,) finite.
        kin: of these m rows.

    Returns:
        Medians (m,), 1.4826 x median absolute deviations (m,), and how many siblings spoke. Where
        they are fewer than three the centre is the median of the file's other rows, and 0 (physics)
        where these are fewer than three too; spread is NaN in both.
    """
    order, n = kin.order, len(values)
    offsets = np.concatenate([np.arange(-_EACH_SIDE, 0), np.arange(1, _EACH_SIDE + 1)])
    places = np.arange(n)[:, None] + offsets
    inside = (places >= 0) & (places < n)
    places = np.clip(places, 0, max(n - 1, 0))
    sorted_values = values[order]
    alike, closer = (
        inside & (c[places] == c[:, None]) for c in (kin.group[order], kin.span[order])
    )
    alike = np.where((closer.sum(axis=1) >= _FEW)[:, None], closer, alike)
    near = np.where(alike, sorted_values[places], np.nan)
    count = alike.sum(axis=1)
    enough = count >= _FEW
    # A file of a few rows has no centre of its own: physics stands.
    several = np.bincount(kin.file)[kin.file] > _FEW
    middle = np.where(several, medians(values, kin.file), 0.0)[order]
    width = np.full(n, np.nan)
    middle[enough] = np.nanmedian(near[enough], axis=1)
    width[enough] = 1.4826 * np.nanmedian(np.abs(near[enough] - middle[enough, None]), axis=1)
    centre, spread, counts = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    centre[order], spread[order], counts[order] = middle, width, count
    return centre, spread, counts


def medians(values: FloatArray, member: IntArray) -> FloatArray:
    """Return the median over each row's group, (m,)."""
    order = np.lexsort((values, member))
    counts = np.bincount(member)
    start = np.cumsum(counts) - counts
    low, high = start + np.maximum(counts - 1, 0) // 2, start + counts // 2
    ordered = np.append(values[order], np.nan)
    return np.asarray((ordered[low] + ordered[high])[member] / 2.0)


def tails(values: FloatArray, kin: Kin, chosen: BoolArray, share: float = 0.98) -> FloatArray:
    """Return how far out the chosen rows of each row's group reach, (m,), but for the last few.

    values: (m,) from 0 upward. 0 where no row is chosen.
    """

    def reach(member: IntArray) -> FloatArray:
        rows = np.flatnonzero(chosen)
        order = rows[np.lexsort((values[rows], member[rows]))]
        counts = np.bincount(member[rows], minlength=int(member.max(initial=0)) + 1)
        last = np.cumsum(counts) - counts + np.ceil(share * (counts - 1)).astype(np.int64)
        ordered = np.append(values[order], 0.0)
        return np.where(counts > 0, ordered[np.clip(last, 0, len(rows))], 0.0)[member]

    return np.where(_big(kin), reach(kin.group), reach(kin.file))


def scale(apart: FloatArray, kin: Kin) -> FloatArray:
    """Return how far rows usually stand apart, (m,): in the row's group, or its file if it is small.

    1.4826 x the median absolute value, so that a good part of the rows may be wrong.
    """
    size = np.abs(apart)
    return 1.4826 * np.where(_big(kin), medians(size, kin.group), medians(size, kin.file))


def own_doubt(log_ratio: FloatArray, bands: FloatArray, kin: Kin) -> FloatArray:
    """Return the log by which a row's band reaches towards it beyond the usual of its file, (m,).

    bands: (2, m) logs by which p05 lies below the median, and p95 above it.
    """
    beyond = [np.maximum(band - medians(band, kin.file), 0.0) for band in bands]
    return np.asarray(np.where(log_ratio < 0, *beyond))


def _big(kin: Kin) -> BoolArray:
    return np.asarray(np.bincount(kin.group)[kin.group] >= LARGE_GROUP)


FAR = np.log(8.0)  # physics without a run is rarely so far off
LOOSE = np.log(6.0)  # how well a unit must explain a value against physics alone
LARGE = np.log(30.0)  # a factor that no honest row reaches but by a rare misfortune
NOISE = 0.02  # log spread that even repeats have
CLOSE_SIBLINGS = 5
WHOLE_SHARE = 0.8
MOSTLY = 0.6


def whole_shift(
    log_ratio: FloatArray, factors: FloatArray, reading: ImpliedStep, kin: Kin, tied: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """Return the log factor (m,) by which a file's whole column is off by a middling guess.

    And whether it stays in doubt: with one number of devices (say) throughout, a slow program
    looks the same.
    """
    shift, doubtful = np.zeros(len(log_ratio)), np.zeros(len(log_ratio), dtype=bool)
    for file in np.unique(kin.file):
        rows = np.flatnonzero((kin.file == file) & ~tied)
        ratio = log_ratio[rows]
        if len(rows) < CLOSE_SIBLINGS:
            continue
        off, width = np.median(np.abs(ratio)), _spread(ratio)
        best = _best_for_all(ratio, factors[:, rows])
        # A clear guess each row tells by itself, but for swapped columns whose rows differ little.
        if best < 0 or (reading.guesses[best].clear and not reading.guesses[best].swapped):
            continue
        factor = np.nan_to_num(factors[best, rows])
        varied = bool(factor.std() > 0.3)
        if not varied and np.median(np.abs(factor)) >= LARGE:  # each row tells that by itself
            continue
        gain = _spread(ratio - factor) / max(width, NOISE)
        if (varied and gain < 0.6) or (not varied and off > np.log(3.0)):
            plain = off > np.log(4.0) and np.median(np.abs(ratio - factor)) < off / 5
            shift[rows], doubtful[rows] = factor, not (varied and (gain < 0.4 or plain))
    return shift, doubtful


def _best_for_all(ratio: FloatArray, factors: FloatArray) -> int:
    """Return the guess that explains nearly all rows of a column, and twice as well as none; or -1.

    A guess that takes nearly all of the rows' spread away counts too, whatever physics' bias: the
    rows differ then just as the guess has it.
    """
    best, least = -1, float(np.median(np.abs(ratio))) / 2
    spread = _spread(ratio)
    for g, factor in enumerate(factors):
        left = np.abs(ratio - factor)
        told = np.abs(factor) > np.log(1.5)
        if np.isnan(left).mean() > 0.2 or not told.any():
            continue
        off = float(np.nanmedian(left))
        if off < least and (left < np.abs(ratio))[told].mean() >= WHOLE_SHARE:
            best, least = g, off
        after = _spread(np.where(np.isnan(factor), ratio, ratio - factor))
        if after < 0.25 * spread and off < np.log(2.5) and best < 0:
            best = g
    return best


def by_two_kinds(
    log_ratio: FloatArray, factors: FloatArray, reading: ImpliedStep, kin: Kin
) -> FloatArray:
    """Return the ratios with one of two kinds of rows brought back, where a file holds two.

    About half of its rows stand at a middling guess, the others where they should, few between.
    """
    result = log_ratio.copy()
    for file in np.unique(kin.file):
        here = kin.file == file
        for g, guess in enumerate(reading.guesses):
            rows = np.flatnonzero(here & (np.abs(np.nan_to_num(factors[g])) > np.log(3.0)))
            if guess.clear or len(rows) < LARGE_GROUP:
                continue
            ratio, factor = result[rows], factors[g, rows]
            moved = np.where(np.abs(ratio - factor) < np.abs(ratio), ratio - factor, ratio)
            between = np.abs(ratio / factor - 0.5) < 1.0 / 6.0
            if between.mean() < 0.05 and _spread(moved) < 0.4 * _spread(ratio):
                result[rows] = moved
    return result


def folded(log_ratio: FloatArray, factors: FloatArray, swapped: BoolArray, kin: Kin) -> FloatArray:
    """Return the ratios with those that physics alone finds in another unit brought back.

    Physics less the bias that most of a row's group share, where most of them lie near physics: a
    forecast that is three times off throughout then makes no honest row look eight times slow.
    """
    bias = _common_bias(log_ratio, kin)
    moved, factors = log_ratio - bias, factors - 2.0 * np.where(swapped[:, None], bias, 0.0)
    distance = np.nan_to_num(np.abs(moved - factors), nan=np.inf)
    best = np.argmin(distance, axis=0)
    chosen = (best, np.arange(len(best)))
    far = (np.abs(moved) > FAR) & (distance[chosen] < LOOSE)
    left = moved - np.where(far, factors[chosen], 0.0)
    return bias + np.where(far & swapped[best], -left, left)


def _common_bias(log_ratio: FloatArray, kin: Kin) -> FloatArray:
    """Return the median log ratio of each row's group, or else of its file, (m,).

    0 where many rows of the file are far off, and the file's where many of a group are: what they
    share may be a unit.
    """
    bias = np.zeros(len(log_ratio))
    large = np.bincount(kin.group)[kin.group] >= LARGE_GROUP
    trusted = np.ones(len(log_ratio), dtype=bool)
    for member, use in ((kin.file, trusted), (kin.group, large)):
        near = np.abs(log_ratio - bias) < FAR
        share = np.bincount(member, near)[member] / np.bincount(member)[member]
        trusted = trusted & use & (share > MOSTLY)
        bias = np.where(trusted, medians(log_ratio, member), bias)
    return bias


def like_the_rest(
    guess: IntArray, sure: BoolArray, apart: FloatArray, factors: FloatArray, kin: Kin
) -> IntArray:
    """Return the guess (m,) of rows that are as nearly all of their file are, -1 for the others.

    Where four fifths of a column are surely in one unit, the rest is too, unless it fits better as
    it stands.
    """
    like = np.full(len(guess), -1, dtype=np.int64)
    total = np.bincount(kin.file)
    for g in np.unique(guess[sure]):
        if g >= len(factors):
            continue
        ours = np.bincount(kin.file, sure & (guess == g), minlength=len(total))
        nearly_all = ((ours >= WHOLE_SHARE * total) & (total >= CLOSE_SIBLINGS))[kin.file]
        nearer = np.abs(apart - factors[g]) < np.abs(apart)
        like = np.where(nearly_all & nearer & (guess < 0), g, like)
    return like


def _spread(values: FloatArray) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def position_of(shift: FloatArray, factors: FloatArray) -> IntArray:
    """Return which guess a shift is, (m,)."""
    gap = np.abs(factors - shift)
    return np.asarray(np.argmin(np.nan_to_num(gap, nan=np.inf), axis=0))


WINDOW = np.log(2.5)  # how well a unit must explain a value, beside siblings
ABSURD, NEAR_ABSURD = (
    np.log(150.0),
    np.log(12.0),
)  # no program is so slow, and how near is near then
MANY_SPREADS, SURE_SPREADS = 5.0, 8.0
# How many times likelier than an honest row of heavy tails a unit must be: to be said, to leave out.
LIKELIER, FAR_LIKELIER = 5.0, 20.0


@dataclass(frozen=True)
class Verdicts:
    """What is wrong with the units of a reading's m rows.

    Attributes:
        guess: (m,) position among the guesses, -1 where the unit is as it should be, and their
            number where none explains a value that cannot be.
        sure: (m,) whether it is beyond doubt.
        centre: (m,) log by which siblings (or else physics) expect the value off physics.
    """

    guess: IntArray
    sure: BoolArray
    centre: FloatArray


def judged(
    log_ratio: FloatArray,
    factors: FloatArray,
    reading: ImpliedStep,
    kin: Kin,
    ties: IntArray,
    doubt: FloatArray,
) -> Verdicts:
    """Return the verdicts on m rows.

    Args:
        log_ratio: (m,) log of the implied over the forecast value.
        factors: (g, m) log factors of the guesses, NaN where one cannot be.
        reading: whose guesses these are.
        kin: of the m rows.
        ties: (m,) how many other measured columns of the row say the same.
        doubt: (m,) log by which the forecast's own band reaches further towards the row than such
            bands usually do.
    """
    tied = ties > 0
    shift, doubtful = whole_shift(log_ratio, factors, reading, kin, tied)
    moved = log_ratio - shift
    swapped = np.array([g.swapped for g in reading.guesses])
    honest = by_two_kinds(folded(moved, factors, swapped, kin), factors, reading, kin)
    # What the first look finds wrong is brought back too, so that the second sees sharper.
    for _ in range(2):
        centre, spread, count = around(honest, kin)
        look = _look(moved, centre, factors, reading)
        usual = scale(honest - centre, kin)
        absurd = np.abs(look.apart) > ABSURD
        window = np.where(absurd & look.clear, NEAR_ABSURD, WINDOW)
        large = (look.size >= LARGE) & (look.error < window)
        middling = _middling(look, usual, spread, count) & (shift == 0)
        # Two columns that were swapped agree all the same, three no longer.
        free = np.where(look.swapped, ties < 2, ~tied | (large & look.clear))
        odds = _log_odds(look, _width(usual, spread), doubt)
        likely = odds > np.log(LIKELIER)
        accepted = _stand_alone(look, (large | middling) & free & likely, kin, usual)
        honest = np.where(accepted, look.mended, honest)
    whole = (shift != 0) & (np.abs(look.apart) < np.abs(look.apart + shift)) & ~accepted
    certain = odds > np.log(FAR_LIKELIER)
    sure = accepted & certain & _beyond_doubt(look, large, usual, spread, count)
    guess = np.where(accepted, look.best, -1)
    guess, sure = (
        np.where(whole, position_of(shift, factors), guess),
        np.where(whole, ~doubtful, sure),
    )
    like = like_the_rest(guess, sure, look.apart, look.factors, kin)
    guess, sure = np.where(like >= 0, like, guess), sure | (like >= 0)
    # What most rows of a table share is a forecast that is off, no fault of one row.
    lost = (guess < 0) & (absurd | (np.abs(log_ratio - _common_bias(log_ratio, kin)) > ABSURD))
    return Verdicts(np.where(lost, len(factors), guess), sure | lost, centre)


@dataclass(frozen=True)
class _Look:
    """m rows beside their siblings, each with the guess that explains it best.

    Attributes:
        apart: (m,) log by which a row stands apart. factors: (g, m) where each guess would be.
        best: (m,) the nearest guess; clear, swapped: what it says of itself.
        size, error: (m,) of its log factor, and how far the row is from it.
        mended: (m,) the log ratio that the row would have in its column's unit.
    """

    apart: FloatArray
    factors: FloatArray
    best: IntArray
    clear: BoolArray
    swapped: BoolArray
    size: FloatArray
    error: FloatArray
    mended: FloatArray


def _look(
    moved: FloatArray, centre: FloatArray, factors: FloatArray, reading: ImpliedStep
) -> _Look:
    apart = moved - centre
    # What is swapped turns the bias round, and so is off by it twice.
    swapped = np.array([g.swapped for g in reading.guesses])
    factors = factors - 2.0 * np.where(swapped[:, None], centre, 0.0)
    reluctance = np.array([g.reluctance for g in reading.guesses])
    distance = np.nan_to_num(np.abs(apart - factors) + reluctance[:, None], nan=np.inf)
    best = np.argmin(distance, axis=0)
    chosen = (best, np.arange(len(best)))
    error = distance[chosen]
    factor = np.where(np.isfinite(error), factors[chosen], 0.0)
    left = apart - factor
    mended = centre + np.where(swapped[best], -left, left)
    clear = np.array([g.clear for g in reading.guesses])[best]
    return _Look(apart, factors, best, clear, swapped[best], np.abs(factor), error, mended)


def _width(usual: FloatArray, spread: FloatArray) -> FloatArray:
    """Return how far an honest row may stand apart, (m,): as rows usually do, more where siblings do."""
    near = np.where(np.isnan(spread), usual, spread / 2.0)
    return np.asarray(np.maximum(usual, near) + NOISE)


def _log_odds(look: _Look, width: FloatArray, doubt: FloatArray) -> FloatArray:
    """Return the log by which a guess makes a row likelier than its siblings' tails do, (m,).

    Siblings are taken to spread as Student's t of two degrees of freedom, whose tails are those of
    a cluster in trouble. What the forecast says of its own doubt, a row stands apart less.
    """
    apart = np.maximum(np.abs(look.apart) - doubt, 0.0)
    honest, mistaken = ((d / width) ** 2 / 2.0 for d in (apart, np.minimum(look.error, apart)))
    return np.asarray(1.5 * (np.log1p(honest) - np.log1p(mistaken)))


def _middling(look: _Look, usual: FloatArray, spread: FloatArray, count: IntArray) -> BoolArray:
    """Return which rows stand apart from close siblings by a factor below `LARGE`, (m,)."""
    explained = look.error < np.minimum(WINDOW, look.size / 3.0)
    outside = np.abs(look.apart) > np.maximum(MANY_SPREADS * _width(usual, spread), np.log(1.5))
    compared = (count >= CLOSE_SIBLINGS) | (look.size >= np.log(4.0))
    return np.asarray((look.size < LARGE) & explained & outside & compared)


def _beyond_doubt(
    look: _Look, large: BoolArray, usual: FloatArray, spread: FloatArray, count: IntArray
) -> BoolArray:
    # Sixty times too slow is what a bad network does too: without siblings it stays a doubt.
    alone = (count < 3) & (look.apart > 0) & (look.size < np.log(100.0))
    proven = large & ((look.clear & ~alone) | (count >= 3))
    far = np.maximum(SURE_SPREADS * _width(usual, spread), np.log(3.0))
    return np.asarray(proven | (~large & (np.abs(look.apart) > far)))


def _stand_alone(look: _Look, accepted: BoolArray, kin: Kin, usual: FloatArray) -> BoolArray:
    """Return which rows stand by themselves, and are not the end of a tail, (m,).

    Those that no clear factor explains, or a small one of swapped columns, must lie beyond the tail
    of their group. And fewer rows may lie on the way to a guess than at it, counted among rows whose
    factor is of the same size: of the row's own group where that is large, else of its file.
    """
    slow = look.apart > 0
    beyond = [tails(np.maximum(sign * look.apart, 0.0), kin, ~accepted) for sign in (1.0, -1.0)]
    plain = look.clear & ~(look.swapped & (look.size < LARGE))
    result = accepted & (plain | (np.abs(look.apart) > np.where(slow, beyond[0], beyond[1])))
    big = np.bincount(kin.group)[kin.group] >= LARGE_GROUP
    for g in np.unique(look.best[accepted]):
        mine = accepted & (look.best == g)
        factor = np.nan_to_num(look.factors[g])
        size, reach = np.abs(factor), look.apart * np.sign(factor)
        width = np.minimum(WINDOW, size / 3.0)
        inner = np.maximum(np.maximum(size - 3.0 * width, 0.4 * size), 4.0 * usual)
        between = (reach >= inner) & (reach < size - width) & ~mine
        step = np.round(size / np.log(2.0)).astype(np.int64)
        for member, use in ((kin.group, big), (kin.file, ~big)):
            _, alike = np.unique(member * (int(step.max()) + 1) + step, return_inverse=True)
            there, way = np.bincount(alike, mine), np.bincount(alike, between)
            result &= ~(mine & use) | (way <= there)[alike]
    return np.asarray(result & ~_ends_slow_tail(look, accepted, kin, usual))


def _ends_slow_tail(look: _Look, accepted: BoolArray, kin: Kin, usual: FloatArray) -> BoolArray:
    """Return which accepted slow rows more honest rows come near than share their guess, (m,).

    Honest rows come near where they stand half as far out or more, whatever unit would explain
    them: of the row's own group where that is large, else of its file.
    """
    slow, result = np.maximum(look.apart, 0.0), np.zeros(len(accepted), dtype=bool)
    apart_from = float(slow.max(initial=0.0)) + 1.0  # keeps groups apart in one sorted array
    for member, use in ((kin.group, _big(kin)), (kin.file, ~_big(kin))):
        key = np.sort((member * apart_from + slow)[~accepted & (slow > 4.0 * usual)])
        ends = np.searchsorted(key, (member + 1) * apart_from)
        near = ends - np.searchsorted(key, member * apart_from + slow / 2.0, side="right")
        _, guess = np.unique(member * (len(look.factors) + 1) + look.best, return_inverse=True)
        result |= use & accepted & (slow > 0) & (near > np.bincount(guess, accepted)[guess])
    return result
