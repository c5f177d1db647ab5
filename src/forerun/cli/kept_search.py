"""KeptSearch: a search in the store, step by step, so that the same search goes on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.errors import RequestError

if TYPE_CHECKING:
    from forerun.search.replay import Replay
    from forerun.search.searchers import Choice
    from forerun.store.sql_store import SqlStore


@dataclass(frozen=True)
class KeptSearch:
    """One search under a name; every run is kept as soon as it is made.

    Attributes:
        store: that keeps it.
        name: unique among its searches.
        box: the table that answers; its configurations are known by their place.
    """

    store: SqlStore
    name: str
    box: Replay

    def begun(self, spec: Mapping[str, Any]) -> list[Choice]:
        """Return the choices that were made already, none of a new search.

        Args:
            spec: all that decides what is asked for next.

        Raises:
            RequestError: another search has the name.
        """
        from forerun.search.searchers import Choice

        try:
            record = self.store.searches.put(self.name, spec)
        except RequestError:
            known = self.store.searches.get(self.name)
            had = {} if known is None else known.spec
            names = [name for name in {**had, **spec} if had.get(name) != spec.get(name)]
            raise RequestError(
                f"the search {self.name!r} in {self.store.where}",
                f"it was begun with another {' and '.join(names)}",
                "ask as it was begun, or keep this one under another name",
            ) from None
        return [
            Choice(int(step.partition(":")[0]), point.note) for step, point in record.points.items()
        ]

    def keep(self, choice: Choice) -> None:
        """Keep one run that was made, with why it was asked for."""
        step = f"{choice.at}: {self.box.land.words(choice.at)}"
        status = str(self.box.runs.status[choice.at])
        self.store.searches.mark(self.name, step, status, note=choice.reason)
