"""Links: nominal latency and bandwidth, per device and direction, in a node and between nodes."""

from __future__ import annotations

import re
from dataclasses import replace

from forerun.catalog.devices import BITS_PER_BYTE, DeviceEntry, Instance
from forerun.domain.hardware import Device, Link
from forerun.units import GIGA

# One-way latency of a small message as software sees it, seconds. Usual orders of magnitude
# written from memory, unverified; what a cluster really does is the calibration's business.
LATENCY_SECONDS = {
    "memory": 5e-7,
    "nvlink": 1e-6,
    "xgmi": 1.5e-6,
    "ici": 1e-6,
    "pcie": 2e-6,
    "infiniband": 5e-6,
    "efa": 15e-6,
    "ethernet": 30e-6,
    "unknown": 5e-6,
}
# Gaudi joins its devices by RDMA over Ethernet ports of its own, hence infiniband there.
_IN_NODE_KIND = {"nvidia": "nvlink", "amd": "xgmi", "google": "ici", "intel": "infiniband"}
# At or above this rate a device (25 Gbit/s), clusters of accelerators usually have RDMA.
_RDMA_BYTES_PER_SECOND = 3.125 * GIGA


def link_of(kind: str, bytes_per_second: float) -> Link:
    """Return a link of this kind and nominal rate, with the usual latency of its kind."""
    return Link(kind, LATENCY_SECONDS[kind], bytes_per_second)


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
    return link_of("infiniband" if rdma else "ethernet", rate)


def instance_inter_link(entry: DeviceEntry, instance: Instance, nodes: int) -> Link:
    """Return the link between machines of this type: their network shared by their devices."""
    if entry.device.kind != "tpu" and in_fabric(entry, nodes, instance.device_count):
        return intra_link(entry.device)
    rate = instance.nic_bytes_per_second / instance.device_count
    return link_of(instance.nic_kind, rate)


_RATE = re.compile(
    r"(?:(?P<count>[0-9]{1,4})\s*x\s*)?(?P<link>nvlink\s*)?"
    r"(?P<rate>[0-9]{1,6}(?:\.[0-9]{1,6})?)\s*"
    r"(?P<scale>[kmgt])(?P<unit>bytes?|bits?|bps|be|b|t)(?![a-z])",
    re.IGNORECASE,
)
_LINKS_IN_WORDS = re.compile(r"\b([0-9]{1,3})\s*x\s*nvlink", re.IGNORECASE)
_PCIE_GENERATION = re.compile(r"(?:gen\s*|pcie\s*)([3-6])(?:\.0)?\b", re.IGNORECASE)
# PCIe x16, nominal, per direction.
_PCIE_GB_PER_S = {"3": 16.0, "4": 32.0, "5": 64.0, "6": 128.0}
_IN_NODE = ("nvlink", "nvswitch", "xgmi", "infinity fabric", "ipulink", "ipu-link", "hccs",
            "pcie", "upi", "qpi", "tpu", "ici", "neuronlink")  # fmt: skip
_NETWORK = ("infiniband", "ethernet", "roce", "rdma", "efa", "ib", "gbe", "slingshot")
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
        said = f"the interconnect {text!r} says nothing; the usual links of {entry.device.id} serve"
        return intra, inter, (said,) if text else ()
    in_node, network = _split(text)
    warnings: list[str] = []
    if in_node:
        intra = _intra_from(in_node, entry, warnings)
    # `24x 100Gb/s Ethernet` of a Gaudi counts the accelerator's own ports, and the catalogue's
    # rates hold both shares of those already.
    own_ports = entry.device.vendor == "intel" and re.search(r"[0-9]\s*x", network)
    if network and not own_ports:
        inter = _inter_from(network, inter, devices_per_node, warnings)
    if not in_node and not network:
        warnings.append(
            f"the interconnect {text!r} is not understood; the usual links of "
            f"{entry.device.id} serve"
        )
    return intra, inter, tuple(warnings)


def _split(text: str) -> tuple[str, str]:
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
    return ", ".join(parts["in_node"]), ", ".join(parts["network"])


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
    if match is not None:
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


def _inter_from(text: str, usual: Link, devices_per_node: int, warnings: list[str]) -> Link:
    words = text.lower()
    kind = "ethernet"
    if "efa" in words:
        kind = "efa"
    elif re.search(r"infiniband|\bib\b|roce|rdma|slingshot", words):
        kind = "infiniband"
    match = _RATE.search(text)
    rate = _bytes_per_second(match, in_node=False) * int(match["count"] or 1) if match else 0.0
    if not rate:
        warnings.append(f"the interconnect {text!r} gives no rate; the usual one serves")
        return link_of(kind, usual.bytes_per_second)
    per_device = re.search(r"(?:per|/|a)\s*(?:gpu|device|accelerator|chip|rank)\b", words)
    return link_of(kind, rate if per_device else rate / devices_per_node)
