"""Labels: what people call a device, brought to the one device that it can mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from forerun.catalog.devices import aliases_of
from forerun.catalog.rows import DATA, Row, read_csv
from forerun.errors import RequestError

_MAKERS = re.compile(
    r"^(?:(?:nvidia|amd|google|intel|habana|graphcore|huawei|aws|geforce|tesla|instinct)[\s_-]+)+"
)
_SXM_GENERATION = re.compile(r"sxm[2-6](?![0-9])")
_LABEL = re.compile(r"[A-Za-z0-9\s._+$()/-]+")
_MEMORY = re.compile(r"^[0-9]+g[bi]?b?$")


def squeeze(label: str) -> str:
    """Return a label in small letters and digits only, without its maker's name."""
    return re.sub(r"[^a-z0-9+.$]", "", _MAKERS.sub("", label.strip().lower()))


def readings(label: str) -> list[str]:
    """Return the squeezed readings of a label, most literal first.

    The form's generation may be left out (`sxm5` is `sxm`), and the memory may stand before the
    form (`A100 80GB PCIe`).
    """
    text = _MAKERS.sub("", label.strip().lower())
    plain = _SXM_GENERATION.sub("sxm", text)
    parts = re.split(r"[\s_-]+", plain)
    memory = [part for part in parts if _MEMORY.match(part)]
    moved = "".join([part for part in parts if part not in memory] + memory)
    return list(dict.fromkeys(squeeze(reading) for reading in (text, plain, moved)))


def index_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return squeezed ids and aliases, each with its device's id; also with the memory behind it.

    Raises:
        RequestError: two devices would answer to one label.
    """
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
