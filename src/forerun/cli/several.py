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
        kept = list(spread)
        try:
            return super().parse_args(ctx, spread)
        except click.MissingParameter:
            raise self._missing(ctx, kept) from None

    def _missing(self, ctx: click.Context, args: list[str]) -> RequestError:
        """Return the error that names every input that is missing, in the order of the help."""
        given = self.make_parser(ctx).parse_args(args)[0]

        def lacks(parameter: click.Parameter) -> bool:
            value = given.get(parameter.name or "")
            return value in (None, ()) or parameter.value_is_missing(value)

        return missing(ctx.command_path, [p for p in self.params if p.required and lacks(p)])


def missing(command: str, parameters: Sequence[click.Parameter], instead: str = "") -> RequestError:
    """Return the error for inputs that a command needs and that were not given.

    Args:
        command: as it was called.
        parameters: what is missing, in the order in which a person thinks of them.
        instead: what may be given in place of all of them.
    """
    named = [_named(parameter) for parameter in parameters]
    wanted = " and ".join(f"{name} ({text})" for name, text in named)
    return RequestError(
        command, f"no {' and no '.join(name for name, _ in named)} given",
        f"give {wanted}{f', or {instead}' if instead else ''}; see {command} --help",
    )  # fmt: skip


def _named(parameter: click.Parameter) -> tuple[str, str]:
    """Return what an input is called, and what it is."""
    if isinstance(parameter, click.Option):
        return parameter.opts[0], (parameter.help or "").rstrip(".")
    return parameter.human_readable_name.upper(), "a name such as resnet50, or a file"


class SeveralTables(SeveralFiles):
    """SeveralFiles for a command that takes a WORKLOAD too: only tables follow one another."""

    def is_file(self, word: str) -> bool:
        """Return whether a further word ends as a table does."""
        return word.startswith("store:") or word.lower().endswith((".csv", ".db", *PARQUET_ENDINGS))


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
