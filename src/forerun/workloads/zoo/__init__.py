"""The zoo: workloads by name, each with its published structure and usual training length.

The tables `data/language.json`, `data/networks.json` and `data/timm.json` name the workloads; see
`scripts/capture_zoo.py` for where the layers of networks are from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from forerun.domain.workload import Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.zoo.language import LanguageModel
from forerun.workloads.zoo.network import DATA, Network

__all__ = ["Entry", "find_entry", "zoo_entry", "zoo_names", "zoo_workload"]

# Groups of the timm library whose attention keeps its scores in memory.
_KEEPS_SCORES = ("timm-plain-vits", "timm-stage-vits", "timm-mixed-vits")
_TIMM_NOTE = "structure as of the timm library in 2022; attention keeps its scores in memory"


@dataclass(frozen=True, slots=True)
class Entry:
    """One named workload.

    Attributes:
        name: zoo id, lower case with dashes, e.g. `llama3-8b`.
        family: architecture family, e.g. `llama`.
        build: called with keyword arguments only. A language entry takes `seq_len: int | None`,
            `fused_attention: bool | None`; an image entry `image_size: int | None`; all take
            `precision: str | None` and `optimizer: str | None`; None means the entry's default.
        description: one line for a listing.
        source: paper or published configuration of the structure.
        default_seq_len: tokens in a sample (0: the samples have none).
        default_image_size: pixels on a side (0: the samples have none).
        aliases: other names people and tables use.
        chooses_attention: `build` takes `fused_attention`; for others its form is fixed.
    """

    name: str
    family: str
    build: Callable[..., Workload]
    description: str
    source: str
    default_seq_len: int = 0
    default_image_size: int = 0
    aliases: tuple[str, ...] = ()
    chooses_attention: bool = False


def zoo_names() -> list[str]:
    """Return the ids of all workloads of the zoo, sorted."""
    return sorted({row.name for row in _index().values()})


def zoo_entry(name: str) -> Entry:
    """Return the entry of a name or alias; case, `_` and spaces do not matter.

    Raises:
        UnknownNameError: no such workload; the nearest names are offered.
    """
    entry = find_entry(name)
    if entry is None:
        known = [*_index(), *(row for group in _timm().values() for row in group)]
        raise UnknownNameError("workload", name, known, "`forerun workloads` lists them")
    return entry


def find_entry(name: str) -> Entry | None:
    """Return the entry of a name or alias, or None.

    Names of the timm library follow. `timm-` before a name means that library's structure where it
    differs from the zoo's: transformers whose scores stay in memory.
    """
    folded = _fold(name)
    plain = folded.removeprefix("timm-")
    row = _index().get(plain)
    if row is None or plain != folded:
        row = _timm_network(plain, folded, row)
    return None if row is None else _entry(row)


def zoo_workload(
    name: str,
    *,
    seq_len: int | None = None,
    image_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    fused_attention: bool | None = None,
) -> Workload:
    """Return a workload by name, with parts of it changed where they are given.

    Args:
        name: id or alias, e.g. `llama3-8b`.
        seq_len: tokens in a sample; refused where samples have none.
        image_size: pixels on a side; refused where samples have none.
        precision: one of `PRECISIONS`.
        optimizer: a key of `OPTIMIZER_STATES`.
        fused_attention: whether attention scores stay on the chip (language models).

    Raises:
        UnknownNameError: no such workload.
        RequestError: a change that this workload does not know, or a wrong value.
    """
    entry = zoo_entry(name)
    for field, value, default in (
        ("seq_len", seq_len, entry.default_seq_len),
        ("image_size", image_size, entry.default_image_size),
    ):
        if value is not None and not default:
            raise RequestError(
                f"workload {name!r} with {field}={value}",
                f"its samples have no {field}",
                f"leave {field} out",
            )
        if value is not None and value < 1:
            raise RequestError(
                f"workload {name!r} with {field}={value}",
                "the size is not above zero",
                f"give a positive {field}, for example {default}",
            )
    return _built(entry.name, seq_len, image_size, precision, optimizer, fused_attention)


@lru_cache(maxsize=4096)
def _built(
    name: str,
    seq_len: int | None,
    image_size: int | None,
    precision: str | None,
    optimizer: str | None,
    fused_attention: bool | None,
) -> Workload:
    entry = zoo_entry(name)
    changes: dict[str, Any] = {"precision": precision, "optimizer": optimizer}
    if entry.default_seq_len:
        changes |= {"seq_len": seq_len, "fused_attention": fused_attention}
    if entry.default_image_size:
        changes["image_size"] = image_size
    return entry.build(**changes)


@cache
def _index() -> dict[str, LanguageModel | Network]:
    """Return the rows of the tables by folded name and alias."""
    rows: list[LanguageModel | Network] = [Network(**row) for row in _table("networks")]
    for group in _table("language"):
        for shape in group["models"]:
            name, aliases = shape.pop("name"), shape.pop("aliases", ())
            whole = {**group["shape"], **shape}
            rows.append(
                LanguageModel(
                    name, group["family"], group["source"], whole, group["training"], aliases
                )
            )
    index: dict[str, LanguageModel | Network] = {}
    for row in rows:
        for name in (row.name, *row.aliases):
            index.setdefault(_fold(name), row)
    return index


@cache
def _timm() -> dict[str, dict[str, list[Any]]]:
    """Return the names of the timm library by data file: (layers, family, size) of each."""
    found: dict[str, dict[str, list[Any]]] = _table("timm")
    return found


def _timm_network(
    name: str, label: str, known: LanguageModel | Network | None
) -> LanguageModel | Network | None:
    """Return a network of that library; `known` is the zoo's, for those that are alike."""
    for file, networks in _timm().items():
        if name in networks and (known is None or file in _KEEPS_SCORES):
            layers, family, size = networks[name]
            return Network(
                label if file in _KEEPS_SCORES else name, family, file,
                "the timm library, 2022",
                "image classifier of the timm library, 1000 classes",
                layers, size=size, notes=(_TIMM_NOTE,),
            )  # fmt: skip
    return known


def _entry(row: LanguageModel | Network) -> Entry:
    if isinstance(row, LanguageModel):
        pixels, tokens = 0, row.shape["seq_len"]
    else:
        pixels = row.size if row.sample == "image" else 0
        tokens = row.size if row.sample == "sequence" else 0
    return Entry(
        row.name,
        row.family,
        row.build,
        row.description,
        row.source,
        tokens,
        pixels,
        tuple(row.aliases),
        isinstance(row, LanguageModel),
    )


def _table(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def _fold(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
