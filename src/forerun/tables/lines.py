"""Lines: where each row of a table was written, so that a complaint can point at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lines:
    """The file and line of n rows.

    Attributes:
        files: the distinct files, "" for rows that come from none.
        file: (n,) positions in them.
        line: (n,) lines, the header being line 1; rows from 1 where a file has no lines.
        word: what `line` counts in each file: `line` or `row`.
    """

    files: tuple[str, ...]
    file: NDArray[np.int32]
    line: NDArray[np.int32]
    word: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.file)

    @staticmethod
    def of_file(name: str, line: Sequence[int] | NDArray[Any], word: str = "line") -> Lines:
        """Return the places of one file's rows."""
        lines = np.asarray(line, dtype=np.int32)
        return Lines((name,), np.zeros(len(lines), dtype=np.int32), lines, (word,))

    @staticmethod
    def nowhere(n: int) -> Lines:
        """Return the places of n rows that no file holds: they are counted from 1."""
        return Lines.of_file("", np.arange(1, n + 1), "row")

    def take(self, index: NDArray[Any]) -> Lines:
        """Return the places of the rows at the given positions (or where a mask is true)."""
        return Lines(self.files, self.file[index], self.line[index], self.word)

    def text(self, row: int) -> str:
        """Return where a row stands: `runs.csv line 17`, or `row 16`."""
        at = int(self.file[row])
        return f"{self.files[at]} {self.word[at]} {int(self.line[row])}".strip()


def joined_lines(parts: Sequence[Lines]) -> Lines:
    """Return the places of the rows of all parts, in order."""
    starts = np.cumsum([0, *(len(part.files) for part in parts)])
    moved = [part.file + start for part, start in zip(parts, starts, strict=False)]
    return Lines(
        tuple(name for part in parts for name in part.files),
        np.concatenate(moved).astype(np.int32),
        np.concatenate([part.line for part in parts]),
        tuple(word for part in parts for word in part.word),
    )
