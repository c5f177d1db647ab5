"""Pages: the dashboard's files (made from web/ by `npm run build`), which hold no data and need no token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "web"
# Each path: its file and media type.
PAGES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/LICENSES.txt": ("LICENSES.txt", "text/plain; charset=utf-8"),
}
# Nothing from elsewhere, and no script or style within a document.
PAGE_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def page(path: str) -> tuple[bytes, str]:
    """Return the content and the media type of a path in `PAGES`."""
    name, kind = PAGES[path]
    return (_FOLDER / name).read_bytes(), kind
