"""Recommending: the clusters to consider, by default every priced machine; then the search among them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from forerun import wire
from forerun.advisor.answer import frameworks_note, with_count
from forerun.catalog import BYTES_PER_GIB, Catalog, Instance
from forerun.catalog.devices import KINDS
from forerun.catalog.frameworks import framework_note, framework_of, refuse_plan
from forerun.contracts import Predictor
from forerun.domain.hardware import Cluster
from forerun.domain.job import refuse_quantized, runs_quantized
from forerun.domain.objective import Objective
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnknownNameError, nearest_names
from forerun.launch.request import refused_plans, startable
from forerun.predictors.options import known_by
from forerun.search.batches import filled_batch, usual_batch
from forerun.units import format_bytes

LARGEST_DEVICES = 1_048_576
_MOST_NODES = 64  # of candidates that nobody named
_MOST_OWN = 8  # notes on machines of the user's catalogue
_BEYOND = 8
_CLOUDS = {"amazon": "aws", "oracle": "oci", "lambdalabs": "lambda"}  # by their makers' names
_LARGER_BATCHES = (4, 16)  # times an assumed one that misses a deadline
LEADING_COUNT = re.compile(r"^\d+x", re.IGNORECASE)
Search = Callable[..., Recommendation]  # of a list of clusters


def node_counts(devices_per_node: int, max_devices: int, most: int = 2**20) -> Iterator[int]:
    """Yield 1, 2, 4, 8 ... nodes, up to the largest cluster or number of nodes."""
    nodes = 1
    while nodes * devices_per_node <= max_devices and nodes <= most:
        yield nodes
        nodes *= 2


def candidate_clusters(
    catalog: Catalog, clusters: Sequence[str | Cluster] | None, max_devices: int,
    region: str | None = None, choice: MachineChoice | None = None, market: str = "on-demand",
) -> list[Cluster]:  # fmt: skip
    """Return the named candidates, or by default every accelerator machine that has a price.

    Raises:
        RequestError: malformed text, no candidates, an unknown name, or a limit out of range.
    """
    if not 1 <= max_devices <= LARGEST_DEVICES:
        found, advice = f"not between 1 and {LARGEST_DEVICES:,}", "give a number such as 512"
        raise RequestError(f"at most {max_devices} devices", found, advice)
    choice = choice or MachineChoice()
    if clusters is not None and (given := choice.given):
        found, advice = "named clusters say themselves what and where they are", "give one of them"
        raise RequestError(f"{given} and clusters together", found, advice)
    if clusters is None:
        candidates = [
            catalog.cluster(f"{count}x{machine.name}", region=machine.region)
            for machine in _default_machines(catalog, region, choice, market)
            for count in node_counts(machine.device_count, max_devices, _MOST_NODES)
        ]
    else:
        items = [clusters] if isinstance(clusters, str) else clusters
        candidates = [
            c for item in items for c in _named(catalog, item, max_devices, region, market)
        ]
    if not candidates:
        named = "the catalogue's machines" if clusters is None else ", ".join(map(str, clusters))
        raise RequestError(
            f"a recommendation over {named or 'no clusters'}",
            f"no candidate has a price{f' in {region}' if region else ''} and at most"
            f" {max_devices} devices",
            "raise --max-devices, choose another region, or name clusters with --clusters",
        )
    if market == "spot" and all(c.spot_dollars_per_hour is None for c in candidates):
        raise catalog.no_spot_price(candidates[0])
    return list({cluster.name + cluster.region: cluster for cluster in candidates}.values())


@dataclass(frozen=True)
class MachineChoice:
    """Which machines are looked at where no cluster is named; by default all with an accelerator.

    devices: ids, families (`h100`), makers or kinds (`gpu`). exclude: these, machines, providers or regions.
    min_ram: bytes of a machine's host. min_vcpus: of a machine. What a machine does not state it lacks.
    """

    providers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_ram: float = 0.0
    min_vcpus: float = 0.0

    @property
    def given(self) -> str:
        """The names of what is asked for."""
        return " and ".join(name.replace("_", " ") for name, value in vars(self).items() if value)

    def conditions(self, catalog: Catalog) -> Iterator[tuple[str, Callable[[Instance], bool]]]:
        """Yield what a machine must meet, in words and as a function. Raises UnknownNameError."""
        known = sorted({machine.provider for machine in catalog.instances})
        clouds = {_CLOUDS.get(name.lower(), name.lower()) for name in self.providers or known}
        for name in clouds.difference(known):
            raise UnknownNameError("provider", name, known, f"({', '.join(known)})")
        yield f"providers {', '.join(self.providers)}", lambda m: m.provider in clouds
        wanted = set().union(*(devices_named(catalog, name) for name in self.devices))
        yield (
            f"devices {', '.join(self.devices) or 'with an accelerator'}",
            lambda m: m.device in wanted if self.devices else _has_accelerator(catalog, m),
        )
        for name in self.exclude:
            yield f"exclude {name}", _other_than(catalog, name)
        ram, cpus = format_bytes(self.min_ram), f"{self.min_vcpus:g}"
        yield f"min ram {ram}", lambda m: m.memory_gib * BYTES_PER_GIB >= self.min_ram
        yield f"min vcpus {cpus}", lambda m: m.vcpus >= self.min_vcpus


def devices_named(
    catalog: Catalog, name: str, kind: str = "device", others: Sequence[str] = ()
) -> set[str]:
    """Return the ids of the devices that a kind, maker, generation, family, id or alias means.

    Raises:
        UnknownNameError: none; `others` are names that are known too.
    """
    plain = name.lower()
    machines = {m.device for m in catalog.instances if m.device.startswith("cpu")}
    found = {
        d.id for d in catalog.devices.values()
        if plain in (d.kind, d.vendor, d.generation, d.id) or d.id.startswith(f"{plain}-")
    } | (machines if plain == "cpu" else machines & {plain})  # fmt: skip
    if found:
        return found
    try:
        return {catalog.device(name)[0].id}
    except UnknownNameError as error:
        known = [*others, *KINDS, *catalog.labels()]
        near = [*error.nearest, *nearest_names(name, [*others, *KINDS])]
        hint = "(see `forerun devices` and `forerun instances`)"
        raise UnknownNameError(kind, name, near or known, hint) from None


def _other_than(catalog: Catalog, name: str) -> Callable[[Instance], bool]:
    plain = _CLOUDS.get(name.lower(), name.lower())

    def labels(machine: Instance) -> tuple[str, ...]:
        words = (machine.provider, machine.region, machine.name, machine.type)
        return tuple(word.lower() for word in words)

    if any(plain in labels(machine) for machine in catalog.instances):
        return lambda machine: plain not in labels(machine)
    others = {
        word for m in catalog.instances for word in (m.provider, m.region, m.name, m.type) if word
    }
    out = devices_named(catalog, name, "device, machine, provider or region", sorted(others))
    return lambda machine: machine.device not in out


def _default_machines(
    catalog: Catalog, region: str | None, choice: MachineChoice, market: str
) -> list[Instance]:
    """Return the cheapest machine of each kind: same device and number of them, same links."""
    regions = sorted({machine.region for machine in catalog.instances} - {""})
    if region and region not in regions:
        raise UnknownNameError("region", region, regions, "(`forerun instances h100` lists some)")
    prices = ("dollars_per_hour", "spot_dollars_per_hour")
    counted = {"on-demand": prices[:1], "spot": prices[1:], "any": prices}[market]
    machines = [
        m for m in catalog.instances
        if not m.marketplace and region in (None, m.region) and any(getattr(m, p) for p in counted)
    ]  # fmt: skip
    some, removed = len(machines), []
    for words, meets in choice.conditions(catalog):
        left = [machine for machine in machines if meets(machine)]
        if len(left) < len(machines):
            removed.append(f"{words}, {len(left)} left")
        machines = left
    if some and not machines:
        offers = [m for m in catalog.instances if m.marketplace]
        for _, meets in choice.conditions(catalog):
            offers = [machine for machine in offers if meets(machine)]
        named = (
            f" (offers of a marketplace, such as {offers[0].name}, are not searched)"
            if offers
            else ""
        )
        raise RequestError(
            "a recommendation over the catalogue's machines",
            f"of {some} machines with a{' spot' * (market == 'spot')} price{f' in {region}' if region else ''}:"
            f" {'; '.join(removed)}",
            f"relax one of these, or name clusters with --clusters{named}",
        )  # fmt: skip
    best: dict[tuple[object, ...], tuple[float, Instance]] = {}
    for machine in machines:
        for name in counted:
            kind = (machine.device, machine.device_count, machine.nic_bytes_per_second,
                    machine.nic_kind, machine.link_bytes_per_second, name)  # fmt: skip
            price = getattr(machine, name)
            if price and price < best.get(kind, (math.inf,))[0]:
                best[kind] = price, machine
    return list(dict.fromkeys(machine for _, machine in best.values()))


def _has_accelerator(catalog: Catalog, machine: Instance) -> bool:
    try:
        return not machine.device.startswith("cpu") and (
            catalog.device(machine.device)[0].kind != "cpu"
        )
    except UnknownNameError:
        return False


def _named(
    catalog: Catalog, item: str | Cluster, max_devices: int, region: str | None, market: str
) -> list[Cluster]:
    if isinstance(item, Cluster):
        return [item]
    text = item.strip()
    name = text.partition("@")[0]
    if LEADING_COUNT.match(text) or text.rpartition(":")[2].isdigit():
        sizes = [text]
    elif catalog.is_instance(name):
        machine = catalog.instance(text, region or "", market)[0]
        sizes = [f"{nodes}x{text}" for nodes in node_counts(machine.device_count, max_devices)]
    else:
        try:
            usual = max(catalog.device(text)[0].devices_per_node, 1)
        except UnknownNameError as error:
            known = sorted({machine.name for machine in catalog.instances})
            if ":" in text:
                raise UnknownNameError("instance", name, known) from None
            hint = "(see `forerun devices` and `forerun instances`)"
            near = [*error.nearest, *nearest_names(text, known)]
            raise UnknownNameError("device or instance", text, near or known, hint) from None
        sizes = [f"1x{n}x{text}" for n in node_counts(1, min(max_devices, usual - 1))]
        sizes += [f"{nodes}x{usual}x{text}" for nodes in node_counts(usual, max_devices)]
    return [catalog.cluster(size, region=region, market=market) for size in sizes]


def recommend(
    predictor: Predictor, catalog: Catalog, workload: Workload, objective: Objective,
    length: tuple[Length, tuple[str, ...]], fixed: Mapping[str, Any],
    global_batches: Sequence[int] | None, clusters: Sequence[str | Cluster] | None,
    max_devices: int, region: str | None = None, choice: MachineChoice | None = None,
    energy: bool = False, emit: str = "",
) -> Recommendation:  # fmt: skip
    """Return the search's recommendation; where nothing qualifies, with what larger clusters offer.

    Raises:
        RequestError: as `candidate_clusters`; a batch that cannot be; `emit`, a launch target, that starts none.
    """
    found_clusters = candidate_clusters(
        catalog, clusters, max_devices, region, choice, objective.market
    )
    if (software := framework_of(workload.framework)) is not None:
        usable = [
            c for c in found_clusters if not software.refusal({"device": c.device.generation})
        ]
        if not usable:
            refuse_plan(workload.framework, {"device": found_clusters[0].device.generation})
        found_clusters = usable
    able = [c for c in found_clusters if runs_quantized(workload, c)]
    if not able:
        refuse_quantized(workload, found_clusters[0])
    found_clusters = startable(emit, workload, able) if emit else able
    stated = bool(global_batches or fixed.get("global_batch"))
    batches, note = _batches(workload, fixed, global_batches, found_clusters)
    workload.steps(length[0], batches[0])  # a wrong length is found before the search
    from forerun.search.recommending import recommend as search_plans

    search: Search = partial(
        search_plans, workload, objective=objective, length=length[0], predictor=predictor,
        fixed={name: value for name, value in fixed.items() if name != "global_batch"},
        global_batches=batches, filled=not stated, energy=energy or objective.aim == "energy",
        lacking=partial(refused_plans, emit) if emit else None,
    )  # fmt: skip
    found = search(found_clusters)
    if found.best is None and not stated and objective.deadline_seconds is not None:
        found = _with_batches(found, batches[0], partial(search, found_clusters, near=False))
    open_ended = clusters is None or any(
        isinstance(item, str) and not LEADING_COUNT.match(item.strip()) for item in clusters
    )
    if found.best is None and open_ended and not found.not_searched:
        found = _with_larger(catalog, found, max_devices, region, search)
    notes = [*workload.facts, *length[1], note]
    shown = next(filter(None, (found.best, *found.near_misses)), None)
    if shown is not None and shown.estimate.forecast is not None:
        notes += filter(None, [frameworks_note(shown.job, shown.estimate.forecast)])
    notes += filter(None, [framework_note(workload.framework)])
    own = _own_notes(catalog, max_devices) if clusters is None else ()
    assumptions = tuple(dict.fromkeys((*notes, *found.assumptions)))
    return replace(found, assumptions=assumptions, own_machines=tuple(islice(own, _MOST_OWN)))


def _own_notes(catalog: Catalog, max_devices: int) -> Iterator[str]:
    for machine in catalog.user_instances:
        if machine.device_count > max_devices:
            yield f"{machine.name} was not considered: it has more than {max_devices:,} devices"
        elif not machine.priced:
            yield f"{machine.name} was not considered: it has no price"
        elif not _has_accelerator(catalog, machine):
            yield f"{machine.name} was not considered: {machine.device} is no known accelerator"
    rented = {machine.device for machine in catalog.instances}
    for device in {row.get("id"): row for row in catalog.user_devices}:
        if device not in rented:
            yield f"{device} was not considered: no machine has it; name it with --clusters"


def _with_batches(
    found: Recommendation, usual: int, search: Callable[..., Recommendation]
) -> Recommendation:
    for times in _LARGER_BATCHES:
        option = search(global_batches=(usual * times,)).best
        if option is not None:
            batch = option.job.plan.global_batch
            words = f"{batch:,} samples; it may need more of them to the same quality"
            why = {f"larger than the assumed global batch of {usual:,}": words}
            return replace(
                found, near_misses=(replace(option, misses=why, beaten={}), *found.near_misses),
                not_searched=f"with --global-batch {batch}, {option.job.cluster.name} qualifies",
            )  # fmt: skip
    return found


def _with_larger(
    catalog: Catalog, found: Recommendation, max_devices: int, region: str | None, search: Search
) -> Recommendation:
    note = lead = f"clusters above --max-devices {max_devices:,} were not looked at"
    kinds: dict[str, Cluster] = {}
    if found.objective.deadline_seconds is not None or not found.fitting:
        for cluster in (option.job.cluster for option in found.near_misses):
            if cluster.instance_type or cluster.devices_per_node >= cluster.device.devices_per_node:
                kinds.setdefault(LEADING_COUNT.sub("", cluster.name), cluster)
    beyond = [
        catalog.cluster(
            f"{nodes}x{text}", region=cluster.region or region, market=found.objective.market
        )
        for text, cluster in kinds.items()
        for nodes in node_counts(
            cluster.devices_per_node, min(max_devices * _BEYOND, LARGEST_DEVICES)
        )
        if nodes * cluster.devices_per_node > max_devices
    ]
    option = None
    if beyond:
        with suppress(RequestError):  # fixed fields that only the smaller clusters can take
            option = search(beyond, near=False).best
            largest = max(cluster.devices for cluster in beyond)
            note += f"; of the nearest kinds, up to {largest:,} devices, none qualifies"
    if option is None:
        return replace(found, not_searched=note)
    size = option.job.cluster.devices
    why = {"larger than --max-devices": f"{size:,} devices, and {max_devices:,} are allowed"}
    return replace(
        found, near_misses=(replace(option, misses=why, beaten={}), *found.near_misses),
        not_searched=f"{lead}: with --max-devices {size}, {option.job.cluster.name} qualifies",
    )  # fmt: skip


def _batches(
    workload: Workload, fixed: Mapping[str, Any], given: Sequence[int] | None,
    clusters: Sequence[Cluster],
) -> tuple[tuple[int, ...], str]:  # fmt: skip
    counts = [with_count(dict(fixed), "global_batch", b)["global_batch"] for b in given or ()]
    if batches := tuple(dict.fromkeys(counts or filter(None, [fixed.get("global_batch")]))):
        return batches, f"global batch: {', '.join(map(str, batches))} (given)"
    batch, why = usual_batch(workload)
    uneven = any(filled_batch(batch, cluster.devices) != batch for cluster in clusters)
    share = "; some clusters round it up to what their devices share" if uneven else ""
    return (batch,), f"global batch: {batch} ({why}){share}"


def recommendation_json(predictor: Predictor, name: str, found: Recommendation) -> wire.Json:
    """Return a recommendation for the workload of a name in the wire's shape, with its predictor's constants."""
    about = {"schema": wire.SCHEMA, "kind": "recommendation", "workload": name}
    return {**about, **known_by(predictor), **wire.recommendation_to_wire(found)}
