"""Columns of the generic model: what jobs say of themselves and of the machines, as numbers.

Intrinsic columns are of the network and its training, extrinsic ones of how it is spread over
machines. A text is the position of its word among those that the fitted runs have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.plan import SYNC
from forerun.predictors.laws.law_rows import RESOURCES, LawRows

EXTRINSIC = (
    "devices", "global_batch", "nodes", "parameter_servers", "grad_accum", "micro_batch", "tp",
    "pp", "cp", "ep", *RESOURCES,
)  # fmt: skip
INTRINSIC = (
    "dataset_size", "seq_len", "image_size", "learning_rate", "params", "gmacs", "mactivations",
    "layers", "hidden", "heads", "ffn", "vocab", "experts",
)  # fmt: skip
TEXTS = (
    "sync", "instance_type", "framework", "precision", "optimizer", "dataset", "interconnect",
    "memory_format", "recompute", "zero_stage", "task",
)  # fmt: skip
# Number columns of which a law that saw one value alone says nothing for another.
STRICT = ("global_batch", "parameter_servers", "tp", "pp", "cp", "ep", *INTRINSIC)
# What a column holds where a row says nothing, and where it says a word that no run has.
BLANK, UNKNOWN = -1.0, -2.0

_OF_PLANS = ("parameter_servers", "micro_batch", "tp", "pp", "cp", "ep")
_OF_WORKLOADS = ("seq_len", "image_size", "framework", "precision", "optimizer")


def number(rows: LawRows, name: str) -> FloatArray:
    """Return a number column of n jobs, (n,): as rows say it, else as the job has it, else BLANK."""
    if name == "devices":
        return rows.machines
    if name in ("global_batch", "dataset_size"):
        return np.nan_to_num(rows.size(name), nan=BLANK)
    jobs = rows.jobs
    values = np.full(len(jobs), np.nan)
    if jobs.labels is not None:
        values = jobs.labels.numbers(name)
    if name == "nodes":
        known = np.array([float(c.nodes) for c in jobs.clusters] + [np.nan])
        values = np.where(np.isnan(values), known[jobs.cluster_index], values)
    elif name in _OF_WORKLOADS:
        known = np.array([float(getattr(w, name) or 0) for w in jobs.workloads] + [0.0])
        values = np.where(np.isnan(values), known[jobs.workload_index], values)
    elif name in _OF_PLANS and jobs.labels is None:
        values = np.asarray(getattr(jobs.plans, name), dtype=np.float64)
    return np.where(values > 0, values, BLANK)


def codes(rows: LawRows, name: str, known: Sequence[str]) -> FloatArray:
    """Return the position of each job's text among the known ones, (n,); BLANK or UNKNOWN where none."""
    jobs = rows.jobs
    place = {"": BLANK, **{word: float(i) for i, word in enumerate(known)}}
    of, index = _interned(rows, name)
    # The last is for jobs whose workload or cluster is not known.
    found: FloatArray = np.array([place.get(word, UNKNOWN) for word in of] + [BLANK])[index]
    if jobs.labels is None or name not in jobs.labels or name == "sync":
        return found
    cells = jobs.labels.texts(name).tolist()
    said = {cell: place.get(cell.strip(), UNKNOWN) for cell in dict.fromkeys(cells)}
    labelled = np.fromiter(map(said.__getitem__, cells), np.float64, len(cells))
    return np.where(labelled == BLANK, found, labelled)


def _interned(rows: LawRows, name: str) -> tuple[list[str], NDArray[Any]]:
    """Return what workloads, clusters or plans say of a text column, and which each job has, (n,)."""
    jobs = rows.jobs
    if name == "sync":
        return list(SYNC), rows.sync
    if name == "instance_type":
        return [c.instance_type for c in jobs.clusters], jobs.cluster_index
    if name in _OF_WORKLOADS:
        return [str(getattr(w, name) or "") for w in jobs.workloads], jobs.workload_index
    return [], np.full(len(jobs), -1)


def known_words(rows: LawRows) -> Mapping[str, tuple[str, ...]]:
    """Return the distinct words of each text column that has any."""
    labels = rows.jobs.labels
    found: dict[str, set[str]] = {}
    for name in TEXTS:
        of, index = _interned(rows, name)
        found[name] = {of[i] for i in np.unique(index) if i >= 0}
        if labels is not None and name != "sync":
            found[name] |= {cell.strip() for cell in dict.fromkeys(labels.texts(name).tolist())}
    kept = {name: tuple(sorted(of - {""})) for name, of in found.items()}
    return {name: of for name, of in kept.items() if of}
