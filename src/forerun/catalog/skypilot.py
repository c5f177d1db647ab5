"""SkyPilot's catalogue files, read as machines of the provider that the file is named after."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from forerun.catalog.devices import resolve
from forerun.catalog.instances import Instance, instance_of
from forerun.catalog.rows import Row
from forerun.units import counted

COLUMNS = (
    "InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo",
    "Region", "AvailabilityZone", "Price", "SpotPrice",
)  # fmt: skip
_RENAMED = {
    "type": "InstanceType",
    "vcpus": "vCPUs",
    "memory_gib": "MemoryGiB",
    "device_count": "AcceleratorCount",
    "region": "Region",
    "dollars_per_hour": "Price",
    "spot_dollars_per_hour": "SpotPrice",
}
# GCP prices these hosts without the accelerators that stand in them.
_GCP_HOST_ALONE = re.compile(r"(a2|a3|a4|g2)-")


def read_skypilot(
    path: Path, rows: list[Row], index: Mapping[str, str], warnings: list[str]
) -> list[Instance]:
    """Return the machines of a SkyPilot catalogue; several zones of a region become the cheapest.

    The provider is the folder's name for `aws/vms.csv`, else the file's. Rows of an accelerator
    without a machine, and GCP's hosts without their accelerators, are left out and counted in a
    warning. An accelerator unknown here keeps its own name, so its machine is listed and using it
    is an error.

    Raises:
        RequestError: a figure that is missing or out of its range.
    """
    provider = (path.parent.name if path.stem == "vms" else path.stem).lower() or "own"
    alone = hosts = 0
    machines: dict[tuple[str, str], Instance] = {}
    for row in rows:
        kind, label = row.get("InstanceType"), row.get("AcceleratorName")
        if not kind:
            alone += 1
        elif provider == "gcp" and not label and _GCP_HOST_ALONE.match(kind):
            hosts += 1
        else:
            machine = _machine(row, provider, label, index, warnings)
            key = (machine.type, machine.region)
            machines[key] = _cheaper(machines.get(key), machine)
    if alone:
        warnings.append(f"{path.name}: {counted(alone, 'row')} without InstanceType left out")
    if hosts:
        warnings.append(
            f"{path.name}: {counted(hosts, 'row')} of a GCP host without its accelerators left out"
        )
    return list(machines.values())


def _machine(
    row: Row, provider: str, label: str, index: Mapping[str, str], warnings: list[str]
) -> Instance:
    """Return one row as a machine."""
    values = {ours: row.get(theirs) for ours, theirs in _RENAMED.items()}
    if not label:
        values.pop("device_count")
    lines = dict.fromkeys(values, row.line)
    translated = Row(
        {**{k: v for k, v in values.items() if v}, "provider": provider},
        row.file, row.line, lines,
    )  # fmt: skip
    device = ""
    if label:
        found = resolve(label, index)
        device = found[0] if found else label
        if found:
            warnings += [f"{row.file}: {warning}" for warning in found[1]]
    return instance_of(translated, device)


def _cheaper(one: Instance | None, other: Instance) -> Instance:
    """Return the row with the lower price of two zones of one region."""
    if one is None:
        return other

    def price(instance: Instance) -> tuple[float, float]:
        infinite = float("inf")
        dollars = (instance.dollars_per_hour, instance.spot_dollars_per_hour)
        first, second = (infinite if d is None else d for d in dollars)
        return first, second

    return min(one, other, key=price)
