"""Projection: how many samples a training needs until a metric reaches a target, from its values so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forerun.domain.quantiles import Z95

_FEWEST = 3


def samples_until(
    samples: Sequence[float], values: Sequence[float], target: float
) -> tuple[float, float, float]:
    """Return samples in all at which a metric reaches a target: 5 %, 50 % and 95 % quantiles.

    samples: at which the metric was evaluated, rising, (n,). values: of the metric, (n,). The later half of
    the values is taken to grow by the logarithm of the samples; infinite where it does not come nearer to
    the target. Of fewer than three values: from the last one on, unknown (NaN), and never.
    """
    x, y = np.asarray(samples, dtype=np.float64), np.asarray(values, dtype=np.float64)
    last = float(x[-1]) if len(x) else 0.0
    if len(x) < _FEWEST:
        return last, math.nan, math.inf
    kept = slice(min(len(x) // 2, len(x) - _FEWEST), None)
    logs, y = np.log(np.maximum(x[kept], 1.0)), y[kept]
    centred = logs - logs.mean()
    spread = float(centred @ centred)
    if spread <= 0:
        return last, math.nan, math.inf
    slope = float(centred @ y) / spread
    errors = y - y.mean() - slope * centred
    doubt = Z95 * math.sqrt(float(errors @ errors) / (len(y) - 2) / spread)
    need = target - (float(y.mean()) + slope * float(centred[-1]))
    sign = math.copysign(1.0, need)

    def reached(rate: float) -> float:
        # exp(700) is near the largest float there is.
        return last * math.exp(min(abs(need) / rate, 700.0)) if rate > 0 else math.inf

    return reached(sign * slope + doubt), reached(sign * slope), reached(sign * slope - doubt)
