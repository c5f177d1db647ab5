"""AnalyticPredictor: answers from the workload's graph and the hardware's data sheet alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.forecast import DETAILS, Forecasts, is_none
from forerun.domain.graph import BLOCK_INDEX, PHASE_INDEX, Block, Phase
from forerun.domain.quantiles import spread
from forerun.domain.workload import Workload
from forerun.predictors.analytic.calibration import MAX_ROWS, Learned, calibrated, fit_memory
from forerun.predictors.analytic.calibration.manner import USUAL, Manner
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.memory import log_slack, peak_bytes
from forerun.predictors.analytic.mixture import mixed, mixture_keys, typical
from forerun.predictors.analytic.rows import Layout, fastest_rates, lay_out, remember, taught
from forerun.predictors.analytic.saving import learned_of, rows_of, text_of, with_changes
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import (
    distance,
    distance_parts,
    exposures,
    fits,
    memory_sigma,
    step_causes,
    step_sigma,
)
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.suspects import cleaned, suspects

# The conversion of the logits and the loss.
_BLOCKS_AFTER_HEAD = 2
# Rows in one pass: long enough that calls cost little, short enough for memory.
CHUNK = 65536
# Of the saved form: constants changed their meaning since older ones.
VERSION = 3


class AnalyticPredictor:
    """Physics: operation costs, collectives, pipeline and memory, with bands from priors.

    It needs no runs. It declines jobs whose workload, device or plan is not known or not legal,
    and those whose step holds nothing that it could time.

    Args:
        constants: the priors by default.
        learned: what runs said of each constant.
        start: which constants fits started from: `priors`, or `shipped`.
        fitted_runs: how many runs have taught them since.
    """

    name = "analytic"

    def __init__(
        self, constants: Constants | None = None, learned: tuple[Learned, ...] = (),
        start: str = "priors", fitted_runs: int = 0,
    ) -> None:  # fmt: skip
        self.constants = constants or Constants()
        self.learned = learned
        self.start = start
        self.fitted_runs = fitted_runs
        self._kept: dict[Any, Any] = {}

    @staticmethod
    def shipped() -> AnalyticPredictor:
        """Return the predictor with the constants that published runs have taught.

        Raises:
            RequestError: they cannot be read.
        """
        from forerun.predictors.analytic.shipped import shipped_constants

        return AnalyticPredictor(*shipped_constants(), start="shipped")

    @staticmethod
    def shipped_made() -> Mapping[str, Any] | None:
        """Return how the shipped constants were made, None where this package holds none.

        Raises as `shipped`.
        """
        from forerun.predictors.analytic.shipped import has_shipped, shipped_made

        return shipped_made() if has_shipped() else None

    @staticmethod
    def shipped_rows() -> Mapping[str, str]:
        """Return fingerprints of the runs that taught the shipped constants, packed, by table.

        Raises as `shipped`.
        """
        from forerun.predictors.analytic.shipped import shipped_rows

        return shipped_rows()

    def fit(self, runs: Runs, most: int = MAX_ROWS, manner: Manner = USUAL) -> AnalyticPredictor:
        """Return a predictor whose constants follow the runs; this one does not change.

        See `calibration`: constants that the runs do not identify stay at their priors. Figures
        that cannot be what they say (see `tables.suspects`) teach nothing. No more than `most` runs
        are used, drawn evenly from workloads and clusters. manner: how the fit is made.

        Raises:
            RequestError: no run has both a measured step and a forecast.
        """
        runs = sorted_runs(runs)
        runs = cleaned(runs, suspects(runs, self.predict(runs.jobs, detail=False)))
        told = runs.take(np.flatnonzero(is_none(self._refusals(runs.jobs))))
        memory = fit_memory(self.constants, told, self._kept)
        timed = told.take(np.flatnonzero(np.isfinite(told.step_seconds())))
        constants: Constants = memory.applied(self.constants)
        learned: tuple[Learned, ...] = ()
        if len(timed) or not memory.learned:
            constants, learned = calibrated(constants, timed, self._kept, most, manner)
        before = {entry.name: entry for entry in self.learned}
        now = {entry.name: entry for entry in (*learned, *memory.learned)}
        every = tuple({**before, **now}.values())
        used = min(len(timed), most)
        return AnalyticPredictor(constants, every, self.start, self.fitted_runs + used)

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return for each job why it cannot be answered, or None."""
        return list(self._refusals(jobs))

    def _refusals(self, jobs: Jobs) -> NDArray[np.object_]:
        reasons = _reasons(jobs)
        return np.where(is_none(reasons), _empty_stages(jobs, self.constants), reasons)

    def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
        """Return step seconds and peak bytes for n jobs.

        Args:
            jobs: the questions; rows that are declined carry their reason and NaN.
            detail: also return the parts of step and peak.
        """
        declined = self._refusals(jobs)
        ok = is_none(declined)
        if ok.all() and len(ok):
            return replace(self._answered(jobs, detail), declined=declined)
        result = Forecasts.blank(len(jobs), self.name)
        rows = np.flatnonzero(ok)
        result.declined[:] = declined
        result.fit_probability[~ok] = np.where(
            (_impossible(jobs) | ~is_none(_empty_stages(jobs, self.constants)))[~ok], 0.0, np.nan
        )
        if not len(rows):
            return result
        part = self._answered(jobs.take(rows), detail)
        return _scatter(result, part, rows)

    def _answered(self, jobs: Jobs, detail: bool) -> Forecasts:
        """Return forecasts of resolved jobs; frameworks that are not stated are mixtures."""
        keys = mixture_keys(jobs, self.constants)
        pieces, order = [], []
        for key in dict.fromkeys(keys.tolist()):
            rows = np.flatnonzero(keys == key)
            part = jobs if len(rows) == len(jobs) else jobs.take(rows)
            if not key:
                found = self._priced(part, self.constants, detail)
            elif detail:
                found = mixed(
                    part, key, partial(self._priced, constants=self.constants), self._named
                )
            else:
                found = self._priced(part, typical(self.constants, key), detail)
            pieces.append(found)
            order.append(rows)
        if len(pieces) == 1:
            return pieces[0]
        return _join(pieces).take(np.argsort(np.concatenate(order), kind="stable"))

    def _named(self, workload: Workload, framework: str) -> Workload:
        """Return a workload under a framework; it is the same object at every call."""
        made: Workload = remember(
            self._kept, f"on {framework}", workload, replace, workload, framework=framework
        )
        return made

    def _priced(self, jobs: Jobs, constants: Constants, detail: bool = True) -> Forecasts:
        """Return forecasts of resolved jobs whose frameworks have profiles among the constants."""
        if len(jobs) > CHUNK:
            starts = range(0, len(jobs), CHUNK)
            pieces = [
                self._priced(jobs.take(np.arange(s, min(s + CHUNK, len(jobs)))), constants, detail)
                for s in starts
            ]
            return _join(pieces)
        return forecast_layout(lay_out(jobs, constants, self._kept), constants, detail)

    def to_json(self) -> str:
        """Return the constants, and what was learned of them, as JSON text."""
        return text_of({
            "predictor": self.name, "version": VERSION, "start": self.start,
            "fitted_runs": self.fitted_runs, "constants": self.constants.to_dict(),
            "learned": rows_of(self.learned),
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> AnalyticPredictor:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> AnalyticPredictor:
            constants = with_changes(Constants(), saved["constants"])
            learned = learned_of(saved["learned"])
            return AnalyticPredictor(
                constants, learned, str(saved["start"]), int(saved["fitted_runs"])
            )

        return read_saved(text, "an analytic model", VERSION, made)


def forecast_layout(layout: Layout, constants: Constants, detail: bool) -> Forecasts:
    """Return forecasts for jobs laid out."""
    rows, known = layout.rows(constants), taught(layout.jobs, constants)
    n = len(rows)
    parts, middle, floor = step_and_floor(rows, fastest_rates(layout.jobs), constants)
    peak, memory_parts = peak_bytes(rows, constants)
    peaks = spread(peak, memory_sigma(rows, known, constants))
    step = np.asarray(sum(parts.values(), np.zeros(n)))
    exposed = exposures(rows, parts, known)
    seconds = spread(
        middle,
        step_sigma(exposed, constants),
        floor,
        (constants.tail_low, constants.tail_high),
    )
    slack = log_slack(rows, peak, constants)
    room = fits(rows, slack, known, constants)
    return Forecasts(
        quantity="step",
        seconds=seconds,
        peak_bytes=peaks,
        fit_probability=room,
        floor_seconds=floor,
        distance=distance(rows, known),
        usable_bytes=peak * np.exp(slack),
        predictor=AnalyticPredictor.name,
        declined=np.full(n, None, dtype=object),
        causes=step_causes(exposed, parts, constants) if detail else {},
        distance_parts=distance_parts(rows, known) if detail else {},
        parts={**parts, "floor": middle - step} if detail else {},
        memory_parts=memory_parts if detail else {},
    )


def _reasons(jobs: Jobs) -> NDArray[np.object_]:
    reasons = np.full(len(jobs), None, dtype=object)
    for problems in (jobs.workload_problem, jobs.cluster_problem, jobs.plan_problem):
        if problems is not None:
            blank = is_none(reasons)
            reasons[blank] = problems[blank]
    for index, word in ((jobs.workload_index, "workload"), (jobs.cluster_index, "device")):
        missing = is_none(reasons) & (index < 0)
        reasons[missing] = f"its {word} is not known"
    idle = [i for i, w in enumerate(jobs.workloads) if w.graph.forward_flops <= 0]
    for i in idle:
        nothing = is_none(reasons) & (jobs.workload_index == i)
        reasons[nothing] = f"{jobs.workloads[i].name} states no operations to time"
    return reasons


def _empty_stages(jobs: Jobs, constants: Constants) -> NDArray[np.object_]:
    """Return why each job's framework cannot lay out its pipeline, (n,) of str or None.

    One that deals layers and head to stages by their weights (see `stages.layer_shares`) may leave the
    last stages with nothing, once the conversion of the logits and the loss are dealt too.
    """
    reasons, plans = np.full(len(jobs), None, dtype=object), jobs.plans
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
    return reasons


def _impossible(jobs: Jobs) -> NDArray[np.bool_]:
    if jobs.plan_problem is None:
        return np.zeros(len(jobs), dtype=bool)
    known = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    return np.asarray(known & ~is_none(jobs.plan_problem))


def _map(make: Callable[[str], Any]) -> dict[str, Any]:
    names = ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance", "declined",
             "usable_bytes")  # fmt: skip
    return {name: make(name) for name in names}


def _join(pieces: list[Forecasts]) -> Forecasts:
    first = pieces[0]

    def column(name: str, key: str) -> FloatArray:
        columns = [getattr(p, name).get(key, np.full(len(p), np.nan)) for p in pieces]
        return np.concatenate(columns)

    details: dict[str, Any] = {
        name: {
            key: column(name, key)
            for key in dict.fromkeys(k for p in pieces for k in getattr(p, name))
        }
        for name in DETAILS
    }
    return replace(
        first,
        **_map(lambda name: np.concatenate([getattr(p, name) for p in pieces])),
        **details,
    )


def _scatter(blank: Forecasts, part: Forecasts, rows: NDArray[np.int64]) -> Forecasts:
    n = len(blank)

    def spread_out(values: FloatArray) -> FloatArray:
        out = np.full(n, np.nan)
        out[rows] = values
        return out

    for name in ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance"):
        getattr(blank, name)[rows] = getattr(part, name)
    usable = None if part.usable_bytes is None else spread_out(part.usable_bytes)
    return replace(blank, usable_bytes=usable, **part.details(spread_out))
