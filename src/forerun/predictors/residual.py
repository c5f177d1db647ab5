"""ResidualPredictor: physics, corrected by a Gaussian process of its log error over features of a job.

Left-out runs say for which kinds of novelty (a new plan, workload, device, framework or setting, more
devices) the correction helps, and how sure it then is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.domain.graph import KINDS
from forerun.domain.quantiles import Z95, spread
from forerun.domain.workload import OPERAND_BYTES
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.predictors.analytic.constants import Constants, framework_key, scale_key
from forerun.predictors.analytic.flat import SLOTS, Rows
from forerun.predictors.analytic.layout import Layout, lay_out, shapes_of_rows
from forerun.predictors.analytic.operations import operation_seconds, rates_of
from forerun.predictors.analytic.saving import Learned
from forerun.predictors.analytic.servers import SERVER_PARTS
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import evidence, exposures, settings_of, step_sigmas
from forerun.predictors.gaussian_process import GaussianProcess, fitted_gp, group_left_out
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs

# A share of a quarter counts as one doubling of a size; a step of a plan that is no size (a ZeRO
# stage, recomputation) as two.
SHARE, CHOICE = 4.0, 2.0


def features_of(layout: Layout, constants: Constants) -> tuple[FloatArray, FloatArray]:
    """Return what decides how far physics misses jobs, (n, d), sizes as powers of two, and its seconds, (n,)."""
    rows = layout.rows(constants)
    parts, median, _ = step_and_floor(rows, constants)
    # Which part of a micro-batch's device time each class of operations takes, (k, n).
    flat, count = layout.flat, len(layout.keys)
    code = flat.columns["slot"] // len(SLOTS) * len(KINDS) + flat.columns["rate"] % len(KINDS)
    each = operation_seconds(flat, rates_of(flat, constants), constants)
    seconds = np.bincount(code, each, count * len(KINDS))
    table = seconds.reshape(count, len(KINDS))
    table = SHARE * table / np.maximum(table.sum(axis=1, keepdims=True), 1e-300)
    columns = [*_work(layout, rows), *_plan(rows, parts), *table[layout.position].T]
    return np.stack(columns, axis=1), median


def _doublings(values: FloatArray) -> FloatArray:
    return np.asarray(np.log2(np.maximum(values, 1e-12)))


def _work(layout: Layout, rows: Rows) -> list[FloatArray]:
    """Return what a micro-batch is on one device."""
    key, plan, jobs = rows.key, rows.plan, layout.jobs
    layers = np.maximum(rows.work["layers"], 1.0)
    device = key["layer_forward"] + key["layer_backward"] + key["layer_recompute"]
    comm = key["layer_tensor_comm"] + key["layer_expert_comm"] + key["layer_context_comm"]
    ends = key["ends_forward"] + key["ends_backward"]
    whole = np.maximum(device + comm + key["layer_host"] + ends, 1e-12)
    tokens = np.maximum(jobs.per_workload("seq_len").astype(np.float64), 1.0)
    written = np.array([w.graph.activations for w in jobs.workloads], dtype=np.float64)
    flops = rows.work["floor_flops"]
    operand = np.array([OPERAND_BYTES[w.precision] for w in jobs.workloads])
    sizes = (
        (device + ends) / layers, plan["micro_batch"] * tokens / plan["cp"], plan["micro_batch"],
        np.maximum(jobs.per_workload("shape.hidden"), 1.0), flops / layers,
        flops / np.maximum(written[jobs.workload_index], 1.0), rows.node["most_flops"],
        rows.node["nominal_memory_rate"], rows.software["host_seconds"],
        operand[jobs.workload_index] ** CHOICE, plan["tp"], plan["cp"], plan["ep"],
    )  # fmt: skip
    shares = (key["layer_host"], comm, ends)
    choices = (
        plan["sequence_parallel"], plan["recompute"], layout.keys.channels_last[layout.position]
    )  # fmt: skip
    return [
        *map(_doublings, sizes), *(SHARE * part / whole for part in shares),
        *(CHOICE * choice for choice in choices),
    ]  # fmt: skip


def _plan(rows: Rows, parts: Mapping[str, FloatArray]) -> list[FloatArray]:
    """Return how many micro-batches there are, and what joins them."""
    plan, node, work = rows.plan, rows.node, rows.work
    whole = np.maximum(sum(parts.values(), np.zeros(len(rows))), 1e-12)
    sizes = (
        plan["dp"], plan["pp"], plan["vpp"], node["nodes"], node["node_devices"],
        rows.micro_batches, work["layer_tensor"] + work["layer_expert"] + work["layer_whole"],
        node["intra_rate"], np.where(node["nodes"] > 1, node["inter_rate"], 1.0),
    )  # fmt: skip
    shares = (
        ("data comm",), SERVER_PARTS, ("pipeline bubble", "imbalance"),
        ("pipeline comm",), ("overhead", "input", "optimizer"),
    )  # fmt: skip
    return [
        *map(_doublings, sizes), plan["zero_stage"], CHOICE * rows.sync.astype(np.float64),
        *(SHARE * np.sum([parts[name] for name in names], axis=0) / whole for names in shares),
    ]  # fmt: skip


# What may be new about a job; one of which nothing is new is a new plan, or a repeat.
PLAN, SCALE = "plan", "scale"
NEW = ("workload", "device", "framework", "setting")
NOVELTIES = (PLAN, *NEW, SCALE)
# Families of constants that belong to one workload, layer, device or framework, by the label that
# names it: a job of another has to do without them.
OWN: Mapping[str, tuple[str, ...]] = {
    "scale": ("workload_scale",), "shape": ("shape_scale",),
    "device": ("device_compute", "device_bandwidth", "device_host"), "framework": ("framework.",),
    "setting": ("setting_scale",),
}  # fmt: skip


@dataclass(frozen=True)
class Labels:
    """What n jobs are called, texts (n,) by label, and how many devices they use, (n,)."""

    names: Mapping[str, NDArray[np.str_]]
    devices: FloatArray

    @staticmethod
    def of(jobs: Jobs) -> Labels:
        """Return the labels of resolved jobs."""

        def of_workloads(names: list[str]) -> NDArray[np.str_]:
            return np.array([*names, ""])[jobs.workload_index]

        names = {
            "workload": of_workloads([w.name for w in jobs.workloads]),
            "device": np.array([c.device.id for c in jobs.clusters])[jobs.cluster_index],
            "framework": of_workloads([framework_key(w.framework) for w in jobs.workloads]),
            "setting": settings_of(jobs).astype(str),
            "scale": of_workloads([scale_key(w) for w in jobs.workloads]),
            "shape": shapes_of_rows(jobs).astype(str),
        }
        return Labels(names, jobs.per_cluster("devices").astype(np.float64))


@dataclass(frozen=True)
class MeasuredKinds:
    """What was measured: names by label, names with constants of their own, and most devices."""

    names: Mapping[str, list[str]]
    constants: Mapping[str, list[str]]
    devices: float

    @staticmethod
    def of(fit: Fit, labels: Labels) -> MeasuredKinds:
        """Return what the runs of a fit have measured; labels: of its jobs."""
        constants = {
            label: sorted({p.key for p in fit.parameters if p.family.startswith(families)})
            for label, families in OWN.items()
        }
        names = {label: sorted(set(labels.names[label].tolist())) for label in NEW}
        return MeasuredKinds(names, constants, float(labels.devices.max()))

    def novelties(self, labels: Labels, labelled: bool) -> dict[str, BoolArray]:
        """Return for each kind of novelty which of n jobs have it, (n,) each.

        labelled: whether jobs say where they are run; one that does not is run where the runs were measured.
        """
        found: dict[str, BoolArray] = {
            label: ~np.isin(labels.names[label], self.names[label])
            for label in NEW
            if label != "setting" or labelled
        }
        found[SCALE] = labels.devices > self.devices
        return {PLAN: ~np.logical_or.reduce(list(found.values())), **found}

    def lacks(self, labels: Labels) -> FloatArray:
        """Return 1, and which constants of their own n jobs have to do without, (n, 1 + 5)."""
        lacks = [~np.isin(labels.names[label], self.constants[label]) for label in OWN]
        return np.stack([np.ones(len(labels.devices)), *lacks], axis=1)


PARTS = 10  # of the jobs that are left out one after another, and of more groups than this
# Scales left out: above a half and above a quarter of the most devices that were measured.
OCTAVES = (2.0, 4.0)
LEAST_LEFT = 20  # runs that must remain
MOST_TOGETHER = 600  # rows of a group whose pull on the constants is worked out; more are thinned


@dataclass(frozen=True)
class Trial:
    """m runs judged without having been seen, in units that are independent of one another.

    before, after: log measured over forecast of physics and of the corrected forecast, (m,); unseen: the
    part of the correction's variance that no other run explains, (m,); row: which of the fitted runs; unit:
    which unit; doublings: beyond the devices that remained, (m,).
    """

    before: FloatArray
    after: FloatArray
    unseen: FloatArray
    row: IntArray
    unit: IntArray
    doublings: FloatArray


@dataclass(frozen=True)
class Learner:
    """A fit of n runs, and the correction `gp` of its `rows`, (m,), whose trials need no other fit.

    Without the rows G the constants move by d = -S J_G' W_G (I - J_G S J_G' W_G)^-1 r_G, which gives the
    residuals that are left; a process misses a group as Rasmussen and Williams say (2006, equations
    5.10-5.12, for blocks). code: equal for equal jobs, (n,); residual: log measured over forecast, (n,); own:
    what constants of one workload, layer, device, framework or setting add to the log forecast, (n, 5) as `OWN`.
    """

    fit: Fit
    rows: IntArray
    gp: GaussianProcess
    labels: Labels
    code: IntArray
    residual: FloatArray
    own: FloatArray

    @cached_property
    def lower(self) -> FloatArray:
        """Inverse of the Cholesky factor of the correction's covariance, (m, m)."""
        return self.gp.inverse_root()

    def trial(self, kind: str) -> Trial | None:
        """Return the trial of a kind of novelty, None where the runs cannot be tried on it."""
        pieces = [self._left_out(*group) for group in self._groups(kind)]
        if not sum(len(piece[0]) for piece in pieces):
            return None
        before, after, unseen, row, unit, doublings = (
            np.concatenate(column) for column in zip(*pieces, strict=True)
        )
        return Trial(before, after, unseen, row, np.unique(unit, return_inverse=True)[1], doublings)

    def _groups(self, kind: str) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield (rows left out, those of them that are judged, the unit of each of these)."""
        devices, n = self.labels.devices, len(self.code)
        if kind == SCALE:
            workload = np.unique(self.labels.names["workload"], return_inverse=True)[1]
            for place, octave in enumerate(OCTAVES):
                bound = devices.max() / octave
                group = np.flatnonzero(devices > bound)
                judged = group[devices[group] <= 2.0 * bound]
                if len(judged) and n - len(group) >= LEAST_LEFT:
                    yield group, judged, place * n + workload[judged]
            return
        code = self.code
        if kind != PLAN:
            code = np.unique(self.labels.names[kind], return_inverse=True)[1]
        count = int(code.max()) + 1
        part = np.random.default_rng(0).permutation(count) % PARTS
        for i in range(min(PARTS, count) if count > 1 else 0):
            group = np.flatnonzero(part[code] == i)
            if n - len(group) >= LEAST_LEFT:
                # Groups that are left out together are as many facts as there are groups, where a
                # group is a workload or a device; of plans a part is one.
                yield group, group, np.full(len(group), i) if kind == PLAN else code[group]

    def _left_out(self, group: IntArray, judged: IntArray, unit: IntArray) -> tuple[Any, ...]:
        """Return the columns of a `Trial`, of one group."""
        place = np.full(len(self.code), -1)
        place[self.rows] = np.arange(len(self.rows))
        inside = place[group][place[group] >= 0]
        judged, unit = judged[place[judged] >= 0], unit[place[judged] >= 0]
        if not len(judged):
            return (*np.zeros((3, 0)), judged, unit, np.zeros(0))
        rest = np.delete(np.arange(len(self.code)), group)
        # What would be left to correct without the group, (m, 1 + 5): first what physics misses with
        # all constants, then what each of `OWN` adds for jobs without it.
        fit, gp, some, count = self.fit, self.gp, group, len(self.fit.parameters)
        if len(group) > MOST_TOGETHER:
            some = np.random.default_rng(0).choice(group, MOST_TOGETHER, replace=False)
        slopes, weight = fit.slopes[some], fit.weight[some]
        pull = (slopes @ fit.covariance @ slopes.T) * weight
        error = np.linalg.solve(np.eye(len(some)) - pull, fit.residual[some])
        shift = -(fit.covariance @ (slopes.T @ (weight * error)))[:count]
        change = fit.slopes[self.rows, :count] * shift
        columns = [self.residual[self.rows] - change.sum(axis=1)]
        for i, families in enumerate(OWN.values()):
            ours = np.array([p.family.startswith(families) for p in fit.parameters], dtype=bool)
            columns.append(self.own[self.rows, i] + change[:, ours].sum(axis=1))
        targets = np.stack(columns, axis=1)
        missed, sd = group_left_out(self.lower[:, inside], gp.solved(targets)[inside])
        variance = sd**2 - gp.scales.noise_variance(gp.ratio[inside])
        unseen = np.clip(variance / gp.scales.variance(gp.x[inside]), 0.0, 1.0)
        at = np.searchsorted(inside, place[judged])
        names = self.labels.names
        lacks = [~np.isin(names[label][judged], names[label][rest]) for label in OWN]
        use = np.stack([np.ones(len(judged)), *lacks], axis=1)
        devices = self.labels.devices
        beyond = np.log2(np.maximum(devices[judged] / devices[rest].max(), 1.0))
        before = (targets[place[judged]] * use).sum(axis=1)
        return before, (missed[at] * use).sum(axis=1), unseen[at], judged, unit, beyond


LEAST_UNITS = 4
T_NEEDED = 2.4
LEAST_GAIN = 0.05
# One run counts as no more than wrong by all of its time: runs of another kind decide nothing.
MOST_ERROR = 1.0
LEAST_SIGMA = 0.01
LEAST_STRETCH, MOST_STRETCH = 0.3, 4.0


@dataclass(frozen=True)
class GateVerdict:
    """Whether the correction is used for a kind of novelty, and how its band is stretched to hold 90 %."""

    speaks: bool
    stretch: float

    @staticmethod
    def of(trial: Trial, sigma: FloatArray) -> GateVerdict:
        """Return what a trial says; sigma: of corrected forecasts before it is stretched, (m,)."""
        before, after = (
            np.minimum(np.abs(np.expm1(-np.clip(log, -5.0, 5.0))), MOST_ERROR)
            for log in (trial.before, trial.after)
        )
        gains = np.bincount(trial.unit, before - after) / np.bincount(trial.unit)
        units = len(gains)
        error = float(gains.std(ddof=1)) / units**0.5 if units > 1 else np.inf
        gain = float(before.mean() - after.mean())
        speaks = (
            units >= LEAST_UNITS
            and gains.mean() >= T_NEEDED * error
            and gain >= LEAST_GAIN * before.mean()
        )
        reach = float(np.quantile(np.abs(trial.after) / (Z95 * sigma), 0.9))
        return GateVerdict(bool(speaks), float(np.clip(reach, LEAST_STRETCH, MOST_STRETCH)))


# Of a correction's variance, what measured runs must explain for it to speak at all.
LEAST_EXPLAINED = 0.02
# Fewer runs than this calibrate physics alone.
LEAST_RUNS = 24
MOST_ROWS, TUNED_ROWS = 1500, 400  # that a correction learns from; and its hyper-parameters
# A run that lies farther off than so many scales of its setting is one of another kind (it
# stalled, it waited for data): it is judged, and its noise is taken to be so many times as large.
OUTLYING, DOUBTED = 6.0, 100.0


@dataclass(frozen=True)
class Correction:
    """What was learned from m runs of what physics missed, less what constants of their own hold.

    weights: what each run adds to a correction for the likeness to it, (m, 1 + 5): the first for all jobs,
    the others for those that have to do without constants of their own. verdicts: by kind of novelty.
    """

    gp: GaussianProcess
    weights: FloatArray
    known: MeasuredKinds
    verdicts: Mapping[str, GateVerdict]

    @staticmethod
    def learned(
        fit: Fit, constants: Constants, like: GaussianProcess | None = None
    ) -> tuple[Correction | None, GaussianProcess | None]:
        """Return the correction of a fit of n runs, None where it helps with no kind of novelty, and its process.

        like: a process whose hyper-parameters are kept.
        """
        n = len(fit.jobs)
        if n < LEAST_RUNS:
            return None, like
        features, median = (column[fit.rows] for column in features_of(fit.layout, constants))
        # What constants of one workload, layer, device or framework or setting add to the log, (n, 5).
        columns = []
        for families in OWN.values():
            ours = np.array([p.family.startswith(families) for p in fit.parameters], dtype=bool)
            without = moved(constants, fit.parameters, np.where(ours, -fit.theta, 0.0))
            left = step_and_floor(fit.priced(without), without)[1]
            columns.append(np.log(median / left))
        own, residual = np.stack(columns, axis=1), fit.target - np.log(median)
        drawn = np.random.default_rng(0).permutation(n)[:MOST_ROWS]
        rows = np.sort(drawn)
        usual = np.abs(residual[rows]) <= OUTLYING * fit.scale[rows]
        if usual.sum() < LEAST_RUNS:
            return None, like
        tuned = np.searchsorted(rows, drawn[usual[np.searchsorted(rows, drawn)]][:TUNED_ROWS])
        missed, ratio = (residual + own.sum(axis=1))[rows], np.where(usual, 1.0, DOUBTED)
        if like is None:
            gp = fitted_gp(
                features[rows], missed, mean="zero", noise_ratio=ratio, tuned_on=np.sort(tuned),
                rough=True,
            )  # fmt: skip
        else:
            z = (features[rows] - like.centre) / like.scale
            gp = like.given(z, np.zeros((len(z), 0), np.int64), missed / like.unit, ratio)
        gp = gp.doubted()
        labels = Labels.of(fit.jobs)
        code = np.unique(features, axis=0, return_inverse=True)[1].reshape(-1)
        learner = Learner(fit, rows, gp, labels, code, residual, own)
        verdicts = {}
        for kind in NOVELTIES:
            trial = learner.trial(kind)
            if trial is not None:
                physics = _physics_sigma(fit.layout, constants, kind)[fit.rows][trial.row]
                physics = np.hypot(physics, constants.sigma_scale * trial.doublings**0.5)
                verdicts[kind] = GateVerdict.of(trial, _sigma(gp, trial.unseen, physics))
        if not any(found.speaks for found in verdicts.values()):
            return None, gp
        weights = gp.solved(np.column_stack([residual[rows], own[rows]]))
        return Correction(gp, weights, MeasuredKinds.of(fit, labels), verdicts), gp

    def speaks_of(self, labels: Labels, labelled: bool) -> tuple[BoolArray, dict[str, BoolArray]]:
        """Return which of n jobs trials allow it to correct, (n,), and the novelty of all."""
        novel = self.known.novelties(labels, labelled)
        silent = [
            rows for kind, rows in novel.items()
            if kind not in self.verdicts or not self.verdicts[kind].speaks
        ]  # fmt: skip
        return ~np.logical_or.reduce([np.zeros(len(labels.devices), dtype=bool), *silent]), novel

    def logs(self, features: FloatArray, labels: Labels) -> tuple[FloatArray, FloatArray]:
        """Return (what to add to the log forecast, 0 where nothing is alike; the unseen part of its variance), (n,)."""
        means, sd = self.gp.predict_several(features, self.weights)
        log = (means * self.known.lacks(labels)).sum(axis=1)
        z = (features - self.gp.centre) / self.gp.scale
        unseen = np.clip(sd**2 / self.gp.scales.variance(z), 0.0, 1.0)
        far = unseen > 1.0 - LEAST_EXPLAINED
        return np.where(far, 0.0, log), np.where(far, 1.0, unseen)

    def sigmas(
        self, novel: Mapping[str, BoolArray], unseen: FloatArray, physics: FloatArray
    ) -> FloatArray:
        """Return log standard deviations of corrected forecasts, (n,); physics: its own, (n,). The widest novelty counts."""
        stretch = np.zeros(len(unseen))
        for kind, found in self.verdicts.items():
            if kind in novel:
                stretch = np.where(novel[kind], np.maximum(stretch, found.stretch), stretch)
        return stretch * _sigma(self.gp, unseen, physics)


def _sigma(gp: GaussianProcess, unseen: FloatArray, physics: FloatArray) -> FloatArray:
    """Return log standard deviations before they are stretched, (n,)."""
    return np.asarray(np.sqrt(LEAST_SIGMA**2 + gp.noise_sd**2 + unseen * physics**2))


def _physics_sigma(layout: Layout, constants: Constants, new: str = PLAN) -> FloatArray:
    """Return physics' log standard deviation of n jobs, (n,), as if what `new` names had no runs."""
    rows = layout.rows(constants)
    known: Mapping[str, FloatArray] = evidence(layout.jobs, constants)
    if new in NEW:
        known = {**known, f"{new}_evidence": np.zeros(len(rows))}
    parts = step_and_floor(rows, constants)[0]
    return step_sigmas(*exposures(rows, parts, known, constants), constants)[0]


# Rows in one pass: long enough that calls cost little, short enough for memory.
JOBS_AT_ONCE = 65536


@dataclass(frozen=True)
class ResidualPredictor(SavedPredictor):
    """Physics with a learned correction of its log error; None where it answers alone.

    Where left-out runs show no gain, and far from all that was measured, the answer is that of physics, to
    the last digit.
    """

    physics: AnalyticPredictor = field(default_factory=AnalyticPredictor)
    correction: Correction | None = None

    name = "residual"
    version = 3

    @staticmethod
    def shipped() -> ResidualPredictor:
        """Return the predictor with the shipped constants. Raises as `AnalyticPredictor.shipped`."""
        return ResidualPredictor(AnalyticPredictor.shipped())

    shipped_made = staticmethod(AnalyticPredictor.shipped_made)
    shipped_rows = staticmethod(AnalyticPredictor.shipped_rows)

    @property
    def learned(self) -> tuple[Learned, ...]:
        """Each constant of physics as fitted, in words."""
        return self.physics.learned

    @property
    def start(self) -> str:
        """Which constants fits started from."""
        return self.physics.start

    @property
    def fitted_runs(self) -> int:
        """How many runs it was fitted to since."""
        return self.physics.fitted_runs

    def fit(self, runs: Runs) -> ResidualPredictor:
        """Return a predictor that has learned from the runs. Raises RequestError where none is measured and forecast."""
        return ResidualPredictor.of(*self.physics.fit_kept(runs))[0]

    @staticmethod
    def of(
        physics: AnalyticPredictor, fit: Fit | None, like: GaussianProcess | None = None
    ) -> tuple[ResidualPredictor, GaussianProcess | None]:
        """Return fitted physics with what its fit leaves, and the process of that; like: see `Correction.learned`."""
        found = Correction.learned(fit, physics.constants, like) if fit else (None, None)
        return ResidualPredictor(physics, found[0]), found[1]

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return for each job why it cannot be answered, or None."""
        return self.physics.declines(jobs)

    def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
        """Return step seconds and peak bytes of n jobs, with parts where details are wanted; memory is that of physics."""
        alone = replace(self.physics.predict(jobs, detail), predictor=self.name)
        # No correction was learned from layers that are cut.
        rows = np.flatnonzero(alone.answered & (jobs.plans.partitions < 2))
        if self.correction is not None:
            for start in range(0, len(rows), JOBS_AT_ONCE):
                self._correct(self.correction, alone, jobs, rows[start : start + JOBS_AT_ONCE])
        return alone

    def _correct(
        self, correction: Correction, alone: Forecasts, jobs: Jobs, rows: IntArray
    ) -> None:
        """Put corrected answers into some rows of physics' own, which are this call's alone."""
        labelled = jobs.labels is not None and "cluster" in jobs.labels
        speaks, _ = correction.speaks_of(Labels.of(jobs.take(rows)), labelled)
        rows = rows[speaks]
        if not len(rows):
            return
        some, constants = jobs.take(rows), self.physics.constants
        layout, labels = lay_out(some, constants), Labels.of(some)
        log, unseen = correction.logs(features_of(layout, constants)[0], labels)
        physics = _physics_sigma(layout, constants)
        sigma = correction.sigmas(correction.known.novelties(labels, labelled), unseen, physics)
        middle = np.maximum(alone.seconds[rows, 1] * np.exp(log), alone.floor_seconds[rows])
        seconds = spread(middle, sigma, alone.floor_seconds[rows])
        scale, variance = middle / alone.seconds[rows, 1], (sigma / physics) ** 2
        near = np.flatnonzero(unseen < 1.0)
        alone.seconds[rows[near]] = seconds[near]
        for values in alone.parts.values():
            values[rows[near]] *= scale[near]
        for values in alone.causes.values():
            values[rows[near]] *= variance[near]
