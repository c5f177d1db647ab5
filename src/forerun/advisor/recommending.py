"""Recommending: the advisor's question to the search, with what it assumed put first.

Candidates: the clusters that a recommendation considers, by default every priced machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forerun.advisor.answer import frameworks_note
from forerun.advisor.request import LARGEST_COUNT, limits_of
from forerun.catalog import Catalog, Instance
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnknownNameError, nearest_names

LARGEST_DEVICES = 1_048_576
_MOST_NODES = 64  # of candidates that nobody named
_BEYOND = 8
_FIRST_COUNT = re.compile(r"^\d+x", re.IGNORECASE)
_COUNTED = re.compile(r"\d+x", re.IGNORECASE)


def node_counts(devices_per_node: int, max_devices: int, most: int = 2**20) -> Iterator[int]:
    """Yield 1, 2, 4, 8 ... nodes, up to the largest cluster or number of nodes."""
    nodes = 1
    while nodes * devices_per_node <= max_devices and nodes <= most:
        yield nodes
        nodes *= 2


def candidate_clusters(
    catalog: Catalog,
    clusters: Sequence[str | Cluster] | None,
    max_devices: int,
    region: str | None = None,
    providers: Sequence[str] | None = None,
    market: str = "on-demand",
) -> list[Cluster]:
    """Return the named candidates, or by default every accelerator machine that has a price.

    Raises:
        RequestError: malformed text, no candidates, or a limit that is out of range.
        UnknownNameError: a device or machine that is not known.
    """
    if not 1 <= max_devices <= LARGEST_DEVICES:
        raise RequestError(
            f"at most {max_devices} devices", f"not between 1 and {LARGEST_DEVICES:,}",
            "give a number of devices such as 512",
        )  # fmt: skip
    if clusters is not None and providers:
        raise RequestError(
            "providers and clusters together", "named clusters say themselves where they are",
            "give one of them",
        )  # fmt: skip
    if clusters is None:
        found = [
            catalog.cluster(f"{nodes}x{machine.name}", region=machine.region)
            for machine in _default_machines(catalog, region, providers, market)
            for nodes in node_counts(machine.device_count, max_devices, _MOST_NODES)
        ]
        asked = "a recommendation over the catalogue's machines"
    else:
        found = [c for item in clusters for c in _named(catalog, item, max_devices, region)]
        asked = f"a recommendation over {', '.join(str(c) for c in clusters) or 'no clusters'}"
    if not found:
        raise RequestError(
            asked, f"no candidate has a price{f' in {region}' if region else ''} and at most"
            f" {max_devices} devices",
            "raise --max-devices, choose another region, or name clusters with --clusters",
        )  # fmt: skip
    return list({cluster.name + cluster.region: cluster for cluster in found}.values())


@dataclass(frozen=True)
class Larger:
    """Clusters beyond the largest one that a recommendation considers by itself."""

    catalog: Catalog
    max_devices: int
    region: str | None = None

    def like(self, clusters: Sequence[Cluster]) -> list[Cluster]:
        """Return larger clusters of the same machines or devices, up to 8 times the limit."""
        texts: dict[str, Cluster] = {}
        for cluster in clusters:
            usual = max(cluster.device.devices_per_node, 1)
            if cluster.instance_type or cluster.devices_per_node >= usual:
                texts.setdefault(_FIRST_COUNT.sub("", cluster.name), cluster)
        most = min(self.max_devices * _BEYOND, LARGEST_DEVICES)
        return [
            self.catalog.cluster(f"{nodes}x{text}", region=cluster.region or self.region)
            for text, cluster in texts.items()
            for nodes in node_counts(cluster.devices_per_node, most)
            if nodes * cluster.devices_per_node > self.max_devices
        ]


def larger_than(
    catalog: Catalog,
    clusters: Sequence[str | Cluster] | None,
    max_devices: int,
    region: str | None = None,
) -> Larger | None:
    """Return what lies beyond `candidate_clusters`, None where each candidate was named whole."""
    open_ended = clusters is None or any(
        isinstance(item, str) and not _COUNTED.match(item.strip()) for item in clusters
    )
    return Larger(catalog, max_devices, region) if open_ended else None


def _default_machines(
    catalog: Catalog,
    region: str | None = None,
    providers: Sequence[str] | None = None,
    market: str = "on-demand",
) -> list[Instance]:
    """Return the cheapest machine of each kind: same device and number of them, same links."""
    known = sorted({machine.provider for machine in catalog.instances})
    for provider in providers or ():
        if provider.lower() not in known:
            raise UnknownNameError("provider", provider, known, f"({', '.join(known)})")
    regions = sorted({machine.region for machine in catalog.instances} - {""})
    if region and region not in regions:
        raise UnknownNameError("region", region, regions)
    wanted = {provider.lower() for provider in providers or known}
    best: dict[tuple[object, ...], Instance] = {}
    for machine in catalog.instances:
        if machine.marketplace or machine.provider not in wanted:
            continue
        if (region and machine.region != region) or _is_cpu(catalog, machine):
            continue
        kind = (machine.device, machine.device_count, machine.nic_bytes_per_second,
                machine.nic_kind, machine.link_bytes_per_second)  # fmt: skip
        for price, spot in _prices(machine, market):
            held = best.get((*kind, spot))
            if held is None or price < min(p for p, s in _prices(held, market) if s == spot):
                best[*kind, spot] = machine
    return list(dict.fromkeys(best.values()))


def _prices(machine: Instance, market: str) -> Iterator[tuple[float, bool]]:
    """Yield the prices that count in a market, as (dollars an hour, whether it is spot)."""
    if machine.dollars_per_hour and market != "spot":
        yield machine.dollars_per_hour, False
    if machine.spot_dollars_per_hour and market != "on-demand":
        yield machine.spot_dollars_per_hour, True


def _is_cpu(catalog: Catalog, machine: Instance) -> bool:
    return machine.device.startswith("cpu") or catalog.device(machine.device)[0].kind == "cpu"


def _named(
    catalog: Catalog, item: str | Cluster, max_devices: int, region: str | None
) -> list[Cluster]:
    """Return the clusters of one candidate: itself, or a device or machine at each node count."""
    if isinstance(item, Cluster):
        return [item]
    text = item.strip()
    if _COUNTED.match(text):
        return [catalog.cluster(text, region=region)]
    if _is_machine(catalog, text):
        machine = catalog.instance(text, region or "")[0]
        return [
            catalog.cluster(f"{nodes}x{text}", region=region)
            for nodes in node_counts(machine.device_count, max_devices)
        ]
    usual = max(catalog.device(text)[0].devices_per_node, 1)
    parts = [n for n in node_counts(1, min(max_devices, usual)) if n < usual]
    return [
        *(catalog.cluster(f"1x{count}x{text}", region=region) for count in parts),
        *(
            catalog.cluster(f"{nodes}x{usual}x{text}", region=region)
            for nodes in node_counts(usual, max_devices)
        ),
    ]


def _is_machine(catalog: Catalog, text: str) -> bool:
    """Return whether the text names a machine type; else it names a device."""
    name = text.partition("@")[0]
    if catalog.is_instance(name):
        return True
    try:
        catalog.device(text)
    except UnknownNameError as error:
        machines = sorted({machine.name for machine in catalog.instances})
        if ":" in text:
            raise UnknownNameError("instance", name, machines) from None
        raise UnknownNameError(
            "device or instance", text,
            [*error.nearest, *nearest_names(text, machines)] or [*catalog.labels(), *machines],
            "(see `forerun devices` and `forerun instances`)",
        ) from None  # fmt: skip
    return False


_ASSUMED_ROWS = 256
_ASSUMED_TOKENS = 524_288


def objective_of(
    minimize: str,
    deadline: str | float | None,
    budget: str | float | None,
    confidence: float,
    market: str,
) -> Objective:
    """Return an objective from plain values.

    Args:
        minimize: time, cost, knee or energy.
        deadline: seconds, or text such as `24h`.
        budget: dollars, or text such as `$5,000`.
        confidence: probability of fitting and meeting both, all together.
        market: on-demand, spot or any.

    Raises:
        RequestError: one of them is wrong.
    """
    return Objective(
        aim=minimize, confidence=confidence, market=market, **vars(limits_of(deadline, budget))
    )


def recommend(
    predictor: Predictor,
    clusters: list[Cluster],
    workload: Workload,
    objective: Objective,
    length: tuple[Length, tuple[str, ...]],
    fixed: Mapping[str, Any],
    global_batches: Sequence[int] | None,
    energy: bool = False,
    larger: Larger | None = None,
) -> Recommendation:
    """Return the search's recommendation with the length and batch that were assumed.

    `larger` gives clusters beyond the limit of the search, of the kinds that came nearest; they
    are looked at where nothing else qualifies, so that a limit of ours is not taken for a fact.

    Raises:
        RequestError: a batch that is no positive whole number, or that the plan contradicts.
    """
    batches, note = _batches(workload, fixed, global_batches)
    workload.steps(length[0], batches[0])  # a wrong length is said before the search
    from forerun.search.recommending import recommend as search

    ask = partial(
        search,
        workload,
        objective=objective,
        length=length[0],
        predictor=predictor,
        fixed={name: value for name, value in fixed.items() if name != "global_batch"} or None,
        global_batches=batches,
        energy=energy or objective.aim == "energy",
    )
    found = ask(clusters)
    if found.best is None and larger is not None:
        found = _with_larger(found, larger, ask)
    best = found.best
    open_framework = (
        frameworks_note(best.job, best.estimate.forecast)
        if best is not None and best.estimate.forecast is not None
        else ""
    )
    said = (*length[1], note, *filter(None, [open_framework]))
    return replace(found, assumptions=tuple(dict.fromkeys((*said, *found.assumptions))))


def _with_larger(
    found: Recommendation, larger: Larger, ask: Callable[[list[Cluster]], Recommendation]
) -> Recommendation:
    """Return the recommendation with what lies beyond the largest cluster that was searched."""
    said = f"clusters above --max-devices {larger.max_devices:,} were not looked at"
    more_helps = found.objective.deadline_seconds is not None or not found.fitting
    beyond = larger.like([o.job.cluster for o in found.near_misses]) if more_helps else []
    if not beyond:
        return replace(found, not_searched=said)
    try:
        next_best = ask(beyond)
    except RequestError:  # fixed fields that only the smaller clusters can take
        return replace(found, not_searched=said)
    if next_best.best is None:
        largest = max(cluster.devices for cluster in beyond)
        said += f", but of the nearest kinds, up to {largest:,} devices, none qualifies"
        return replace(found, not_searched=said)
    option = next_best.best
    size = option.job.cluster.devices
    miss = {
        "larger than --max-devices": f"{size:,} devices, and {larger.max_devices:,} are allowed"
    }
    return replace(
        found,
        near_misses=(replace(option, misses=miss, beaten={}), *found.near_misses),
        not_searched=f"{said}: with --max-devices {size}, {option.job.cluster.name} qualifies",
    )


def _batches(
    workload: Workload, fixed: Mapping[str, Any], given: Sequence[int] | None
) -> tuple[tuple[int, ...], str]:
    """Return the global batches to search, and what is said of them."""
    if given:
        for batch in given:
            if not 1 <= batch <= LARGEST_COUNT:
                raise RequestError(
                    f"a global batch of {batch}", "not a whole number above zero",
                    "give a global batch of 1 or more",
                )  # fmt: skip
            if fixed.get("global_batch", batch) != batch:
                raise RequestError(
                    f"a global batch of {batch}",
                    f"the plan says global_batch={fixed['global_batch']}", "give it once",
                )  # fmt: skip
        batches = tuple(dict.fromkeys(int(b) for b in given))
        return batches, f"global batch: {', '.join(map(str, batches))} (given)"
    if "global_batch" in fixed:
        return (int(fixed["global_batch"]),), f"global batch: {fixed['global_batch']} (given)"
    if workload.default_global_batch:
        usual = workload.default_global_batch
        return (usual,), f"global batch: {usual} (usual for {workload.name})"
    batch = _ASSUMED_ROWS
    if workload.seq_len > 0:
        batch = max(8, _ASSUMED_TOKENS // workload.seq_len)
    return (batch,), f"global batch: {batch} (assumed; give --global-batch)"
