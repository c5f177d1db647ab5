"""AutoML: the Ray study's experiments: techniques and hyper-parameters tried, scored, one chosen.

The winner is the experiment of the least error on the rows set aside for hyper-parameters, never on
those set aside for validation, and is then fitted again on everything (Filippini and Ardagna).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import Z95
from forerun.errors import MissingExtraError, RequestError
from forerun.predictors.regression.augment import Columns, Term, augmented
from forerun.predictors.regression.automl_settings import Settings
from forerun.predictors.regression.experiment import FITS, Experiment, Fitted, Outcome, figures
from forerun.predictors.regression.journal import Journal, fingerprint
from forerun.predictors.regression.models import Model
from forerun.predictors.regression.partitions import Partition, SetAside
from forerun.predictors.regression.selection import selected
from forerun.predictors.regression.techniques import EXTRAPOLATE, fitted, standardised

FloatArray = NDArray[np.float64]
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
