"""Devices and machines: rows of the catalogue's tables made into a Device or an Instance; labels of devices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from forerun.catalog.rows import DATA, NumberRange, Row, fact_of, read_csv
from forerun.domain.hardware import Device, Fact
from forerun.errors import RequestError, UnknownNameError, likely_name, one_of
from forerun.units import GIGA, TERA

if TYPE_CHECKING:
    from forerun.domain.measured import Measured

KINDS = ("gpu", "tpu", "accelerator", "cpu")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
TABLES = ("nvidia_datacenter", "nvidia_workstation", "other_accelerators", "cpus")


@cache
def schema(of: str) -> tuple[dict[str, Row], dict[str, NumberRange]]:
    """Return the columns of a `device` or an `instance` by name, and the ranges of those that are numbers."""
    rows = {row.get("name"): row for row in read_csv(DATA / "columns.csv") if row.get("of") == of}
    ranges = {
        name: NumberRange(
            float(row.get("low")), float(row.get("high")), row.get("unit"),
            bool(row.get("above_low")), bool(row.get("whole")),
        )
        for name, row in rows.items() if row.get("high")
    }  # fmt: skip
    return rows, ranges


def required() -> list[str]:
    """Return the columns that a device cannot do without."""
    return [name for name, column in schema("device")[0].items() if column.get("required")]


# A blank 16-bit rate is the other one's.
_SAME_RATE = {"bf16": "fp16", "fp16": "bf16"}
# A node's network where a user's row states none, shared by its devices.
_DEFAULT_NODE_GB_PER_S = 12.5
_OWN_NAME = Fact("the catalogue's own name for it")


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device with what the catalogue knows beside it.

    Attributes:
        fabric_devices: devices that the in-node interconnect joins across nodes; 0 where it ends at the node.
        fabric_out_bytes_per_second: network rate per device out of that fabric.
        network_warning: the one of the warnings on an assumed network; '' where it is stated.
    """

    device: Device
    fabric_devices: int = 0
    fabric_out_bytes_per_second: float = 0.0
    warnings: tuple[str, ...] = ()
    network_warning: str = ""


def aliases_of(row: Row) -> tuple[str, ...]:
    """Return the aliases that a row lists, separated by semicolons."""
    return tuple(a for text in row.get("aliases").split(";") if (a := text.strip()))


@lru_cache(maxsize=1)
def packaged_rows() -> dict[str, Row]:
    """Return the packaged device rows by id, not yet made into devices."""
    return {
        row.get("id"): row for table in TABLES for row in read_csv(DATA / f"devices_{table}.csv")
    }


@lru_cache(maxsize=1)
def generations() -> tuple[str, ...]:
    """Return the generations of the packaged devices."""
    return tuple(sorted({row.get("generation") for row in packaged_rows().values()} - {""}))


def entry_of(row: Row) -> DeviceEntry:
    """Return the device of a row. Raises RequestError.

    Rates are dense (no sparsity) and count two operations a multiply-add; GB are 1e9 bytes.
    Where blank, one of bf16 and fp16 is the other's rate and the network is 100 Gbit/s a node.
    """
    facts = _facts(row)
    ranges = schema("device")[1]
    missing = [name for name in required() if not row.get(name)]
    if row.get("bf16_tflops") and "fp16_tflops" in missing:
        missing.remove("fp16_tflops")
    if missing:
        asked = row.at(missing[0]) + "".join(f", {name!r}" for name in missing[1:])
        give = "; ".join(f"{name}: {ranges[name]}" for name in missing)
        found = "they are missing" if missing[1:] else "it is missing"
        raise RequestError(asked, found, f"give {give} (docs/spec.md says what to write)")
    peak = {
        p: row.number(name, ranges[name]) * TERA
        for p in PRECISIONS
        if row.get(name := f"{p}_tflops")
    }
    for blank, stated in _SAME_RATE.items():
        if blank not in peak:
            peak[blank] = peak[stated]
            derived = f"derived: the {stated} rate, as no {blank} rate was given"
            facts[f"peak_flops.{blank}"] = Fact(derived, False)
    facts["peak_flops"] = facts["peak_flops.fp16"]
    limits = ranges | {"watts": replace(ranges["watts"], above_low=not row.get("measured"))}
    numbers = {k: row.number(k, limits[k]) for k in required() if row.get(k)}
    warnings = [row.get("warning")] if row.get("warning") else []
    generation = row.get("generation").lower() or "unknown"
    # Constants know families of generations too, by how a name begins.
    known = (*generations(), "cdna", "gaudi", "unknown")
    if not row.get("measured") and not generation.startswith(known):
        near = likely_name(generation, generations())
        warnings.append(
            f"{row.get('id')}: the generation {generation!r} is not known"
            f"{f' (did you mean {near}?)' if near else ''};"
            " the usual efficiencies of a new one are taken"
        )
    per_node = int(numbers["devices_per_node"])
    node_gb_per_s = row.number("node_gb_per_s", limits["node_gb_per_s"], default=0.0)
    network_warning = ""
    if not node_gb_per_s:
        node_gb_per_s = _DEFAULT_NODE_GB_PER_S / per_node
        assumed = f"assumed: 100 Gbit/s a node, {node_gb_per_s:.3g} GB/s a device"
        facts["node_bytes_per_second"] = Fact(assumed, False)
        network_warning = f"{row.get('id')} states no node_gb_per_s; {assumed}"
        warnings.append(network_warning)
    device = Device(
        id=row.get("id"), name=row.get("name") or row.get("id"),
        vendor=row.get("vendor").lower() or "unknown", kind=_word(row, "kind", KINDS),
        generation=generation, year=int(row.number("year", limits["year"], default=0)),
        memory_bytes=numbers["memory_gb"] * GIGA,
        memory_bytes_per_second=numbers["memory_gb_per_s"] * GIGA, peak_flops=peak,
        watts=numbers["watts"], link_bytes_per_second=numbers["link_gb_per_s"] * GIGA,
        host_bytes_per_second=numbers["host_gb_per_s"] * GIGA,
        node_bytes_per_second=node_gb_per_s * GIGA, devices_per_node=per_node,
        aliases=aliases_of(row), facts=facts, measured=_measured(row),
    )  # fmt: skip
    return DeviceEntry(
        device, int(row.number("fabric_devices", limits["fabric_devices"], default=0)),
        row.number("fabric_out_gb_per_s", limits["fabric_out_gb_per_s"], default=0.0) * GIGA,
        tuple(warnings), network_warning,
    )  # fmt: skip


def _word(row: Row, name: str, words: tuple[str, ...]) -> str:
    """Return a field that is one of some words, by default the first. Raises RequestError."""
    word = row.get(name).lower() or words[0]
    if word not in words:
        raise RequestError(row.at(name), f"it is {word!r}", one_of(word, words))
    return word


def _measured(row: Row) -> Measured | None:
    if not row.get("measured"):
        return None
    from forerun.domain.measured import Measured

    try:
        return Measured.from_dict(json.loads(row.get("measured")))
    except (ValueError, TypeError) as error:
        raise RequestError(
            row.at("measured"), f"it cannot be read: {error}", "write it with `forerun probe`"
        ) from None


def _facts(row: Row) -> dict[str, Fact]:
    default = fact_of(row.get("source") or f"your file {row.file}")
    facts = {f.name: default for f in fields(Device) if f.name != "facts"}
    facts |= {f"peak_flops.{p}": default for p in PRECISIONS if row.get(f"{p}_tflops")}
    facts |= {"id": _OWN_NAME, "aliases": _OWN_NAME}
    for column, key in field_sources(row).items():
        facts[schema("device")[0][column].get("field") or column] = fact_of(key)
    return facts


def field_sources(row: Row) -> dict[str, str]:
    """Return the sources of columns from text such as `watts=estimate;year=our list`. Raises RequestError."""
    found = {}
    for part in filter(None, map(str.strip, row.get("field_sources").split(";"))):
        column, _, key = map(str.strip, part.partition("="))
        if not key:
            raise RequestError(
                row.at("field_sources"), f"{part!r} names no source",
                "write column=source;column=source, or a mapping of columns to sources",
            )  # fmt: skip
        sourced = [n for n in schema("device")[0] if n not in ("id", "source", "field_sources")]
        if column not in sourced:
            hint = f"({row.at('field_sources')})"
            raise UnknownNameError("device field", column, sourced, hint)
        found[column] = key
    return found


_MAKERS = re.compile(
    r"^(?:(?:nvidia|amd|google|intel|habana|graphcore|huawei|aws|geforce|tesla|instinct)[\s_/-]+)+"
)
_SXM_GENERATION = re.compile(r"sxm[2-6](?![0-9])")
_LABEL = re.compile(r"[A-Za-z0-9\s._+$()/-]+")
_MEMORY = re.compile(r"^[0-9]+g[bi]?b?$")


def squeeze(label: str) -> str:
    """Return a label in small letters and digits only, without its maker's name."""
    return re.sub(r"[^a-z0-9+.$]", "", _MAKERS.sub("", label.strip().lower()))


def readings(label: str) -> list[str]:
    """Return the squeezed readings of a label, most literal first (`sxm5` is `sxm`; memory before the form)."""
    text = _MAKERS.sub("", label.strip().lower())
    plain = _SXM_GENERATION.sub("sxm", text)
    parts = re.split(r"[\s_-]+", plain)
    memory = [part for part in parts if _MEMORY.match(part)]
    moved = "".join([part for part in parts if part not in memory] + memory)
    return list(dict.fromkeys(squeeze(reading) for reading in (text, plain, moved)))


def index_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return the ids by squeezed label, also with the memory behind it. Raises RequestError for a label of two."""
    index: dict[str, str] = {}
    sized: dict[str, str] = {}
    for row in rows:
        device_id = row.get("id")
        for label in (device_id, *aliases_of(row)):
            other = index.setdefault(squeeze(label), device_id)
            if other != device_id:
                raise RequestError(
                    row.at("id" if label == device_id else "aliases"),
                    f"the label {label!r} already means {other}",
                    "choose another label, or override that device under its own id",
                )  # fmt: skip
            if _MEMORY.match(memory := f"{row.get('memory_gb')}gb"):
                sized.setdefault(squeeze(label + memory), device_id)
    return {**sized, **index}


@lru_cache(maxsize=1)
def open_labels() -> Mapping[str, tuple[str, str]]:
    """Return labels that leave something open: squeezed -> (default device, what is open)."""
    return {
        squeeze(row.get("label")): (row.get("device"), row.get("open"))
        for row in read_csv(DATA / "labels.csv")
    }


def resolve(label: str, index: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the id of the device that a label means and warnings, or None for an unknown one."""
    if not _LABEL.fullmatch(label):
        return None
    keys = readings(label)
    for key in keys:
        if key in index:
            return index[key], ()
    for key in keys:
        if key in open_labels():
            device_id, left_open = open_labels()[key]
            warning = f"{label!r} leaves open {left_open}; taken as {device_id}"
            return device_id, (warning,)
    return None


BITS_PER_BYTE = 8
NIC_KINDS = ("ethernet", "infiniband", "efa")
# What is assumed of a machine whose network is not known.
DEFAULT_NIC_GBIT_PER_S = 10.0


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine type of one provider in one region.

    Attributes:
        device: catalogue id of its accelerator; `cpu-TYPE` for a machine without one, of device_count 1.
        vcpus, memory_gib, host_watts: of the host beside its devices; 0 where not stated.
        link_bytes_per_second: in-node rate per device and direction; 0 means the device's own.
        nic_bytes_per_second: network rate of the node, per direction.
        nic_kind: ethernet, infiniband (RoCE too) or efa.
        source, nic_fact: of the price, with its commit, and of the network figures.
        marketplace: one private offer, not a cloud's list price.
    """

    provider: str
    type: str
    region: str
    device: str
    device_count: int
    vcpus: float
    memory_gib: float
    dollars_per_hour: float | None
    spot_dollars_per_hour: float | None
    link_bytes_per_second: float
    nic_bytes_per_second: float
    nic_kind: str
    host_watts: float
    source: str
    nic_fact: Fact
    marketplace: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """Provider and type, as in a cluster's text."""
        return f"{self.provider}:{self.type}"

    @property
    def price_source(self) -> str:
        """What the price is of, and where it was read."""
        return f"{self.name}, {self.region or 'any region'}; {self.source}"

    @property
    def priced(self) -> bool:
        """Whether any price is known."""
        return self.dollars_per_hour is not None or self.spot_dollars_per_hour is not None


@lru_cache(maxsize=1)
def packaged_instances() -> tuple[Instance, ...]:
    """Return the packaged machines."""
    return tuple(instance_of(row) for row in read_csv(DATA / "instances.csv"))


def instance_of(row: Row, device_id: str | None = None) -> Instance:
    """Return the machine of a row; `device_id` replaces the row's own label. Raises RequestError."""
    for name in ("provider", "type"):
        if not row.get(name):
            raise RequestError(row.at(name), "it is missing", "give the name that you will use")
    device = device_id if device_id is not None else row.get("device")
    limits = schema("instance")[1]
    vcpus = row.number("vcpus", limits["vcpus"], default=0.0)
    count = int(row.number("device_count", limits["device_count"], default=1.0))
    nic_gbit = row.number("nic_gbit_per_s", limits["nic_gbit_per_s"], DEFAULT_NIC_GBIT_PER_S)
    stated = row.get("nic_gbit_per_s")
    nic_source = row.get("nic_source") or (_source(row) if stated else "network-assumed")
    return Instance(
        provider=row.get("provider").lower(),
        type=row.get("type"),
        region=row.get("region"),
        device=device or f"cpu-{row.get('type').lower()}",
        device_count=count,
        vcpus=vcpus,
        memory_gib=row.number("memory_gib", limits["memory_gib"], default=0.0),
        dollars_per_hour=row.price("dollars_per_hour", limits["dollars_per_hour"]),
        # Some price files write 0 where no spot price is known.
        spot_dollars_per_hour=row.price("spot_dollars_per_hour", limits["spot_dollars_per_hour"])
        or None,
        link_bytes_per_second=row.number("link_gb_per_s", limits["link_gb_per_s"], 0.0) * GIGA,
        nic_bytes_per_second=nic_gbit * GIGA / BITS_PER_BYTE,
        nic_kind=_word(row, "nic_kind", NIC_KINDS),
        host_watts=row.number("host_watts", limits["host_watts"], host_watts(device, vcpus, count)),
        source=_source(row),
        nic_fact=fact_of(nic_source),
        marketplace=row.get("listing") == "marketplace",
        note=row.get("note"),
    )


def host_watts(device: str, vcpus: float, count: int) -> float:
    """Estimate a host's power: 5 W a vCPU and 30 W an accelerator beside it (unverified); 0 of a CPU machine."""
    if not device or device.startswith("cpu"):
        return 0.0
    return 5.0 * (vcpus or 16 * count) + 30.0 * count


def _source(row: Row) -> str:
    source = fact_of(row.get("source")).source if row.get("source") else f"your file {row.file}"
    return f"{source}, as of commit {row.get('commit')[:12]}" if row.get("commit") else source
