"""Paths that a user names: whether there is a file that can be read; URLs without their passwords."""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

from forerun.errors import RequestError

# What stands between the user and the last @ of a URL, however it is written, and behind password=.
_PASSWORD = re.compile(
    r"(^\s*[\w.+-]+:?/*[^:@/?\s]*:(?!//)).*(?=@)|(\w*(?:password|passwd|pwd)\s*=\s*)(?:'(?:\\.|[^'])*'|[^&\s]*)",
    re.DOTALL | re.IGNORECASE,
)
# A Path has one slash less.
_URL = re.compile(r"\s*([a-z][\w+.-]+):/+(?=.)", re.IGNORECASE)


def shown(text: str) -> str:
    """Return a URL or name without the password that may be in it."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", text)


def refuse_url(name: str | Path) -> None:
    """Raise RequestError for a URL where a file is read; its password is not shown."""
    if (url := _URL.match(str(name))) is not None:
        raise RequestError(
            f"reading {shown(f'{url[1]}://{str(name)[url.end() :]}')}", "it is a URL, and only files are read",
            "download it and name the file; of a store: forerun runs export --out RUNS.csv --store URL",
        )  # fmt: skip


def check_file(path: Path, asked: str, near: str = "") -> None:
    """Raise RequestError for a path that is missing, cannot be reached, or is a folder or a device.

    A pipe passes: `<(zcat runs.csv.gz)` is one. `near` names what lies beside a missing file.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # a NUL in it is a ValueError
        refuse_url(path)
        reached = isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.EACCES)
        found = f"it cannot be reached: {error}" if reached else "there is no such file"
        raise RequestError(asked, found, f"check the path{near}") from None
    if stat.S_ISDIR(mode):
        raise RequestError(asked, "it is a folder", "name one file in it")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise RequestError(asked, "it is a device and no file", "name a file")
