"""Correction: a Gaussian process on what physics missed, for the jobs that it may speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.predictors.residual.features import Features
from forerun.predictors.residual.gate import Verdict
from forerun.predictors.residual.kernel import CHUNK, Kernel
from forerun.predictors.residual.novelty import KINDS, Known, Labels

# Of a correction's variance, what measured runs must explain for it to speak at all.
LEAST_EXPLAINED = 0.02


@dataclass(frozen=True)
class Correction:
    """What was learned from m runs.

    Attributes:
        kernel: how alike jobs are.
        features: of the runs.
        weights: what each run adds to a correction for the likeness to it, (m, 1 + 4): the first
            for all jobs, the others for those that have to do without constants of their own.
        total: variance of each run's correction and its noise, (m,).
        known: what was measured.
        verdicts: by kind of novelty.
    """

    kernel: Kernel
    features: Features
    weights: FloatArray
    total: FloatArray
    known: Known
    verdicts: Mapping[str, Verdict]

    def speaks_of(self, labels: Labels, labelled: bool) -> tuple[BoolArray, dict[str, BoolArray]]:
        """Return which of n jobs trials allow it to correct, (n,), and the novelty of all."""
        news = self.known.news(labels, labelled)
        silent = np.zeros(len(labels), dtype=bool)
        for kind, rows in news.items():
            if kind not in self.verdicts or not self.verdicts[kind].speaks:
                silent |= rows
        return ~silent, news

    def logs(self, features: Features, labels: Labels) -> tuple[FloatArray, FloatArray]:
        """Return (what to add to the log of the forecast, the part of its variance unseen), (n,).

        Where nothing alike was measured it is 0, and all is unseen.
        """
        lacks = np.concatenate([np.ones((len(labels), 1)), self.known.lacks(labels)], axis=1)
        log, explained = np.zeros(len(features)), np.zeros(len(features))
        for start in range(0, len(features), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(features)))
            shared = self.kernel.some(features, rows, self.features)
            log[rows] = ((shared @ self.weights) * lacks[rows]).sum(axis=1)
            explained[rows] = (shared**2 / self.total).max(axis=1)
        explained = np.clip(explained / self.kernel.own(features), 0.0, 1.0)
        far = explained < LEAST_EXPLAINED
        return np.where(far, 0.0, log), np.where(far, 1.0, 1.0 - explained)

    def bands(
        self, news: Mapping[str, BoolArray], unseen: FloatArray, sigma: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (log standard deviations, lower and upper tails) of corrected forecasts, (n,).

        The widest of what is new about a job counts. sigma: physics' own, (n,).
        """
        width, low, high = np.zeros(len(unseen)), np.ones(len(unseen)), np.ones(len(unseen))
        for kind in KINDS:
            if kind not in self.verdicts or kind not in news:
                continue
            band = self.verdicts[kind].band
            mine = np.sqrt(band.least**2 + band.share**2 * unseen * sigma**2)
            wider = news[kind] & (mine > width)
            width = np.where(wider, mine, width)
            low, high = np.where(wider, band.low, low), np.where(wider, band.high, high)
        return width, low, high

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; features with the seven digits that they are compared in."""
        return {
            "kernel": self.kernel.to_dict(),
            "features": [[float(f"{v:.9g}") for v in row] for row in self.features.values],
            "share": self.features.share.tolist(),
            "median": self.features.median.tolist(),
            "weights": self.weights.tolist(),
            "total": self.total.tolist(),
            "known": self.known.to_dict(),
            "verdicts": {kind: found.to_dict() for kind, found in self.verdicts.items()},
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Correction:
        """Return what `to_dict` wrote."""

        def column(name: str) -> FloatArray:
            return np.array(values[name], dtype=np.float64)

        return Correction(
            kernel=Kernel.from_dict(values["kernel"]),
            features=Features(column("features"), column("share"), column("median")),
            weights=column("weights"),
            total=column("total"),
            known=Known.from_dict(values["known"]),
            verdicts={k: Verdict.from_dict(v) for k, v in values["verdicts"].items()},
        )
