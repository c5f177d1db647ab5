"""Instances: the machines that clouds rent, their shape, network and price."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from forerun.catalog.rows import DATA, NumberRange, Row, fact_of, read_csv
from forerun.domain.hardware import Fact
from forerun.errors import RequestError, one_of
from forerun.units import GIGA

BITS_PER_BYTE = 8
NIC_KINDS = ("ethernet", "infiniband", "efa")
DOLLARS = NumberRange(0, 100_000, "dollars an hour")
_COUNT = NumberRange(1, 1_000_000, whole=True)
_VCPUS = NumberRange(0, 100_000)
_MEMORY = NumberRange(0, 1_000_000, "GiB")
_NIC = NumberRange(0, 1_000_000, "Gbit/s a node", above_low=True)
_LINK = NumberRange(0, 100_000, "GB/s a device")
_WATTS = NumberRange(0, 1_000_000, "W")
# What is assumed of a machine whose network is not known.
DEFAULT_NIC_GBIT_PER_S = 10.0
COLUMNS = (
    "provider", "type", "region", "device", "device_count", "vcpus", "memory_gib",
    "dollars_per_hour", "spot_dollars_per_hour", "listing", "link_gb_per_s", "nic_gbit_per_s",
    "nic_kind", "nic_source", "host_watts", "source", "commit", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine type of one provider in one region.

    Attributes:
        provider, type, region: as the provider names them.
        device: catalogue id of its accelerator; `cpu-TYPE` for a machine without one.
        device_count: accelerators in it; 1 for a machine without one.
        vcpus, memory_gib: of the host; 0 where not stated.
        dollars_per_hour: on demand; None where no price is known.
        spot_dollars_per_hour: None where no spot price is known.
        link_bytes_per_second: in-node rate per device and direction; 0 means the device's own.
        nic_bytes_per_second: network rate of the node, per direction.
        nic_kind: ethernet, infiniband (RoCE too) or efa.
        host_watts: beside its devices.
        source: of the price, with its commit.
        nic_fact: source of the network figures.
        marketplace: one private offer, not a cloud's list price.
        note: what the source says of this row.
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

    @property
    def nic_assumed(self) -> bool:
        """Whether nothing is known of the network."""
        return self.nic_fact.source.startswith("assumed")


@lru_cache(maxsize=1)
def packaged_instances() -> tuple[Instance, ...]:
    """Return the packaged machines."""
    return tuple(instance_of(row) for row in read_csv(DATA / "instances.csv"))


def instance_of(row: Row, device_id: str | None = None) -> Instance:
    """Return the machine of a row; `device_id` replaces the row's own label.

    Raises:
        RequestError: a name is missing, or a figure is out of its range.
    """
    for name in ("provider", "type"):
        if not row.get(name):
            raise RequestError(row.at(name), "it is missing", "give the name that you will use")
    device = device_id if device_id is not None else row.get("device")
    vcpus = row.number("vcpus", _VCPUS, default=0.0)
    count = int(row.number("device_count", _COUNT, default=1.0))
    nic_gbit = row.number("nic_gbit_per_s", _NIC, default=DEFAULT_NIC_GBIT_PER_S)
    stated = row.get("nic_gbit_per_s")
    nic_source = row.get("nic_source") or (_source(row) if stated else "network-assumed")
    return Instance(
        provider=row.get("provider").lower(),
        type=row.get("type"),
        region=row.get("region"),
        device=device or f"cpu-{row.get('type').lower()}",
        device_count=count,
        vcpus=vcpus,
        memory_gib=row.number("memory_gib", _MEMORY, default=0.0),
        dollars_per_hour=row.price("dollars_per_hour", DOLLARS),
        # Some price files write 0 where no spot price is known.
        spot_dollars_per_hour=row.price("spot_dollars_per_hour", DOLLARS) or None,
        link_bytes_per_second=row.number("link_gb_per_s", _LINK, default=0.0) * GIGA,
        nic_bytes_per_second=nic_gbit * GIGA / BITS_PER_BYTE,
        nic_kind=_nic_kind(row),
        host_watts=row.number("host_watts", _WATTS, default=host_watts(device, vcpus, count)),
        source=_source(row),
        nic_fact=fact_of(nic_source),
        marketplace=row.get("listing") == "marketplace",
        note=row.get("note"),
    )


def host_watts(device: str, vcpus: float, count: int) -> float:
    """Return an estimate of a host's power: 5 W a vCPU and 30 W an accelerator beside it.

    A CPU machine is its own device, so nothing is left over. Estimate, unverified.
    """
    if not device or device.startswith("cpu"):
        return 0.0
    return 5.0 * (vcpus or 16 * count) + 30.0 * count


def _source(row: Row) -> str:
    """Return the price's source in words, as of its commit where it has one."""
    source = fact_of(row.get("source")).source if row.get("source") else f"your file {row.file}"
    return f"{source}, as of commit {row.get('commit')[:12]}" if row.get("commit") else source


def _nic_kind(row: Row) -> str:
    """Return the kind of network, ethernet where the row says nothing."""
    kind = (row.get("nic_kind") or "ethernet").lower()
    if kind not in NIC_KINDS:
        raise RequestError(row.at("nic_kind"), f"it is {kind!r}", one_of(kind, NIC_KINDS))
    return kind
