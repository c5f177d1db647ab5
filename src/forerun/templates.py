"""Templates: a file of Jinja, filled with values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def filled(
    template: Path, *, filters: Mapping[str, Callable[..., Any]] = {}, html: bool = False,
    **values: Any,
) -> str:  # fmt: skip
    """Return the text of a template, which may take others of its folder; a value that is not given is a defect.

    html: values are escaped. A line that holds a block alone leaves no line.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=html, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(filters)
    return environment.get_template(template.name).render(**values)
