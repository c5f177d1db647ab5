"""Frameworks that are not stated: a mixture over those that people use for such a workload.

The same network takes two or three times as long under one framework as under another, so an answer
that names none covers them all: its quantiles are those of the mixture, weighted by how usual each
framework is. The weights are a judgement. The framework of runs that a fit was given without a name
counts as known: a later question without a name is about the same software. On a device that a
probe measured, the framework is the one that the probe ran.

A search scores millions of plans with one typical profile (`typical`); its answers are mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.comparison import log_sigma
from forerun.domain.forecast import Forecasts
from forerun.domain.quantiles import mixture_quantiles
from forerun.domain.workload import Workload
from forerun.predictors.analytic.constants import Constants, Framework
from forerun.tables import Jobs

# None is rarer than one in ten, or a 5-95 % band could leave out its median.
USUAL: Mapping[str, Mapping[str, float]] = {
    "language": {"pytorch": 0.25, "megatron": 0.20, "deepspeed": 0.14, "nemo": 0.14,
                 "torchtitan": 0.13, "jax": 0.14},
    "other": {"pytorch": 0.55, "tensorflow": 0.17, "jax": 0.14, "tuned": 0.14},
}  # fmt: skip


def usual_frameworks(workload: Workload) -> str:
    """Return the key in `USUAL` of a workload: `language` for transformers that read tokens."""
    return "language" if workload.shape.heads > 0 and workload.seq_len > 0 else "other"


def mixture_keys(jobs: Jobs, constants: Constants) -> NDArray[np.object_]:
    """Return the key in `USUAL` of each resolved row, (n,); "" where its framework is known."""
    keys = np.array(
        ["" if constants.knows_framework(w.framework) else usual_frameworks(w)
         for w in jobs.workloads], dtype=object,
    )  # fmt: skip
    probed = np.array([c.device.measured is not None for c in jobs.clusters], dtype=bool)
    return np.where(probed[jobs.cluster_index], "", keys[jobs.workload_index])


def typical(constants: Constants, key: str) -> Constants:
    """Return constants whose unnamed profile is the weighted mean of a mixture's profiles."""
    profiles = [constants.frameworks[name] for name in USUAL[key]]
    means = {
        field.name: sum(
            share * getattr(profile, field.name)
            for share, profile in zip(USUAL[key].values(), profiles, strict=True)
        )
        for field in fields(Framework)
    }
    frameworks = {**constants.frameworks, "": Framework(**means)}
    return replace(constants, frameworks=frameworks)


def mixed(
    jobs: Jobs, key: str, predict: Callable[[Jobs], Forecasts], named: Callable[..., Workload]
) -> Forecasts:
    """Return the forecasts of n jobs as mixtures over the frameworks of a key of `USUAL`.

    Args:
        jobs: resolved, none with a known framework.
        key: see `mixture_keys`.
        predict: forecasts of jobs that state one, with details.
        named: returns a workload under a framework.
    """
    n, names = len(jobs), tuple(USUAL[key])
    weights = np.array([USUAL[key][name] for name in names])
    many = jobs.take(np.tile(np.arange(n), len(names)))
    shift = np.repeat(np.arange(len(names)) * len(jobs.workloads), n)
    each = predict(replace(
        many,
        workloads=tuple(named(w, name) for name in names for w in jobs.workloads),
        workload_index=(many.workload_index + shift).astype(np.int32),
    ))  # fmt: skip

    def mean(values: FloatArray) -> FloatArray:
        return np.asarray(weights @ values.reshape(len(names), n))

    def means(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        return {name: mean(values) for name, values in columns.items()}

    def scaled(columns: dict[str, FloatArray], total: FloatArray) -> dict[str, FloatArray]:
        now = np.sum(list(columns.values()), axis=0)
        return {name: values * (total / now) for name, values in columns.items()}

    seconds = mixture_quantiles(each.seconds.reshape(len(names), n, 3), weights)
    peaks = mixture_quantiles(each.peak_bytes.reshape(len(names), n, 3), weights)
    causes, variance = means(each.causes), log_sigma(seconds) ** 2
    # What the frameworks differ by is an error that all plans of the workload share.
    within = np.sum(list(causes.values()), axis=0)
    causes["framework: compute"] += np.maximum(variance - within, 0.0)
    usable = each.usable_bytes
    return replace(
        each,
        seconds=seconds,
        peak_bytes=peaks,
        fit_probability=mean(each.fit_probability),
        floor_seconds=mean(each.floor_seconds),
        distance=mean(each.distance),
        usable_bytes=None if usable is None else mean(usable),
        declined=each.declined[:n],
        causes=scaled(causes, variance),
        distance_parts=means(each.distance_parts),
        parts=scaled(means(each.parts), seconds[:, 1]),
        memory_parts=scaled(means(each.memory_parts), peaks[:, 1]),
        frameworks=dict(zip(names, each.seconds[:, 1].reshape(len(names), n), strict=True)),
    )
