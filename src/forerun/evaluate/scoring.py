"""Scoring: facts beside answers, row by row, summed up to one Score; arrays in, numbers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.objective import Objective
from forerun.domain.plan import NAMES
from forerun.evaluate.evaluation import Score
from forerun.evaluate.splits import SLOWER
from forerun.tables import Runs
from forerun.tables.measured import Measured, measured_seconds

NAN = float("nan")
DRAWS = 20  # of each tie
FIT_CONFIDENCE = Objective().fit_confidence
SILENT = "no answer and no reason: a defect of the predictor"
STEP, RUN = QUANTITIES.index("step"), QUANTITIES.index("run")
UNFINISHED = ("oom", "failed")
MEMORY_UNIT = 1e9  # bytes in the table's GB
# Edges of the bins of distance: 0 is beside a measured run, 1 is physics with nothing measured.
DISTANCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
# Rows that agree in these differ only in their plan (or in nothing: then they are repeats).
SAME_JOB = (
    "source", "workload", "framework", "precision", "dataset", "seq_len", "image_size", "task",
    "device", "instance_type", "cluster", "interconnect", "nodes", "devices", "placement",
    "global_batch",
)  # fmt: skip
_GROUPS = ("table", "workload", "job", "plan")
_BLOCK = 64  # up to here counting all pairs at once is faster than merging


def absolute_percentage_errors(forecast: FloatArray, measured: FloatArray) -> FloatArray:
    """Return 100 |forecast - measured| / measured, (n,)."""
    return 100.0 * np.abs(forecast - measured) / measured


def shortfalls(forecast: FloatArray, bound: FloatArray) -> FloatArray:
    """Return 100 (bound - forecast) / bound where a forecast is below its lower bound, else 0, (n,)."""
    return 100.0 * np.maximum(bound - forecast, 0.0) / bound


def mean(values: FloatArray) -> float:
    """Return the mean, NaN of nothing."""
    return float(values.mean()) if len(values) else NAN


def quantile(values: FloatArray, level: float) -> float:
    """Return a quantile, NaN of nothing."""
    return float(np.quantile(values, level)) if len(values) else NAN


def bias(forecast: FloatArray, measured: FloatArray) -> float:
    """Return the median of log(forecast / measured): below zero where forecasts are too low."""
    return quantile(np.log(forecast / measured), 0.5)


def band_widths(seconds: FloatArray) -> FloatArray:
    """Return the ratio of the 95 % to the 5 % quantile of rows (n, 3), (n,)."""
    return np.asarray(seconds[:, 2] / seconds[:, 0])


def inside(seconds: FloatArray, measured: FloatArray) -> BoolArray:
    """Return which measured values (n,) lie in the 5-95 % band of their row (n, 3)."""
    return (measured >= seconds[:, 0]) & (measured <= seconds[:, 2])


def share_interval(hits: int, rows: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the interval of a share that `hits` of `rows` support (95 % unless z is given).

    Source: Wilson 1927, score interval.
    """
    if rows == 0:
        return NAN, NAN
    p = hits / rows
    middle = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * np.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


class Detection(NamedTuple):
    """How well out-of-memory was foreseen: positives are the runs that ran out."""

    rows: int
    happened: int
    precision: float
    recall: float
    f1: float


def detection(foreseen: BoolArray, happened: BoolArray) -> Detection:
    """Return precision, recall and F1 of foreseen against happened, both (n,)."""
    hits = int((foreseen & happened).sum())
    named, real = int(foreseen.sum()), int(happened.sum())
    precision = hits / named if named else NAN
    recall = hits / real if real else NAN
    # With nothing named and nothing real there is nothing to score; with one of them F1 is 0.
    f1 = 2 * hits / (named + real) if named + real else NAN
    return Detection(len(happened), real, precision, recall, f1)


class Regret(NamedTuple):
    """What the picks cost beyond the best measured plan, as shares (0.1 = 10 % slower).

    Attributes:
        groups: jobs with at least two measured plans, one of which ran.
        picked: groups in which the forecasts named a plan.
        crashed: jobs in which a pick ran out of memory or failed, in any draw of its ties.
        median, mean, worst: over the picks that ran, `DRAWS` draws each; NaN where none did.
    """

    groups: int = 0
    picked: int = 0
    crashed: int = 0
    median: float = NAN
    mean: float = NAN
    worst: float = NAN


def comparable_groups(runs: Runs) -> tuple[IntArray, IntArray]:
    """Return each row's job and each row's plan within the table, as numbers, (n,) each."""
    _, job = runs.table.groups(SAME_JOB)
    code = np.zeros(len(runs), dtype=np.int64)
    for name in NAMES:
        _, inverse = np.unique(getattr(runs.jobs.plans, name), return_inverse=True)
        _, code = np.unique(code * (int(inverse.max(initial=0)) + 1) + inverse, return_inverse=True)
    return job, code.astype(np.int64)


def regret(
    job: IntArray,
    plan: IntArray,
    forecast: FloatArray,
    fit_probability: FloatArray,
    measured: FloatArray,
    crashed: BoolArray,
    rng: np.random.Generator,
) -> Regret:
    """Return the regret of picking, in each job, the plan with the least forecast time.

    A plan that does not fit with `FIT_CONFIDENCE` is not picked, as in `forerun recommend`, unless
    nothing is said of its memory. Ties are broken
    at random, `DRAWS` times over: neither the order of the rows nor luck may help. Repeats of a
    plan count as one plan with the median time.

    Args:
        job, plan: (n,) from `comparable_groups`.
        forecast, fit_probability: (n,), NaN where not answered.
        measured: (n,) seconds, NaN where there is no time.
        crashed: (n,) ran out of memory or failed.
        rng: breaks ties.
    """
    rows = np.flatnonzero(crashed | ~np.isnan(measured))
    if not len(rows):
        return Regret()
    # A row of each distinct plan, sorted by job, and its median time (NaN where it never ran).
    by_time = rows[np.lexsort((measured[rows], plan[rows], job[rows]))]  # NaN comes last
    cut = np.flatnonzero(_new(job[by_time], plan[by_time]))
    ran = np.add.reduceat(~np.isnan(measured[by_time]), cut)
    # With repeats of an even number the median is the mean of the two in the middle.
    middle = cut + np.stack([np.maximum(ran - 1, 0) // 2, ran // 2])
    pair = measured[by_time[np.minimum(middle, len(by_time) - 1)]]
    seconds = np.where(ran > 0, np.mean(pair, axis=0), np.nan)
    first = rows[np.lexsort((rows, plan[rows], job[rows]))][cut]
    starts = np.flatnonzero(_new(job[first]))

    allowed = ~np.isnan(forecast[first]) & ~(fit_probability[first] < FIT_CONFIDENCE)
    forecasts = np.where(allowed, forecast[first], np.inf)
    least = np.minimum.reduceat(forecasts, starts)
    best = np.fmin.reduceat(seconds, starts)  # NaN where none ran
    size = np.diff(np.r_[starts, len(first)])
    asked = (size >= 2) & ~np.isnan(best)
    picked = asked & np.isfinite(least)
    tied = allowed & (forecasts <= np.repeat(least, size) * (1 + 1e-12)) & np.repeat(picked, size)
    costs = seconds / np.repeat(best, size) - 1.0
    # The costs picked in each draw of each job, (jobs, DRAWS), ties broken by chance.
    positions = np.flatnonzero(tied)
    begin = np.flatnonzero(_new(np.repeat(np.arange(len(size)), size)[positions]))
    counts = np.diff(np.r_[begin, len(positions)])
    chosen = np.repeat(positions[begin][:, None], DRAWS, axis=1)
    for i in np.flatnonzero(counts > 1):
        chosen[i] = rng.choice(positions[begin[i] : begin[i] + counts[i]], DRAWS)
    draws = costs[chosen]
    values = draws[~np.isnan(draws)]
    return Regret(
        int(asked.sum()), int(picked.sum()), int(np.isnan(draws).any(axis=1).sum()),
        quantile(values, 0.5), mean(values), quantile(values, 1.0),
    )  # fmt: skip


def kendall_tau(
    forecast: FloatArray, measured: FloatArray, groups: IntArray | None = None
) -> float:
    """Return tau-b over the pairs within each group; NaN where no pair is ordered on both sides.

    tau-b = (C - D) / sqrt((P - Tx)(P - Ty)) with C, D the concordant and discordant pairs, P all
    pairs and Tx, Ty the pairs tied in either; each is summed over the groups.
    Source: Kendall 1945; the count in O(n log n) is Knight 1966.

    Args:
        forecast, measured: (n,).
        groups: (n,) labels; None is one group.
    """
    n = len(forecast)
    labels = np.zeros(n, dtype=np.int64) if groups is None else groups
    order = np.lexsort((measured, forecast, labels))
    group, x, y = labels[order], forecast[order], measured[order]
    pairs = _equal_pairs(group)
    tied_x, both = _equal_pairs(group, x), _equal_pairs(group, x, y)
    by_y = np.lexsort((measured, labels))
    tied_y = _equal_pairs(labels[by_y], measured[by_y])
    # Ranks by group and then y: no pair of two groups is ever in the wrong order, and as ties in x
    # are sorted by y, an inversion is a discordant pair and nothing else.
    rank = np.empty(n, dtype=np.int64)
    rank[by_y] = np.cumsum(_new(labels[by_y], measured[by_y]))
    difference = pairs - tied_x - tied_y + both - 2 * _inversions(rank[order])[0]
    scale = np.sqrt(max(pairs - tied_x, 0.0) * max(pairs - tied_y, 0.0))
    return float(difference / scale) if scale > 0 else NAN


def _new(*columns: NDArray[Any]) -> BoolArray:
    """Return where any of the sorted columns differs from the row before, (n,)."""
    if not len(columns[0]):
        return np.zeros(0, dtype=bool)
    changed = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.concatenate([np.array([True]), changed])


def _equal_pairs(*columns: NDArray[Any]) -> float:
    """Return how many pairs of rows are equal in all of the sorted columns."""
    counts = np.diff(np.r_[np.flatnonzero(_new(*columns)), len(columns[0])])
    return float((counts * (counts - 1) / 2).sum())


def _inversions(values: IntArray) -> tuple[float, IntArray]:
    """Return pairs that stand in the wrong order, and the values sorted."""
    n = len(values)
    if n <= _BLOCK:
        wrong = np.triu(values[:, None] > values[None, :], k=1).sum()
        return float(wrong), np.sort(values)
    left_count, left = _inversions(values[: n // 2])
    right_count, right = _inversions(values[n // 2 :])
    across = len(left) - np.searchsorted(left, right, side="right")
    return left_count + right_count + float(across.sum()), np.sort(np.concatenate([left, right]))


@dataclass(frozen=True)
class Sheet:
    """Judged rows of one or more tables: what was measured and what one predictor answered.

    Attributes (n rows each):
        seconds, peak_bytes: (n, 3) forecast quantiles, NaN where there are none.
        floor, fit, distance: floor seconds, fit probability, distance from what was measured.
        clamped: forecasts that were raised to their floor.
        measured, reason: see `measured.Measured`; bound: lower bound of stopped rows.
        timed, anytime: rows judged by a time in the answer's quantity, or with one in any; a slower
            row (`slower_half`) that is not is still a plan that could have been picked.
        quantity: position in `QUANTITIES` of the one that the row is answered in.
        watched: rows of a table in which some ran out of memory; others do not publish such runs.
        batch: samples of a step (1 where the quantity is not a step), for ranking.
        table, workload, job, plan: numbers of the groups for rank and choice.
    """

    seconds: FloatArray
    peak_bytes: FloatArray
    floor: FloatArray
    fit: FloatArray
    distance: FloatArray
    clamped: BoolArray
    declined: NDArray[np.object_]
    measured: FloatArray
    timed: BoolArray
    anytime: BoolArray
    quantity: IntArray
    reason: NDArray[np.object_]
    bound: FloatArray
    status: NDArray[np.object_]
    memory_bytes: FloatArray
    watched: BoolArray
    batch: FloatArray
    table: IntArray
    workload: IntArray
    job: IntArray
    plan: IntArray

    def take(self, rows: IntArray | BoolArray) -> Sheet:
        """Return some of the rows."""
        return Sheet(**{name: values[rows] for name, values in vars(self).items()})

    def __len__(self) -> int:
        return len(self.seconds)


def sheet(
    runs: Runs, answers: Forecasts, quantity: IntArray, clamped: BoolArray, slower: BoolArray
) -> Sheet:
    """Return all rows of a table beside their answers.

    quantity: (n,) position in `QUANTITIES` of what each was answered in: folds may differ; slower:
    (n,) rows whose times are not judged.
    """
    each = [measured_seconds(runs, name) for name in QUANTITIES]
    rows = np.arange(len(runs))
    facts = Measured(*(
        np.stack([getattr(one, f.name) for one in each])[quantity, rows] for f in fields(Measured)
    ))  # fmt: skip
    timed = facts.comparable & ~slower
    job, plan = comparable_groups(runs)
    batch = np.where(quantity == STEP, runs.table.numbers("global_batch"), 1.0)
    stopped = facts.censored & (quantity == RUN)
    apart = len(QUANTITIES)  # ranks and choices are among times of one quantity
    return Sheet(
        seconds=answers.seconds,
        peak_bytes=answers.peak_bytes,
        floor=answers.floor_seconds,
        fit=answers.fit_probability,
        distance=answers.distance,
        clamped=clamped,
        declined=answers.declined,
        measured=facts.seconds,
        timed=timed,
        anytime=np.any([one.comparable for one in each], axis=0) & ~slower,
        quantity=quantity,
        reason=np.where(facts.comparable & ~timed, SLOWER, facts.reason),
        bound=np.where(stopped, runs.table.numbers("time_to_train_s"), np.nan),
        status=runs.status,
        memory_bytes=runs.table.numbers("memory_gb") * MEMORY_UNIT,
        watched=np.full(len(runs), bool((runs.status == "oom").any())),
        batch=np.where(np.isnan(batch), 1.0, batch),
        table=quantity,
        workload=runs.table.groups(("workload",))[1] * apart + quantity,
        job=job * apart + quantity,
        plan=plan,
    )


def distance_bins(rows: Sheet) -> NDArray[np.object_]:
    """Return the bin of each row's distance as text (n,), in the order of their distances."""
    edges = (0.0, *DISTANCES)
    names = [f"{low:.2f}-{high:.2f}" for low, high in zip(edges, DISTANCES, strict=False)]
    names.append(f"{DISTANCES[-1]:.2f} and more")
    return np.array(names, dtype=object)[np.searchsorted(DISTANCES, rows.distance)]


def stack(sheets: Sequence[Sheet]) -> Sheet:
    """Return the rows of all sheets; groups of different sheets stay apart."""
    parts: list[Sheet] = []
    offset = 0
    for one in sheets:
        shift = {name: getattr(one, name) + offset for name in _GROUPS}
        parts.append(Sheet(**{**vars(one), **shift}))
        offset += 1 + max((int(v.max(initial=0)) for v in shift.values()), default=0)
    return Sheet(**{
        name: np.concatenate([getattr(p, name) for p in parts]) for name in vars(parts[0])
    })  # fmt: skip


def score(rows: Sheet, predictor: str, table: str, group: str, seed: int) -> Score:
    """Return the figures of the rows."""
    answered = is_none(rows.declined)
    silent = answered & np.isnan(rows.seconds).any(axis=1)
    declined = Counter(rows.declined[~answered].tolist())
    if silent.any():
        declined[SILENT] = int(silent.sum())
    answered &= ~silent
    both = rows.timed & answered
    forecast, measured = rows.seconds[both], rows.measured[both]
    errors = absolute_percentage_errors(forecast[:, 1], measured)
    widths = band_widths(forecast)
    hits = int(inside(forecast, measured).sum())
    low, high = share_interval(hits, len(measured))
    each, fact = forecast[:, 1] / rows.batch[both], measured / rows.batch[both]
    floors, seconds = rows.floor * (1 - 1e-9), rows.seconds
    oom = _detection(rows, ("oom",), impossible=False)
    refused = _detection(rows, UNFINISHED, impossible=True)
    peaked = ~np.isnan(rows.peak_bytes[:, 1]) & (rows.memory_bytes > 0)
    memory = absolute_percentage_errors(rows.peak_bytes[peaked, 1], rows.memory_bytes[peaked])
    choice = regret(
        rows.job, rows.plan, np.where(answered, seconds[:, 1], np.nan), rows.fit, rows.measured,
        np.isin(rows.status, UNFINISHED), np.random.default_rng(seed),
    )  # fmt: skip
    stopped = ~np.isnan(rows.bound) & answered
    # One-sided: above the bound nothing is known to be wrong.
    lacking = shortfalls(seconds[stopped, 1], rows.bound[stopped])
    spoken = np.bincount(rows.quantity[both], minlength=len(QUANTITIES)).tolist()
    named: dict[str, Any] = {f"oom_{name}": value for name, value in oom._asdict().items()}
    named |= {f"regret_{name}": value for name, value in choice._asdict().items()}
    return Score(
        predictor=predictor,
        table=table,
        group=group,
        rows=len(rows),
        comparable=int(rows.timed.sum()),
        answered=int(both.sum()),
        censored=int((rows.status == "timeout").sum()),
        censored_below=int((seconds[stopped, 2] < rows.bound[stopped]).sum()),
        mape=mean(errors),
        median_ape=quantile(errors, 0.5),
        p90_ape=quantile(errors, 0.9),
        bias_log_ratio=bias(forecast[:, 1], measured),
        tau=kendall_tau(each, fact, rows.workload[both]),
        tau_plans=kendall_tau(each, fact, rows.job[both]),
        tau_overall=kendall_tau(each, fact, rows.table[both]),
        coverage=hits / len(measured) if len(measured) else NAN,
        coverage_low=low,
        coverage_high=high,
        width=quantile(widths, 0.5),
        width_mean=mean(widths),
        floor_violations=int((answered & (seconds[:, 0] < floors)).sum()),
        floor_clamped=int((answered & rows.clamped).sum()),
        suspicious=int((rows.timed & (rows.measured < floors)).sum()),
        silent=int(silent.sum()),
        refused_rows=refused.rows,
        refused_f1=refused.f1,
        memory_rows=len(memory),
        memory_median_ape=quantile(memory, 0.5),
        declined=dict(declined.most_common()),
        not_comparable=dict(Counter(rows.reason[~is_none(rows.reason)].tolist()).most_common()),
        timed_rows=int(rows.anytime.sum()),
        quantities={name: n for name, n in zip(QUANTITIES, spoken, strict=True) if n},
        censored_answered=len(lacking),
        censored_short=int((lacking > 0).sum()),
        censored_mape=mean(lacking),
        censored_short_ape=quantile(lacking[lacking > 0], 0.5),
        **named,
    )


def _detection(rows: Sheet, ends: Sequence[str], impossible: bool) -> Detection:
    """Return how well such ends of a run were foreseen, against runs that ended well.

    A plan declined as impossible is no memory that was foreseen; it is a run that was.
    """
    happened = np.isin(rows.status.astype(str), ends)
    said = ~np.isnan(rows.fit) & (is_none(rows.declined) | impossible)
    use = rows.watched & (happened | (rows.status == "ok")) & said
    return detection(rows.fit[use] < 0.5, happened[use])
