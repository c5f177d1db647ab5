"""RayGroup: what the Ray study's experiments taught of one group of runs, with bands about it.

Tails: how far the next error may lie where too few are known for a quantile of them.

AutoML: the Ray study's experiments: techniques and hyper-parameters tried, scored, one chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import Z95
from forerun.errors import MissingExtraError, RequestError
from forerun.predictors.regression.augment import Columns, Features, Term, augmented
from forerun.predictors.regression.automl_settings import Settings
from forerun.predictors.regression.experiment import FITS, Experiment, Fitted, Outcome, figures
from forerun.predictors.regression.journal import Journal, fingerprint
from forerun.predictors.regression.models import Model, model_dict, model_of
from forerun.predictors.regression.partitions import Partition, SetAside
from forerun.predictors.regression.questions import RANGES
from forerun.predictors.regression.selection import selected
from forerun.predictors.regression.techniques import EXTRAPOLATE, fitted, standardised

Parameters = Mapping[str, Any]

# Log standard deviation that a doubling beyond the runs adds, where they cannot say, and at least
# and at most: as the chosen one, taught by the nearer runs, erred about the farther ones.
USUAL_GROWTH, LEAST_GROWTH, MOST_GROWTH = 0.3, 0.03, 1.0
# Of an experiment of the techniques that go on beyond the runs: no products of more than one number.
SINGLE = "single_features"
FOLDS = 10  # of what the winner says of each configuration without it
_LEAST_NEAR = 8  # runs on fewer devices that can teach anything of those on more


def run_experiments(
    columns: Columns,
    seconds: FloatArray,
    settings: Settings,
    sizes: Sequence[str] = (),
    journal: Journal | None = None,
) -> Outcome:
    """Return the outcome of all experiments on n runs.

    Args:
        columns: of the runs.
        seconds: positive and finite, (n,).
        settings: what is tried.
        sizes: columns that may be Ernest's size, the usual first.
        journal: of experiments that are finished: none of these is done again.

    Raises:
        RequestError: a setting is no choice, no column changes, or too few runs for the sets.
        MissingExtraError: scikit-learn, XGBoost or Optuna is not installed.
    """
    # Every draw is from rows in an order of their own: in another order they teach the same.
    order = np.lexsort((seconds, columns.configurations))
    work = _Work(columns.take(order), seconds[order], settings.checked(), sizes, journal)
    tried = sorted(work.all(), key=lambda done: done.error)
    if not tried or not np.isfinite(tried[0].error):
        raise RequestError(
            f"experiments on {len(seconds)} runs", "no technique foretold the rows set aside",
            "give more runs, or other techniques",
        )  # fmt: skip
    best = tried[0]
    far = best
    if settings.beyond == "farthest" and "beyond" in best.scores:
        far = min(tried, key=lambda done: done.scores["beyond"]["mape"])
    everything = np.arange(len(seconds))
    winner = work.fit(best.technique, best.parameters, everything)
    judged, foretold = work.unseen(best, work.outer)
    rows, said = work.unseen(best, work.folds())
    apart = np.empty(len(seconds))
    apart[order[rows]] = said
    return Outcome(
        work.features, winner, tuple(tried), order[judged], foretold, apart,
        far=winner if far is best else work.fit(far.technique, far.parameters, everything),
        far_by=far, growth=work.growth(far),
    )  # fmt: skip


class _Work:
    """The experiments of one group of runs."""

    def __init__(
        self,
        columns: Columns,
        seconds: FloatArray,
        settings: Settings,
        sizes: Sequence[str],
        journal: Journal | None,
    ) -> None:
        # An empty journal is false, and is a journal.
        self.journal = Journal() if journal is None else journal
        self.settings, self.seconds = settings, seconds
        self.features = augmented(columns, settings.recipe, sizes)
        self.x = self.features.matrix(columns)
        self.numbers, self.of = columns.numbers, columns.configurations
        self.outer = settings.validation.partitions(
            columns.numbers, len(seconds), settings.seed, self.of
        )
        self.inner: list[list[Partition]] = []
        for rows, _ in self.outer:
            part = columns.take(rows).numbers
            inside = settings.hp_selection.partitions(
                part, len(rows), settings.seed + 1, self.of[rows]
            )
            self.inner.append([(rows[a], rows[b]) for a, b in inside])
        # Ernest's share, a number over devices, counts as single.
        self.single = np.flatnonzero([self._is_single(term) for term in self.features.terms])
        self.devices = columns.numbers.get("devices", np.ones(len(seconds)))
        self.halves = _halves(self.devices)
        # Not the techniques: more of them asked for later find what is done already.
        told = replace(settings, techniques=(), search="", grids={}, trials=0)
        self.key = fingerprint(self.x, seconds, f"whole configurations: {told!r}")

    @staticmethod
    def _is_single(term: Term) -> bool:
        return len(term) == 1 or (len(term) == 2 and term[1] == ("1/x", "devices", ""))

    def all(self) -> Iterator[Experiment]:
        """Yield the experiments as they are done."""
        for technique in self.settings.techniques:
            if self.settings.search == "tpe" and self.settings.grids.get(technique):
                yield from self._drawn(technique)
                continue
            for parameters in self._listed(technique):
                yield self.experiment(technique, parameters)

    def _listed(self, technique: str) -> list[Parameters]:
        grid = self.settings.grids.get(technique, {}) if self.settings.search == "grid" else {}
        lists: list[Parameters] = [
            dict(zip(grid, values, strict=True)) for values in product(*grid.values())
        ]
        if technique in EXTRAPOLATE and self.settings.recipe.degree > 1:
            lists += [{**given, SINGLE: True} for given in lists]
        return lists

    def _drawn(self, technique: str) -> list[Experiment]:
        """Return the experiments that tree-structured Parzen estimators ask for, seeded."""
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise MissingExtraError("hyper-parameters by TPE", "optuna", "learn") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        done: list[Experiment] = []
        grid = self.settings.grids[technique]

        def objective(trial: Any) -> float:
            asked = {name: trial.suggest_categorical(name, list(v)) for name, v in grid.items()}
            done.append(self.experiment(technique, asked))
            return min(done[-1].error, 1e9)

        sampler = optuna.samplers.TPESampler(seed=self.settings.seed, n_startup_trials=3)
        optuna.create_study(sampler=sampler).optimize(objective, n_trials=self.settings.trials)
        return done

    def experiment(self, technique: str, parameters: Parameters) -> Experiment:
        """Return an experiment from the journal, else done now and written there."""
        known = self.journal.find(self.key, technique, parameters)
        if known is None:
            known = self._scores(technique, parameters)
            self.journal.add(self.key, technique, parameters, known)
        return Experiment(technique, parameters, known)

    def _scores(self, technique: str, parameters: Parameters) -> dict[str, dict[str, float]]:
        sets: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
        ended = []
        for (rows, judged), inside in zip(self.outer, self.inner, strict=True):
            for a, b in inside:
                model = self.fit(technique, parameters, a)
                ended.append(model.converged)
                sets.setdefault("training", []).append(self._pair(model, a))
                sets.setdefault("hp_selection", []).append(self._pair(model, b))
            again = self.fit(technique, parameters, rows)
            ended.append(again.converged)
            sets.setdefault("validation", []).append(self._pair(again, judged))
        if self.halves is not None:
            near, far = self.halves
            sets["beyond"] = [self._pair(self.fit(technique, parameters, near), far)]
        found = {name: figures(pairs) for name, pairs in sets.items()}
        return {**found, FITS: {"converged": float(np.mean(ended))}}

    def growth(self, chosen: Experiment) -> float:
        """Return what a doubling beyond the runs adds to an experiment's log error."""
        if self.halves is None:
            return USUAL_GROWTH
        near, far = self.halves
        model = self.fit(chosen.technique, chosen.parameters, near)
        said = np.maximum(model.predict(self.x[far]), 1e-3 * float(self.seconds.min()))
        off = np.abs(np.log(self.seconds[far] / said))
        doublings = np.log2(self.devices[far] / self.devices[near].max())
        needed = float(np.quantile(off / doublings, 0.9)) / Z95
        return float(np.clip(needed, LEAST_GROWTH, MOST_GROWTH))

    def _pair(self, model: Fitted, rows: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        return model.predict(self.x[rows]), self.seconds[rows]

    def fit(self, technique: str, parameters: Parameters, rows: NDArray[np.int64]) -> Fitted:
        """Return the model of some of the rows, with the features that these choose."""
        given = {name: value for name, value in parameters.items() if name != SINGLE}
        allowed = self.single if SINGLE in parameters else np.arange(self.x.shape[1])
        x, y = self.x[np.ix_(rows, allowed)], self.seconds[rows]

        def one(features: FloatArray, values: FloatArray) -> Model:
            if self.settings.normalise:
                return standardised(features, values, lambda a, b: fitted(technique, a, b, given))
            return fitted(technique, features, values, given)

        places = selected(
            self.settings.selection, x, y, one, self.settings.most_features, self.settings.tolerance
        )
        return Fitted(one(x[:, places], y), tuple(allowed[places].tolist()))

    def folds(self) -> list[Partition]:
        """Return partitions in which each configuration is judged once, without its repeats."""
        aside = SetAside("k-fold", folds=FOLDS)
        return aside.partitions(self.numbers, len(self.of), self.settings.seed + 2, self.of)

    def unseen(
        self, best: Experiment, parts: Sequence[Partition]
    ) -> tuple[NDArray[np.int64], FloatArray]:
        """Return the rows that partitions judge, and what the winner said of them without them."""
        rows, said = [], []
        for teach, judged in parts:
            model = self.fit(best.technique, best.parameters, teach)
            rows.append(judged)
            said.append(model.predict(self.x[judged]))
        return np.concatenate(rows), np.concatenate(said)


def _halves(devices: FloatArray) -> Partition | None:
    """Return runs on at most the middle number of devices, and the others; None where too few."""
    distinct = np.unique(devices)
    if len(distinct) < 3:
        return None
    bound = distinct[(len(distinct) - 1) // 2]
    near, far = np.flatnonzero(devices <= bound), np.flatnonzero(devices > bound)
    return (near, far) if len(near) >= _LEAST_NEAR else None


def student95(freedom: int) -> float:
    """Return the 95 % quantile of Student's t with at least one degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(max(freedom, 1), 0.95))


# Readings on one machine differ by 1-2 %: no band is surer than that.
LEAST_REACH = 0.02 * Z95
_MOST_LOG = 2.3
_MANY = 60  # configurations, whose quantiles need no Student's t beside them


@dataclass(frozen=True)
class RayGroup:
    """The winner of one group.

    Attributes:
        features: of the runs.
        winner: fitted on all of them.
        experiments: all, the best first.
        levels: of each text column, the classes that had runs.
        ranges: least and most of each number that the features read.
        reach: how far below and above lie 5 % and 95 % of configurations left out, logs.
        far: who answers for more devices than any run had; `far_by`: its place in `experiments`.
        growth: log standard deviation that a doubling beyond the runs adds.
        runs: how many taught it.
    """

    features: Features
    winner: Fitted
    experiments: tuple[Experiment, ...]
    levels: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[float, float]]
    reach: tuple[float, float]
    far: Fitted
    far_by: int
    growth: float
    runs: int

    @property
    def best(self) -> Experiment:
        """The experiment that was chosen."""
        return self.experiments[0]

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Techniques that answer though their fit did not converge."""
        answering = {self.best.technique: self.winner}
        if self.far_by:
            answering.setdefault(self.experiments[self.far_by].technique, self.far)
        return tuple(name for name, one in answering.items() if not one.converged)

    def answers(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return quantiles of seconds (n, 3) and doublings beyond the runs (n,).

        A row whose median is not above 0 has quantiles that are not either.
        """
        x = self.features.matrix(columns)
        middle = self.winner.predict(x)
        beyond = self.beyond(columns)
        out = columns.numbers["devices"] > self.ranges["devices"][1]
        if self.far_by and out.any():
            middle[out] = self.far.predict(x[out])
        far = (Z95 * self.growth * beyond) ** 2
        low, high = (np.sqrt(side**2 + far) for side in self.reach)
        seconds = np.stack([middle * np.exp(-low), middle, middle * np.exp(high)], axis=1)
        return np.where(middle[:, None] > 0, seconds, np.nan), beyond

    def beyond(self, columns: Columns) -> FloatArray:
        """Return by how many doublings rows lie beyond the runs, added up, (n,)."""
        total = np.zeros(len(columns))
        for name, (low, high) in self.ranges.items():
            if name in RANGES:
                values = columns.numbers[name]
                total += np.maximum(np.log2(values / high), 0.0)
                total += np.maximum(np.log2(low / values), 0.0)
        return total

    def lacking(self, numbers: Mapping[str, FloatArray]) -> Mapping[str, BoolArray]:
        """Return by number which jobs do not state it and would have to, each (n,)."""
        return {name: np.isnan(numbers[name]) for name in self.ranges}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "terms": [[list(factor) for factor in term] for term in self.features.terms],
            "winner": _fitted_dict(self.winner), "far": _fitted_dict(self.far),
            "far_by": self.far_by, "growth": self.growth,
            "experiments": [
                {"technique": e.technique, "parameters": dict(e.parameters),
                 "scores": {k: dict(v) for k, v in e.scores.items()}}
                for e in self.experiments
            ],
            "levels": {name: list(texts) for name, texts in self.levels.items()},
            "ranges": dict(self.ranges), "reach": list(self.reach), "runs": self.runs,
        }  # fmt: skip

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RayGroup:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        terms = tuple(
            tuple((str(how), str(name), str(text)) for how, name, text in term)
            for term in values["terms"]
        )
        experiments = tuple(
            Experiment(str(e["technique"]), e["parameters"], e["scores"])
            for e in values["experiments"]
        )
        low, high = map(float, values["reach"])
        winner, far = (_fitted_of(values[name], len(terms)) for name in ("winner", "far"))
        return RayGroup(
            Features(terms), winner, experiments,
            {name: tuple(texts) for name, texts in values["levels"].items()},
            {name: (float(a), float(b)) for name, (a, b) in values["ranges"].items()},
            (low, high), far, int(values["far_by"]), float(values["growth"]), int(values["runs"]),
        )  # fmt: skip


def fitted_group(
    columns: Columns,
    seconds: FloatArray,
    settings: Settings,
    sizes: Sequence[str],
    journal: Journal,
) -> RayGroup:
    """Return what the experiments on n runs came to. Raises as `run_experiments` does."""
    outcome = run_experiments(columns, seconds, settings, sizes, journal)
    read = {name for term in outcome.features.terms for _, name, _ in term}
    return RayGroup(
        features=outcome.features,
        winner=outcome.winner,
        experiments=outcome.experiments,
        levels={name: tuple(sorted(set(v.tolist()))) for name, v in columns.texts.items()},
        ranges={
            name: (float(v.min()), float(v.max()))
            for name, v in columns.numbers.items()
            if name in read or name in RANGES
        },
        reach=_reach(outcome.apart, seconds, columns.configurations),
        far=outcome.far,
        far_by=outcome.experiments.index(outcome.far_by),
        growth=outcome.growth,
        runs=len(seconds),
    )


def _reach(apart: FloatArray, seconds: FloatArray, of: IntArray) -> tuple[float, float]:
    """Return how far configurations that the winner had not seen lie below and above it, as logs.

    The quantiles are those that hold for the next configuration (cross-conformal prediction: Vovk
    2015). m configurations have no 95 % quantile below m = 19, and one hangs on a few of them for
    some time after: the reach is no less than that of Student's t with as many.

    Args:
        apart: what the winner said of each run without its configuration, seconds, (n,).
        seconds: what was measured, (n,).
        of: the configuration of each run, numbered from 0, (n,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(seconds) - np.log(np.maximum(apart, 1e-300))
    logs = np.clip(np.nan_to_num(logs, nan=_MOST_LOG), -_MOST_LOG, _MOST_LOG)
    repeats = np.bincount(of)
    m = len(repeats)
    each = 1.0 / (m * repeats[of])  # a configuration counts once, however often it was measured
    level = min(0.95 * (m + 1) / m, 1.0)
    spread = float(np.sqrt(np.sum(each * logs**2)))
    least = max(student95(m - 1) * np.sqrt(1 + 1 / m) * spread, LEAST_REACH)
    if m > _MANY:
        least = LEAST_REACH
    low, high = (_quantile(sign * logs, each, level) for sign in (-1.0, 1.0))
    return max(low, least), max(high, least)


def _quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """Return the least value at and below which such a share of the weights lies."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), level * (1 - 1e-12)))
    return float(values[order[min(place, len(values) - 1)]])


def _fitted_dict(fitted: Fitted) -> dict[str, Any]:
    return {"model": model_dict(fitted.model), "places": list(fitted.places)}


def _fitted_of(values: Mapping[str, Any], features: int) -> Fitted:
    places = tuple(int(i) for i in values["places"])
    if places and max(places) >= features:
        raise ValueError("a place beyond the features")
    return Fitted(model_of(values["model"]), places)
