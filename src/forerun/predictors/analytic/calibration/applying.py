"""Applying a fit: constants moved to it, and what the runs have taught written down."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.predictors.analytic.calibration.fitting import fit_runs
from forerun.predictors.analytic.calibration.learned import Learned, learned_from
from forerun.predictors.analytic.calibration.manner import USUAL, Manner
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.predictors.analytic.calibration.spread import with_spread
from forerun.predictors.analytic.constants import Constants, framework_key, scale_key
from forerun.predictors.analytic.places import devices_key, seen_in, settings_of
from forerun.tables import Jobs, Runs


def calibrated(
    constants: Constants, runs: Runs, kept: dict[Any, Any], most: int, manner: Manner = USUAL
) -> tuple[Constants, tuple[Learned, ...]]:
    """Return constants fitted to runs, with the spread that remains, and what was learned.

    Args:
        constants: the priors.
        runs: facts, each with a measured step and a job that physics can speak of.
        kept: see `rows.lay_out`.
        most: use no more runs than this.
        manner: how the fit is made.

    Raises:
        RequestError: there is no such run.
    """
    fit = fit_runs(constants, runs, kept, most, manner)
    learned = learned_from(constants, fit)
    found = {entry.name: entry.log_sd for entry in learned if entry.identified}
    fitted = replace(
        moved(constants, fit.parameters, fit.theta),
        taught=taught_by(fit.jobs, constants),
        settled={**constants.settled, **found},
    )
    return with_spread(fitted, fit), learned


def taught_by(jobs: Jobs, constants: Constants) -> dict[str, float]:
    """Return what the runs spoke of, added to what was known: kinds and names with their counts."""
    seen: defaultdict[str, float] = defaultdict(float)
    pairs, counts = np.unique(
        np.stack([jobs.workload_index, jobs.cluster_index]), axis=1, return_counts=True
    )
    for (w, c), count in zip(pairs.T, counts, strict=True):
        workload, cluster = jobs.workloads[w], jobs.clusters[c]
        # Repeats of one job on one cluster teach less and less: they count as their root.
        runs = float(count) ** 0.5
        seen[f"workload:{scale_key(workload)}"] += runs
        seen[f"device:{cluster.device.id}"] += runs
        seen[f"framework:{framework_key(workload.framework)}"] += runs
        if cluster.devices > 1:
            link = cluster.inter if cluster.nodes > 1 else cluster.intra
            seen[f"link:{link.kind}"] += runs
    names = np.unique(settings_of(jobs).astype(str))
    if len(names) == 1:
        # Of several settings each has a shift that is thrown away, so none is known. A later
        # question without a label is asked where these runs were measured.
        for name in {names[0], ""}:
            seen |= seen_in(name, jobs)
    most = max(float(jobs.clusters[c].devices) for c in np.unique(jobs.cluster_index))
    before = dict(constants.taught)
    result = {name: before.get(name, 0.0) + count for name, count in seen.items()}
    found = {**before, **result, "devices": max(most, before.get("devices", 1.0))}
    if len(names) == 1:
        for name in {names[0], ""}:
            key = devices_key(name)
            found[key] = max(most, before.get(key, 1.0))
    return found
