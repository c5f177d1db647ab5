"""Problems: errors as RFC 9457 documents that say what was asked, what was found, and what to do next."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from inspect import signature
from typing import Any, get_type_hints

from forerun.advisor import Advisor
from forerun.advisor.answer import JobRequest
from forerun.errors import ForerunError, MissingExtraError, UnavailableError, UnsatisfiedError

PROBLEM_JSON = "application/problem+json"
_RETRY_SECONDS = 5
_TEXTS = ("type", "title", "detail", "asked", "found", "next")
# The JSON Schema of a problem.
PROBLEM = {
    "type": "object", "required": [*_TEXTS, "status"],
    "properties": {**{name: {"type": "string"} for name in _TEXTS}, "status": {"type": "integer"}},
}  # fmt: skip
# What an option or a command of a message is in a request.
_FIELDS = {
    **get_type_hints(JobRequest),
    **signature(Advisor.recommend).parameters,
    "cluster": str,
    "candidates": str,
}
_OPTION = re.compile(rf"--({'|'.join(_FIELDS).replace('_', '-')})(?![\w-])")
_COMMAND = re.compile(
    r"`forerun (predict|recommend|explain|compare|support|suggest|runs|workloads|devices|instances|predictors|systems)\b[^`]*`"
)
# What is wrong with a value, by pydantic's type of error.
_WRONG: Mapping[str, str] = {
    "missing": "it is missing", "string_type": "it is no text", "bool_type": "it is neither true nor false",
    "int_type": "it is no whole number", "int_from_float": "it is no whole number", "int_parsing": "it is no whole number",
    "float_type": "it is no number", "finite_number": "it is not finite", "list_type": "it is no list",
    "dict_type": "it is no object", "model_type": "it is no object", "model_attributes_type": "it is no object",
    "literal_error": "it is not one of {expected}", "greater_than": "it is not above {gt}", "greater_than_equal": "it is below {ge}", "less_than_equal": "it is above {le}",
    "too_short": "it has {actual_length} entries, and needs {min_length} or more",
    "too_long": "it has more than {max_length} entries", "string_too_long": "it is longer than {max_length} characters",
    "string_too_short": "it is empty", "string_pattern_mismatch": "it is not of the form {pattern}",
}  # fmt: skip


def wrong(error: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of what an error of pydantic is about, and what is wrong with it."""
    # A value of several types has an error for each, with the type in its place.
    place = [
        str(part) for part in error["loc"] if not re.search(r"^(str|int|float|bool)$|\[", str(part))
    ]
    words = _WRONG.get(error["type"], error["msg"]).format(**error.get("ctx", {}))
    return ".".join(place), words


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
    given = {"asked": error.asked, "found": error.found, "next": error.next_step}
    own = {name: _of_rest(text) for name, text in given.items()}
    body = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status,
        "detail": str(ForerunError(*own.values())), **own, "error": type(error).__name__,
        **({} if own == given else {"command_line": list(given.values())}),
    }  # fmt: skip
    return status, headers, json.dumps(body).encode()


def _of_rest(text: str) -> str:
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), _COMMAND.sub(r"/v1/\1", text))
