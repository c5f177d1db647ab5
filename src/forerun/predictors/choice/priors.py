"""Priors: what is believed of the candidates before a run of one's own has judged them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def known_losses(names: tuple[str, ...], kind: int, known: float) -> FloatArray:
    """Return the losses of candidates against one another for a kind of question, (c,).

    Args:
        names: of the candidates.
        kind: of the question (see `questions`).
        known: log2 of how many questions of the workload and device have runs.
    """
    return np.zeros(len(names))
