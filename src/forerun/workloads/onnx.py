"""An ONNX file becomes a Workload: shapes are inferred, and gradients follow by rule.

Only the structure is read. Weights kept in other files need not be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.domain.graph import OpKind
from forerun.domain.workload import ACTIVATION_BYTES, OPTIMIZER_STATES, LayerShape, Workload
from forerun.errors import MissingExtraError, RequestError, UnknownNameError
from forerun.workloads.backward import complete
from forerun.workloads.onnx_graph import Value, forward_ops

# Larger constants are weights; smaller ones may be shapes, and their values are needed.
_LARGEST_SHAPE_ELEMENTS = 1024
_FLOAT_TYPES = frozenset({1, 10, 11, 16})  # float, float16, double, bfloat16 of TensorProto
_MOST_GUESSES = 32
_SEQUENCE_WORDS = ("seq", "len", "token", "time")
_IMAGE_WORDS = ("height", "width", "h", "w", "image", "size")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes for the symbolic sides of a file's inputs."""

    batch: int | None
    named: Mapping[str, int]
    seq_len: int | None
    image_size: int | None

    def of(self, symbol: str, rank: int, side: int) -> int | None:
        """Return the size of a symbolic side, None where nobody said it."""
        if symbol in self.named:
            return self.named[symbol]
        if side == 0:
            return self.batch or 1
        lowered = symbol.lower()
        if self.seq_len and (
            any(w in lowered for w in _SEQUENCE_WORDS) or (rank < 4 and side == 1)
        ):
            return self.seq_len
        if self.image_size and rank == 4 and (side > 1 or lowered in _IMAGE_WORDS):
            return self.image_size
        return None


def workload_from_onnx(
    path: str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    name: str = "",
    seq_len: int | None = None,
    image_size: int | None = None,
    samples: int | None = None,
    dataset_size: float = 0.0,
) -> Workload:
    """Return the workload of training the network in an ONNX file.

    Forward operations are the file's nodes with inferred shapes; backward ones follow from them
    by rule (`backward.complete`). Floating-point constants are taken as trainable weights.

    Args:
        path: of the file.
        batch: samples, where the leading side of the inputs is symbolic (1 by default).
        dims: sizes of other symbolic sides, by name.
        optimizer: a key of `OPTIMIZER_STATES`.
        precision: arithmetic of the step.
        name: of the workload; by default the file's stem.
        seq_len: size of a symbolic side that counts tokens.
        image_size: size of symbolic sides that count pixels.
        samples: in the inputs; by default their leading side.
        dataset_size: samples in an epoch, 0 where not known.

    Raises:
        MissingExtraError: onnx is not installed.
        RequestError: no file, no ONNX file, or a symbolic side without a size.
    """
    path = Path(path)
    asked = f"workload {path.name}"
    if optimizer not in OPTIMIZER_STATES:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZER_STATES)
    if precision not in ACTIVATION_BYTES:
        raise UnknownNameError("precision", precision, ACTIVATION_BYTES)
    model = _load(path, asked)
    values = _weights_moved_out(model)
    given = [entry for entry in model.graph.input if entry.name not in values]
    _fix_inputs(given, _Sizes(batch, dims or {}, seq_len, image_size), asked)
    guessed = _infer(model, values, asked)
    inputs = [values[entry.name] for entry in given]
    if not inputs or not inputs[0].shape:
        raise RequestError(
            asked, "the network has no input with sides", "export it with its inputs"
        )
    samples = samples or inputs[0].shape[0]
    _check_sizes(inputs, seq_len, image_size, asked)
    ops, unknown = forward_ops(model.graph.node, values, samples, ACTIVATION_BYTES[precision])
    notes = [f"shapes behind {node} were not inferred; taken as its input's" for node in guessed]
    if unknown:
        notes.append(f"bounded by the bytes they move: {', '.join(unknown)}")
    attention = any(op.kind is OpKind.ATTENTION for op in ops)
    return Workload(
        name=name or path.stem,
        graph=complete(ops, optimizer, unknown),
        shape=LayerShape(),
        precision=precision,
        optimizer=optimizer,
        dataset_size=dataset_size,
        fused_attention=not attention,
        source=f"ONNX file {path.name}",
        notes=tuple(notes),
        **_sample(inputs, attention or any(op.kind is OpKind.EMBEDDING for op in ops)),
    )


def _load(path: Path, asked: str) -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError(asked, "onnx", "onnx") from error
    next_step = "give a model saved by onnx.save or torch.onnx.export"
    if not path.is_file():
        raise RequestError(asked, f"there is no file {path}", next_step)
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # the parser of a foreign file has errors of its own
        raise RequestError(asked, f"it is not an ONNX model ({error})", next_step) from error
    if not model.graph.node:
        raise RequestError(asked, "it is not an ONNX model, or it holds no operations", next_step)
    return model


def _weights_moved_out(model: Any) -> dict[str, Value]:
    """Take large constants out of the model, leaving their types as inputs; return them all.

    Shape inference then copies kilobytes in place of gigabytes, and needs no external file.
    """
    import onnx

    values: dict[str, Value] = {}
    small = []
    declared = {entry.name for entry in model.graph.input}
    for tensor in model.graph.initializer:
        shape = tuple(tensor.dims)
        is_float = tensor.data_type in _FLOAT_TYPES
        value = Value(tensor.name, shape, is_float=is_float, static=True)
        values[tensor.name] = value
        if value.size <= _LARGEST_SHAPE_ELEMENTS and not tensor.external_data:
            small.append(tensor)
        elif tensor.name not in declared:
            entry = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
            model.graph.input.append(entry)
        if is_float and value.size > 1:
            value.params = float(value.size)
    del model.graph.initializer[:]
    model.graph.initializer.extend(small)
    return values


def _fix_inputs(entries: list[Any], sizes: _Sizes, asked: str) -> None:
    """Give every symbolic side of the inputs a size, in place."""
    missing: dict[str, None] = {}
    for entry in entries:
        sides = entry.type.tensor_type.shape.dim
        for side, dim in enumerate(sides):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            symbol = dim.dim_param or f"{entry.name}_{side}"
            size = sizes.of(symbol, len(sides), side)
            if size is None:
                missing[symbol] = None
            else:
                dim.Clear()
                dim.dim_value = size
    if missing:
        example = ", ".join(f"{symbol!r}: 128" for symbol in missing)
        raise RequestError(
            asked, f"its inputs have sides without a size: {', '.join(missing)}",
            f"give dims={{{example}}} with your sizes (or seq_len, image_size)",
        )  # fmt: skip


def _infer(model: Any, values: dict[str, Value], asked: str) -> list[str]:
    """Infer the shape of every value in place; return the nodes whose outputs were guessed.

    Behind a node that inference does not know, a value is taken to have the shape of the node's
    first input, and inference goes on from there.
    """
    import onnx

    known = {entry.name: entry for entry in model.graph.value_info if _shape_of(entry) is not None}
    del model.graph.value_info[:]
    for entry in model.graph.output:
        entry.type.tensor_type.ClearField("shape")
    guessed: list[str] = []
    while True:
        inferred = _inferred(model, asked, strict=False)
        for entry in _entries(inferred.graph):
            shape = _shape_of(entry)
            if shape is not None and entry.name not in values:
                is_float = entry.type.tensor_type.elem_type in _FLOAT_TYPES
                values[entry.name] = Value(entry.name, shape, is_float=is_float)
        stopped = _first_unknown(model.graph.node, values)
        if stopped is None or len(guessed) >= _MOST_GUESSES:
            return guessed
        node, output = stopped
        if node.domain in ("", "ai.onnx"):
            _inferred(model, asked, strict=True)  # tells whether its inputs contradict it
        if output in known:
            model.graph.value_info.append(known[output])
            continue
        source = next((values[i] for i in node.input if i in values and not values[i].static), None)
        shape = source.shape if source is not None else ()
        kind = onnx.TensorProto.FLOAT
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(output, kind, shape))
        guessed.append(f"{node.op_type} {node.name}".strip())


def _inferred(model: Any, asked: str, strict: bool) -> Any:
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        told = " ".join(str(error).split())[:200]
        raise RequestError(
            asked, f"its shapes do not fit: {told}", "check the sizes asked for, or export it again"
        ) from error


def _entries(graph: Any) -> Iterator[Any]:
    yield from graph.input
    yield from graph.value_info
    yield from graph.output


def _shape_of(entry: Any) -> tuple[int, ...] | None:
    """Return a value's shape, None where a side of it is not known."""
    if not entry.type.HasField("tensor_type") or not entry.type.tensor_type.HasField("shape"):
        return None
    sides = entry.type.tensor_type.shape.dim
    if any(not side.HasField("dim_value") for side in sides):
        return None
    return tuple(side.dim_value for side in sides)


def _first_unknown(nodes: Any, values: Mapping[str, Value]) -> tuple[Any, str] | None:
    for node in nodes:
        for output in node.output[:1]:
            if output and output not in values:
                return node, output
    return None


def _check_sizes(
    inputs: list[Value], seq_len: int | None, image_size: int | None, asked: str
) -> None:
    """Raise RequestError where a size was asked for that the file's fixed shapes do not have."""
    for word, size in (("seq_len", seq_len), ("image_size", image_size)):
        if size and not any(size in value.shape[1:] for value in inputs):
            shapes = ", ".join(f"{value.name} {list(value.shape)}" for value in inputs)
            raise RequestError(
                f"{asked} with {word}={size}", f"its inputs have fixed shapes: {shapes}",
                "export it with that size, or with a symbolic side",
            )  # fmt: skip


def _sample(inputs: list[Value], has_tokens: bool) -> dict[str, Any]:
    """Return what one sample is, by the shape of the first input."""
    first = inputs[0]
    if len(first.shape) == 4 and first.is_float:
        return {"sample": "image", "image_size": first.shape[-1]}
    if len(first.shape) in (2, 3) and has_tokens:
        return {"sample": "sequence", "seq_len": first.shape[1]}
    return {}
