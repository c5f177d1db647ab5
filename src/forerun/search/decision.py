"""Decision: what a run would be worth: how much surer the answers, how much better the choice.

Of a Gaussian belief of log seconds (`beliefs.Beliefs`), a run of job c moves the log of job t by
s_ct z, z standard normal, s_ct = K_tc / sqrt(K_cc + noise), and takes s_ct^2 off its variance. Two
things follow that need no refit:

accuracy   the mean of s_ct^2 over the jobs asked: by how much their mean log variance falls.
decision   E_z[what would be chosen then] against what is chosen now: the knowledge gradient
           (Frazier, Powell and Dayanik, SIAM J. Control Optim. 47, 2008), here of expected cost (or
           time), in which a run that ends too late counts as paid for again. Nothing is worth less
           than 0; and where no outcome of a run changes the choice, the run is worth 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import normal_cdf, normal_quantile
from forerun.search.beliefs import Beliefs

_NODES = 48  # of the outcome of one run
_SCENARIOS = 128  # of the outcomes of the runs that were picked before
_SEED = 0
_SAME = 1e-6
_MOST_LOG = 600.0  # of an expected objective: what is dearer is as bad
_MOST_CELLS = 4_000_000  # of the outcomes that are looked at together


@dataclass(frozen=True)
class Options:
    """What is chosen among.

    Attributes:
        rows: positions in the beliefs, (m,).
        scale: objective of each for a second of its time: dollars, or seconds of the whole job.
        latest: seconds of time (of a step, as the beliefs have it) at which each misses the
            deadline; infinite for none, (m,).
    """

    rows: IntArray
    scale: FloatArray
    latest: FloatArray

    def expected(self, middle: FloatArray, variance: FloatArray) -> FloatArray:
        """Return the expected objective of each, a late run counted twice.

        Args:
            middle: log of the medians, (..., m).
            variance: of the logs, (m,) or a shape that broadcasts.
        """
        plain = np.exp(np.minimum(middle + variance / 2, _MOST_LOG)) * self.scale
        if not np.isfinite(self.latest).any():
            return np.asarray(plain)
        sigma = np.sqrt(np.maximum(variance, 1e-300))
        with np.errstate(divide="ignore"):
            late = 1.0 - normal_cdf((np.log(self.latest) - middle) / sigma)
        return np.asarray(plain * (1.0 + late))


@dataclass(frozen=True)
class Worth:
    """What a run of each candidate is worth for a choice.

    Attributes:
        value: by how much the expected objective of the choice falls, (c,).
        changes: probability that another, better option is chosen after it, (c,).
    """

    value: FloatArray
    changes: FloatArray


def chosen_now(beliefs: Beliefs, options: Options) -> int:
    """Return which of the options has the least expected objective."""
    rows = options.rows
    variance = np.diag(beliefs.covariance)[rows]
    return int(np.argmin(options.expected(beliefs.middle[rows], variance)))


def accuracy_gains(beliefs: Beliefs, candidates: IntArray, asked: IntArray) -> FloatArray:
    """Return by how much a run of each candidate lowers the mean log variance of the asked, (c,)."""
    return np.asarray((beliefs.shift(candidates, asked) ** 2).mean(axis=1))


def decision_worth(
    beliefs: Beliefs, candidates: IntArray, options: Options, scenarios: FloatArray | None = None
) -> Worth:
    """Return what a run of each candidate is worth for choosing among the options.

    Args:
        beliefs: errors that are left after the runs picked so far.
        candidates: positions in the beliefs, (c,).
        options: what is chosen among.
        scenarios: how far runs picked before may have moved the options' logs, (s, m); none by
            default.
    """
    rows = options.rows
    had = np.zeros((1, len(rows))) if scenarios is None else scenarios
    middle = beliefs.middle[rows] + had
    variance = np.diag(beliefs.covariance)[rows]
    held = options.expected(middle, variance).argmin(axis=1)
    z = _outcomes()
    value, changes = np.zeros(len(candidates)), np.zeros(len(candidates))
    step = max(1, _MOST_CELLS // (middle.size * _NODES))
    for start in range(0, len(candidates), step):
        now = slice(start, start + step)
        shift = beliefs.shift(candidates[now], rows)[:, None, None, :]
        left = np.maximum(variance - shift**2, 0.0)
        # Axes: candidates, scenarios, outcomes of the run, options.
        later = options.expected(middle[:, None, :] + z[:, None] * shift, left)
        # Keeping what is held costs on average what it costs now, so that the difference to it is
        # what learning gains: of the right sign, whatever the rule of integration.
        kept = np.take_along_axis(later, held[None, :, None, None], axis=3)[..., 0]
        value[now] = (kept - later.min(axis=3)).mean(axis=(1, 2))
        # Options that cost the same, because nothing known tells them apart, are no change.
        moved = kept - later.min(axis=3) > _SAME * kept
        changes[now] = moved.mean(axis=(1, 2))
    return Worth(value, changes)


def _outcomes() -> FloatArray:
    """Return standard normal outcomes of one run, all as probable, (nodes,).

    What is gained is no smooth function of the outcome (a choice changes at some point of it), so
    that points of equal probability tell more than those of a Gauss rule.
    """
    z = np.array([normal_quantile((i + 0.5) / _NODES) for i in range(_NODES)])
    return np.asarray(z / np.sqrt(np.mean(z**2)))


def next_scenarios(
    beliefs: Beliefs, i: int, options: Options, scenarios: FloatArray | None
) -> FloatArray:
    """Return how far the options' logs may have moved once job i was run too, (s, m)."""
    rng = np.random.default_rng([_SEED, 0 if scenarios is None else len(scenarios), i])
    had = np.zeros((_SCENARIOS, len(options.rows))) if scenarios is None else scenarios
    shift = beliefs.shift(np.array([i]), options.rows)[0]
    half = rng.standard_normal(_SCENARIOS // 2)
    drawn = rng.permutation(np.concatenate([half, -half]))
    return np.asarray(had + drawn[:, None] * shift)
