"""Links: nominal latency and bandwidth, per device and direction, in a node and between nodes."""

from __future__ import annotations

from dataclasses import replace

from forerun.catalog.devices import Entry
from forerun.catalog.instances import Instance
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
    """Return the link inside a node: the given rate, else the device's own, else PCIe.

    The processes of a CPU host talk through its memory.
    """
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


def in_fabric(entry: Entry, nodes: int, devices_per_node: int) -> bool:
    """Whether the in-node interconnect reaches all devices of the cluster (NVL72, a TPU slice)."""
    return 0 < nodes * devices_per_node <= entry.fabric_devices


def inter_link(entry: Entry, nodes: int, devices_per_node: int) -> Link:
    """Return the usual link between nodes of this device.

    Inside a fabric it is the in-node interconnect. Elsewhere it is the device's usual network
    rate; more devices in a node than usual share the usual node's adapters.
    """
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


def instance_inter_link(entry: Entry, instance: Instance, nodes: int) -> Link:
    """Return the link between machines of this type: their network shared by their devices.

    TPU slices are whole fabrics already, so slices are joined by their hosts' network.
    """
    if entry.device.kind != "tpu" and in_fabric(entry, nodes, instance.device_count):
        return intra_link(entry.device)
    rate = instance.nic_bytes_per_second / instance.device_count
    return link_of(instance.nic_kind, rate)
