"""Which columns the generic expression of one kind of runs has, and why the others are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_columns import BLANK, EXTRINSIC, INTRINSIC, TEXTS
from forerun.predictors.laws.generic_form import GenericForm

FloatArray = NDArray[np.float64]

# A column of which the others explain all but this share of its spread says nothing of its own:
# batches are rounded to whole samples a device.
_OWN_SHARE = 0.02
_MOST_CATEGORIES = 12


@dataclass
class Choice:
    """The columns of one kind of runs.

    Attributes:
        form: the expression.
        held: number or text columns that never change, and their value (a text as its code).
        left_out: columns that change and are not in the expression, and why.
    """

    form: GenericForm
    held: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def chosen(
    columns: Mapping[str, FloatArray], texts: Mapping[str, tuple[str, ...]], room: int
) -> Choice:
    """Return the expression of n runs: every column that varies, and that others do not explain.

    Args:
        columns: numbers and coded texts, (n,) each; BLANK where a run does not say.
        texts: the words of each text column.
        room: how many runs differ, which the constants may not outnumber.
    """
    choice = Choice(GenericForm())
    basis = [np.ones(len(columns["devices"]))]
    names: list[tuple[str, ...]] = [()]
    numbers: dict[str, float] = {}
    scaling: dict[str, float] = {}
    categories: dict[str, tuple[str, ...]] = {}
    for name in (*EXTRINSIC, *INTRINSIC, *TEXTS):
        values = columns.get(name)
        if values is None or not _varies(choice, name, values):
            continue
        block = _block(values, name in texts)
        why = _explained(block, basis, names) or _no_room(
            name, block, room, GenericForm(numbers, categories, scaling), name in texts
        )
        if why:
            choice.left_out[name] = why
            continue
        basis += list(block.T)
        names += [(name,)] * block.shape[1]
        if name in texts:
            categories[name] = tuple(texts[name][int(code)] for code in np.unique(values))
        elif name in EXTRINSIC:
            scaling[name] = _reference(values)
        else:
            numbers[name] = _reference(values)
    choice.form = GenericForm(numbers, categories, scaling)
    return choice


def _varies(choice: Choice, name: str, values: FloatArray) -> bool:
    """Return whether a column is stated by all runs and changes; say in the choice where not."""
    blank = int(np.count_nonzero(values == BLANK))
    if blank == len(values):
        return False
    if blank:
        choice.left_out[name] = f"blank in {blank} of {len(values)} runs"
    elif values.min() == values.max():
        choice.held[name] = float(values[0])
    else:
        return True
    return False


def _block(values: FloatArray, text: bool) -> FloatArray:
    """Return what a column adds to the basis: its log, or a flag for each category, (n, b)."""
    if not text:
        return np.log(values)[:, None]
    flags: FloatArray = (values[:, None] == np.unique(values)[None, :]).astype(np.float64)
    return flags


def _explained(block: FloatArray, basis: list[FloatArray], names: list[tuple[str, ...]]) -> str:
    """Return by what a block is explained, in words, or "" where it says something of its own."""
    x = np.stack(basis, axis=1)
    spread = block - block.mean(axis=0)
    weights = np.linalg.lstsq(x, block, rcond=None)[0]
    own = block - x @ weights
    share = np.linalg.norm(own, axis=0) / np.linalg.norm(spread, axis=0)
    if share.max() > _OWN_SHARE:
        return ""
    moves = np.abs(weights) * np.std(x, axis=0)[:, None] > _OWN_SHARE * np.std(block, axis=0)
    by = dict.fromkeys(name for i, of in enumerate(names) for name in of if moves[i].any())
    return f"goes with {' and '.join(by)}"


def _no_room(name: str, block: FloatArray, room: int, form: GenericForm, text: bool) -> str:
    """Return why there are too few different runs for one more column, or ""."""
    if text and block.shape[1] > _MOST_CATEGORIES:
        return f"{block.shape[1]} different words"
    more = block.shape[1] if text else 2 - (name in EXTRINSIC)
    # The first intrinsic column takes the place of the one constant that stands for none.
    more -= int(name not in EXTRINSIC and not form.numbers and not form.categories)
    return f"only {room} different runs" if form.constants + more > room else ""


def _reference(values: FloatArray) -> float:
    """Return the middle one of the measured values."""
    return float(np.sort(values)[len(values) // 2])
