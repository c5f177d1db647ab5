"""Campaign files: YAML (or a mapping of the same fields) becomes a Campaign, each mistake with its line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import RequestError, one_of
from forerun.measure.campaign import Budget, Campaign, Point
from forerun.measure.task import Steps, Task, sharing
from forerun.tables import Table
from forerun.tables.conditions import parse_condition
from forerun.tables.table import ALIASES
from forerun.units import counted, parse_count, parse_dollars
from forerun.yaml_files import Section, read_section

_PRICE = "price_usd_per_worker_hour"
TOP = (
    "name", "runner", "workloads", "vary", "runs", "leave_out", "steps", "repeats", "timeout", "hang",
    "budget", _PRICE, "device", "asked", "seed", "order",
)  # fmt: skip
_STEP_COUNTS = ("warmup", "least", "most", "epochs")
_ORDERS = ("smallest", "random")
RUNNERS = ("local", "ray")
# What may vary: fields of a Task, and the batch of one worker in place of the global one. Counts
# have their lowest value.
_COUNTS = {
    "workers": 1, "global_batch": 1, "batch_per_worker": 1, "dataset_size": 0, "gpus_per_worker": 0,
    "threads": 0,
}  # fmt: skip
_VARY = (*_COUNTS, "cpus_per_worker", "precision", "optimizer", "instance_type")
_BATCHES = {"global_batch", "batch_per_worker"}
_MOST_POINTS = 100_000


def read_campaign(path: str | Path) -> Campaign:
    """Return the campaign of a YAML file. Raises RequestError."""
    return _campaign_of(read_section(Path(path), "campaign", "a campaign"))


def campaign(
    fields: Mapping[str, Any], name: str = "campaign", most: int = _MOST_POINTS
) -> Campaign:
    """Return the campaign of a mapping with a campaign file's fields, of so many runs at most. Raises as `read_campaign`."""
    return _campaign_of(Section(Path(name), "", fields, {}), most)


def _campaign_of(top: Section, most: int = _MOST_POINTS) -> Campaign:
    top.only(TOP)
    workloads = top.section("workloads")
    if not workloads.values:
        todo = "write NAME: {entry: package.module:callable}"
        raise top.error("workloads", "it names none", todo)
    budget = _part(top, "budget", ("time", "dollars"))
    dollars = budget.values.get("dollars")
    is_by_type = isinstance(top.values.get(_PRICE), Mapping)
    prices = top.section(_PRICE) if is_by_type else replace(top, values={})
    seed, order = _whole(top, "seed", 0, 0), top.choice("order", _ORDERS, _ORDERS[0])
    fields = {
        "steps": _steps(_part(top, "steps", (*_STEP_COUNTS, "half_width", "seconds"))), "seed": seed,
        "timeout_seconds": top.duration("timeout", Task.timeout_seconds),
        "hang_seconds": top.duration("hang", Task.hang_seconds),
    }  # fmt: skip
    # Columns that all rows share: the device's label, and what `asked` adds.
    shared = {"device": str(top.values["device"])} if "device" in top.values else {}
    shared |= {str(name): value for name, value in _part(top, "asked").values.items()}
    every = (
        point for section, name in _sections(top, workloads)
        for point in _points(top, section, name, fields, shared, most)
    )  # fmt: skip
    if len(points := list(islice(every, most + 1))) > most:
        raise top.error("", *_too_many(most))
    if "runs" in top.values:  # equal points are each other's repeats
        made: Counter[str] = Counter()
        for i, point in enumerate(points):
            key = replace(point, repeat=0).key
            points[i] = replace(point, repeat=made[key])
            made[key] += 1
    kept, notes = _kept(top, points)
    return Campaign(
        name=str(top.values.get("name") or top.path.stem),
        points=tuple(_in_order(kept, order, seed)),
        budget=Budget(
            budget.duration("time", 0.0) or None,
            None if dollars is None else budget.checked(lambda: parse_dollars(str(dollars))),
        ),
        dollars_per_worker_hour=0.0 if is_by_type else top.number(_PRICE, 0.0),
        instance_prices={str(name): prices.number(str(name)) for name in prices.values},
        runner=top.choice("runner", RUNNERS, RUNNERS[0]),
        notes=notes,
        spec=dict(top.values),
        passes=order == "random",
    )


def _too_many(most: int) -> tuple[str, str]:
    found = f"too many runs: a campaign has at most {most:,}"
    return found, "vary fewer values, or divide it into several"


def _part(section: Section, name: str, allowed: Sequence[str] = ()) -> Section:
    if name not in section.values:
        return replace(section, values={})
    part = section.section(name)
    if allowed:
        part.only(allowed)
    return part


def _steps(section: Section) -> Steps:
    given: dict[str, Any] = {
        name: _whole(section, name, 0) for name in _STEP_COUNTS if name in section.values
    }
    if "half_width" in section.values:
        text = str(section.values["half_width"]).strip()
        try:
            given["half_width"] = float(text.removesuffix("%")) / (100 if text[-1:] == "%" else 1)
        except ValueError:
            raise section.error("half_width", f"{text!r} is no share", "write 3% or 0.03") from None
    usual = Steps()
    given["seconds"] = section.duration("seconds", usual.seconds)
    if "least" in given:
        given.setdefault("most", max(given["least"], usual.most))
    elif "most" in given:
        given["least"] = min(given["most"], usual.least)
    return section.checked(lambda: Steps(**given))


def _whole(section: Section, name: str, lowest: int, default: int = 1) -> int:
    value = section.values.get(name, default)
    zero = str(value).strip() in ("0", "0.0")
    try:
        number = 0.0 if zero else parse_count(str(value), name)
    except RequestError as error:
        raise section.error(name, f"{value!r}: {error.found}", error.next_step) from None
    if not number.is_integer() or number < lowest or isinstance(value, bool):
        found = f"{value!r} is not a whole number from {lowest}"
        raise section.error(name, found, f"write {name}: {max(lowest, 1)}, or more")
    return int(number)


def _several(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _sections(top: Section, workloads: Section) -> Iterator[tuple[Section, str]]:
    if "runs" not in top.values:
        yield from ((workloads.section(str(name)), str(name)) for name in workloads.values)
        return
    for run in top.sections("runs"):
        run.only(("workload", "settings", "arguments", *_VARY))
        name = str(run.values.get("workload", ""))
        if name not in workloads.values:
            todo = one_of(name, list(workloads.values))
            raise run.error("workload", f"no workload {name!r}", todo)
        values = {**workloads.section(name).values, **run.values}
        del values["workload"]
        yield replace(run, values=values), name


def _in_order(points: Sequence[Point], order: str, seed: int) -> list[Point]:
    """Order points: fewest workers first, or a randomised complete block design (Fisher 1935) of repeats."""
    if order == "smallest":
        return sorted(points, key=lambda point: (point.task.workers, point.task.cpus_per_worker))
    draw = np.random.default_rng(seed)
    found: list[Point] = []
    for repeat in sorted({point.repeat for point in points}):
        some = [point for point in points if point.repeat == repeat]
        starts = sharing([point.task for point in some])
        for start in draw.permutation(len(starts)):
            found += [some[i] for i in draw.permutation(starts[start])]
    return found


def _points(
    top: Section, section: Section, name: str, fields: Mapping[str, Any],
    shared: Mapping[str, object], most: int,
) -> Iterator[Point]:  # fmt: skip
    section.only(("entry", "arguments", "settings", *_VARY))
    entry = section.values.get("entry")
    if not isinstance(entry, str):
        todo = "write entry: package.module:callable, or train.py"
        raise section.error("entry", "it has none", todo)
    varied, repeats = _varied(top, section), _whole(top, "repeats", 1)
    arguments = tuple(map(str, _several(section.values.get("arguments", []))))
    if np.prod([len(values) for values in varied.values()], dtype=float) * repeats > most:
        raise section.error("", *_too_many(most))
    for cells in product(*varied.values()):
        chosen = dict(zip(varied, cells, strict=True))
        own = {k: v for k, v in chosen.items() if not k.startswith("settings.")}
        settings = {k.partition(".")[2]: v for k, v in chosen.items() if k.startswith("settings.")}
        if "batch_per_worker" in own:
            parts = settings.get("partitions")
            parts = parts if type(parts) is int and parts > 0 else 1  # else the task refuses it
            replicas = max(int(own.get("workers", 1)) // parts, 1)
            own["global_batch"] = own.pop("batch_per_worker") * replicas
        try:
            task = Task(entry, settings=settings, arguments=arguments, **own, **fields)
        except RequestError as error:
            raise section.error("", f"{error.asked}: {error.found}", error.next_step) from None
        task = task.with_(arguments=tuple(_filled(word, task) for word in task.arguments))
        settings = dict(task.settings)
        passes = int(settings.pop("accumulate", 0))
        row: dict[str, object] = {
            "workload": name,
            "devices": task.workers, "global_batch": task.global_batch,
            "micro_batch": task.batch // max(passes, 1), "precision": task.precision,
            "optimizer": task.optimizer, "framework": "pytorch",
            **({"grad_accum": passes} if passes else {}),
            **({"dataset_size": task.dataset_size} if task.dataset_size else {}),
            **{name: chosen[name] for name in ("cpus_per_worker", "threads", "instance_type") if name in chosen},
            **settings, **shared,
        }  # fmt: skip
        yield from (Point(task, row, repeat) for repeat in range(repeats))


def _varied(top: Section, section: Section) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for part in (_part(top, "vary", (*_VARY, "settings")), section):
        names = [name for name in part.values if name in _VARY]
        if set(names) >= _BATCHES:
            why = "global_batch and batch_per_worker are both given"
            raise part.error("", why, "keep one: the batch of all workers, or that of each")
        if _BATCHES & set(names):
            found = {name: cells for name, cells in found.items() if name not in _BATCHES}
        found |= {name: _cells(part, name) for name in names}
        settings = _part(part, "settings").values
        found |= {f"settings.{key}": _several(value) for key, value in settings.items()}
    if not _BATCHES & set(found):
        raise section.error("", "no batch is given", "add global_batch or batch_per_worker")
    return found


def _cells(section: Section, name: str) -> list[Any]:
    values = _several(section.values[name])
    if not values:
        raise section.error(name, "it has no value", "write one value or a list")
    each = [replace(section, values={name: value}) for value in values]
    if name in _COUNTS:
        return [_whole(one, name, _COUNTS[name]) for one in each]
    if name == "cpus_per_worker":
        return [one.number(name) for one in each]
    return [str(value) for value in values]


def _filled(word: str, task: Task) -> str:
    known = {
        "global_batch": task.global_batch, "batch_per_worker": task.batch,
        "workers": task.workers, "dataset_size": task.dataset_size, "seed": task.seed,
        **task.settings,
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            todo = one_of(match[1], known)
            raise RequestError(f"argument {word!r}", f"no field {match[1]!r}", todo)
        return str(known[match[1]])

    return re.sub(r"\{(\w+)\}", value, word)


def _kept(top: Section, points: Sequence[Point]) -> tuple[list[Point], tuple[str, ...]]:
    names = dict.fromkeys(name for point in points for name in point.asked)
    columns = {n: [p.asked.get(n, "") for p in points] for n in names}
    # Fields of a campaign that are no columns of a row, or have another name there.
    columns["batch_per_worker"] = [p.task.batch for p in points]
    if "grad_accum" in columns:
        columns["accumulate"] = columns["grad_accum"]
    table = Table.from_columns(columns, str(top.path))
    out = np.zeros(len(points), dtype=bool)
    for text in _several(top.values.get("leave_out", [])):
        try:  # all conditions of one entry must hold (`a<=2 and b=3`)
            found = [parse_condition(part) for part in re.split(r"\s+and\s+", str(text))]
            found = [replace(one, column=ALIASES.get(one.column, one.column)) for one in found]
            out |= np.all([condition.holds(table) for condition in found], axis=0)
        except RequestError as error:
            raise top.error("leave_out", f"{text!r}: {error.found}", error.next_step) from None
    left = int(out.sum())
    note = (f"{counted(left, 'run')} left out by leave_out",) if left else ()
    return [point for point, gone in zip(points, out, strict=True) if not gone], note
