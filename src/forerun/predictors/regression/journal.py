"""Journal: experiments that are finished, a line each, so that starting again repeats none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError

Scores = Mapping[str, Mapping[str, float]]


class Journal:
    """Scores by experiment: in memory, and in a file of JSON lines where one is named.

    A line is written as soon as its experiment is done. One that was cut off by the end of the
    process is passed over; nothing that is there is overwritten.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._done: dict[str, dict[str, dict[str, float]]] = {}
        if path is not None and path.exists():
            self._read(path)

    def __len__(self) -> int:
        return len(self._done)

    def find(
        self, key: str, technique: str, parameters: Mapping[str, Any]
    ) -> dict[str, dict[str, float]] | None:
        """Return the scores of an experiment that is finished, else None."""
        return self._done.get(_name(key, technique, parameters))

    def add(self, key: str, technique: str, parameters: Mapping[str, Any], scores: Scores) -> None:
        """Keep the scores of an experiment."""
        name = _name(key, technique, parameters)
        self._done[name] = {k: dict(v) for k, v in scores.items()}
        if self.path is None:
            return
        line = {"experiment": name, "technique": technique, "parameters": dict(parameters),
                "scores": self._done[name]}  # fmt: skip
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._done[str(entry["experiment"])] = dict(entry["scores"])
            except (ValueError, KeyError, TypeError):
                if number == len(lines) and not line.endswith("\n"):
                    # Cut off: the next line must not be written behind it.
                    with path.open("a", encoding="utf-8") as file:
                        file.write("\n")
                    continue
                if line.strip() and not line.lstrip().startswith('{"experiment"'):
                    raise RequestError(
                        f"reading the journal {path}", f"line {number} is no experiment",
                        "name another file",
                    ) from None  # fmt: skip


def fingerprint(x: FloatArray, y: FloatArray, settings: str) -> str:
    """Return what tells one set of experiments from another: data and settings."""
    digest = hashlib.sha256(settings.encode())
    for array in (x, y):
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:24]


def _name(key: str, technique: str, parameters: Mapping[str, Any]) -> str:
    given = json.dumps(dict(parameters), sort_keys=True, default=str)
    return f"{key}:{technique}:{given}"
