"""Roofline: a workload known by its runs alone, on a device that it never ran on.

What a step costs in products, memory traffic and host time is pooled over workloads, precisions and
frameworks; the catalogue says what a device does of each in a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, group_medians
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.graph import KIND_INDEX, Graph, OpKind
from forerun.domain.hardware import Device
from forerun.domain.quantiles import spread
from forerun.domain.workload import PRECISIONS, Workload
from forerun.predictors.analytic.constants import GENERATION_LATENCY, Constants
from forerun.predictors.analytic.operations import effective_rates
from forerun.predictors.laws import hierarchical
from forerun.predictors.laws.fitting import (
    NOT_CONVERGED,
    Effects,
    LogTerm,
    Observations,
    Posterior,
    fitted,
    parameter,
    total,
)
from forerun.predictors.laws.law_rows import Kind, most_timed
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs

# Prior means and log standard deviations: of all, of a workload, a precision, a framework and an app. The
# first five are shares of a middle step on the middle device of the runs, less overlap.
PRIORS: Mapping[str, tuple[float, tuple[float, float, float, float, float]]] = {
    "products": (float(np.log(0.35)), (0.5, 0.3, 0.3, 0.2, 0.3)),
    "memory": (float(np.log(0.45)), (0.5, 0.3, 0.3, 0.2, 0.3)),
    "host": (float(np.log(0.03)), (0.7, 0.3, 0.3, 0.3, 0.3)),
    "fixed": (float(np.log(0.1)), (0.7, 0.3, 0.3, 0.3, 0.5)),
    "network": (float(np.log(0.05)), (0.7, 0.5, 0.3, 0.3, 0.5)),
    "level": (0.0, (0.0, 0.0, 0.0, 0.0, 1.5)), "crowd": (0.05, (0.1, 0.05, 0.0, 0.05, 0.05)),
    "nodes": (0.2, (0.3, 0.1, 0.0, 0.1, 0.1)), "convolved": (0.7, (0.4, 0.1, 0.0, 0.2, 0.1)),
    "power": (0.0, (0.2, 0.03, 0.03, 0.03, 0.03)),
}  # fmt: skip
AT = {name: i for i, name in enumerate(PRIORS)}
COUNT, COSTS = len(PRIORS), tuple(PRIORS)[:5]
_SHARED_BY = (0, 2, 1)  # the workload, precision and framework of an app
MOST_EFFECTS = 40
# Log standard deviations of a device's products, memory and host over what its data sheet says; of one
# that has none; and of a device that no run is on, which has another host.
OF_DEVICE, UNLISTED, UNSEEN = (0.2, 0.1, 0.15), (1.0, 0.8, 0.5), (0.2, 0.1, 0.3)
# All costs of a device lie off together: of one that no run is on, and of the middle of those that have runs.
ALL_COSTS, OF_MIDDLE = 0.2, 0.4
# FLOP/s of products, of convolutions, and bytes/s, where the catalogue knows no device of the runs.
_USUAL = (15e12, 15e12, 0.9e12)


@lru_cache(maxsize=4096)
def log_rates(device: Device, precision: str) -> FloatArray:
    """Return the logs of FLOP/s of products and of convolutions, bytes/s, and slowness of launches, (4,)."""
    text = precision.lower() if precision.lower() in PRECISIONS else "fp32"
    flops, bandwidth = effective_rates(device, Workload("", Graph(()), precision=text), Constants())
    slower = GENERATION_LATENCY.get(device.generation.lower(), 1.0)
    products, convolved = (flops[KIND_INDEX[kind]] for kind in (OpKind.MATMUL, OpKind.CONV))
    memory = bandwidth[KIND_INDEX[OpKind.ELEMENTWISE]]
    return np.asarray(np.log([products, convolved, memory, slower]))


def rates_of(rows: hierarchical.HierarchicalRows) -> FloatArray:
    """Return `log_rates` of n jobs, (n, 4), NaN where the catalogue does not know the device."""
    (precisions, index), known = rows.words("precision"), rows.jobs.cluster_index
    pairs, place = np.unique(known * len(precisions) + index, return_inverse=True)
    found = [divmod(pair, len(precisions)) for pair in pairs.tolist()]
    table = [
        log_rates(rows.jobs.clusters[c].device, precisions[p]) if c >= 0 else np.full(4, np.nan)
        for c, p in found
    ]
    return np.asarray(np.array(table).reshape(-1, 4)[place.reshape(-1)])


class RooflineInputs(NamedTuple):
    """n jobs as the law reads them; law: micro-batches are over the middle one of the app.

    rates: logs over those of the middle device, (n, 4). device: among those of the runs, or -1, (n,).
    """

    law: hierarchical.LawInputs
    rates: FloatArray
    device: IntArray


def step_seconds(theta: FloatArray, inputs: RooflineInputs) -> LogTerm:
    """Return the log seconds of n jobs; theta: `PRIORS`, then products, memory and host of each device, (n, p).

        compute  T = ((a / F^e + b / B^e + h) batch + f) busy^q     F: FLOP/s, B: bytes/s, e near 1
        network  N = v 2(k-1)/k / rate, in a node and between nodes
        step       = level (accumulation T + N)

    The ceilings of a roofline (Williams, Waterman and Patterson, CACM 2009) add up over a step's operations.
    """
    x, (products, convolved, memory, slower), device = inputs.law, inputs.rates.T, inputs.device
    devices = (theta.shape[1] - COUNT) // len(OF_DEVICE)

    def of(name: str, times: FloatArray | float = 1.0) -> LogTerm:
        return parameter(theta, AT[name], times)

    def over(rate: FloatArray) -> LogTerm:  # 1 / rate^e
        powered = -np.exp(theta[:, AT["power"]]) * rate
        return LogTerm(powered, {AT["power"]: powered})

    def of_device(which: int) -> LogTerm:
        at = COUNT + which * devices
        slopes = {at + i: (device == i).astype(np.float64) for i in range(devices)}
        logs = np.take_along_axis(theta, at + np.maximum(device, 0)[:, None], 1)[:, 0]
        return LogTerm(np.where(device >= 0, logs, 0.0), slopes)

    host = of_device(2) + slower
    product = of("products") + over(products) - of("convolved", convolved - products) + of_device(0)
    sample = total(product, of("memory") + over(memory) + of_device(1))
    sample = total(sample, of("host") + host) + np.log(x.micro_batch)
    compute = total(sample, of("fixed") + host) + of("crowd", np.log(x.busy))
    ring = of("network") + np.log(hierarchical.USUAL_INTRA_GB)
    inside = ring + hierarchical.ring_share(np.maximum(x.busy, 2.0)) - np.log(x.intra_rate)
    between = ring + hierarchical.ring_share(np.maximum(x.devices, 2.0)) - np.log(x.inter_rate)
    between += of("nodes", np.log(x.nodes))
    network = total(inside.where(x.busy > 1), between.where(x.nodes > 1), hierarchical.LINK_NORM)
    return total(compute + np.log(x.accumulation), network) + of("level") + x.log_steps


@dataclass(frozen=True)
class RunReading:
    """How jobs are read: apps and devices of the runs, and the middle of each.

    middle: log batch of each app, None where it states none. centre: logs of the device's rates, (4,).
    """

    apps: tuple[Kind, ...]
    devices: tuple[str, ...]
    middle: tuple[float | None, ...]
    centre: FloatArray

    def inputs(self, rows: hierarchical.HierarchicalRows, app: IntArray) -> RooflineInputs:
        """Return what the law reads of n jobs; app: of each, (n,)."""
        texts, index = rows.words("device")
        place = {name: i for i, name in enumerate(self.devices)}
        device = np.array([*(place.get(text, -1) for text in texts), -1])[index]
        middle = np.array([np.nan if log is None else log for log in self.middle])[app]
        batch = np.where(np.isnan(middle), 1.0, rows.own_batch / np.exp(middle))
        none, rates = np.full(len(app), np.nan), rates_of(rows) - self.centre
        spans = [None if log is None else (0.0, 0.0) for log in self.middle]
        x = rows.inputs(batch, spans, app, none, none)
        return RooflineInputs(x, np.nan_to_num(rates), device)


@dataclass(frozen=True)
class RooflineModel:
    """The parameters of the apps.

    most: devices and nodes of a run of each app, (apps, 2). sigma: log standard deviation of an app on
    another device, and on its own, (2, apps). runs, shift: of an app on a device, and what they add to the
    law, (apps, devices).
    """

    reading: RunReading
    most: FloatArray
    sigma: FloatArray
    runs: FloatArray
    shift: FloatArray
    posterior: Posterior

    def source(self, app: Kind) -> tuple[int, float]:
        """Return the app whose runs answer, -1 for none, and the log standard deviation that this adds."""
        known = [one for one in self.reading.apps if one[0] == app[0]]
        own = hierarchical.most_alike(app, known) if known else app
        index = self.reading.apps.index(own) if known else -1
        return index, hierarchical.OTHER_APP_SIGMA * hierarchical.contradicts(app, own)

    def times(
        self, rows: hierarchical.HierarchicalRows, app: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return log seconds of n jobs, their variances, distances, (n,), and shares of `COSTS`, (n, 5)."""
        inputs, found = self.reading.inputs(rows, app), self.posterior
        out, here = step_seconds(found.theta[app], inputs), inputs.device >= 0
        slopes = out.matrix(found.theta.shape[1])
        shares = slopes[:, : len(COSTS)]
        runs = np.where(here, self.runs[app, inputs.device], 0.0)
        far, near = self.sigma[:, app] ** 2
        layout = np.stack([inputs.law.devices, inputs.law.nodes], axis=1)
        beyond = np.maximum(np.log2(layout / self.most[app]), 0.0).sum(axis=1)
        variance = near + (far - near) / (1.0 + runs) + (hierarchical.GROWTH_SIGMA * beyond) ** 2
        unseen = ((shares[:, :4] * [*UNSEEN, UNSEEN[-1]]) ** 2).sum(axis=1)
        unseen += ALL_COSTS**2 + OF_MIDDLE**2 / len(self.reading.devices)
        variance += np.where(here, 0.0, unseen)
        for i in np.unique(app):
            variance[app == i] += found.variances(slopes[app == i], int(i))
        distance = (
            hierarchical.NEAR
            + hierarchical.NOT_TOGETHER * ((runs == 0) + 1.0 * ~here)
            + hierarchical.GROWTH_DISTANCE * beyond
        )
        shift = np.where(here, self.shift[app, inputs.device], 0.0)
        return out.log + shift, variance, distance, shares


def fitted_model(
    rows: hierarchical.HierarchicalRows, seconds: FloatArray
) -> tuple[RooflineModel, bool]:
    """Return the model of n runs of seconds (n,), and whether the search ended."""
    (apps, app), (texts, index) = rows.apps, rows.words("device")
    present, device = np.unique(index, return_inverse=True)
    rates, count, devices = rates_of(rows), len(apps), len(present)
    # The middle of the devices, each counted once. Launches are as slow as a new device's.
    each = np.array([rates[device == i].mean(axis=0) for i in range(devices)])
    listed = np.isfinite(each).all(axis=1)
    centre = each[listed, :3].mean(axis=0) if listed.any() else np.log(_USUAL)
    batches = [np.log(rows.own_batch[app == i]) for i in range(count)]
    middle = tuple(float(np.median(b)) if np.isfinite(b).all() else None for b in batches)
    names = tuple(texts[i] for i in present)
    reading = RunReading(tuple(apps), names, middle, np.append(centre, 0.0))
    inputs, logs = reading.inputs(rows, app), np.log(seconds)
    means = [mean for mean, _ in PRIORS.values()]
    start = np.pad(np.tile(means, (count, 1)), ((0, 0), (0, len(OF_DEVICE) * devices)))
    base = logs - step_seconds(start[app], inputs).log
    start[:, AT["level"]] = group_medians(base, app, count).mean(axis=0)
    layout = [app, device, inputs.law.devices, inputs.law.nodes]
    session = np.unique(layout, axis=1, return_inverse=True)[1].reshape(-1)
    weight = 1.0 / (1.0 + hierarchical.SESSION_SHARE * (np.bincount(session)[session] - 1.0))
    observed = Observations(inputs, app, logs, start, weight)
    posterior = fitted(step_seconds, observed, effects_of(apps, listed))
    residual, (runs, shift) = posterior.residual, np.zeros((2, count, devices))
    for i, j in sorted(set(zip(app.tolist(), device.tolist(), strict=True))):
        mine = residual[(app == i) & (device == j)]
        runs[i, j] = len(mine)
        shift[i, j] = float(np.median(mine)) * len(mine) / (len(mine) + 1.0)
    near = hierarchical.residual_sigma(hierarchical.NEW_RUN * (residual - shift[app, device]), app)
    sigma = np.array(
        [np.maximum(hierarchical.residual_sigma(hierarchical.NEW_RUN * residual, app), near), near]
    )
    most = [[of[app == i].max() for of in layout[2:]] for i in range(count)]
    kept = replace(posterior, residual=np.zeros(0))  # what is left of the runs is not saved
    model = RooflineModel(reading, np.array(most), sigma, runs, shift, kept)
    return model, posterior.converged


def effects_of(apps: Sequence[Kind], listed: BoolArray) -> Effects:
    """Return the effects of apps; listed: whether the catalogue knows each device, (devices,)."""
    widths: FloatArray = np.array([widths for _, widths in PRIORS.values()]).T
    widths = np.pad(widths, ((0, 0), (0, len(OF_DEVICE) * len(listed))))
    known, unknown = (np.array(sigma)[:, None] for sigma in (OF_DEVICE, UNLISTED))
    widths[0, COUNT:] = np.where(listed, known, unknown).ravel()
    own, shared = np.tile(widths[-1], (len(apps), 1)), []
    for level, at in enumerate(_SHARED_BY, 1):
        names = [app[at] for app in apps]
        shared += [
            (np.array([n == name for n in names]), widths[level]) for name in dict.fromkeys(names)
        ]
    made = Effects.of(own, shared, MOST_EFFECTS)
    # What all have in common stays apart even of one app: devices are in it.
    every = np.ones((len(apps), 1), dtype=bool)
    return Effects(np.hstack([every, made.members]), np.vstack([widths[:1], made.widths]), made.own)


@dataclass(frozen=True)
class Roofline(SavedPredictor):
    """The fitted law of the time that most runs have; see `step_seconds` for its equation."""

    quantity: str = "step"
    model: RooflineModel | None = None
    warnings: tuple[str, ...] = field(default=())

    name = "roofline"
    version = 1

    def fit(self, runs: Runs) -> Roofline:
        """Return a predictor with the law of these runs alone. Raises RequestError for too few."""
        runs = sorted_runs(runs)
        quantity, seconds = most_timed(runs)
        usable = hierarchical.usable_runs(self.name, runs, seconds, quantity)
        rows = hierarchical.HierarchicalRows(runs.jobs.take(usable), quantity)
        # A batch is read where most runs of an app state one; its others are left out.
        stated, (apps, app) = np.isfinite(rows.own_batch), rows.apps
        most = 2 * np.bincount(app, stated, len(apps)) >= np.bincount(app, minlength=len(apps))
        usable = usable[stated | ~most[app]]
        rows = hierarchical.HierarchicalRows(runs.jobs.take(usable), quantity)
        model, converged = fitted_model(rows, seconds[usable])
        return Roofline(quantity, model, () if converged else (NOT_CONVERGED,))

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs, and what each cost takes of them as parts; memory is not answered."""
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        parts = np.full((len(COSTS), len(jobs)), np.nan)
        blank.declined[:] = "roofline answers from runs alone and was given none; give at least 3"
        if self.model is not None:
            rows = hierarchical.HierarchicalRows(jobs, self.quantity)
            apps, index = rows.apps
            sources = [*(self.model.source(app) for app in apps), (-1, 0.0)]
            app, other = (np.array(column)[index] for column in zip(*sources, strict=True))
            blank.declined[:] = _declined(self.model.reading, rows, app)
            blank = replace(blank, unmeasured=_on_no_run(self.model.reading, rows))
            ready = np.flatnonzero(is_none(blank.declined))
            for now in np.split(ready, range(hierarchical.CHUNK, len(ready), hierarchical.CHUNK)):
                some = hierarchical.HierarchicalRows(jobs.take(now), self.quantity)
                log, variance, blank.distance[now], shares = self.model.times(some, app[now])
                blank.seconds[now] = spread(np.exp(log), np.sqrt(variance + other[now] ** 2))
                parts[:, now] = shares.T * np.exp(log)
        return replace(blank, parts=dict(zip(COSTS, parts, strict=True)), warnings=self.warnings)


def _on_no_run(reading: RunReading, rows: hierarchical.HierarchicalRows) -> BoolArray:
    """Return which rows are on a device that no run is on, (n,)."""
    devices, device = rows.words("device")
    return np.array([name not in reading.devices for name in devices] + [True])[device]


def _declined(
    reading: RunReading, rows: hierarchical.HierarchicalRows, app: IntArray
) -> NDArray[np.object_]:
    reasons = rows.unsuitable.copy()
    batched = np.array([log is not None for log in reading.middle] + [False])[app]
    strange = _on_no_run(reading, rows)
    for missing, words in (
        (app < 0, "no run is of this workload; give runs of it on any device"),
        (batched & np.isnan(rows.own_batch), hierarchical.NO_BATCH),
        (strange & np.isnan(rates_of(rows)[:, 0]),
         "the catalogue does not know the device, and no run is on it; give one run of any workload"
         " there, or add it to a catalogue of your own"),
    ):  # fmt: skip
        reasons[is_none(reasons) & missing] = words
    return reasons
