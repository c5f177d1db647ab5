"""None found: why no run answers a question, and what to ask instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from forerun.errors import nearest_names
from forerun.tables.conditions import Condition, parse_condition
from forerun.units import counted

_SHOWN = 6  # values of a column that are named
_READ = 2000


class Asked(Protocol):
    """What of a store is needed to say why."""

    def count(self, *, where: Iterable[str | Condition] = ()) -> int:
        """Return how many runs there are for which all conditions hold."""
        ...

    def values(self, column: str, limit: int | None = None) -> dict[str, int]:
        """Return a column's values and how many runs have each."""
        ...


def why_none(store: Asked, where: Iterable[str | Condition]) -> list[str]:
    """Return, for each condition that no run meets alone, which values there are, in words.

    Where each of them alone holds for some runs, how many these are.

    Args:
        store: that was asked.
        where: the conditions for which together there is no run.

    Raises:
        RequestError: no run has such a column, or it is no condition.
    """
    conditions = [c if isinstance(c, Condition) else parse_condition(c) for c in where]
    counts = [(one, store.count(where=[one])) for one in conditions]
    alone = [_of_one(one, store.values(one.column, _READ)) for one, count in counts if not count]
    if alone or len(counts) < 2:
        return alone
    each = ", ".join(f"{one} for {counted(count, 'run')}" for one, count in counts)
    return [f"each holds for some, all of them for none: {each}"]


def _of_one(condition: Condition, values: Mapping[str, int]) -> str:
    """Return what a column holds where no run meets a condition on it."""
    if not values:
        return f"{condition}: no run fills {condition.column}"
    sized = [value for value in values if _number(value) is not None]
    if len(sized) == len(values):
        values = {text: values[text] for text in sorted(sized, key=float)}
        if len(sized) > _SHOWN:
            ends = f"{min(sized, key=float)} to {max(sized, key=float)}"
            return f"{condition}: {condition.column} goes from {ends}"
    near = nearest_names(condition.values[0], values) if condition.sign == "=" else []
    meant = f"did you mean {', '.join(near)}? " if near and not sized else ""
    shown = [f"{value} ({counted(count, 'run')})" for value, count in values.items()]
    more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
    return f"{condition}: {meant}{condition.column} is {', '.join(shown[:_SHOWN])}{more}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
