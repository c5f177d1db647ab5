"""Pages: the dashboard's files (made from web/ by `npm run build`), which hold no data and need no token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "web"
# Each path: its file and media type.
PAGES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"), "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/LICENSES.txt": ("LICENSES.txt", "text/plain; charset=utf-8"),
}  # fmt: skip
# Nothing from elsewhere, and no script or style within a document.
_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def add_pages(app: Any) -> None:
    """Let an application of FastAPI answer with the files, which are read once."""
    from fastapi.responses import Response

    def answer_with(content: bytes, kind: str) -> Callable[[], Response]:
        headers = {"content-security-policy": _POLICY}
        return lambda: Response(content, headers=headers, media_type=kind)

    for path, (name, kind) in PAGES.items():
        answer = answer_with((_FOLDER / name).read_bytes(), kind)
        app.get(path, include_in_schema=False, response_model=None)(answer)
