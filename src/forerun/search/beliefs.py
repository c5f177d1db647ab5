"""Beliefs: what a predictor thinks of many jobs at once, and how far it would err with them together.

A run teaches of other jobs as much as their errors go with its own. So what a suggestion needs of a
predictor is the covariance of the errors of its log seconds:

1. `log_covariance(jobs)`, where the predictor states it;
2. its causes of error, where its forecasts name them: what two jobs have in common of a cause
   (`domain.comparison`);
3. refits on runs drawn anew with replacement, where it was given the runs it learned from;
4. the covariance of a linear law's parameters, where the runs are not at hand (`law_beliefs`);
5. else its bands alone, jobs alike in devices and batch being taken to err alike. That is an
   assumption, and `source` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Predictor
from forerun.domain.comparison import SCOPES, correlation, log_sigma, scope_labels, scope_of
from forerun.domain.forecast import Forecasts, is_none
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import GROUP, LawRows
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import counted

# Repeats of a job on one machine differ by 1-2 %, on another of its kind by up to 2 %.
REPEAT_SIGMA = 0.02
REFITS, _LEAST_REFITS, _SEED = 24, 8, 0
# Runs that all refits learn from together: with more runs there are fewer refits, and below the least
# none. And processor seconds of this machine, far beyond.
_MOST_RUNS, _MOST_SECONDS = 24_000, 60.0
# Two dozen refits alone make errors look correlated by a fifth.
_SHRINK = 0.2
# How alike errors are where nothing says it: log2 of devices and of a device's batch, and what a
# different workload, device, or the step from one node to several leaves.
_LENGTH, _OTHER = 2.0, 0.5


@dataclass(frozen=True)
class Beliefs:
    """What is believed of n jobs.

    Attributes:
        middle: log of the median seconds, (n,); NaN where the predictor declines.
        covariance: of the errors of log seconds, (n, n).
        noise: log variance of one measurement about what a job takes.
        source: where the covariance comes from, in words.
        causes: log variance by cause, (n,) each; empty where the predictor names none.
        common: scope of causes to which jobs have it in common, (n, n).
    """

    middle: FloatArray
    covariance: FloatArray
    noise: float
    source: str
    causes: Mapping[str, FloatArray] = field(default_factory=dict)
    common: Mapping[str, BoolArray] = field(default_factory=dict)

    def after(self, i: int) -> Beliefs:
        """Return what is believed once job i was run, whatever it took: errors that are left."""
        column = self.covariance[:, i]
        left = self.covariance - np.outer(column, column) / (column[i] + self.noise)
        return replace(self, covariance=left)

    def shift(self, rows: IntArray, of: IntArray) -> FloatArray:
        """Return how far the log of each of `of` would move, as standard deviations, (rows, of).

        A run of a job moves the median of another by this times a standard normal number.
        """
        own = np.maximum(np.diag(self.covariance)[rows] + self.noise, 1e-300)
        return np.asarray(self.covariance[np.ix_(rows, of)] / np.sqrt(own)[:, None])


def tells_of(beliefs: Beliefs, row: int, asked: IntArray) -> dict[str, float]:
    """Return by scope what share of the asked jobs' log variance a run has in common with them."""
    if not beliefs.causes:
        return {}
    whole = float(sum(column[asked].sum() for column in beliefs.causes.values()))
    shared: dict[str, float] = {}
    for cause, column in beliefs.causes.items():
        scope = scope_of(cause)
        same = beliefs.common[scope][row, asked] if scope in beliefs.common else True
        both = np.where(same, np.minimum(column[row], column[asked]), 0.0).sum()
        shared[scope] = shared.get(scope, 0.0) + float(both) / max(whole, 1e-300)
    return dict(sorted(shared.items(), key=lambda item: -item[1]))


def joint_beliefs(predictor: Predictor, jobs: Jobs, runs: Runs | None = None) -> Beliefs:
    """Return what a predictor believes of n jobs together.

    Args:
        predictor: fitted, or one that answers without runs.
        jobs: candidates and asked jobs alike.
        runs: what it was fitted on, for the predictors that state no joint errors.

    Raises:
        RequestError: it answers some job without a band.
    """
    forecasts = predictor.predict(jobs)
    answered = is_none(forecasts.declined)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.where(answered, np.log(forecasts.seconds[:, 1]), np.nan)
    variance = _band_variance(predictor.name, forecasts, answered)
    noise = REPEAT_SIGMA**2
    causes: dict[str, FloatArray] = {}
    common: dict[str, BoolArray] = {}
    if hasattr(predictor, "log_covariance"):
        covariance = np.asarray(predictor.log_covariance(jobs), dtype=np.float64)
        source = f"the joint errors that {predictor.name} states"
    elif forecasts.causes:
        causes, common = dict(forecasts.causes), _common_scopes(jobs)
        covariance = _of_causes(causes, common, variance)
        source = f"the causes of error that {predictor.name} names"
    else:
        drawn, fewer = (None, "") if runs is None else _refitted(predictor, jobs, runs)
        if drawn is not None:
            covariance = _of_draws(drawn, variance, likeness(jobs))
            source = (
                f"{len(drawn)} refits of {predictor.name} on runs drawn anew{fewer}; what its bands hold"
                " beyond them, jobs alike in devices and batch are assumed to share"
            )
        elif (spread := law_spread(predictor, jobs)) is not None:
            covariance = _of_spread(spread, variance, likeness(jobs))
            source = (
                f"the covariance of what the law of {predictor.name} has learned; what its bands hold"
                f" beyond it, jobs alike in devices and batch are assumed to share{fewer}"
            )
        else:
            covariance = np.asarray(likeness(jobs) * np.sqrt(np.outer(variance, variance)))
            source = (
                f"the bands of {predictor.name}; that jobs alike in devices and batch err alike is"
                f" assumed, for it states no joint errors{fewer}"
            )
    return Beliefs(middle, covariance, noise, source, causes, common)


def _band_variance(name: str, forecasts: Forecasts, answered: BoolArray) -> FloatArray:
    """Return the log variance of each answer, (n,), NaN where it is declined."""
    with np.errstate(invalid="ignore"):
        variance = log_sigma(forecasts.seconds) ** 2
    bare = answered & ~np.isfinite(variance)
    if bare.any() or (answered.any() and not (variance[answered] > 0).any()):
        raise RequestError(
            f"the next runs for {name}", "it answers without a band, so that nothing says what a"
            " run would teach it",
            "name a predictor with bands (see `forerun predictors`)",
        )  # fmt: skip
    return np.where(answered, variance, np.nan)


def _common_scopes(jobs: Jobs) -> dict[str, BoolArray]:
    """Return for each scope of a cause which pairs of n jobs have it in common, (n, n) each."""
    rows = LawRows(jobs)
    kinds, index = rows.kinds
    resolved = jobs.resolved
    labels = [
        scope_labels(jobs[i])
        if resolved[i]
        else {scope: (kinds[index[i]][:2], i if scope == "plan" else 0) for scope in SCOPES}
        for i in range(len(jobs))
    ]
    common: dict[str, BoolArray] = {}
    for scope in SCOPES:
        place: dict[object, int] = {}
        code = np.array([place.setdefault(label[scope], len(place)) for label in labels], dtype=int)
        common[scope] = code[:, None] == code[None, :]
    return common


def _of_causes(
    causes: Mapping[str, FloatArray], common: Mapping[str, BoolArray], variance: FloatArray
) -> FloatArray:
    down = {name: column[:, None] for name, column in causes.items()}
    across = {name: column[None, :] for name, column in causes.items()}
    rho = np.array(np.broadcast_to(correlation(down, across, common), (len(variance),) * 2))
    np.fill_diagonal(rho, 1.0)
    sigma = np.sqrt(variance)
    return np.asarray(rho * np.outer(sigma, sigma))


def _refitted(predictor: Predictor, jobs: Jobs, runs: Runs) -> tuple[FloatArray | None, str]:
    """Return log seconds by refits on runs drawn anew, (refits, n), and why they are fewer than usual."""
    # A predictor that takes long may offer a light one of its kind.
    light = predictor.light() if hasattr(predictor, "light") else predictor
    runs = sorted_runs(runs)
    count = min(REFITS, _MOST_RUNS // max(len(runs), 1))
    if count < _LEAST_REFITS:
        return None, f" (refits on {len(runs):,} runs are too much work)"
    rng = np.random.default_rng(_SEED)
    drawn: list[FloatArray] = []
    fewer = "" if count == REFITS else f" (of {REFITS}: each is on {len(runs):,} runs)"
    began = process_time()
    for turn in range(count):
        if process_time() - began > _MOST_SECONDS:
            fewer = (
                f" ({turn} of {count} tried: they took {_MOST_SECONDS:.0f} s of this machine's"
                " processor, and a faster one would make more)"
            )
            break
        part = runs.take(np.sort(rng.integers(0, len(runs), len(runs))))
        try:
            seconds = light.fit(part).predict(jobs).seconds[:, 1]
        except RequestError:  # these runs alone do not teach it
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn.append(np.log(seconds))
    if len(drawn) < _LEAST_REFITS:
        return None, fewer or f" ({len(drawn)} of {count} refits on runs drawn anew succeeded)"
    return np.stack(drawn), fewer


def _of_draws(drawn: FloatArray, variance: FloatArray, alike: FloatArray) -> FloatArray:
    """Return the covariance of draws (m, n), no wider than the bands (n,)."""
    known = np.isfinite(drawn)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, drawn, 0.0).sum(axis=0) / count
    moved = np.where(known, drawn - mean, 0.0)
    return _of_spread(moved.T @ moved / len(drawn), variance, alike, _SHRINK)


def _of_spread(
    spread: FloatArray, variance: FloatArray, alike: FloatArray, shrink: float = 0.0
) -> FloatArray:
    """Return the covariance of what was learned (n, n), no wider than the bands (n,); see `_of_draws`."""
    own = np.maximum(np.diag(spread), 1e-300)
    fit = np.sqrt(np.minimum(1.0, variance / own))
    shared = (1.0 - shrink) * spread * np.outer(fit, fit)
    rest = np.sqrt(np.maximum(variance - own * fit**2 - REPEAT_SIGMA**2, 0.0))
    shared += alike * np.outer(rest, rest)
    np.fill_diagonal(shared, variance)
    return np.asarray(shared)


def likeness(jobs: Jobs) -> FloatArray:
    """Return how alike n jobs are, as correlations of their errors, (n, n).

    An assumption for predictors that say nothing better: by devices, a device's batch, one node or
    several, workload and device.
    """
    rows = LawRows(jobs)
    kinds, index = rows.kinds
    machines = np.where(rows.machines > 0, rows.machines, 1.0)
    batch = rows.size("global_batch")
    share = np.where(np.isfinite(batch), batch, 1.0) / machines
    nodes = np.array([c.nodes for c in jobs.clusters] + [1])[jobs.cluster_index]
    rho = np.ones((len(jobs), len(jobs)))
    for values in (np.log2(machines), np.log2(share)):
        rho *= np.exp(-0.5 * ((values[:, None] - values[None, :]) / _LENGTH) ** 2)
    for place in (0, 1):
        names: dict[str, int] = {}
        code = np.array([names.setdefault(kind[place], len(names)) for kind in kinds])[index]
        rho *= np.where(code[:, None] == code[None, :], 1.0, _OTHER)
    rho *= np.where((nodes > 1)[:, None] == (nodes > 1)[None, :], 1.0, _OTHER)
    return rho


def law_spread(predictor: Predictor, jobs: Jobs) -> FloatArray | None:
    """Return the covariance of log seconds of n jobs that a law's parameters make, (n, n).

    Of laws linear in their parameters that keep the covariance of these, as a saved one does: jobs
    of two laws have nothing in common. None where the predictor is no such law, or not fitted.
    """
    laws: Any = getattr(predictor, "laws", {})
    linear: Any = getattr(predictor, "linear_features", None)
    if linear is None or not laws:
        return None
    if not all(hasattr(law, "covariance") for law in laws.values()):
        return None
    features = np.asarray(linear(jobs))
    kinds, index = LawRows(jobs).kinds
    spread = np.zeros((len(jobs), len(jobs)))
    answered = np.isfinite(features).all(axis=1)
    own = [kind if kind in laws else kind[: len(GROUP)] for kind in kinds]
    for kind in dict.fromkeys(own):
        if kind not in laws:
            continue
        mine = np.flatnonzero(answered & np.array([k == kind for k in own] + [False])[index])
        x = features[mine]
        seconds = np.maximum(x @ laws[kind].theta, 1e-300)
        relative = x / seconds[:, None]
        spread[np.ix_(mine, mine)] = relative @ laws[kind].covariance @ relative.T
    return spread


def taught_by(predictor: Predictor) -> str:
    """Return how many runs taught a fitted law, on how many devices; "" where it does not say."""
    laws: Any = getattr(predictor, "laws", {})
    chosen: Any = getattr(predictor, "chosen", ())
    if chosen:
        said = (taught_by(member) for member in chosen[0].members.fitted.values())
        return next(filter(None, said), "")
    # Laws over all settings of a workload and device were taught by the runs of the others.
    own = [law for kind, law in laws.items() if len(kind) > len(GROUP)] or [*laws.values()]
    if not own or not all(hasattr(law, "runs") and hasattr(law, "machines") for law in own):
        return ""
    machines = [count for law in own for count in law.machines]
    runs = sum(int(law.runs) for law in own)
    return f"{counted(runs, 'run')} on {min(machines):g} to {max(machines):g} devices"
