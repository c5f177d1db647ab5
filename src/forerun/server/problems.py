"""Problems: errors as RFC 9457 documents that say what was asked, what was found, and what to do next."""

from __future__ import annotations

import json
from http import HTTPStatus

from forerun.errors import (
    ForerunError,
    MissingExtraError,
    RequestError,
    UnknownNameError,
    UnsatisfiedError,
    nearest_names,
)

CONTENT_TYPE = "application/problem+json"
# A type of problem by its status; 422 is a sound question that nothing satisfies.
_TYPES = {
    400: "wrong-request", 401: "no-token", 403: "forbidden", 404: "not-found", 405: "wrong-method",
    408: "slow-request", 411: "wrong-request", 413: "too-large", 415: "wrong-content-type",
    422: "unsatisfied", 429: "too-many-requests", 500: "defect", 501: "not-installed", 503: "unavailable",
}  # fmt: skip


class HttpProblem(ForerunError):
    """A request that the service refuses with a status of its own."""

    def __init__(
        self, status: int, asked: str, found: str, next_step: str, retry_seconds: int = 0
    ) -> None:
        super().__init__(asked, found, next_step)
        self.status = status
        self.retry_seconds = retry_seconds


def status_of(error: ForerunError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, HttpProblem):
        return error.status
    if isinstance(error, MissingExtraError):
        return 501
    return 422 if isinstance(error, UnsatisfiedError) else 400


def document(error: ForerunError) -> bytes:
    """Return the document of an error."""
    status = status_of(error)
    return json.dumps({
        "type": f"urn:forerun:problem:{_TYPES[status]}", "title": HTTPStatus(status).phrase, "status": status,
        "detail": str(error), "asked": error.asked, "found": error.found, "next": error.next_step,
    }).encode()  # fmt: skip


def missing(error: UnknownNameError) -> HttpProblem:
    """Return the problem of an unknown name that stands in a path."""
    return HttpProblem(404, error.asked, error.found, error.next_step)


def defect(number: str) -> HttpProblem:
    """Return the problem of a failure whose details the log has under a number."""
    found = f"a defect of forerun, {number} in the server's log"
    return HttpProblem(500, "answering", found, "report it with what the log says")


def unknown_field(name: str, known: list[str], where: str) -> RequestError:
    """Return the error for a field that a request cannot have."""
    near = nearest_names(name, known)
    todo = f"did you mean {', '.join(near)}?" if near else f"use one of {', '.join(known)}"
    return RequestError(f"the field {name[:80]!r} of {where}", "no such field", todo)
