"""Networks that are not language models: rows of a table, and their layers replayed at any size.

The layers of a network are data (`data/*.json.gz`, one line a network): calls of `Net` in order.
A call is `[method, name, inputs, arguments..., options]`; an input is how many calls before. What
depends on the size of a sample is written `$i`: position 0 of the form's `sizes` is the size
itself, each further one `[operator, left, right]`. A form holds from a size on.
"""

from __future__ import annotations

import gzip
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from forerun.domain.workload import ACTIVATION_BYTES, LayerShape, Length, Workload
from forerun.errors import RequestError
from forerun.workloads.zoo.net import Net, Tensor

DATA = Path(__file__).parent / "data"
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "/": operator.truediv, ">": operator.gt, "min": min, "round": round, "int": int,
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """One named network and how it is usually trained.

    Attributes:
        name: zoo id.
        family: architecture family.
        file: data file of its layers.
        source: where the structure is from.
        description: one line for a listing.
        layers: name of its layers in the file ("": its own).
        sample: `image` (then `size` is pixels on a side), `sequence` (tokens or frames) or `row`.
        size: default size, 0 for rows.
        shape: what parallel plans may divide: the fields of LayerShape.
        optimizer, precision, dataset, dataset_size, input_bytes: as in Workload.
        length: the fields of Length.
        notes: what a reader of an answer ought to know.
        aliases: other names.
        batch: samples a step where none is given.
        guessed: the structure is a guess that a note explains; bands are as wide as for totals.
    """

    name: str
    family: str
    file: str
    source: str
    description: str
    layers: str = ""
    sample: str = "image"
    size: int = 0
    shape: Sequence[int] = ()
    optimizer: str = "momentum"
    precision: str = "bf16"
    dataset: str = "ImageNet-1k"
    dataset_size: float = 1_281_167.0
    length: tuple[str, float, str] | None = None
    # Mean size of an ImageNet-1k training JPEG; about 140 GB over 1.28 million files (unverified).
    input_bytes: float = 110_000.0
    notes: Sequence[str] = ()
    aliases: Sequence[str] = ()
    batch: int = 256
    guessed: bool = False
    chooses_attention = False

    @property
    def default_seq_len(self) -> int:
        """Tokens or frames in a sample (0: samples have none)."""
        return self.size if self.sample == "sequence" else 0

    @property
    def default_image_size(self) -> int:
        """Pixels on a side (0: samples have none)."""
        return self.size if self.sample == "image" else 0

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
            RequestError: the size, precision or optimizer does not suit, or attention is given
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
        net = Net(ACTIVATION_BYTES.get(kind, 2.0))
        notes = replay(net, self.file, self.layers or self.name, size)
        return Workload(
            name=self.name,
            graph=net.graph(chosen),
            shape=LayerShape(*self.shape),
            family=self.family,
            sample=self.sample,
            seq_len=size if self.default_seq_len else 0,
            image_size=size if self.default_image_size else 0,
            precision=kind,
            optimizer=chosen,
            dataset=self.dataset,
            dataset_size=self.dataset_size,
            length=Length(*self.length) if self.length else None,
            input_bytes=self.input_bytes,
            detailed=not self.guessed,
            source=self.source,
            notes=(*self.notes, *notes),
            default_global_batch=self.batch,
        )


def replay(net: Net, file: str, name: str, size: int) -> list[str]:
    """State a network's forward operations and its loss in `net`; return notes about this size.

    Raises:
        RequestError: the image is too small for a layer, or no multiple of what it divides.
    """
    network = _captured(file, name)
    step = network.get("multiple", 1)
    if size % step:
        raise RequestError(
            f"{name} on samples of size {size}",
            f"the size is not a multiple of {step}",
            f"ask for {max(step, round(size / step) * step)}",
        )
    form = [form for form in network["forms"] if form.get("from", 0) <= size][-1]
    sizes: list[float] = [size]

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return sizes[int(value[1:])] if value.startswith("$") else value
        if isinstance(value, list):
            return [filled(item) for item in value]
        return value

    for name_, *operands in form.get("sizes", ()):
        sizes.append(_OPERATORS[name_](*map(filled, operands)))
    net.sparse_params = form.get("sparse_params", 0.0)
    tensors: list[Tensor] = []
    for method, label, inputs, *arguments in form["nodes"]:
        last = arguments[-1] if arguments else None
        options = {key: filled(v) for key, v in last.items()} if isinstance(last, dict) else {}
        plain = arguments[:-1] if options else arguments
        x = [tensors[-back] for back in inputs]
        if options.pop("when", True):
            tensors.append(getattr(net, method)(label, *x, *map(filled, plain), **options))
        else:
            tensors.append(x[0])
    return [text.replace("{$", "{").format(*sizes) for text in form.get("notes", ())]


@lru_cache(maxsize=64)
def _captured(file: str, name: str) -> dict[str, Any]:
    """Return one network of a data file; only its own line is parsed."""
    start = f'{{"name":{json.dumps(name)},'
    text = _text(file)
    at = 0 if text.startswith(start) else text.index("\n" + start) + 1
    found: dict[str, Any] = json.loads(text[at : text.index("\n", at)])
    return found


@lru_cache(maxsize=4)
def _text(file: str) -> str:
    return gzip.decompress((DATA / f"{file}.json.gz").read_bytes()).decode()
