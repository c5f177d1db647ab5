"""Experiments of the Ray study: techniques and hyper-parameters are tried, scored, and one is chosen.

A journal keeps finished experiments, so that starting again repeats none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import Z95
from forerun.errors import MissingExtraError, RequestError, one_of
from forerun.predictors.regression.augment import (
    AugmentedFeatures,
    Columns,
    Recipe,
    Term,
    augmented,
)
from forerun.predictors.regression.job_features import RANGES
from forerun.predictors.regression.models import FittedModel, model_dict, model_of, settled
from forerun.predictors.regression.techniques import (
    DEFAULTS,
    EXTRAPOLATE,
    check,
    fitted,
    importance,
    standardised,
)

Partition = tuple[IntArray, IntArray]  # rows that are fitted, rows that are judged

MODES = ("all", "hold-out", "k-fold", "interpolation", "extrapolation")


@dataclass(frozen=True)
class SetAside:
    """How rows are set aside.

    Attributes:
        mode: `all` judges the rows that were fitted; `hold-out` a share of the configurations;
            `k-fold` each part of them in turn; `interpolation` every h-th of the sorted values of a column, from the
            smallest, which is therefore always judged; `extrapolation` rows of which a column lies
            strictly above its bound.
        share: of a hold-out.
        folds: of `k-fold`.
        every: by column, the h of an interpolation.
        values: by column, the judged values of an interpolation.
        bounds: by column, of an extrapolation.
    """

    mode: str = "hold-out"
    share: float = 0.2
    folds: int = 5
    every: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)

    def partitions(
        self,
        columns: Mapping[str, FloatArray],
        n: int,
        seed: int,
        configurations: IntArray | None = None,
    ) -> list[Partition]:
        """Return what is fitted and what is judged, in turn, of n rows.

        Args:
            columns: numbers of the rows by name, each (n,).
            n: rows.
            seed: of the draws.
            configurations: which each row repeats, (n,); by default every row is one of its own,
                and so it is where all rows repeat a single one.

        Raises:
            RequestError: no such mode or column, or nothing is left on one side.
        """
        rows = np.arange(n)
        if self.mode == "all":
            return [(rows, rows)]
        if self.mode == "hold-out":
            of, m = _numbered(configurations, n)
            turn = np.random.default_rng(seed).permutation(m)
            aside = np.isin(of, turn[: min(max(round(self.share * m), 1), m - 1)])
            return [self._checked(rows[~aside], rows[aside], n)]
        if self.mode == "k-fold":
            of, m = _numbered(configurations, n)
            part = (np.random.default_rng(seed).permutation(m) % max(min(self.folds, m), 2))[of]
            return [
                self._checked(rows[part != i], rows[part == i], n) for i in range(part.max() + 1)
            ]
        if self.mode not in MODES:
            raise RequestError(f"rows set aside by {self.mode!r}", "there is no such way",
                               one_of(self.mode, MODES))  # fmt: skip
        judged = np.zeros(n, dtype=bool)
        for name in {**self.every, **self.values, **self.bounds}:
            judged |= self._judged(name, columns, n)
        return [self._checked(rows[~judged], rows[judged], n)]

    def _judged(self, name: str, columns: Mapping[str, FloatArray], n: int) -> NDArray[np.bool_]:
        if name not in columns:
            raise RequestError(
                f"{self.mode} by {name}", f"the {n} runs have no such column that changes",
                one_of(name, columns),
            )  # fmt: skip
        found = columns[name]
        if self.mode == "extrapolation":
            return np.asarray(found > self.bounds[name])
        listed = self.values.get(name)
        if listed is None:
            listed = np.unique(found)[:: max(int(self.every[name]), 1)].tolist()
        return np.asarray(np.isin(found, np.asarray(listed, dtype=float)))

    def _checked(self, fitted: IntArray, judged: IntArray, n: int) -> Partition:
        if len(fitted) and len(judged):
            return fitted, judged
        side = "fitted" if len(judged) else "judged"
        raise RequestError(
            f"{n} runs set aside by {self.mode}", f"none is left to be {side}",
            "set aside another way, or give more runs",
        )  # fmt: skip


def _numbered(configurations: IntArray | None, n: int) -> tuple[IntArray, int]:
    """Return the configuration of each row from 0 on, (n,), and how many there are."""
    if configurations is not None:
        distinct, of = np.unique(configurations, return_inverse=True)
        if len(distinct) > 1:
            return of.reshape(-1).astype(np.int64), len(distinct)
    return np.arange(n), n


SELECTIONS = ("", "forward", "importance")
_FOLDS = 3


def selected(
    selection: str,
    x: FloatArray,
    y: FloatArray,
    fit: Callable[[FloatArray, FloatArray], FittedModel],
    most: int,
    tolerance: float,
) -> list[int]:
    """Return the places of the features that are kept.

    Args:
        selection: one of `SELECTIONS`.
        x, y: (n, k) and (n,).
        fit: the experiment's technique.
        most: features of a forward selection.
        tolerance: share of the gains that those kept by importance have.
    """
    if selection == "forward":
        return _forward(x, y, fit, most)
    if selection == "importance":
        gains = importance(x, y)
        order = np.argsort(-gains, kind="stable")
        count = int(np.searchsorted(np.cumsum(gains[order]), tolerance)) + 1
        return sorted(order[:count].tolist())
    return list(range(x.shape[1]))


def _forward(
    x: FloatArray, y: FloatArray, fit: Callable[[FloatArray, FloatArray], FittedModel], most: int
) -> list[int]:
    """Return features taken in one by one, each the one that errs least, while the error falls."""
    part = np.random.default_rng(0).permutation(len(y)) % min(_FOLDS, len(y))
    chosen: list[int] = []
    error = np.inf
    while len(chosen) < min(most, x.shape[1]):
        free = [i for i in range(x.shape[1]) if i not in chosen]
        errors = [_error(x[:, [*chosen, i]], y, part, fit) for i in free]
        best = int(np.argmin(errors))
        if not errors[best] < error:
            break
        error = errors[best]
        chosen.append(free[best])
    return sorted(chosen or [0])


def _error(
    x: FloatArray,
    y: FloatArray,
    part: NDArray[np.int64],
    fit: Callable[[FloatArray, FloatArray], FittedModel],
) -> float:
    """Return the mean absolute percentage error over the folds."""
    off = []
    for i in range(int(part.max()) + 1):
        model = fit(x[part != i], y[part != i])
        off.append(np.abs(model.predict(x[part == i]) - y[part == i]) / y[part == i])
    return float(np.mean(np.concatenate(off)))


Scores = Mapping[str, Mapping[str, float]]


class Journal:
    """Scores by experiment: in memory, and in a file of JSON lines where one is named.

    A line is written as soon as its experiment is done. One that was cut off by the end of the
    process is passed over; nothing that is there is overwritten.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._done: dict[str, dict[str, dict[str, float]]] = {}
        if path is not None and path.exists():
            self._read(path)

    def __len__(self) -> int:
        return len(self._done)

    def find(
        self, key: str, technique: str, parameters: Mapping[str, Any]
    ) -> dict[str, dict[str, float]] | None:
        """Return the scores of an experiment that is finished, else None."""
        return self._done.get(_name(key, technique, parameters))

    def add(self, key: str, technique: str, parameters: Mapping[str, Any], scores: Scores) -> None:
        """Keep the scores of an experiment."""
        name = _name(key, technique, parameters)
        self._done[name] = {k: dict(v) for k, v in scores.items()}
        if self.path is None:
            return
        line = {"experiment": name, "technique": technique, "parameters": dict(parameters),
                "scores": self._done[name]}  # fmt: skip
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._done[str(entry["experiment"])] = dict(entry["scores"])
            except (ValueError, KeyError, TypeError):
                if number == len(lines) and not line.endswith("\n"):
                    # Cut off: the next line must not be written behind it.
                    with path.open("a", encoding="utf-8") as file:
                        file.write("\n")
                    continue
                if line.strip() and not line.lstrip().startswith('{"experiment"'):
                    raise RequestError(
                        f"reading the journal {path}", f"line {number} is no experiment",
                        "name another file",
                    ) from None  # fmt: skip


def fingerprint(x: FloatArray, y: FloatArray, settings: str) -> str:
    """Return what tells one set of experiments from another: data and settings."""
    digest = hashlib.sha256(settings.encode())
    for array in (x, y):
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:24]


def _name(key: str, technique: str, parameters: Mapping[str, Any]) -> str:
    given = json.dumps(dict(parameters), sort_keys=True, default=str)
    return f"{key}:{technique}:{given}"


SEARCHES = ("defaults", "grid", "tpe")
BEYOND = ("farthest", "winner")
# What a grid tries beside the defaults, and what TPE draws from: lists, or (least, most) as logs.
GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "Ridge": {"alpha": (0.001, 0.01, 0.1, 1.0, 10.0)},
    "XGBoost": {"learning_rate": (0.05, 0.1), "max_depth": (6, 100), "gamma": (0.0, 0.25)},
    "DecisionTree": {"max_depth": (3, 6, 12)},
    "RandomForest": {"n_estimators": (5, 50), "max_depth": (3, 10), "min_samples_split": (2, 0.1)},
    "SVR": {"C": (0.001, 1.0, 10.0), "epsilon": (0.01, 0.05)},
    "NNLS": {"alpha": (0.0001, 0.001, 0.01)},
    "Stepwise": {"p_to_add": (0.01, 0.05)},
    "MLP": {"learning_rate": (0.001, 0.01)},
}


@dataclass(frozen=True)
class AutoMLSettings:
    """What is tried, and how it is judged.

    Attributes:
        recipe: of the features.
        normalise: whether features and times are standardised.
        selection: of features: "" none, `forward` by MAPE, `importance` by XGBoost's gains.
        most_features: of a forward selection.
        tolerance: of an importance: its features' gains add up to this share.
        techniques: names of `techniques.DEFAULTS`.
        search: of hyper-parameters: `defaults`, `grid`, or `tpe`.
        grids: by technique and parameter, the values that are tried.
        trials: of `tpe`, for each technique.
        hp_selection, validation: how rows are set aside for either.
        beyond: who answers for more devices than any run had: `farthest`, the experiment that,
            taught by the runs on fewer devices, errs least on those on more; or the `winner`, as
            in the study, which may be a tree, and flat out there.
        seed: of every draw.
    """

    recipe: Recipe = field(default_factory=Recipe)
    normalise: bool = True
    selection: str = ""
    most_features: int = 8
    tolerance: float = 0.95
    techniques: tuple[str, ...] = tuple(DEFAULTS)
    search: str = "defaults"
    grids: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=lambda: GRIDS)
    trials: int = 10
    hp_selection: SetAside = field(default_factory=SetAside)
    validation: SetAside = field(default_factory=SetAside)
    beyond: str = "farthest"
    seed: int = 0

    def checked(self) -> AutoMLSettings:
        """Return the settings. Raises RequestError where one of them is no choice."""
        choices = (
            (self.search, SEARCHES), (self.selection, SELECTIONS), (self.beyond, BEYOND),
        )  # fmt: skip
        for asked, known in choices:
            if asked not in known:
                raise RequestError(f"an AutoML with {asked!r}", "there is no such choice",
                                   one_of(asked, known))  # fmt: skip
        if not self.techniques:
            raise RequestError("an AutoML", "it has no technique", one_of("", DEFAULTS))
        for technique in self.techniques:
            check(technique, {})
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> AutoMLSettings:
        """Return what `to_dict` wrote; what is not there is as usual.

        Raises:
            KeyError, TypeError or ValueError: it is not that.
            RequestError: a setting is no choice.
        """
        given = {name: _tuples(value) for name, value in values.items()}
        parts: tuple[tuple[str, type], ...] = (
            ("recipe", Recipe), ("hp_selection", SetAside), ("validation", SetAside),
        )  # fmt: skip
        for name, made in parts:
            if name in given:
                given[name] = made(**given[name])
        return AutoMLSettings(**given).checked()


def _tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


Parameters = Mapping[str, Any]

FITS = "fits"  # the scores that are of no set of rows


@dataclass(frozen=True)
class Fitted:
    """A model of some of the features."""

    model: FittedModel
    places: tuple[int, ...]

    @property
    def converged(self) -> bool:
        """Whether the search of its parameters ended by itself."""
        return settled(self.model)

    def predict(self, x: FloatArray) -> FloatArray:
        """Return seconds of n rows of all features (n, k), (n,)."""
        return self.model.predict(x[:, list(self.places)])


@dataclass(frozen=True)
class Experiment:
    """One technique with its parameters, and how it did.

    Attributes:
        scores: by set (`training`, `hp_selection`, `validation`, and `beyond` where there are runs
            on more devices than others): mape (percent), rmse (seconds) and r2; under `fits`, the
            share of its fits that `converged`.
    """

    technique: str
    parameters: Parameters
    scores: Mapping[str, Mapping[str, float]]

    @property
    def error(self) -> float:
        """MAPE on the rows set aside for hyper-parameters, which alone decides; percent."""
        return float(self.scores["hp_selection"]["mape"])

    @property
    def converged(self) -> bool:
        """Whether every fit of it did."""
        return self.scores.get(FITS, {}).get("converged", 1.0) == 1.0


@dataclass(frozen=True)
class Outcome:
    """What the experiments of one group of runs came to.

    Attributes:
        features: of the runs.
        winner: fitted on everything.
        experiments: all of them, the best first.
        judged: rows set aside for validation, positions; `foretold`: what the winner, fitted
            without them, said of them, seconds.
        apart: what the winner said of every row, fitted without its configuration, seconds, (n,).
        far: who answers beyond the runs, fitted on everything; `far_by`: its experiment.
        growth: log standard deviation that a doubling of devices beyond the runs adds.
    """

    features: AugmentedFeatures
    winner: Fitted
    experiments: tuple[Experiment, ...]
    judged: NDArray[np.int64]
    foretold: FloatArray
    apart: FloatArray
    far: Fitted
    far_by: Experiment
    growth: float


def figures(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> dict[str, float]:
    """Return MAPE in percent, RMSE in seconds and R2 of forecasts and facts."""
    said = np.concatenate([a for a, _ in pairs])
    facts = np.concatenate([b for _, b in pairs])
    off = said - facts
    total = float(np.sum((facts - facts.mean()) ** 2))
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "mape": float(np.nan_to_num(100 * np.mean(np.abs(off) / facts), nan=np.inf)),
            "rmse": float(np.sqrt(np.mean(off**2))),
            "r2": 1.0 - float(np.sum(off**2)) / total if total > 0 else float("nan"),
        }


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
    settings: AutoMLSettings,
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
        settings: AutoMLSettings,
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

        def one(features: FloatArray, values: FloatArray) -> FittedModel:
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

    features: AugmentedFeatures
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
            AugmentedFeatures(terms), winner, experiments,
            {name: tuple(texts) for name, texts in values["levels"].items()},
            {name: (float(a), float(b)) for name, (a, b) in values["ranges"].items()},
            (low, high), far, int(values["far_by"]), float(values["growth"]), int(values["runs"]),
        )  # fmt: skip


def fitted_group(
    columns: Columns,
    seconds: FloatArray,
    settings: AutoMLSettings,
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
