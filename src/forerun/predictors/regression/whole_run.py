"""WholeRun: seconds of a run until its target, from runs that time no step: devices by physics, and what each name adds.

log seconds = -log(devices x speed) + a line and a process of what is stated + an effect of each name + noise
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.hardware import Device
from forerun.domain.quantiles import spread
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import measured
from forerun.predictors.regression.gaussian import (
    MOST_POINTS,
    OTHER_SETTINGS,
    TUNED_POINTS,
    GaussianBlock,
    fitted_block,
)
from forerun.predictors.regression.job_features import (
    Categories,
    JobFeatures,
    StatedNumbers,
    distinct_forecasts,
)
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted

# What has an effect of its own by name. A job of which no run shares one of `_KNOWN` is not answered.
_KNOWN = ("dataset", "workload")
_NAMES = (
    *_KNOWN, "target", "framework", "optimizer", "learning_rate_rule", "precision", "sync",
    "device",
)  # fmt: skip
_SPEEDS = ("flops", "bytes_per_second")
LEAST_RUNS = 4
# Distance where runs are of the same kind of job, of its workload, and of its dataset alone.
_DISTANCES = (0.2, 0.5, 0.9)


def _base(work: FloatArray, usual: tuple[float, ...]) -> FloatArray:
    """Return the log of devices times speed that a time is relative to, (n,): 0 where no run states any."""
    return np.where(np.isfinite(work), work, usual[0]) if usual else np.zeros(len(work))


def _speeds(device: Device) -> tuple[float, float]:
    """Return FLOP/s of the fastest precision to train in, which a run to a target is free to choose, and memory bytes/s."""
    rates = [device.peak_flops.get(name, 0.0) for name in ("fp32", "tf32", "bf16", "fp16")]
    return max(rates) or np.nan, device.memory_bytes_per_second or np.nan


class RunFeatures(JobFeatures):
    """n jobs as a whole run sees them: the speeds of their devices beside other numbers, and each name by itself."""

    @cached_property
    def numbers(self) -> Mapping[str, FloatArray]:
        """As of `JobFeatures`, with the batch, and the speeds of a device, NaN where the catalogue does not know it."""
        known = [_speeds(cluster.device) for cluster in self.jobs.clusters]
        speeds = np.array([*known, (np.nan, np.nan)])[self.jobs.cluster_index].T
        more = {
            "global_batch": self.rows.size("global_batch"),
            **dict(zip(_SPEEDS, speeds, strict=True)),
        }
        return StatedNumbers({**super().numbers, **more})

    @cached_property
    def categories(self) -> Categories:
        """`_NAMES` each alone, then the kind of job and the session as of `JobFeatures`."""
        found = {name: self.rows.words(name, row_first=name == "framework") for name in _NAMES}
        whole = super().categories
        return {**found, "kind": whole["kind"], "session": whole["session"]}

    @property
    def log_work(self) -> FloatArray:
        """Log of devices times speed, (n,): between its FLOP/s and its bytes/s, as which of them binds is not known."""
        speed = np.mean([np.log(self.numbers[name]) for name in _SPEEDS], axis=0)
        return np.asarray(speed + np.log(self.numbers["devices"]))


@dataclass(frozen=True)
class WholeRun(SavedPredictor):
    """Seconds of whole runs, each until its own target, pooled over workloads, datasets, frameworks and devices.

    Attributes:
        block: a process of log seconds times devices and their speed.
        work: median and standard deviation of the log of devices times speed, where a job does not state them; empty where
            no run states them, which then count for nothing.
        known: the texts of each category among the runs.
        most, tuned: points of the process, and points that its hyper-parameters are tuned on.
    """

    block: GaussianBlock | None = None
    work: tuple[float, ...] = ()
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    most: int = MOST_POINTS
    tuned: int = TUNED_POINTS

    name = "whole-run"
    version = 2
    as_they_were_run: ClassVar[bool] = (
        True  # it reads what a row states, and no plan that was chosen for it
    )

    def light(self, runs: Runs) -> Callable[[IntArray], WholeRun]:
        """Return what fits parts of the runs, by position, on fewer points, for choosing among predictors."""
        less = WholeRun(most=min(self.most, 400), tuned=min(self.tuned, 150))
        return lambda part: less.fit(runs.take(part))

    def fit(self, runs: Runs) -> WholeRun:
        """Return one that has learned from these runs alone, those that were stopped left out.

        Raises:
            RequestError: fewer than four runs that ended have a time_to_train_s.
        """
        runs = sorted_runs(runs)
        seconds = measured(runs, "run")
        use = np.flatnonzero(np.isfinite(seconds))
        if len(use) < LEAST_RUNS:
            raise RequestError(
                f"fitting {self.name} on {counted(len(runs), 'run')}",
                f"{len(use)} that ended have a time of the whole run",
                f"give {LEAST_RUNS} or more with time_to_train_s",
            )
        features = RunFeatures(runs.jobs.take(use))
        work = features.log_work
        stated = work[np.isfinite(work)]
        usual = (float(np.median(stated)), float(np.std(stated))) if len(stated) else ()
        base = _base(work, usual)
        block = fitted_block(
            features, seconds[use] * np.exp(base), most=self.most, tuned=self.tuned
        )
        # A number that all runs state and a job does not is taken to be the middle of theirs.
        middles = np.nanmedian(block.design.matrix(features.numbers), axis=0).tolist()
        fills = {**dict(zip(block.design.names, middles, strict=True)), **block.design.fills}
        block = replace(block, design=replace(block.design, fills=fills))
        known = {
            name: tuple(sorted(texts[i] for i in np.unique(index).tolist()))
            for name, (texts, index) in features.categories.items()
        }
        return replace(self, block=block, work=usual, known=known)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of the whole runs of n jobs; memory is not answered (NaN)."""
        return distinct_forecasts(jobs, self._answers)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        made = Forecasts.blank(len(jobs), self.name, "run")
        features = RunFeatures(jobs)
        if self.block is None:
            made.declined[:] = (
                f"{self.name} answers from runs alone and was given none; give runs with time_to_train_s"
            )
            return made
        met = {}  # which jobs share a stated name with a run, (n,), by column
        for name, known in self.known.items():
            texts, index = features.categories[name]
            met[name] = np.isin(texts, [*{*known} - {""}])[index.astype(np.int64)]
        made.declined[:] = self._reasons(features, met)
        rows = np.flatnonzero(is_none(made.declined))
        if not len(rows):
            return made
        part = RunFeatures(jobs.take(rows))
        middle, sigma, _ = self.block.answers(part)
        work = part.log_work
        # Where all runs share one name, none says by how much another one changes a run.
        alone = [name for name, texts in self.known.items() if len(texts) == 1 and texts != ("",)]
        other = sum((~met[name][rows] for name in alone), np.zeros(len(rows)))
        unsure = self.work[1] if self.work else 0.0
        wide = np.where(np.isfinite(work), 0.0, unsure) ** 2 + other * OTHER_SETTINGS**2
        middle = middle - _base(work, self.work)
        made.seconds[rows] = spread(
            np.exp(middle), np.sqrt(sigma**2 + wide), tails=self.block.tails
        )
        near = np.where(met["workload"], _DISTANCES[1], _DISTANCES[2])
        made.distance[rows] = np.where(met["kind"], _DISTANCES[0], near)[rows]
        return made

    def _reasons(self, features: RunFeatures, met: Mapping[str, BoolArray]) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,)."""
        texts, index = features.categories["workload"]
        why = [
            f"no run of {text or '(blank)'} or on its dataset, and a whole run can be of any length; give one"
            for text in texts
        ]
        # Several workloads on datasets say how far apart they are; a workload alone does not.
        spoken = met["workload"] | (met["dataset"] & (len(self.known["workload"]) > 1))
        reasons = np.array(why, dtype=object)[index.astype(np.int64)]
        reasons[spoken] = None
        problems = features.rows.problems
        return np.where(is_none(problems), reasons, problems)

    @property
    def formulas(self) -> dict[str, str]:
        """What the process goes by, the features that matter most first."""
        mean = "-log(devices x their speed) + "
        return {} if self.block is None else {"all runs": self.block.words("run", mean)}
