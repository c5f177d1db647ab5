"""RayML: the AutoML of Filippini and Ardagna's Ray study, with a model for each kind with enough runs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import ColumnRows, FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.quantiles import Z95, mixture_quantiles
from forerun.errors import RequestError, one_of
from forerun.predictors.laws.grouped import article
from forerun.predictors.laws.law_rows import GROUP, SIZES, Kind
from forerun.predictors.options import PredictorOption
from forerun.predictors.regression.job_features import (
    POOL,
    RANGES,
    JobFeatures,
    StatedNumbers,
    declined,
    distinct_forecasts,
    doublings_beyond,
    kind_words,
    needed,
    served,
    timed,
)
from forerun.predictors.regression.techniques import (
    DEFAULTS,
    EXTRAPOLATE,
    POWER,
    Linear,
    Parameters,
    Regression,
    Trees,
    check,
    fitted,
)
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted, format_percent

# A factor of a product: how it is made (`x`, `1/x`, `ln` or `is`), of which column, of which class.
Factor = tuple[str, str, str]
Term = tuple[Factor, ...]

MOST_TERMS = 2000
# Of each way to make a factor: its words, and its values by those of the column and the class.
_FORMS: Mapping[str, tuple[str, Callable[[Any, str], FloatArray]]] = {
    "is": ("[{} is {}]", lambda v, text: np.asarray(v == text, dtype=np.float64)),
    "x": ("{}", lambda v, _: v), "1/x": ("1/{}", lambda v, _: 1.0 / v), "ln": ("ln {}", lambda v, _: np.log(v)),
}  # fmt: skip


@dataclass(frozen=True)
class Columns(ColumnRows):
    """n rows before augmentation: positive numbers and texts by name, each (n,)."""

    numbers: Mapping[str, FloatArray]
    texts: Mapping[str, NDArray[np.object_]]

    def __len__(self) -> int:
        return len(next(iter({**self.numbers, **self.texts}.values())))

    @cached_property
    def configurations(self) -> IntArray:
        """Number of the configuration that each row is of, (n,), whatever order the rows come in."""
        columns = {**self.numbers, **self.texts}
        places = [np.unique(columns[name], return_inverse=True)[1] for name in sorted(columns)]
        _, of = np.unique(np.stack(places, axis=1), axis=0, return_inverse=True)
        return of.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class AugmentedFeatures:
    """The augmented features, as products of factors."""

    terms: tuple[Term, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Each feature in words, as `1/devices x ln micro_batch`."""
        return tuple(
            " x ".join(_FORMS[how][0].format(name, text) for how, name, text in term)
            for term in self.terms
        )

    def matrix(self, columns: Columns) -> FloatArray:
        """Return the features of n rows, (n, k)."""
        x, made = np.ones((len(columns), len(self.terms))), dict[Factor, FloatArray]()
        for how, name, text in {factor for term in self.terms for factor in term}:
            given: Any = columns.texts if how == "is" else columns.numbers
            made[how, name, text] = _FORMS[how][1](given[name], text)
        for i, term in enumerate(self.terms):
            for factor in term:
                x[:, i] *= made[factor]
        return x


def augmented(
    columns: Columns, degree: int, sizes: Sequence[str] = (), falling: Container[str] = ()
) -> AugmentedFeatures:
    """Return the features of rows: none is constant, and none says what another says.

    degree: most factors of a product; sizes: columns that may be Ernest's size, the first that is there is.
    falling: columns with which the time falls: where x, 1/x and ln x say the same, as of two values, 1/x
    stays of these, which never leads below 0, and x of others.

    Raises:
        RequestError: a number is not positive and finite, no column changes, or the features are too many.
    """
    what = f"features of {len(columns)} runs"
    for name, values in columns.numbers.items():
        if not (np.isfinite(values).all() and (values > 0).all()):
            todo = "leave the column out, or correct it"
            raise RequestError(what, f"{name} is not above 0 in some", todo)
    hot: list[Factor] = [
        ("is", name, text)
        for name, values in columns.texts.items()
        for text in sorted(set(values.tolist()))
    ]
    names = [name for name, v in columns.numbers.items() if v.min() < v.max()]
    singles = hot + [(form, name, "") for form in ("x", "1/x", "ln") for name in names]
    terms: list[Term] = [(factor,) for factor in singles]
    for factors in range(2, degree + 1):
        terms += filter(_allowed, combinations_with_replacement(singles, factors))
        if len(terms) > MOST_TERMS:
            raise RequestError(
                f"{what} with products of {degree} factors",
                f"more than {MOST_TERMS} of them", "ask for a lower degree, or fewer columns",
            )  # fmt: skip
    if "devices" in columns.numbers:
        # size / machines and ln machines (Venkataraman et al., NSDI 2016, equation 1)
        size = next((name for name in sizes if name in columns.numbers), None)
        over: Term = (("1/x", "devices", ""),)
        terms += [over if size is None else (("x", size, ""), *over)]
        terms += [(("ln", "devices", ""),), (("x", "devices", ""),)]
    every = tuple(dict.fromkeys(terms))
    # Features stay that change and repeat no earlier one, up to a factor and a constant.
    x = AugmentedFeatures(every).matrix(columns)
    low, high = x.min(axis=0), x.max(axis=0)
    size = np.maximum(np.abs(low), np.abs(high))
    changes = high - low > 1e-9 * np.maximum(size, 1e-300)
    seen: set[bytes] = set()
    kept = []
    usable = np.flatnonzero(changes & np.isfinite(size)).tolist()
    usable.sort(key=lambda i: sum(f == "x" and name in falling for f, name, _ in every[i]))
    for i in usable:
        unit = (x[:, i] - low[i]) / (high[i] - low[i])
        # A feature and its mirror say the same.
        keys = [np.round(v, 9).tobytes() for v in (unit + 0.0, 1.0 - unit + 0.0)]
        if not seen.intersection(keys):
            kept.append(i)
            seen.update(keys)
    if not kept:
        raise RequestError(
            what, "no column changes from run to run",
            "give runs that differ in devices, batch or size",
        )  # fmt: skip
    return AugmentedFeatures(tuple(every[i] for i in sorted(kept)))


def _allowed(term: Term) -> bool:
    numbers = {(how, name) for how, name, _ in term if how != "is"}
    if any(how == "x" and ("1/x", name) in numbers for how, name in numbers):
        return False
    classes = [name for how, name, _ in term if how == "is"]
    return len(set(classes)) == len(classes)  # a class squared is itself, and two are never both


Partition = tuple[IntArray, IntArray]  # rows that are fitted, rows that are judged
SEARCHES = ("defaults", "grid")
BEYOND = ("several", "winner")
ERRORS = ("relative", "absolute")
# What a grid tries beside the defaults.
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
SHARE = 0.2  # of the configurations that are set aside for hyper-parameters, and for validation
SELECTION_FOLDS = 5  # by which hyper-parameters and techniques are chosen
FOLDS = 10  # of what the winner says of each configuration without it


@dataclass(frozen=True)
class AutoMLSettings:
    """What is tried, and how it is judged. Raises RequestError where one of them is no choice.

    degree: most factors of a feature. beyond: who answers outside the ranges of the runs: `several`, all
    techniques that go on and a power law, each by its errors, so that where they part the band is wide; or
    the `winner`, as in the study. errors: what fits make small, `relative` errors, or `absolute` ones, as in the study.
    """

    degree: int = 2
    techniques: tuple[str, ...] = tuple(DEFAULTS)
    search: str = "defaults"
    beyond: str = "several"
    errors: str = "relative"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        choices = ((self.search, SEARCHES), (self.beyond, BEYOND), (self.errors, ERRORS))
        for wanted, known in choices:
            if wanted not in known:
                raise RequestError(f"an AutoML with {wanted!r}", "there is no such choice",
                                   one_of(wanted, known))  # fmt: skip
        if not self.techniques:
            raise RequestError("an AutoML", "it has no technique", one_of("", DEFAULTS))
        for technique in self.techniques:
            check(technique, {})


def set_aside(configuration: IntArray, seed: int, folds: int = 0) -> list[Partition]:
    """Return what is fitted and what is judged of n rows: a share of them, or each of some folds in turn.

    configuration: of each row, (n,): repeats stay together, unless all rows repeat a single one.
    """
    rows = np.arange(len(configuration))
    distinct, of = np.unique(configuration, return_inverse=True)
    if len(distinct) == 1:
        distinct = of = rows
    turn = np.random.default_rng(seed).permutation(len(distinct))
    if folds:
        parts = max(min(folds, len(turn)), 2)
        judged = [(turn % parts)[of] == i for i in range(parts)]
    else:
        judged = [np.isin(of, turn[: min(max(round(SHARE * len(turn)), 1), len(turn) - 1)])]
    return [(rows[~aside], rows[aside]) for aside in judged]


FITS = "fits"  # the scores that are of no set of rows


@dataclass(frozen=True)
class Experiment:
    """One technique with its parameters, and how it did.

    scores: by set (`training`, `hp_selection`, `validation`, and `beyond` where there are runs on more
    devices than others): mape (percent), rmse (seconds), r2; under `fits`, the share that `converged`.
    """

    technique: str
    parameters: Parameters
    scores: Mapping[str, Mapping[str, float]]

    @property
    def error(self) -> float:
        """MAPE on the rows set aside for hyper-parameters, which alone decides; percent."""
        return float(self.scores["hp_selection"]["mape"])


def figures(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> dict[str, float]:
    """Return MAPE in percent, RMSE in seconds and R2 of forecasts and measured seconds."""
    forecast, seconds = (np.concatenate(side) for side in zip(*pairs, strict=True))
    off = forecast - seconds
    total = float(np.sum((seconds - seconds.mean()) ** 2))
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "mape": float(np.nan_to_num(100 * np.mean(np.abs(off) / seconds), nan=np.inf)),
            "rmse": float(np.sqrt(np.mean(off**2))),
            "r2": 1.0 - float(np.sum(off**2)) / total if total > 0 else float("nan"),
        }


# Log standard deviation that a doubling beyond the runs adds, where they cannot say, and at least
# and at most: as the chosen one, fitted to the nearer runs, erred about the farther ones.
USUAL_GROWTH, LEAST_GROWTH, MOST_GROWTH = 0.3, 0.03, 1.0
# Of an experiment of the techniques that go on beyond the runs: no products of more than one number.
SINGLE = "single_features"
_LEAST_NEAR = 8  # runs on fewer devices, for a fit that is judged on those on more


@dataclass(frozen=True)
class Outside:
    """One who answers outside the ranges of the runs: its place in `experiments`, its model, its share.

    growth: log standard deviation that a doubling beyond the runs adds.
    """

    place: int
    model: Regression
    share: float
    growth: float


class _Trials:
    """The experiments on one group of runs."""

    def __init__(
        self, columns: Columns, seconds: FloatArray, settings: AutoMLSettings, sizes: Sequence[str]
    ) -> None:
        self.settings, self.seconds = settings, seconds
        off = seconds - seconds.mean()
        falling = {n for n, v in columns.numbers.items() if np.sum((v - v.mean()) * off) < 0}
        found = augmented(columns, settings.degree, sizes, falling).terms
        # The power law's are there whatever says the same.
        logs = [(("ln", name, ""),) for name, v in columns.numbers.items() if np.ptp(v) > 0]
        self.usual = list(range(len(found)))
        self.features = AugmentedFeatures(tuple(dict.fromkeys((*found, *logs))))
        self.x = self.features.matrix(columns)
        self.of = columns.configurations
        self.outer = set_aside(self.of, settings.seed)
        self.inner = [
            (rows[fit], rows[judged])
            for rows, _ in self.outer
            for fit, judged in set_aside(self.of[rows], settings.seed + 1, SELECTION_FOLDS)
        ]
        terms = enumerate(self.features.terms)
        self.logs = [i for i, term in terms if len(term) == 1 and term[0][0] in ("ln", "is")]
        # Ernest's share, a number over devices, counts as single.
        self.single = [
            i for i, term in enumerate(found)
            if len(term) == 1 or (term[0][0] == "x" and term[1:] == (("1/x", "devices", ""),))
        ]  # fmt: skip
        self.devices = columns.numbers.get("devices", np.ones(len(seconds)))
        # Runs on at most the middle number of devices, and the others.
        distinct = np.unique(self.devices)
        near = self.devices <= distinct[(len(distinct) - 1) // 2]
        enough = len(distinct) >= 3 and near.sum() >= _LEAST_NEAR
        self.halves = (np.flatnonzero(near), np.flatnonzero(~near)) if enough else None

    def all(self) -> Iterator[Experiment]:
        """Yield the experiments as they are done."""
        settings = self.settings
        for technique in settings.techniques:
            grid = GRIDS.get(technique, {}) if settings.search != "defaults" else {}
            for values in product(*grid.values()):
                given = dict(zip(grid, values, strict=True))
                yield self.experiment(technique, given)
                if technique in EXTRAPOLATE and settings.degree > 1:
                    yield self.experiment(technique, {**given, SINGLE: True})
        if settings.beyond == "several" and self.logs:
            yield self.experiment(POWER, {})

    def experiment(self, technique: str, parameters: Parameters) -> Experiment:
        """Return an experiment, done."""
        sets: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
        ended = []

        def tried(fit: IntArray, **judged: IntArray) -> None:
            model = self.fit(technique, parameters, fit)
            ended.append(model.converged)
            for name, rows in judged.items():
                pair = model.predict(self.x[rows]), self.seconds[rows]
                sets.setdefault(name, []).append(pair)

        for fit, judged in self.inner:
            tried(fit, training=fit, hp_selection=judged)
        for fit, judged in self.outer:
            tried(fit, validation=judged)
        if self.halves is not None:
            tried(self.halves[0], beyond=self.halves[1])
        scores = {name: figures(pairs) for name, pairs in sets.items()}
        fits = {"converged": float(np.mean(ended))}
        return Experiment(technique, parameters, {**scores, FITS: fits})

    def fit(self, technique: str, parameters: Parameters, rows: IntArray) -> Regression:
        """Return the model of some of the rows."""
        given = {name: value for name, value in parameters.items() if name != SINGLE}
        some = self.single if SINGLE in parameters else self.usual
        return fitted(
            technique, given, self.x[rows], self.seconds[rows],
            places=self.logs if technique == POWER else some, relative=self.settings.errors == "relative",
        )  # fmt: skip

    def growth(self, chosen: Experiment) -> float:
        """Return what a doubling beyond the runs adds to an experiment's log error."""
        if self.halves is None:
            return USUAL_GROWTH
        near, far = self.halves
        model = self.fit(chosen.technique, chosen.parameters, near)
        forecast = np.maximum(model.predict(self.x[far]), 1e-3 * float(self.seconds.min()))
        off = np.abs(np.log(self.seconds[far] / forecast))
        doublings = np.log2(self.devices[far] / self.devices[near].max())
        needed = float(np.quantile(off / doublings, 0.9)) / Z95
        return float(np.clip(needed, LEAST_GROWTH, MOST_GROWTH))

    def outside(self, tried: Sequence[Experiment]) -> tuple[Outside, ...]:
        """Return who answers outside the ranges: the winner, or all that go on, by their errors."""
        places = [i for i, done in enumerate(tried) if done.technique in EXTRAPOLATE]
        if self.settings.beyond == "winner" or not places:
            places = [0]
        # The geometric mean of the error and, where runs are on more devices, of that on those.
        scores = [tried[i].scores for i in places]
        far = np.array([one.get("beyond", one["hp_selection"])["mape"] for one in scores])
        errors = np.sqrt(np.array([tried[i].error for i in places]) * far)
        shares = 1.0 / np.maximum(errors, 1e-9)
        order = np.argsort(-shares, kind="stable")
        everything = np.arange(len(self.of))
        return tuple(
            Outside(
                places[i], self.fit(tried[places[i]].technique, tried[places[i]].parameters, everything),
                float(shares[i] / shares.sum()), self.growth(tried[places[i]]),
            ) for i in order
        )  # fmt: skip

    def held_out(self, chosen: Sequence[Experiment], shares: FloatArray) -> FloatArray:
        """Return what a mixture says of every row, fitted without its configuration, (n,)."""
        forecast = np.empty((len(chosen), len(self.of)))
        for fit, judged in set_aside(self.of, self.settings.seed + 2, FOLDS):
            for done, said in zip(chosen, forecast, strict=True):
                model = self.fit(done.technique, done.parameters, fit)
                said[judged] = model.predict(self.x[judged])
        return mixture(forecast, shares)[:, 1]


def mixture(
    middles: FloatArray, shares: FloatArray, reach: tuple[float, float] = (0.0, 0.0)
) -> FloatArray:
    """Return the quantiles of a mixture of k answers (k, n), (n, 3), NaN where the first ones are not above 0.

    reach: how far below and above each of them 5 % and 95 % lie, logs.
    """
    # One that gives no time above 0 leaves its share to the first that does.
    first = np.take_along_axis(middles, np.argmax(middles > 0, axis=0)[None], axis=0)
    logs = np.log(np.where(middles > 0, middles, np.where(first > 0, first, 1.0)))
    rows = np.exp(np.stack([logs - reach[0], logs, logs + reach[1]], axis=-1))
    return np.where(first.T > 0, mixture_quantiles(rows, shares), np.nan)


# Readings on one machine differ by 1-2 %: no band is surer than that.
LEAST_REACH = 0.02 * Z95
_MOST_LOG = 2.3
_MANY = 60  # configurations, whose quantiles need no Student's t beside them


@dataclass(frozen=True)
class RayGroup:
    """The winner of one group, fitted on all of its runs.

    experiments: all, the best first. levels: of each text column, the classes that had runs. ranges: least
    and most of each number that is read. reach: how far below and above lie 5 % and 95 % of left-out
    configurations, logs. far: who answers outside the ranges, the one of the largest share first. mixed: whether
    they answer inside as well.
    """

    features: AugmentedFeatures
    winner: Regression
    experiments: tuple[Experiment, ...]
    levels: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[float, float]]
    reach: tuple[float, float]
    far: tuple[Outside, ...]
    mixed: bool
    runs: int

    def __post_init__(self) -> None:
        """Refuse a place beyond the features. Raises ValueError."""
        models = (self.winner, *(one.model for one in self.far))
        if max(max(model.places, default=0) for model in models) >= len(self.features.terms):
            raise ValueError("a place beyond the features")

    @property
    def answering(self) -> dict[str, Regression]:
        """By technique, the models that answer."""
        far = {self.experiments[one.place].technique: one.model for one in self.far}
        return far | {self.experiments[0].technique: self.winner}

    def answers(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return quantiles of seconds (n, 3), NaN where the median is not above 0, and doublings beyond (n,)."""
        x = self.features.matrix(columns)
        middles = np.stack([one.model.predict(x) for one in self.far])
        shares = np.array([one.share for one in self.far])
        inside = mixture(middles, shares)[:, 1] if self.mixed else self.winner.predict(x)
        inside = np.where(inside > 0, inside, np.nan)[:, None]
        sign = np.array([-1.0, 0.0, 1.0])
        seconds = inside * np.exp(sign * np.array([self.reach[0], 0.0, self.reach[1]]))
        beyond = doublings_beyond(self.ranges, columns.numbers)
        outside = mixture(middles, shares, self.reach)
        growth = Z95 * float(np.sqrt(shares @ [one.growth**2 for one in self.far])) * beyond
        off = np.log(outside / outside[:, 1:2])
        outside = outside[:, 1:2] * np.exp(sign * np.sqrt(off**2 + growth[:, None] ** 2))
        return np.where(beyond[:, None] > 0, outside, seconds), beyond


def run_experiments(
    columns: Columns, seconds: FloatArray, settings: AutoMLSettings, sizes: Sequence[str] = ()
) -> RayGroup:
    """Return the winner of all experiments on n runs; sizes: columns that may be Ernest's size, the usual first.

    Raises:
        RequestError: no column changes, or no technique predicted what was set aside.
        MissingExtraError: scikit-learn or XGBoost is not installed.
    """
    # Every draw is from rows in an order of their own: runs in another order give the same.
    order = np.lexsort((seconds, columns.configurations))
    columns, seconds = columns.take(order), seconds[order]
    trials = _Trials(columns, seconds, settings, sizes)
    tried = sorted(trials.all(), key=lambda done: done.error)
    if not np.isfinite(tried[0].error):
        raise RequestError(
            f"experiments on {len(seconds)} runs", "no technique predicted the rows set aside",
            "give more runs, or other techniques",
        )  # fmt: skip
    best, far = tried[0], trials.outside(tried)
    winner = trials.fit(best.technique, best.parameters, np.arange(len(seconds)))
    # Of few configurations the winner is chance.
    mixed = settings.beyond == "several" and int(columns.configurations.max()) < _MANY
    answering = [tried[one.place] for one in far] if mixed else [best]
    shares = np.array([one.share for one in far]) if mixed else np.ones(1)
    read = {*RANGES, *(name for term in trials.features.terms for _, name, _ in term)}
    ranges = {n: (float(v.min()), float(v.max())) for n, v in columns.numbers.items() if n in read}
    return RayGroup(
        trials.features, winner, tuple(tried),
        {name: tuple(sorted(set(v.tolist()))) for name, v in columns.texts.items()}, ranges,
        _reach(trials.held_out(answering, shares), seconds, columns.configurations),
        far, mixed, len(seconds),
    )  # fmt: skip


def _reach(held_out: FloatArray, seconds: FloatArray, of: IntArray) -> tuple[float, float]:
    """Return how far configurations that the winner had not seen lie below and above it, as logs.

    The quantiles hold for the next configuration (cross-conformal prediction: Vovk 2015), and are no less
    than those of Student's t with as many. of: the configuration of each run, numbered from 0, (n,).
    """
    from scipy.special import stdtrit

    logs = np.log(seconds) - np.log(np.maximum(np.nan_to_num(held_out), 1e-300))
    logs = np.clip(logs, -_MOST_LOG, _MOST_LOG)
    repeats = np.bincount(of)
    m = len(repeats)
    each = 1.0 / (m * repeats[of])  # a configuration counts once, however often it was measured
    level = min(0.95 * (m + 1) / m, 1.0)
    least = LEAST_REACH
    if m <= _MANY:
        t = float(stdtrit(max(m - 1, 1), 0.95))
        least = max(t * np.sqrt((1 + 1 / m) * float(np.sum(each * logs**2))), LEAST_REACH)

    def reach(values: FloatArray) -> float:
        order = np.argsort(values, kind="stable")
        place = int(np.searchsorted(np.cumsum(each[order]), level * (1 - 1e-12)))
        return max(float(values[order[min(place, len(values) - 1)]]), float(least))

    return reach(-logs), reach(logs)


# Fewer runs leave nothing to choose by, once rows are set aside twice.
LEAST_RUNS = 8
OWN_RUNS = 8  # that give a kind a model of its own
MOST_OWN = 16  # kinds that have one, those with the most runs
MOST_CLASSES = 30  # of one-hot columns that are multiplied: more products than runs fit nothing
NEAR, A_DOUBLING = 0.1, 0.2
# What a light one tries: a model that goes on beyond the runs, and one that bends.
_LIGHT = ("Ridge", "NNLS", "DecisionTree")


@dataclass(frozen=True)
class RayML(SavedPredictor):
    """Augmented features, several techniques, the least error on rows set aside, fitted again.

    groups: by kind of job; the kinds with few runs share that under the empty kind, with one-hot columns.
    counts: which kinds had runs, and how many.
    """

    settings: AutoMLSettings = field(default_factory=AutoMLSettings)
    quantity: str = "step"
    groups: Mapping[Kind, RayGroup] = field(default_factory=dict)
    counts: Mapping[Kind, int] = field(default_factory=dict)

    name = "ray-ml"
    version = 7
    options = (
        PredictorOption("search", "defaults", "how hyper-parameters are searched", SEARCHES),
        PredictorOption("beyond", "several", "who answers outside the ranges of the runs", BEYOND),
        PredictorOption("errors", "relative", "what fits make small", ERRORS),
        PredictorOption("techniques", tuple(DEFAULTS), "regressions that compete", tuple(DEFAULTS)),
        PredictorOption("seed", 0, "of every draw"),
    )

    @classmethod
    def with_options(cls, **options: Any) -> RayML:
        """Return a predictor with some options set. Raises RequestError for a value that is no choice."""
        return cls(AutoMLSettings(**options))

    def light(self, runs: Runs) -> Callable[[IntArray], RayML]:
        """Return what fits parts of the runs, by position: three fast techniques on simple features."""
        less = RayML(replace(self.settings, degree=1, techniques=_LIGHT, search="defaults"))
        return lambda part: less.fit(runs.take(part))

    def fit(self, runs: Runs) -> RayML:
        """Return a predictor with the winners of these runs alone.

        Raises:
            RequestError: too few runs have a time and state their devices, or nothing changes.
            MissingExtraError: scikit-learn or XGBoost is not installed.
        """
        runs = sorted_runs(runs)
        quantity, seconds = timed(self.name, runs, LEAST_RUNS)
        rows = np.flatnonzero(np.isfinite(seconds))
        seconds, features = seconds[rows], JobFeatures(runs.jobs.take(rows))
        names, index = features.kinds
        tally = np.bincount(index, minlength=len(names))
        large = [i for i in np.argsort(-tally, kind="stable") if tally[i] >= OWN_RUNS][:MOST_OWN]
        parts: dict[Kind, IntArray] = {names[i]: np.flatnonzero(index == i) for i in sorted(large)}
        parts[POOL] = np.flatnonzero(~np.isin(index, large))
        columns = _columns(features)
        each = ((k, self._group(columns.take(p), seconds[p], quantity)) for k, p in parts.items())
        groups = {kind: group for kind, group in each if group is not None}
        if not groups:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"no kind of job has {LEAST_RUNS} runs of which a number changes", f"give {needed(LEAST_RUNS)}",
            )  # fmt: skip
        counts = dict(zip(names, tally.tolist(), strict=True))
        return RayML(self.settings, quantity, groups, counts)

    def _group(self, columns: Columns, seconds: FloatArray, quantity: str) -> RayGroup | None:
        """Return the winner of some of the runs, None where they are too few or all alike."""
        if len(seconds) < LEAST_RUNS:
            return None
        # Columns that all rows state, and classes that differ.
        numbers = {name: v for name, v in columns.numbers.items() if np.isfinite(v).all()}
        texts = {name: v for name, v in columns.texts.items() if len(set(v.tolist())) > 1}
        if not texts and all(v.min() == v.max() for v in numbers.values()):
            return None
        settings = self.settings
        if sum(len(set(v.tolist())) for v in texts.values()) > MOST_CLASSES:
            settings = replace(settings, degree=1)
        return run_experiments(Columns(numbers, texts), seconds, settings, SIZES[quantity])

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs; memory is not answered (NaN)."""
        return distinct_forecasts(jobs, self._answers)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        made = replace(Forecasts.blank(len(jobs), self.name, self.quantity), warnings=self.warnings)
        features = JobFeatures(jobs)
        chosen, _ = served(features, self.counts, self.groups)
        columns, fits = _columns(features), list(self.groups.values())
        blank = [{name: np.isnan(columns.numbers[name]) for name in fit.ranges} for fit in fits]
        reasons = declined(features, chosen, self._why_none, blank)
        for place, fit in enumerate(fits):
            for name, levels in fit.levels.items():
                new = (chosen == place) & ~np.isin(columns.texts[name].astype(str), list(levels))
                what = "was in these settings" if name == "settings" else f"had this {name}"
                reasons[new & is_none(reasons)] = f"no run {what}; give some"
            rows = np.flatnonzero(is_none(reasons) & (chosen == place))
            if len(rows):
                made.seconds[rows], beyond = fit.answers(columns.take(rows))
                made.distance[rows] = NEAR + A_DOUBLING * beyond
        nothing = is_none(reasons) & ~(made.seconds[:, 0] > 0)
        reasons[nothing] = "the regression of its runs gives no time above 0 here"
        made.seconds[nothing], made.distance[nothing] = np.nan, np.nan
        return replace(made, declined=reasons)

    def _why_none(self, kind: Kind) -> str:
        few = f"has too few runs of {kind_words(kind)}"
        why = few if self.groups else "answers from runs alone and was given none"
        return f"{self.name} {why}; give {needed(LEAST_RUNS)}"

    @property
    def report(self) -> list[dict[str, Any]]:
        """Every experiment: kind, technique, parameters, whether it won, and MAPE (percent), RMSE
        (seconds) and R2 on training, hp_selection and validation rows, and which share of its fits
        converged."""  # noqa: D205, D209
        return [
            {"kind": kind_words(kind), "technique": e.technique, "parameters": dict(e.parameters),
             "won": i == 0, **{f"{part}_{name}": value for part, figures in e.scores.items()
                               for name, value in figures.items()}}
            for kind, group in self.groups.items()
            for i, e in enumerate(group.experiments)
        ]  # fmt: skip

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which answers are of a fit that did not converge."""
        return tuple(
            f"{kind_words(kind)}: the fit of {technique} did not converge; the best found serves"
            for kind, group in self.groups.items()
            for technique, model in group.answering.items()
            if not model.converged
        )

    @property
    def formulas(self) -> dict[str, str]:
        """What won for each kind, as a formula where it is linear, and how it did."""
        return {kind_words(kind): _words(one, self.quantity) for kind, one in self.groups.items()}


def _columns(features: JobFeatures) -> Columns:
    """Return all numbers and classes of jobs, and the global batch, of which a step is made and an epoch has many."""
    names, index = features.kinds
    batch = features.rows.size("global_batch")

    def column(texts: list[str]) -> NDArray[np.object_]:
        return np.asarray(np.array([*texts, ""], dtype=object)[index])

    texts = {name: column([kind[i] for kind in names]) for i, name in enumerate(GROUP)}
    texts["settings"] = column(["|".join(filter(None, kind[len(GROUP) :])) for kind in names])
    whole = np.where(batch > 0, batch, np.nan)
    return Columns(StatedNumbers({**features.numbers, "global_batch": whole}), texts)


def _words(group: RayGroup, quantity: str) -> str:
    """Return what answers questions of a group: a formula where it is linear; and how it was judged."""
    best, names = group.experiments[0], group.features.names
    given = "".join(f", {name} {value}" for name, value in best.parameters.items())
    errors = ", ".join(
        f"{part.replace('_', '-')} {figures['mape']:.1f} %"
        for part, figures in best.scores.items() if part != FITS
    )  # fmt: skip
    ended = "" if group.winner.converged else "; its fit did not converge: the best found serves"
    text = f"seconds of {article(quantity)} {_formula(group.winner, names)}"
    far = group.far[0]
    if far.place or len(group.far) > 1:
        text += (
            f"; outside the ranges of the runs a mixture of {counted(len(group.far), 'answer')}, of which"
            f" {group.experiments[far.place].technique} has the largest share, {format_percent(far.share)}:"
            f" {_formula(far.model, names)}"
        )
    low, high = np.exp(group.reach)
    return (
        f"{text} ({best.technique}{given}; {group.runs} runs; MAPE {errors}; 90 % of runs (5 to 95 %)"
        f" lie between 1/{low:.2f} and {high:.2f} times it; ln is natural{ended})"
    )


def _formula(one: Regression, names: Sequence[str]) -> str:
    """Return a sum whose figures are long enough to be computed again, or what serves instead."""
    mine, model = [names[i] for i in one.places], one.model
    if isinstance(model, Linear):
        weights = one.unit * model.weights / one.scale
        start = "= exp of " if one.log else "= "
        intercept = one.middle + one.unit * model.intercept - float(weights @ one.centre)
        terms = [
            f" {'-' if weight < 0 else '+'} {abs(weight):.6g} x {name}"
            for weight, name in zip(weights.tolist(), mine, strict=True) if weight
        ]  # fmt: skip
        return f"{start}{intercept:.6g}{''.join(terms)}"
    if isinstance(model, Trees):
        splits = np.bincount(model.feature[model.left >= 0], minlength=len(mine))
        mine = [mine[i] for i in np.argsort(-splits, kind="stable")[:5] if splits[i]]
        return f"by trees ({len(model.roots)}), no formula, which split by {', '.join(mine)}"
    return f"by a network, no formula, of {', '.join(mine)}"
