"""Applying a fit: constants moved to it, and bands as wide as errors of groups of runs left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.plan import SERVER_SYNCS
from forerun.domain.quantiles import Z95
from forerun.predictors.analytic.calibration.fitting import DEGREES, SPEAKS, Fit
from forerun.predictors.analytic.calibration.parameters import moved, value_of
from forerun.predictors.analytic.constants import (
    Constants,
    framework_key,
    framework_name,
    link_key,
    scale_key,
)
from forerun.predictors.analytic.saving import Learned, settled_by
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import (
    NETWORKS,
    REACH,
    WEIGHED,
    devices_key,
    evidence,
    exposures,
    fitted_key,
    kernels,
    kind_of,
    settings_of,
    widest_link,
)
from forerun.tables import Jobs

# The 95 % quantile of Student-t errors with four degrees of freedom, in units of their scale.
T_QUANTILE = 2.132
# What is left out together as one place.
places_of = settings_of
SIGMA_PRIOR_SD = 0.5  # log standard deviation of a sigma about its prior
# What must be left out to learn of a cause that rows hardly show once it is known.
SPLIT_OF = {"network": "link"}
HELD_SD = 1e-6
ROUNDS = 25
# So many left-out groups weigh as much as the prior that errors are as the sigmas say.
TAIL_COUNT = 6.0
# Share of a group's errors that all of its rows have in common, and how many groups outweigh that.
SHARED, SHARED_COUNT = 0.35, 3.0


@dataclass(frozen=True)
class LeftOut:
    """Errors of m rows left out: log measured over forecast, exposures, weights and which split."""

    error: FloatArray
    exposed: dict[str, FloatArray]
    weight: FloatArray
    split: NDArray[np.object_]


def with_spread(constants: Constants, fit: Fit) -> Constants:
    """Return fitted constants whose sigmas and tails follow the left-out errors of their fit."""
    left = left_out(constants, fit)
    causes = [c for c, e in left.exposed.items() if (e > 0).any()]
    exposed = np.stack([left.exposed[c] for c in causes], axis=1)
    prior = np.log([getattr(constants, f"sigma_{c}") for c in causes])
    splits = set(left.split.tolist())
    loose = [SIGMA_PRIOR_SD if SPLIT_OF.get(c, "run") in splits else HELD_SD for c in causes]
    # Log sigmas, and the share of each that the errors settled, 0 to 1, (c,) each.
    prior_sd = np.array(loose)
    log_sigma, evidence = prior.copy(), np.zeros(len(prior))
    unit = Z95 / T_QUANTILE  # the scale of Student-t errors whose 90 % band is a normal one's
    for _ in range(ROUNDS):
        pieces = exposed * np.exp(2.0 * log_sigma)
        variance = pieces.sum(axis=1)
        share = pieces / variance[:, None]
        z2 = left.error**2 / (variance * unit**2)
        score = (DEGREES + 1.0) * z2 / (DEGREES + z2) - 1.0
        slope = share.T @ (left.weight * score) - (log_sigma - prior) / prior_sd**2
        bend = 2.0 * DEGREES / (DEGREES + 3.0) * (share.T * left.weight) @ share
        evidence = np.diag(bend) / (np.diag(bend) + 1.0 / prior_sd**2)
        bend[np.diag_indices_from(bend)] += 1.0 / prior_sd**2
        move = np.clip(np.linalg.solve(bend, slope), -0.5, 0.5)
        log_sigma = log_sigma + move
        if float(np.abs(move).max()) < 1e-3:
            break
    z = left.error / np.sqrt(exposed @ np.exp(2.0 * log_sigma))
    low, high = _tails(z, left.weight)
    # What the runs measured of a cause takes the width of the tails with it.
    both = (low * high) ** 0.5
    sigmas = np.exp(log_sigma + evidence * np.log(both))
    # Bands end where what slower hosts and networks add was weighed.
    most = REACH * both / (Z95 * high)
    found = {
        f"sigma_{c}": min(float(s), most) if c in WEIGHED else float(s)
        for c, s in zip(causes, sigmas, strict=True)
    }
    changes: dict[str, float] = {**found, "tail_low": low / both, "tail_high": high / both}
    return replace(constants, **changes)  # type: ignore[arg-type]


def left_out(constants: Constants, fit: Fit) -> LeftOut:
    """Return the errors of the fit's rows, each group of each split left out in turn."""
    rows = fit.priced(constants)
    parts = step_and_floor(rows, constants)[0]
    known = evidence(fit.jobs, constants)
    reach = fit.slopes @ fit.covariance
    pieces = []
    for split, groups in _splits(fit).items():
        devices = rows.node["devices"]
        seen = {n: np.full(len(devices), float(n.endswith("_evidence"))) for n in known}
        if split == "scale":
            most = float(np.delete(devices, groups[0]).max())
            seen["doublings"] = np.log2(np.maximum(devices / most, 1.0))
        elif split != "run":
            new = ("framework", "pipeline") if split == "framework" else (split,)
            seen |= {f"{name}_evidence": np.zeros(len(devices)) for name in new}
        errors = [without(fit, reach, group) for group in groups]
        off = np.zeros(len(rows))
        off[np.concatenate(groups)] = np.concatenate(errors)
        above, below = exposures(rows, parts, seen, constants)
        exposed = above | {c: np.where(off < 0, e, above[c]) for c, e in below.items()}
        facts = _facts(split, errors)
        for group, error, fact in zip(groups, errors, facts, strict=True):
            pieces.append((
                error, {c: e[group] for c, e in exposed.items()},
                np.full(len(group), fact / len(group)), np.full(len(group), split, dtype=object),
            ))  # fmt: skip
    error, exposed_by, weight, name = zip(*pieces, strict=True)
    return LeftOut(
        np.concatenate(error),
        {c: np.concatenate([e[c] for e in exposed_by]) for c in exposed_by[0]},
        np.concatenate(weight), np.concatenate(name),
    )  # fmt: skip


def _facts(split: str, errors: list[FloatArray]) -> list[float]:
    """Return the facts in each group's errors: m with the share r in common are m / (1 + (m - 1) r)."""
    if split == "run":
        return [len(e) ** 0.5 for e in errors]
    several = [e for e in errors if len(e) > 1]
    whole = float(np.mean([(e**2).mean() for e in several])) if several else 0.0
    pairs = [(e.sum() ** 2 - (e**2).sum()) / (len(e) * (len(e) - 1.0)) for e in several]
    shared = SHARED
    if whole > 0:
        shared = (sum(pairs) / whole + SHARED_COUNT * SHARED) / (len(pairs) + SHARED_COUNT)
    shared = min(max(shared, 0.05), 1.0)
    return [len(e) / (1.0 + (len(e) - 1.0) * shared) for e in errors]


def _splits(fit: Fit) -> dict[str, list[IntArray]]:
    jobs = fit.jobs
    links = ["" if c.devices == 1 else widest_link(c).kind for c in jobs.clusters]
    labels: Mapping[str, NDArray[np.object_]] = {
        "workload": jobs.per_workload("name"), "device": jobs.per_cluster("device.id"),
        "framework": np.array([framework_key(str(f)) for f in jobs.per_workload("framework")]),
        "link": np.array(links, dtype=object)[jobs.cluster_index],
        "setting": places_of(jobs).astype(str),
    }  # fmt: skip
    # One run at a time would be exact; a random twentieth at a time costs less and differs little.
    mixed = np.random.default_rng(0).permutation(len(jobs))
    splits = {"run": list(np.array_split(mixed, min(len(jobs), 20)))}
    for name, label in labels.items():
        groups = [
            np.flatnonzero(label == value) for value in np.unique(label) if value or name != "link"
        ]
        if len(groups) > 1:
            splits[name] = groups
    devices = jobs.per_cluster("devices")
    half = devices.max() / 2.0
    above = np.flatnonzero(devices > half)
    if 0 < len(above) < len(jobs):
        splits["scale"] = [above]
    return splits


def without(fit: Fit, reach: FloatArray, group: IntArray) -> FloatArray:
    """Return the log errors (m,) that all rows of a group would have had outside the fit.

    r' = r_G + J_G (P - J_G^T W_G J_G)^-1 J_G^T W_G r_G; reach: slopes times the covariance, (n, p).
    """
    slopes, weight, residual = fit.slopes[group], fit.weight[group], fit.residual[group]
    if len(group) <= slopes.shape[1]:
        pull = (reach[group] @ slopes.T) * weight
        return np.asarray(np.linalg.solve(np.eye(len(group)) - pull, residual))
    rest = fit.precision - (slopes.T * weight) @ slopes
    return np.asarray(residual + slopes @ np.linalg.solve(rest, slopes.T @ (weight * residual)))


def _tails(z: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return how many times Z95 sigma lies (below, above) the middle at the 5 % and 95 % quantiles."""
    order = np.argsort(z)
    height = np.cumsum(weight[order]) / weight.sum()
    trust = weight.sum() / (weight.sum() + TAIL_COUNT)

    def tail(level: float, sign: float) -> float:
        quantile = sign * float(np.interp(level, height, z[order])) / Z95
        return float(np.clip(1.0 + trust * (quantile - 1.0), 0.5, 4.0))

    return tail(0.05, -1.0), tail(0.95, 1.0)


def calibrated(fit: Fit) -> tuple[Constants, tuple[Learned, ...]]:
    """Return the constants of a fit, with the spread that remains, and what was learned."""
    learned = learned_from(fit.prior, fit)
    fitted = replace(
        moved(fit.prior, fit.parameters, fit.theta), run_counts=run_counts(fit.jobs, fit.prior),
        settled={**fit.prior.settled, **settled_by(learned)},
    )  # fmt: skip
    return with_spread(fitted, fit), learned


def run_counts(jobs: Jobs, constants: Constants) -> dict[str, float]:
    """Return `Constants.run_counts` with these runs added; repeats count as their root."""
    seen: defaultdict[str, float] = defaultdict(float)
    served = np.isin(jobs.plans.sync, SERVER_SYNCS)
    pairs, counts = np.unique(
        np.stack([jobs.workload_index, jobs.cluster_index, served]), axis=1, return_counts=True
    )
    for (w, c, through), count in zip(pairs.T, counts, strict=True):
        workload, cluster = jobs.workloads[w], jobs.clusters[c]
        framework = framework_name(workload.framework)
        names = [f"workload:{scale_key(workload)}", f"device:{cluster.device.id}",
                 f"device:{cluster.device.id} on {framework}", f"framework:{framework}",
                 f"precision:{kernels(workload)}",
                 f"precision:{kernels(workload)} of {framework}"]  # fmt: skip
        names += [f"servers:{framework}"] * int(through)
        if cluster.devices > 1:
            names.append(f"link:{link_key(widest_link(cluster).kind)}")
        for name in names:
            seen[name] += float(count) ** 0.5
    piped, counts = np.unique(jobs.workload_index[jobs.plans.pp > 1], return_counts=True)
    for w, count in zip(piped, counts, strict=True):
        seen[f"pipeline:{framework_name(jobs.workloads[w].framework)}"] += float(count) ** 0.5
    # Of one setting, a later question without a label is taken to be where it was measured.
    labels, devices = settings_of(jobs).astype(str), jobs.per_cluster("devices").astype(float)
    places = np.unique(labels).tolist()
    most = {"devices": float(devices.max())}
    widths = jobs.per_workload("shape.hidden").astype(float)
    if (widths > 0).any():
        most |= {"hidden": widths.max(), "1/hidden": 1.0 / widths[widths > 0].min()}
    for place in {*places, ""} if len(places) == 1 else places:
        here = np.flatnonzero(labels == place) if len(places) > 1 else np.arange(len(jobs))
        on = Counter(jobs.clusters[c].device.id for c in jobs.cluster_index[here])
        seen[f"setting:{place}"] += len(here) ** 0.5
        for device, number in on.items():
            seen[f"setting:{place} on {device}"] += number**0.5
        most[devices_key(place)] = float(devices[here].max())
    before = constants.run_counts
    found = {name: before.get(name, 0.0) + count for name, count in seen.items()}
    found |= {name: max(float(count), before.get(name, 0.0)) for name, count in most.items()}
    # This fit's spreads hold for the kinds of network that it had runs of.
    kinds = {kind_of(jobs.workloads[w]) for w in np.unique(jobs.workload_index)}
    found |= {fitted_key(kind): float(kind in kinds) for kind in NETWORKS}
    return {**before, **found}


def learned_from(prior: Constants, fit: Fit) -> tuple[Learned, ...]:
    """Return what a fit says of each constant: unit, interval, and the runs that inform it."""
    after, labels = moved(prior, fit.parameters, fit.theta), fit.jobs.labels
    sources = np.array([""] * len(fit.jobs)) if labels is None else labels.texts("source")
    columns = zip(
        fit.parameters, fit.sd.tolist(), fit.prior_sd.tolist(), np.abs(fit.slopes.T) > SPEAKS,
        strict=True,
    )  # fmt: skip
    return tuple(
        Learned.of(p.name, value_of(after, p), value_of(prior, p), (sd, before), sources[informs])
        for p, sd, before, informs in columns
    )
