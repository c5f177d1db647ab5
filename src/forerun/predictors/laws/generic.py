"""Generic: one expression of power laws for any framework, its constants fitted to the runs.

Kavarakuntla, Han, Lloyd, Latham, Kleerekoper and Akintoye, A generic performance model for deep
learning in a distributed environment (2023). The form is reconstructed: see `generic_fit`. Intrinsic
columns are of the network and its training, extrinsic ones of how it is spread over machines; which of
them the expression has is read off the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import is_none
from forerun.errors import RequestError
from forerun.predictors.laws.fitting import MOST_LOG_RATIO
from forerun.predictors.laws.generic_fit import (
    MODES,
    MOST_EXPONENT,
    PENALTIES,
    REPEAT_SIGMA,
    GenericCost,
    GenericForm,
    fitted_fast,
    fitted_plain,
)
from forerun.predictors.laws.grouped import (
    Columns,
    GroupedLaws,
    LawForecasts,
    ParametricLaw,
    RunGroup,
    banded,
    doublings,
    percent,
    reach_of,
    take,
)
from forerun.predictors.laws.law_rows import RESOURCES, LawRows
from forerun.predictors.options import Option
from forerun.tables import Runs, sorted_runs

Texts = Mapping[str, tuple[str, ...]]

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
# Standard deviation of a constant that the runs do not determine, of times near 1.
PRIOR_SIGMA = 1.0
# However badly a few runs determine the constants, a band need not pass this log variance.
MOST_VARIANCE = 1.0
# A column of which the others explain all but this share of its spread adds nothing of its own:
# batches are rounded to whole samples a device.
_OWN_SHARE = 0.02
_MOST_CATEGORIES = 12
# What a law does from the fewest to the most devices, as an exponent of them: -1 is perfect.
_VERDICTS = (
    (-1.05, "better than perfect"), (-0.9, "near perfect"), (-0.5, "partial"), (-0.1, "weak"),
    (0.1, "none"), (np.inf, "none, more devices are slower"),
)  # fmt: skip
# A constant below this share of the largest one is rounding, and is not printed.
_SHOWN = 1e-6
_OF_PLANS = ("parameter_servers", "micro_batch", "tp", "pp", "cp", "ep")
_OF_WORKLOADS = ("seq_len", "image_size")


def number(rows: LawRows, name: str) -> FloatArray:
    """Return a number column of n jobs, (n,): of the row, else of the job, else BLANK."""
    if name == "devices":
        return rows.machines
    if name in ("global_batch", "dataset_size"):
        return np.nan_to_num(rows.size(name), nan=BLANK)
    jobs = rows.jobs
    values = rows.labels.numbers(name)
    if name == "nodes":
        known = np.array([float(c.nodes) for c in jobs.clusters] + [np.nan])
        values = np.where(np.isnan(values), known[jobs.cluster_index], values)
    elif name in _OF_WORKLOADS:
        known = np.array([float(getattr(w, name) or 0) for w in jobs.workloads] + [0.0])
        values = np.where(np.isnan(values), known[jobs.workload_index], values)
    elif name in _OF_PLANS and jobs.labels is None:
        values = np.asarray(getattr(jobs.plans, name), dtype=np.float64)
    return np.where(values > 0, values, BLANK)


def codes(rows: LawRows, name: str, known: Sequence[str]) -> FloatArray:
    """Return the position of each job's text among the known ones, (n,), else BLANK or UNKNOWN."""
    place = {"": BLANK, **{word: float(i) for i, word in enumerate(known)}}
    words, index = rows.words(name, row_first=name != "sync")
    return np.array([place.get(word, UNKNOWN) for word in words])[index]


def known_words(rows: LawRows) -> Texts:
    """Return the distinct words of each text column that has any."""
    found = {}
    for name in TEXTS:
        words, index = rows.words(name, row_first=name != "sync")
        found[name] = tuple(sorted({words[i] for i in np.unique(index)} - {""}))
    return {name: words for name, words in found.items() if words}


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of one kind of runs.

    Attributes:
        form: the expression.
        held: number or text columns that never change, and their value (a text as its code).
        left_out: columns that change and are not in the expression, and why.
    """

    form: GenericForm
    held: Mapping[str, float]
    left_out: Mapping[str, str]


def chosen_columns(columns: Columns, texts: Texts, room: int) -> ColumnChoice:
    """Return the expression of n runs: every column that varies, and that others do not explain.

    Args:
        columns: numbers and coded texts, (n,) each; BLANK where a run states nothing.
        texts: the words of each text column.
        room: how many runs differ, which the constants may not outnumber.
    """
    basis = [np.ones(len(columns["devices"]))]
    names: list[str] = [""]
    form, held, left_out = GenericForm(), {}, {}
    for name in (*EXTRINSIC, *INTRINSIC, *TEXTS):
        values = columns.get(name)
        if values is None:
            continue
        blank = int(np.count_nonzero(values == BLANK))
        if blank:
            if blank < len(values):
                left_out[name] = f"blank in {blank} of {len(values)} runs"
            continue
        if values.min() == values.max():
            held[name] = float(values[0])
            continue
        present = np.unique(values)
        if name in texts:
            words = tuple(texts[name][int(code)] for code in present)
            more = replace(form, categories={**form.categories, name: words})
            block = (values[:, None] == present).astype(np.float64)
        else:
            # Each number is divided by the middle one of its measured values.
            middle, block = float(np.sort(values)[len(values) // 2]), np.log(values)[:, None]
            if name in EXTRINSIC:
                more = replace(form, scaling={**form.scaling, name: middle})
            else:
                more = replace(form, numbers={**form.numbers, name: middle})
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
    return ColumnChoice(form, held, left_out)


def _explained(block: FloatArray, basis: list[FloatArray], names: list[str]) -> str:
    """Return by which columns a block (n, b) is explained, or "" where it adds something."""
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

    Attributes:
        form: the columns of the expression.
        held: text columns that no run changes, and their word.
        left_out: columns that change and are not in the expression, and why.
        strength: lambda.
        quantity: what its seconds time: a step, an epoch or a run.
    """

    form: GenericForm
    strength: float
    quantity: str = "step"
    held: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def coefficients(self) -> FloatArray:
        """The a_i in the order of the form, then C, in seconds, (k,)."""
        return self.theta[: self.form.coefficients]

    @property
    def exponents(self) -> FloatArray:
        """P of the numbers, then q of the scaling, (d,)."""
        return self.theta[self.form.coefficients :]

    def is_sound(self) -> bool:
        """Return whether there are as many constants as the columns need."""
        k = self.form.constants
        return self.theta.shape == (k,) and self.covariance.shape == (k, k)

    def formula(self, quantity: str) -> str:
        """Return the law with units, references and the intervals of its exponents."""
        form, factors = self.form, []
        for at, (name, by) in enumerate([*form.numbers.items(), *form.scaling.items()]):
            power, reach = self.exponents[at], self.reach_of(form.coefficients + at)
            interval = f"{power:.2f} [{power - reach:.2f}, {power + reach:.2f}]"
            factors.append(f" x ({name} / {by:g})^{interval}")
        conditions = [
            f" if {name} = {word or '(blank)'}"
            for name, of in form.categories.items()
            for word in of
        ]
        texts = [*factors[: len(form.numbers)], *conditions] or [""]
        terms = list(zip(self.coefficients[:-1], texts, strict=True))
        least = _SHOWN * float(self.coefficients.max())
        work = " + ".join(f"{value:.4g} s{text}" for value, text in terms if value > least) or "0 s"
        work = f"({work})" if len(terms) > 1 else work
        fixed = self.coefficients[-1]
        rest = f" + {fixed:.4g} s" if fixed > least else ""
        return f"{work}{''.join(factors[len(form.numbers) :])}{rest}"

    def limit(self) -> str:
        """Return what the exponent of the devices says of scaling, and which columns are left out."""
        texts = [self._scaling()]
        if self.left_out:
            texts.append(
                "left out: " + ", ".join(f"{name} ({why})" for name, why in self.left_out.items())
            )
        same = [f"{name} {low:g}" for name, (low, high) in self.bounds.items() if low == high]
        if same:
            texts.append(f"the same in all runs: {', '.join(same)}")
        texts.append(f"lambda {self.strength:g}; columns are over a middle run's")
        return "; ".join(texts)

    def _scaling(self) -> str:
        fewest, most = self.machines
        if "devices" not in self.form.scaling:
            why = f"all runs are on {most:g} devices" if fewest == most else "devices are left out"
            return f"it says nothing of scaling: {why}"
        # The exponent of the devices is one at an unchanged batch of a device where the global
        # batch goes with them.
        weak = self.quantity == "step" and "global_batch" not in self.form.scaling
        weak &= "micro_batch" in self.form.scaling or "devices" in self.left_out.get(
            "global_batch", ""
        )
        counts = np.array([fewest, most, 2.0 * most])
        # Of the whole law, its constant counted: what is constant does not shrink with devices. Each
        # number has a term of its own; of the words of a text one holds at a time.
        power = self.exponents[len(self.form.numbers) + list(self.form.scaling).index("devices")]
        *scaled, fixed = self.coefficients.tolist()
        at, work = len(self.form.numbers), sum(scaled[: len(self.form.numbers)])
        for of in self.form.categories.values():
            work, at = work + float(np.mean(scaled[at : at + len(of)])), at + len(of)
        work = work if self.form.numbers or self.form.categories else scaled[0]
        seconds = fixed + work * (counts / self.form.scaling["devices"]) ** power
        more = counts[1:] / counts[:-1]
        gain = seconds[:-1] / seconds[1:] * (more if weak else 1.0)
        does = [f"do {g:.2f} times as much" if weak else f"are {g:.2f} times as fast" for g in gain]
        text = ""
        if fewest < most:
            found = -float(np.log(gain[0]) / np.log(more[0]))
            verdict = next(text for bound, text in _VERDICTS if found <= bound)
            text = (
                f"scaling is {verdict}: {most:g} devices {does[0]} as {fewest:g}, "
                f"{percent(gain[0] / more[0])} of perfect; "
            )
        unchanged = "at an unchanged batch a device" if weak else "all else unchanged"
        text += f"{2 * most:g} {does[1]} as {most:g}, {percent(gain[1] / more[1])} of perfect ({unchanged})"
        if fixed > _SHOWN * float(self.coefficients.max()):
            text += f"; at {most:g} devices {percent(fixed / float(seconds[1]))} is constant"
        return text

    def places(self, name: str, codes: FloatArray, texts: Texts) -> FloatArray:
        """Return which category of a column each code is, (n,), UNKNOWN where no run had its word."""
        place = {word: float(i) for i, word in enumerate(self.form.categories[name])}
        known = np.array([place.get(word, UNKNOWN) for word in texts[name]] + [UNKNOWN])
        found = known[np.where(codes < 0, len(known) - 1, codes).astype(np.int64)]
        return np.where(codes == BLANK, place.get("", UNKNOWN), found)

    def why_not(self, columns: Columns, texts: Texts) -> NDArray[np.object_]:
        """Return why the law does not answer n jobs, or None, (n,).

        Args:
            columns: of the jobs.
            texts: the words of each text column.
        """
        reasons = np.full(len(columns["devices"]), None, dtype=object)
        for name in (*self.form.numbers, *self.form.scaling):
            reasons[~(columns[name] > 0)] = f"the row does not state {name}"
        for name, (low, high) in self.bounds.items():
            if name in STRICT and low == high:
                other = (columns[name] > 0) & (columns[name] != low)
                reasons[other] = f"its runs all have {name} {low:g}, and this is another"
        for name in self.form.categories:
            reasons[self.places(name, columns[name], texts) < 0] = f"no run of it has such {name}"
        for name, word in self.held.items():
            code = float(texts[name].index(word)) if word in texts[name] else BLANK
            other = (columns[name] != code) & (columns[name] != BLANK)
            reasons[other] = f"its runs all have {name} {word or '(blank)'}, and this is another"
        return reasons

    def evaluate(self, columns: Columns, texts: Texts) -> LawForecasts:
        """Return seconds, what scales and what does not, and doublings of n jobs that it answers."""
        form = self.form
        places = {name: self.places(name, columns[name], texts) for name in form.categories}
        read = {name: columns[name] for name in ("devices", *form.numbers, *form.scaling)}
        rows = form.rows(read, places)
        made = rows.columns(self.exponents[None])
        terms = made[0] * self.coefficients
        parts = np.stack([terms[:, :-1].sum(axis=1), terms[:, -1]], axis=1)
        slopes = np.hstack([made[0], rows.slopes(made, self.coefficients[None])[0]])
        middle = parts.sum(axis=1)
        variance = np.einsum("ni,ni->n", slopes @ self.covariance, slopes)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.minimum(variance / middle**2, MOST_VARIANCE)
        index, beyond = np.zeros(len(middle), dtype=np.int64), np.zeros(len(middle))
        for name in self.bounds.keys() - self.left_out.keys():
            stated = columns[name] > 0
            values = np.where(stated, columns[name], self.bounds[name][0])
            beyond = beyond + doublings([self], index, name, values)
        reach = np.broadcast_to(self.reach, (len(middle), 2))
        return LawForecasts(banded(middle, reach, relative), parts, beyond)


@dataclass(frozen=True)
class _Kind:
    """The runs of one kind, ready to be fitted: columns chosen, cost of seconds over `scale`."""

    group: RunGroup
    choice: ColumnChoice
    cost: GenericCost
    scale: float
    points: IntArray


@dataclass(frozen=True)
class Generic(GroupedLaws[GenericLaw]):
    """seconds = (sum of a_i I_i^p_i) (product of E_j^q_j) + C, with a_i >= 0 and C >= 0.

    I are the columns of the network and its training that change among the runs (a text has a
    constant for each of its words), E those of how it is spread over machines, each divided by
    the middle one of its measured values.

    Attributes:
        mode: `fast` searches the exponents alone and solves the rest exactly; `faithful` evolves
            every constant, as published, which takes a hundred times as long.
        penalty: `l1` or `l2`, of all constants; its strength is chosen by runs held out.
        errors: `relative` misses count as shares of the fitted time, those much larger than most
            by their size instead of the square; `absolute` ones in seconds, as published.
        texts: the words of each text column among the fitted runs.
    """

    mode: str = "fast"
    penalty: str = "l2"
    errors: str = "relative"
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    name = "generic"
    options = (
        Option("mode", "fast", "which constants are searched: the exponents alone, or all", MODES),
        Option("penalty", "l2", "the norm of the constants that is penalised", PENALTIES),
        Option("errors", "relative", "misses as shares of the time, or in seconds", ERRORS),
    )
    law = GenericLaw
    terms = ("scaled work", "constant")
    least_points = 3  # one constant, one exponent and C at the least
    needed = (
        f"at least {least_points} runs that differ, on two numbers of devices or more where it is "
        "asked of another number"
    )
    apart = False

    def __post_init__(self) -> None:
        """Refuse settings that do not exist. Raises RequestError."""
        for name, known in (("mode", MODES), ("penalty", PENALTIES), ("errors", ERRORS)):
            if getattr(self, name) not in known:
                action = f"{self.name} with {name} {getattr(self, name)!r}"
                raise RequestError(action, f"it knows {', '.join(known)}", "give one of them")

    def size_of(self, rows: LawRows) -> str:
        """Return "": sizes are columns like any other."""
        return ""

    def fit(self, runs: Runs) -> Self:
        """Return a predictor with the laws of these runs alone. Raises as `GroupedLaws.fit`."""
        runs = sorted_runs(runs)
        fresh = replace(self, laws={}, lacking={}, notes=(), texts=known_words(LawRows(runs.jobs)))
        return GroupedLaws.fit(fresh, runs)

    def columns(self, rows: LawRows) -> dict[str, FloatArray]:
        """Return what the laws read of n jobs, all that a law may read where there is none yet."""
        laws = self.laws.values()
        read = {name for law in laws for name in (*law.bounds, *law.held, *law.form.categories)}
        found = {}
        for name in (*EXTRINSIC, *INTRINSIC, *TEXTS):
            if laws and name not in read:
                continue
            if name not in TEXTS:
                found[name] = number(rows, name)
            elif name in self.texts:
                found[name] = codes(rows, name, self.texts[name])
        found["devices"] = np.where(rows.machines > 0, rows.machines, np.nan)
        return found

    def fitted(self, groups: Sequence[RunGroup]) -> list[GenericLaw]:
        """Return the law of each group of runs, those of one form and about one length at once."""
        kinds = [self._kind(group) for group in groups]
        batches: dict[tuple[int, ...], list[int]] = {}
        for i, kind in enumerate(kinds):
            rows = kind.cost.rows
            shape = [of.shape[2] for of in (rows.intrinsic, rows.extrinsic, rows.flags)]
            batches.setdefault((*shape, int(np.ceil(np.log2(len(kind.points))))), []).append(i)
        laws: dict[int, GenericLaw] = {}
        for batch in batches.values():
            laws.update(zip(batch, self._batch([kinds[i] for i in batch]), strict=True))
        return [laws[i] for i in range(len(kinds))]

    def _kind(self, group: RunGroup) -> _Kind:
        points = group.points()
        choice = chosen_columns(group.columns, self.texts, int(points.max()) + 1)
        scale = float(np.mean(group.seconds))
        seconds = group.seconds / scale
        weights = 1.0 / seconds**2 if self.errors == "relative" else np.ones(len(seconds))
        places = {
            name: np.unique(group.columns[name], return_inverse=True)[1].reshape(-1).astype(float)
            for name in choice.form.categories
        }
        rows = choice.form.rows(group.columns, places)
        weights = weights / weights.sum()
        cost = GenericCost(rows, seconds[None], weights[None], self.penalty, np.zeros(1))
        return _Kind(group, choice, cost, scale, points)

    def _batch(self, kinds: list[_Kind]) -> list[GenericLaw]:
        """Return the laws of kinds of one form."""
        costs, points = [kind.cost for kind in kinds], [kind.points for kind in kinds]
        if self.mode == "fast":
            fit = fitted_fast(costs, points, self.errors == "relative")
            found = zip(fit.constants, fit.converged, fit.strength, strict=True)
        else:
            fits = [fitted_plain(*of) for of in zip(costs, points, strict=True)]
            each = [(f.constants, f.converged, f.strength) for f in fits]
            found = zip(*map(np.concatenate, zip(*each, strict=True)), strict=True)
        return [self._law(kind, *of) for kind, of in zip(kinds, found, strict=True)]

    def _law(
        self, kind: _Kind, constants: FloatArray, converged: bool, strength: float
    ) -> GenericLaw:
        form, held, left_out = kind.choice.form, kind.choice.held, kind.choice.left_out
        fitted = kind.cost.fitted(constants[None])[0]
        with np.errstate(divide="ignore"):
            logs = np.log(kind.cost.seconds[0]) - np.log(fitted)
        logs = np.clip(logs, -MOST_LOG_RATIO, MOST_LOG_RATIO)
        # Laplace's approximation, of errors in logarithms.
        slopes = kind.cost.derivatives(constants[None])[0] / np.maximum(fitted, 1e-9)[:, None]
        spent = int(np.count_nonzero(constants))
        noise = np.sum(logs**2) / max(len(logs) - spent, 1) + REPEAT_SIGMA**2
        precision = slopes.T @ slopes / noise + np.eye(form.constants) / PRIOR_SIGMA**2
        units = np.where(np.arange(form.constants) < form.coefficients, kind.scale, 1.0)
        covariance = np.linalg.inv(precision) * np.outer(units, units)
        exponents = constants[form.coefficients :]
        read = [*form.numbers, *form.scaling, *(name for name in held if name not in TEXTS)]
        names = [*form.numbers, *form.scaling]
        notes = []
        if not converged:
            notes.append("the fit did not converge; this is the best that was found")
        at_bound = [
            name
            for name, power in zip(names, exponents, strict=True)
            if abs(power) > MOST_EXPONENT - 1e-6
        ]
        if at_bound:
            notes.append(
                f"the exponent of {' and '.join(at_bound)} is at its bound of {MOST_EXPONENT:g}"
            )
        alike = [f"{name} {why}" for name, why in left_out.items() if why.startswith("goes with")]
        if alike:
            notes.append(f"these runs cannot tell apart: {', '.join(alike)}")
        words = {
            name: "" if code == BLANK else self.texts[name][int(code)]
            for name, code in held.items() if name in TEXTS
        }  # fmt: skip
        return GenericLaw(
            theta=constants * units, covariance=covariance, form=form, strength=float(strength),
            reach=reach_of(logs, spent, REPEAT_SIGMA),
            bounds=kind.group.bounds("devices", *read), runs=len(logs), quantity=self.quantity,
            held=words, left_out=left_out, notes=tuple(notes),
        )  # fmt: skip

    def evaluate(self, laws: list[GenericLaw], index: IntArray, columns: Columns) -> LawForecasts:
        """Return seconds, the two parts and doublings of n jobs; NaN where a law gives no answer."""
        n = len(index)
        found = LawForecasts(np.full((n, 3), np.nan), np.full((n, 2), np.nan), np.zeros(n))
        for which in np.unique(index).tolist():
            rows = np.flatnonzero(index == which)
            rows = rows[is_none(laws[which].why_not(take(columns, rows), self.texts))]
            if len(rows):
                one = laws[which].evaluate(take(columns, rows), self.texts)
                found.seconds[rows], found.parts[rows] = one.seconds, one.parts
                found.beyond[rows] = one.beyond
        return found

    def _declined(
        self, rows: LawRows, chosen: IntArray, columns: Columns, seconds: FloatArray
    ) -> NDArray[np.object_]:
        reasons = super()._declined(rows, chosen, columns, seconds)
        closed = (chosen >= 0) & ~np.isfinite(seconds[:, 1]) & np.isfinite(columns["devices"])
        for which, law in enumerate(self.laws.values()):
            of = np.flatnonzero(closed & (chosen == which))
            if len(of):
                why = law.why_not(take(columns, of), self.texts)
                reasons[of] = np.where(is_none(why), reasons[of], why)
        return reasons
