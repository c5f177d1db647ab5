"""Generic: one expression of power laws for any framework, its constants fitted to the runs.

Kavarakuntla, Han, Lloyd, Latham, Kleerekoper and Akintoye, A generic performance model for deep
learning in a distributed environment (2023); the form is reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, ColumnRows, FloatArray, IntArray, taken
from forerun.errors import RequestError, one_of
from forerun.predictors.laws.fitting import MOST_LOG_RATIO
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    reach_of,
)
from forerun.predictors.laws.law_rows import RESOURCES, LawRows
from forerun.predictors.options import PredictorOption
from forerun.tables import Runs, sorted_runs

_Shape = tuple[tuple[str, ...], int]  # numbers that are E beside `EXTRINSIC`, products added
MODES, PENALTIES = ("fast", "faithful"), ("l1", "l2")
SEED = 0
# Exponents beyond these are no law of training: twice the work takes at most eight times as long.
MOST_EXPONENT = 3.0
# Strengths of the penalty that validation chooses from. Times are divided by what makes them near 1.
STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# With fewer different points than this nothing can be held out, and lambda is this.
LEAST_HELD_OUT, USUAL_STRENGTH = 5, 1e-5
FOLDS = 5
# Of a form with products, descents from drawn exponents; how many products are tried, and by how much the
# mean square of what is held out has to fall for one more.
STARTS, MOST_PRODUCTS, GAINS = 6, 2, 0.9
# Rounds and tolerance of a full descent, and of a rough one of many.
FULLY, ROUGHLY = (150, 1e-9), (12, 1e-3)
# The published way: members for each constant, generations, when the costs have come together.
PLAIN_MEMBERS, PLAIN_GENERATIONS, PLAIN_TOLERANCE = 15, 2000, 1e-6
# The most that a coefficient can be over the longest time.
_MOST_COEFFICIENT = 3.0
# Of times near 1: a billionth of them is missed, and less than the rounding of their squares.
_NOTHING = 1e-18
# |x| in the l1 penalty is sqrt(x^2 + this), so that its slope is known everywhere.
_SMOOTH = 1e-12
# Repeats on one machine differ by 1-2 %, so that no fit is surer than that.
REPEAT_SIGMA = 0.02
# A standard deviation over the median distance of a normal error; how many of them are far.
_OF_MEDIAN, _FAR, _ROUNDS = 1.48, 1.5, 2
_LEAST_FITTED = 0.1  # of the measured time, where weights go by the fitted one
_FIRST_DAMPING, _MOST_DAMPING, _EASIER, _HARDER = 1e-3, 1e8, 0.2, 5.0
_MOST_STEP = 1.0  # of any constant in a round


@dataclass(frozen=True)
class FormRows(ColumnRows):
    """n jobs of each of p problems: time = (sum of a_i I_i^p_i) (product of E_j^q_j) + C (5.1).

    intrinsic, extrinsic: logs of I and of E over their references, (p, n, i) and (p, n, j). flags: 1
    where a job has a category, (p, n, c). products: how many products of E with powers and a coefficient
    of their own are added.
    """

    intrinsic: FloatArray
    extrinsic: FloatArray
    flags: FloatArray
    products: int = 0

    @property
    def exponents(self) -> int:
        """How many exponents the expression has."""
        return int(self.intrinsic.shape[-1] + self.extrinsic.shape[-1] * (1 + self.products))

    def columns(self, exponents: FloatArray) -> FloatArray:
        """Return what the coefficients multiply, (p, n, k), for exponents (p, d)."""
        i, p = self.intrinsic.shape[-1], len(exponents)
        powers = exponents[:, i:].reshape(p, 1 + self.products, -1).transpose(0, 2, 1)
        products = np.exp(self.extrinsic @ powers)
        factor = products[:, :, :1]  # (5.3)
        terms = np.exp(exponents[:, None, :i] * self.intrinsic) * factor  # (5.2)
        parts = [terms, self.flags * factor, products[:, :, 1:], np.ones_like(factor)]
        return np.concatenate(parts, axis=2)

    def slopes(self, columns: FloatArray, coefficients: FloatArray) -> FloatArray:
        """Return the derivative of the time by each exponent, (p, n, d)."""
        i = self.intrinsic.shape[-1]
        parts = columns[:, :, :-1] * coefficients[:, None, :-1]
        k = parts.shape[-1] - self.products
        scaled = [parts[:, :, :k].sum(axis=2, keepdims=True) * self.extrinsic]
        scaled += [parts[:, :, [j]] * self.extrinsic for j in range(k, k + self.products)]
        return np.concatenate([parts[:, :, :i] * self.intrinsic, *scaled], axis=2)


@dataclass(frozen=True)
class GenericForm:
    """I_i and E_j with what each is divided by, of intrinsic texts the code of each word, and how many products are added."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scaling: Mapping[str, float] = field(default_factory=dict)
    products: int = 0

    @property
    def coefficients(self) -> int:
        """How many constants it has beside exponents: the a_i (at least one), of the products, then C."""
        terms = max(len(self.numbers) + sum(map(len, self.categories.values())), 1)
        return terms + self.products + 1

    @property
    def powers(self) -> tuple[str, ...]:
        """The column of each exponent: numbers, scaling, and scaling again for each product."""
        return (*self.numbers, *[*self.scaling] * (1 + self.products))

    @property
    def constants(self) -> int:
        """How many constants it has in all."""
        return self.coefficients + len(self.powers)

    def rows(self, columns: Mapping[str, FloatArray]) -> FormRows:
        """Return n jobs as the expression reads them, as one problem; numbers are positive."""
        n = len(next(iter(columns.values())))
        logs = [
            np.reshape([np.log(columns[name] / by) for name, by in of.items()], (len(of), n)).T
            for of in (self.numbers, self.scaling)
        ]
        flags = [columns[name][:, None] == [*of.values()] for name, of in self.categories.items()]
        if not self.numbers and not flags:
            flags = [np.ones((n, 1), dtype=bool)]
        every = np.concatenate([np.zeros((n, 0)), *flags], axis=1)
        return FormRows(logs[0][None], logs[1][None], every[None], self.products)


@dataclass(frozen=True)
class GenericCost:
    """The costs (5.4) of p problems of n runs, seconds near 1, (p, n): a mean square and a penalty.

    weights: of the squares, (p, n); those of a problem add up to 1. strength: lambda, (p,).
    """

    rows: FormRows
    seconds: FloatArray
    weights: FloatArray
    penalty: str
    strength: FloatArray

    def fitted(self, constants: FloatArray) -> FloatArray:
        """Return the times of the expression (5.1), (p, n), coefficients first, then exponents."""
        k = constants.shape[1] - self.rows.exponents
        columns = self.rows.columns(constants[:, k:])
        return np.asarray((columns @ constants[:, :k, None])[:, :, 0])

    def of(self, constants: FloatArray) -> FloatArray:
        """Return the cost of all constants (p, m): coefficients first, then exponents, (p,)."""
        missed = np.sum(self.weights * (self.fitted(constants) - self.seconds) ** 2, axis=1)
        return np.asarray(missed + self.strength * self._sizes(constants).sum(axis=1))

    def _sizes(self, constants: FloatArray) -> FloatArray:
        return np.sqrt(constants**2 + _SMOOTH) if self.penalty == "l1" else constants**2

    def derivatives(self, constants: FloatArray) -> FloatArray:
        """Return the slopes of the fitted times, (p, n, m)."""
        k = constants.shape[1] - self.rows.exponents
        columns = self.rows.columns(constants[:, k:])
        return np.concatenate([columns, self.rows.slopes(columns, constants[:, :k])], axis=2)

    def parabola(self, constants: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the costs' slopes (p, m), and Gauss and Newton's curvatures (p, m, m)."""
        slopes = self.derivatives(constants)
        turned = (slopes * self.weights[:, :, None]).transpose(0, 2, 1)
        left = self.seconds - self.fitted(constants)
        pull = (turned @ left[:, :, None])[:, :, 0]
        curvature = turned @ slopes
        drawn = self.strength[:, None] * np.ones_like(constants)
        if self.penalty == "l1":
            drawn = drawn / (2.0 * self._sizes(constants))
        np.einsum("pmm->pm", curvature)[...] += drawn
        return 2.0 * (drawn * constants - pull), 2.0 * curvature

    def only(self, kept: BoolArray) -> GenericCost:
        """Return the costs where some runs (p, n) alone have weight."""
        weights = self.weights * kept
        return replace(self, weights=weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class GenericFit:
    """Constants of p problems, coefficients then exponents, (p, m); weights of their runs, (p, n); and
    what is of each problem, (p,)."""  # noqa: D205, D209

    constants: FloatArray
    costs: FloatArray
    converged: BoolArray
    strength: FloatArray
    weights: FloatArray


def descend(
    cost: GenericCost, start: FloatArray, rounds: int = FULLY[0], tolerance: float = FULLY[1]
) -> GenericFit:
    """Return the minimum beside each start, (p, m), by damped steps (Marquardt, 1963)."""
    upper = np.full(start.shape[1], np.inf)
    upper[start.shape[1] - cost.rows.exponents :] = MOST_EXPONENT
    lower = np.where(np.isinf(upper), 0.0, -MOST_EXPONENT)
    best = np.clip(start, lower, upper)
    found, converged = cost.of(best), np.zeros(len(best), dtype=bool)
    live, damping = np.arange(len(best)), np.full(len(best), _FIRST_DAMPING)
    some, theta, now = cost, best.copy(), found.copy()
    slope, curvature = some.parabola(theta)
    for _ in range(rounds):
        # A constant at a bound is held while the cost falls beyond it.
        held = ((theta <= lower) & (slope > 0)) | ((theta >= upper) & (slope < 0))
        curved = curvature * ~held[:, :, None] * ~held[:, None, :]
        size = np.einsum("pmm->pm", curved)  # a view
        # Directions in which a cost is flat are damped by its curvature in the others.
        least = 1e-6 * size.max(axis=1, keepdims=True) + 1e-30
        size += damping[:, None] * np.maximum(size, least) + least + held
        pull = slope * ~held
        step = np.linalg.solve(curved, pull[:, :, None])[:, :, 0]
        trial = np.clip(theta - np.clip(step, -_MOST_STEP, _MOST_STEP), lower, upper)
        tried = some.of(trial)
        better = tried < now
        gained = np.where(better, now - tried, np.einsum("pm,pm->p", step, pull) / 2.0)
        done = (gained <= tolerance * now) | (now <= _NOTHING) | (damping > _MOST_DAMPING)
        theta[better], now[better] = trial[better], tried[better]
        damping *= np.where(better, _EASIER, _HARDER)
        best[live], found[live], converged[live] = theta, now, done
        if done.all():
            break
        if done.any():
            stay = np.flatnonzero(~done)
            live, some, damping = live[stay], taken(some, stay), damping[stay]
            theta, now = theta[stay], now[stay]
        slope, curvature = some.parabola(theta)
    return GenericFit(best, found, converged, cost.strength, cost.weights)


def fast(cost: GenericCost) -> GenericFit:
    """Return the minima of costs whose lambda is given, by descent from a regression of logarithms.

    With products of their own there are several minima: the lowest from `STARTS` of them, which are drawn.
    """
    rows, counted = cost.rows, cost.weights > 0
    # Half of the shortest time is taken to be constant where the descent starts.
    least = np.where(counted, cost.seconds, np.inf).min(axis=1, keepdims=True)
    logs = np.log(np.maximum(cost.seconds - 0.5 * least, 1e-9 * least))
    x = [rows.intrinsic, rows.extrinsic, rows.flags, np.ones_like(logs)[:, :, None]]
    i, e = rows.intrinsic.shape[2], rows.extrinsic.shape[2]
    found = _solved(np.concatenate(x, axis=2), logs, cost.weights)[:, : i + e]

    def start(draw: FloatArray) -> FloatArray:
        exponents = np.hstack([found, *[found[:, i:]] * rows.products]) + draw
        exponents = np.clip(exponents, -MOST_EXPONENT, MOST_EXPONENT)
        solved = _solved(rows.columns(exponents), cost.seconds, cost.weights)
        return np.hstack([np.maximum(solved, 1e-3), exponents])

    if not rows.products:
        return descend(cost, start(np.zeros(rows.exponents)))
    draws = np.random.default_rng(SEED).normal(0.0, 0.5, (STARTS, rows.exponents))
    rough = [descend(cost, start(draw), *ROUGHLY) for draw in draws]
    best = np.argmin([fit.costs for fit in rough], axis=0)
    lowest = np.stack([fit.constants for fit in rough])[best, np.arange(len(best))]
    return descend(cost, lowest)


def _solved(x: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
    turned = (x * weights[:, :, None]).transpose(0, 2, 1)
    gram = turned @ x + 1e-6 * np.eye(x.shape[2])
    return np.asarray(np.linalg.solve(gram, turned @ y[:, :, None])[:, :, 0])


def fitted_costs(
    costs: list[GenericCost], points: list[IntArray], relative: bool, mode: str = "fast"
) -> GenericFit:
    """Return the minimum of each cost, one problem of one form; lambda by runs held out.

    points: for each, which distinct point a run was made at, (n,). relative: weights by fitted times.
    """
    n = max(cost.seconds.shape[1] for cost in costs)

    def padded(values: list[FloatArray], fill: float) -> FloatArray:
        made = np.full((len(values), n, *values[0].shape[2:]), fill)
        for to, value in zip(made, values, strict=True):
            to[: value.shape[1]] = value[0]
        return made

    names = ("intrinsic", "extrinsic", "flags")
    parts = {name: padded([getattr(cost.rows, name) for cost in costs], 0.0) for name in names}
    rows = FormRows(**parts, products=costs[0].rows.products)
    every = GenericCost(
        rows, padded([cost.seconds for cost in costs], 1.0),
        padded([cost.weights for cost in costs], 0.0), costs[0].penalty,
        np.full(len(costs), STRENGTHS[1]),
    )  # fmt: skip
    fit = fast(every)
    for _ in range(_ROUNDS if relative else 0):
        # Shares of the fitted times count, less of the farthest runs (Huber, 1964).
        counted = every.weights > 0
        fitted = np.maximum(every.fitted(fit.constants), _LEAST_FITTED * every.seconds)
        missed = np.where(counted, np.abs(every.seconds / fitted - 1.0), np.nan)
        usual = np.maximum(_OF_MEDIAN * np.nanmedian(missed, axis=1, keepdims=True), REPEAT_SIGMA)
        trust = np.minimum(1.0, _FAR * usual / np.maximum(np.nan_to_num(missed), 1e-12))
        weights = trust * fitted**-2.0 * counted
        every = replace(every, weights=weights / weights.sum(axis=1, keepdims=True))
        fit = descend(every, fit.constants, *ROUGHLY)
    every = replace(every, strength=validated_strengths(every, fit.constants, points))
    return plain(every) if mode == "faithful" else descend(every, fit.constants)


def folds_of(points: IntArray) -> IntArray:
    """Return of each run the fold in which it is held out, runs at one point together, (n,); -1 where points are too few."""
    count = int(points.max()) + 1
    if count < LEAST_HELD_OUT:
        return np.full(len(points), -1)
    return np.random.default_rng(SEED).permutation(count)[points] % FOLDS


def held_out_error(cost: GenericCost, points: IntArray) -> float:
    """Return the mean square of the logs by which runs held out miss one cost's minimum, 0 for too few points."""
    fold = folds_of(points)
    if fold[0] < 0:
        return 0.0
    held = fold == np.arange(FOLDS)[:, None]
    lambdas = np.full(FOLDS, USUAL_STRENGTH)
    every = replace(taken(cost, np.zeros(FOLDS, dtype=int)), strength=lambdas)
    fitted = every.fitted(fast(every.only(~held)).constants)
    logs = np.log(np.maximum(fitted, 1e-9) / every.seconds)
    return float(np.mean(np.minimum(logs[held] ** 2, MOST_LOG_RATIO**2)))


def validated_strengths(
    every: GenericCost, start: FloatArray, points: list[IntArray]
) -> FloatArray:
    """Return the lambda of each of g problems that does best on runs held out (5.5), (g,)."""
    strength, fold = np.full(len(points), USUAL_STRENGTH), np.full(every.weights.shape, -1)
    for i, of in enumerate(points):
        fold[i, : len(of)] = folds_of(of)
    able = np.flatnonzero((fold >= 0).any(axis=1))
    if not len(able):
        return strength
    at = np.repeat(able, len(STRENGTHS) * FOLDS)
    lambdas = np.tile(np.repeat(STRENGTHS, FOLDS), len(able))
    held = fold[at] == np.tile(np.arange(FOLDS), len(at) // FOLDS)[:, None]
    cost = taken(every, at)
    fits = descend(replace(cost.only(~held), strength=lambdas), start[at], *ROUGHLY)
    missed = np.sum(cost.weights * held * (cost.fitted(fits.constants) - cost.seconds) ** 2, axis=1)
    errors = missed.reshape(len(able), len(STRENGTHS), FOLDS).sum(axis=2)
    strength[able] = np.array(STRENGTHS)[np.argmin(errors, axis=1)]
    return strength


def plain(every: GenericCost) -> GenericFit:
    """Return the minima of costs whose lambda is given, by evolving every constant (5.5)."""
    from scipy.optimize import differential_evolution

    d, flags = every.rows.exponents, every.rows.flags.shape[2]
    k = every.rows.intrinsic.shape[2] + flags + every.rows.products + 1
    found = []
    for i in range(len(every.seconds)):
        cost = taken(every, np.array([i]))
        most = _MOST_COEFFICIENT * float(cost.seconds.max())
        found.append(differential_evolution(
            lambda x, cost=cost: cost.of(np.ascontiguousarray(x.T)),
            [(0.0, most)] * k + [(-MOST_EXPONENT, MOST_EXPONENT)] * d,
            strategy="rand1bin", popsize=PLAIN_MEMBERS, maxiter=PLAIN_GENERATIONS,
            tol=PLAIN_TOLERANCE, atol=_NOTHING, mutation=(0.5, 0.9), recombination=0.9,
            polish=False, seed=SEED, vectorized=True, updating="deferred",
        ))  # fmt: skip
    x, costs, ended = (np.array([one[name] for one in found]) for name in ("x", "fun", "success"))
    return GenericFit(x, costs, ended, every.strength, every.weights)


# Columns of how training is spread over machines, and of the network and its training: which of
# them the expression has is read off the runs.
EXTRINSIC = (
    "devices", "global_batch", "nodes", "parameter_servers", "grad_accum", "micro_batch", "tp",
    "pp", "cp", "ep", *RESOURCES,
)  # fmt: skip
INTRINSIC = (
    "dataset_size", "seq_len", "image_size", "learning_rate", "params", "gmacs", "mactivations",
    "layers", "hidden", "heads", "ffn", "vocab", "experts",
)  # fmt: skip
TEXTS = (
    "sync", "instance_type", "framework", "precision", "optimizer", "dataset", "interconnect",
    "memory_format", "recompute", "zero_stage", "task",
)  # fmt: skip
# Number columns of which a law that saw one value alone says nothing for another.
STRICT = ("global_batch", "parameter_servers", "tp", "pp", "cp", "ep", *INTRINSIC)
# What a column holds where a row states nothing, and where it has a word that no run has.
BLANK, UNKNOWN = -1.0, -2.0
ERRORS = ("relative", "absolute")
AUTO, NONE = "auto", "none"
# Standard deviation of a constant that the runs do not determine, of times near 1.
PRIOR_SIGMA = 1.0
# However badly a few runs determine the constants, a band need not pass this log variance.
MOST_VARIANCE = 1.0
# A column of which the others explain all but this share of its spread adds nothing of its own:
# batches are rounded to whole samples a device.
_OWN_SHARE = 0.02
_MOST_CATEGORIES = 12
_OF_PLANS = ("parameter_servers", "micro_batch", "tp", "pp", "cp", "ep")
_OF_WORKLOADS = ("seq_len", "image_size")


def number(rows: LawRows, name: str) -> FloatArray:
    """Return a number column of n jobs, (n,): of the row, else of the job, else BLANK."""
    jobs, values = rows.jobs, rows.labels.numbers(name)
    if name in ("global_batch", "dataset_size"):
        values = rows.size(name)
    elif name == "nodes":
        values = np.where(np.isnan(values), jobs.per_cluster("nodes", np.nan), values)
    elif name in _OF_WORKLOADS:
        values = np.where(np.isnan(values), jobs.per_workload(name, 0.0), values)
    elif name in _OF_PLANS and jobs.labels is None:
        values = np.asarray(getattr(jobs.plans, name), dtype=np.float64)
    return np.where(values > 0, values, BLANK)


def chosen_columns(
    columns: Columns, texts: Mapping[str, tuple[str, ...]], room: int, own: Sequence[str] = (),
    extrinsic: Sequence[str] = (),
) -> tuple[GenericForm, dict[str, float], dict[str, str]]:  # fmt: skip
    """Return the expression of n runs: every column that varies, and that others do not explain.

    With it come the columns that never change, and those left out and why. room: how many runs differ.
    own: numbers of the user's own. extrinsic: those that are E beside `EXTRINSIC`.
    """
    basis = [np.ones(len(columns["devices"]))]
    names, form = [""], GenericForm()
    held: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys((*EXTRINSIC, *INTRINSIC, *own, *TEXTS, *texts)):
        values = columns.get(name, np.array([BLANK]))
        blank = int(np.count_nonzero(values == BLANK))
        if blank == len(values):
            continue
        present = np.unique(values)
        if blank:
            left_out[name] = f"blank in {blank} of {len(values)} runs"
            continue
        if len(present) == 1:
            held[name] = float(values[0])
            continue
        part: Any
        if name in texts:
            where, part = "categories", {texts[name][int(code)]: code for code in present.tolist()}
            block = (values[:, None] == present).astype(np.float64)
        else:
            where = "scaling" if name in EXTRINSIC or name in extrinsic else "numbers"
            # Each number is divided by the middle one of its measured values.
            part, block = float(np.sort(values)[len(values) // 2]), np.log(values)[:, None]
        change: dict[str, Any] = {where: {**getattr(form, where), name: part}}
        more = replace(form, **change)
        why = _explained(block, basis, names)
        if not why and name in texts and len(present) > _MOST_CATEGORIES:
            why = f"{len(present)} different words"
        if not why and more.constants > room:
            why = f"only {room} different runs"
        if why:
            left_out[name] = why
            continue
        form = more
        basis += list(block.T)
        names += [name] * block.shape[1]
    return form, held, left_out


def _explained(block: FloatArray, basis: list[FloatArray], names: list[str]) -> str:
    x = np.stack(basis, axis=1)
    weights = np.linalg.lstsq(x, block, rcond=None)[0]
    own = block - x @ weights
    share = np.linalg.norm(own, axis=0) / np.linalg.norm(block - block.mean(axis=0), axis=0)
    if share.max() > _OWN_SHARE:
        return ""
    moves = np.abs(weights) * np.std(x, axis=0)[:, None] > _OWN_SHARE * np.std(block, axis=0)
    by = dict.fromkeys(name for name, move in zip(names, moves, strict=True) if name and move.any())
    return f"goes with {' and '.join(by)}"


@dataclass(frozen=True, kw_only=True)
class GenericLaw(ParametricLaw):
    """The law of one kind of runs: theta are its coefficients in seconds, then its exponents.

    strength: lambda. held: columns that no run changes, those of `texts` by code. left_out: columns that
    change, and why.
    """

    form: GenericForm
    strength: float
    held: Mapping[str, float]
    texts: tuple[str, ...]
    left_out: Mapping[str, str]

    @property
    def constants(self) -> int:
        """How many constants the columns need."""
        return self.form.constants

    @property
    def coefficients(self) -> FloatArray:
        """The a_i in the order of the form, then C, in seconds, (k,)."""
        return self.theta[: self.form.coefficients]

    @property
    def exponents(self) -> FloatArray:
        """P of the numbers, then q of the scaling, (d,)."""
        return self.theta[self.form.coefficients :]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Number columns that it reads, "devices" first."""
        held = [name for name in self.held if name not in self.texts]
        return tuple(dict.fromkeys(["devices", *self.form.numbers, *self.form.scaling, *held]))

    def formula(self, quantity: str) -> str:
        """Return the law with units, references and the intervals of its exponents."""
        form, i, e = self.form, len(self.form.numbers), len(self.form.scaling)
        divided, off = {**form.numbers, **form.scaling}, self.half_widths[form.coefficients :]
        powers = [
            f" x ({name} / {divided[name]:g})^{power:.2f} [{power - reach:.2f}, {power + reach:.2f}]"
            for name, power, reach in zip(form.powers, self.exponents, off, strict=True)
        ]
        words = [(name, word) for name, of in form.categories.items() for word in of]
        texts = [*powers[:i], *(f" if {name} = {word}" for name, word in words)] or [""]
        *terms, fixed = (f"{value:.4g} s" for value in self.coefficients)
        work = " + ".join(term + text for term, text in zip(terms, texts, strict=False))
        work = f"({work})" if len(texts) > 1 else work
        factors = ["".join(powers[at : at + e]) for at in range(i, len(powers), max(e, 1))] or [""]
        more = [term + text for term, text in zip(terms[len(texts) :], factors[1:], strict=True)]
        return " + ".join([f"{work}{factors[0]}", *more, fixed])


class _Kind(NamedTuple):
    """The runs of one kind, ready to be fitted: columns chosen, cost of seconds over `scale`."""

    form: GenericForm
    texts: tuple[str, ...]
    held: dict[str, float]
    left_out: dict[str, str]
    cost: GenericCost
    scale: float
    points: IntArray


@dataclass(frozen=True)
class Generic(GroupedLaws[GenericLaw]):
    """seconds = (sum of a_i I_i^p_i) (product of E_j^q_j) + C, with a_i >= 0 and C >= 0.

    I are the columns of the network and its training that change among the runs (a text has a constant for
    each of its words), E those of how it is spread over machines, each over the middle of its values.

    mode: `faithful` evolves every constant, as published, a hundred times as long. penalty: of all constants.
    errors: `absolute` in seconds, as published. extrinsic: names of numbers that are E beside `EXTRINSIC`;
    `auto` lets runs that are held out choose, where there are columns of a user's own. products: how many
    products of E are added, of as many powers and a coefficient each, or `auto` likewise. texts: words of each
    text column; a code is a position. own: the user's own columns that are numbers.
    """

    mode: str = "fast"
    penalty: str = "l2"
    errors: str = "relative"
    extrinsic: tuple[str, ...] = (AUTO,)
    products: str = AUTO
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: tuple[str, ...] = ()

    name = "generic"
    options = (
        PredictorOption("mode", "fast", "which constants are searched: the exponents alone, or all", MODES),
        PredictorOption("penalty", "l2", "the norm of the constants that is penalised", PENALTIES),
        PredictorOption("errors", "relative", "misses as shares of the time, or in seconds", ERRORS),
        PredictorOption(
            "extrinsic", (AUTO,), "numbers that multiply the time, as devices do, and are no term of"
            " it: names joined by +, none, or auto (your own columns: what errs less on runs held out)"),
        PredictorOption(
            "products", AUTO, "further products of powers that are added, with a coefficient each; auto:"
            " 0, or with columns of your own what errs less on runs held out",
            (AUTO, *map(str, range(MOST_PRODUCTS + 1)))),
    )  # fmt: skip
    law = GenericLaw
    terms = ("scaled work", "constant")
    least_points = 3  # one constant, one exponent and C at the least
    needed = "at least 3 runs that differ, on two numbers of devices or more where it is asked of another number"
    apart = False
    own_apart = False
    version = 9

    def __post_init__(self) -> None:
        for option in self.options[:3]:
            if getattr(self, option.name) not in option.choices:
                action = f"{self.name} with {option.name} {getattr(self, option.name)!r}"
                raise RequestError(action, f"it knows {option.allowed()}", "give one of them")

    def size_of(self, sizes: Columns) -> str:
        """Return "": sizes are columns like any other."""
        return ""

    def works_alone(self, law: GenericLaw) -> bool:
        """Return whether the global batch goes with the devices."""
        goes = "devices" in law.left_out.get("global_batch", "")
        own = "global_batch" not in law.form.scaling and "micro_batch" in law.form.scaling
        return self.quantity == "step" and (goes or own)

    def fit(self, runs: Runs) -> Self:
        """Return a predictor with the laws of these runs alone. Raises as `GroupedLaws.fit`."""
        runs, texts = sorted_runs(runs), {}
        labels, rows = runs.jobs.cells, self._rows(runs.jobs)
        own = [n for n in labels.own.factors if labels.columns[n].dtype != object]
        for name in (*TEXTS, *(n for n in labels.own.factors if n not in own)):
            words, index = rows.words(name, row_first=name != "sync")
            texts[name] = tuple(sorted({words[i] for i in np.unique(index)} - {""}))
        if unknown := sorted({*self.extrinsic} - {AUTO, NONE, *own, *INTRINSIC}):
            raise RequestError(
                f"{self.name} with extrinsic {'+'.join(self.extrinsic)}",
                f"{unknown[0]} is no number of the network or of one's own in these runs",
                one_of(unknown[0], [*own, *INTRINSIC]),
            )  # fmt: skip
        fresh = replace(self, laws={}, lacking={}, notes=(), texts=texts, own=tuple(own))
        return GroupedLaws.fit(fresh, runs)

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return what the laws read of n jobs, all that a law may read where there is none yet."""
        laws = self.laws.values()
        read = {name for law in laws for name in (*law.numbers, *law.held, *law.form.categories)}
        return {
            name: self._codes(rows, name) if name in self.texts else number(rows, name)
            for name in (*EXTRINSIC[1:], *INTRINSIC, *self.own, *self.texts)
            if not laws or name in read
        }

    def _codes(self, rows: LawRows, name: str) -> FloatArray:
        place = {"": BLANK, **{word: float(i) for i, word in enumerate(self.texts.get(name, ()))}}
        words, index = rows.words(name, row_first=name != "sync")
        return np.array([place.get(word, UNKNOWN) for word in words])[index]

    def fitted(self, groups: Sequence[RunGroup]) -> list[GenericLaw]:
        """Return the law of each group of runs, those of one form and about one length at once."""
        kinds = [self._kind(group, *self._shape(group)) for group in groups]
        batches: dict[tuple[int, ...], list[int]] = {}
        for i, kind in enumerate(kinds):
            rows = kind.cost.rows
            shape = [of.shape[2] for of in (rows.intrinsic, rows.extrinsic, rows.flags)]
            shape.append(rows.products)
            batches.setdefault((*shape, int(np.ceil(np.log2(len(kind.points))))), []).append(i)
        laws: dict[int, GenericLaw] = {}
        for batch in batches.values():
            of = [kinds[i] for i in batch]
            costs, points = [kind.cost for kind in of], [kind.points for kind in of]
            fit = fitted_costs(costs, points, self.errors == "relative", self.mode)
            each = zip(fit.constants, fit.converged, fit.strength, fit.weights, strict=True)
            laws.update({i: _law(kinds[i], *one) for i, one in zip(batch, each, strict=True)})
        return [laws[i] for i in range(len(kinds))]

    def _shape(self, group: RunGroup) -> _Shape:
        """Return the shape of the expression: as wished, else by runs held out."""
        named = tuple(name for name in self.extrinsic if name not in (AUTO, NONE))
        wished = 0 if self.products == AUTO else int(self.products)
        terms = self._kind(group).form
        own = {*self.own, *self.texts}.difference(TEXTS) & {*terms.numbers, *terms.categories}
        if not own or self.mode == MODES[1]:
            return named, wished

        @cache
        def error(shape: _Shape) -> float:
            kind = self._kind(group, *shape)
            return held_out_error(kind.cost, kind.points)

        every, best = tuple(terms.numbers), (named, wished)
        if self.extrinsic == (AUTO,):
            best, found = ((), wished), min(((), wished), (every, wished), key=error)
            while found != best:  # one number more or less, as long as that gains
                best = found
                ways = (tuple(n for n in every if (n in best[0]) != (n == one)) for one in every)
                found = min([best, *((way, wished) for way in ways)], key=error)
        if self.products == AUTO:
            wide = {best[0], every} if self.extrinsic == (AUTO,) else {best[0]}
            room = int(group.points().max()) + 1
            for more in range(1, MOST_PRODUCTS + 1):
                shapes = [
                    (way, more) for way in sorted(wide)
                    if 2 * self._kind(group, way, more).form.constants <= room
                ]  # fmt: skip
                found = min([best, *shapes], key=error)
                best = found if error(found) < GAINS * error(best) else best
        return best

    def _kind(self, group: RunGroup, extrinsic: Sequence[str] = (), products: int = 0) -> _Kind:
        points = group.points()
        room = int(points.max()) + 1
        form, held, left_out = chosen_columns(group.columns, self.texts, room, self.own, extrinsic)
        form = replace(form, products=products)
        scale, rows = float(np.mean(group.seconds)), form.rows(group.columns)
        seconds = group.seconds[None] / scale
        weights = 1.0 / seconds**2 if self.errors == "relative" else np.ones_like(seconds)
        cost = GenericCost(rows, seconds, weights / weights.sum(), self.penalty, np.zeros(1))
        return _Kind(form, tuple(self.texts), held, left_out, cost, scale, points)

    def why_not(self, law: GenericLaw, columns: Columns) -> NDArray[np.object_]:
        """Return why a law does not answer n jobs, or None, (n,), from their columns."""
        reasons = super().why_not(law, columns)
        for name in (*law.form.numbers, *law.form.scaling):
            reasons[~(columns[name] > 0)] = self.missing(name)
        for name, of in law.form.categories.items():
            reasons[~np.isin(columns[name], [*of.values()])] = f"no run of it has such {name}"
            reasons[columns[name] == BLANK] = self.missing(name)
        for name, value in law.held.items():
            if name in self.texts or name in STRICT or name in self.own:
                word = self.texts[name][int(value)] if name in self.texts else f"{value:g}"
                other = (columns[name] != value) & (columns[name] != BLANK)
                reasons[other] = f"its runs all have {name} {word}, and this is another"
        return reasons

    def evaluate(self, law: GenericLaw, columns: Columns) -> LawForecasts:
        """Return seconds, what scales and what does not, and doublings of n jobs that it answers."""
        rows = law.form.rows(columns)
        made = rows.columns(law.exponents[None])
        terms = made[0] * law.coefficients
        parts = np.stack([terms[:, :-1].sum(axis=1), terms[:, -1]], axis=1)
        slopes = np.hstack([made[0], rows.slopes(made, law.coefficients[None])[0]])
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.minimum(law.variance(slopes) / parts.sum(axis=1) ** 2, MOST_VARIANCE)
        stated = {
            name: np.where(columns[name] > 0, columns[name], law.bounds[name][0])
            for name in law.numbers
        }
        return law.forecasts(parts, relative, law.doublings(**stated))

    def limit(self, law: GenericLaw) -> str:
        """Return how a law scales, and which columns are left out of it."""
        left = [f"{name} ({why})" for name, why in law.left_out.items()]
        same = [f"{name} {value:g}" for name, value in law.held.items() if name not in law.texts]
        texts = [
            super().limit(law), *(["left out: " + ", ".join(left)] if left else ()),
            *(["the same in all runs: " + ", ".join(same)] if same else ()),
            f"lambda {law.strength:g}; columns are over a middle run's",
        ]  # fmt: skip
        return "; ".join(texts)


def _law(
    kind: _Kind, constants: FloatArray, converged: bool, strength: float, weights: FloatArray
) -> GenericLaw:
    form = kind.form
    fitted = kind.cost.fitted(constants[None])[0]
    with np.errstate(divide="ignore"):
        logs = np.log(kind.cost.seconds[0]) - np.log(fitted)
    logs = np.clip(logs, -MOST_LOG_RATIO, MOST_LOG_RATIO)
    spent = int(np.count_nonzero(constants))
    # As a share of the time, counted as the misses are: as shares, or in seconds.
    own, missed = kind.cost.weights[0], kind.cost.seconds[0] - fitted
    share = float(own @ missed**2) / max(float(own @ fitted**2), _NOTHING)
    noise = share * len(logs) / max(len(logs) - spent, 1) + REPEAT_SIGMA**2
    slopes, weights = kind.cost.derivatives(constants[None])[0], weights[: len(fitted)]
    # Of constants that weighted squares gave, where noise is a share of each time (Huber, 1967).
    varied = weights * noise * fitted**2
    usual = float(varied @ weights / weights.sum())
    prior = usual / PRIOR_SIGMA**2 * np.eye(form.constants)
    bread = np.linalg.inv((slopes * weights[:, None]).T @ slopes + prior)
    covariance = bread @ ((slopes * (weights * varied)[:, None]).T @ slopes + usual * prior) @ bread
    units = np.where(np.arange(form.constants) < form.coefficients, kind.scale, 1.0)
    notes = [] if converged else ["the fit did not converge; this is the best that was found"]
    powers = zip(form.powers, constants[form.coefficients :], strict=True)
    bound = " and ".join(dict.fromkeys(n for n, p in powers if abs(p) > MOST_EXPONENT - 1e-6))
    if bound:
        notes.append(f"the exponent of {bound} is at its bound of {MOST_EXPONENT:g}")
    alike = [f"{name} {why}" for name, why in kind.left_out.items() if why.startswith("goes with")]
    if alike:
        notes.append(f"these runs cannot tell apart: {', '.join(alike)}")
    return GenericLaw(
        theta=constants * units, covariance=covariance * np.outer(units, units),
        form=form, strength=float(strength), reach=reach_of(logs, spent, REPEAT_SIGMA), held=kind.held,
        texts=kind.texts, left_out=kind.left_out, notes=tuple(notes),
    )  # fmt: skip
