"""Problems: errors as RFC 9457 documents that say what was asked, what was found, and what to do next."""

from __future__ import annotations

import json
from http import HTTPStatus

from forerun.errors import ForerunError, MissingExtraError, UnavailableError, UnsatisfiedError

PROBLEM_JSON = "application/problem+json"
_RETRY_SECONDS = 5
_TEXTS = ("type", "title", "detail", "asked", "found", "next")
# The JSON Schema of a problem.
PROBLEM = {
    "type": "object", "required": [*_TEXTS, "status"],
    "properties": {**{name: {"type": "string"} for name in _TEXTS}, "status": {"type": "integer"}},
}  # fmt: skip


class HttpError(ForerunError):
    """A request that is refused with a status of its own; retry_seconds: when it may come again."""

    def __init__(
        self, status: int, asked: str, found: str, next_step: str, retry_seconds: int = 0
    ) -> None:
        super().__init__(asked, found, next_step)
        self.status = status
        self.retry_seconds = retry_seconds


def problem(error: ForerunError) -> tuple[int, dict[str, str], bytes]:
    """Return the status, headers and document of an error."""
    status = error.status if isinstance(error, HttpError) else 400
    for kind, other in ((UnsatisfiedError, 422), (MissingExtraError, 501), (UnavailableError, 503)):
        status = other if isinstance(error, kind) else status
    headers = {"content-type": PROBLEM_JSON, "cache-control": "no-store"}
    wait = _RETRY_SECONDS if isinstance(error, UnavailableError) else 0
    if wait := getattr(error, "retry_seconds", wait):
        headers["retry-after"] = str(wait)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": str(error),
        "asked": error.asked, "found": error.found, "next": error.next_step, "error": type(error).__name__,
    }  # fmt: skip
    return status, headers, json.dumps(body).encode()
