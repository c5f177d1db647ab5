"""Entry: one named workload of the zoo and how to build it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class Entry:
    """One named workload.

    Attributes:
        name: zoo id, lower case with dashes, e.g. `llama3-8b`.
        family: architecture family, e.g. `llama`.
        build: called with keyword arguments only. A language entry takes `seq_len: int | None`,
            `fused_attention: bool | None`; an image entry `image_size: int | None`; all take
            `precision: str | None` and `optimizer: str | None`; None means the entry's default.
            A keyword that an entry cannot honour is refused with RequestError by `zoo_workload`
            before `build` is called (by the defaults below: 0 means that it has none).
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
