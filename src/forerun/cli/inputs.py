"""Inputs: option values become numbers with units, files are checked; errors say what to do next.

SeveralFiles: a command whose file options take one file or more, as a shell's `*.csv` gives them.

Mistaken: a file that is given where another kind is asked: what it is, and which command takes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from forerun.errors import RequestError
from forerun.tables.files import PARQUET_ENDINGS
from forerun.units import parse_count, parse_dollars, parse_duration

_YAML = (".yaml", ".yml")
_STORES = (".db", ".sqlite", ".sqlite3")
_LARGEST_BYTES = 10_000_000
# Fields by which a mapping is known, what it is then, and who takes it ({file} is its name).
_MAPPINGS = (
    (("workloads",), "campaign", "a campaign", "forerun profile {file}"),
    (("devices", "instances"), "catalogue", "a catalogue of devices",
     "forerun predict ... --catalog {file}"),
    (("transformer", "totals", "operations"), "workload", "a workload",
     "forerun predict {file} --cluster CLUSTER"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is: a word for the kind, the same for a sentence, and the command that takes it."""

    name: str
    words: str
    command: str


def kind_of(path: Path) -> FileKind | None:
    """Return what a file is by its name and content, None where it is nothing that is known."""
    ending = path.suffix.lower()
    name = str(path)
    if not path.is_file():
        return None
    if ending in _YAML:
        return _of_mapping(path)
    if ending == ".csv" or ending in PARQUET_ENDINGS:
        return FileKind("table", "a table of runs", f"forerun runs import {name}")
    if ending == ".py":
        command = f"forerun profile CAMPAIGN.yaml, where workloads has NAME: {{entry: {name}}}"
        return FileKind("script", "a script", command)
    if ending in _STORES and _is_store(path):
        return FileKind("store", "a store", f"forerun runs list --store {name}")
    return None


def _is_store(path: Path) -> bool:
    """Whether an SQLite file is a store; others keep their logs in such files (MLflow)."""
    import sqlite3

    query = "SELECT 1 FROM sqlite_master WHERE name = 'forerun_version'"
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
        ) as file:
            return file.execute(query).fetchone() is not None
    except sqlite3.Error:
        return False


def _of_mapping(path: Path) -> FileKind | None:
    import yaml

    if path.stat().st_size > _LARGEST_BYTES:
        return None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    if not isinstance(found, Mapping):
        return None
    for fields, name, words, command in _MAPPINGS:
        if any(field in found for field in fields):
            return FileKind(name, words, command.format(file=path))
    return None


def check_kind(path: Path, asked: str, wanted: str, *allowed: str) -> None:
    """Raise RequestError where a file is known to be of a kind that is not allowed here.

    Args:
        path: the file; one that does not exist passes.
        asked: what the caller wanted with it.
        wanted: what is asked for in its place, e.g. `a campaign`.
        allowed: names of kinds.
    """
    kind = kind_of(path)
    if kind is not None and kind.name not in allowed:
        raise RequestError(asked, f"it is {kind.words}, not {wanted}", f"try: {kind.command}")


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


LARGEST_WHOLE = 2**31 - 1


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # older releases of click have no type argument


class OptionValue(_ParamType):
    """An option's kind by a function from text (and the option's name) to a value."""

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value. Raises RequestError where the text is none of this kind."""
        if not isinstance(value, str):
            return value
        return self._read(value, param.opts[-1] if param else self.name)


def _whole(text: str, asked: str) -> int:
    try:
        number = parse_count(text, asked)
    except RequestError:
        number = math.nan  # its advice is for lengths: fractions and millions
    if not number.is_integer() or number > LARGEST_WHOLE:
        raise RequestError(
            f"{asked} {text!r}", f"not a whole number from 1 to {LARGEST_WHOLE:,}",
            "write a whole number, for example 256",
        )  # fmt: skip
    return int(number)


def _from_zero(text: str, asked: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise RequestError(
            f"{asked} {text!r}", "not a number from zero upward", "write a number, for example 0.05"
        )
    return number


def _probability(text: str, asked: str) -> float:
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 < number < 1:
        raise RequestError(
            f"{asked} {text!r}", "not a probability", "write a number between 0 and 1 such as 0.9"
        )
    return number


def _price(text: str, asked: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0", "$0") else parse_dollars(text, asked)


def _list(text: str, asked: str) -> tuple[str, ...]:
    items = tuple(part.strip() for part in text.split(",") if part.strip())
    if not items:
        raise RequestError(f"{asked} {text!r}", "the list is empty", "write names with commas")
    return items


def _wholes(text: str, asked: str) -> tuple[int, ...]:
    return tuple(_whole(item, asked) for item in _list(text, asked))


WHOLE = OptionValue("number", _whole)
WHOLES = OptionValue("number,...", _wholes)
COUNT = OptionValue("count", parse_count)
DURATION = OptionValue("duration", parse_duration)
DOLLARS = OptionValue("dollars", _price)
BUDGET = OptionValue("dollars", parse_dollars)
PROBABILITY = OptionValue("probability", _probability)
FROM_ZERO = OptionValue("number", _from_zero)
NAMES = OptionValue("name,...", _list)


TABLES = (".csv", *PARQUET_ENDINGS)


def writable(
    path: Path | None,
    asked: str = "writing",
    endings: Sequence[str] = (),
    inputs: Iterable[str | Path] = (),
) -> Path | None:
    """Return a path that can be written, before anything is computed.

    Args:
        path: the file, or None.
        asked: for the message.
        endings: what a new or plain file's name may end in; any where empty.
        inputs: files that this command reads.

    Raises:
        RequestError: it is a folder or one of the inputs, its folder is missing or may not be
            written, or its ending is another format's.
    """
    if path is None:
        return None
    asked = f"{asked} {path}"
    if path.is_dir():
        raise RequestError(asked, "it is a folder", "name a file")
    if not path.parent.is_dir():
        raise RequestError(asked, f"there is no folder {path.parent}", "make it first")
    import os

    if not os.access(path.parent, os.W_OK):
        raise RequestError(
            asked, f"the folder {path.parent} may not be written", "choose another folder"
        )
    if any(path.resolve() == Path(given).resolve() for given in inputs):
        raise RequestError(asked, "it is read by this very command", "name another file")
    plain = path.is_file() or not path.exists()  # a device or a pipe may be named anything
    if endings and plain and path.suffix.lower() not in endings:
        ending = f"it ends in {path.suffix!r}" if path.suffix else "its name has no ending"
        raise RequestError(asked, ending, f"name a file that ends in {' or '.join(endings)}")
    return path


FILE = click.Path(path_type=Path)
