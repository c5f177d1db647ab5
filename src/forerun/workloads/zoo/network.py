"""Network: one row of a table of networks that are not language models, and its Workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from forerun.domain.workload import (
    ACTIVATION_BYTES,
    OPTIMIZER_STATES,
    LayerShape,
    Length,
    Workload,
)
from forerun.errors import RequestError, one_of
from forerun.workloads.zoo.entry import Entry
from forerun.workloads.zoo.net import Net

IMAGENET_SAMPLES = 1_281_167.0
# Mean size of an ImageNet-1k training JPEG; about 140 GB over 1.28 million files (unverified).
IMAGENET_BYTES = 110_000.0
UNVERIFIED = "usual practice, unverified"

# States a network's forward operations and its loss at a size (pixels on a side, or tokens of a
# sample; 0 where samples have neither), and returns notes about this size.
Emit = Callable[[Net, int], tuple[str, ...]]


@dataclass(frozen=True)
class Network:
    """One named network and how it is usually trained.

    Attributes:
        name: zoo id.
        family: architecture family.
        emit: states the network up to and including its loss.
        source: where the structure is from.
        description: one line for a listing.
        sample: `image` (then `size` is pixels on a side), `sequence` (tokens or frames) or `row`.
        size: default size, 0 for rows.
        shape: what parallel plans may divide.
        optimizer, precision, dataset, dataset_size, length, input_bytes: as in Workload.
        notes: what a reader of an answer ought to know.
        aliases: other names.
        batch: samples a step where none is given.
        guessed: the structure is a guess that a note explains; bands are as wide as for totals.
    """

    name: str
    family: str
    emit: Emit
    source: str
    description: str
    sample: str = "image"
    size: int = 0
    shape: LayerShape = LayerShape()
    optimizer: str = "momentum"
    precision: str = "bf16"
    dataset: str = "ImageNet-1k"
    dataset_size: float = IMAGENET_SAMPLES
    length: Length | None = None
    input_bytes: float = IMAGENET_BYTES
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    batch: int = 256
    guessed: bool = False

    def build(
        self,
        *,
        image_size: int | None = None,
        seq_len: int | None = None,
        precision: str | None = None,
        optimizer: str | None = None,
        fused_attention: bool | None = None,
    ) -> Workload:
        """Return the workload; None means the usual value.

        Raises:
            RequestError: the size, precision or optimizer does not suit, or attention is asked
                in another form than the network has.
        """
        if fused_attention is not None:
            raise RequestError(
                f"{self.name} with fused_attention={fused_attention}",
                "the form of its attention is part of its structure",
                "leave fused_attention out",
            )
        size = image_size or seq_len or self.size
        kind, chosen = precision or self.precision, optimizer or self.optimizer
        if chosen not in OPTIMIZER_STATES:
            raise RequestError(
                f"optimizer {chosen!r}", "no such optimizer",
                one_of(chosen, OPTIMIZER_STATES),
            )  # fmt: skip
        net = Net(ACTIVATION_BYTES.get(kind, 2.0))
        notes = self.emit(net, size)
        return Workload(
            name=self.name,
            graph=net.graph(chosen),
            shape=self.shape,
            family=self.family,
            sample=self.sample,
            seq_len=size if self.sample == "sequence" else 0,
            image_size=size if self.sample == "image" else 0,
            precision=kind,
            optimizer=chosen,
            dataset=self.dataset,
            dataset_size=self.dataset_size,
            length=self.length,
            input_bytes=self.input_bytes,
            detailed=not self.guessed,
            source=self.source,
            notes=(*self.notes, *notes),
            default_global_batch=self.batch,
        )

    def entry(self) -> Entry:
        """Return the network as an entry of the zoo."""
        return Entry(
            name=self.name,
            family=self.family,
            build=partial(Network.build, self),
            description=self.description,
            source=self.source,
            default_seq_len=self.size if self.sample == "sequence" else 0,
            default_image_size=self.size if self.sample == "image" else 0,
            aliases=self.aliases,
        )


def later(module: str, function: str, *arguments: object) -> Emit:
    """Return an `Emit` whose module is imported when a network of it is first built."""

    def emit(net: Net, size: int) -> tuple[str, ...]:
        found = getattr(import_module(f"forerun.workloads.zoo.{module}"), function)
        notes: tuple[str, ...] = found(*arguments, net, size)
        return notes

    return emit
