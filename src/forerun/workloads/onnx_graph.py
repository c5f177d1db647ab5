"""Nodes of an ONNX graph as forward operations: what each computes, moves and keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.domain.graph import Op, OpKind
from forerun.workloads.trace.products import Product, convolution, matrix_product

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ELEMENTWISE = frozenset(
    """Add Sub Mul Div Pow Sqrt Exp Log Abs Neg Reciprocal Floor Ceil Round Sign Erf Sin Cos Tan
    Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Celu Softplus Softsign HardSigmoid HardSwish Mish
    Gelu ThresholdedRelu Clip Min Max Sum Mean Where Equal Greater Less GreaterOrEqual
    LessOrEqual And Or Xor Not Cast CastLike Dropout Mod BitShift IsNaN IsInf QuantizeLinear
    DequantizeLinear DynamicQuantizeLinear Swish RotaryEmbedding Shrink Asin Acos Atan Sinh Cosh
    Bernoulli RandomNormalLike RandomUniformLike""".split()
)
_COPIES = frozenset(
    """Transpose Concat Split Slice Pad Tile Expand Gather GatherElements GatherND Scatter
    ScatterElements ScatterND DepthToSpace SpaceToDepth Resize Upsample OneHot Trilu
    ReverseSequence Compress EyeLike GridSample RoiAlign Col2Im""".split()
)
_REDUCTIONS = frozenset(
    """ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceSumSquare ArgMax ArgMin TopK CumSum NonZero Unique
    SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss NonMaxSuppression""".split()
)
_POOLS = frozenset(
    """MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool MaxUnpool
    MaxRoiPool""".split()
)
_NORMS = frozenset(
    """LayerNormalization GroupNormalization InstanceNormalization RMSNormalization
    SimplifiedLayerNormalization MeanVarianceNormalization LpNormalization LRN""".split()
)
_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
# The same memory under another shape.
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
# Their results are known before any sample comes.
_STATIC = frozenset({"Constant", "ConstantOfShape", "Shape", "Size", "Range"})
_KEEPS_OUTPUT = frozenset({"Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Exp", "Sqrt"})
_KEEPS_INPUTS = frozenset(
    """Gelu Mul Div Pow Erf HardSwish HardSigmoid LeakyRelu PRelu Elu Mish Swish Clip Softplus
    BatchNormalization AveragePool Log Abs Where""".split()
) | _NORMS  # fmt: skip
_INDEX_BYTES = 8.0


@dataclass
class Value:
    """A tensor of the network, for the whole batch.

    Attributes:
        name: as in the file.
        shape: its sides.
        is_float: whether it holds floating-point numbers.
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


def forward_ops(
    nodes: Iterable[Any], values: dict[str, Value], samples: int, activation_bytes: float
) -> tuple[list[Op], tuple[str, ...]]:
    """Return the forward operations of a graph's nodes, and the names of those only bounded.

    Args:
        nodes: of the graph, in order.
        values: every value by name, with its shape; marked in place.
        samples: in the batch that the shapes are for.
        activation_bytes: of an activation; positions and masks are counted in these.
    """
    reader = _Reader(values, samples, activation_bytes)
    for node in nodes:
        reader.read(node)
    return reader.with_attention(), tuple(reader.unknown)


@dataclass
class _Reader:
    values: dict[str, Value]
    samples: int
    activation_bytes: float
    ops: list[Op] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)
    _names: dict[str, int] = field(default_factory=dict)

    def read(self, node: Any) -> None:
        """Append the operation of a node; views and constants are only passed on."""
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
                found |= self._near(position, lambda i: list(self.ops[i].inputs))
                found |= self._near(position, lambda i: readers.get(i, []))
        changed = list(self.ops)
        for position in found:
            op = changed[position]
            changed[position] = replace(op, kind=OpKind.ATTENTION)
        return changed

    def _near(self, start: int, step: Any) -> set[int]:
        """Return products of activations a few point-wise operations away."""
        here = [start]
        for _ in range(5):
            here = [i for position in here for i in step(position)]
            found = {i for i in here if self._is_activation_product(self.ops[i])}
            if found:
                return found
            here = [i for i in here if self.ops[i].kind in (OpKind.ELEMENTWISE, OpKind.COPY)]
        return set()

    def _is_activation_product(self, op: Op) -> bool:
        return op.kind is OpKind.MATMUL and op.weights == 0

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
            weight_size, reads = 0.0, reads + out  # only the rows asked for
        elif node.op_type.startswith("Gather"):
            reads = min(reads, 2 * out)
        return Op(
            name=self._name(node),
            kind=kind,
            flops=product.flops / self.samples if product else 0.0,
            reads=reads / self.samples,
            writes=out / self.samples,
            weights=weight_size,
            params=self._own(node, weights),
            shape=self._shape(outputs),
            dims=self._dims(product, bool(weights)),
            saved=self._saved(node, kind, moving, outputs) / self.samples,
            launches=self._launches(node, inputs),
            inputs=tuple(sorted({v.writer for v in moving if v.writer is not None})),
        )

    def _kind(self, node: Any, weights: Sequence[Value]) -> OpKind:
        name = node.op_type
        if name in ("Gather", "GatherND") and any(w.params or w.is_float for w in weights):
            return OpKind.EMBEDDING
        if name == "BatchNormalization":
            return OpKind.BATCH_NORM
        if name in _SOFTMAX:
            return OpKind.SOFTMAX
        for kind, names in (
            (OpKind.ELEMENTWISE, _ELEMENTWISE), (OpKind.COPY, _COPIES), (OpKind.NORM, _NORMS),
            (OpKind.REDUCE, _REDUCTIONS), (OpKind.POOL, _POOLS),
        ):  # fmt: skip
            if name in names:
                return kind
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

    def _saved(
        self, node: Any, kind: OpKind, moving: Sequence[Value], outputs: Sequence[Value]
    ) -> float:
        """Return the elements kept for backward; each value once, whoever needs it."""
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
        return saved

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

    def _launches(self, node: Any, inputs: Sequence[Value]) -> int:
        if node.op_type not in _GATES:
            return 1
        return inputs[0].shape[0] * inputs[1].shape[0]

    def _shape(self, outputs: Sequence[Value]) -> tuple[int, ...]:
        shape = outputs[0].shape if outputs else ()
        if not shape or shape[0] % self.samples:
            return shape
        lead = shape[0] // self.samples
        return shape[1:] if lead == 1 and len(shape) > 1 else (lead, *shape[1:])

    def _name(self, node: Any) -> str:
        base = (node.name or f"{node.op_type}").strip("/").replace("/", ".")
        count = self._names[base] = self._names.get(base, 0) + 1
        return base if count == 1 else f"{base}_{count}"

    def _value(self, name: str) -> Value:
        return self.values.setdefault(name, Value(name, ()))


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", *_GATES})


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
        **dict(zip(letters[0], left, strict=False)),
        **dict(zip(letters[1], right, strict=False)),
    }
    shared = set(letters[0]) & set(letters[1])

    def span(names: set[str]) -> int:
        return math.prod(sizes[name] for name in names)

    groups, k = span(shared & set(output)), span(shared - set(output))
    m, n = span(set(letters[0]) - shared), span(set(letters[1]) - shared)
    return Product(OpKind.MATMUL, 2.0 * groups * m * n * k, m, n, k, groups)
