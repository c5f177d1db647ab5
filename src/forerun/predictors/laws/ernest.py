"""Ernest: time by the work a machine has and the number of machines, learned from a few runs.

Venkataraman et al., Ernest: Efficient Performance Prediction for Large-Scale Advanced Analytics
(NSDI 2016). It knows one workload on one kind of machine at a time, and of a plan nothing but the
devices and the batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.errors import RequestError
from forerun.predictors.laws.ernest_law import (
    LEAST_POINTS,
    TERMS,
    ErnestLaw,
    answers,
    distinct_points,
    features,
    fitted_law,
)
from forerun.predictors.laws.law_rows import GROUP, Kind, LawRows, chosen_size, measured
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

VERSION = 1
# Rows in one pass: long enough that calls cost little, short enough for memory.
CHUNK = 65536
# Beside its own runs a job is this near; with the runs of other settings of its workload and
# device this much farther, and as much again for each doubling beyond them.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
_NEEDED = (
    f"at least {LEAST_POINTS} runs that differ in devices or in size, on two numbers of devices "
    "or more"
)


@dataclass(frozen=True)
class Ernest:
    """seconds = theta . [1, size / machines, log(machines), machines], theta >= 0.

    Machines are devices. The size is what the timed work goes through: the dataset of an epoch or
    of a whole run, the global batch of a step (the dataset where runs state no batch, or change
    the dataset alone). Runs of one workload and device in one framework, precision, sequence
    length, image size, instance type and synchronisation have a law; runs of all of these
    together have one more, for jobs of which no such run is known.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        laws: by kind of job, `law_rows.GROUP` and then `SETTINGS`; by `GROUP` alone over all settings.
        few: of kinds that have runs and no law, how many they have.
    """

    quantity: str = "step"
    laws: Mapping[Kind, ErnestLaw] = field(default_factory=dict)
    few: Mapping[Kind, int] = field(default_factory=dict)

    name = "ernest"

    def fit(self, runs: Runs) -> Ernest:
        """Return a predictor with the laws of these runs alone.

        Raises:
            RequestError: no run has a time, or no workload and device has enough of them.
        """
        seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
        rows = np.flatnonzero(np.isfinite(seconds[quantity]))
        asked = f"fitting {self.name} on {len(runs)} runs"
        if not len(rows):
            raise RequestError(
                asked, "none that ended has a time of a step, an epoch or a whole run",
                "give runs with step_time_s, samples_per_s, epoch_time_s or time_to_train_s",
            )  # fmt: skip
        fitted = _fitted(runs.jobs.take(rows), seconds[quantity][rows], quantity)
        if not fitted.laws:
            most = max(fitted.few.values(), default=0)
            found = f"no workload on one device has more than {most} that differ"
            raise RequestError(asked, found, f"give {_NEEDED} for each")
        return fitted

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: no runs, too few runs, no size, no number of devices."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs and the four terms as parts; memory is not answered (NaN)."""
        rows = LawRows(jobs)
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        chosen = self._chosen(rows)
        laws = list(self.laws.values())
        parts = np.full((len(jobs), len(TERMS)), np.nan)
        size = self._sizes(rows, laws, chosen)
        ready = np.flatnonzero((chosen >= 0) & np.isfinite(size) & (rows.machines > 0))
        pooled = np.array([len(kind) == len(GROUP) for kind in self.laws], dtype=bool)
        for start in range(0, len(ready), CHUNK):
            now = ready[start : start + CHUNK]
            x = features(size[now], rows.machines[now])
            blank.seconds[now], parts[now], beyond = answers(laws, chosen[now], x)
            away = np.where(pooled[chosen[now]], OTHER_SETTINGS, NEAR)
            blank.distance[now] = away + A_DOUBLING * beyond
        declined = self._declined(rows, chosen, size, blank.seconds[:, 1])
        open_rows = ~is_none(declined)
        for column in (blank.seconds, blank.distance, parts):
            column[open_rows] = np.nan
        named = {name: parts[:, i] for i, name in enumerate(TERMS)}
        return replace(blank, declined=declined, parts=named)

    @property
    def formulas(self) -> dict[str, str]:
        """Each law as a formula with units, and what limits it, by the name of its kind."""
        return {
            _kind_words(kind): f"{law.formula(self.quantity)} ({law.runs} runs; {law.limit()})"
            for kind, law in self.laws.items()
        }

    def _chosen(self, rows: LawRows) -> IntArray:
        """Return which law answers each job, (n,), -1 where none does."""
        kinds, index = rows.kinds
        place = {kind: i for i, kind in enumerate(self.laws)}
        of = [place.get(kind, place.get(kind[: len(GROUP)], -1)) for kind in kinds]
        return np.array([*of, -1], dtype=np.int64)[index]

    def _sizes(self, rows: LawRows, laws: list[ErnestLaw], chosen: IntArray) -> FloatArray:
        """Return each job's size in the column of its law, (n,), NaN where it has none."""
        size = np.full(len(rows.jobs), np.nan)
        for column in {law.size for law in laws}:
            speaks = np.array([law.size == column for law in laws] + [False])[chosen]
            size[speaks] = rows.size(column)[speaks]
        return size

    def _declined(
        self, rows: LawRows, chosen: IntArray, size: FloatArray, middle: FloatArray
    ) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,); a sentence is made once a kind."""
        reasons = np.full(len(middle), None, dtype=object)
        laws = list(self.laws.values())
        kinds, index = rows.kinds
        none = np.array([self._why_none(kind) for kind in kinds] + [""], dtype=object)
        reasons[chosen < 0] = none[index[chosen < 0]]
        bounds = np.array([law.machines for law in laws] or [(0.0, 0.0)])[chosen]
        same = (bounds[:, 0] == bounds[:, 1]) & (rows.machines != bounds[:, 0])
        sizes = np.array([law.size for law in laws] + [""], dtype=object)[chosen]
        held = chosen >= 0
        reasons[held & same] = (
            "its runs are all on one number of devices, and this is another; run it on a second"
        )
        reasons[held & ~(middle > 0)] = "the law of its runs gives no time above 0 here"
        for column in set(sizes[held & np.isnan(size)]):
            reasons[held & np.isnan(size) & (sizes == column)] = f"the row says no {column}"
        reasons[held & ~(rows.machines > 0)] = "the row says no number of devices"
        problems = rows.jobs.plan_problem
        if problems is not None:
            # A plan that nobody stated is no illegal one, and no law of these needs it.
            illegal = rows.states_plan & ~is_none(problems)
            reasons[illegal] = problems[illegal]
        return reasons

    def _why_none(self, kind: Kind) -> str:
        workload, device = (text or "(blank)" for text in kind[: len(GROUP)])
        if not self.laws:
            return f"{self.name} answers from runs alone and was given none; give {_NEEDED}"
        count = self.few.get(kind[: len(GROUP)], 0)
        had = f"only {count} different runs" if count else "no runs"
        return f"{self.name} has {had} of {workload} on {device}; give {_NEEDED}"

    def to_json(self) -> str:
        """Return the laws as JSON text."""
        laws = []
        for kind, law in self.laws.items():
            arrays = {"theta": law.theta.tolist(), "covariance": law.covariance.tolist()}
            laws.append({"kind": kind, **asdict(law), **arrays})
        few = [[*kind, count] for kind, count in self.few.items()]
        return json.dumps({
            "predictor": self.name, "version": VERSION, "quantity": self.quantity, "laws": laws,
            "few": few,
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Ernest:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> Ernest:
            laws = {tuple(entry.pop("kind")): _law(entry) for entry in saved["laws"]}
            few = {tuple(kind): int(count) for *kind, count in saved["few"]}
            return Ernest(str(saved["quantity"]), laws, few)

        return read_saved(text, "an ernest model", VERSION, made)


def _law(entry: Mapping[str, Any]) -> ErnestLaw:
    pairs = {name: tuple(map(float, entry[name])) for name in ("reach", "machines", "share")}
    arrays = {name: np.array(entry[name], dtype=float) for name in ("theta", "covariance")}
    if arrays["theta"].shape != (4,) or arrays["covariance"].shape != (4, 4):
        raise ValueError("a law has four terms")
    return ErnestLaw(**{**entry, **pairs, **arrays})


def _fitted(jobs: Jobs, seconds: FloatArray, quantity: str) -> Ernest:
    """Return the laws of runs of which each has a time, over all settings and for each."""
    kinds, index = LawRows(jobs).kinds
    members: dict[Kind, list[int]] = {}
    for i, kind in enumerate(kinds):
        members.setdefault(kind[: len(GROUP)], []).append(i)
        members.setdefault(kind, []).append(i)
    laws: dict[Kind, ErnestLaw] = {}
    few: dict[Kind, int] = {}
    for kind, of in members.items():
        rows = np.flatnonzero(np.isin(index, of))
        law, points = _group_law(LawRows(jobs.take(rows)), seconds[rows], quantity)
        if law is None:
            few[kind] = points
        else:
            laws[kind] = law
    return Ernest(quantity, laws, few)


def _group_law(rows: LawRows, seconds: FloatArray, quantity: str) -> tuple[ErnestLaw | None, int]:
    """Return the law of one group, None where it is too small, and how many runs differ."""
    name = chosen_size(rows, quantity)
    size, machines = rows.size(name), rows.machines
    usable = np.isfinite(size) & (machines > 0)
    size, machines, seconds = size[usable], machines[usable], seconds[usable]
    points = distinct_points(size, machines)
    if points < LEAST_POINTS:
        return None, points
    return fitted_law(size, machines, seconds, name), points


def _kind_words(kind: Kind) -> str:
    lead = " on ".join(kind[: len(GROUP)])
    rest = ", ".join(text for text in kind[len(GROUP) :] if text)
    return f"{lead} ({rest})" if rest else f"{lead}, all settings"
