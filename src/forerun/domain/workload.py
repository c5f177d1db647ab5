"""Workload: what is trained. It knows nothing of machines, plans or prices."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from numbers import Real

from forerun.domain.graph import Graph
from forerun.errors import RequestError, one_of
from forerun.units import format_count

# Bytes an element takes in activations and in weights as they are computed with. fp8 and fp4
# recipes keep activations between operations in 16 bits; only matrix operands are narrower.
ACTIVATION_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0, "fp4": 2.0,
}  # fmt: skip
OPERAND_BYTES = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5,
}  # fmt: skip
PRECISIONS = tuple(ACTIVATION_BYTES)

# Optimizer states beside weights and gradients: (fp32 numbers a parameter, state reads + writes).
# none: a step is forward and backward only. 8 bits are a quarter of fp32 (Dettmers et al. 2022, blocks of
# 2,048 numbers with a scale each); pages of states leave for the host's memory where the device's is short.
OPTIMIZER_STATES: dict[str, float] = {"none": 0, "sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "adafactor": 0,
                    "lion": 1, "adam": 2, "adamw": 2, "lamb": 2, "lars": 1,
                    "adam_8bit": 0.5, "adamw_8bit": 0.5, "lion_8bit": 0.25, "paged_adamw": 2,
                    "paged_adamw_8bit": 0.5, "paged_lion": 1, "paged_lion_8bit": 0.25}  # fmt: skip

# What the names of the Hugging Face Trainer (TrainingArguments.optim) add to those above.
_OF_TRAINER = re.compile(r"_(torch|fused|apex|xla|npu|hf|bnb|32bit)(?=_|$)")

# Notes of a workload that begin so say that its time may not be all that a step takes.
_FACTS = ("LoRA: ", "QLoRA: ", "DPO: ", "assumed: ")  # how notes begin that warn of nothing
DEPENDS_ON_DATA, NO_OPERATION_READS = "the step depends on data", "no operation reads"


def optimizer_named(text: str) -> str:
    """Return the key of `OPTIMIZER_STATES` that a name means, also one of the Trainer; of others, the name."""
    name = _OF_TRAINER.sub("", text)
    return name if name in OPTIMIZER_STATES else text


@dataclass(frozen=True, slots=True)
class Length:
    """How much training a job is: a count of steps, samples, tokens or epochs, and who says so."""

    unit: str
    count: float
    source: str = "given"

    UNITS = ("steps", "samples", "tokens", "epochs")

    def __post_init__(self) -> None:
        if self.unit not in Length.UNITS:
            raise RequestError(
                f"a job length in {self.unit!r}", "no such unit", one_of(self.unit, Length.UNITS)
            )
        if not 0 < self.count < float("inf"):
            raise RequestError(
                f"a job of {self.count} {self.unit}", "the count is not above zero and finite",
                "give a positive count",
            )  # fmt: skip

    def __str__(self) -> str:
        count = f"{self.count:,.0f}" if self.count < 1e6 else format_count(self.count)
        return f"{count} {self.unit} ({self.source})"


# dpo: preference training of pairs, one of which a sample is half of.
TASKS = ("pretrain", "finetune", "lora", "qlora", "dpo")
_EXAMPLES = "3 epochs of 52,002 examples (Taori et al. 2023), assumed for {}; state yours"
TUNING = Length("samples", 156_006, _EXAMPLES)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The dimensions that parallel plans divide; 0 where there are none, or they are not known."""

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    vocab: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_groups: int = 0
    moe_layers: int = 0
    head_size: int = 0


@dataclass(frozen=True)
class Workload:
    """What is trained: the graph of one step, its data and its usual length. Not known: "", 0 or None.

    Attributes:
        family: architecture family (`llama`, `resnet`, `dlrm` ...).
        sample: what one sample is: `image`, `sequence`, `row` ...
        seq_len, image_size: tokens, and pixels on a side, of a sample.
        precision: arithmetic of the step, one of `PRECISIONS`; fp16 means mixed precision.
        optimizer: a key of `OPTIMIZER_STATES`.
        dataset_size: samples in one epoch.
        input_bytes: that the input pipeline decodes for one sample.
        fused_attention: attention scores never reach device memory.
        task: one of `TASKS`.
        detailed: False where the graph is only totals (from columns of a runs table).
        default_global_batch: the usual samples in one optimizer step.
        sparse_fraction: of all parameters, that a worker's step touches and sends to parameter servers;
            None: as the embedding tables say whose gradients are sparse.
        lora_rank, lora_targets: of the adapters that the graph has; 0 and "" where it has none.
    """

    name: str
    graph: Graph
    shape: LayerShape = LayerShape()
    family: str = ""
    sample: str = "sample"
    seq_len: int = 0
    image_size: int = 0
    precision: str = "bf16"
    framework: str = ""
    optimizer: str = "adamw"
    dataset: str = ""
    dataset_size: float = 0.0
    length: Length | None = None
    input_bytes: float = 0.0
    fused_attention: bool = True
    task: str = "pretrain"
    detailed: bool = True
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    default_global_batch: int = 0
    sparse_fraction: float | None = None
    lora_rank: int = 0
    lora_targets: str = ""

    def __post_init__(self) -> None:
        for name, known in (("precision", PRECISIONS), ("optimizer", OPTIMIZER_STATES)):
            value = getattr(self, name)
            if value not in known:
                raise RequestError(f"{name} {value!r}", f"no such {name}", one_of(value, known))
        touched = self.sparse_fraction
        is_number = isinstance(touched, Real) and not isinstance(touched, bool)
        if touched is not None and not (is_number and 0 < touched <= 1):
            raise RequestError(
                f"sparse_fraction={touched}", "it is a share of the parameters, above 0 and at most 1",
                "give a share such as 0.01, or leave it out",
            )  # fmt: skip

    @property
    def facts(self) -> tuple[str, ...]:
        """The notes that say what it is or what is assumed, and warn of nothing."""
        return tuple(note for note in self.notes if note.startswith(_FACTS))

    @property
    def params(self) -> float:
        """Parameters that a step holds, frozen ones too."""
        return self.graph.params

    def steps(self, length: Length, global_batch: float) -> float:
        """Return how many optimizer steps a length is (not rounded). Raises RequestError."""
        if length.unit == "steps":
            return length.count
        return self.samples(length, global_batch) / global_batch

    def samples(self, length: Length, global_batch: float = 1.0) -> float:
        """Return how many samples a length is. Raises RequestError."""
        if length.unit == "steps":
            return length.count * global_batch
        if length.unit == "samples":
            return length.count
        if length.unit == "tokens":
            if self.seq_len <= 0:
                raise RequestError(
                    f"{length} of {self.name}", "its samples have no tokens",
                    "give the length in --samples, --steps or --epochs",
                )  # fmt: skip
            return length.count / self.seq_len
        if self.dataset_size <= 0:
            raise RequestError(
                f"{length} of {self.name}", "the size of its dataset is not known",
                "give --dataset-size, or the length in --samples or --steps",
            )  # fmt: skip
        return length.count * self.dataset_size

    def with_(self, **changes: object) -> Workload:
        """Return a copy with the named fields changed; a task that tunes replaces a length nobody stated by `TUNING`."""
        task, usual = changes.get("task", "pretrain"), self.length and self.length.source != "given"
        if task != "pretrain" and usual and self.seq_len:  # what pre-training takes says nothing
            changes = {"length": replace(TUNING, source=TUNING.source.format(task)), **changes}
        return replace(self, **changes)  # type: ignore[arg-type]
