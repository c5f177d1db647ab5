"""Tokens: who may ask what; a file keeps a hash of each with its scopes and its end."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from forerun.errors import RequestError
from forerun.server.problems import HttpProblem
from forerun.tables.files import write_whole

SCOPES = ("read", "predict", "run", "admin")
_PREFIX = "forerun"


@dataclass(frozen=True, repr=False)
class Token:
    """One token as its file keeps it: hash is the SHA-256 of a random secret of 256 bits.

    created, expires: ISO 8601 in UTC. `admin` among the scopes stands for all of them.
    """

    id: str
    hash: str
    scopes: tuple[str, ...]
    created: str
    expires: str

    def allows(self, scope: str) -> bool:
        """Return whether the token has a scope."""
        return scope in self.scopes or "admin" in self.scopes


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create(file: Path, scopes: Sequence[str], days: float) -> str:
    """Add a token to a file, which is made where there is none, and return its text, kept nowhere else.

    Raises:
        RequestError: the file cannot be read or written.
    """
    known = read(file) if file.exists() else {}
    made, text = datetime.now(UTC), secrets.token_urlsafe(32)
    token = Token(
        secrets.token_hex(6), _hash(text), tuple(dict.fromkeys(scopes)),
        made.isoformat(timespec="seconds"), (made + timedelta(days=days)).isoformat(timespec="seconds"),
    )  # fmt: skip
    body = json.dumps({"tokens": [asdict(one) for one in (*known.values(), token)]}, indent=2)

    def write(name: str) -> None:
        with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(body + "\n")

    write_whole(file, write)
    file.chmod(0o600)
    return f"{_PREFIX}_{token.id}_{text}"


def read(file: Path) -> dict[str, Token]:
    """Return the tokens of a file by id. Raises RequestError where it has none that can be read."""
    asked = f"the tokens in {file}"
    todo = f"make one: forerun serve token create --tokens {file} --scope predict"
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["tokens"]
        tokens = [Token(**{**row, "scopes": tuple(row["scopes"])}) for row in rows]
        for token in tokens:
            datetime.fromisoformat(token.expires)
    except OSError as error:
        raise RequestError(asked, f"it cannot be read ({error.strerror})", todo) from None
    except (ValueError, KeyError, TypeError):
        found = "it is no file that `forerun serve token create` wrote"
        raise RequestError(asked, found, todo) from None
    return {token.id: token for token in tokens}


class Tokens:
    """The tokens of a file, read again when it changes, so that a token that is taken out ends at once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed: Any = None
        self._known: dict[str, Token] = {}
        self._fresh()

    def _fresh(self) -> None:
        found = self._file.stat() if self._file.exists() else None
        changed = None if found is None else (found.st_mtime_ns, found.st_ino)
        if changed is None or changed != self._changed:
            self._known, self._changed = read(self._file), changed

    def admit(self, header: str, scope: str) -> Token:
        """Return the token of an `Authorization` header. Raises HttpProblem where it does not open a scope."""
        try:
            self._fresh()
        except RequestError:  # nobody is let in by what was known before
            self._known, self._changed = {}, None
        kind, _, text = header.partition(" ")
        prefix, _, rest = text.strip().partition("_")
        name, _, secret = rest.partition("_")
        token = self._known.get(name)
        given = hmac.compare_digest(_hash(secret), token.hash if token else _hash(""))
        todo = "send the header Authorization: Bearer TOKEN; `forerun serve token create` makes one"
        if kind.lower() != "bearer" or prefix != _PREFIX or token is None or not given:
            raise HttpProblem(401, "who asks", "no token, or one that is not known", todo)
        if datetime.fromisoformat(token.expires) <= datetime.now(UTC):
            raise HttpProblem(401, "who asks", f"the token ended on {token.expires}", todo)
        if not token.allows(scope):
            found = f"the token has the scopes {', '.join(token.scopes)}"
            raise HttpProblem(403, f"a request that needs the scope {scope}", found, "use another token")
        return token
