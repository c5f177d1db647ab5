"""The plan columns of a runs table, resolved for all rows at once.

What a blank means, where a source does not say:

* tp, pp, cp, ep, vpp: 1. dp: devices / (tp pp cp).
* global_batch: micro_batch x dp x grad_accum (grad_accum 1 where blank too).
* micro_batch: global_batch / dp, divided by grad_accum where given; 1 in a pipeline, which would
  otherwise be one long bubble.
* sequence_parallel: on with tp > 1 where the framework does so by default, else off.
* zero_stage: 1 where the framework's recipes shard the optimizer's states, else 0. recompute: none, sync: allreduce, parameter_servers: 1 with a ps- kind of sync.

Where all are given, the micro-batches of a step are global_batch / (micro_batch x dp): a
grad_accum that contradicts it is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.forecast import is_none
from forerun.domain.plan import MEMORY_FORMATS, RECOMPUTE, SYNC, plan_value
from forerun.domain.plan_columns import PlanColumns
from forerun.errors import RequestError, one_of
from forerun.tables import Table

Reasons = NDArray[np.object_]

LARGEST = 2**31 - 1
NO_BATCH = "no batch size; fill global_batch, or micro_batch with dp and grad_accum"
NO_DP = "devices is blank, so dp cannot be derived; fill devices or dp"
# Frameworks whose tensor parallelism splits sequences too, unless a row says otherwise.
_SPLITS_SEQUENCES = ("nanotron", "torchtitan", "megatron-bridge")
# Frameworks whose recipes deal the optimizer's states to the replicas.
_SHARDS_STATES = ("nemo", "megatron-bridge")
_DEGREES = ("tp", "pp", "cp", "ep", "vpp")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE, "sync": SYNC, "memory_format": MEMORY_FORMATS,
}  # fmt: skip


@dataclass
class _Numbers:
    """Whole numbers read from a table, with the first thing wrong in each row."""

    table: Table
    problems: Reasons

    def whole(self, name: str, least: int = 1) -> FloatArray:
        """Return a column (n,), NaN where blank or not a whole number from `least` upward."""
        values = self.table.numbers(name)
        with np.errstate(invalid="ignore"):
            good = (values >= least) & (values <= LARGEST) & (np.floor(values) == values)
        bad = ~good & ~np.isnan(values)
        if bad.any():
            wanted = "a whole number above zero" if least else "a whole number from 0 upward"
            rows = np.flatnonzero(bad & is_none(self.problems))
            # One sentence a value; a table may hold as many wrong values as rows.
            distinct, index = np.unique(values[rows], return_inverse=True)
            said = [f"{name}={value:.10g} is not {wanted}; correct it" for value in distinct]
            self.problems[rows] = np.array(said, dtype=object)[index]
        return np.where(good, values, np.nan)

    def blame(self, rows: NDArray[np.bool_], reason: str) -> None:
        """Give the rows a reason where they have none yet."""
        self.problems[rows & is_none(self.problems)] = reason


def plans_from_table(table: Table, devices: FloatArray) -> tuple[PlanColumns, Reasons]:
    """Return the plans of n rows and, for each, why it has none (or None).

    Args:
        table: n rows.
        devices: (n,) devices in all, NaN where not known.
    """
    n = len(table)
    read = _Numbers(table, np.full(n, None, dtype=object))
    columns: dict[str, Any] = {name: _filled(read.whole(name), 1) for name in _DEGREES}
    columns["zero_stage"] = _filled(
        read.whole("zero_stage", least=0), _named(table, _SHARDS_STATES).astype(float)
    )
    over = columns["zero_stage"] > 3
    read.blame(over, "zero_stage is above 3; write 0, 1, 2 or 3")
    columns["zero_stage"][over] = 0
    columns.update({name: _coded(read, name, _position(name)) for name in _WORDS})
    columns["sequence_parallel"] = _coded(read, "sequence_parallel", _truth)
    implied = _implied_sequence_parallel(table, columns["tp"])
    columns["sequence_parallel"] = np.maximum(columns["sequence_parallel"], implied)
    columns["parameter_servers"] = _servers(read, columns["sync"])
    columns["dp"] = _data_parallel(read, devices, columns)
    columns["micro_batch"], columns["global_batch"] = _batches(read, columns["dp"], columns["pp"])
    _bound_products(read, columns)
    return PlanColumns.build(n, **{k: v.astype(np.int32) for k, v in columns.items()}), (
        read.problems
    )


def _filled(values: FloatArray, blank: float | FloatArray) -> FloatArray:
    return np.where(np.isnan(values), blank, values)


def _data_parallel(
    read: _Numbers, devices: FloatArray, columns: Mapping[str, FloatArray]
) -> FloatArray:
    """Return dp as given, else devices / (tp pp cp)."""
    given = read.whole("dp")
    inner = columns["tp"] * columns["pp"] * columns["cp"]
    derived = devices / inner
    blank = np.isnan(given)
    read.blame(blank & np.isnan(devices), NO_DP)
    uneven = blank & ~np.isnan(devices) & (np.floor(derived) != derived)
    for size in np.unique(inner[uneven]):
        for count in np.unique(devices[uneven & (inner == size)]):
            read.blame(
                uneven & (inner == size) & (devices == count),
                f"{count:.0f} devices are not divisible by tp x pp x cp = {size:.0f}; choose a"
                " divisor",
            )
    dp = np.where(blank, derived, given)
    return np.where(np.isnan(dp) | uneven, 1.0, dp)


def _batches(read: _Numbers, dp: FloatArray, pp: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return micro_batch and global_batch (n,), each derived from the other where blank."""
    total, micro = read.whole("global_batch"), read.whole("micro_batch")
    accumulate = read.whole("grad_accum")
    derived_total = micro * dp * _filled(accumulate, 1.0)
    total = np.where(np.isnan(total), derived_total, total)
    read.blame(np.isnan(total), NO_BATCH)
    total = _filled(total, 1.0)
    share = np.where((pp > 1) & np.isnan(accumulate), 1.0, total / dp / _filled(accumulate, 1.0))
    # A share that is no whole number is cut: what remains is one more, smaller micro-batch.
    micro = np.where(np.isnan(micro), np.maximum(np.floor(share), 1.0), micro)
    read.blame(total > LARGEST, "the global batch is above 2^31 samples; correct the batch columns")
    return micro, np.minimum(total, LARGEST)


def _bound_products(read: _Numbers, columns: dict[str, Any]) -> None:
    """Refuse products that no machine has, so that 32-bit columns cannot overflow."""
    absurd = (
        (columns["dp"] * columns["tp"] * columns["pp"] * columns["cp"] > LARGEST)
        | (columns["pp"] * columns["vpp"] > LARGEST)
        | (columns["dp"] * columns["cp"] > LARGEST)
    )
    read.blame(absurd, "the degrees multiply to more than 2^31 devices; correct dp, tp, pp, cp")
    for name in ("dp", "tp", "pp", "cp", "vpp"):
        columns[name] = np.where(absurd, 1.0, columns[name])


def _servers(read: _Numbers, sync: FloatArray) -> FloatArray:
    given = read.whole("parameter_servers", least=0)
    through_servers = (sync == SYNC.index("ps-sync")) | (sync == SYNC.index("ps-async"))
    return np.where(np.isnan(given), np.where(through_servers, 1.0, 0.0), given)


def _coded(read: _Numbers, name: str, code: Callable[[str], int]) -> FloatArray:
    """Return a text column as codes (n,), each distinct text decided once; blank is 0."""
    texts = read.table.texts(name)
    codes: dict[str, int] = {"": 0}
    for text in dict.fromkeys(texts):
        if text in codes:
            continue
        try:
            codes[text] = code(text)
        except RequestError as error:
            codes[text] = 0
            read.blame(texts == text, str(error))
    return np.fromiter((codes[t] for t in texts), np.float64, len(texts))


def _position(name: str) -> Callable[[str], int]:
    allowed = _WORDS[name]

    def code(text: str) -> int:
        value = str(plan_value(name, text))
        if value not in allowed:
            raise RequestError(f"{name}={text}", f"no such {name}", one_of(text, allowed))
        return allowed.index(value)

    return code


def _named(table: Table, words: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows' framework has one of the words in its label, (n,)."""
    labels, position = np.unique(table.texts("framework").astype(str), return_inverse=True)
    return np.array([any(w in x.lower() for w in words) for x in labels], dtype=bool)[position]


def _implied_sequence_parallel(table: Table, tp: NDArray[Any]) -> NDArray[np.int64]:
    """Return 1 where the cell is blank and the framework splits sequences over its tp ranks.

    nanotron (its reduce-scatter mode), torchtitan and Megatron-Bridge do so by default.
    """
    blank = table.texts("sequence_parallel") == ""
    splits = _named(table, _SPLITS_SEQUENCES)
    implied: NDArray[np.int64] = (splits & blank & (tp > 1)).astype(np.int64)
    return implied


def _truth(text: str) -> int:
    return int(bool(plan_value("sequence_parallel", text)))
