"""Tails: how far the next error may lie where too few are known for a quantile of them."""

from __future__ import annotations


def student95(freedom: int) -> float:
    """Return the 95 % quantile of Student's t with at least one degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(max(freedom, 1), 0.95))
