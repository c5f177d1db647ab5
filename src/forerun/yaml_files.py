"""YAML files: mappings that know their lines, so that a message can point at one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import yaml

from forerun.errors import RequestError, nearest_names, one_of
from forerun.paths import check_file
from forerun.units import parse_duration

Value = TypeVar("Value")
_LARGEST_FILE_BYTES = 10_000_000
_LARGEST_WHOLE = 2**53  # what a float holds exactly
NO_LINES: Mapping[str, int] = {}
_MOST_PARTS = 1_000_000  # of a document, those that aliases repeat counted each time


@dataclass(frozen=True)
class Section:
    """A mapping inside a YAML file, e.g. `operations[3]`.

    lines: of each part of the file, by dotted name; `NO_LINES` where an object was given instead.
    """

    path: Path
    name: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def error(self, field: str, found: str, next_step: str) -> RequestError:
        """Return the error to raise about a field ("" for the section itself)."""
        where = self._where(field)
        if self.lines is NO_LINES:
            return RequestError(f"{self.path}, {where or 'as a whole'}", found, next_step)
        line = self.lines.get(where, self.lines.get(self.name, 1))
        return RequestError(f"{self.path}, line {line}, {where or 'the file'}", found, next_step)

    def only(self, allowed: Iterable[str]) -> None:
        """Raise RequestError where a field is not allowed; the nearest name is offered."""
        allowed = list(allowed)
        for key in self.values:
            if key not in allowed:
                near = nearest_names(str(key), allowed) or allowed
                raise self.error(str(key), "no such field", f"use one of {', '.join(near)}")

    def number(self, field: str, default: float | None = None) -> float:
        """Return a field as a finite number, not below zero. Raises RequestError."""
        value = self.values.get(field, default)
        if value is None:
            raise self.error("", f"it has no {field}", f"add {field}")
        number = math.nan
        # YAML 1.1 reads 1e9 without a point as text.
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = math.nan
        if not 0 <= number < math.inf:
            raise self.error(
                field, f"{value!r} is not a finite number, not below zero", "write a number"
            )
        return number

    def whole_numbers(self, field: str) -> tuple[int, ...]:
        """Return a field as whole numbers from 1 to 2^53; () where it is absent. Raises RequestError."""
        value = self.values.get(field, [])
        if not isinstance(value, list) or any(
            isinstance(v, bool) or not isinstance(v, int) or not 1 <= v <= _LARGEST_WHOLE
            for v in value
        ):
            found = f"{value!r} is no list of whole numbers from 1 to 2^53"
            raise self.error(field, found, "write [m, n, k]")
        return tuple(value)

    def duration(self, field: str, default: float) -> float:
        """Return a field as seconds: a number of them, or a text such as 2h. Raises RequestError."""
        if field not in self.values:
            return default
        value = self.values[field]
        unit = "s" if type(value) in (int, float) else ""
        return self.checked(lambda: parse_duration(f"{value}{unit}", field))

    def choice(self, field: str, allowed: Sequence[str], default: str = "") -> str:
        """Return a field that must be one of the allowed words. Raises RequestError."""
        value = str(self.values.get(field, default)).lower()
        if value not in allowed:
            raise self.error(field, f"{value!r} is none", one_of(value, allowed))
        return value

    def section(self, field: str) -> Section:
        """Return a field that is a mapping itself. Raises RequestError."""
        value = self.values.get(field)
        if not isinstance(value, Mapping):
            raise self.error(field, "it is not a mapping of fields", "write field: value lines")
        return Section(self.path, self._where(field), value, self.lines)

    def sections(self, field: str) -> list[Section]:
        """Return a field that is a list of mappings, not empty. Raises RequestError."""
        value = self.values.get(field)
        if not isinstance(value, list) or not value:
            found = "it is an empty list" if value == [] else "it is not a list"
            raise self.error(field, found, "write one item or more")
        for i, item in enumerate(value):
            if not isinstance(item, Mapping):
                raise self.error(f"{field}[{i}]", "it is not a mapping", "write field: value")
        where = self._where(field)
        return [Section(self.path, f"{where}[{i}]", v, self.lines) for i, v in enumerate(value)]

    def checked(self, make: Callable[[], Value]) -> Value:
        """Return what `make` makes; its RequestError gets the file and the line."""
        try:
            return make()
        except RequestError as error:
            named = next(
                (k for k in self.values if f"{k}=" in error.asked or error.asked.startswith(k)), ""
            )
            raise self.error(named, f"{error.asked}: {error.found}", error.next_step) from error

    def _where(self, field: str) -> str:
        return ".".join(part for part in (self.name, field) if part)


def read_section(path: Path, what: str, subject: str, content: bytes | None = None) -> Section:
    """Return the whole of a YAML file, or of its content, as a section. Raises RequestError.

    what: the kind of file, e.g. `workload spec`; subject: what it should describe, e.g. `a workload`.
    """
    asked = f"{what} {str(path)!r}"
    values, lines = read_yaml(path, asked, f"give a file that describes {subject}", content)
    if not isinstance(values, Mapping):
        found = "it is empty, and not" if values is None else "it is not"
        raise RequestError(asked, f"{found} a mapping of fields", "write field: value lines")
    return Section(path, "", values, lines)


def read_yaml(
    path: Path, asked: str, next_step: str, content: bytes | None = None
) -> tuple[Any, dict[str, int]]:
    """Return what a YAML file holds, and the line (from 1) of each of its parts by dotted name.

    content: what would be in the file; none is read then.

    Raises RequestError, in the words of `asked` and `next_step`, where it cannot be read or is no YAML.
    """
    try:
        if content is None:
            check_file(path, asked)
        if (path.stat().st_size if content is None else len(content)) > _LARGEST_FILE_BYTES:
            raise RequestError(asked, "it is larger than 10 MB", next_step)
        loader = _Loader((path.read_bytes() if content is None else content).decode("utf-8-sig"))
        node = loader.get_single_node()
        if node is not None and (parts := _parts(node, {})) > _MOST_PARTS:
            found = f"its aliases make {parts:,} parts of it"
            raise RequestError(asked, found, f"write at most {_MOST_PARTS:,}")
        values = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise RequestError(asked, f"it cannot be read ({error.strerror})", next_step) from error
    except UnicodeDecodeError as error:
        raise RequestError(
            asked, f"it is not text in UTF-8 ({error})", "save it in UTF-8"
        ) from error
    except RecursionError as error:
        found = "it is not YAML: its brackets are nested too deep"
        raise RequestError(asked, found, "write it flatter") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        found = f"it is not YAML: {error}"
        if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
            place = f"line {mark.line + 1}, column {mark.column + 1}"
            found = f"it is not YAML: {place}: {error.problem}\n{mark.get_snippet() or ''}"
        raise RequestError(asked, found, "correct the file") from error
    return values, dict(_lines(node))


class _Loader(yaml.SafeLoader):
    """Plain YAML alone, in which no field stands twice: the last one would win silently."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            found = f"not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=found, problem_mark=node.start_mark) from error

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        composed: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in composed.value:
            name = str(key.value)
            if name in seen and name != "<<":
                raise yaml.MarkedYAMLError(
                    problem=f"the field {name!r} is there already, in line {seen[name]}",
                    problem_mark=key.start_mark,
                )
            seen[name] = key.start_mark.line + 1
        return composed


def _parts(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many parts a document has where each alias is written out; known: by identity."""
    if id(node) not in known:
        known[id(node)] = 1  # a part that holds itself is counted once
        inner = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = chain.from_iterable(node.value)
        known[id(node)] += sum(_parts(part, known) for part in inner)
    return known[id(node)]


def _lines(root: yaml.Node | None) -> Iterable[tuple[str, int]]:
    """Yield the dotted name and the line (from 1) of each part; one used again by an alias is walked once."""
    walked: set[int] = set()
    waiting = [(root, "")]
    while waiting:
        node, name = waiting.pop()
        if node is None or id(node) in walked:
            continue
        walked.add(id(node))
        parts: list[tuple[str, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            parts = [(f"{name}.{k.value}" if name else str(k.value), k, v) for k, v in node.value]
        elif isinstance(node, yaml.SequenceNode):
            parts = [(f"{name}[{i}]", v, v) for i, v in enumerate(node.value)]
        for where, mark, value in parts:
            yield where, mark.start_mark.line + 1
            waiting.append((value, where))
