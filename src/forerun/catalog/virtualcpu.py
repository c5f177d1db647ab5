"""Virtual CPUs: a machine without accelerators as one CPU device, scaled from one vCPU."""

from __future__ import annotations

from dataclasses import replace

from forerun.catalog.instances import Instance
from forerun.catalog.sources import fact_of
from forerun.domain.hardware import Device

_BYTES_PER_GIB = 2**30


def scaled_cpu(unit: Device, instance: Instance) -> Device:
    """Return a machine as a device: its vCPUs times the figures of one vCPU, its own memory."""
    vcpus = max(instance.vcpus, 1.0)
    scaled = fact_of("derived-vcpu")
    facts = {
        **unit.facts,
        **{name: scaled for name in unit.facts if name.startswith("peak_flops")},
        **dict.fromkeys(
            ("memory_bytes_per_second", "host_bytes_per_second", "watts", "name"), scaled
        ),
        "memory_bytes": fact_of(instance.source),
        "node_bytes_per_second": instance.nic_fact,
    }
    memory_bytes = instance.memory_gib * _BYTES_PER_GIB or unit.memory_bytes * vcpus
    return replace(
        unit,
        id=instance.device,
        name=f"{instance.name} ({vcpus:g} vCPU)",
        memory_bytes=memory_bytes,
        memory_bytes_per_second=unit.memory_bytes_per_second * vcpus,
        peak_flops={name: rate * vcpus for name, rate in unit.peak_flops.items()},
        watts=unit.watts * vcpus,
        host_bytes_per_second=unit.host_bytes_per_second * vcpus,
        node_bytes_per_second=instance.nic_bytes_per_second,
        facts=facts,
    )
