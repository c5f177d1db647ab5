"""An ONNX file is read without its weights, and costs what the same network costs by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="ONNX files need the onnx extra: pip install onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - onnx may be missing

from forerun.domain.graph import OpKind, Phase  # noqa: E402 - as above
from forerun.errors import RequestError  # noqa: E402 - as above
from forerun.workloads.onnx import workload_from_onnx  # noqa: E402 - as above

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.zeros(shape, dtype=np.float32), name)


def save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    weights: list[Any],
    dtype: int = FLOAT,
    domains: tuple[str, ...] = (),
) -> Path:
    """Write a model whose output is `y`, and return its path."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, dtype, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), str(path))
    return path


def mlp(path: Path, batch: Any = "batch") -> Path:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    weights = [weight("w1", 20, 10), weight("b1", 20), weight("w2", 20, 5)]
    return save(path, nodes, {"x": [batch, 10]}, weights)


def test_a_perceptron_costs_its_matrices(tmp_path: Path) -> None:
    workload = workload_from_onnx(mlp(tmp_path / "mlp.onnx"))
    graph = workload.graph
    assert workload.name == "mlp"
    assert graph.params == 20 * 10 + 20 + 20 * 5
    assert graph.forward_flops == 2 * (20 * 10 + 20 * 5)
    assert graph.backward_flops == 2 * 20 * 10 + 2 * 2 * 20 * 5
    # The input, and the output of the activation.
    assert graph.saved == 10 + 20
    assert [op.inputs for op in graph.ops if op.phase is Phase.FORWARD] == [(), (0,), (1,)]


@pytest.mark.parametrize("batch", [1, 4, "batch"])
def test_numbers_are_for_one_sample(tmp_path: Path, batch: Any) -> None:
    graph = workload_from_onnx(mlp(tmp_path / "mlp.onnx", batch)).graph
    assert graph == workload_from_onnx(mlp(tmp_path / "mlp.onnx"), batch=8).graph


def test_convolutions_are_counted_by_their_groups(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Conv", ["n", "w2"], ["d"], pads=[1, 1, 1, 1], group=8),
        helper.make_node("Conv", ["d", "w3"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    weights = [weight("w1", 8, 3, 3, 3), weight("w2", 8, 1, 3, 3), weight("w3", 16, 8, 1, 1)]
    weights += [weight(name, 8) for name in "sbmv"]
    path = save(tmp_path / "cnn.onnx", nodes, {"x": ["n", 3, 10, 10]}, weights)
    workload = workload_from_onnx(path)
    forward = [op for op in workload.graph.ops if op.phase is Phase.FORWARD]
    assert [op.kind for op in forward] == [
        OpKind.CONV, OpKind.BATCH_NORM, OpKind.CONV_DEPTHWISE, OpKind.CONV_1X1, OpKind.POOL,
    ]  # fmt: skip
    full, depthwise, point = 2 * 100 * 8 * 27, 2 * 100 * 8 * 9, 2 * 100 * 16 * 8
    assert [op.flops for op in forward] == [full, 0, depthwise, point, 0]
    assert workload.graph.backward_flops == full + 2 * (depthwise + point)
    # Running statistics are not trained.
    assert workload.graph.params == 8 * 27 + 8 * 9 + 16 * 8 + 2 * 8
    assert (workload.sample, workload.image_size) == ("image", 10)


@pytest.mark.parametrize("group", [0, -2, "eight"])
def test_a_group_that_cannot_be_is_refused_by_its_node(tmp_path: Path, group: Any) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv7", pads=[1, 1, 1, 1], group=group)
    path = save(tmp_path / "cnn.onnx", [node], {"x": ["n", 8, 10, 10]}, [weight("w", 8, 1, 3, 3)])
    with pytest.raises(RequestError, match="Conv conv7"):
        workload_from_onnx(path)


def attention(path: Path, tokens: Any) -> Path:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "wq"], ["q"]),
        helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Div", ["scores", "root"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["shares"]),
        helper.make_node("MatMul", ["shares", "x"], ["y"]),
    ]
    root = numpy_helper.from_array(np.array(4.0, dtype=np.float32), "root")
    weights = [weight("table", 100, 16), weight("wq", 16, 16), root]
    return save(path, nodes, {"ids": ["batch", tokens]}, weights, INT)


def test_products_around_a_softmax_are_attention(tmp_path: Path) -> None:
    workload = workload_from_onnx(attention(tmp_path / "a.onnx", 12))
    forward = [op for op in workload.graph.ops if op.phase is Phase.FORWARD]
    assert [op.kind for op in forward if op.flops] == [
        OpKind.MATMUL, OpKind.ATTENTION, OpKind.ATTENTION,
    ]  # fmt: skip
    assert workload.graph.total("flops", kind=OpKind.ATTENTION) == 3 * 2 * (2 * 12 * 12 * 16)
    assert not workload.fused_attention
    assert workload.graph.params == 100 * 16 + 16 * 16
    assert forward[0].kind is OpKind.EMBEDDING
    assert (workload.sample, workload.seq_len) == ("sequence", 12)


def test_a_symbolic_side_is_asked_for_by_its_name(tmp_path: Path) -> None:
    path = attention(tmp_path / "a.onnx", "tokens_in")
    with pytest.raises(RequestError, match=r"without a size: tokens_in; give dims=\{'tokens_in'"):
        workload_from_onnx(path)
    assert workload_from_onnx(path, dims={"tokens_in": 12}).seq_len == 12
    assert workload_from_onnx(path, seq_len=24).seq_len == 24


def test_a_fixed_side_is_not_changed_in_silence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="fixed shapes"):
        workload_from_onnx(attention(tmp_path / "a.onnx", 12), seq_len=24)


def test_a_recurrent_layer_is_counted_over_its_steps(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=6),
    ]
    weights = [weight("w", 1, 24, 4), weight("r", 1, 24, 6)]
    workload = workload_from_onnx(
        save(tmp_path / "l.onnx", nodes, {"x": [9, 1, 4]}, weights), samples=1
    )
    (op,) = [op for op in workload.graph.ops if op.phase is Phase.FORWARD]
    assert op.kind is OpKind.RECURRENT
    assert op.flops == 2 * 9 * 24 * (4 + 6)
    assert op.launches == 9


def test_inputs_and_outputs_that_are_left_out_are_no_cycle(tmp_path: Path) -> None:
    blanks = ["x", "w", "r", "", ""]  # no bias, no lengths of sequences
    nodes = [
        helper.make_node("LSTM", blanks, ["", "h"], hidden_size=6, name="first"),
        helper.make_node("Clip", ["h", "", "most"], ["y"]),
    ]
    weights = [weight("w", 1, 24, 5), weight("r", 1, 24, 6), weight("most")]
    path = save(tmp_path / "blank.onnx", nodes, {"x": [7, 3, 5]}, weights)
    assert workload_from_onnx(path, batch=3).graph.params == 24 * (5 + 6)


def test_an_operator_that_nobody_knows_is_bounded_and_what_follows_is_still_read(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("Strange", ["x"], ["s"], domain="somewhere"),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    path = save(
        tmp_path / "s.onnx", nodes, {"x": ["n", 6]}, [weight("w", 6, 4)], domains=("somewhere",)
    )
    workload = workload_from_onnx(path)
    assert workload.graph.unknown == ("somewhere::Strange",)
    assert workload.graph.ops[0].kind is OpKind.UNKNOWN
    assert workload.graph.ops[0].reads == workload.graph.ops[0].writes == 6
    assert workload.graph.forward_flops == 2 * 6 * 4
    assert any("Strange" in note for note in workload.notes)


def test_weights_in_a_file_that_is_not_there_are_not_needed(tmp_path: Path) -> None:
    path = mlp(tmp_path / "mlp.onnx")
    expected = workload_from_onnx(path).graph
    model = onnx.load(str(path))
    onnx.save(
        model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (tmp_path / "weights.bin").unlink()
    assert workload_from_onnx(path).graph == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"hello, this is no model", bytes(range(256)) * 4],
    ids=["empty", "text", "bytes"],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="not an ONNX model"):
        workload_from_onnx(path)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = mlp(tmp_path / "mlp.onnx")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RequestError, match="not an ONNX model"):
        workload_from_onnx(path)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no such file"):
        workload_from_onnx(tmp_path / "none.onnx")


def test_shapes_that_contradict_are_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "bad.onnx", nodes, {"x": [2, 7]}, [weight("w", 6, 4)])
    with pytest.raises(RequestError, match="shapes"):
        workload_from_onnx(path)


def test_names_of_optimizer_and_precision_are_checked(tmp_path: Path) -> None:
    path = mlp(tmp_path / "mlp.onnx")
    with pytest.raises(RequestError, match="no such optimizer"):
        workload_from_onnx(path, optimizer="adamx")
    with pytest.raises(RequestError, match="no such precision"):
        workload_from_onnx(path, precision="fp12")
