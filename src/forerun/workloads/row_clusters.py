"""The cluster columns of a runs table: how many devices on which nodes, and the Cluster they are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster, Device
from forerun.errors import ForerunError
from forerun.tables import Table

if TYPE_CHECKING:
    from forerun.catalog import Catalog

CLUSTER_COLUMNS = (
    "device", "instance_type", "cluster", "nodes", "devices", "devices_per_node", "placement",
    "interconnect", "price_usd_per_hour",
)  # fmt: skip
_LARGEST = 10_000_000  # devices: beyond any machine
_TEXT = "_cluster_text"  # of a row whose cluster column is its only word on machines


@dataclass(frozen=True)
class Layout:
    """How many devices on which nodes; `placement` is () where all nodes hold the same."""

    devices: int
    nodes: int
    devices_per_node: int
    placement: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowClusters:
    """The distinct clusters of n rows, and each row's position, reason and device count."""

    clusters: tuple[Cluster, ...]
    index: NDArray[np.int32]
    problems: NDArray[np.object_]
    devices: NDArray[np.float64]


_NO_COUNT = "how many devices is not stated; fill devices"
_NO_DEVICE_NOR_COUNT = (
    "neither the device nor how many is stated; fill device and devices, or cluster"
    " (as 4x8xh100-sxm-80gb)"
)


class BadLayoutError(ValueError):
    """Counts that contradict one another; its text is the row's reason."""


def clusters_from_table(table: Table, catalog: Catalog) -> RowClusters:
    """Return the clusters of n rows; each distinct combination of cluster columns is met once."""
    degrees = [table.numbers(name) for name in ("dp", "tp", "pp", "cp")]
    with np.errstate(over="ignore", invalid="ignore"):  # absurd degrees are refused later
        world = degrees[0] * np.prod([np.where(np.isnan(d), 1.0, d) for d in degrees[1:]], axis=0)
    # The plan tells the devices only where the cluster columns do not.
    world = np.where(np.isnan(table.numbers("devices")), world, np.nan)
    first, group = table.with_columns(_world=world).groups((*CLUSTER_COLUMNS, "_world"))
    keep: dict[Any, int] = {}
    clusters: list[Cluster] = []
    index = np.full(len(first), -1, dtype=np.int32)
    problems = np.full(len(first), None, dtype=object)
    devices = np.full(len(first), np.nan)
    for g, row in enumerate(first):
        cells, text_reason = _from_text(table.row(int(row)), catalog)
        machine, reason = _machine(cells, catalog)
        try:
            layout = layout_of(cells, machine.usual if machine else 1, float(world[row]))
            devices[g] = layout.devices
        except BadLayoutError as error:
            both = machine is None and str(error) == _NO_COUNT
            problems[g] = text_reason or (
                _NO_DEVICE_NOR_COUNT if both and not any(_named(cells)) else str(error)
            )
            continue
        if machine is None:
            problems[g] = text_reason or reason
            continue
        key = (layout, *(cells.get(c) for c in (*CLUSTER_COLUMNS[:2], _TEXT, *CLUSTER_COLUMNS[7:])))
        if key not in keep:
            try:
                clusters.append(_cluster(machine, layout, cells, catalog))
            except ForerunError as error:
                problems[g] = str(error)
                continue
            keep[key] = len(clusters) - 1
        index[g] = keep[key]
    return RowClusters(tuple(clusters), index[group], problems[group], devices[group])


def _from_text(cells: dict[str, Any], catalog: Catalog) -> tuple[dict[str, Any], str]:
    """Return the cells with what a cluster's text says of the counts, and why it cannot be read.

    The column is a cluster's text only where device and instance_type are blank: else a label.
    """
    text = str(cells.get("cluster", "")).strip()
    if not text or cells.get("device") or cells.get("instance_type"):
        return cells, ""
    try:
        found = catalog.cluster(text)
    except ForerunError as error:
        return cells, str(error)
    said = {"nodes": found.nodes, "devices_per_node": found.devices_per_node}
    said["devices"] = found.devices
    for name, count in said.items():
        if cells.get(name, count) != count:
            clash = f"the cluster {text} has {count} {name}, but {name} is {cells[name]:g}"
            return cells, f"{clash}; correct one of them"
    return {**cells, **said, "device": found.device.id, _TEXT: text}, ""


@dataclass(frozen=True)
class _Machine:
    """The device of a row, how many a node usually has, and the catalogue's name of the node."""

    device: Device
    usual: int
    instance: str = ""


def _machine(cells: Mapping[str, Any], catalog: Catalog) -> tuple[_Machine | None, str]:
    """Return what a row runs on, or None and why that is not known."""
    label, name = _named(cells)
    if not label and not name:
        return None, "the device is not stated; fill device with a catalogue id"
    try:
        known = catalog.is_instance(name) if name else False
        if not label or (known and label.lower() == "cpu"):
            device = catalog.cluster(f"1x{name}").device
        else:
            device = catalog.device(label)[0]
        if known:
            instance = catalog.instance(name)[0]
            if instance.device == device.id:
                return _Machine(device, instance.device_count, name), ""
    except ForerunError as error:
        return None, str(error)
    return _Machine(device, device.devices_per_node), ""


def _named(cells: Mapping[str, Any]) -> tuple[str, str]:
    """Return the device's label and the machine's name, "" where blank."""
    return str(cells.get("device", "")).strip(), str(cells.get("instance_type", "")).strip()


def _cluster(
    machine: _Machine, layout: Layout, cells: Mapping[str, Any], catalog: Catalog
) -> Cluster:
    """Return the cluster of a layout; whole nodes of a known machine have that machine's links."""
    stated = cells.get("price_usd_per_hour")
    price = None if stated is None else float(stated)
    links = cells.get("interconnect") or None
    if _TEXT in cells and links is None and not layout.placement:
        return catalog.cluster(cells[_TEXT], price=price)
    whole = not layout.placement and layout.devices_per_node == machine.usual
    if machine.instance and whole and links is None:
        return catalog.cluster(f"{layout.nodes}x{machine.instance}", price=price)
    cluster = catalog.cluster_for(
        machine.device,
        layout.nodes,
        layout.devices_per_node,
        interconnect_text=links,
        price=price,
        placement=layout.placement,
    )
    instance = str(cells.get("instance_type", ""))
    return replace(cluster, instance_type=instance) if instance else cluster


def layout_of(cells: Mapping[str, Any], usual: int, world: float = math.nan) -> Layout:
    """Return the layout that the cells state; what they leave out follows from the rest.

    Args:
        cells: nodes, devices, devices_per_node and placement of one row, blanks left out.
        usual: devices in a node where nothing says how many.
        world: dp x tp x pp x cp of the row's plan, NaN where it has none.

    Raises:
        BadLayoutError: a count is no whole number, or two of them contradict one another.
    """
    devices, nodes, per_node = (
        _whole(cells, name) for name in ("devices", "nodes", "devices_per_node")
    )
    placement = parse_placement(str(cells.get("placement", "")), devices, nodes)
    if placement:
        return _placed(placement, devices, nodes)
    if devices is None and nodes is not None:
        devices = nodes * (per_node or usual)
    if devices is None and per_node is not None:
        devices = per_node
    if devices is None and world == world and 1 <= world <= _LARGEST:
        devices = int(world)
    if devices is None:
        raise BadLayoutError(_NO_COUNT)
    if nodes is None:
        nodes = math.ceil(devices / (per_node or max(usual, 1)))
    return _spread(devices, nodes, per_node)


def _whole(cells: Mapping[str, Any], name: str) -> int | None:
    value = cells.get(name)
    if value is None or value == "":
        return None
    number = float(value)
    if not (number.is_integer() and 1 <= number <= _LARGEST):
        raise BadLayoutError(f"{name}={number:g} is not a whole number above zero; correct it")
    return int(number)


def parse_placement(text: str, devices: int | None, nodes: int | None) -> tuple[int, ...]:
    """Return devices on each node from `4444`, `134` or `4-4-2`; () where the text is blank.

    A plain number that equals `devices` on one node is that one node.

    Raises:
        BadLayoutError: neither digits nor counts joined by dashes, or a node without devices.
    """
    text = text.strip()
    if not text:
        return ()
    if "-" in text:
        counts = [c.strip() for c in text.split("-")]
    elif text.isascii() and text.isdigit() and nodes == 1 and int(text) == devices:
        counts = [text]
    else:
        counts = list(text)
    if not all(re.fullmatch(r"[0-9]{1,6}", c) and int(c) > 0 for c in counts):
        raise BadLayoutError(
            f"placement {text!r} is not one digit a node nor counts joined by dashes; write for"
            " example 134 or 4-4-2"
        )
    return tuple(int(c) for c in counts)


def _placed(placement: tuple[int, ...], devices: int | None, nodes: int | None) -> Layout:
    total = sum(placement)
    for name, stated, found in (("devices", devices, total), ("nodes", nodes, len(placement))):
        if stated is not None and stated != found:
            raise BadLayoutError(
                f"the placement {'-'.join(map(str, placement))} has {found} {name}, but {name} is"
                f" {stated}; correct one of them"
            )
    even = len(set(placement)) == 1
    return Layout(total, len(placement), max(placement), () if even else placement)


def _spread(devices: int, nodes: int, per_node: int | None) -> Layout:
    """Return devices filled node by node where the node's size is stated, else spread evenly."""
    if nodes > devices or (per_node is not None and devices > nodes * per_node):
        raise BadLayoutError(
            f"{devices} devices do not lie on {nodes} nodes"
            + (f" of {per_node}" if per_node else "")
            + "; correct one of the counts"
        )
    if devices % nodes == 0:
        return Layout(devices, nodes, devices // nodes)
    if nodes > 100_000:
        raise BadLayoutError(f"{nodes} nodes of unequal size; give a placement")
    if per_node is not None and math.ceil(devices / per_node) == nodes:
        counts = (per_node,) * (nodes - 1) + (devices - per_node * (nodes - 1),)
    else:
        low, more = divmod(devices, nodes)
        counts = (low + 1,) * more + (low,) * (nodes - more)
    return Layout(devices, nodes, max(counts), counts)
