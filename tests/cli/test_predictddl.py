"""PredictDDL on the command line: it trains by one command over several tables, and refuses what it cannot use."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.predictors.graphs.weights import SHIPPED, read_weights
from tests.cli.conftest import Done, Run

pytest.importorskip("sklearn")
LAB = "architectures-lab"
PLAIN = "predictddl:regression=linear:features=quantities"
NAMES = ("resnet18", "resnet34", "resnet50", "vgg11", "alexnet", "mobilenet_v2")
TIMES = [
    f"{name},,,a100-sxm-80gb,1,{devices},{batch * devices},{0.01 * (i + 1) * batch / 16 + 0.001 * devices}"
    for i, name in enumerate(NAMES) for devices in (1, 4) for batch in (16, 64)
]  # fmt: skip
UNKNOWN = ["my-net,2e7,4.1,a100-sxm-80gb,1,1,32,0.05", "resnet18,,,no-such-device,1,1,32,0.05",
           "resnet18,,,a100-sxm-80gb,1,1,32,"]  # fmt: skip


def write(path: Path, rows: list[str]) -> str:
    path.write_text(
        "workload,params,gmacs,device,nodes,devices,global_batch,step_time_s\n"
        + "\n".join(rows)
        + "\n"
    )
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    return write(tmp_path / "runs.csv", TIMES)


@pytest.fixture
def model(forerun: Run, table: str, tmp_path: Path) -> str:
    path = str(tmp_path / "model.json")
    spec = "predictddl:regression=linear:features=embedding"
    assert forerun("fit", "--runs", table, "--predictor", spec, "--out", path).code == 0
    return path


def refused(done: Done, *words: str) -> None:
    """Check that a command said what was asked, what was found and what to do, and no more."""
    assert done.code in (2, 3), done.out + done.err
    assert done.err.startswith("error: ")
    assert " found: " in done.err
    assert " next: " in done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


def test_one_command_trains_over_tables_and_says_what_it_left_out(
    forerun: Run, tmp_path: Path
) -> None:
    mixed = write(tmp_path / "mixed.csv", TIMES + UNKNOWN)
    out, cut = tmp_path / "model.json", tmp_path / "cut.csv"
    cut.write_text(
        "workload,device,nodes,devices,partitions,global_batch,step_time_s\nvgg16,t4,4,4,2,64,0.5\n"
    )
    done = forerun(
        "fit",
        "--runs",
        mixed,
        "--runs",
        str(cut),
        "--runs",
        LAB,
        "--predictor",
        PLAIN,
        "--out",
        str(out),
        "--json",
    )
    assert done.code == 0, done.err
    notes = done.json()["notes"]
    assert notes[0] == "learned from 398 runs"
    assert notes.pop(1) == (
        "1 run left out, with a plan that is not learned from: layers cut over devices"
    )
    assert notes[1] == "1 run left out, with no step time"
    assert notes[2].startswith(
        "1 run left out, with no workload or device that is known, as the first: device "
    )
    assert notes[3].startswith(
        "1 run left out, with no graph that can be embedded, as the first: only totals of "
    )
    assert len(notes) == 4
    asked = forerun("predict", "resnet101", "--cluster", f"4x1x{LAB}", "--catalog", LAB, "--image-size", "32",
                    "--global-batch", "16", "--model", str(out))  # fmt: skip
    assert asked.code == 0, asked.err
    assert "closest   resnet50_" in asked.out


def test_an_encoder_is_trained_over_tables_and_its_progress_said(
    forerun: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("forerun.predictors.graphs.predictddl.STEPS", 2)
    out = tmp_path / "model.json"
    spec = "predictddl:regression=linear:features=embedding:encoder=residual"
    done = forerun("fit", "--runs", table, "--runs", LAB, "--predictor", spec, "--out", str(out))
    assert done.code == 0, done.err
    said = [line for line in done.err.splitlines() if line.startswith("training an encoder: ")]
    assert len(said) == 3, "one for all networks, one for each half that a half is judged by"
    assert all(line.startswith("training an encoder: step 2 of 2, loss ") for line in said)
    assert json.loads(out.read_text())["model"]["encoder"]


def test_a_cluster_that_does_not_answer_trains_nothing(
    forerun: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("torch", "ray"):
        pytest.importorskip(package)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    out = tmp_path / "model.json"
    spec = "predictddl:regression=linear:features=embedding:encoder=quantities"
    done = forerun("fit", "--runs", table, "--predictor", spec, "--out", str(out))
    refused(done, "training on Ray Train", "no Ray cluster answers", "ray start --head")
    assert not out.exists()


ON = ("--cluster", "1x4xa100-sxm-80gb", "--global-batch", "64")
CONV = (
    "{name: conv, kind: conv, flops: %s, reads: 100, writes: 100, params: 1000, dims: [100, 10, 9]}"
)
LSTM = "{name: lstm, kind: recurrent, flops: 1.0e6, reads: 100, writes: 100, params: 1000}"
NORMS = [
    f"{{name: norm{i}, kind: norm, flops: 1.0e6, reads: 100, writes: 100, params: 64}}"
    for i in range(40)
]


def spec(folder: Path, *operations: str) -> str:
    path = folder / "net.yaml"
    lines = "".join(f"\n  - {one}" for one in operations) or " []"
    path.write_text(f"name: net\nimage_size: 224\noperations:{lines}\n")
    return str(path)


def test_a_graph_without_operations_is_refused(forerun: Run, model: str, tmp_path: Path) -> None:
    asked = ("predict", spec(tmp_path), *ON, "--model", model)
    refused(forerun(*asked), "operations", "it is an empty list", "write one item or more")
    spec(tmp_path, "{name: relu, kind: elementwise, flops: 1.0e6, reads: 100, writes: 100}")
    refused(forerun(*asked), "it has no operation that is one of max_pool, ")


def test_a_graph_that_goes_around_is_refused(forerun: Run, model: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper.make_node, onnx.TensorProto.FLOAT
    nodes = [make("Relu", ["b"], ["a"], name="one"), make("Add", ["x", "a"], ["b"], name="two")]
    ends = [onnx.helper.make_tensor_value_info(name, kind, [1, 3, 8, 8]) for name in "xb"]
    graph = onnx.helper.make_graph(nodes, "around", ends[:1], ends[1:])
    (tmp_path / "net.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    done = forerun("predict", str(tmp_path / "net.onnx"), *ON, "--model", model)
    refused(done, "one reads b, which no operation before it makes: its graph has a cycle")


def test_networks_far_from_all_measured_ones_have_wider_bands_and_are_declined_at_last(
    forerun: Run, model: str, tmp_path: Path
) -> None:
    widths = []
    for name in ("resnet50", "convnext-tiny"):
        done = forerun("predict", name, *ON, "--model", model, "--json")
        assert done.code == 0, done.err
        step = done.json()["step_seconds"]
        widths.append(step["p95"] / step["p05"])
    assert widths[1] > 1.05 * widths[0]
    done = forerun("predict", spec(tmp_path, *NORMS), *ON, "--model", model)
    refused(
        done,
        "its graph is like none that was measured: the nearest, alexnet, is ",
        " usual distances away",
    )


def test_a_type_of_dataset_that_was_never_trained_is_declined(forerun: Run, model: str) -> None:
    command = "give some (forerun fit --system predictddl --runs RUNS.csv --out MODEL.json)"
    refused(
        forerun("predict", "bert-base", *ON, "--model", model),
        "no run of sequences was given",
        command,
    )
    small = ("predict", "resnet50", "--image-size", "32", *ON, "--model", model)
    refused(forerun(*small), "no run of images of 32 x 32 was given", command)


def test_operations_without_a_primitive_are_listed_with_their_share(
    forerun: Run, model: str, tmp_path: Path
) -> None:
    asked = ("predict", spec(tmp_path, CONV % "3.0e6", LSTM), *ON, "--model", model)
    refused(forerun(*asked), "25% of its FLOPs are operations without a primitive: lstm (25.0%)")
    spec(tmp_path, *[CONV % "1.9e6"] * 10, LSTM)
    done = forerun(*asked)
    assert done.code == 0, done.err
    assert "net: 5% of its FLOPs are operations without a primitive: lstm (5.0%)" in done.out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        # Numpy knows bfloat16 where something has registered it.
        ("f2", "BF16", r"types of numbers that are not read|no weight is \(bfloat16"),
        ("u1", "F8_E4M3", "types of numbers that are not read|no weight is"),
        ("f2", "F16", ""),
    ],
)
def test_numbers_of_half_the_width_are_read_or_refused(
    tmp_path: Path, number: str, code: str, words: str
) -> None:
    arrays = pytest.importorskip("safetensors.numpy")
    weights = {n: np.ones(w.shape, number) for n, w in arrays.load(SHIPPED.read_bytes()).items()}
    content, path = arrays.save(weights), tmp_path / "weights.safetensors"
    end = 8 + int.from_bytes(content[:8], "little")
    head = re.sub(rb'"(F16|U8)"', f'"{code}"'.encode(), content[8:end])
    path.write_bytes(len(head).to_bytes(8, "little") + head + content[end:])
    if words:
        with pytest.raises(RequestError, match=words):
            read_weights(path)
    else:
        assert read_weights(path)["gru.bias_hh"].dtype == np.float32
        weights["gru.bias_hh"][0] = np.inf
        path.write_bytes(arrays.save(weights))
        with pytest.raises(RequestError, match=r"no weight is \(float16"):
            read_weights(path)


class _Opened:
    """What would make a file, were it unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self.path),)


def test_no_encoder_but_a_whole_one_of_numbers_is_read(
    forerun: Run, table: str, tmp_path: Path
) -> None:
    arrays = pytest.importorskip("safetensors.numpy")
    whole = SHIPPED.read_bytes()
    weights = arrays.load(whole)
    opened, bias = tmp_path / "opened", "gru.bias_hh"
    wrong = {
        "short": (whole[:5000], "it is no safetensors file"), "blank": (b"", "it is no safetensors file"),
        "pickle": (pickle.dumps(_Opened(str(opened))), "it is no safetensors file"),
        "shape": (arrays.save({**weights, bias: np.zeros(7, np.float32)}), "gru.bias_hh is of shape (7,)"),
        "lack": (arrays.save({n: w for n, w in weights.items() if n != bias}), "gru.bias_hh is not there"),
        "nan": (arrays.save({**weights, bias: np.full(96, np.nan, np.float32)}), "gru.bias_hh has numbers that no weight is"),
        "huge": (arrays.save({**weights, bias: np.full(96, 1e30, np.float32)}), "gru.bias_hh has numbers that no weight is"),
        "whole": (arrays.save({**weights, bias: np.zeros(96, np.int64)}), "gru.bias_hh has numbers that no weight is (int64"),
    }  # fmt: skip
    out = tmp_path / "model.json"
    for name, (content, found) in wrong.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        done = forerun(
            "fit", "--runs", table, "--predictor", f"predictddl:encoder={path}", "--out", str(out)
        )
        refused(
            done,
            f"reading the encoder {path}",
            found,
            "give a file of an encoder, a GatedGNN or a Graphormer",
        )
    assert not opened.exists()
    done = forerun(
        "fit", "--runs", table, "--predictor", "predictddl:encoder=residul", "--out", str(out)
    )
    refused(
        done,
        "reading the encoder residul",
        "or one of digits, quantities, residual, graphormer-quantities",
    )
    assert not out.exists()


def test_a_shipped_encoder_that_was_changed_is_refused_by_its_hash(
    forerun: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors")
    from forerun.predictors.graphs import predictddl, weights

    changed = bytearray(SHIPPED.read_bytes())
    changed[-1] ^= 1
    (tmp_path / SHIPPED.name).write_bytes(changed)
    monkeypatch.setattr(weights, "SHIPPED", tmp_path / SHIPPED.name)
    monkeypatch.setattr(predictddl, "shipped_weights", weights.shipped_weights.__wrapped__)
    monkeypatch.setattr(predictddl.EMBEDDINGS, "_known", {})
    done = forerun(
        "fit", "--runs", table, "--predictor", "predictddl", "--out", str(tmp_path / "m.json")
    )
    refused(done, "ghn2-digits.safetensors has been changed", "install forerun again")
