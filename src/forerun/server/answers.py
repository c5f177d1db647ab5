"""Answers that are kept: by the hash of what was asked, as bytes that are sent again as they are."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

_LARGEST_SHARE = 16  # no answer takes more of the memory than one part in so many


@dataclass(frozen=True)
class KeptAnswer:
    """An answer's body and its entity tag."""

    body: bytes
    etag: bytes

    @staticmethod
    def of(body: bytes) -> KeptAnswer:
        """Return a body with its tag."""
        return KeptAnswer(body, b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode())


class AnswerCache:
    """Answers by what was asked; those that nobody asked for longest make room."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._kept: OrderedDict[bytes, KeptAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @staticmethod
    def key(*asked: bytes) -> bytes:
        """Return the key of a request from its method, path, query and body."""
        return hashlib.sha256(b"\0".join(asked)).digest()

    def get(self, key: bytes) -> KeptAnswer | None:
        """Return an answer, which counts as used, or None."""
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, answer: KeptAnswer) -> None:
        """Keep an answer unless it is large."""
        size = len(answer.body)
        if size * _LARGEST_SHARE > self._most or key in self._kept:
            return
        self._kept[key] = answer
        self._bytes += size
        while self._bytes > self._most:
            self._bytes -= len(self._kept.popitem(last=False)[1].body)
