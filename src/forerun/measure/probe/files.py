"""Files: a probed device as a user's catalogue file, YAML that a person can read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any


def catalogue_text(entry: Mapping[str, Any]) -> str:
    """Return a catalogue file with one device, as `--catalog` reads it: short figures first.

    entry: what `findings.device_entry` returns.
    """
    import yaml

    fields = {k: v for k, v in entry.items() if k not in ("id", "measured")}
    out = io.StringIO()
    out.write(f"# {entry['source']}. Read it with --catalog, or set `catalog` to it.\n")
    out.write(f"devices:\n  {yaml.safe_dump(str(entry['id'])).splitlines()[0]}:\n")
    for name, value in fields.items():
        out.write(f"    {name}: {_flow(yaml, value)}\n")
    out.write("    # Seconds by size; see docs/probe.md.\n    measured:\n")
    for name, value in entry["measured"].items():
        if isinstance(value, Mapping) and value:
            out.write(f"      {name}:\n")
            for key, inner in value.items():
                out.write(f"        {_flow(yaml, key)}: {_flow(yaml, inner)}\n")
        else:
            out.write(f"      {name}: {_flow(yaml, value)}\n")
    return out.getvalue()


def _flow(yaml: Any, value: Any) -> str:
    """Return a value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
