"""Fingerprint: the software and the hardware that a figure was measured with."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("forerun", "torch", "ray", "transformers", "lightning", "numpy")


def fingerprint() -> dict[str, Any]:
    """Return names and versions of what this process runs on; what is not known is left out."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": _memory_bytes(),
    }
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if hasattr(os, "sched_getaffinity"):
        found["usable_cores"] = len(os.sched_getaffinity(0))
    return {**{k: v for k, v in found.items() if v}, **_torch()}


def _torch() -> dict[str, Any]:
    """Return what torch knows, where this process has loaded it."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[str, Any] = {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {"gpu": device.name, "gpu_bytes": device.total_memory, "cuda": torch.version.cuda}
        with suppress(RuntimeError, AttributeError):
            found["nccl"] = ".".join(str(n) for n in torch.cuda.nccl.version())
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found["backend"] = str(torch.distributed.get_backend())
    return found


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory_bytes() -> int:
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def joined(prints: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one fingerprint of several workers: a value, or the list of those that differ."""
    names = dict.fromkeys(name for one in prints for name in one)
    result: dict[str, Any] = {}
    for name in names:
        values: list[Any] = []
        for one in prints:
            if name in one and one[name] not in values:
                values.append(one[name])
        result[name] = values[0] if len(values) == 1 else values
    return result
