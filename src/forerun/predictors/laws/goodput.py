"""Goodput: the throughput law of Pollux, seven parameters for each kind of job.

Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (OSDI 2021),
section 3.2, as its own code fits it (adaptdl.goodput): passes accumulate gradients, the last of them
overlaps with the reduction. Throughput alone: how many samples a model needs is another question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.fitting import (
    ColumnRows,
    Effects,
    LogTerm,
    constant,
    either,
    fitted_kinds,
    parameter,
    total,
)
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    banded,
    doublings,
    log_variance,
    percent,
    reach_of,
    stacked,
)
from forerun.predictors.laws.law_rows import LawRows, ResourceReading, Span, spans, step_size

# Logs of seconds. a_c, b_c: a pass and each of its samples; a_n, b_n: a reduction between nodes, and
# each device beyond two of them; a_r, b_r: the same within a node; of gamma - 1: how well both overlap.
PARAMETERS = ("a_c", "b_c", "a_n", "b_n", "a_r", "b_r", "overlap")
A_C, B_C, A_N, B_N, A_R, B_R, OVERLAP = range(len(PARAMETERS))
TERMS = ("passes, fixed", "passes, by samples", "exposed reduction")
# Columns of what a worker has, 0 where a row does not state it.
GIVEN = ("speed", "wire")
# Of a part that no run has; gamma is 10 at most.
LOG_NOTHING, LOG_MOST_OVERLAP = float(np.log(1e-8)), float(np.log(9.0))
# An unmeasured level of the network is no faster than the measured one within the node.
SLOWER_BETWEEN = 1.1
# Of a reduction, each device beyond two at the start.
GROWTH = 0.05
# Standard deviations of the priors of logs.
PRIOR_SIGMA = np.array([2.5] * 6 + [1.0])
LEAST_SIGMA = 0.02
# A network that no run used: with every run between nodes left out, the networks of others predicted
# it with a median error of 54 %; it counts as so many doublings away.
UNSEEN_DOUBLINGS = 2.0
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Steps(ColumnRows):
    """n steps, each column (n,).

    Attributes:
        micro_batch: samples of a pass; passes: in a step, 1 or more.
        devices: that take part.
        between: 1 where they are on several nodes, evenly or not, else 0.
        speed, rate: of a device and of the network over those of the middle run, 1 where not stated.
    """

    micro_batch: FloatArray
    passes: FloatArray
    devices: FloatArray
    between: FloatArray
    speed: FloatArray
    rate: FloatArray


def step_seconds(theta: FloatArray, steps: Steps) -> tuple[LogTerm, LogTerm, LogTerm]:
    """Return the seconds of n steps, of one pass, and of the last pass with its reduction.

    theta: the parameters of each step, (n, 7).
    """
    of = [parameter(theta, i) for i in range(len(PARAMETERS))]
    one_pass = total(of[A_C], of[B_C] + np.log(steps.micro_batch)) - np.log(steps.speed)
    with np.errstate(divide="ignore"):
        farther, others = np.log(np.maximum(steps.devices - 2.0, 0.0)), np.log(steps.passes - 1.0)
    between, within = (total(of[a], of[b] + farther) for a, b in ((A_N, B_N), (A_R, B_R)))
    network = either(steps.between > 0, between, within) - np.log(steps.rate)
    gamma = total(constant(np.zeros(len(steps))), of[OVERLAP].at_most(LOG_MOST_OVERLAP))
    last = total(one_pass, network.where(steps.devices > 1), gamma)
    return total(last, one_pass + others), one_pass, last


def _start(
    steps: Steps, seconds: FloatArray, pass_seconds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return where the parameters of runs start, (7,), and 1 for those that the runs determine.

    A parameter without runs stays at its optimistic bound (adaptdl.goodput, `fit_perf_params`).
    pass_seconds: of runs in which one pass is known, NaN of the others, (n,).
    """
    many, between, known = steps.devices > 1, steps.between > 0, np.isfinite(pass_seconds)
    per_pass = np.where(known, pass_seconds, seconds / steps.passes) * steps.speed
    one = float(np.median(per_pass[known]) if known.any() else 0.7 * per_pass.min())
    theta, free = np.full(len(PARAMETERS), LOG_NOTHING), np.ones(len(PARAMETERS))
    theta[A_C] = np.log(0.5 * one)
    theta[B_C] = theta[A_C] - np.log(np.median(steps.micro_batch))
    rest = seconds - steps.passes * one / steps.speed
    rest = np.maximum(rest, 0.1 * seconds) * steps.rate
    for a, b, rows in ((A_N, B_N, many & between), (A_R, B_R, many & ~between)):
        free[a], free[b] = rows.any(), len(np.unique(steps.devices[rows])) > 1
        theta[a] = np.log(np.median(rest[rows])) if free[a] else LOG_NOTHING
        theta[b] = theta[a] + np.log(GROWTH) if free[b] else LOG_NOTHING
    free[OVERLAP], theta[OVERLAP] = many.any(), 0.0
    return theta, free


@dataclass(frozen=True, kw_only=True)
class GoodputLaw(ParametricLaw):
    """Pollux's parameters of one kind of job.

    Attributes:
        free: 1 for parameters that runs determine; the others are at an optimistic bound, (7,).
        speeds, wires: logs of the least and most speed of a device, see `LawRows.log_speed`, and GB/s
            of the network that runs state; None where most state none.
    """

    free: FloatArray
    speeds: Span | None = None
    wires: Span | None = None

    parameters = PARAMETERS

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals."""
        text = [self.exponential(i, float(i == OVERLAP)) for i in range(len(PARAMETERS))]
        steps = f"steps x ({self.size or 'one'} / global_batch of them) " * (quantity != "step")
        speed = wire = ""
        if self.speeds is not None:
            speed = f" (over the speed of a device / {np.exp(sum(self.speeds) / 2):.3g})"
        if self.wires is not None:
            wire = f" (over GB/s of the network / {np.exp(sum(self.wires) / 2):.3g})"
        within, between = (
            f"{text[a]} s + {text[b]} s x (devices - 2) {where}"
            + ("" if self.free[a] else " (no run: an optimistic prior)")
            for where, a, b in (("within a node", A_R, B_R), ("between nodes", A_N, B_N))
        )
        return (
            f"{steps}(passes - 1) C + (C^g + N^g)^(1/g), C = {text[A_C]} s + {text[B_C]} s a sample x "
            f"micro_batch{speed}, N = {within}; {between}{wire}, g = {text[OVERLAP]}"
        )

    def limit(self) -> str:
        """Return what a step at the most devices is spent on, and what doublings would bring."""
        most = self.machines[1]
        counts = np.array([most, 2 * most, 4 * most])
        between = np.ones(3) if self.bounds["nodes"][1] > 1 else np.array([0.0, 1.0, 1.0])
        between = between * self.free[A_N]  # where nothing is known of several nodes, of one
        micro = float(np.sqrt(np.prod(self.bounds["micro_batch"])))
        one = np.ones(3)
        steps = Steps(micro * one, one, counts, between, one, one)
        step, one_pass, _ = step_seconds(np.tile(self.theta, (3, 1)), steps)
        exposed = 1.0 - np.exp(one_pass.log - step.log)
        where = f" at {micro:.3g} samples a device" if self.size == "micro_batch" else ""
        kept = ", ".join(
            f"{percent(1.0 - share)} at {count:g}"
            for share, count in zip(exposed, counts, strict=True)
        )
        what = "the reduction" if exposed[0] > 0.5 else "computing"
        return (
            f"{what} takes most of a step at {most:g} devices{where}; scaling efficiency is {kept}"
        )


@dataclass(frozen=True)
class Goodput(GroupedLaws[GoodputLaw]):
    """step = (passes - 1) C + (C^g + N^g)^(1/g), C = a_c + b_c micro_batch.

    N is 0 on one device, a_r + b_r (devices - 2) within a node and a_n + b_n (devices - 2) on
    several nodes, however uneven the placement: of an uneven one only that it leaves its node
    counts, as in Pollux. An epoch or a run is its steps, dataset_size / global_batch of them; an
    unknown number of epochs is part of the parameters then.

    Runs that differ in the cores of a worker or in the rate of the network are of one law: passes go
    with the prior speed of the cores (`LawRows.log_speed`), the reduction between nodes with the
    rate. Pollux has neither.

    Where runs have a sync_time_s, the rest of their step determines C. A parameter without runs stays
    at an optimistic prior (a free growth with devices, a network between nodes little slower than
    within one); the band is wide there.
    """

    name = "goodput"
    law = GoodputLaw
    terms = TERMS
    least_points = 3
    needed = (
        f"at least {least_points} runs that differ in devices, nodes or micro_batch, on two numbers "
        "of devices or more"
    )
    also_measured = ("sync_time_s",)
    apart = False

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ."""
        micro = "size" if self.quantity == "step" else "micro_batch"
        return ("devices", "nodes", "passes", micro, *GIVEN)

    def size_of(self, rows: LawRows) -> str:
        """Return micro_batch for steps, where runs state it; what epochs or runs go through."""
        return step_size(rows, self.quantity)

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return devices, nodes and passes of n jobs, and of an epoch or a run its batches."""
        columns = {
            "devices": np.where(rows.machines > 0, rows.machines, np.nan),
            "nodes": np.where(np.isnan(rows.placements.nodes), 1.0, rows.placements.nodes),
            "passes": rows.accumulation,
            "together": np.where(rows.sync == PS_ASYNC, np.nan, 1.0),
            "speed": np.nan_to_num(np.exp(rows.log_speed)),
            "wire": np.nan_to_num(np.exp(rows.log_wire)),
        }
        if self.quantity != "step":
            micro = rows.size("micro_batch")
            batch = rows.size("global_batch")
            implied = micro * rows.replicas * rows.accumulation
            columns["micro_batch"] = micro
            columns["global_batch"] = np.where(np.isnan(batch), implied, batch)
        return columns

    def missing(self, column: str) -> str:
        """Return why a job is declined that does not state a column."""
        if column == "together":
            return "the row does not state a step that workers take together (its servers are asynchronous)"
        return super().missing(column)

    def fitted(self, groups: Sequence[RunGroup]) -> list[GoodputLaw]:
        """Return the law of each group of runs, all fitted at once."""
        given = [
            [spans(_log_of(g.columns, name), np.zeros(len(g.seconds), dtype=int), 1)[0] for name in GIVEN]
            for g in groups
        ]  # fmt: skip
        kept, rows, start, free = [], [], [], []
        for group, spanned in zip(groups, given, strict=True):
            ambiguous = [one.ambiguous for one in self._readings(group.columns, [spanned])]
            part = group.take(np.flatnonzero(~(ambiguous[0] | ambiguous[1])))
            steps, count = self._steps(part.columns, self._readings(part.columns, [spanned]))
            seconds = part.seconds / count
            # What is not the reduction that was measured is passes.
            sync = part.measured["sync_time_s"]
            sync = np.where((self.quantity == "step") & (sync > 0), sync, np.nan)
            many = steps.devices > 1
            passes = (seconds - np.where(many, sync, 0.0)) / steps.passes
            passes = np.where(passes > 0, passes, np.nan)
            theta, determined = _start(steps, seconds, passes)
            also = np.flatnonzero(np.isfinite(passes) & many)
            one = np.ones(len(also))
            alone = replace(steps.take(also), devices=one, passes=one)
            times = np.log(np.concatenate([seconds, passes[also]]))
            rows.append((Steps.joined([steps, alone]), times))
            kept.append(part)
            start.append(theta)
            free.append(determined)
        found, errors = fitted_kinds(
            lambda theta, steps: step_seconds(theta, steps)[0], rows, np.array(start),
            Effects.of(PRIOR_SIGMA * free),
        )  # fmt: skip
        return [
            self._law(part, rows[i][0].micro_batch, found.theta[i], found.uncertainty(i), free[i],
                      errors[i][: len(part.seconds)], found.converged, given[i])
            for i, part in enumerate(kept)
        ]  # fmt: skip

    def _law(
        self, group: RunGroup, micro: FloatArray, theta: FloatArray, covariance: FloatArray,
        free: FloatArray, errors: FloatArray, converged: bool, given: Sequence[Span | None],
    ) -> GoodputLaw:  # fmt: skip
        for outer, inner in ((A_N, A_R), (B_N, B_R)):
            if not free[outer]:
                theta[outer] = max(theta[outer], np.log(SLOWER_BETWEEN) + theta[inner])
        notes = []
        if not converged:
            notes.append("the search did not converge; the best parameters found are kept")
        if not free[A_N] and not free[A_R]:
            notes.append("no run has several devices, so that nothing is known of the reduction")
        if len(np.unique(micro)) == 1:
            notes.append("all runs have one micro-batch: half of a pass is taken to grow with it")
        return GoodputLaw(
            theta=theta, covariance=covariance + np.diag((1.0 - free) * PRIOR_SIGMA**2), free=free,
            reach=reach_of(errors, int(free.sum()), LEAST_SIGMA),
            bounds={
                **group.bounds("devices", "nodes"),
                "micro_batch": (float(micro.min()), float(micro.max())),
            },
            size=group.size, runs=len(errors), speeds=given[0], wires=given[1], notes=tuple(notes),
        )  # fmt: skip

    def _steps(
        self, columns: Columns, given: Sequence[ResourceReading]
    ) -> tuple[Steps, FloatArray]:
        """Return the steps of n jobs, and how many of them each job has, (n,)."""
        between = (columns["nodes"] > 1).astype(np.float64)
        if self.quantity == "step":
            micro, count = columns["size"], np.ones_like(between)
        else:
            micro, count = columns["micro_batch"], columns["size"] / columns["global_batch"]
        if self.quantity == "epoch":
            count = np.ceil(count * (1.0 - _ROUNDING))  # the last step of a pass has what is left
        speed = np.exp(given[0].offset)
        rate = np.where(between > 0, np.exp(given[1].offset), 1.0)
        return Steps(micro, columns["passes"], columns["devices"], between, speed, rate), count

    def evaluate(self, laws: list[GoodputLaw], index: IntArray, columns: Columns) -> LawForecasts:
        """Return seconds, the three terms and doublings of n jobs."""
        given = self._readings(columns, [(law.speeds, law.wires) for law in laws], index)
        steps, count = self._steps(columns, given)
        theta, free = stacked(laws, "theta", index), stacked(laws, "free", index)
        step, one_pass, last = step_seconds(theta, steps)
        variance = log_variance(laws, index, step.matrix(len(PARAMETERS)))
        unseen = np.where(steps.between > 0, free[:, A_N], free[:, A_R]) == 0
        beyond = np.where(unseen & (steps.devices > 1), UNSEEN_DOUBLINGS, 0.0)
        beyond = beyond + doublings(laws, index, "devices", steps.devices)
        beyond = beyond + doublings(laws, index, "micro_batch", steps.micro_batch)
        # Nodes go with devices: beyond the measured ones they are counted once.
        beyond = np.maximum(beyond, doublings(laws, index, "nodes", columns["nodes"]))
        for one in given:
            beyond = beyond + one.beyond / np.log(2.0)
            variance = variance + one.unsure**2
        middle = np.exp(step.log)
        seconds = banded(middle, stacked(laws, "reach", index), variance)
        exposed = np.exp(last.log) - np.exp(one_pass.log)
        fixed = np.exp(theta[:, A_C]) / steps.speed * steps.passes
        named = np.stack([fixed, middle - fixed - exposed, exposed], axis=1)
        return LawForecasts(seconds * count[:, None], named * count[:, None], beyond)

    def _readings(
        self,
        columns: Columns,
        known: Sequence[Sequence[Span | None]],
        index: IntArray | None = None,
    ) -> list[ResourceReading]:
        """Return speed and network of n jobs as their laws read them; known: the spans of each law."""
        if index is None:
            index = np.zeros(len(columns["devices"]), dtype=np.int64)
        return [
            ResourceReading.of(_log_of(columns, name), index, of)
            for name, of in zip(GIVEN, zip(*known, strict=True), strict=True)
        ]


def _log_of(columns: Columns, name: str) -> FloatArray:
    """Return logs of one of `GIVEN`, (n,), NaN where not stated."""
    return np.log(np.where(columns[name] > 0, columns[name], np.nan))
