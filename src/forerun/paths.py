"""Paths that a user names: whether there is a file that can be read."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from forerun.errors import RequestError


def check_file(path: Path, asked: str, near: str = "") -> None:
    """Raise RequestError for a path that is missing, cannot be reached, or is a folder or a device.

    A pipe passes: `<(zcat runs.csv.gz)` is one. `near` names what lies beside a missing file.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # a NUL in it is a ValueError
        reached = isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.EACCES)
        found = f"it cannot be reached: {error}" if reached else "there is no such file"
        raise RequestError(asked, found, f"check the path{near}") from None
    if stat.S_ISDIR(mode):
        raise RequestError(asked, "it is a folder", "name one file in it")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise RequestError(asked, "it is a device and no file", "name a file")
