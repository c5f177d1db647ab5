"""The zoo: workloads by name, each with its published structure and usual training length.

`data/*.json` name them; `scripts/capture_zoo.py` says where the layers of networks are from.
"""

from __future__ import annotations

import gzip
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from forerun import packaged
from forerun.domain.workload import ACTIVATION_BYTES, LayerShape, Length, Workload
from forerun.errors import RequestError, UnknownNameError
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
        file, layers: data file of its layers, and their name in it ("": its own).
        sample: `image` (then `size` is pixels on a side), `sequence` (tokens or frames) or `row`.
        shape, length: the fields of LayerShape and of Length.
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

    def build(self, **changes: Any) -> Workload:
        """Return the workload with some of the changes of `zoo_workload`. Raises RequestError."""
        if "fused_attention" in changes:
            raise RequestError(
                f"{self.name} with fused_attention={changes['fused_attention']}",
                "the form of its attention is part of its structure", "leave fused_attention out",
            )  # fmt: skip
        size = changes.get("image_size") or changes.get("seq_len") or self.size
        kind = changes.get("precision", self.precision)
        chosen = changes.get("optimizer", self.optimizer)
        net = Net(ACTIVATION_BYTES.get(kind, 2.0))
        notes = replay(net, self.file, self.layers or self.name, size)
        return Workload(
            name=self.name, graph=net.graph(chosen), shape=LayerShape(*self.shape),
            family=self.family, sample=self.sample, seq_len=size if self.default_seq_len else 0,
            image_size=size if self.default_image_size else 0, precision=kind, optimizer=chosen,
            dataset=self.dataset, dataset_size=self.dataset_size,
            length=Length(*self.length) if self.length else None, input_bytes=self.input_bytes,
            detailed=not self.guessed, source=self.source, notes=(*self.notes, *notes),
            default_global_batch=self.batch,
        )  # fmt: skip


def replay(net: Net, file: str, name: str, size: int) -> list[str]:
    """State a network's forward operations and its loss in `net`; return notes. Raises RequestError for its size."""
    network = _captured(file, name)
    step = network.get("multiple", 1)
    if size % step:
        raise RequestError(
            f"{name} on samples of size {size}", f"the size is not a multiple of {step}",
            f"ask for {max(step, round(size / step) * step)}",
        )  # fmt: skip
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


__all__ = ["Entry", "find_entry", "zoo_entry", "zoo_names", "zoo_workload"]

# Groups of the timm library whose attention keeps its scores in memory.
_KEEPS_SCORES = ("timm-plain-vits", "timm-stage-vits", "timm-mixed-vits")
_TIMM_NOTE = "structure as of the timm library in 2022; attention keeps its scores in memory"


@dataclass(frozen=True)
class LanguageModel:
    """A published configuration: `shape` are fields of TransformerSpec, `training` of Workload."""

    name: str
    family: str
    source: str
    shape: Mapping[str, Any]
    training: Mapping[str, Any]
    aliases: Sequence[str] = ()
    default_image_size = 0
    chooses_attention = True

    @property
    def default_seq_len(self) -> int:
        """Tokens in a sample."""
        return int(self.shape["seq_len"])

    @property
    def description(self) -> str:
        """One line for a listing."""
        shape = self.shape
        text = f"{shape['layers']} layers, hidden {shape['hidden']}, {shape['heads']} heads"
        if shape.get("kind") == "encoder-decoder":
            text = f"encoder-decoder, {text}"
        if shape.get("experts"):
            text += f", {shape['experts']} experts, {shape['experts_per_token']} a token"
        return f"{text}, sequences of {shape['seq_len']}"

    def build(self, **changes: Any) -> Workload:
        """Return the workload with some of the changes of `zoo_workload`."""
        from forerun.workloads.transformer import TransformerSpec, transformer_workload

        own = ("seq_len", "fused_attention")
        shape = {**self.shape, **{k: v for k, v in changes.items() if k in own}}
        if shape.get("target_len"):
            shape["target_len"] *= shape["seq_len"]
            shape["target_len"] = max(1, shape["target_len"] // self.default_seq_len)
        trained = {k: v for k, v in changes.items() if k not in own}
        fields: dict[str, Any] = {"precision": "bf16", **self.training, **trained}
        if shape["seq_len"] > self.default_seq_len and "default_global_batch" in fields:
            # Longer sequences are trained at the same tokens a step.
            batch = fields["default_global_batch"] * self.default_seq_len // shape["seq_len"]
            fields["default_global_batch"] = 2 ** max(batch.bit_length() - 1, 0)
        if "length" in fields:
            fields["length"] = Length(*fields["length"])
        return transformer_workload(
            TransformerSpec(**shape), self.name, family=self.family, source=self.source, **fields
        )


Entry = LanguageModel | Network


def zoo_names() -> list[str]:
    """Return the ids of all workloads of the zoo, sorted."""
    return sorted({entry.name for entry in _index().values()})


def zoo_entry(name: str) -> Entry:
    """Return the entry of a name or alias. Raises UnknownNameError with the nearest names."""
    entry = find_entry(name)
    if entry is None:
        known = [*_index(), *(row for group in _table("timm").values() for row in group)]
        raise UnknownNameError("workload", name, known, "`forerun workloads` lists them")
    return entry


def find_entry(name: str, *, alike: bool = True) -> Entry | None:
    """Return the entry of a name or alias (or of the timm library), or None.

    `timm-` before a name means that library's structure where it differs from the zoo's. alike: a
    maker before a slash, a checkpoint's kind behind the name (`-hf`, `-Instruct`), a `v` before a
    version and punctuation may differ, where one entry alone is meant; `taken_as` says which.
    """
    return _named(name) or (_alike(name) if alike else None)


def taken_as(name: str) -> str:
    """Return how a label that is no entry's name was read, "" where it is one."""
    entry = None if _named(name) else _alike(name)
    return f"workload {name.strip()!r} is taken as {entry.name}" if entry else ""


def candidates(name: str) -> list[str]:
    """Return the entries that a part of a name, as `llama3`, may mean."""
    part = _fold(_MAKER.sub("", name))
    beyond = re.compile(re.escape(part) + (r"(?!\d)" if part[-1:].isdigit() else ""))
    found = {entry.name for key, entry in _index().items() if part and beyond.match(key)}
    return sorted(found, key=lambda entry: (len(entry), entry))


_MAKER = re.compile(r"^\s*(?:[\w.-]+/(?=[\w.-]+\s*$)|torchvision\.(?:models\.)?)")
_CHECKPOINT = re.compile(
    r"[-_ ](?:hf|instruct|chat|it|base|pt|v0\.\d|(?:un)?cased)$", re.IGNORECASE
)


@lru_cache(maxsize=4096)
def _alike(name: str) -> Entry | None:
    text = _MAKER.sub("", name.strip())
    while True:
        exact, dotless = _plain_names()
        plain = _plain(text)
        found = exact.get(plain) or dotless.get(plain.replace(".", ""), set())
        if (entry := _named(text)) is not None:
            return entry
        if len(found) == 1:
            return _named(*found)
        shorter = _CHECKPOINT.sub("", text)
        if shorter == text:
            return None
        text = shorter


def _plain(name: str) -> str:
    """Return a name's letters, digits and dots, without a `v` before a digit."""
    return re.sub(r"[^a-z0-9.]", "", re.sub(r"v(?=\d)", "", name.lower()))


@cache
def _plain_names() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return entries' names by their plain names and aliases, with dots and without."""
    exact: dict[str, set[str]] = {}
    dotless: dict[str, set[str]] = {}
    for name, entry in _index().items():
        exact.setdefault(_plain(name), set()).add(entry.name)
        dotless.setdefault(_plain(name).replace(".", ""), set()).add(entry.name)
    return exact, dotless


def _named(name: str) -> Entry | None:
    folded = _fold(name)
    plain = folded.removeprefix("timm-")
    entry = _index().get(plain)
    if entry is not None and plain == folded:
        return entry
    for file, networks in _table("timm").items():
        if plain in networks and (entry is None or file in _KEEPS_SCORES):
            layers, family, size = networks[plain]
            return Network(
                folded if file in _KEEPS_SCORES else plain, family, file, "the timm library, 2022",
                "image classifier of the timm library, 1000 classes",
                layers, size=size, notes=(_TIMM_NOTE,),
            )  # fmt: skip
    return entry


def zoo_workload(
    name: str, *, seq_len: int | None = None, image_size: int | None = None,
    precision: str | None = None, optimizer: str | None = None, fused_attention: bool | None = None,
) -> Workload:  # fmt: skip
    """Return a workload by name or alias, with parts of it changed where they are given. Raises RequestError.

    seq_len, image_size: tokens, or pixels on a side; refused where samples have none.
    fused_attention: whether attention scores stay on the chip (language models).
    """
    entry = zoo_entry(name)
    for field, value, default in (
        ("seq_len", seq_len, entry.default_seq_len),
        ("image_size", image_size, entry.default_image_size),
    ):
        asked = f"workload {name!r} with {field}={value}"
        if value is not None and not default:
            raise RequestError(asked, f"its samples have no {field}", f"leave {field} out")
        if value is not None and value < 1:
            next_step = f"give a positive {field}, for example {default}"
            raise RequestError(asked, "the size is not above zero", next_step)
    changes = {
        "seq_len": seq_len, "image_size": image_size, "precision": precision or None,
        "optimizer": optimizer or None, "fused_attention": fused_attention,
    }  # fmt: skip
    built = _built(entry.name, **{k: value for k, value in changes.items() if value is not None})
    taken = taken_as(name)
    return built.with_(notes=(taken, *built.notes)) if taken else built


@lru_cache(maxsize=4096)
def _built(name: str, **changes: Any) -> Workload:
    return zoo_entry(name).build(**changes)


@cache
def _index() -> dict[str, Entry]:
    entries: list[Entry] = [Network(**row) for row in _table("networks")]
    for group in _table("language"):
        for model in group["models"]:
            own = {k: v for k, v in model.items() if k not in ("name", "aliases")}
            entries.append(
                LanguageModel(
                    model["name"], group["family"], group["source"], {**group["shape"], **own},
                    group["training"], model.get("aliases", ()),
                )
            )  # fmt: skip
    index: dict[str, Entry] = {}
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            index.setdefault(_fold(name), entry)
    return index


@cache
def _table(name: str) -> Any:
    return packaged.table(__file__, f"data/{name}.json")


def _fold(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
