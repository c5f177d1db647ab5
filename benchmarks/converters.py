"""What published tables mean beyond their columns, written into columns.

forerun compares no table's name. What the runs of one source mean by a label or a blank cell stands
in converters.yaml beside this file, by table: rules that rows meet in their order. A rule has
`where` (a column: a regular expression that its text must match somewhere), and any of `replace`
(columns: a regular expression, and what its matches become), `fill`
(columns: what a blank cell of them becomes), `rename` (workload: its other name) and `prefix` (what
stands before the workload's name). Benchmarks read the tables so converted.

    python benchmarks/converters.py OUT_DIR       the tables of $FORERUN_DATA/runs, converted
"""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).with_suffix(".yaml")


@cache
def rules() -> dict[str, list[dict[str, Any]]]:
    """Return the rules by table."""
    return dict(yaml.safe_load(RULES.read_text(encoding="utf-8")))


def converted_rows(
    table: str, rows: Sequence[Mapping[str, str]]
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a table with its meaning in them."""
    columns = dict.fromkeys(name for row in rows for name in row)
    found = [dict(row) for row in rows]
    for rule in rules().get(table, ()):
        fill, names = rule.get("fill", {}), rule.get("rename", {})
        columns |= dict.fromkeys(fill)
        changes = {
            name: (re.compile(old), new) for name, (old, new) in rule.get("replace", {}).items()
        }
        where = {name: re.compile(text) for name, text in rule.get("where", {}).items()}
        for row in found:
            if all(pattern.search(row.get(name) or "") for name, pattern in where.items()):
                row |= {name: str(v) for name, v in fill.items() if not row.get(name)}
                row |= {
                    name: old.sub(new, row.get(name) or "") for name, (old, new) in changes.items()
                }
                name = row.get("workload", "")
                row["workload"] = rule.get("prefix", "") + names.get(name, name)
    # Runs of one source without a cluster's name were made in one place.
    for row in found:
        row["cluster"] = row.get("cluster") or table
    return list(columns | {"cluster": None}), found


def convert(source: Path, out: Path) -> None:
    """Write every table of a folder into another, converted."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            columns, rows = converted_rows(path.stem, list(csv.DictReader(file)))
        with (out / path.name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)


@cache
def converted_folder(source: Path) -> Path:
    """Return a folder with the tables of another, converted; it goes when the process ends."""
    kept = tempfile.TemporaryDirectory(prefix="forerun-tables-")
    _KEPT.append(kept)
    convert(source, Path(kept.name))
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def measured_folder() -> Path:
    """Return a folder with the tables of $FORERUN_DATA/runs, converted."""
    return converted_folder(Path(os.environ["FORERUN_DATA"]).resolve() / "runs")


def main() -> None:
    """Convert the tables of $FORERUN_DATA/runs into the folder that the command line names."""
    if len(sys.argv) != 2 or not os.environ.get("FORERUN_DATA"):
        sys.exit("usage: FORERUN_DATA=FOLDER python benchmarks/converters.py OUT_DIR")
    convert(Path(os.environ["FORERUN_DATA"]) / "runs", Path(sys.argv[1]))


if __name__ == "__main__":
    main()
