"""Inputs: option values become numbers with units, files are checked; errors say what to do next."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from forerun.domain.objective import checked_goodput
from forerun.errors import RequestError
from forerun.tables.files import PARQUET_ENDINGS
from forerun.units import parse_count, parse_dollars, parse_duration

FILE = click.Path(path_type=Path)
TABLES = (".csv", *PARQUET_ENDINGS)
YAML = (".yaml", ".yml")
# A name that ends as a file does, and as none that a command reads.
_PICTURE = re.compile(
    r"\.(?!(csv|json|onnx|ya?ml|pq|db|py|pt2?)$)[a-z][a-z0-9]{1,4}$", re.IGNORECASE
)
KEPT_RUNS = (
    "store: for those that are kept (store:CONDITION for some, such as store:campaign=night), or"
    " architectures-lab, which come with forerun"
)
RUNS_OF = f"files, a folder of them, {KEPT_RUNS}"  # what `files_in` takes
LARGEST_WHOLE = 2**31 - 1
# What a file may be, and the command that takes it ({file} is its name): by its ending, by a field of
# its YAML, or by a table of its database.
_TABLE = ("table", "a table of runs", "forerun runs import {file}")
_SCRIPT = ("script", "a script",
           "forerun profile CAMPAIGN.yaml, where workloads has NAME: {{entry: {file}}}")  # fmt: skip
_STORE = ("store", "a store", "forerun runs list --store {file}")
_CATALOGUE = ("catalogue", "a catalogue of devices", "forerun predict ... --catalog {file}")
_WORKLOAD = ("workload", "a workload", "forerun predict {file} --cluster CLUSTER")
_OF_ENDING = {**dict.fromkeys(TABLES, _TABLE), ".py": _SCRIPT}
_OF_FIELD = {
    "workloads": ("campaign", "a campaign", "forerun profile {file}"),
    "entry": ("training", "a training job", "forerun train {file} --elastic"),
    **dict.fromkeys(("devices", "instances"), _CATALOGUE),
    **dict.fromkeys(("transformer", "totals", "operations"), _WORKLOAD),
}


def check_kind(path: Path, asked: str, wanted: str, *allowed: str) -> None:
    """Raise RequestError where a file is known to be of a kind that is not among `allowed`."""
    ending = path.suffix.lower()
    found = _OF_ENDING.get(ending)
    if not path.is_file():
        return
    if ending in YAML:
        import yaml

        with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
            content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
            fields = content if isinstance(content, Mapping) else {}
            found = next((kind for field, kind in _OF_FIELD.items() if field in fields), None)
    elif ending in (".db", ".sqlite", ".sqlite3"):  # others keep their logs in such files (MLflow)
        import sqlite3

        query = "SELECT 1 FROM sqlite_master WHERE name = 'forerun_version'"
        url = f"file:{quote(str(path.resolve()))}?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(url, uri=True)) as file:
            found = _STORE if file.execute(query).fetchone() else None
    if found is not None and found[0] not in allowed:
        _, words, command = found
        next_step = f"try: {command.format(file=path)}"
        raise RequestError(asked, f"it is {words}, not {wanted}", next_step)


def at_most_one(found: str, options: Mapping[str, Any]) -> None:
    """Raise RequestError where more than one of the options (by name) is given."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise RequestError(" and ".join(given), found, "give one of them")


def one_cluster(ctx: click.Context, _: Any, texts: Sequence[str]) -> str | None:
    """Return the one cluster that is named, for a click callback. Raises RequestError for more."""
    names = [name for name in ",".join(texts).split(",") if name.strip()] or texts
    if len(names) > 1:
        asked, found = f"--cluster {','.join(names)}", f"{ctx.command_path} takes one cluster"
        raise RequestError(asked, found, "compare several side by side with forerun compare")
    return names[0] if names else None


class SeveralFiles(click.Command):
    """`--runs a.csv b.csv` is read as `--runs a.csv --runs b.csv`, for each repeatable option."""

    def is_file(self, word: str) -> bool:
        """Return whether a further word is one more file."""
        return True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat an option's name before each further word that follows it; `--plot` takes pictures alone."""
        named = [*map(_PICTURE.search, args[1:]), None]
        args = [f"{word}=-" if word == "--plot" and not name else word
                for word, name in zip(args, named, strict=False)]  # fmt: skip
        several = {
            name for p in self.params if isinstance(p, click.Option) and p.multiple
            for name in p.opts if p.callback is not one_cluster
        }  # fmt: skip
        spread: list[str] = []
        option, has_value = "", False
        for i, word in enumerate(args):
            if word == "--":
                spread += args[i:]
                break
            if word.startswith("-") and word != "-":
                option, _, value = word.partition("=")  # --runs=a.csv has its first value already
                has_value = bool(value)
            elif option in several and (
                not has_value or spread[-1].endswith(",") or self.is_file(word)
            ):
                spread += [option] * has_value
                has_value = True
            spread.append(word)
        kept = list(spread)
        try:
            return super().parse_args(ctx, spread)
        except click.BadOptionUsage as error:
            words = (getattr(p, "help", "") for p in self.params if error.option_name in p.opts)
            asked, found = f"{ctx.command_path} {error.option_name}", error.format_message().lower()
            raise RequestError(asked, found.rstrip("."), f"it is: {next(words)}") from None
        except click.MissingParameter:
            given = self.make_parser(ctx).parse_args(kept)[0]
            values = [(p, given.get(p.name or "")) for p in self.params if p.required]
            lacking = [p for p, v in values if v in (None, ()) or p.value_is_missing(v)]
            raise missing(ctx.command_path, lacking) from None


def missing(command: str, parameters: Sequence[click.Parameter], instead: str = "") -> RequestError:
    """Return the error that names every missing input of a command, in the order of the help."""
    named = {
        p.opts[0] if isinstance(p, click.Option) else p.opts[0].upper():
        (getattr(p, "help", "") or "a name such as resnet50, or a file").rstrip(".")
        for p in parameters
    }  # fmt: skip
    wanted = " and ".join(f"{name} ({text})" for name, text in named.items())
    return RequestError(
        command, f"no {' and no '.join(named)} given",
        f"give {wanted}{f', or {instead}' if instead else ''}; see {command} --help",
    )  # fmt: skip


# Topics of the help of a command about a workload, and the parameters of each.
_TOPICS = {
    "Workload": ("seq_len", "image_size", "precision", "framework", "optimizer", "dataset", "dataset_size", "task",
                 "lora_rank", "lora_targets"),
    "Length of the job": ("steps", "samples", "tokens", "epochs"),
    "Prices and limits": ("deadline", "budget", "confidence", "fit_confidence", "price", "region", "market", "spot",
                          "preemption_rate", "checkpoint_interval", "goodput", "startup", "least_billed"),
    "Predictor and runs": ("predictor", "system", "model", "start", "fit_files", "runs", "columns", "own_columns",
                           "flags_file", "catalog_files"),
    "Provisioning": ("provisions", "machines", "threads", "speeds"),
    "Output": ("server", "token_file", "html", "plot", "emit", "emit_to", "script", "force", "out", "campaign", "entries", "trace", "as_json", "help"),
}  # fmt: skip


class SeveralTables(SeveralFiles):
    """SeveralFiles for a command that takes a WORKLOAD too: only tables follow one another."""

    def is_file(self, word: str) -> bool:
        """Return whether a further word ends as a table does, or begins as a cluster or a plan."""
        found = re.match(r"store:|\d+x|\w+=|[\w.-]+:\d+(,|$)", word)
        return found is not None or word.lower().endswith((*TABLES, ".db"))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by topic, those of no topic first."""
        topics: dict[str, list[tuple[str, str]]] = {"Options": [], **{name: [] for name in _TOPICS}}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                topic = next((t for t, names in _TOPICS.items() if param.name in names), "Options")
                topics[topic].append(record)
        for topic, rows in topics.items():
            if rows:
                with formatter.section(topic):
                    formatter.write_dl(rows)


def files_in(paths: Sequence[Path], option: str) -> list[Path]:
    """Return files, each once; a folder stands for the CSV files in it."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not inside:
            raise RequestError(f"{option} {path}", "no CSV file is in it", "name the files")
        files += inside
    return list(dict.fromkeys(files))


def pair(option: str, text: str, form: str, example: str) -> tuple[str, str]:
    """Return both sides of `NAME=VALUE`. Raises RequestError where it is not that."""
    name, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not name or not value:
        raise RequestError(f"{option} {text}", f"it is not {form}", f"write e.g. {example}")
    return name, value


def check_map(columns: Mapping[str, str], values: Iterable[Any]) -> None:
    """Raise RequestError for a header that no table among options' values has; pipes are not looked at."""
    from forerun.tables.files import headers_of
    from forerun.tables.own_headers import check_headers

    given = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
    paths = [path for path in given if isinstance(path, Path)]
    files = [f for p in paths for f in (sorted(p.glob("*.csv")) if p.is_dir() else [p])]
    if not any(path.exists() and not path.is_file() for path in files):
        headers = [header for path in files if path.is_file() for header in headers_of(path)]
        for header, column in columns.items():
            check_headers({header: column}, headers, f"--map '{header}={column}'")


class OptionValue(click.ParamType):  # type: ignore[type-arg]  # older releases of click have none
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
    with suppress(ValueError):
        if 0 <= (number := float(text)) < math.inf:
            return number
    raise RequestError(f"{asked} {text!r}", "not a number from zero upward", "write e.g. 0.05")


def _share(text: str) -> float:
    """Return a share from text such as `0.9` or `90%`, NaN where it is none."""
    with suppress(ValueError):
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    return math.nan


def _probability(text: str, asked: str) -> float:
    if 0 < (number := _share(text)) < 1:
        return number
    next_step = "write a number between 0 and 1 such as 0.9"
    raise RequestError(f"{asked} {text!r}", "not a probability", next_step)


def _list(text: str, asked: str) -> tuple[str, ...]:
    items = tuple(part.strip() for part in text.split(",") if part.strip())
    if not items:
        raise RequestError(f"{asked} {text!r}", "the list is empty", "write names with commas")
    return items


def _parts(text: str, asked: str) -> int | dict[str, int]:
    if "=" not in text:
        return _whole(text, asked)
    pairs = [item.rpartition("=")[::2] for item in _list(text, asked)]
    found = {name.strip(): parts for name, parts in pairs}
    if "" in found or len(found) < len(pairs):
        wanted = "not LAYER=PARTS for each layer, each once"
        raise RequestError(f"{asked} {text!r}", wanted, "write e.g. fc6=4,conv*=2")
    return {name: _whole(parts, asked) for name, parts in found.items()}


def _speeds(text: str, asked: str) -> tuple[float, ...]:
    found = tuple(map(_share, _list(text, asked)))
    if all(0 < speed <= 1 for speed in found):
        return found
    wanted = "not shares of the fastest machine's speed"
    raise RequestError(f"{asked} {text!r}", wanted, "write e.g. 1,1,0.5")


WHOLE = OptionValue("number", _whole)
PARTS = OptionValue("number | layer=number,...", _parts)
SPEEDS = OptionValue("share,...", _speeds)
WHOLES = OptionValue(
    "number,...", lambda text, asked: tuple(_whole(item, asked) for item in _list(text, asked))
)
COUNT = OptionValue("count", parse_count)
DURATION = OptionValue("duration", parse_duration)
DOLLARS = OptionValue(
    "dollars",
    lambda text, asked: 0.0 if text.strip() in ("0", "0.0", "$0") else parse_dollars(text, asked),
)
PAUSE = OptionValue(
    "duration",
    lambda text, asked: 0.0 if text.strip() in ("0", "0s") else parse_duration(text, asked),
)
BUDGET = OptionValue("dollars", parse_dollars)
PROBABILITY = OptionValue("probability", _probability)
GOODPUT = OptionValue(
    "share", lambda text, asked: checked_goodput(_share(text), f"{asked} {text!r}")
)
FROM_ZERO = OptionValue("number", _from_zero)
NAMES = OptionValue("name,...", _list)


def _named_files(path: Path) -> Iterator[str]:
    """Yield every other file that the command line or the settings name, an output among them."""
    from forerun.settings import load_settings
    from forerun.store import place_of

    context, settings = click.get_current_context(), load_settings()
    named: list[Any] = [*settings.catalog_files, settings.text("model")]
    stores = {settings.text("store")}
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name == "where" and value:
            stores.add(value)
        elif isinstance(option.type, click.Path) or option.name == "workload":
            named += value if isinstance(value, tuple) else [value]
    for where in stores:
        with suppress(RequestError):  # who opens it says what is wrong
            file = place_of(where, make=False).file
            named += [f"{file}{ending}" for ending in ("", "-wal", "-shm", "-journal")]
    for one in named:
        if one and one is not path:  # the output's own option holds this very object
            yield str(one)
            yield str(Path(one) / "config.json")  # of a folder
            yield from map(str, Path(one).glob("*.csv") if os.path.isdir(one) else ())  # noqa: PTH112


def _same(path: Path, other: str) -> bool:
    # None of these raises, whatever the name.
    if os.path.exists(path) and os.path.exists(other):  # noqa: PTH110
        return os.path.samefile(path, other)  # noqa: PTH121
    return os.path.realpath(path) == os.path.realpath(other)


def writable(
    path: Path | None, endings: Sequence[str] = (), inputs: Iterable[str | Path] = (),
    replace: bool = True,
) -> None:  # fmt: skip
    """Check that a file can be written, before anything is computed; None passes.

    No file that the command or the settings name otherwise is written over, nor one of `inputs`.
    """
    if path is None:
        return
    asked = f"writing {path}"
    folder = path.parent
    if path.is_dir():
        raise RequestError(asked, "it is a folder", "name a file")
    if not folder.is_dir():
        raise RequestError(asked, f"there is no folder {folder}", "make it first")
    if not os.access(folder, os.W_OK):
        raise RequestError(asked, f"the folder {folder} may not be written", "choose another")
    if any(_same(path, str(other)) for other in (*_named_files(path), *inputs)):
        found = "it is read by this very command, or another output of it"
        raise RequestError(asked, found, "name two files")
    plain = path.is_file() or not path.exists()  # a device or a pipe may be named anything
    if endings and plain and path.suffix.lower() not in endings:
        ending = f"it ends in {path.suffix!r}" if path.suffix else "its name has no ending"
        raise RequestError(asked, ending, f"name a file that ends in {' or '.join(endings)}")
    if not replace and path.exists():
        raise RequestError(asked, "the file is there already", "name another, or give --force")


def write_text(path: Path, text: str | bytes) -> None:
    """Write a file, whole or not at all. Raises RequestError where it cannot be written."""
    from forerun.tables.files import write_whole

    body = text if isinstance(text, bytes) else text.encode()
    write_whole(path, lambda name: Path(name).write_bytes(body))
