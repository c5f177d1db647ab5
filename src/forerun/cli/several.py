"""SeveralFiles: a command whose file options take one file or more, as a shell's `*.csv` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from forerun.errors import RequestError
from forerun.tables.files import PARQUET_ENDINGS


class SeveralFiles(click.Command):
    """`--runs a.csv b.csv` is read as `--runs a.csv --runs b.csv`, for each repeatable option."""

    def is_file(self, word: str) -> bool:
        """Return whether a further word is one more file."""
        return True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat an option's name before each further word that follows it."""
        repeatable = {
            name
            for p in self.params
            if isinstance(p, click.Option) and p.multiple
            for name in p.opts
        }
        spread: list[str] = []
        option, count = "", 0
        for i, word in enumerate(args):
            if word == "--":
                spread += args[i:]
                break
            if word.startswith("-") and word != "-":
                # --runs=a.csv has had its first value already.
                option, _, value = word.partition("=")
                count = 1 if value else 0
            elif option in repeatable and (not count or self.is_file(word)):
                if count:
                    spread.append(option)
                count += 1
            spread.append(word)
        return super().parse_args(ctx, spread)


class SeveralTables(SeveralFiles):
    """SeveralFiles for a command that takes a WORKLOAD too: only tables follow one another."""

    def is_file(self, word: str) -> bool:
        """Return whether a further word ends as a table does."""
        return word.lower().endswith((".csv", *PARQUET_ENDINGS))


def files_in(paths: Sequence[Path], option: str) -> list[Path]:
    """Return files, each once; a folder stands for the CSV files in it.

    Raises:
        RequestError: a folder holds no CSV file.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not inside:
            raise RequestError(f"{option} {path}", "no CSV file is in it", "name the files")
        files += inside
    return list(dict.fromkeys(files))
