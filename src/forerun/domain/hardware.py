"""Device, Link and Cluster: what a job may run on, in SI units, with an hourly price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forerun.errors import RequestError

if TYPE_CHECKING:  # a look at the catalogue loads no arrays
    from forerun.domain.measured import Measured

# Where a data sheet gives no rate for a precision, the next one in the list serves.
_FALLBACK = {
    "fp4": ("fp8", "bf16", "fp16", "fp32"), "fp8": ("bf16", "fp16", "fp32"),
    "bf16": ("fp32", "fp16"), "fp16": ("bf16", "fp32"), "tf32": ("fp32", "bf16"),
    "fp32": ("bf16", "fp16"), "fp64": (),
}  # fmt: skip
_WITHOUT_MATRIX_UNIT = ("kepler", "maxwell", "pascal")
# fp64 and emulated rates, where a data sheet is silent, as a share of fp32.
_FP64_SHARE = 1 / 32


@dataclass(frozen=True, slots=True)
class Fact:
    """Where a figure comes from: a named source with its date or commit, or `unverified`."""

    source: str
    verified: bool = True


@dataclass(frozen=True)
class Device:
    """One accelerator or CPU, as its data sheet states it.

    Attributes:
        kind: gpu, tpu, accelerator or cpu.
        generation: architecture; devices of one generation share priors.
        peak_flops: dense rate by precision (two a multiply-add), with fp32 accumulation.
        link_bytes_per_second: to neighbours in a node, per device and direction; 0 where PCIe carries it.
        host_bytes_per_second, node_bytes_per_second: to the host (PCIe) and, usually, between nodes,
            per device and direction.
        devices_per_node: usual number in a node.
        facts: for each field its source.
        measured: what a probe found.
    """

    id: str
    name: str
    vendor: str
    kind: str
    generation: str
    year: int
    memory_bytes: float
    memory_bytes_per_second: float
    peak_flops: Mapping[str, float]
    watts: float
    link_bytes_per_second: float
    host_bytes_per_second: float
    node_bytes_per_second: float
    devices_per_node: int
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict, compare=False)
    measured: Measured | None = None

    def __hash__(self) -> int:
        return hash((self.id, self.memory_bytes, self.memory_bytes_per_second, self.watts))

    def flops(self, precision: str) -> float:
        """Return the dense peak FLOP/s of a precision, or of the one it is computed as. Raises RequestError."""
        used = self.computed_as(precision)
        if used in self.peak_flops:
            return self.peak_flops[used]
        if precision == "fp64":
            return self.flops("fp32") * _FP64_SHARE
        raise RequestError(
            f"the {precision} rate of {self.id}", f"its rates are {', '.join(self.peak_flops)}",
            "use one of those precisions, or add the rate to your catalogue file",
        )  # fmt: skip

    def computed_as(self, precision: str) -> str:
        """Return the precision whose rate `flops` gives: the nearest that is stated."""
        if precision in self.peak_flops:
            return precision
        return next((p for p in _FALLBACK.get(precision, ()) if p in self.peak_flops), precision)

    def has_matrix_unit(self, precision: str) -> bool:
        """Whether matrix products of a precision run on a matrix unit, not on vector units."""
        if self.kind in ("tpu", "accelerator"):
            return True
        if self.kind == "cpu" or precision == "fp64":
            return False
        if precision == "fp32":
            return self.generation in ("cdna1", "cdna2", "cdna3")
        if precision == "bf16" and self.generation in ("volta", "turing"):
            return False
        return self.generation not in _WITHOUT_MATRIX_UNIT


@dataclass(frozen=True, slots=True)
class Link:
    """A connection: latency and bandwidth per device and direction; kind: as in the catalogue."""

    kind: str
    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (self.bytes_per_second > 0 and self.latency_seconds >= 0):
            raise RequestError(
                f"a {self.kind} link of {self.bytes_per_second} bytes/s and {self.latency_seconds} s",
                "a link needs a positive rate and no negative latency", "correct the link",
            )  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal devices, joined by links, at an hourly price.

    Attributes:
        name: as it is written, e.g. `4x8xh100-sxm-80gb` or `4xaws:p5.48xlarge`.
        dollars_per_hour, spot_dollars_per_hour: the whole cluster; None where not known or offered.
        placement: devices used on each node, where they are uneven.
        fabric_devices: that the link inside a node joins across nodes; 0 where it ends there.
        host_watts, host_memory_bytes: of a node's host, beside its devices; 0 where not stated.
        rented: at a cloud's price, so that it starts up first; plain devices are one's own.
        least_billed_seconds: what a cloud bills of each machine at least; 0 where the cluster is one's own.
    """

    name: str
    device: Device
    nodes: int
    devices_per_node: int
    intra: Link
    inter: Link
    dollars_per_hour: float | None = None
    spot_dollars_per_hour: float | None = None
    provider: str = ""
    instance_type: str = ""
    region: str = ""
    carbon_kg_per_kwh: float | None = None
    host_watts: float = 0.0
    host_memory_bytes: float = 0.0
    vcpus_per_device: float = 0.0
    placement: tuple[int, ...] = ()
    fabric_devices: int = 0
    price_source: str = ""
    warnings: tuple[str, ...] = ()
    rented: bool = False
    least_billed_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.devices_per_node < 1:
            raise RequestError(
                f"cluster {self.name!r}", f"{self.nodes} nodes of {self.devices_per_node} devices",
                "a cluster needs at least one node and one device in it",
            )  # fmt: skip
        uneven = self.placement
        if uneven and (len(uneven) != self.nodes or min(uneven) < 0 or sum(uneven) < 1):
            raise RequestError(
                f"placement {uneven} on {self.nodes} nodes",
                f"it names {len(uneven)} nodes and {sum(uneven)} devices",
                "give one count for each node: zero or more devices, and one at least",
            )
        for price in (self.dollars_per_hour, self.spot_dollars_per_hour):
            if price is not None and not 0 <= price < float("inf"):
                raise RequestError(
                    f"cluster {self.name!r} at {price} USD/h",
                    "a price is a finite number of dollars, zero or more",
                    "correct the price, or leave it out where it is not known",
                )

    @property
    def devices(self) -> int:
        """Devices in all."""
        return sum(self.placement) if self.placement else self.nodes * self.devices_per_node

    def of_nodes(self, nodes: int) -> Cluster:
        """Return so many nodes alike, each at what one of these costs."""
        on_demand, spot = (
            None if price is None else price * nodes / self.nodes
            for price in (self.dollars_per_hour, self.spot_dollars_per_hour)
        )
        return replace(self, nodes=nodes, dollars_per_hour=on_demand, spot_dollars_per_hour=spot)

    @property
    def near_devices(self) -> int:
        """Devices that the link inside a node joins: those of a node, or of a whole fabric."""
        in_node = max(self.placement, default=self.devices_per_node)
        return max(in_node, self.fabric_devices)

    @property
    def watts(self) -> float:
        """Board power of all devices plus their hosts."""
        return self.devices * self.device.watts + self.nodes * self.host_watts
