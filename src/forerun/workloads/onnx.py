"""An ONNX file becomes a Workload: shapes are inferred, gradients follow by rule; weights are not read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun import packaged
from forerun.domain.graph import Op, OpKind
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.errors import RequestError, optional
from forerun.paths import check_file
from forerun.workloads.backward import complete
from forerun.workloads.trace.aten import Product, convolution, matrix_product, sample_shape

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", *_GATES})
# `onnx.yaml` has the classes of operators, and what they keep for their gradients.
_TABLE = packaged.table(__file__, "onnx.yaml")
_KIND_BY_NAME = {
    name: OpKind(kind) for kind, names in _TABLE["kinds"].items() for name in names.split()
}
_VIEWS, _STATIC, _KEEPS_OUTPUT = (
    frozenset(_TABLE[name].split()) for name in ("views", "static", "keeps_output")
)
_KEEPS_INPUTS = frozenset((*_TABLE["keeps_inputs"].split(), *_TABLE["kinds"]["norm"].split()))
_INDEX_BYTES = 8.0


@dataclass
class Value:
    """A tensor of the network, for the whole batch.

    Attributes:
        static: known before any sample comes (weights, constants, and what is made of them).
        params: trainable parameters in it, until an operation owns them.
        writer: position of the operation that made it, None for inputs and constants.
        key: name of the value whose memory it is; views share it.
        weights: the constants that a static value is made of.
    """

    name: str
    shape: tuple[int, ...]
    is_float: bool = True
    static: bool = False
    params: float = 0.0
    writer: int | None = None
    key: str = ""
    weights: list[Value] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass
class _Reader:
    """Turns nodes into forward operations; `values` by name are marked in place; `unknown`: of bounded cost."""

    values: dict[str, Value]
    samples: int
    activation_bytes: float
    ops: list[Op] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)
    _names: dict[str, int] = field(default_factory=dict)

    def read(self, node: Any) -> None:
        inputs = [self._value(name) for name in node.input if name]
        outputs = [self._value(name) for name in node.output if name]
        if node.op_type in _STATIC or (inputs and all(v.static for v in inputs)):
            for output in outputs:
                output.static = True
                output.weights = [w for v in inputs for w in (v, *v.weights)]
            return
        moving = [v for v in inputs if not v.static]
        if node.op_type in _VIEWS:
            for output in outputs:
                output.writer, output.key = moving[0].writer, moving[0].key or moving[0].name
            return
        op = self._op(node, inputs, outputs)
        for output in outputs:
            output.writer = len(self.ops)
        self.ops.append(op)

    def with_attention(self) -> list[Op]:
        """Return the operations, products of activations around a softmax marked as attention."""
        readers: dict[int, list[int]] = {}
        for position, op in enumerate(self.ops):
            for source in op.inputs:
                readers.setdefault(source, []).append(position)
        found = set()
        for position, op in enumerate(self.ops):
            if op.kind is OpKind.SOFTMAX:
                found |= self._near(position, lambda i: self.ops[i].inputs)
                found |= self._near(position, lambda i: readers.get(i, []))
        return [
            replace(op, kind=OpKind.ATTENTION) if position in found else op
            for position, op in enumerate(self.ops)
        ]

    def _near(self, start: int, step: Callable[[int], Iterable[int]]) -> set[int]:
        here = [start]
        for _ in range(5):
            here = [i for position in here for i in step(position)]
            found = {
                i for i in here if self.ops[i].kind is OpKind.MATMUL and self.ops[i].weights == 0
            }
            if found:
                return found
            here = [i for i in here if self.ops[i].kind in (OpKind.ELEMENTWISE, OpKind.COPY)]
        return set()

    def _op(self, node: Any, inputs: list[Value], outputs: list[Value]) -> Op:
        weights = [v for v in inputs if v.static]
        moving = [v for v in inputs if not v.static]
        kind = self._kind(node, weights)
        product = self._product(node, inputs, outputs)
        if product is not None:
            kind = product.kind
        written = outputs[:1] if node.op_type in ("BatchNormalization", "Dropout") else outputs
        out = sum(v.size for v in written)
        reads = sum(v.size for v in {v.name: v for v in moving}.values())
        weight_size = float(sum(v.size for v in weights if v.size > 1))
        if node.op_type.startswith("Gather") and weights and weights[0] is inputs[0]:
            weight_size, reads = 0.0, reads + out  # only the rows looked up
        elif node.op_type.startswith("Gather"):
            reads = min(reads, 2 * out)
        name, saved = node.op_type, 0.0
        if name in _PRODUCTS or name in _KEEPS_INPUTS or name == "MaxPool":
            saved += sum(self._keep(v) for v in moving if v.is_float)
        if name in _KEEPS_OUTPUT or name in _GATES:
            saved += self._keep(outputs[0])
        if name in _GATES:
            saved += outputs[0].size * (_GATES[name] + 1.0)
        if name == "MaxPool":
            saved += outputs[0].size * _INDEX_BYTES / self.activation_bytes
        if name == "Dropout":
            saved += outputs[0].size / self.activation_bytes
        if kind is OpKind.UNKNOWN and name not in _PRODUCTS:
            saved += sum(self._keep(v) for v in moving if v.is_float)
        return Op(
            name=self._name(node),
            kind=kind,
            flops=product.flops / self.samples if product else 0.0,
            reads=reads / self.samples,
            writes=out / self.samples,
            weights=weight_size,
            params=self._own(node, weights),
            shape=sample_shape(outputs[0].shape if outputs else (), self.samples),
            dims=self._dims(product, bool(weights)),
            saved=saved / self.samples,
            # A recurrent kernel runs each time step in each direction.
            launches=inputs[0].shape[0] * inputs[1].shape[0] if node.op_type in _GATES else 1,
            inputs=tuple(sorted({v.writer for v in moving if v.writer is not None})),
        )

    def _kind(self, node: Any, weights: Sequence[Value]) -> OpKind:
        name = node.op_type
        if name in ("Gather", "GatherND") and any(w.params or w.is_float for w in weights):
            return OpKind.EMBEDDING
        if name in _KIND_BY_NAME:
            return _KIND_BY_NAME[name]
        if name not in _PRODUCTS:
            domain = f"{node.domain}::" if node.domain else ""
            self.unknown[f"{domain}{name}"] = None
        return OpKind.UNKNOWN

    def _product(
        self, node: Any, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> Product | None:
        name = node.op_type
        if name not in _PRODUCTS or len(inputs) < 2:
            return None
        left, right = inputs[0].shape, inputs[1].shape
        if name == "MatMul":
            return matrix_product(left, right)
        if name == "Gemm":
            left = left[::-1] if _attribute(node, "transA", 0) else left
            right = right[::-1] if _attribute(node, "transB", 0) else right
            return matrix_product(left, right)
        if name in ("Conv", "ConvTranspose"):
            groups = int(_attribute(node, "group", 1))
            if groups < 1:
                raise ValueError(f"group={groups}")
            return convolution(left, right, outputs[0].shape, name == "ConvTranspose", groups)
        if name == "Einsum":
            return _einsum(node, left, right)
        steps, directions = math.prod(left[:-1]), right[0]
        hidden = right[1] // _GATES[name]
        rows, inner = directions * right[1], left[-1] + hidden
        return Product(OpKind.RECURRENT, 2.0 * steps * rows * inner, steps, rows, inner)

    def _dims(self, product: Product | None, weighted: bool) -> tuple[int, ...]:
        if product is None:
            return ()
        m, n, k, groups = product.m, product.n, product.k, product.groups
        if not weighted and groups >= self.samples and not math.fmod(groups, self.samples):
            groups /= self.samples
        else:
            m /= self.samples
        return tuple(max(1, round(side)) for side in (m, n, k, groups))

    def _keep(self, value: Value) -> float:
        key = value.key or value.name
        if key in self._kept:
            return 0.0
        self._kept.add(key)
        return float(value.size)

    def _own(self, node: Any, weights: Sequence[Value]) -> float:
        """Take over trainable constants that no operation owns; running statistics are none."""
        if node.op_type == "BatchNormalization":
            weights = weights[:2]
        owned = 0.0
        for value in (inner for w in weights for inner in (w, *w.weights)):
            owned, value.params = owned + value.params, 0.0
        return owned

    def _name(self, node: Any) -> str:
        base = (node.name or f"{node.op_type}").strip("/").replace("/", ".")
        count = self._names[base] = self._names.get(base, 0) + 1
        return base if count == 1 else f"{base}_{count}"

    def _value(self, name: str) -> Value:
        return self.values.setdefault(name, Value(name, ()))


def _attribute(node: Any, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.s.decode() if attribute.s else attribute.i
    return default


def _einsum(node: Any, left: Sequence[int], right: Sequence[int]) -> Product | None:
    """Return the product in an equation of two factors: every letter once, summed or not."""
    equation = str(_attribute(node, "equation", "")).replace(" ", "")
    terms, _, output = equation.partition("->")
    letters = terms.split(",")
    if len(letters) != 2 or "." in terms:
        return None
    sizes = {
        **dict(zip(letters[0], left, strict=False)), **dict(zip(letters[1], right, strict=False)),
    }  # fmt: skip
    shared = set(letters[0]) & set(letters[1])

    def span(names: set[str]) -> int:
        return math.prod(sizes[name] for name in names)

    groups, k = span(shared & set(output)), span(shared - set(output))
    m, n = span(set(letters[0]) - shared), span(set(letters[1]) - shared)
    return Product(OpKind.MATMUL, 2.0 * groups * m * n * k, m, n, k, groups)


# Larger constants are weights; smaller ones may be shapes, and their values are needed.
_LARGEST_SHAPE_ELEMENTS = 1024
_FLOAT_TYPES = frozenset({1, 10, 11, 16})  # float, float16, double, bfloat16 of TensorProto
_MOST_GUESSES = 32
_SEQUENCE_WORDS = ("seq", "len", "token", "time")
_IMAGE_WORDS = ("height", "width", "h", "w", "image", "size")


def workload_from_onnx(
    source: str | Path | bytes, *, batch: int | None = None, dims: Mapping[str, int] | None = None,
    optimizer: str = "adamw", precision: str = "fp32", seq_len: int | None = None,
    image_size: int | None = None, samples: int | None = None,
) -> Workload:  # fmt: skip
    """Return the workload of training the network in an ONNX file, or its bytes.

    Backward operations follow by rule (`backward.complete`); floating-point constants are trained.

    Args:
        batch: samples, where the leading side of the inputs is symbolic (1 by default).
        dims: sizes of other symbolic sides, by name.
        seq_len, image_size: of a symbolic side that counts tokens, or pixels.
        samples: in the inputs; by default their leading side.

    Raises MissingExtraError without onnx, else RequestError.
    """
    path = Path("model.onnx" if isinstance(source, bytes) else source)
    asked = f"workload {path.name}"
    model = _load(source if isinstance(source, bytes) else path, asked)
    values = _weights_moved_out(model)
    given = [entry for entry in model.graph.input if entry.name not in values]
    _fix_inputs(given, batch or 1, dims or {}, seq_len, image_size, asked)
    guessed = _infer(model, values, asked)
    inputs = [values[entry.name] for entry in given]
    if not inputs or not inputs[0].shape:
        raise RequestError(
            asked, "the network has no input with sides", "export it with its inputs"
        )
    samples = samples or inputs[0].shape[0]
    for word, size in (("seq_len", seq_len), ("image_size", image_size)):
        if size and not any(size in value.shape[1:] for value in inputs):
            shapes = ", ".join(f"{value.name} {list(value.shape)}" for value in inputs)
            raise RequestError(
                f"{asked} with {word}={size}", f"its inputs have fixed shapes: {shapes}",
                "export it with that size, or with a symbolic side",
            )  # fmt: skip
    reader = _Reader(values, samples, ACTIVATION_BYTES.get(precision, 2.0))
    for node in model.graph.node:
        try:
            reader.read(node)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise RequestError(
                f"{asked}, {node.op_type} {node.name}".rstrip(), f"it cannot be read ({error})",
                "check its attributes and the shapes of its inputs",
            ) from error  # fmt: skip
    ops, unknown = reader.with_attention(), tuple(reader.unknown)
    notes = [f"shapes behind {node} were not inferred; taken as its input's" for node in guessed]
    if unknown:
        notes.append(f"bounded by the bytes they move: {', '.join(unknown)}")
    attention = any(op.kind is OpKind.ATTENTION for op in ops)
    return Workload(
        name=path.stem, graph=complete(ops, optimizer, unknown), precision=precision,
        optimizer=optimizer, fused_attention=not attention, source=f"ONNX file {path.name}",
        notes=tuple(notes),
        **_sample(inputs, attention or any(op.kind is OpKind.EMBEDDING for op in ops)),
    )  # fmt: skip


def _load(source: Path | bytes, asked: str) -> Any:
    with optional(asked, "onnx", "onnx"):
        import onnx
    if isinstance(source, Path):
        check_file(source, asked)
    next_step = "give a model saved by onnx.save or torch.onnx.export"
    try:
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            model = onnx.load(str(source), load_external_data=False)
    except Exception as error:  # the parser of a foreign file has errors of its own
        raise RequestError(asked, f"it is not an ONNX model ({error})", next_step) from error
    if not model.graph.node:
        raise RequestError(asked, "it is not an ONNX model, or it holds no operations", next_step)
    made = {name for node in model.graph.node for name in node.output if name}  # "" is left out
    before: set[str] = set()
    for node in model.graph.node:
        late = [name for name in node.input if name in made and name not in before]
        if late:
            found = (
                f"{node.name or node.op_type} reads {late[0]}, which no operation before it makes"
            )
            raise RequestError(
                asked, f"{found}: its graph has a cycle, or another order", next_step
            )
        before.update(node.output)
    return model


def _weights_moved_out(model: Any) -> dict[str, Value]:
    """Take large constants out of the model, so that inference copies no weights; return them all."""
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


def _fix_inputs(
    entries: list[Any], batch: int, named: Mapping[str, int], seq_len: int | None,
    image_size: int | None, asked: str,
) -> None:  # fmt: skip
    missing: dict[str, None] = {}
    for entry in entries:
        sides = entry.type.tensor_type.shape.dim
        for side, dim in enumerate(sides):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            symbol = dim.dim_param or f"{entry.name}_{side}"
            word, rank = symbol.lower(), len(sides)
            counts_tokens = any(w in word for w in _SEQUENCE_WORDS) or (rank < 4 and side == 1)
            counts_pixels = rank == 4 and (side > 1 or word in _IMAGE_WORDS)
            size = named.get(symbol) or (batch if side == 0 else None)
            size = size or (seq_len if counts_tokens else None)
            size = size or (image_size if counts_pixels else None)
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

    Behind an unknown node a value is taken to have the shape of the node's first input.
    """
    import onnx

    known = {entry.name: entry for entry in model.graph.value_info if _shape_of(entry) is not None}
    del model.graph.value_info[:]
    for entry in model.graph.output:
        entry.type.tensor_type.ClearField("shape")
    guessed: list[str] = []
    while True:
        inferred = _inferred(model, asked, strict=False)
        graph = inferred.graph
        for entry in (*graph.input, *graph.value_info, *graph.output):
            shape = _shape_of(entry)
            if shape is not None and entry.name not in values:
                is_float = entry.type.tensor_type.elem_type in _FLOAT_TYPES
                values[entry.name] = Value(entry.name, shape, is_float=is_float)
        stopped = next(
            (
                (node, output)
                for node in model.graph.node
                for output in node.output[:1]
                if output and output not in values
            ),
            None,
        )
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
        reason = " ".join(str(error).split())[:200]
        raise RequestError(
            asked, f"its shapes do not fit: {reason}", "check the sizes given, or export it again"
        ) from error


def _shape_of(entry: Any) -> tuple[int, ...] | None:
    if not entry.type.HasField("tensor_type") or not entry.type.tensor_type.HasField("shape"):
        return None
    sides = entry.type.tensor_type.shape.dim
    if any(not side.HasField("dim_value") for side in sides):
        return None
    return tuple(side.dim_value for side in sides)


def _sample(inputs: list[Value], has_tokens: bool) -> dict[str, Any]:
    first = inputs[0]
    if len(first.shape) == 4 and first.is_float:
        return {"sample": "image", "image_size": first.shape[-1]}
    if len(first.shape) in (2, 3) and has_tokens:
        return {"sample": "sequence", "seq_len": first.shape[1]}
    return {}
