"""YAML faults: what is wrong with a file that is no YAML, where, and how it is mended."""

from __future__ import annotations

import re
from typing import Any

from forerun.pointing import pointed

# As YAML ends its lines.
_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
# What a parser says of a mistake, and what its author should do; {here} is what the parser was in.
_ADVICE = (
    (r"character '\\t' that cannot start", "indent with spaces: YAML takes no tabs"),
    (r"character .* that cannot start", "put the value in quotes"),
    ("mapping values are not allowed",
     "put a value that holds a colon in quotes, and indent each field as its neighbours"),
    (r"expected ',' or '(.)'", "write {0} where it ends{here}"),
    ("did not find expected key|expected <block end>",
     "indent the line as its neighbours; what follows a quoted text belongs on a line of its own"),
    ("unknown escape character",
     "double the backslash, or write single quotes, between which backslashes are plain"),
    ("unexpected end of stream", "close the quote{here}"),
    ("undefined alias", "put the value in quotes, or define the anchor before"),
    ("could not determine a constructor", "leave the tag out: plain YAML alone is read"),
    ("could not find expected ':'", "write field: value, with a colon and a space"),
    ("characters are not allowed", "remove the character"),
    ("found another document", "remove the line ---, and what does not belong to the first document"),
    ("is there already", "keep one of them"),
)  # fmt: skip


def not_yaml(error: Exception, text: str) -> tuple[str, str]:
    """Return what was found where a text is no YAML, and what to do.

    Args:
        error: of the parser (yaml.YAMLError), ValueError or RecursionError.
        text: of the file, as the parser had it.
    """
    if isinstance(error, RecursionError):
        return "it is not YAML: its brackets are nested too deep", "write it flatter"
    line, column = _place(error, text)
    said = _said(error)
    if line < 0:
        return f"it is not YAML: {said}", "correct the file"
    lines = _BREAKS.split(text)
    shown = lines[line] if line < len(lines) else ""
    context, mark = getattr(error, "context", None), getattr(error, "context_mark", None)
    here = "" if mark is None else f" that begins in line {mark.line + 1}, column {mark.column + 1}"
    inside = f" ({_plain(context)}{here})" if context and mark is not None else ""
    return (
        f"it is not YAML: line {line + 1}, column {column + 1}: {said}{inside}\n"
        f"{pointed(shown, column, str(line + 1))}",
        _advice(said, f", for what begins in line {mark.line + 1}" if mark is not None else ""),
    )


def not_text(error: UnicodeDecodeError) -> tuple[str, str]:
    """Return what was found where a file's bytes are no text in UTF-8, and what to do."""
    before = bytes(error.object[: error.start])
    line = before.count(b"\n") + 1
    column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
    byte = error.object[error.start]
    return (
        f"it is not text in UTF-8: line {line}, column {column}: the byte 0x{byte:02x}",
        "save it in UTF-8, or name another file",
    )


def _place(error: Exception, text: str) -> tuple[int, int]:
    """Return line and column, from 0, of what an error points at; (-1, -1) where at nothing."""
    mark: Any = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return int(mark.line), int(mark.column)
    at = getattr(error, "position", None)  # of a character that YAML does not take
    if at is None:
        return -1, -1
    before = _BREAKS.split(text[:at])
    return len(before) - 1, len(before[-1])


def _said(error: Exception) -> str:
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    said = " ".join(str(said).split()).removeprefix("but ")
    code = getattr(error, "character", None)
    return f"{said} (U+{code:04X})" if isinstance(code, int) else said


def _plain(context: str) -> str:
    return re.sub(r"^while (parsing|scanning) ", "in ", context)


def _advice(said: str, here: str) -> str:
    for words, todo in _ADVICE:
        if match := re.search(words, said):
            return todo.format(*match.groups(), here=here)
    return "correct the line"
