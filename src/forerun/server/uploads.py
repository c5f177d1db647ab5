"""Uploads: a file of a workload becomes a Workload in a process of its own, which may open nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Any

from forerun import wire
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.server.problems import HttpError
from forerun.workloads.resolve import checked_changes, described

# The forms that are read, by content type.
FORMS: Mapping[str, str] = {
    "application/octet-stream": "onnx", "application/json": "config", "application/yaml": "spec",
}  # fmt: skip
NAME = re.compile(r"upload:[0-9a-f]{32}")
_SMALLEST = {
    "config": b'{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}',
    "spec": b"transformer: {layers: 1, hidden: 8, heads: 1, vocab: 8, seq_len: 8}",
    "onnx": b"",
}
_SECONDS, _WALL_SECONDS, _MEMORY, _RESULT = 20, 60.0, 4 << 30, 64 << 20


def read_upload(content_type: str, content: bytes, name: str, changes: Mapping[str, Any]) -> bytes:
    """Return the JSON of the workload that a file describes; name: for it; changes: of `SHAPING`.

    Nothing of the file is looked at by this process. Raises RequestError, and HttpError for another type.
    """
    kind = FORMS.get(content_type.partition(";")[0].strip().lower())
    if kind is None:
        todo = f"send a Content-Type of {', '.join(FORMS)}"
        raise HttpError(415, "the upload", "it is not said to be of a known form", todo)
    given = json.dumps({**checked_changes(changes), "name": name})
    command = [sys.executable, "-m", "forerun.server.uploads", kind, given]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    with TemporaryFile() as found:  # whose size can be limited, as that of a pipe cannot
        try:
            done = subprocess.run(
                command, input=content, stdout=found, stderr=subprocess.DEVNULL, timeout=_WALL_SECONDS,
                env={**paths, "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/", check=False,
            )  # fmt: skip
            code = done.returncode
        except subprocess.TimeoutExpired:  # and is killed
            code = 1
        found.seek(0)
        result = found.read()
    if code == RequestError.exit_code:
        raise RequestError(*json.loads(result))
    if code:
        limits = f"{_SECONDS} s and {_MEMORY >> 30} GB, or what it makes in {_RESULT >> 20} MB"
        raise RequestError("the upload", f"it cannot be read in {limits}", "send a smaller file")
    return result


@contextmanager
def sound(asked: str) -> Iterator[None]:
    """Within it a description of a workload is read. Raises RequestError for one that makes no sense."""
    try:
        yield
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        found = f"it cannot be read ({type(error).__name__}: {str(error)[:200]})"
        raise RequestError(asked, found, "correct its fields") from None


def _read(kind: str, content: bytes, name: str = "", **changes: Any) -> Workload:
    from forerun.workloads.hf_config import workload_from_hf_config
    from forerun.workloads.onnx import workload_from_onnx
    from forerun.workloads.spec import workload_from_spec

    with sound("the upload"):
        if kind == "onnx":
            found = workload_from_onnx(content, **changes)
        elif kind == "spec":
            found = described(workload_from_spec(content), changes)
        else:
            fields = json.loads(content.decode())
            if not isinstance(fields, dict):
                raise RequestError(
                    "the upload", "it is not an object of fields", "send a config.json"
                )
            found = workload_from_hf_config(fields, **changes)
        return found.with_(name=name) if name else found


def _confine() -> None:
    """Leave this process no file, no other process, and little time and memory."""
    import resource

    for name, most in (
        ("AS", _MEMORY), ("CPU", _SECONDS), ("FSIZE", _RESULT), ("CORE", 0), ("NPROC", 0), ("NOFILE", 0),
    ):  # fmt: skip
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main(kind: str, options: str) -> int:
    """Read a file from the standard input, and write its workload, or what is wrong with it."""
    with suppress(RequestError):  # what reading needs is in memory before nothing can be opened
        _read(kind, _SMALLEST[kind])
    _confine()
    try:
        found = _read(kind, sys.stdin.buffer.read(), **json.loads(options))
        text = json.dumps(wire.clean(found), allow_nan=False)
    except RequestError as error:
        text = json.dumps([error.asked, error.found, error.next_step])
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0 if text.startswith("{") else RequestError.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
