"""Tokens: who may ask what; a file keeps a hash of each with its scopes and its end."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from forerun.errors import RequestError, UnknownNameError
from forerun.server.problems import HttpError
from forerun.tables.files import write_whole

SCOPES = ("read", "predict", "run", "admin")


@dataclass(frozen=True)
class Token:
    """A token as its file keeps it: the SHA-256 of a random secret of 256 bits; `expires` in ISO 8601, UTC.

    of: whose it is, in the words of who made it.
    """

    id: str
    hash: str
    scopes: tuple[str, ...]
    expires: str
    of: str = ""


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(file: Path, scopes: Sequence[str], days: float, of: str = "") -> str:
    """Add a token to a file, made where there is none, and return its text, which nothing keeps.

    Raises:
        RequestError: the file cannot be read or written.
    """
    known = read_tokens(file, file.stat().st_mtime_ns) if file.exists() else {}
    name, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    end = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    _write(
        file, [*known.values(), Token(name, _hash(secret), tuple(dict.fromkeys(scopes)), end, of)]
    )
    return f"forerun_{name}_{secret}"


def revoke_token(file: Path, name: str) -> None:
    """Take a token out of its file, by its id. Raises RequestError."""
    known = read_tokens(file, file.stat().st_mtime_ns if file.exists() else 0)
    if name not in known:
        raise UnknownNameError("token", name, known)
    _write(file, [one for one in known.values() if one.id != name])


def _write(file: Path, tokens: Sequence[Token]) -> None:
    body = json.dumps({"tokens": [asdict(one) for one in tokens]}, indent=2)

    def write(path: str) -> None:
        Path(path).touch(0o600)
        Path(path).write_text(body + "\n", encoding="utf-8")

    write_whole(file, write)
    file.chmod(0o600)


@lru_cache(maxsize=1)
def read_tokens(file: Path, changed: int = 0) -> dict[str, Token]:
    """Return a file's tokens by id, read once as long as it has not changed. Raises RequestError."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["tokens"]
        tokens = [Token(**{**row, "scopes": tuple(row["scopes"])}) for row in rows]
        return {one.id: one for one in tokens if datetime.fromisoformat(one.expires).tzinfo}
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = getattr(error, "strerror", None) or "it is no file of tokens"
        todo = f"make one: forerun serve token create --tokens {file} --scope predict"
        raise RequestError(f"the tokens in {file}", found, todo) from None


def admit(file: Path, header: str, scope: str) -> str:
    """Return the id of the token in an `Authorization` header. Raises HttpError where it has no such scope."""
    try:
        known = read_tokens(file, file.stat().st_mtime_ns)
    except (OSError, RequestError):  # what was known before lets nobody in
        known = {}
    kind, _, text = header.strip().partition(" ")
    name, _, secret = text.removeprefix("forerun_").partition("_")
    token = known.get(name)
    right = hmac.compare_digest(_hash(secret), token.hash if token else _hash(""))
    asked, todo = (
        "a request", "send the header `Authorization: Bearer TOKEN` with one that is valid",
    )  # fmt: skip
    if kind.lower() != "bearer" or token is None or not right:
        raise HttpError(401, asked, "it has no token, or one that is not known", todo)
    if datetime.fromisoformat(token.expires) <= datetime.now(UTC):
        raise HttpError(401, asked, f"its token ended on {token.expires}", todo)
    if not {scope, "admin"} & set(token.scopes):
        found = f"its token has the scopes {', '.join(token.scopes)}, and {scope} is needed"
        raise HttpError(403, asked, found, "use another token")
    return token.id
