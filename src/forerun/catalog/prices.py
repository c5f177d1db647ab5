"""Prices: which machine's price a cluster of plain devices is given, and in whose words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forerun.catalog.instances import Instance

# A machine whose network has less than this share of the rate that the cluster is predicted with
# is not the machine that was asked for, where there are several nodes.
_ENOUGH_NETWORK = 0.4


@dataclass(frozen=True, slots=True)
class Offer:
    """A price for one node of a cluster, and the machine that it was read from."""

    instance: Instance
    dollars_per_hour: float
    spot_dollars_per_hour: float | None
    scaled: bool
    enough_network: bool

    @property
    def source(self) -> str:
        """What was priced, and where it was read."""
        text = self.instance.price_source
        if self.scaled:
            text += "; scaled by the number of devices, as no machine has that number"
        if self.instance.marketplace:
            text += "; one offer of a marketplace"
        return text


def choose_offer(
    instances: Iterable[Instance],
    device_id: str,
    devices_per_node: int,
    network_bytes_per_second: float = 0.0,
    region: str = "",
) -> Offer | None:
    """Return the cheapest on-demand offer of this device, or None where nobody prices it.

    Preferred in this order: machines with this number of devices; list prices over single offers
    of marketplaces; machines whose network per device comes near `network_bytes_per_second`
    (0: one node, any network will do); the price per device.
    """
    offers = [
        i for i in instances
        if i.device == device_id and i.dollars_per_hour is not None
        and (not region or i.region.lower() == region.lower())
    ]  # fmt: skip
    if not offers:
        return None
    best = min(
        offers,
        key=lambda i: (
            i.device_count != devices_per_node,
            i.marketplace,
            not _network_serves(i, network_bytes_per_second),
            (i.dollars_per_hour or 0.0) / i.device_count,
            i.name,
            i.region,
        ),
    )
    share = devices_per_node / best.device_count
    spot = best.spot_dollars_per_hour
    return Offer(
        best,
        (best.dollars_per_hour or 0.0) * share,
        None if spot is None else spot * share,
        best.device_count != devices_per_node,
        _network_serves(best, network_bytes_per_second),
    )


def cheapest_region(instances: Sequence[Instance]) -> Instance:
    """Return the row with the lowest on-demand price, else the lowest spot price."""
    return min(
        instances,
        key=lambda i: (
            i.dollars_per_hour is None,
            i.dollars_per_hour or 0.0,
            i.spot_dollars_per_hour is None,
            i.spot_dollars_per_hour or 0.0,
            i.region,
        ),
    )


def _network_serves(instance: Instance, bytes_per_second: float) -> bool:
    """Whether the machine's network per device comes near the rate that is counted on."""
    per_device = instance.nic_bytes_per_second / instance.device_count
    return per_device >= _ENOUGH_NETWORK * bytes_per_second
