"""Goodput: the throughput law of Pollux, seven parameters for each kind of job.

Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (OSDI 2021),
section 3.2, as its own code fits it (adaptdl.goodput).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun.arrays import ColumnRows, FloatArray
from forerun.domain.plan import PS_ASYNC
from forerun.predictors.laws.fitting import (
    Effects,
    KindFit,
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
    reach_of,
)
from forerun.predictors.laws.law_rows import UNREAD_SIGMA, LawRows, Span

# Logs of seconds. a_c, b_c: a pass and each of its samples; a_n, b_n: a reduction between nodes, and
# each device beyond two of them; a_r, b_r: the same within a node; of gamma - 1: how well both overlap.
PARAMETERS = ("a_c", "b_c", "a_n", "b_n", "a_r", "b_r", "overlap")
A_C, B_C, A_N, B_N, A_R, B_R, OVERLAP = range(len(PARAMETERS))
TERMS = ("passes, fixed", "passes, by samples", "exposed reduction")
# Columns of what a worker has, 0 where a row does not state it: the speed of its cores
# (`LawRows.log_speed`), and GB/s of its network.
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
class StepColumns(ColumnRows):
    """n steps, each column (n,); between: 1 where devices are on several nodes, else 0.

    speed, rate: of a worker's cores, and GB/s between nodes; 1 where they are not read.
    """

    micro_batch: FloatArray
    passes: FloatArray
    devices: FloatArray
    between: FloatArray
    speed: FloatArray
    rate: FloatArray


def step_seconds(theta: FloatArray, steps: StepColumns) -> tuple[LogTerm, LogTerm, LogTerm]:
    """Return the seconds of n steps, of one pass, and of the last pass with its reduction.

    theta: `PARAMETERS` of each step, (n, 7).
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
    steps: StepColumns, seconds: FloatArray, pass_seconds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return where the parameters of runs start, (7,), and 1 for those that the runs determine.

    Others stay at their optimistic bound (adaptdl.goodput, `fit_perf_params`); pass_seconds: NaN if unknown.
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
    """Pollux's parameters of one kind of job; free: 1 for those that runs determine, (7,)."""

    free: FloatArray

    parameters = PARAMETERS
    equation = (
        "(passes - 1) C + (C^g + N^g)^(1/g), C = {a_c} s + {b_c} s a sample x micro_batch, "
        "N = {a_r} s + {b_r} s x (devices - 2) within a node; {a_n} s + {b_n} s x (devices - 2) "
        "between nodes, g = {overlap}"
    )

    def printed(self, theta: FloatArray) -> FloatArray:
        """Return seconds, and gamma."""
        return np.asarray(np.exp(theta) + (np.arange(len(theta)) == OVERLAP))

    def formula(self, quantity: str) -> str:
        """Return the law with units and intervals, and what it reads beside."""
        text = super().formula(quantity)
        if quantity != "step":
            text = f"steps x ({self.size} / global_batch of them) ({text})"
        for where, at in (("within a node", A_R), ("between nodes", A_N)):
            text += f"; {where} no run: an optimistic prior" * (not self.free[at])
        for what, name in (("C over speed", "speed"), ("N between nodes over GB/s", "wire")):
            text += f"; {what}" * (self.bounds[name][0] > 0)
        return text


@dataclass(frozen=True)
class Goodput(GroupedLaws[GoodputLaw]):
    """step = (passes - 1) C + (C^g + N^g)^(1/g), C = a_c + b_c micro_batch.

    N is 0 on one device, a_r + b_r (devices - 2) within a node and a_n + b_n (devices - 2) on several,
    however uneven the placement. An epoch or a run is dataset_size / global_batch steps. Unlike in Pollux,
    passes go with the speed of cores and N with the network's rate where all runs state them.
    """

    name = "goodput"
    law = GoodputLaw
    terms = TERMS
    least_points = 3
    reads_micro_batch = True
    unstated = ("together", "a step that workers take together (its servers are asynchronous)")
    needed = (
        f"at least {least_points} runs that differ in devices, nodes or micro_batch, on two numbers "
        "of devices or more"
    )
    apart = False

    @property
    def point_columns(self) -> tuple[str, ...]:
        """Columns in which runs must differ."""
        return ("devices", "nodes", "passes", self.micro_batch, *GIVEN)

    def works_alone(self, law: GoodputLaw) -> bool:
        """Return whether more devices do more: in a step each has a micro-batch of its own."""
        return self.quantity == "step"

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return nodes, passes and resources of n jobs, and of an epoch or a run its batch."""
        columns = {
            "nodes": np.where(np.isnan(rows.placements.nodes), 1.0, rows.placements.nodes),
            "passes": rows.accumulation, "together": np.where(rows.sync == PS_ASYNC, np.nan, 1.0),
            "speed": np.nan_to_num(np.exp(rows.log_speed)),
            "wire": np.nan_to_num(np.exp(rows.log_wire)),
        }  # fmt: skip
        if self.quantity != "step":
            micro, batch = rows.size("micro_batch"), rows.size("global_batch")
            implied = micro * rows.replicas * rows.accumulation
            columns["global_batch"] = np.where(np.isnan(batch), implied, batch)
        return columns

    def fitted(self, groups: Sequence[RunGroup]) -> list[GoodputLaw]:
        """Return the law of each group of runs, all fitted at once."""
        rows, starts, free = [], [], []
        for group in groups:
            steps, count, _ = self._steps(group.columns, group.bounds)
            seconds = group.seconds / count
            # What is not the reduction that was measured is passes.
            sync = np.where(group.sync_seconds > 0, group.sync_seconds, np.nan)
            many = steps.devices > 1
            passes = (seconds - np.where(many, sync, 0.0)) / steps.passes
            passes = np.where((passes > 0) & ((self.quantity == "step") | ~many), passes, np.nan)
            theta, determined = _start(steps, seconds, passes)
            also = np.flatnonzero(np.isfinite(passes) & many)
            one = np.ones(len(also))
            alone = replace(steps.take(also), devices=one, passes=one)
            times = np.log(np.concatenate([seconds, passes[also]]))
            rows.append((StepColumns.joined([steps, alone]), times))
            starts.append(theta)
            free.append(determined)
        found = fitted_kinds(
            lambda theta, steps: step_seconds(theta, steps)[0], rows, np.array(starts),
            Effects.of(PRIOR_SIGMA * free),
        )  # fmt: skip
        return [self._law(*of) for of in zip(groups, found, free, strict=True)]

    def _law(self, group: RunGroup, fit: KindFit, free: FloatArray) -> GoodputLaw:
        theta, notes = fit.theta.copy(), [*fit.notes]
        slower = np.log(SLOWER_BETWEEN * _middle(group.bounds["wire"]))
        for outer, inner in ((A_N, A_R), (B_N, B_R)):
            if not free[outer]:
                theta[outer] = max(theta[outer], slower + theta[inner])
        if not free[A_N] and not free[A_R]:
            notes.append("no run has several devices, so that nothing is known of the reduction")
        if len(np.unique(group.columns[self.micro_batch])) == 1:
            notes.append("all runs have one micro-batch: half of a pass is taken to grow with it")
        reach = reach_of(fit.errors[: len(group.seconds)], int(free.sum()), LEAST_SIGMA)
        covariance = fit.covariance + np.diag((1.0 - free) * PRIOR_SIGMA**2)
        return GoodputLaw(
            theta=theta, covariance=covariance, free=free, reach=reach, notes=tuple(notes)
        )

    def _steps(
        self, columns: Columns, bounds: Mapping[str, Span]
    ) -> tuple[StepColumns, FloatArray, FloatArray]:
        """Return the steps of n jobs, how many each has, and the log variance left open, (n,)."""
        between = (columns["nodes"] > 1).astype(np.float64)
        count = np.ones_like(between)
        if self.quantity != "step":
            count = columns["size"] / columns["global_batch"]
        if self.quantity == "epoch":
            count = np.ceil(count * (1.0 - _ROUNDING))  # the last step of a pass has what is left
        given, variance = [], np.zeros(len(count))
        for name in GIVEN:
            low, high = bounds[name]
            stated = columns[name] > 0
            unsure = np.log(high / low) / 2.0 if low else 0.0
            variance += np.where(stated, 0.0 if low else UNREAD_SIGMA, unsure) ** 2
            given.append(np.where(stated & (low > 0), columns[name], _middle(bounds[name])))
        speed, rate = given
        steps = StepColumns(
            columns[self.micro_batch], columns["passes"], columns["devices"], between, speed,
            np.where(between > 0, rate, 1.0),
        )  # fmt: skip
        return steps, count, variance

    def evaluate(self, law: GoodputLaw, columns: Columns) -> LawForecasts:
        """Return seconds, the three terms and doublings of n jobs."""
        steps, count, variance = self._steps(columns, law.bounds)
        theta = np.broadcast_to(law.theta, (len(count), len(PARAMETERS)))
        step, one_pass, last = step_seconds(theta, steps)
        variance += law.variance(step.matrix(len(PARAMETERS)))
        unseen = np.where(steps.between > 0, law.free[A_N], law.free[A_R]) == 0
        beyond = np.where(unseen & (steps.devices > 1), UNSEEN_DOUBLINGS, 0.0)
        sizes = {"devices": steps.devices, self.micro_batch: steps.micro_batch}
        # Nodes go with devices: beyond the measured ones they are counted once.
        beyond = np.maximum(beyond + law.doublings(**sizes), law.doublings(nodes=columns["nodes"]))
        for name in GIVEN:
            if law.bounds[name][0] > 0:
                stated = np.where(columns[name] > 0, columns[name], law.bounds[name][0])
                beyond += law.doublings(**{name: stated})
        exposed = np.exp(last.log) - np.exp(one_pass.log)
        fixed = np.exp(law.theta[A_C]) / steps.speed * steps.passes
        parts = np.stack([fixed, np.exp(step.log) - fixed - exposed, exposed], axis=1)
        return law.forecasts(parts * count[:, None], variance, beyond)


def _middle(bounds: Span) -> float:
    return float(np.sqrt(bounds[0] * bounds[1])) or 1.0
