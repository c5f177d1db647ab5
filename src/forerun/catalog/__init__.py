"""The catalogue: one door from labels and cluster texts to devices, machines, prices and clusters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from forerun.catalog.devices import (
    BITS_PER_BYTE,
    DeviceEntry,
    Instance,
    entry_of,
    host_watts,
    index_of,
    open_labels,
    packaged_instances,
    packaged_rows,
    resolve,
)
from forerun.catalog.rows import DATA, NumberRange, Row, fact_of, read_csv
from forerun.domain.hardware import Cluster, Device, Link
from forerun.errors import RequestError, UnknownNameError, nearest_names
from forerun.units import GIGA

__all__ = ["Catalog", "Instance", "load_catalog", "prices"]

# Gaudi joins its devices by RDMA over Ethernet ports of its own, hence infiniband there.
_IN_NODE_KIND = {"nvidia": "nvlink", "amd": "xgmi", "google": "ici", "intel": "infiniband"}
# At or above this rate a device (25 Gbit/s), clusters of accelerators usually have RDMA.
_RDMA_BYTES_PER_SECOND = 3.125 * GIGA
# At or above this rate a node (100 Gbit/s), a network of accelerators that states no protocol is RDMA over Ethernet.
_RDMA_NODE_BYTES_PER_SECOND = 12.5 * GIGA


@lru_cache(maxsize=1)
def _latencies() -> dict[str, float]:
    rows = read_csv(DATA / "links.csv")
    return {row.get("kind"): float(row.get("latency_seconds")) for row in rows}


def link_of(kind: str, bytes_per_second: float) -> Link:
    """Return a link of this kind and nominal rate, with the usual latency of its kind."""
    return Link(kind, _latencies()[kind], bytes_per_second)


def in_node_kind(device: Device) -> str:
    """Return the kind of the device's own in-node interconnect (not PCIe)."""
    return _IN_NODE_KIND.get(device.vendor.lower(), "unknown")


def intra_link(device: Device, bytes_per_second: float = 0.0) -> Link:
    """Return the link inside a node: the given rate, else the device's own, else PCIe; of CPUs the memory."""
    if not bytes_per_second and (found := measured_link(device, "intra")):
        return found
    if device.kind == "cpu":
        return link_of("memory", bytes_per_second or device.memory_bytes_per_second)
    rate = bytes_per_second or device.link_bytes_per_second
    return link_of(in_node_kind(device), rate) if rate else pcie_link(device)


def measured_link(device: Device, place: str) -> Link | None:
    """Return the link that a probe measured, `intra` or `inter` nodes; None where it did not."""
    links = device.measured.links if device.measured is not None else {}
    if place not in links:
        return None
    return Link("measured", links[place].latency_seconds, links[place].bytes_per_second)


def pcie_link(device: Device, bytes_per_second: float = 0.0) -> Link:
    """Return the link through PCIe, at most as fast as the device's own slot."""
    own = device.host_bytes_per_second
    return link_of("pcie", min(bytes_per_second, own) if bytes_per_second else own)


def in_fabric(entry: DeviceEntry, nodes: int, devices_per_node: int) -> bool:
    """Whether the in-node interconnect reaches all devices of the cluster (NVL72, a TPU slice)."""
    return 0 < nodes * devices_per_node <= entry.fabric_devices


def inter_link(entry: DeviceEntry, nodes: int, devices_per_node: int) -> Link:
    """Return the usual link between nodes of this device; more devices than usual share a node's adapters."""
    device = entry.device
    found = measured_link(device, "inter")
    if found is not None:
        share = min(1.0, device.devices_per_node / devices_per_node)
        return replace(found, bytes_per_second=found.bytes_per_second * share)
    if in_fabric(entry, nodes, devices_per_node):
        return intra_link(device)
    rate = device.node_bytes_per_second
    if entry.fabric_devices and entry.fabric_out_bytes_per_second:
        rate = entry.fabric_out_bytes_per_second
    rate *= min(1.0, device.devices_per_node / devices_per_node)
    rdma = device.kind in ("gpu", "accelerator") and rate >= _RDMA_BYTES_PER_SECOND
    kind = "infiniband" if rdma else "ethernet"
    return link_of(_protocol(kind, rate * devices_per_node, device), rate)


def _protocol(kind: str, node_rate: float, device: Device) -> str:
    fast = kind == "ethernet" and node_rate >= _RDMA_NODE_BYTES_PER_SECOND
    return "roce" if fast and device.kind != "cpu" else kind


_RATE = re.compile(
    r"(?:(?P<count>[0-9]{1,4})\s*x\s*)?(?P<link>nvlink\s*)?"
    r"(?P<rate>[0-9]{1,6}(?:\.[0-9]{1,6})?)\s*"
    r"(?P<scale>[kmgt])(?:iga)?(?P<unit>bytes?|bits?|bps|be|b|t|)(?![a-z])",
    re.IGNORECASE,
)
_LINKS_IN_WORDS = re.compile(r"\b([0-9]{1,3})\s*x\s*nvlink", re.IGNORECASE)
_PCIE_GENERATION = re.compile(r"(?:gen\s*|pcie\s*)([3-6])(?:\.0)?\b", re.IGNORECASE)
# PCIe x16, nominal, per direction.
_PCIE_GB_PER_S = {"3": 16.0, "4": 32.0, "5": 64.0, "6": 128.0}
_IN_NODE = ("nvlink", "nvswitch", "xgmi", "infinity fabric", "ipulink", "ipu-link", "hccs",
            "pcie", "upi", "qpi", "tpu", "ici", "neuronlink")  # fmt: skip
# Gbit/s of a port of four lanes.
_INFINIBAND_GBIT = {"qdr": 40, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
_NETWORK = ("infiniband", "ethernet", "roce", "rdma", "efa", "ib", "gbe", "slingshot",
            *_INFINIBAND_GBIT)  # fmt: skip
_USUAL_ETHERNET_GBIT = 25.0  # of a node, where a text names Ethernet alone
_BELOW_ZERO = re.compile(r"(?:^|\s)[-\u2212][0-9.]")
_SCALE = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Text that says nothing of the interconnect.
_SILENT = frozenset(("", "custom", "todo", "n/a", "na", "none", "unknown", "nan", "-", "tbd"))


def links_from_text(
    text: str, entry: DeviceEntry, nodes: int, devices_per_node: int
) -> tuple[Link, Link, tuple[str, ...]]:
    """Return the links in and between nodes that a text describes, and what had to be assumed.

    What it leaves out is the device's usual. Network rates are of a node unless the text says per GPU; in-node rates in GB/s are sums of
    both directions, as vendors quote them, unless they are written as a count of links.
    """
    intra, inter = intra_link(entry.device), inter_link(entry, nodes, devices_per_node)
    text = str(text or "").strip()
    if text.lower() in _SILENT:
        note = (
            f"the interconnect {text!r} names no link; the usual links of {entry.device.id} serve"
        )
        return intra, inter, (note,) if text else ()
    if _BELOW_ZERO.search(text):
        note = f"the interconnect {text!r} has a rate below zero; the usual links of {entry.device.id} serve"
        return intra, inter, (note,)
    parts: dict[str, list[str]] = {"in_node": [], "network": []}
    last = ""
    for part in re.split(r"[+;,&]|\band\b", text):
        words = part.lower()
        if _speaks_of(words, _IN_NODE):
            last = "in_node"
        elif _speaks_of(words, _NETWORK) or (not last and _RATE.search(part)):
            last = "network"
        if last:
            parts[last].append(part.strip())
    in_node, network = ", ".join(parts["in_node"]), ", ".join(parts["network"])
    warnings: list[str] = []
    if in_node:
        intra = _intra_from(in_node, entry, warnings)
    # `24x 100Gb/s Ethernet` of a Gaudi counts the accelerator's own ports, and the catalogue's
    # rates hold both shares of those already.
    own_ports = entry.device.vendor == "intel" and re.search(r"[0-9]\s*x", network)
    if network and not own_ports:
        inter = _inter_from(network, inter, devices_per_node, entry.device, warnings)
    if not in_node and not network:
        warnings.append(
            f"the interconnect {text!r} is not understood; the usual links of "
            f"{entry.device.id} serve"
        )
    return intra, inter, tuple(warnings)


def _speaks_of(words: str, names: tuple[str, ...]) -> bool:
    """Whether one of the names begins a word in the text, or stands behind a count (18xNVLink)."""
    return any(re.search(rf"(?:\b|[0-9]x?){re.escape(name)}", words) for name in names)


def _bytes_per_second(match: re.Match[str], in_node: bool) -> float:
    """Return a rate; `GB` is bytes and `Gb` bits, in small letters bytes inside a node and bits on a network."""
    scale, unit = match["scale"], match["unit"]
    if unit.lower() in ("b", "bps"):
        shouted = unit == "BPS" and not in_node
        quiet = scale.islower() and unit.islower()
        is_bytes = (unit[0] == "B" and not shouted) or (quiet and in_node)
    else:
        is_bytes = unit.lower() in ("byte", "bytes", "t")
    rate = float(match["rate"]) * _SCALE[scale.lower()]
    return rate if is_bytes else rate / BITS_PER_BYTE


def _intra_from(text: str, entry: DeviceEntry, warnings: list[str]) -> Link:
    device = entry.device
    words = text.lower()
    # UPI and QPI join the host's processors; the devices keep their own link.
    if device.kind == "cpu" or re.search(r"\b[uq]pi\b", words):
        return intra_link(device)
    if "pcie" in words and "nvlink" not in words:
        generation = _PCIE_GENERATION.search(text)
        return pcie_link(device, _PCIE_GB_PER_S[generation[1]] * GIGA if generation else 0.0)
    rate = 0.0
    match = _RATE.search(text)
    if match is not None and match["unit"]:  # 80G may be its memory
        count = match["count"] or (m[1] if (m := _LINKS_IN_WORDS.search(text)) else None)
        one = _bytes_per_second(match, in_node=True)
        rate = one * int(count) if count else one / 2
    if rate:
        return link_of(in_node_kind(device), rate)
    if not device.link_bytes_per_second:
        warnings.append(
            f"the interconnect {text!r} gives no rate, and {device.id} has no in-node link of its "
            "own beyond pairs; PCIe serves"
        )
    return intra_link(device)


def _inter_from(
    text: str, usual: Link, devices_per_node: int, device: Device, warnings: list[str]
) -> Link:
    words = text.lower()
    kind = "ethernet"
    if "efa" in words:
        kind = "efa"
    elif re.search(rf"infiniband|\bib\b|roce|rdma|slingshot|{'|'.join(_INFINIBAND_GBIT)}", words):
        kind = "infiniband"
    match = _RATE.search(text)
    counted = re.search(r"\b([0-9]{1,4})\s*x\s*(?=\S)", words)
    if match:
        rate = _bytes_per_second(match, in_node=False) * int(match["count"] or 1)
    else:  # `EFA 3200`, `8x NDR`
        # A rate that is sold, behind a space or a generation: not the 11 of Slingshot, nor an A100.
        plain = re.search(
            r"(?:^|\s|[ehnqx]dr-?)(10|25|40|50|56|100|200|400|800|1600|3200)(?![\w.])",
            words[counted.end() if counted else 0 :],
        )
        port = next((rate for name, rate in _INFINIBAND_GBIT.items() if name in words), 0)
        rate = float(plain[1] if plain else port) * (int(counted[1]) if counted else 1)
        rate *= GIGA / BITS_PER_BYTE
    if not rate and "gigabit ethernet" in words:
        rate = GIGA / BITS_PER_BYTE
    if not rate and kind == "ethernet" and usual.kind in ("infiniband", "efa"):
        rate = _USUAL_ETHERNET_GBIT * GIGA / BITS_PER_BYTE
    if not rate:
        warnings.append(f"the interconnect {text!r} gives no rate; the usual one serves")
        named = replace(usual, kind=kind, latency_seconds=_latencies()[kind])
        return usual if kind == "ethernet" else named
    whole = re.search(r"\b(?:per|a)\s*(?:node|server|host|machine)", words)
    per_device = re.search(r"(?:per|/|a)\s*(?:gpu|device|accelerator|chip|rank)\b", words)
    node = rate * devices_per_node if per_device else rate
    if not (whole or per_device or counted) and (kind != "ethernet" or not match):
        warnings.append(
            f"the interconnect {text!r} is read as {rate * BITS_PER_BYTE / GIGA:g} Gb/s of a node;"
            " write `per GPU`, or a count of ports (8x), where each has so much"
        )
    if not re.search(r"\btcp\b", words):
        kind = _protocol(kind, node, device)
    return link_of(kind, node / devices_per_node)


# A machine whose network has less than this share of the rate that the cluster is predicted with
# is not the machine that was asked for, where there are several nodes.
_ENOUGH_NETWORK = 0.4


@dataclass(frozen=True, slots=True)
class Offer:
    """The machine whose price a node of plain devices has; share: the node's devices over its own."""

    instance: Instance
    share: float
    source: str
    warnings: tuple[str, ...]


def choose_offer(
    instances: Iterable[Instance], device_id: str, devices_per_node: int,
    network_bytes_per_second: float = 0.0, region: str = "", market: str = "on-demand",
) -> Offer | None:  # fmt: skip
    """Return the cheapest offer of this device on a market, or None where nobody prices it there.

    Preferred: machines with this number of devices; list prices over marketplaces; a network near
    `network_bytes_per_second` a device (0: any); the price of a device.
    """

    def lacks_network(i: Instance) -> bool:
        return i.nic_bytes_per_second / i.device_count < _ENOUGH_NETWORK * network_bytes_per_second

    def price(i: Instance) -> float | None:
        return i.spot_dollars_per_hour if market == "spot" else i.dollars_per_hour

    offers = [
        i for i in instances
        if i.device == device_id and price(i) is not None
        and (not region or i.region.lower() == region.lower())
    ]  # fmt: skip
    best = min(
        offers,
        key=lambda i: (
            i.device_count != devices_per_node, i.marketplace, lacks_network(i),
            (price(i) or 0.0) / i.device_count, i.name, i.region,
        ),
        default=None,
    )  # fmt: skip
    if best is None:
        return None
    source, warnings = best.price_source, []
    if best.device_count != devices_per_node:
        source += "; scaled by the number of devices, as no machine has that number"
        warnings.append(
            f"no priced machine has that many of the device; the price is scaled from "
            f"{best.name} with {best.device_count}"
        )
    if best.marketplace:
        source += "; one offer of a marketplace"
    if lacks_network(best):
        gbit_per_second = best.nic_bytes_per_second * BITS_PER_BYTE / GIGA
        warnings.append(
            f"the price is of {best.name}, whose network has {gbit_per_second:g} Gbit/s a node; the"
            " prediction counts on a faster one"
        )
    return Offer(best, devices_per_node / best.device_count, source, tuple(warnings))


MAX_DEVICES = 1_000_000
FORMS = (
    "write NODESxDEVICESxDEVICE (4x8xh100-sxm-80gb), DEVICESxDEVICE for one node "
    "(8xh100-sxm-80gb), NODESxINSTANCE (4xaws:p5.48xlarge@us-east-1) or DEVICE:COUNT (H100:8)"
)
_COUNT = re.compile(r"\s*([+-]?[0-9]+)\s*[x\u00d7*]\s*(?=\S)", re.IGNORECASE)
_SKYPILOT = re.compile(r"(.+):\s*([+-]?[0-9]+)")


@dataclass(frozen=True, slots=True)
class ClusterText:
    """What a cluster's text asks for: nodes, devices in each (None: an instance's own), a name."""

    nodes: int
    devices_per_node: int | None
    name: str
    region: str = ""


def parse_cluster(text: str, is_instance: Callable[[str], bool]) -> ClusterText:
    """Return the counts and the name in a cluster's text (see FORMS). Raises RequestError.

    `is_instance` knows machine types, whose names may begin with counts themselves (`8x_H100`).
    """
    raw = str(text).strip()
    if not raw or len(raw) > 300:
        raise RequestError(f"cluster {raw[:60]!r}", "it is not a cluster's text", FORMS)
    body, _, region = raw.partition("@")
    rest, region, counts = body.strip(), region.strip(), list[int]()
    while not is_instance(rest) and (match := _COUNT.match(rest)):
        counts.append(int(match[1]))
        rest = rest[match.end() :].strip()
    if is_instance(rest):
        if len(counts) > 1:
            raise RequestError(
                f"cluster {raw!r}", f"{rest} already says how many devices a node has",
                f"write NODESx{rest}",
            )  # fmt: skip
        return ClusterText(counts[0] if counts else 1, None, rest, region)
    if (match := _SKYPILOT.fullmatch(rest)) and len(counts) < 2:
        rest, counts = match[1].strip(), [*(counts or [1]), int(match[2])]
    if len(counts) > 2 or not rest or not re.search(r"[^\W_]", rest):
        raise RequestError(f"cluster {raw!r}", "it is not a cluster's text", FORMS)
    if rest.isdecimal():
        raise RequestError(f"cluster {raw!r}", "it has counts and names no device", FORMS)
    nodes, per_node = [1, 1, *counts][-2:] if len(counts) != 1 else (1, counts[0])
    check_counts(nodes, per_node, f"cluster {raw!r}")
    return ClusterText(nodes, per_node, rest, region)


def check_counts(nodes: int, devices_per_node: int, asked: str) -> None:
    """Refuse counts below one, and clusters above a million devices."""
    if nodes < 1 or devices_per_node < 1:
        raise RequestError(
            asked, f"it has {nodes} nodes of {devices_per_node} devices",
            "give at least one node and one device in it",
        )  # fmt: skip
    if nodes * devices_per_node > MAX_DEVICES:
        raise RequestError(
            asked, f"it has {nodes * devices_per_node:,} devices",
            f"give at most {MAX_DEVICES:,} devices",
        )  # fmt: skip


BYTES_PER_GIB = 2**30


def scaled_cpu(unit: Device, instance: Instance) -> Device:
    """Return a machine as a device: its vCPUs times the figures of one vCPU, its own memory."""
    vcpus = max(instance.vcpus, 1.0)
    facts = {
        **dict.fromkeys(unit.facts, fact_of("derived-vcpu")),
        "memory_bytes": fact_of(instance.source), "node_bytes_per_second": instance.nic_fact,
    }  # fmt: skip
    memory_bytes = instance.memory_gib * BYTES_PER_GIB or unit.memory_bytes * vcpus
    return replace(
        unit, id=instance.device, name=f"{instance.name} ({vcpus:g} vCPU)",
        memory_bytes=memory_bytes, memory_bytes_per_second=unit.memory_bytes_per_second * vcpus,
        peak_flops={name: rate * vcpus for name, rate in unit.peak_flops.items()},
        watts=unit.watts * vcpus, host_bytes_per_second=unit.host_bytes_per_second * vcpus,
        node_bytes_per_second=instance.nic_bytes_per_second, facts=facts,
    )  # fmt: skip


_CARBON = NumberRange(0, 2, "kg CO2 a kWh")


@lru_cache(maxsize=1)
def _carbon() -> dict[tuple[str, str], float]:
    return {
        (row.get("provider"), row.get("region").lower()): row.number("carbon_kg_per_kwh", _CARBON)
        for row in read_csv(DATA / "regions.csv")
    }


def carbon_kg_per_kwh(provider: str, region: str) -> float | None:
    """Return kg CO2 a kWh in a region, rounded and unverified; None where not known."""
    return _carbon().get((provider, region.lower()), _carbon().get((provider, "*")))


_BILLED = NumberRange(0, 1e7, "seconds")
_USUALLY_BILLED = 60.0  # of a provider that is not listed, as of most that are


@lru_cache(maxsize=1)
def _billing() -> dict[tuple[str, str], float]:
    return {
        (row.get("provider"), row.get("types")): row.number("least_billed_seconds", _BILLED)
        for row in read_csv(DATA / "billing.csv")
    }


def least_billed_seconds(provider: str, machine_type: str) -> float:
    """Return what a cloud bills of a machine at least; the usual minute where it is not listed."""
    kind = f"{machine_type.partition('.')[0]}.*"
    return _billing().get((provider, kind), _billing().get((provider, "*"), _USUALLY_BILLED))


_ADD_A_DEVICE = (
    "(to add your own, give --catalog a YAML or CSV file with eight numbers: memory_gb, "
    "memory_gb_per_s, fp32_tflops, fp16_tflops, watts, link_gb_per_s, host_gb_per_s, devices_per_node)"
)


class Catalog:
    """Devices and machines by name, packaged ones and a user's own, which override them; read when needed."""

    def __init__(
        self, user_devices: Sequence[Row] = (), user_instances: Sequence[Instance] = (),
        warnings: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.user_devices = tuple(user_devices)
        self.user_instances = tuple(user_instances)
        self.warnings = tuple(warnings)
        self._entries: dict[str, DeviceEntry] = {}
        self._offers: dict[tuple[str, int, float, str, str], Offer | None] = {}

    # Devices

    @cached_property
    def _rows(self) -> dict[str, Row]:
        return {**packaged_rows(), **{row.get("id"): row for row in self.user_devices}}

    @cached_property
    def _index(self) -> dict[str, str]:
        return index_of(self._rows.values())

    def _entry(self, device_id: str) -> DeviceEntry:
        if device_id not in self._entries:
            self._entries[device_id] = entry_of(self._rows[device_id])
        return self._entries[device_id]

    def device(self, label: str) -> tuple[Device, tuple[str, ...]]:
        """Return the device that a label means, and warnings of what it left open. Raises UnknownNameError."""
        entry, warnings = self._find(str(label))
        return entry.device, warnings

    def _find(self, label: str) -> tuple[DeviceEntry, tuple[str, ...]]:
        found = resolve(label, self._index)
        if found is not None:
            entry = self._entry(found[0])
            return entry, (*found[1], *entry.warnings)
        wanted = label.strip().lower()
        if wanted.startswith("cpu-"):
            for instance in self.instances:
                if instance.device == wanted:
                    return DeviceEntry(scaled_cpu(self._entry("cpu-vcpu").device, instance)), ()
        near = (resolve(name, self._index) for name in nearest_names(label[:80], self.labels()))
        ids = dict.fromkeys(device[0] for device in near if device is not None)
        raise UnknownNameError("device", label[:80], self._rows, _ADD_A_DEVICE, list(ids))

    def labels(self) -> list[str]:
        """Return every id, alias and open label that the catalogue answers to."""
        aliases = [a for entry in self.devices.values() for a in entry.aliases]
        return [*self._rows, *aliases, *open_labels()]

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """All devices by id."""
        return {device_id: self._entry(device_id).device for device_id in self._rows}

    # Machines

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """All machines, one for each provider, type and region; a user's row replaces ours."""
        rows = {
            (i.provider, i.type, i.region): i for i in (*packaged_instances(), *self.user_instances)
        }
        return tuple(rows.values())

    @cached_property
    def _instances_by_name(self) -> dict[str, list[Instance]]:
        by_name: dict[str, list[Instance]] = {}
        for instance in self.instances:
            by_name.setdefault(instance.type.lower(), []).append(instance)
            by_name.setdefault(instance.name.lower(), []).append(instance)
        return by_name

    def instance(
        self, text: str, region: str = "", market: str = "on-demand"
    ) -> tuple[Instance, tuple[str, ...]]:
        """Return the machine that a text such as `aws:p5.48xlarge@us-east-1` names. Raises RequestError.

        With no region it is the cheapest one on the market, and a warning says so.
        """
        name, _, in_text = str(text).strip().partition("@")
        name, region = name.strip(), in_text.strip() or region
        found = self._instances_by_name.get(name.lower())
        if not found:
            raise UnknownNameError("instance", name[:80], sorted({i.name for i in self.instances}))
        providers = sorted({i.provider for i in found})
        if len(providers) > 1:
            raise RequestError(
                f"instance {name!r}", f"{', '.join(providers)} have a machine of that type",
                f"write {providers[0]}:{name}",
            )  # fmt: skip
        if region:
            regions = {i.region.lower(): i for i in found}
            if region.lower() not in regions:
                known = sorted(i.region for i in found)
                raise UnknownNameError(
                    "region", region[:80], known, f"({name} is in {', '.join(known)})"
                )
            return regions[region.lower()], ()
        # The lowest on-demand price, else the lowest spot price.
        order = -1 if market == "spot" else 1
        best = min(found, key=lambda i: (prices(i)[::order], i.region))
        warning = f"{best.name}: no region given; the cheapest one known, {best.region}, is taken"
        return best, (warning,) if len(found) > 1 else ()

    def no_spot_price(self, cluster: Cluster, most: int = 3) -> RequestError:
        """Return the error for a cluster without a spot price, with the cheapest machines of its device that have one.

        Where none of the device has, those of its generation.
        """
        generation = cluster.device.generation
        alike = {d.id for d in self.devices.values() if d.generation == generation}
        priced = [
            (i.device != cluster.device.id, i.marketplace, i.spot_dollars_per_hour / i.device_count,
             f"{i.name}@{i.region} (${i.spot_dollars_per_hour:.2f}/h with {i.device_count} {i.device})")
            for i in self.instances
            if i.device in (*alike, cluster.device.id) and i.spot_dollars_per_hour is not None
        ]  # fmt: skip
        near = [offer for offer in sorted(priced) if offer[0] == min(priced)[0]][:most]
        listed = f"; spot prices are listed for {', '.join(offer[-1] for offer in near)}"
        return RequestError(
            f"spot prices of {cluster.name}", f"no spot price is known{listed if near else ''}",
            f"use --market on-demand{', or name one of these machines' if near else ''}",
        )  # fmt: skip

    @cached_property
    def _regions(self) -> frozenset[str]:
        return frozenset(instance.region for instance in self.instances)

    def is_instance(self, name: str) -> bool:
        """Whether this is a machine's name, `TYPE` or `PROVIDER:TYPE`, without a region."""
        return name.strip().lower() in self._instances_by_name

    # Clusters

    def cluster(
        self, text: str, *, region: str | None = None, price: float | None = None,
        market: str = "on-demand",
    ) -> Cluster:  # fmt: skip
        """Return the cluster of a text such as `4x8xh100-sxm-80gb` or `4xaws:p5.48xlarge`. Raises RequestError.

        region: where the text has none. price: dollars an hour for the whole, instead of the catalogue's.
        market: on which the cheapest machine is looked for.
        """
        asked = parse_cluster(text, self._names_instance)
        where = asked.region or (region or "").strip()
        if asked.devices_per_node is None:
            return self._of_instances(asked.nodes, asked.name, where, price, market)
        entry, warnings = self._find(asked.name)
        label, device = asked.name.strip(), entry.device
        names = {name.lower() for name in (device.id, *device.aliases)}
        if label.lower() not in names and warnings == entry.warnings:  # an open label says its own
            warnings = (f"device {label!r} is taken as {device.id}", *warnings)
        counts = [i.device_count for i in self.instances if i.device == device.id]
        each = max(entry.fabric_devices, max(counts, default=8))  # in one machine, or one fabric
        if asked.nodes == 1 and asked.devices_per_node > each:
            nodes = -(-asked.devices_per_node // each)
            warnings = (
                *warnings, f"{text.strip()} is one node of {asked.devices_per_node} devices, of which no known"
                f" machine has more than {each}; {nodes} nodes are {nodes}x{each}x{device.id}",
            )  # fmt: skip
        if where and where not in self._regions:
            raise UnknownNameError("region", where[:80], sorted(self._regions))
        return self._of_devices(
            entry, asked.nodes, asked.devices_per_node, warnings, where, price, market=market
        )

    def _names_instance(self, name: str) -> bool:
        """Whether a cluster's name is a machine; a device of that name comes first."""
        if resolve(name, self._index) is not None:
            return False
        if self.is_instance(name):
            return True
        provider = name.partition(":")[0].strip().lower()
        if ":" in name and provider in {i.provider for i in self.instances}:
            self.instance(name)  # Says what that provider does have.
        return False

    def cluster_for(
        self, device: Device | str, nodes: int, devices_per_node: int,
        interconnect_text: str | None = None, price: float | None = None,
        placement: Sequence[int] = (),
    ) -> Cluster:  # fmt: skip
        """Return the cluster of a runs table's row. Raises RequestError.

        `interconnect_text` as in the table (`RoCE 1600 Gb/s per node`), blank for the usual links;
        `price` in dollars an hour for all, None for the catalogue's; `placement` where devices lie unevenly on the nodes.
        """
        if isinstance(device, str):
            entry, warnings = self._find(device)
        else:
            known = self._rows.get(device.id)
            entry = replace(self._entry(device.id), device=device) if known else DeviceEntry(device)
            warnings = ()
        *links, assumed = links_from_text(interconnect_text or "", entry, nodes, devices_per_node)
        cluster = self._of_devices(
            entry, nodes, devices_per_node, warnings, "", price, links, assumed
        )
        return replace(cluster, placement=tuple(placement)) if placement else cluster

    def _of_instances(
        self, nodes: int, name: str, region: str, price: float | None, market: str
    ) -> Cluster:
        instance, warnings = self.instance(name, region, market)
        check_counts(nodes, instance.device_count, f"cluster {nodes}x{name}")
        entry, more = self._find(instance.device)
        device, nic = entry.device, instance.nic_bytes_per_second
        if device.kind == "tpu":
            entry = replace(entry, fabric_devices=0)  # it ends with the slice that a machine is
        inter = link_of(_protocol(instance.nic_kind, nic, device), nic / instance.device_count)
        if in_fabric(entry, nodes, instance.device_count):
            inter = intra_link(device)
        if instance.nic_fact.source.startswith("assumed") and nodes > 1:
            more = (*more, f"{instance.name}: {instance.nic_fact.source}")
        else:  # the machine's own network stands in the place of the device's usual one
            more = tuple(note for note in more if note != entry.network_warning)
        spot = instance.spot_dollars_per_hour
        cluster = Cluster(
            name=f"{nodes}x{instance.name}" + (f"@{instance.region}" if region else ""),
            device=device,
            nodes=nodes,
            devices_per_node=instance.device_count,
            intra=intra_link(device, instance.link_bytes_per_second),
            inter=inter,
            fabric_devices=entry.fabric_devices,
            dollars_per_hour=_times(instance.dollars_per_hour, nodes),
            spot_dollars_per_hour=_times(spot, nodes),
            provider=instance.provider,
            instance_type=instance.type,
            region=instance.region,
            carbon_kg_per_kwh=carbon_kg_per_kwh(instance.provider, instance.region),
            host_watts=instance.host_watts,
            host_memory_bytes=instance.memory_gib * BYTES_PER_GIB,
            vcpus_per_device=instance.vcpus / instance.device_count,
            price_source=instance.price_source if instance.priced else "",
            warnings=(*warnings, *more),
            rented=instance.priced,
            least_billed_seconds=(
                least_billed_seconds(instance.provider, instance.type) if instance.priced else 0.0
            ),
        )
        return _with_price(cluster, price)

    def _of_devices(
        self, entry: DeviceEntry, nodes: int, devices_per_node: int, warnings: Iterable[str],
        region: str, price: float | None, links: Sequence[Link] = (), assumed: Sequence[str] = (),
        market: str = "on-demand",
    ) -> Cluster:  # fmt: skip
        """Return a cluster of plain devices; the best offer's machine lends its price alone."""
        device = entry.device
        name = f"{nodes}x{devices_per_node}x{device.id}"
        check_counts(nodes, devices_per_node, f"cluster {name}")
        intra, inter = links or (intra_link(device), inter_link(entry, nodes, devices_per_node))
        networked = nodes > 1 and not in_fabric(entry, nodes, devices_per_node)
        counted_on = inter.bytes_per_second if networked else 0.0
        offer = None
        own = (w for w in warnings if networked or w != entry.network_warning)
        notes = (*own, *assumed)
        if price is None:
            usual = (device.id, devices_per_node, counted_on, region)
            for key in ((*usual, market), (*usual, "on-demand")):
                if key not in self._offers:
                    self._offers[key] = choose_offer(self.instances, *key)
                offer = offer or self._offers[key]
            if offer is not None:
                notes = (*notes, *offer.warnings)
            elif region:
                notes = (*notes, f"no price of {device.id} is known in region {region}")
        machine, share = (offer.instance, nodes * offer.share) if offer else (None, 0.0)
        cluster = Cluster(
            name=name,
            device=device,
            nodes=nodes,
            devices_per_node=devices_per_node,
            intra=intra,
            inter=inter,
            fabric_devices=entry.fabric_devices,
            dollars_per_hour=_times(machine.dollars_per_hour, share) if machine else None,
            spot_dollars_per_hour=_times(machine.spot_dollars_per_hour, share) if machine else None,
            region=region,
            carbon_kg_per_kwh=(
                carbon_kg_per_kwh(machine.provider, region) if machine and region else None
            ),
            host_watts=host_watts(device.id, 0.0, devices_per_node),
            price_source=offer.source if offer else "",
            warnings=notes,
        )
        return _with_price(cluster, price)


@lru_cache(maxsize=1)
def _packaged_catalog() -> Catalog:
    return Catalog()


def load_catalog(user_files: Sequence[Path | str] = ()) -> Catalog:
    """Return the catalogue with a user's files, of which later ones override; a dataset's name is its device's file.

    Raises RequestError.
    """
    if not user_files:
        return _packaged_catalog()
    from forerun.catalog.userfiles import read_user_files
    from forerun.tables.datasets import dataset

    shipped = {file: found.catalog for file in user_files if (found := dataset(file)) is not None}
    return read_user_files([shipped.get(file, Path(file)) for file in user_files])


def prices(instance: Instance) -> tuple[float, ...]:
    """Return the on-demand and the spot price, infinite where there is none."""
    both = (instance.dollars_per_hour, instance.spot_dollars_per_hour)
    return tuple(math.inf if dollars is None else dollars for dollars in both)


def _times(dollars: float | None, factor: float) -> float | None:
    return None if dollars is None else dollars * factor


def _with_price(cluster: Cluster, price: float | None) -> Cluster:
    if price is None:
        return cluster
    if not (math.isfinite(price) and 0 <= price <= 1e8):
        raise RequestError(
            f"price of cluster {cluster.name}", f"it is {price}",
            "give dollars an hour for the whole cluster, at least 0 and at most 1e8",
        )  # fmt: skip
    return replace(
        cluster, dollars_per_hour=float(price), spot_dollars_per_hour=None,
        price_source="the price that was given",
    )  # fmt: skip
