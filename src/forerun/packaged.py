"""What is packaged beside a module: tables, and templates of Jinja."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any


def table(module: str, name: str) -> Any:
    """Return what a CSV (its rows, by header), JSON or YAML file beside a module's file says."""
    path = Path(module).parent / name
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(StringIO(text)))
    if path.suffix == ".json":
        return json.loads(text)
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


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
