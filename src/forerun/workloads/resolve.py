"""Resolve: what a person has (a zoo name, a module, a file) becomes a Workload; then plug-in readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from numbers import Real
from pathlib import Path
from typing import Any

from forerun import registry
from forerun.contracts import Reader
from forerun.domain.workload import TASKS, Workload, optimizer_named
from forerun.errors import RequestError, UnknownNameError, one_of
from forerun.paths import refuse_url

FORMS = (
    "a zoo name (see `forerun workloads`), package.module:callable, an .onnx file, a HuggingFace "
    "config.json or a folder that holds one, or a .yaml spec"
)
# What a caller may change in a workload that is read: those that decide the graph's shapes, and
# those that only describe it.
SHAPING = ("seq_len", "image_size", "precision", "optimizer")
DESCRIBING = ("framework", "dataset", "dataset_size", "task")
ADAPTING = ("lora_rank", "lora_targets")
CHANGES = (*SHAPING, *DESCRIBING, *ADAPTING)
_LARGEST = {
    "seq_len": 100_000_000, "image_size": 100_000, "dataset_size": 1e18, "lora_rank": 65_536,
}  # fmt: skip
_MOST = 8  # workloads that an error lists of those that a part of a name may mean
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def workload(reference: str, **changes: Any) -> Workload:
    """Return the workload that a reference names, with the given changes (of `CHANGES`). Raises RequestError."""
    given = checked_changes(changes)
    text = str(reference).strip()
    reader = _reader_of(text)
    if reader is not None and reader.name == "zoo":
        return _zoo_workload(text, **given)
    if reader is not None:
        return described(reader.read(text, **given), given, SHAPING)
    refuse_url(text)
    from forerun.workloads.zoo import candidates, zoo_names

    if text.endswith(".py") or ".py:" in text:
        raise RequestError(
            f"workload {text!r}", "a module is named with dots, not by its file",
            "write package.module:callable, for example "
            + text.partition(".py")[0].strip("./").replace("/", ".") + ":build",
        )  # fmt: skip
    hint = f"(a workload is {FORMS}; labels of your own runs are asked by rows: predict --table)"
    several = candidates(text)[:_MOST]
    raise UnknownNameError("workload", text, zoo_names(), hint, several if several[1:] else None)


@lru_cache(maxsize=256, typed=True)
def _zoo_workload(name: str, **changes: Any) -> Workload:
    """Return one object for equal questions: what is worked out for a workload is kept with it."""
    from forerun.workloads.zoo import zoo_workload

    shape = {key: value for key, value in changes.items() if key in SHAPING}
    return described(zoo_workload(name, **shape), changes, SHAPING)


def is_name(reference: str) -> bool:
    """Return whether a reference is a name, of the zoo or of nobody, and no file, folder or module."""
    reader = _reader_of(reference.strip())
    return reader is None or reader.name == "zoo"


def _reader_of(reference: str) -> Reader | None:
    for name in registry.names("readers"):
        reader: Reader = registry.load("readers", name)()
        if reader.accepts(reference):
            return reader
    return None


def module_workload(module: Any, inputs: Any, changes: Mapping[str, Any]) -> Workload:
    """Return the workload of an nn.Module and its example inputs. Raises RequestError."""
    several = isinstance(module, list | tuple | Mapping) and inputs is not None
    if not several and not (hasattr(module, "forward") and hasattr(module, "parameters")):
        raise RequestError(
            f"a workload of type {type(module).__name__}", "it is no nn.Module, name or file",
            f"a workload is {FORMS}, a Workload, or an nn.Module with example inputs",
        )  # fmt: skip
    from forerun.workloads.trace import trace_module

    return described(trace_module(module, inputs), changes)


def described(workload: Workload, changes: Mapping[str, Any], done: Sequence[str] = ()) -> Workload:
    """Return a workload with its descriptions changed, but what is `done`, as its task trains it.

    Raises RequestError for another size, and for adapters that its layers do not take.
    """
    rest = {name: value for name, value in changes.items() if name not in ADAPTING}
    found = _changed(workload, rest, done)
    if found.task in ("pretrain", "finetune") and len(rest) == len(changes):
        return found  # trained whole
    from forerun.workloads.tuning import tuned

    return tuned(found, int(changes.get("lora_rank", 0)), str(changes.get("lora_targets", "")))


def _changed(workload: Workload, changes: Mapping[str, Any], done: Sequence[str] = ()) -> Workload:
    rest = {name: value for name, value in changes.items() if name not in done}
    _refuse_sizes(workload.name, rest, "its graph is already built", "build it with another {}")
    return workload.with_(**rest) if rest else workload


def _refuse_sizes(
    reference: str, changes: Mapping[str, Any], found: str, next_step: str,
    names: Sequence[str] = ("seq_len", "image_size"),
) -> None:  # fmt: skip
    for name in names:
        if name in changes:
            asked = f"{reference} with {name}={changes[name]}"
            raise RequestError(asked, found.format(name), next_step.format(name))


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that were given. Raises RequestError for one that cannot be."""
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if name not in CHANGES:
            hint = f"({', '.join(CHANGES)}; how long it runs: length=forerun.Length('steps', 300))"
            raise UnknownNameError("workload change", name, CHANGES, hint)
        largest = _LARGEST.get(name)
        if not isinstance(value, str if largest is None else Real):
            kind = "text" if largest is None else "number"
            raise RequestError(f"{name}={value!r}", f"it is no {kind}", f"give a {kind}")
        if largest is not None and not 0 < float(value) <= largest:
            raise RequestError(
                f"{name}={value}", f"not between 1 and {largest:,.0f}", "give a positive number"
            )
    if "optimizer" in given:
        given["optimizer"] = optimizer_named(given["optimizer"])
    if given.get("task", "pretrain") not in TASKS:
        raise RequestError(f"task {given['task']!r}", "no such task", one_of(given["task"], TASKS))
    return given


@dataclass(frozen=True)
class FormReader:
    """A reader of one form, by its name; `accepts` knows a reference of it."""

    name: str
    accepts: Callable[[str], bool]

    def read(self, reference: str, **changes: Any) -> Workload:
        """Return the workload with the changes of shape. Raises RequestError where it cannot be read."""
        shape = {name: value for name, value in changes.items() if name in SHAPING}
        path = Path(reference).expanduser()
        match self.name:
            case "zoo":
                return _zoo_workload(reference, **shape)
            case "module":
                from forerun.workloads.trace import workload_from_reference

                return workload_from_reference(reference, **shape)
            case "onnx":
                from forerun.workloads.onnx import workload_from_onnx

                return workload_from_onnx(path, **shape)
            case "hf-config":
                from forerun.workloads.hf_config import workload_from_hf_config

                _refuse_sizes(
                    reference, shape, "its samples have no {}", "leave {} out", ("image_size",)
                )
                return workload_from_hf_config(path, **shape)
        from forerun.workloads.spec import workload_from_spec

        _refuse_sizes(reference, shape, "a spec states its own sizes", "write {} in the file")
        return _changed(workload_from_spec(path), shape)


def _in_zoo(reference: str) -> bool:
    from forerun.workloads.zoo import find_entry

    # A folder or file of a model is what it holds, not what its name looks like.
    there = "/" in reference and Path(reference).expanduser().exists()
    return not there and find_entry(reference) is not None


ZooReader = partial(FormReader, "zoo", _in_zoo)
ModuleReader = partial(FormReader, "module", lambda text: _MODULE.fullmatch(text) is not None)
OnnxReader = partial(FormReader, "onnx", lambda text: text.lower().endswith(".onnx"))
HfConfigReader = partial(
    FormReader, "hf-config",
    lambda text: text.lower().endswith(".json") or (Path(text) / "config.json").is_file(),
)  # fmt: skip
SpecReader = partial(FormReader, "spec", lambda text: text.lower().endswith((".yaml", ".yml")))
