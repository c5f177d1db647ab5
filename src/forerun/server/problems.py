"""Problems: errors as RFC 9457 documents that say what was asked, what was found, and what to do next."""

from __future__ import annotations

import json
from http import HTTPStatus

from forerun.errors import ForerunError, MissingExtraError, UnsatisfiedError

PROBLEM_JSON = "application/problem+json"


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
    if isinstance(error, UnsatisfiedError | MissingExtraError):
        status = 422 if isinstance(error, UnsatisfiedError) else 501
    headers = {"content-type": PROBLEM_JSON, "cache-control": "no-store"}
    if wait := getattr(error, "retry_seconds", 0):
        headers["retry-after"] = str(wait)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": str(error),
        "asked": error.asked, "found": error.found, "next": error.next_step, "error": type(error).__name__,
    }  # fmt: skip
    return status, headers, json.dumps(body).encode()
