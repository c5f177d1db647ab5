"""Listings: what there is to ask about, as rows: workloads, devices, machines, predictors, versions."""

from __future__ import annotations

import re
from typing import Any

from forerun import registry
from forerun.catalog import Catalog
from forerun.errors import UnknownNameError
from forerun.wire import fields_of

Rows = list[dict[str, Any]]


def rows_with(kind: str, rows: Rows, search: str | None) -> Rows:
    """Return the rows that hold a text, whatever stands between its words. Raises UnknownNameError for none."""
    wanted = _plain(search or "")
    kept = [
        row
        for row in rows
        if any(wanted in _plain(str(c)) for n, c in row.items() if n != "sources")
    ]
    if search and not (wanted and kept):
        raise UnknownNameError(kind, search, [str(next(iter(row.values()))) for row in rows])
    return kept


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.lower())


def workload_rows() -> Rows:
    """Return the zoo's workloads: name, family, usual sample, description and source."""
    from forerun.workloads.zoo import zoo_entry, zoo_names

    rows = []
    for entry in map(zoo_entry, zoo_names()):
        pixels = f"{entry.default_image_size} px" if entry.default_image_size else ""
        size = f"{entry.default_seq_len} tokens" if entry.default_seq_len else pixels
        row = {**fields_of(entry, "name family"), "sample": size}
        rows.append({**row, **fields_of(entry, "description source")})
    return rows


def device_rows(catalog: Catalog) -> Rows:
    """Return a catalogue's devices, in SI units."""
    return [
        {
            **fields_of(device, "id name kind year memory_bytes memory_bytes_per_second"),
            **{f"{p}_flops": device.peak_flops[p] for p in ("bf16", "fp16", "fp32")},
            **fields_of(device, "watts link_bytes_per_second"),
        }
        for device in catalog.devices.values()
    ]


def with_sources(rows: Rows, catalog: Catalog) -> Rows:
    """Return rows of devices with the source of each figure."""
    return [{**row, "sources": catalog.devices[row["id"]].facts} for row in rows]


def instance_rows(catalog: Catalog) -> Rows:
    """Return a catalogue's machines with their prices in dollars an hour."""
    names = "name region device device_count dollars_per_hour spot_dollars_per_hour"
    return [
        {**fields_of(machine, names), "network_bytes_per_second": machine.nic_bytes_per_second,
         "source": machine.source}
        for machine in catalog.instances
    ]  # fmt: skip


def registered_rows(group: str) -> Rows:
    """Return what is registered in a group. Raises UnknownNameError for no such group."""
    entries = registry.entries(group)
    return [{"name": e.name, "what it is": e.help, "from": e.origin} for e in entries]


def versions() -> dict[str, str]:
    """Return the versions of forerun and of what it uses, and when its constants were fitted."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    from forerun.predictors.options import shipped_made

    parts = {"forerun": of("forerun"), "python": platform.python_version()}
    for name in ("numpy", "torch", "onnx", "pandas", "pyarrow"):
        try:
            parts[name] = of(name)
        except PackageNotFoundError:
            parts[name] = "not installed"
    made = shipped_made("analytic")
    commit = made["commit"] or "not known" if made else ""
    parts["constants"] = f"{made['date']}, commit {commit}" if made else "none"
    return parts
