"""A user's own catalogue files: YAML, CSV or SkyPilot's CSV, added to the packaged catalogue."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forerun.catalog import Catalog, Instance, prices
from forerun.catalog import devices as device_rows
from forerun.catalog.rows import Row, read_csv
from forerun.errors import RequestError, UnknownNameError
from forerun.units import counted

# SkyPilot's columns, and ours.
_RENAMED = {
    "InstanceType": "type", "vCPUs": "vcpus", "MemoryGiB": "memory_gib",
    "AcceleratorCount": "device_count", "Region": "region", "Price": "dollars_per_hour",
    "SpotPrice": "spot_dollars_per_hour",
}  # fmt: skip
# GCP prices these hosts without the accelerators that stand in them.
_GCP_HOST_ALONE = re.compile(r"(a2|a3|a4|g2)-")


def read_skypilot(
    path: Path, rows: list[Row], index: Mapping[str, str], warnings: list[str]
) -> list[Instance]:
    """Return the machines of a SkyPilot catalogue, the cheapest zone of each region. Raises RequestError.

    The provider is the folder's name for `aws/vms.csv`, else the file's. Accelerators without a
    machine, and GCP's hosts without theirs, are left out with a warning; an unknown accelerator
    keeps its own name, so that its machine is listed and using it is an error.
    """
    provider = (path.parent.name if path.stem == "vms" else path.stem).lower() or "own"
    left_out = Counter[str]()
    machines: dict[tuple[str, str], Instance] = {}
    for row in rows:
        kind, label = row.get("InstanceType"), row.get("AcceleratorName")
        if not kind:
            left_out["without InstanceType"] += 1
        elif provider == "gcp" and not label and _GCP_HOST_ALONE.match(kind):
            left_out["of a GCP host without its accelerators"] += 1
        else:
            values = {ours: text for theirs, ours in _RENAMED.items() if (text := row.get(theirs))}
            if not label:
                values.pop("device_count", None)
            row = Row({**values, "provider": provider}, row.file, row.line)
            found = device_rows.resolve(label, index) if label else None
            if found:
                warnings += [f"{row.file}: {warning}" for warning in found[1]]
            machine = device_rows.instance_of(row, found[0] if found else label)
            key = (machine.type, machine.region)
            machines[key] = min(machines.get(key, machine), machine, key=prices)
    warnings += [
        f"{path.name}: {counted(count, 'row')} {what} left out" for what, count in left_out.items()
    ]
    return list(machines.values())


_SECTIONS = ("devices", "instances")


def read_user_files(paths: Iterable[Path]) -> Catalog:
    """Return the packaged catalogue with these files added, later ones over earlier. Raises RequestError."""
    devices: dict[str, Row] = {}
    machine_rows: list[Row] = []
    skypilot_rows: list[tuple[Path, list[Row]]] = []
    for path in paths:
        new_devices, new_machines, new_skypilot = _read(path)
        for row in new_devices:
            known = devices.get(row.get("id")) or device_rows.packaged_rows().get(row.get("id"))
            devices[row.get("id")] = _checked_device(row, known)
        machine_rows += new_machines
        if new_skypilot:
            skypilot_rows.append((path, new_skypilot))
    rows = {**device_rows.packaged_rows(), **devices}
    index = device_rows.index_of(rows.values())
    warnings: list[str] = []
    machines: list[Instance] = []
    for row in machine_rows:
        row.check_names(device_rows.schema("instance")[0], "instance")
        label = row.get("device")
        device = label.lower()
        if label and not device.startswith("cpu-"):
            if (found := device_rows.resolve(label, index)) is None:
                raise UnknownNameError("device", label, index, f"({row.at('device')})")
            warnings += [f"{row.at('device')}: {warning}" for warning in found[1]]
            device = found[0]
        machines.append(device_rows.instance_of(row, device))
    for path, sky in skypilot_rows:
        machines += read_skypilot(path, sky, index, warnings)
    return Catalog(list(devices.values()), machines, list(dict.fromkeys(warnings)))


def _read(path: Path) -> tuple[list[Row], list[Row], list[Row]]:
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        from forerun.yaml_files import read_yaml

        fix = "write two sections, devices: and instances:, with the fields of each entry below it"
        tree, lines = read_yaml(path, f"catalogue file {path}", "give a readable YAML file")
        if not isinstance(tree, dict):
            raise RequestError(f"catalogue file {path}", "it has no sections", fix)
        for name in tree:
            if name not in _SECTIONS:
                raise UnknownNameError("catalogue section", str(name), _SECTIONS, f"(in {path})")
        devices, machines = (
            _section_rows(tree.get(s) or {}, s, path, lines, fix) for s in _SECTIONS
        )
        return devices, machines, []
    rows = read_csv(path)
    if not rows:
        raise RequestError(f"catalogue file {path}", "it has no rows", "add one, or leave it out")
    columns = {name for row in rows for name in row.values}
    if "InstanceType" in columns or "AcceleratorName" in columns:
        return [], [], rows
    if "memory_gb" in columns or ("id" in columns and "type" not in columns):
        return rows, [], []
    if "type" in columns:
        return [], rows, []
    raise RequestError(
        f"catalogue file {path}", f"its columns are {', '.join(sorted(columns))[:200]}",
        f"give the columns of devices ({', '.join(device_rows.required())}), of instances (provider, "
        f"type, ...) or SkyPilot's ({', '.join(_RENAMED)})",
    )  # fmt: skip


def _checked_device(row: Row, known: Row | None) -> Row:
    """Return a sound device row; blanks are taken from the one it overrides."""
    row.check_names(device_rows.schema("device")[0], "device")
    if not row.get("id"):
        raise RequestError(row.at("id"), "it is missing", "give the name that you will use")
    if known is not None:
        own = row.get("source") or f"your file {row.file}"
        no_source = ("id", "source", "field_sources")
        changed = {name: own.replace(";", ",") for name in row.values if name not in no_source}
        sources = device_rows.field_sources(known) | changed | device_rows.field_sources(row)
        merged = {**known.values, **row.values, "source": known.get("source")}
        merged["field_sources"] = ";".join(f"{name}={text}" for name, text in sources.items())
        lines = dict.fromkeys(row.values, row.line) | dict(row.lines)
        row = Row(merged, row.file, row.line, lines)
    device_rows.entry_of(row)
    return row


def _section_rows(
    section: Any, name: str, path: Path, lines: Mapping[str, int], fix: str
) -> list[Row]:
    """Return the rows of one section: a list of entries, or entries by id (or provider:type)."""
    if isinstance(section, list):
        named = [("", f"{name}[{i}]", entry) for i, entry in enumerate(section)]
    elif isinstance(section, dict):
        named = [(str(key), f"{name}.{key}", entry) for key, entry in section.items()]
    else:
        raise RequestError(f"{path.name}, section {name!r}", "it has no entries", fix)
    rows = []
    for key, where, entry in named:
        if not isinstance(entry, dict):
            raise RequestError(f"{path.name}, {name} entry {key!r}", "it has no fields", fix)
        if isinstance(sources := entry.get("field_sources"), dict):
            entry = {**entry, "field_sources": [f"{k}={v}" for k, v in sources.items()]}
        values = {str(k): _text(v) for k, v in entry.items()}
        if key and name == "devices":
            values["id"] = key
        elif key:
            provider, _, kind = key.rpartition(":")
            values = {"provider": provider, "type": kind, **values}
        line = lines.get(where, 1)
        fields = {field: lines.get(f"{where}.{field}", line) for field in values}
        rows.append(Row({k: v for k, v in values.items() if v}, path.name, line, fields))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ";".join(str(item) for item in value)
    return json.dumps(value, default=str) if isinstance(value, dict) else str(value).strip()
