"""Gaussian: log times as Gaussian processes of what runs state, one for each kind with many runs.

A mean, and what a Matern 5/2 kernel learns of its errors (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006). The mean of a step by all-reduce is the hierarchical law, which keeps its
shape beyond the runs; of other times it is a line in the logarithms of devices, batch and data. Runs
of one session, the same devices laid in the same way, share an error of their own.

Stopped: runs that were stopped before they ended say how long they would have taken at least.

Physics: the law whose errors a process learns, where there is one.

Asked: numbers and classes of jobs, or of some of them, as blocks of runs read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.plan import SYNC
from forerun.domain.quantiles import Z95, normal_cdf, spread
from forerun.errors import RequestError
from forerun.predictors.laws.hierarchical import Hierarchical
from forerun.predictors.laws.law_rows import GROUP, Kind, measured
from forerun.predictors.regression.block import (
    MOST_POINTS,
    TUNED_POINTS,
    Block,
    Categories,
    fitted_block,
)
from forerun.predictors.regression.questions import Questions, distinct_jobs, kind_words
from forerun.predictors.regression.serving import POOL, served
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, Table, sorted_runs


@dataclass(frozen=True)
class Asked:
    """Numbers and classes of n jobs, or of some of them."""

    questions: Questions
    some: IntArray | None = None

    def take(self, rows: IntArray) -> Asked:
        """Return some of the jobs."""
        return Asked(self.questions, rows if self.some is None else self.some[rows])

    @cached_property
    def numbers(self) -> Mapping[str, FloatArray]:
        """Positive numbers by name, each (n,), NaN where nothing says one."""
        every = self.questions.numbers
        return every if self.some is None else {k: v[self.some] for k, v in every.items()}

    @property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds, and which each job is, (n,)."""
        names, index = self.questions.kinds
        return names, index if self.some is None else index[self.some]

    @cached_property
    def categories(self) -> Categories:
        """Workload, device, kind, and session within a kind."""
        names, kind = self.kinds
        texts, index = self.questions.sessions
        session = index if self.some is None else index[self.some]
        both, place = np.unique(kind * max(len(texts), 1) + session, return_inverse=True)
        pairs = [divmod(value, max(len(texts), 1)) for value in both.tolist()]
        found: dict[str, tuple[list[str], IntArray]] = {}
        for column, name in enumerate(GROUP):
            found[name] = _renumbered([k[column] for k in names], kind)
        found["kind"] = _renumbered(["|".join(k) for k in names], kind)
        words = ["|".join((*names[one], texts[other])) for one, other in pairs]
        found["session"] = _renumbered(words, place.reshape(-1).astype(np.int64))
        return found


def _renumbered(texts: list[str], index: IntArray) -> tuple[list[str], IntArray]:
    """Return the distinct texts that occur, and which each row has, (n,)."""
    used = np.unique(index)
    merged = list(dict.fromkeys(texts[i] for i in used.tolist()))
    order = {text: i for i, text in enumerate(merged)}
    place = np.full(len(texts), -1, dtype=np.int64)
    place[used] = [order[texts[i]] for i in used.tolist()]
    return merged, place[index]


# With so many readings a configuration, and no more configurations, the law follows each of them.
REPEATED, MANY, FOLDS = 1.2, 60, 5


def physics_of(
    asked: Questions, seconds: FloatArray, quantity: str
) -> tuple[Hierarchical | None, FloatArray]:
    """Return the hierarchical law of n runs, and seconds that it says of each, NaN where none.

    It speaks of steps by all-reduce; of other quantities, or too few runs, there is no law.
    """
    said = np.full(len(seconds), np.nan)
    rows = np.flatnonzero(asked.rows.sync == SYNC.index("allreduce"))
    if quantity != "step" or not len(rows):
        return None, said
    jobs = asked.jobs.take(rows)
    runs = Runs(jobs, Table({"step_time_s": seconds[rows]}, len(rows)), ordered=True)
    try:
        law = Hierarchical().fit(runs)
    except RequestError:
        return None, said  # too few of them: a line in the logs serves instead
    said[rows] = law.predict(jobs).seconds[:, 1]
    told = [asked.kinds[1], asked.sessions[1], *asked.numbers.values()]
    table = np.nan_to_num(np.stack(told, axis=1)[rows], nan=-1.0)
    of = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    points = int(of.max()) + 1
    if FOLDS <= points < MANY and len(rows) > REPEATED * points:
        apart = _apart(runs, of, points)
        known = np.isfinite(apart)
        said[rows[known]] = apart[known]
    return law, said


def _apart(runs: Runs, of: IntArray, points: int) -> FloatArray:
    """Return what the law says of each run without the runs of its configuration, seconds, (n,).

    A law that had repeats of a few configurations follows each of them: beside it their errors look
    as small as those of readings, which no new configuration's are.
    """
    said = np.full(len(runs), np.nan)
    part = (np.random.default_rng(0).permutation(points) % FOLDS)[of]
    for fold in range(FOLDS):
        judged = np.flatnonzero(part == fold)
        try:
            law = Hierarchical().fit(runs.take(np.flatnonzero(part != fold)))
        except RequestError:
            continue  # these keep what the law of all says
        said[judged] = law.predict(runs.jobs.take(judged)).seconds[:, 1]
    return said


# Beyond so many deviations the bound itself is what is known.
_FAR = 4.0


def stopped_seconds(runs: Runs, quantity: str) -> FloatArray:
    """Return the seconds after which runs were stopped (n,), NaN where they were not.

    Only a whole run is stopped: steps and epochs that a stopped run measured are whole.
    """
    if quantity != "run":
        return np.full(len(runs), np.nan)
    seconds = runs.measured("time_to_train_s")
    return np.where(
        (runs.status == "timeout") & (seconds > 0) & np.isfinite(seconds), seconds, np.nan
    )


def expected_seconds(foretold: FloatArray, least: FloatArray) -> FloatArray:
    """Return the log mean of times that are known to be longer than a bound, (n,).

    Tobin (1958), Estimation of relationships for limited dependent variables: of a normal value
    above a bound a deviations off its mean, the mean lies phi(a) / (1 - Phi(a)) deviations off.

    Args:
        foretold: quantiles of seconds without the bound (n, 3).
        least: the bounds, seconds, (n,).
    """
    sigma = np.log(foretold[:, 2] / foretold[:, 1]) / Z95
    off = np.log(least / foretold[:, 1]) / sigma
    near = np.clip(off, -_FAR, _FAR)
    hazard = np.exp(-0.5 * near**2) / np.sqrt(2 * np.pi) / np.maximum(1 - normal_cdf(near), 1e-7)
    beyond = np.where(off > _FAR, off, np.maximum(hazard, off))
    result: FloatArray = foretold[:, 1] * np.exp(sigma * beyond)
    return result


VERSION = 2
LEAST_RUNS = 4
# A kind with so many runs has a process of its own; the others teach one another in one process.
OWN_RUNS = 60
# Beside its own runs a job is this near; in settings without runs this much farther, and as much
# again for each doubling beyond the runs.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
ROUNDS = 2  # of what stopped runs are expected to take
_TIMES = "step_time_s, samples_per_s, epoch_time_s or time_to_train_s"
_NEEDED = f"at least {LEAST_RUNS} runs with a time"


@dataclass(frozen=True)
class Gaussian:
    """log seconds ~ level + slopes . features + Matern 5/2 process + session + noise.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        blocks: processes by kind of job; that of the kinds with few runs under the empty kind.
        kinds: which kinds of job had runs, and how many.
        base: the law of physics whose errors the processes learn, where it speaks; None where no
            block goes by it.
        based: kinds whose block learns the errors of the base.
        physics: whether such a law is looked for.
        starts: of the search of hyper-parameters, for each process.
        most, tuned: points of a process, and points that its hyper-parameters are tuned on.
    """

    quantity: str = "step"
    blocks: Mapping[Kind, Block] = field(default_factory=dict)
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    base: Hierarchical | None = None
    based: frozenset[Kind] = frozenset()
    physics: bool = True
    starts: int = 1
    most: int = MOST_POINTS
    tuned: int = TUNED_POINTS

    name = "gaussian"

    def light(self) -> Gaussian:
        """Return one that learns from fewer points, for choosing among predictors."""
        return Gaussian(
            physics=self.physics, starts=1, most=min(self.most, 400), tuned=min(self.tuned, 150)
        )

    def fit(self, runs: Runs) -> Gaussian:
        """Return a predictor with the processes of these runs alone.

        Raises:
            RequestError: fewer than four runs have a time of one quantity and state their devices.
        """
        runs = sorted_runs(runs)
        times = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(times[name]).sum()))
        usable = np.isfinite(times[quantity])
        timed = int(usable.sum())
        stated = np.isfinite(Questions(runs.jobs).numbers["devices"])
        rows = np.flatnonzero(usable & stated)
        if len(rows) < LEAST_RUNS:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"{timed} that ended have a time, and {len(rows)} of these state their devices",
                f"give {_NEEDED} ({_TIMES}) and devices",
            )  # fmt: skip
        fitted = self._fitted(Questions(runs.jobs.take(rows)), times[quantity][rows], quantity)
        bounds = np.where(stated, stopped_seconds(runs, quantity), np.nan)
        seconds = np.where(usable & stated, times[quantity], np.nan)
        return self._with_stopped(fitted, runs, seconds, bounds)

    def _with_stopped(
        self, fitted: Gaussian, runs: Runs, seconds: FloatArray, bounds: FloatArray
    ) -> Gaussian:
        """Return the predictor that also learned from runs stopped after what it foretold of them.

        Such a run counts with the time that is to be expected of it, given that it was not over.
        """
        said = fitted.predict(runs.jobs).seconds
        late = np.flatnonzero(bounds > said[:, 1])
        rows = np.sort(np.concatenate([np.flatnonzero(np.isfinite(seconds)), late]))
        for _ in range(ROUNDS if len(late) else 0):
            known = seconds.copy()
            known[late] = expected_seconds(said[late], bounds[late])
            asked = Questions(runs.jobs.take(rows))
            fitted = self._fitted(asked, known[rows], fitted.quantity)
            said = fitted.predict(runs.jobs).seconds
        return fitted

    def _fitted(self, asked: Questions, seconds: FloatArray, quantity: str) -> Gaussian:
        names, index = asked.kinds
        counts = np.bincount(index, minlength=len(names))
        own = {name: np.flatnonzero(index == i) for i, name in enumerate(names)
               if counts[i] >= OWN_RUNS}  # fmt: skip
        rest = np.flatnonzero(counts[index] < OWN_RUNS)
        if len(rest):
            own[POOL] = rest
        asked_of = Asked(asked)
        base, said = physics_of(asked, seconds, quantity if self.physics else "")
        devices = asked.numbers["devices"]
        # On one number of devices the law has nothing to say that a line does not.
        based = frozenset(
            kind for kind, rows in own.items()
            if np.isfinite(said[rows]).all() and len(np.unique(devices[rows])) > 1
        )  # fmt: skip
        blocks = {}
        for kind, rows in own.items():
            part = asked_of.take(rows)
            over = said[rows] if kind in based else 1.0
            blocks[kind] = fitted_block(
                part.numbers, part.categories, seconds[rows] / over,
                starts=self.starts, most=self.most, tuned=self.tuned,
            )  # fmt: skip
        kinds = {name: int(count) for name, count in zip(names, counts, strict=True)}
        return replace(
            self, quantity=quantity, blocks=blocks, kinds=kinds, base=base if based else None,
            based=based,
        )  # fmt: skip

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: no runs of its workload and device, a number unstated."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs; memory is not answered (NaN)."""
        first, place = distinct_jobs(jobs)
        if len(first) == len(jobs):
            return self._answers(jobs)
        return self._answers(jobs.take(first)).take(place)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        asked = Asked(Questions(jobs))
        chosen, same = self._chosen(asked)
        declined = self._declined(asked, chosen)
        ready = is_none(declined)
        for place, (kind, block) in enumerate(self.blocks.items()):
            rows = np.flatnonzero(ready & (chosen == place))
            if not len(rows):
                continue
            part = asked.take(rows)
            middle, sigma, beyond = self._block_answers(kind, part, jobs.take(rows))
            away = np.where(same[rows], NEAR, OTHER_SETTINGS)
            # Other settings of the same workload and device: no run says how much they change.
            wide = np.where(same[rows] | (kind == POOL), 0.0, OTHER_SETTINGS)
            total = np.sqrt(sigma**2 + wide**2)
            blank.seconds[rows] = spread(np.exp(middle), total, tails=block.tails)
            blank.distance[rows] = away + A_DOUBLING * beyond
        return replace(blank, declined=declined, warnings=self.warnings)

    def _block_answers(
        self, kind: Kind, part: Asked, jobs: Jobs
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return log median, log standard deviation of a reading, and doublings beyond, (n,) each."""
        block = self.blocks[kind]
        middle, sigma, beyond = block.answers(part.numbers, part.categories)
        if self.base is None or kind not in self.based:
            return middle, sigma, beyond
        law = self.base.predict(jobs).seconds
        # The law was fitted to the same runs, so that its errors at others are larger than theirs:
        # no band is surer than its own.
        reach = np.log(law[:, 2] / law[:, 0]) / (2 * Z95 * float(np.mean(block.tails)))
        return middle + np.log(law[:, 1]), np.maximum(sigma, reach), beyond

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n); NaN if declined.

        The diagonal is the variance of one reading; beside it is what the errors of two jobs share.
        """
        asked = Asked(Questions(jobs))
        chosen, _ = self._chosen(asked)
        ready = is_none(self._declined(asked, chosen))
        total = np.where(ready[:, None] & ready[None, :], 0.0, np.nan)
        for place, (kind, block) in enumerate(self.blocks.items()):
            rows = np.flatnonzero(ready & (chosen == place))
            if not len(rows):
                continue
            part = asked.take(rows)
            shared = block.covariance(part.numbers, part.categories)
            _, sigma, _ = self._block_answers(kind, part, jobs.take(rows))
            wider = np.maximum(sigma / np.sqrt(np.diag(shared)), 1.0)
            total[np.ix_(rows, rows)] = shared * np.outer(wider, wider)
        return total

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which processes go by hyper-parameters whose search did not converge."""
        return tuple(
            f"{kind_words(kind)}: its hyper-parameters did not converge; the best found serve"
            for kind, block in self.blocks.items()
            if not block.gp.converged
        )

    @property
    def formulas(self) -> dict[str, str]:
        """What each process goes by, the features that matter most first, and the law of its mean."""
        base = {} if self.base is None else self.base.formulas
        return {
            kind_words(kind): block.words(self.quantity, kind in self.based)
            for kind, block in self.blocks.items()
        } | {f"{kind}, the mean": text for kind, text in base.items()}

    def _chosen(self, asked: Asked) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return which block answers each job, -1 where none does, and whether its kind had runs."""
        return served(asked.kinds, self.kinds, self.blocks)

    def _declined(self, asked: Asked, chosen: IntArray) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,)."""
        reasons = np.full(len(chosen), None, dtype=object)
        names, index = asked.kinds
        none = np.array([self._why_none(kind) for kind in names] + [""], dtype=object)
        reasons[chosen < 0] = none[index[chosen < 0]]
        for place, block in enumerate(self.blocks.values()):
            mine = chosen == place
            for name, lacks in block.design.lacking(asked.numbers).items():
                reasons[mine & lacks] = f"the row says no {name}"
        reasons[np.isnan(asked.numbers["devices"])] = "the row says no number of devices"
        problems = asked.questions.problems
        return np.where(is_none(problems), reasons, problems)

    def _why_none(self, kind: Kind) -> str:
        workload, device = (text or "(blank)" for text in kind[: len(GROUP)])
        if not self.blocks:
            return f"{self.name} answers from runs alone and was given none; give {_NEEDED}"
        return f"{self.name} has no runs of {workload} on {device}; give runs of it"

    def to_json(self) -> str:
        """Return the processes as JSON text."""
        blocks = [{"kind": kind, **block.to_dict()} for kind, block in self.blocks.items()]
        kinds = [[*kind, count] for kind, count in self.kinds.items()]
        return json.dumps({
            "predictor": self.name, "version": VERSION, "quantity": self.quantity,
            "blocks": blocks, "kinds": kinds, "based": sorted(self.based),
            "base": None if self.base is None else self.base.to_json(), "physics": self.physics, "starts": self.starts, "most": self.most,
            "tuned": self.tuned,
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Gaussian:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> Gaussian:
            blocks = {tuple(entry.pop("kind")): Block.from_dict(entry) for entry in saved["blocks"]}
            kinds = {tuple(kind): int(count) for *kind, count in saved["kinds"]}
            base = None if saved["base"] is None else Hierarchical.from_json(saved["base"])
            return Gaussian(
                str(saved["quantity"]), blocks, kinds, base,
                frozenset(tuple(kind) for kind in saved["based"]), bool(saved["physics"]),
                int(saved["starts"]), int(saved["most"]), int(saved["tuned"]),
            )  # fmt: skip

        return read_saved(text, "a gaussian model", VERSION, made)
