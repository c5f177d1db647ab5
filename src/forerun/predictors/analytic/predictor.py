"""AnalyticPredictor: answers from the workload's graph and the hardware's data sheet alone.

A framework that is not stated is a mixture over those that people use; the weights are a judgement.
It counts as known where runs without a name were fitted, or where a probe ran one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, alike
from forerun.domain.forecast import Forecasts, is_none, join_forecasts
from forerun.domain.graph import BLOCK_INDEX, PHASE_INDEX, Block, Phase
from forerun.domain.plan import SERVER_SYNCS
from forerun.domain.quantiles import log_sigma, mixture_quantiles, normal_cdf, spread
from forerun.domain.workload import Workload
from forerun.predictors.analytic import saving, uncertainty
from forerun.predictors.analytic.calibration.applying import calibrated
from forerun.predictors.analytic.calibration.fitting import MAX_ROWS, Fit, fit_runs, refitted
from forerun.predictors.analytic.calibration.memory import fit_memory
from forerun.predictors.analytic.constants import Constants, Framework
from forerun.predictors.analytic.flat import FEW_ROWS, narrow, remember, total
from forerun.predictors.analytic.layout import Layout, blocks_of, lay_out
from forerun.predictors.analytic.memory import log_slack, peak_bytes
from forerun.predictors.analytic.partition import cut_rows, layers_of
from forerun.predictors.analytic.step import staleness, step_and_floor
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.suspects import cleaned, suspects

# The conversion of the logits and the loss.
_BLOCKS_AFTER_HEAD = 2
# Rows laid out at once: what instances cost is worked out once for them.
CHUNK = 262144
# Rows whose columns stay in the cache of a core while they are priced.
BLOCK = 32768
VERSION = 5  # of the saved form
# None is rarer than one in ten, or a 5-95 % band could leave out its median.
USUAL: Mapping[str, Mapping[str, float]] = {
    "language": {"pytorch": 0.25, "megatron": 0.20, "deepspeed": 0.14, "nemo": 0.14,
                 "torchtitan": 0.13, "jax": 0.14},
    # PEFT's and its like: the others have no weights in 4 bits.
    "4 bits": {"pytorch": 0.6, "deepspeed": 0.4},
    "other": {"pytorch": 0.55, "tensorflow": 0.17, "jax": 0.14, "tuned": 0.14},
}  # fmt: skip
_MIXTURES = ("", *USUAL)


class AnalyticPredictor:
    """Physics: operation costs, collectives, pipeline and memory, with bands from priors.

    fastest_alone: no cluster gets more out of a device than it does alone with a whole batch in one pass.
    learned: what runs say of each constant. start: where fits started: `priors`, or `shipped`.
    fitted_runs: how many runs they were fitted to since.
    """

    name = "analytic"
    fastest_alone = True

    def __init__(
        self, constants: Constants | None = None, learned: tuple[saving.Learned, ...] = (),
        start: str = "priors", fitted_runs: int = 0,
    ) -> None:  # fmt: skip
        self.constants = constants or Constants()
        self.learned, self.start, self.fitted_runs = learned, start, fitted_runs

    @staticmethod
    def shipped() -> AnalyticPredictor:
        """Return the predictor with the constants fitted to published runs. Raises RequestError."""
        return AnalyticPredictor(*saving.shipped_constants(), start="shipped")

    @staticmethod
    def shipped_made() -> Mapping[str, Any] | None:
        """Return how the shipped constants were made, None where this package holds none."""
        return saving.shipped_made() if saving.has_shipped() else None

    shipped_rows = staticmethod(saving.shipped_rows)

    def fit(self, runs: Runs, most: int = MAX_ROWS) -> AnalyticPredictor:
        """Return a predictor whose constants follow the runs, less suspect figures; at most `most` runs.

        Raises:
            RequestError: no run has both a measured step and a forecast.
        """
        return self.fit_kept(runs, most)[0]

    def fit_kept(self, runs: Runs, most: int = MAX_ROWS) -> tuple[AnalyticPredictor, Fit | None]:
        """Return what `fit` returns, and the fit of steps that it comes from, None where there are none to fit."""
        runs = self._cleaned(sorted_runs(runs))
        usable = runs.take(np.flatnonzero(self._answers(runs)))
        prior = unnamed_prior(usable.jobs, self.constants)
        constants, learned = fit_memory(prior, usable)
        timed = usable.take(np.flatnonzero(np.isfinite(usable.step_seconds())))
        fit = None
        if len(timed) or not learned:
            fit = fit_runs(constants, timed, most)
            constants, of_steps = calibrated(fit)
            learned = (*of_steps, *learned)
        every = {entry.name: entry for entry in (*self.learned, *learned)}
        used = self.fitted_runs + min(len(timed), most)
        return AnalyticPredictor(constants, tuple(every.values()), self.start, used), fit

    def light(self, runs: Runs) -> Callable[[IntArray], AnalyticPredictor]:
        """Return what fits the steps of parts of n runs, given by position; here all are fitted once.

        Raises as `light_kept`.
        """
        fitted = self.light_kept(runs)
        return lambda part: fitted(part)[0]

    def light_kept(self, runs: Runs) -> Callable[[IntArray], tuple[AnalyticPredictor, Fit]]:
        """Return what `light` returns, which also gives the fit that an answer comes from.

        Raises:
            RequestError: no run has both a measured step and a forecast.
        """
        runs = self._cleaned(runs)
        used = np.flatnonzero(self._answers(runs) & np.isfinite(runs.step_seconds()))
        timed = runs.take(used)
        whole = fit_runs(unnamed_prior(timed.jobs, self.constants), timed, len(used))

        def fitted(part: IntArray) -> tuple[AnalyticPredictor, Fit]:
            fit = refitted(whole, np.flatnonzero(np.isin(used, part)))
            return AnalyticPredictor(calibrated(fit)[0], start=self.start), fit

        return fitted

    def _cleaned(self, runs: Runs) -> Runs:
        return cleaned(runs, suspects(runs, self.predict(runs.jobs, detail=False)))

    def _answers(self, runs: Runs) -> BoolArray:
        answered = np.array([reason is None for reason in self.declines(runs.jobs)], dtype=bool)
        # What formulas leave of layers that are cut is no constant's.
        return answered & (runs.jobs.plans.partitions < 2)

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return for each job why it cannot be answered, or None."""
        return list(_reasons(jobs, _plan_problems(jobs, self.constants)))

    def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
        """Return step seconds, peak bytes and (with `detail`) parts of n jobs; declined rows have NaN."""
        problems = _plan_problems(jobs, self.constants)
        declined = _reasons(jobs, problems)
        ok = is_none(declined)
        rows = np.flatnonzero(ok)
        if len(rows) == len(jobs) > 0:
            return self._answered(jobs, detail)
        blank = replace(
            Forecasts.blank(1, self.name), usable_bytes=np.full(1, np.nan),
            unmeasured=np.zeros(1, dtype=bool),
        )  # fmt: skip
        # Declined rows take the blank one that stands behind the answers.
        pieces = [self._answered(jobs.take(rows), detail), blank] if len(rows) else [blank]
        found = join_forecasts(pieces).take(np.where(ok, np.cumsum(ok) - 1, len(rows)))
        resolved = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
        impossible = np.where(resolved & ~is_none(problems), 0.0, np.nan)
        fit_probability = np.where(ok, found.fit_probability, impossible)
        return replace(found, declined=declined, fit_probability=fit_probability)

    def _answered(self, jobs: Jobs, detail: bool) -> Forecasts:
        if detail and len(jobs) > FEW_ROWS:  # tables ask of the same plan again; searches do not
            said, labels = list[Any](), jobs.labels
            if labels is not None:  # what a row says of the place where it runs
                said = [
                    uncertainty.settings_of(jobs).astype(str),
                    labels.numbers("cpus_per_worker"),
                ]
            apart = [np.unique(column, return_inverse=True)[1] for column in said]
            of_plan = vars(jobs.plans).values()
            position, first = alike([jobs.workload_index, jobs.cluster_index, *apart, *of_plan])
            if 2 * len(first) < len(jobs):
                return self._answered(jobs.take(first), detail).take(position)
        codes = mixture_codes(jobs, self.constants)
        pieces, order = list[Forecasts](), []
        for code in np.flatnonzero(np.bincount(codes)):
            rows, key = np.flatnonzero(codes == code), _MIXTURES[code]
            # Searches of many plans take networks with attention for one typical framework, which comes near.
            many = any(jobs.workloads[i].shape.heads for i in np.unique(jobs.workload_index[rows]))
            if key and (detail or not many):
                size = BLOCK // len(USUAL[key])
                parts = np.split(rows, np.arange(size, len(rows), size))
                mix = partial(self._mixed, jobs, key, detail)
                with ThreadPoolExecutor(2) as pool:  # NumPy's loops let another thread run
                    pieces += (pool.map if len(parts) > 1 else map)(mix, parts)
            else:
                part, own = jobs if len(rows) == len(jobs) else jobs.take(rows), self.constants
                usual = partial(typical, shares=USUAL[key]) if key else None
                constants = remember(own, usual, f"usual in {key}") if usual else own
                pieces.append(self._priced(part, constants, detail))
            order.append(rows)
        if len(pieces) == 1:
            return pieces[0]
        return join_forecasts(pieces).take(np.argsort(np.concatenate(order), kind="stable"))

    def _mixed(self, jobs: Jobs, key: str, detail: bool, rows: IntArray) -> Forecasts:
        names = tuple(USUAL[key])
        shift = np.repeat(np.arange(len(names)) * len(jobs.workloads), len(rows))
        many = jobs.take(np.tile(rows, len(names)))
        many = replace(
            many,
            workloads=tuple(
                remember(w, partial(replace, framework=name), f"on {name}")
                for name in names
                for w in jobs.workloads
            ),
            workload_index=(many.workload_index + shift).astype(np.int32),
        )
        return mixed(self._priced(many, self.constants, detail), USUAL[key])

    def _priced(self, jobs: Jobs, constants: Constants, detail: bool = True) -> Forecasts:
        chunks = np.split(np.arange(len(jobs)), np.arange(CHUNK, len(jobs), CHUNK))
        parts = (jobs.take(rows) for rows in chunks) if len(chunks) > 1 else (jobs,)
        pieces = [forecast_layout(lay_out(part, constants), constants, detail) for part in parts]
        return join_forecasts(pieces) if len(pieces) > 1 else pieces[0]

    def to_json(self) -> str:
        """Return the constants, and what was learned of them, as JSON text."""
        return saving.text_of({
            "predictor": self.name, "version": VERSION, "start": self.start,
            "fitted_runs": self.fitted_runs, "constants": asdict(self.constants),
            "learned": saving.rows_of(self.learned),
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> AnalyticPredictor:
        """Return a saved predictor. Raises RequestError for anything else, or another version."""

        def made(saved: Mapping[str, Any]) -> AnalyticPredictor:
            constants = saving.with_changes(Constants(), saved["constants"])
            learned = saving.learned_of(saved["learned"])
            return AnalyticPredictor(
                constants, learned, str(saved["start"]), int(saved["fitted_runs"])
            )

        return read_saved(text, "an analytic model", VERSION, made)


def forecast_layout(layout: Layout, constants: Constants, detail: bool) -> Forecasts:
    """Return forecasts for jobs laid out."""
    known, blocks = uncertainty.evidence(layout.jobs, constants), blocks_of(layout.jobs, BLOCK)
    pieces = []
    for part, whole in zip(blocks, layout.blocks(constants, blocks), strict=True):
        near = {name: values[part] for name, values in known.items()}
        rows = held = whole
        if layout.jobs.plans.partitions[part].max(initial=1) > 1:
            jobs = layout.jobs.take(np.arange(len(layout.jobs))[part])
            rows, held = cut_rows(whole, jobs, constants)
        elif not detail:
            rows = held = whole.narrow
            near = narrow(near)
        parts, middle, floor = step_and_floor(rows, constants)
        peak, memory_parts = peak_bytes(held, constants)
        exposed, faster = uncertainty.exposures(rows, parts, near, constants)
        slack, far = log_slack(held, peak, constants), uncertainty.distance_parts(rows, near)
        sigma, below = uncertainty.step_sigmas(exposed, faster, constants)
        tails = (constants.tail_low * below / sigma, constants.tail_high)
        n = (len(rows),)
        pieces.append(Forecasts(
            quantity="step",
            seconds=spread(middle, sigma, floor, tails),
            peak_bytes=spread(peak, uncertainty.memory_sigma(rows, near, constants)),
            fit_probability=normal_cdf(slack / uncertainty.memory_sigma(rows, near, constants, "sigma_fits")),
            floor_seconds=np.broadcast_to(floor, n),
            distance=np.broadcast_to(total(far.values()), n),
            usable_bytes=peak * np.exp(slack),
            unmeasured=np.broadcast_to(near["device_evidence"] == 0.0, n),
            predictor=AnalyticPredictor.name,
            declined=np.full(len(rows), None, dtype=object),
            causes=uncertainty.step_causes(exposed, parts, constants) if detail else {},
            distance_parts=far if detail else {},
            parts={**parts, "floor": middle - total(parts.values())} if detail else {},
            memory_parts=memory_parts if detail else {},
            staleness=staleness(rows, constants) if detail else {},
        ))  # fmt: skip
    return join_forecasts(pieces) if len(pieces) > 1 else pieces[0]


def _plan_problems(jobs: Jobs, constants: Constants) -> NDArray[np.object_]:
    reasons, plans = np.full(len(jobs), None, dtype=object), jobs.plans
    is_cut = plans.partitions > 1
    for i, workload in enumerate(jobs.workloads if is_cut.any() else ()):
        widest = int(layers_of(workload.graph).units.max(initial=0)) if workload.graph.ops else 0
        reasons[is_cut & (jobs.workload_index == i) & (plans.partitions > widest)] = (
            f"the widest layer of {workload.name} has {widest:,} channels, neurons or heads to cut; use"
            f" partitions={max(widest, 1)} at most"
        )
    for i, workload in enumerate(jobs.workloads):
        layers = workload.shape.layers
        if not constants.framework(workload.framework).counts_head or not layers:
            continue
        columns = workload.graph.columns
        weights = columns.weights * columns.repeat * (columns.phase == PHASE_INDEX[Phase.FORWARD])
        one = weights[columns.block == BLOCK_INDEX[Block.LAYER]].sum() / layers
        head = weights[columns.block == BLOCK_INDEX[Block.HEAD]].sum()
        filled = np.ceil(plans.pp * layers / (layers + head / max(one, 1.0)) - 1e-9)
        ours = (jobs.workload_index == i) & (plans.pp > 1) & (plans.vpp == 1)
        for row in np.flatnonzero(ours & (filled + _BLOCKS_AFTER_HEAD < plans.pp)):
            reasons[row] = (
                f"{workload.framework} deals {layers} layers and the head to pp = {plans.pp[row]} "
                "stages by their weights, which leaves the last without any; lower pp"
            )
    stated = jobs.plan_problem
    return reasons if stated is None else np.where(is_none(stated), reasons, stated)


def _reasons(jobs: Jobs, plan_problems: NDArray[np.object_]) -> NDArray[np.object_]:
    reasons = np.full(len(jobs), None, dtype=object)
    for problems in (jobs.workload_problem, jobs.cluster_problem, jobs.plan_problem):
        if problems is not None:
            reasons = np.where(is_none(reasons), problems, reasons)
    for index, word in ((jobs.workload_index, "workload"), (jobs.cluster_index, "device")):
        if (index < 0).any():
            reasons[is_none(reasons) & (index < 0)] = f"its {word} is not known"
    for i, workload in enumerate(jobs.workloads):
        if workload.graph.forward_flops <= 0:
            idle = is_none(reasons) & (jobs.workload_index == i)
            reasons[idle] = f"{workload.name} states no operations to time"
        if workload.params <= 0:
            vain = is_none(reasons) & (jobs.workload_index == i)
            vain &= np.isin(jobs.plans.sync, SERVER_SYNCS)
            reasons[vain] = (
                f"{workload.name} states no parameters for servers to pass; use sync=allreduce"
            )
    return np.where(is_none(reasons), plan_problems, reasons)


def usual_frameworks(workload: Workload) -> str:
    """Return the key in `USUAL` of a workload: `language` for transformers that read tokens."""
    if workload.graph.quantized:
        return "4 bits"
    return "language" if workload.shape.heads > 0 and workload.seq_len > 0 else "other"


def mixture_codes(jobs: Jobs, constants: Constants) -> IntArray:
    """Return which of `_MIXTURES` each resolved row is, (n,); 0 where its framework is known."""
    codes = np.array([
        0 if constants.knows_framework(w.framework) else _MIXTURES.index(usual_frameworks(w))
        for w in jobs.workloads
    ], dtype=np.int64)  # fmt: skip
    probed = np.array([c.device.measured is not None for c in jobs.clusters], dtype=bool)
    return np.where(probed[jobs.cluster_index], 0, codes[jobs.workload_index])


_SWITCHES = ("counts_head", "wide_weights")  # a mean does what most do


def typical(constants: Constants, shares: Mapping[str, float]) -> Constants:
    """Return constants whose unnamed profile is the mean of frameworks' profiles, weighted by shares."""
    profiles = [constants.frameworks[name] for name in shares]

    def mean(name: str) -> float:
        values = [getattr(profile, name) for profile in profiles]
        if name == "half_grad_bytes":  # 0 stands for the bytes of any other gradient
            values = [value or p.grad_bytes for value, p in zip(values, profiles, strict=True)]
        average = float(np.average(values, weights=list(shares.values())))
        return float(round(average)) if name in _SWITCHES else average

    unnamed = Framework(**{field.name: mean(field.name) for field in fields(Framework)})
    return replace(constants, frameworks={**constants.frameworks, "": unnamed})


def unnamed_prior(jobs: Jobs, constants: Constants) -> Constants:
    """Return the constants that a fit starts from: the mixtures' mean for runs of no framework."""
    counts = np.bincount(mixture_codes(jobs, constants), minlength=len(_MIXTURES))
    shares: dict[str, float] = {}
    for key, count in zip(_MIXTURES[1:], counts[1:].tolist(), strict=True):
        for name, share in USUAL[key].items() if count else ():
            shares[name] = shares.get(name, 0.0) + count * share
    return typical(constants, shares) if shares else constants


def mixed(each: Forecasts, shares: Mapping[str, float]) -> Forecasts:
    """Return forecasts of n jobs as mixtures of k frameworks, given one after another, (k n,)."""
    weights, n = np.array(list(shares.values())), len(each) // len(shares)

    def mean(values: FloatArray) -> FloatArray:
        return np.asarray(weights @ values.reshape(len(weights), n))

    def means(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        return {name: mean(values) for name, values in columns.items()}

    def scaled(columns: dict[str, FloatArray], whole: FloatArray) -> dict[str, FloatArray]:
        share = whole / total(columns.values()) if columns else whole
        return {name: values * share for name, values in columns.items()}

    seconds, peaks = (
        mixture_quantiles(values.reshape(len(weights), n, 3), weights)
        for values in (each.seconds, each.peak_bytes)
    )
    causes, variance = means(each.causes), log_sigma(seconds) ** 2
    # What the frameworks differ by is an error that all plans of the workload share.
    if causes:
        causes["framework: compute"] += np.maximum(variance - total(causes.values()), 0.0)
    return replace(
        each, seconds=seconds, peak_bytes=peaks, fit_probability=mean(each.fit_probability),
        floor_seconds=mean(each.floor_seconds), distance=mean(each.distance),
        usable_bytes=None if each.usable_bytes is None else mean(each.usable_bytes),
        unmeasured=None if each.unmeasured is None else each.unmeasured[:n],
        declined=each.declined[:n], causes=scaled(causes, variance),
        distance_parts=means(each.distance_parts), parts=scaled(means(each.parts), seconds[:, 1]),
        memory_parts=scaled(means(each.memory_parts), peaks[:, 1]), staleness=means(each.staleness),
        frameworks=dict(zip(shares, each.seconds[:, 1].reshape(len(weights), n), strict=True)),
    )  # fmt: skip
