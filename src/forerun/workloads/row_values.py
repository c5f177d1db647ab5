"""Words and numbers of a row, cleaned: blanks, synonyms of precisions, optimizers and frameworks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun.domain.workload import OPTIMIZER_STATES, PRECISIONS
from forerun.errors import one_of

_BLANKS = {"", "nan", "none", "null", "na", "n/a", "-", "unknown"}
_PRECISIONS = {
    "half": "fp16", "float16": "fp16", "amp": "fp16", "mixed": "fp16", "fp16-mixed": "fp16",
    "16": "fp16", "mixed_fp16": "fp16", "bfloat16": "bf16", "bf16-mixed": "bf16",
    "mixed_bf16": "bf16", "single": "fp32", "float": "fp32", "float32": "fp32", "full": "fp32",
    "32": "fp32", "double": "fp64", "float64": "fp64", "64": "fp64", "float8": "fp8",
    "fp8-mx": "fp8", "mxfp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "fp4", "mxfp4": "fp4",
    "tensorfloat32": "tf32",
}  # fmt: skip
# What a framework computes in where nothing is said, the first match counts.
_FRAMEWORK_PRECISIONS = (
    ("megatron-bridge", "bf16"), ("nemo", "bf16"), ("megatron", "fp16"), ("deepspeed zero", "fp16"),
    ("torchtitan", "bf16"), ("maxtext", "bf16"), ("nanotron", "bf16"), ("llm-foundry", "bf16"),
    ("libai", "fp16"), ("pytorch", "fp32"), ("tensorflow", "fp32"), ("mxnet", "fp32"),
    ("mindspore", "fp32"), ("paddle", "fp32"), ("oneflow", "fp32"), ("hugectr", "fp32"),
    ("torchtrainer", "fp32"),
)  # fmt: skip
# Frameworks whose attention writes its scores to device memory (releases before fused kernels).
_MATERIALISING = re.compile(
    r"megatron-lm|megatron-deepspeed|libai|oneflow|mindspore|paddle|mxnet|tensorflow"
    r"|adaptdl|deeplearningexamples|deepspeed zero|ngc pytorch|gavel"
)
# Published timings of forward and backward alone.
_WITHOUT_UPDATE = frozenset({"pytorch-gpu-benchmark"})
_OPTIMIZERS = (
    ("momentum", "momentum"), ("nag", "momentum"), ("adamw", "adamw"), ("adam", "adam"),
    ("lamb", "lamb"), ("lars", "lars"), ("sgd", "momentum"), ("adagrad", "adagrad"),
    ("rmsprop", "rmsprop"), ("adafactor", "adafactor"), ("lion", "lion"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The workload columns of one row, with blanks left out."""

    values: Mapping[str, Any]

    def text(self, column: str) -> str:
        """Return a cell as text, "" where it is blank."""
        value = self.values.get(column)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        text = str(value).strip()
        return "" if text.lower() in _BLANKS else text

    def number(self, column: str) -> float:
        """Return a cell as a number, 0 where it is blank.

        Raises:
            ValueError: the cell is no number, or not a finite one above zero.
        """
        text = self.text(column)
        if not text:
            return 0.0
        try:
            number = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"{column} is {text!r}: not a finite number above zero")
        return number

    def whole(self, column: str) -> int:
        """Return a cell as a whole number, 0 where it is blank. Raises ValueError."""
        number = self.number(column)
        if not number.is_integer():
            raise ValueError(f"{column} is {number:g}: not a whole number")
        return int(number)


def precision_of(row: Row, usual: str) -> tuple[str, str]:
    """Return the precision of a row and a note where it had to be assumed.

    Raises:
        ValueError: a precision that is not known.
    """
    stated = row.text("precision").lower()
    if stated:
        precision = _PRECISIONS.get(stated, stated)
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {stated!r}: {one_of(stated, PRECISIONS)}")
        return precision, ""
    framework = row.text("framework").lower()
    found = next((p for name, p in _FRAMEWORK_PRECISIONS if name in framework), usual)
    if row.text("workload").lower().startswith("mlperf-"):
        # Every submission since v0.5 that is timed on accelerators is in 16 bits; NeMo's of large
        # transformers, from v3.0 on, are in 8.
        found = "fp8" if "nemo framework" in framework or "nemo megatron" in framework else "fp16"
    return found, f"precision is not stated: {found} assumed"


def framework_of(row: Row) -> str:
    """Return the framework's label; a submission to MLPerf says so, for it is tuned by a vendor."""
    label = row.text("framework")
    return f"MLPerf: {label}" if row.text("workload").lower().startswith("mlperf-") else label


def optimizer_of(row: Row) -> str:
    """Return the optimizer of a row, "" where it is blank. Raises ValueError."""
    stated = row.text("optimizer").lower()
    if not stated and row.text("source").lower() in _WITHOUT_UPDATE:
        return "none"
    if not stated or stated in OPTIMIZER_STATES:
        return stated
    found = next((key for part, key in _OPTIMIZERS if part in stated), "")
    if not found and "gradient_descent" in stated:
        found = "sgd"
    if not found:
        raise ValueError(f"optimizer is {stated!r}: {one_of(stated, OPTIMIZER_STATES)}")
    return found


def fused_attention_of(row: Row) -> bool | None:
    """Return whether the row's framework fuses attention; None where it does not say."""
    framework = row.text("framework").lower()
    if not framework:
        return None
    if row.text("workload").lower().startswith("mlperf-"):
        return None
    if _MATERIALISING.search(framework):
        return False
    return True if not framework.startswith("pytorch ddp") else None
