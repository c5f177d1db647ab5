"""Scoring: facts beside answers, row by row, summed up to one Score; arrays in, numbers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, ColumnRows, FloatArray, IntArray, group_medians
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.objective import Objective
from forerun.domain.plan import NAMES
from forerun.evaluate.evaluation import Score
from forerun.evaluate.splits import SLOWER
from forerun.tables import Runs, Table
from forerun.tables.jobs import row_step_samples
from forerun.tables.measured import MeasuredTimes, measured_seconds, samples_to_target
from forerun.units import SECONDS_PER_HOUR

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
# Columns of forecasts that are judged.
ANSWERED = ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance", "declined")


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
    """Return the median of log(forecast / measured)."""
    return quantile(np.log(forecast / measured), 0.5)


def band_widths(seconds: FloatArray) -> FloatArray:
    """Return the ratio of the 95 % to the 5 % quantile of rows (n, 3), (n,)."""
    return np.asarray(seconds[:, 2] / seconds[:, 0])


def inside(seconds: FloatArray, measured: FloatArray) -> BoolArray:
    """Return which measured values (n,) lie in the 5-95 % band of their row (n, 3)."""
    return (measured >= seconds[:, 0]) & (measured <= seconds[:, 2])


def share_interval(hits: int, rows: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the 95 % interval of a share that `hits` of `rows` support (Wilson 1927, score interval)."""
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

    `groups` are jobs of which two plans were measured and one ran, `picked` those where the forecasts
    named a plan, `crashed` those where a draw of the tied plans ran out of memory or failed. The
    figures are over the picks that ran, NaN where none did.
    """

    groups: int = 0
    picked: int = 0
    crashed: int = 0
    median: float = NAN
    mean: float = NAN
    worst: float = NAN


def comparable_groups(runs: Runs) -> tuple[IntArray, IntArray]:
    """Return each row's job and each row's plan within the table, as numbers, (n,) each."""
    plans = Table({name: getattr(runs.jobs.plans, name) for name in NAMES}, len(runs))
    return runs.table.groups(SAME_JOB)[1], plans.groups(NAMES)[1]


def regret(
    job: IntArray, plan: IntArray, forecast: FloatArray, fit_probability: FloatArray,
    measured: FloatArray, crashed: BoolArray, rng: np.random.Generator,
) -> Regret:  # fmt: skip
    """Return the regret of picking, in each job, the plan with the least forecast time over P(fits).

    As in `forerun recommend`, one that fits with less than `FIT_CONFIDENCE` is not picked. Ties are
    broken at random, `DRAWS` times over. Repeats of a plan count as one plan with the median time.
    Columns are (n,), job and plan from `comparable_groups`, NaN where not answered or measured.
    """
    rows = np.flatnonzero(crashed | ~np.isnan(measured))
    code = job[rows] * (int(plan.max(initial=0)) + 1) + plan[rows]
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    ran, first = ~np.isnan(measured[rows]), rows[first]
    seconds = np.mean(group_medians(measured[rows][ran], index[ran], len(first)), axis=0)
    fits = np.where(np.isnan(fit_probability[first]), 1.0, fit_probability[first])
    allowed = ~np.isnan(forecast[first]) & (fits >= FIT_CONFIDENCE)
    forecasts = np.where(allowed, forecast[first] / np.maximum(fits, FIT_CONFIDENCE), np.inf)
    groups, costs = 0, []
    jobs = np.unique(job[first], return_index=True)[1]
    for plans in np.split(np.arange(len(first)), jobs[1:]):
        best = np.fmin.reduce(seconds[plans], initial=np.inf)
        if len(plans) < 2 or not np.isfinite(best):
            continue
        groups += 1
        tied = plans[forecasts[plans] <= forecasts[plans].min() * (1 + 1e-12)]
        if allowed[tied].all():
            chosen = rng.choice(tied, DRAWS) if len(tied) > 1 else np.repeat(tied, DRAWS)
            costs.append(seconds[chosen] / best - 1.0)
    draws = np.reshape(costs, (-1, DRAWS))
    values = draws[~np.isnan(draws)]
    return Regret(
        groups, len(draws), int(np.isnan(draws).any(axis=1).sum()),
        quantile(values, 0.5), mean(values), quantile(values, 1.0),
    )  # fmt: skip


def kendall_tau(
    forecast: FloatArray, measured: FloatArray, groups: IntArray | None = None
) -> float:
    """Return tau-b over the pairs within each group; NaN where no pair is ordered on both sides.

    tau-b = (C - D) / sqrt((P - Tx)(P - Ty)) with C, D the concordant and discordant pairs, P all
    pairs and Tx, Ty the pairs tied in either; each is summed over the groups (None is one group).
    Source: Kendall 1945.
    """
    from scipy.stats import kendalltau

    n = len(forecast)
    labels = np.zeros(n, dtype=np.int64) if groups is None else groups
    # Ranked by group first, every pair of two groups is in the same order on both sides.
    x, y = (_ranks(labels, values) for values in (forecast, measured))
    everywhere = n * (n - 1) / 2
    across = everywhere - _equal_pairs(labels)
    free_x, free_y = everywhere - _equal_pairs(x), everywhere - _equal_pairs(y)
    scale = np.sqrt((free_x - across) * (free_y - across))
    if not scale:
        return NAN
    tau = kendalltau(x, y).statistic
    return float((np.rint(tau * np.sqrt(free_x * free_y)) - across) / scale)


def _ranks(labels: IntArray, values: FloatArray) -> IntArray:
    """Return the rank of each row by label and then by value, ties sharing one, (n,)."""
    order = np.lexsort((values, labels))
    rows = np.stack([labels[order], values[order]])
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.cumsum(np.any(np.diff(rows, prepend=np.nan) != 0, axis=0))
    return ranks


def _equal_pairs(codes: IntArray) -> float:
    counts = np.unique(codes, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1) / 2).sum())


@dataclass(frozen=True)
class Sheet(ColumnRows):
    """Judged rows of one or more tables: what was measured and what one predictor answered.

    Columns are (n,), quantiles (n, 3). `samples` are those until the target. `clamped` forecasts were raised to their floor; `timed` rows have
    a time in the answer's quantity, `anytime` in any; `dollars` were measured of whole runs and `price` is dollars a second; `bound` is the lower bound of stopped rows;
    `watched` rows are of a table in which some ran out of memory; `batch` is the samples of a step, 1 of
    another quantity; table, workload, job and plan number the groups for rank and choice.
    """

    seconds: FloatArray
    peak_bytes: FloatArray
    floor_seconds: FloatArray
    fit_probability: FloatArray
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
    samples: FloatArray
    samples_measured: FloatArray
    dollars: FloatArray
    price: FloatArray
    table: IntArray
    workload: IntArray
    job: IntArray
    plan: IntArray


def sheet(
    runs: Runs, answers: Forecasts, quantity: IntArray, clamped: BoolArray, slower: BoolArray
) -> Sheet:
    """Return all rows of a table beside their answers; slower: (n,) rows whose times are not judged."""
    each = [measured_seconds(runs, name) for name in QUANTITIES]
    rows = np.arange(len(runs))
    facts = MeasuredTimes(
        *(np.stack(c)[quantity, rows] for c in zip(*(vars(m).values() for m in each), strict=True))
    )
    timed = facts.comparable & ~slower
    job, plan = comparable_groups(runs)
    batch = np.where(quantity == STEP, row_step_samples(runs.table), 1.0)
    stopped = facts.censored & (quantity == RUN)
    stated = runs.table.numbers("price_usd_per_hour")
    usual = runs.jobs.per_cluster("dollars_per_hour", np.nan) * runs.jobs.machines_paid
    price = np.where(np.isnan(stated), usual, stated) / SECONDS_PER_HOUR
    dollars = runs.table.numbers("cost_usd")
    dollars = np.where(np.isnan(dollars), facts.seconds * stated / SECONDS_PER_HOUR, dollars)
    target = answers.samples_to_target
    apart = len(QUANTITIES)  # ranks and choices are among times of one quantity
    return Sheet(
        **{name: getattr(answers, name) for name in ANSWERED}, clamped=clamped,
        measured=facts.seconds, timed=timed,
        anytime=np.any([one.comparable for one in each], axis=0) & ~slower, quantity=quantity,
        reason=np.where(facts.comparable & ~timed, SLOWER, facts.reason),
        bound=np.where(stopped, runs.table.numbers("time_to_train_s"), np.nan), status=runs.status,
        memory_bytes=runs.table.numbers("memory_gb") * MEMORY_UNIT,
        watched=np.full(len(runs), bool((runs.status == "oom").any())),
        batch=np.where(np.isnan(batch), 1.0, batch),
        samples=np.full((len(runs), 3), np.nan) if target is None else target,
        samples_measured=samples_to_target(runs),
        dollars=np.where(timed & (quantity == RUN), dollars, np.nan), price=price, table=quantity,
        workload=runs.table.groups(("workload",))[1] * apart + quantity, job=job * apart + quantity,
        plan=plan,
    )  # fmt: skip


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
    floors, seconds = rows.floor_seconds * (1 - 1e-9), rows.seconds
    oom = _detection(rows, ("oom",), impossible=False)
    refused = _detection(rows, UNFINISHED, impossible=True)
    peaked = ~np.isnan(rows.peak_bytes[:, 1]) & (rows.memory_bytes > 0)
    memory = absolute_percentage_errors(rows.peak_bytes[peaked, 1], rows.memory_bytes[peaked])
    counted = rows.samples_measured > 0
    said = counted & np.isfinite(rows.samples[:, 1])
    until, reached = rows.samples[said], rows.samples_measured[said]
    paid = rows.dollars > 0
    priced = paid & answered & (rows.price > 0)
    cost, spent = seconds[priced, 1] * rows.price[priced], rows.dollars[priced]
    choice = regret(
        rows.job, rows.plan, np.where(answered, seconds[:, 1], np.nan), rows.fit_probability,
        rows.measured, np.isin(rows.status, UNFINISHED), np.random.default_rng(seed),
    )  # fmt: skip
    stopped = ~np.isnan(rows.bound) & answered
    # One-sided: above the bound nothing is known to be wrong.
    lacking = shortfalls(seconds[stopped, 1], rows.bound[stopped])
    spoken = np.bincount(rows.quantity[both], minlength=len(QUANTITIES)).tolist()
    named: dict[str, Any] = {f"oom_{name}": value for name, value in oom._asdict().items()}
    named |= {f"regret_{name}": value for name, value in choice._asdict().items()}
    return Score(
        predictor=predictor, table=table, group=group, rows=len(rows),
        comparable=int(rows.timed.sum()), answered=int(both.sum()),
        censored=int((rows.status == "timeout").sum()),
        censored_below=int((seconds[stopped, 2] < rows.bound[stopped]).sum()), mape=mean(errors),
        median_ape=quantile(errors, 0.5), p90_ape=quantile(errors, 0.9),
        bias_log_ratio=bias(forecast[:, 1], measured),
        tau=kendall_tau(each, fact, rows.workload[both]),
        tau_plans=kendall_tau(each, fact, rows.job[both]),
        tau_overall=kendall_tau(each, fact, rows.table[both]),
        coverage=hits / len(measured) if len(measured) else NAN, coverage_low=low,
        coverage_high=high, width=quantile(widths, 0.5), width_mean=mean(widths),
        floor_violations=int((answered & (seconds[:, 0] < floors)).sum()),
        floor_clamped=int((answered & rows.clamped).sum()),
        suspicious=int((rows.timed & (rows.measured < floors)).sum()), silent=int(silent.sum()),
        refused_rows=refused.rows, refused_f1=refused.f1, memory_rows=len(memory),
        memory_median_ape=quantile(memory, 0.5), samples_rows=int(counted.sum()),
        samples_answered=len(reached),
        samples_median_ape=quantile(absolute_percentage_errors(until[:, 1], reached), 0.5),
        samples_coverage=mean(inside(until, reached).astype(np.float64)), cost_rows=int(paid.sum()),
        cost_answered=len(spent),
        cost_median_ape=quantile(absolute_percentage_errors(cost, spent), 0.5),
        cost_tau=kendall_tau(cost, spent, rows.table[priced]),
        declined=dict(declined.most_common()),
        not_comparable=dict(Counter(rows.reason[~is_none(rows.reason)].tolist()).most_common()),
        timed_rows=int(rows.anytime.sum()),
        quantities={name: n for name, n in zip(QUANTITIES, spoken, strict=True) if n},
        censored_answered=len(lacking), censored_short=int((lacking > 0).sum()),
        censored_mape=mean(lacking), censored_short_ape=quantile(lacking[lacking > 0], 0.5),
        **named,
    )  # fmt: skip


def _detection(rows: Sheet, ends: Sequence[str], impossible: bool) -> Detection:
    """Return how well such ends were foreseen; a plan declined as impossible is no memory foreseen."""
    happened = np.isin(rows.status.astype(str), ends)
    stated = ~np.isnan(rows.fit_probability) & (is_none(rows.declined) | impossible)
    use = rows.watched & (happened | (rows.status == "ok")) & stated
    return detection(rows.fit_probability[use] < 0.5, happened[use])
