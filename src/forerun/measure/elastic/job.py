"""TrainingJob: what `forerun train` trains, on what it may train it, and when it is done: a YAML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from forerun.measure.elastic.scaling import RULES
from forerun.units import parse_dollars
from forerun.yaml_files import Section, read_section

SEARCHES, AIMS = ("full", "partial", "none"), ("time", "cost", "knee")
LAWS = ("goodput", "scavenger")
_PRICE = "price_usd_per_worker_hour"
FIELDS = (
    "entry", "settings", "seed", "workers", "global_batch", "reference_batch", "learning_rate",
    "target", "epochs", "within", "budget", _PRICE, "minimize", "search", "law", "earlier", "known",
    "checkpoint", "hang",
)  # fmt: skip
Configuration = tuple[int, int]  # workers, and samples of a step of all of them


@dataclass(frozen=True)
class MetricTarget:
    """The value of a metric that ends a training, from below (`at_least`) or from above."""

    metric: str
    value: float
    at_least: bool

    @property
    def bound(self) -> str:
        """Its value and which side of it is good enough, in words."""
        return f"at {'least' if self.at_least else 'most'} {self.value:g}"

    def __str__(self) -> str:
        return f"{self.metric} {self.bound}"

    def is_met(self, value: float) -> bool:
        """Whether a value of the metric is good enough."""
        return value >= self.value if self.at_least else value <= self.value


@dataclass(frozen=True)
class TrainingJob:
    """What is trained, with which workers and global batches, until when, and what is best.

    reference_batch: whose learning rate and steps the training function was written for. rule: how the
    learning rate follows the batch (`scaling.RULES`). earlier: a folder of a job like it, for search none.
    known: a table of runs that reached the target, by which a batch is worth what it was in them.
    """

    entry: str
    workers: tuple[int, ...]
    global_batch: tuple[int, ...]
    reference_batch: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    rule: str = "adascale"
    target: MetricTarget | None = None
    epochs: float = math.inf
    within_seconds: float = math.inf
    budget_dollars: float = math.inf
    dollars_per_worker_hour: float = 0.0
    minimize: str = "time"
    search: str = "partial"
    law: str = "goodput"
    earlier: str = ""
    known: str = ""
    checkpoint_seconds: float = 60.0
    hang_seconds: float = 60.0

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The workers and batches to choose from: each worker has a sample in each step."""
        return tuple((k, b) for k, b in product(self.workers, self.global_batch) if b >= k)

    def terms(self, folder: Path) -> dict[str, Any]:
        """Return what a worker needs to know, as plain data; folder: of the states."""
        return {
            "entry": self.entry, "settings": dict(self.settings), "seed": self.seed,
            "reference_batch": self.reference_batch, "rule": self.rule, "epochs": self.epochs,
            "checkpoint": self.checkpoint_seconds, "hang": self.hang_seconds, "folder": str(folder),
        }  # fmt: skip


def read_training_job(path: str | Path) -> TrainingJob:
    """Return the job of a YAML file. Raises RequestError."""
    return training_job(read_section(Path(path), "training job", "what to train"))


def training_job(top: Section) -> TrainingJob:
    """Return the job of a file's fields. Raises RequestError."""
    top.only(FIELDS)
    entry = top.values.get("entry")
    if not isinstance(entry, str):
        raise top.error("entry", "it has none", "write entry: package.module:function")
    batches = _counts(top, "global_batch")
    reference = _counts(top, "reference_batch") if "reference_batch" in top.values else batches
    dollars = top.values.get("budget")
    job = TrainingJob(
        entry=entry, workers=_counts(top, "workers"), global_batch=batches,
        reference_batch=min(reference), settings=top.section("settings").values if "settings" in top.values else {}, seed=int(top.number("seed", 0)),
        rule=top.choice("learning_rate", RULES, "adascale"), target=_target(top),
        epochs=top.number("epochs") if "epochs" in top.values else math.inf,
        within_seconds=top.duration("within", math.inf),
        budget_dollars=math.inf if dollars is None
        else top.checked(lambda: parse_dollars(str(dollars), "budget")),
        dollars_per_worker_hour=top.number(_PRICE, 0.0), minimize=top.choice("minimize", AIMS, AIMS[0]),
        search=top.choice("search", SEARCHES, "partial"), law=top.choice("law", LAWS, LAWS[0]),
        earlier=str(top.values.get("earlier", "")), known=str(top.values.get("known", "")),
        checkpoint_seconds=top.duration("checkpoint", TrainingJob.checkpoint_seconds),
        hang_seconds=top.duration("hang", TrainingJob.hang_seconds),
    )  # fmt: skip
    for wrong, name, found, todo in (
        (not job.configurations, "global_batch", "it is less than the workers, each of which needs a sample",
         "give a larger batch"),
        (job.target is None and not min(job.epochs, job.within_seconds, job.budget_dollars) < math.inf,
         "", "nothing ends the training", "add target, epochs, within or budget"),
        (not job.dollars_per_worker_hour and (job.minimize != "time" or "budget" in top.values),
         "", "dollars count, and a worker has no price", f"add {_PRICE}"),
        (job.search == "none" and not job.earlier and len(job.configurations) > 1, "search",
         "without a search something must be known before", "add earlier: FOLDER of a job like it"),
    ):  # fmt: skip
        if wrong:
            raise top.error(name, found, todo)
    return job


def _target(top: Section) -> MetricTarget | None:
    if "target" not in top.values:
        return None
    part = top.section("target")
    part.only(("metric", "at_least", "at_most"))
    given = [name for name in ("at_least", "at_most") if name in part.values]
    bound = math.nan
    with suppress(ValueError):  # YAML reads 1e6 as text
        bound = float(str(part.values[given[0]])) if len(given) == 1 else bound
    if "metric" not in part.values or not math.isfinite(bound):
        todo = "write target: {metric: accuracy, at_least: 0.97}, or at_most"
        raise part.error("", "it needs a metric and one bound, a number", todo)
    return MetricTarget(str(part.values["metric"]), bound, given == ["at_least"])


def _counts(top: Section, name: str) -> tuple[int, ...]:
    value = top.values.get(name)
    several = value if isinstance(value, list) else [value]
    if value is None or not several or any(type(v) is not int or v < 1 for v in several):
        found = (
            "it has none" if value is None else f"{value!r} is no whole number from 1, nor a list"
        )
        raise top.error(name, found, f"write {name}: 4, or [1, 2, 4]")
    return tuple(sorted(set(several)))
