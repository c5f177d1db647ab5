"""Kept: entries that were judged before, a line of JSON each, so that a run cut short loses none."""

from __future__ import annotations

import json
import os
from pathlib import Path

from forerun.errors import RequestError
from forerun.evaluate.entries import Entry, Key


class Kept:
    """A file of entries that only grows. A line that was cut short is passed over.

    Each entry is on disk before the next one is judged. Several processes may add to one file: a
    line is written at once, to its end.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the entries of a file, if there is one; None keeps them in memory alone.

        Raises:
            RequestError: it cannot be read, or is a file of something else.
        """
        self.path = path
        self.entries: dict[Key, Entry] = {}
        self.unreadable = 0
        if path is not None and path.exists():
            self._read(path)

    def get(self, key: Key) -> Entry | None:
        """Return the entry of such a key, None where it was not judged."""
        return self.entries.get(key)

    def add(self, entry: Entry) -> None:
        """Keep an entry. Raises RequestError where it cannot be written."""
        self.entries[entry.key] = entry
        if self.path is None:
            return
        line = json.dumps(entry.as_dict(), separators=(",", ":"), allow_nan=False) + "\n"
        try:
            with self.path.open("ab+") as file:
                # A line that was cut short must not swallow this one.
                if file.tell() and _last_byte(self.path) != b"\n":
                    line = "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _trouble(self.path, error, "written") from None

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise _trouble(path, error, "read") from None
        for line in filter(None, lines):
            try:
                entry = Entry.from_dict(json.loads(line))
            except (KeyError, TypeError, ValueError):
                self.unreadable += 1
                continue
            self.entries[entry.key] = entry
        # Entries of another format are judged again; a file of something else is not written to.
        if not self.entries and not all(line.startswith(b'{"format":') for line in lines if line):
            raise RequestError(
                f"--cache {path}", "it holds no entries of a leaderboard",
                "name a file that `forerun leaderboard` wrote, or a new one",
            )  # fmt: skip


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _trouble(path: Path, error: OSError, verb: str) -> RequestError:
    return RequestError(
        f"--cache {path}", f"it cannot be {verb}: {error.strerror}", "name another file"
    )
