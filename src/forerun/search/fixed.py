"""Fixed: when no cluster can take the plan fields that a person fixed, say which and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from forerun.errors import RequestError
from forerun.search.space import RULES, Space

_SEPARATE = ("global_batch",)  # asked for beside the plan, and searched by itself


def refuse_fixed(space: Space, refused: Mapping[str, int]) -> None:
    """Raise where the fixed fields are what leaves the space without a legal plan.

    Args:
        space: it has no legal plan.
        refused: why, counted.

    Raises:
        RequestError: naming the fields, without which there would be legal plans.
    """
    fields = [name for name in space.fixed if name not in _SEPARATE]
    guilty = [name for name in fields if _any_legal(_without(space, (name,)))]
    if not guilty and len(fields) > 1 and _any_legal(_without(space, fields)):
        guilty = fields
    if not guilty:
        return
    named = ", ".join(f"{name}={_text(space.fixed[name])}" for name in guilty)
    reasons = sorted(refused, key=lambda reason: -refused[reason])
    alone = len({cluster.name for cluster in space.clusters}) == 1
    where = f"{space.clusters[0].name} cannot" if alone else "no cluster that was looked at can"
    raise RequestError(
        f"{space.workload.name} with {', '.join(f'{n}={_text(space.fixed[n])}' for n in fields)}",
        f"{where} take {named}: {'; '.join(reasons[:2])}{_sizes(space, reasons[:2])}",
        f"leave {guilty[0] if len(guilty) == 1 else 'one of them'} to the search, or change it",
    )


def _without(space: Space, names: Iterable[str]) -> Space:
    return replace(space, fixed={k: v for k, v in space.fixed.items() if k not in names})


def _any_legal(space: Space) -> bool:
    return any(len(plans) for plans, _, _ in space.worlds())


def _sizes(space: Space, reasons: Iterable[str]) -> str:
    """Return the numbers of devices, where the number is what does not agree."""
    if RULES[1] not in reasons:
        return ""
    sizes = sorted({cluster.devices for cluster in space.clusters})
    shown = ", ".join(f"{size:,}" for size in sizes[:6]) + (" ..." if len(sizes) > 6 else "")
    return f" ({shown} devices)"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
