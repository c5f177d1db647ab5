"""Scoring: facts beside answers, row by row, summed up to one Score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import QUANTITIES, is_none
from forerun.evaluate import metrics
from forerun.evaluate.choice import comparable_groups, regret
from forerun.evaluate.evaluation import Score
from forerun.evaluate.filters import SLOWER
from forerun.evaluate.ranking import kendall_tau
from forerun.tables import Runs
from forerun.tables.measured import Measured, measured_seconds

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SILENT = "no answer and no reason: a defect of the predictor"
STEP, RUN = QUANTITIES.index("step"), QUANTITIES.index("run")
UNFINISHED = ("oom", "failed")
MEMORY_UNIT = 1e9  # bytes in the table's GB
# Edges of the bins of distance: 0 is beside a measured run, 1 is physics with nothing measured.
DISTANCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_GROUPS = ("table", "workload", "job", "plan")


@dataclass(frozen=True)
class Sheet:
    """Judged rows of one or more tables: what was measured and what one predictor answered.

    Attributes (n rows each):
        seconds, peak_bytes: (n, 3) forecast quantiles, NaN where there are none.
        floor, fit, distance: floor seconds, fit probability, distance from what was measured.
        clamped: forecasts that were raised to their floor.
        declined: reason or None.
        measured, reason: see `measured.Measured`; bound: lower bound of stopped rows.
        timed: rows with a measured time by which the forecast is judged; a slower row that is
            left out of that (`filters.slower_half`) is still a plan that could have been picked.
        status, memory_bytes: as measured.
        anytime: rows with a time in any quantity. quantity: position in `QUANTITIES` of the one that
            the row is answered in.
        watched: rows of a table in which some ran out of memory; elsewhere such runs were not
            published, so that there is nothing to detect.
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
    quantity: NDArray[np.int64]
    reason: NDArray[np.object_]
    bound: FloatArray
    status: NDArray[np.object_]
    memory_bytes: FloatArray
    watched: BoolArray
    batch: FloatArray
    table: NDArray[np.int64]
    workload: NDArray[np.int64]
    job: NDArray[np.int64]
    plan: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | BoolArray) -> Sheet:
        """Return some of the rows."""
        return Sheet(**{name: values[rows] for name, values in vars(self).items()})

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class Answers:
    """One predictor's answers to all rows of a table; `judged` are those that a fold asked.

    `quantity` is the position in `QUANTITIES` of what each row was answered in: folds may differ.
    """

    quantity: NDArray[np.int64]
    seconds: FloatArray
    peak_bytes: FloatArray
    floor: FloatArray
    fit: FloatArray
    distance: FloatArray
    declined: NDArray[np.object_]
    judged: BoolArray
    clamped: BoolArray


def sheet(runs: Runs, answers: Answers, slower: BoolArray | None = None) -> Sheet:
    """Return the judged rows of a table beside their answers.

    slower: (n,) rows whose times are not judged; None is none.
    """
    each = [measured_seconds(runs, quantity) for quantity in QUANTITIES]
    facts = _picked(each, answers.quantity)
    timed = facts.comparable if slower is None else facts.comparable & ~slower
    anytime = np.any([one.comparable for one in each], axis=0)
    job, plan = comparable_groups(runs)
    batch = np.where(answers.quantity == STEP, runs.table.numbers("global_batch"), 1.0)
    apart = answers.quantity  # ranks and choices are among times of one quantity
    everything = Sheet(
        seconds=answers.seconds,
        peak_bytes=answers.peak_bytes,
        floor=answers.floor,
        fit=answers.fit,
        distance=answers.distance,
        clamped=answers.clamped,
        declined=answers.declined,
        measured=facts.seconds,
        timed=timed,
        anytime=anytime if slower is None else anytime & ~slower,
        quantity=answers.quantity,
        reason=np.where(facts.comparable & ~timed, SLOWER, facts.reason),
        bound=_bounds(runs, facts, answers.quantity),
        status=runs.status,
        memory_bytes=runs.table.numbers("memory_gb") * MEMORY_UNIT,
        watched=np.full(len(runs), bool((runs.status == "oom").any())),
        batch=np.where(np.isnan(batch), 1.0, batch),
        table=apart,
        workload=runs.table.groups(("workload",))[1] * len(QUANTITIES) + apart,
        job=job * len(QUANTITIES) + apart,
        plan=plan,
    )
    return everything.take(answers.judged)


def distance_bins(rows: Sheet) -> NDArray[np.object_]:
    """Return the bin of each row's distance as text (n,), in the order of their distances."""
    edges = (0.0, *DISTANCES)
    names = [f"{low:.2f}-{high:.2f}" for low, high in zip(edges, DISTANCES, strict=False)]
    names.append(f"{DISTANCES[-1]:.2f} and more")
    return np.array(names, dtype=object)[np.searchsorted(DISTANCES, rows.distance)]


def _picked(each: Sequence[Measured], quantity: NDArray[np.int64]) -> Measured:
    """Return what was measured of each row in the quantity that it is answered in."""
    rows = np.arange(len(quantity))
    return Measured(*(
        np.stack([getattr(one, f.name) for one in each])[quantity, rows] for f in fields(Measured)
    ))  # fmt: skip


def _bounds(runs: Runs, facts: Measured, quantity: NDArray[np.int64]) -> FloatArray:
    """Return the time at which a stopped run was stopped, where the quantity is a whole run."""
    stopped = facts.censored & (quantity == RUN)
    return np.where(stopped, runs.table.numbers("time_to_train_s"), np.nan)


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
    errors = metrics.absolute_percentage_errors(forecast[:, 1], measured)
    widths = metrics.widths(forecast)
    hits = int(metrics.inside(forecast, measured).sum())
    low, high = metrics.share_interval(hits, len(measured))
    each, fact = forecast[:, 1] / rows.batch[both], measured / rows.batch[both]
    floors, seconds = rows.floor, rows.seconds
    below = seconds[:, 0] < floors * (1 - 1e-9)
    found = _detection(rows, ("oom",), impossible=False)
    refused = _detection(rows, UNFINISHED, impossible=True)
    memory = _memory_errors(rows)
    choice = regret(
        rows.job, rows.plan, np.where(answered, seconds[:, 1], np.nan), rows.fit, rows.measured,
        np.isin(rows.status, UNFINISHED), np.random.default_rng(seed),
    )  # fmt: skip
    stopped = ~np.isnan(rows.bound) & answered
    # One-sided: above the bound nothing is known to be wrong.
    lacking = metrics.shortfalls(seconds[stopped, 1], rows.bound[stopped])
    return Score(
        predictor=predictor,
        table=table,
        group=group,
        rows=len(rows),
        comparable=int(rows.timed.sum()),
        answered=int(both.sum()),
        censored=int((rows.status == "timeout").sum()),
        censored_below=int((seconds[stopped, 2] < rows.bound[stopped]).sum()),
        mape=metrics.mean(errors),
        median_ape=metrics.quantile(errors, 0.5),
        p90_ape=metrics.quantile(errors, 0.9),
        bias_log_ratio=metrics.bias(forecast[:, 1], measured),
        tau=kendall_tau(each, fact, rows.workload[both]),
        tau_plans=kendall_tau(each, fact, rows.job[both]),
        tau_overall=kendall_tau(each, fact, rows.table[both]),
        coverage=hits / len(measured) if len(measured) else metrics.NAN,
        coverage_low=low,
        coverage_high=high,
        width=metrics.quantile(widths, 0.5),
        width_mean=metrics.mean(widths),
        floor_violations=int((answered & below).sum()),
        floor_clamped=int((answered & rows.clamped).sum()),
        suspicious=int((rows.timed & (rows.measured < floors * (1 - 1e-9))).sum()),
        silent=int(silent.sum()),
        oom_rows=found.rows,
        oom_happened=found.out_of_memory,
        oom_precision=found.precision,
        oom_recall=found.recall,
        oom_f1=found.f1,
        refused_rows=refused.rows,
        refused_f1=refused.f1,
        memory_rows=len(memory),
        memory_median_ape=metrics.quantile(memory, 0.5),
        regret_groups=choice.groups,
        regret_picked=choice.picked,
        regret_crashed=choice.crashed,
        regret_median=choice.median,
        regret_mean=choice.mean,
        regret_worst=choice.worst,
        declined=dict(declined.most_common()),
        not_comparable=dict(Counter(rows.reason[~is_none(rows.reason)].tolist()).most_common()),
        timed_rows=int(rows.anytime.sum()),
        quantities={
            name: int(count)
            for name, count in zip(
                QUANTITIES, np.bincount(rows.quantity[both], minlength=3), strict=True
            )
            if count
        },
        censored_answered=len(lacking),
        censored_short=int((lacking > 0).sum()),
        censored_mape=metrics.mean(lacking),
        censored_short_ape=metrics.quantile(lacking[lacking > 0], 0.5),
    )


def _detection(rows: Sheet, ends: Sequence[str], impossible: bool) -> metrics.Detection:
    """Return how well such ends of a run were foreseen, against runs that ended well.

    A plan that was declined as impossible has no chance of running. It is no memory that was
    foreseen, whatever its table says of why it failed; it is a run that was.
    """
    happened = np.isin(rows.status.astype(str), ends)
    said = ~np.isnan(rows.fit) & (is_none(rows.declined) | impossible)
    use = rows.watched & (happened | (rows.status == "ok")) & said
    return metrics.detection(rows.fit[use] < 0.5, happened[use])


def _memory_errors(rows: Sheet) -> FloatArray:
    peak = rows.peak_bytes[:, 1]
    use = ~np.isnan(peak) & (rows.memory_bytes > 0)
    return metrics.absolute_percentage_errors(peak[use], rows.memory_bytes[use])
