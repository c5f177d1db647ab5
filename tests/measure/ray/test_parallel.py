"""An encoder is trained by workers of Ray Train where a cluster is there, to what it is in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure.ray import RayRunner
from forerun.predictors.graphs.encoder import shapes
from tests.measure.ray.conftest import Head, found_by

ROOT = Path(__file__).resolve().parents[3]

# Run where RAY_ADDRESS names a cluster of two CPUs.
TRAINS = """
import io, json, os
from contextlib import redirect_stdout
import numpy as np
from forerun.measure.ray import RayRunner
from forerun.predictors.graphs.hypernetwork import drawn_network
from forerun.predictors.graphs.objectives import trained_encoder
from forerun.progress import progress_to

rng = np.random.default_rng(0)
graphs = [drawn_network(rng) for _ in range(8)]
sizes = np.log2([[len(graph), graph.depth.max()] for graph in graphs])
address, whole = os.environ.pop("RAY_ADDRESS"), None
most, results, plain = 2, [], RayRunner.in_workers

def train():
    return trained_encoder(graphs, np.arange(8), np.zeros((8, 0)), sizes, seed=3, steps=60)

def in_some(self, work, parts, told):
    results.append(plain(self, work, min(parts, most), told))
    return results[-1]

def apart(one, other):
    return max(float(np.abs(one.weights[name] - other.weights[name]).max()) for name in one.weights)

RayRunner.in_workers = in_some
whole, os.environ["RAY_ADDRESS"] = train(), address
said, printed = [], io.StringIO()
with progress_to(said.append), redirect_stdout(printed):
    two = train()
most = 1
one = train()
found = {
    "said": said, "printed": printed.getvalue(), "workers": list(map(len, results)),
    "ranks_apart": apart(*results[0]), "one_apart": apart(whole, one),
    "losses": [x.losses.tolist() for x in (whole, two, one)],
}

def wrong(rank, workers, tell):
    raise ValueError(f"odd {workers}")

try:
    plain(RayRunner(), wrong, 9, print)
except Exception as error:
    found["wrong"] = str(error)
print("FOUND", json.dumps(found))
"""


@pytest.mark.slow
def test_workers_of_ray_train_lead_to_the_weights_of_one_process(
    able: None, head: Head, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    found = found_by(TRAINS, head, tmp_path, OMP_NUM_THREADS="1")
    assert found["workers"] == [2, 1], "one for each CPU"
    assert found["one_apart"] == 0.0, "one worker takes the very steps of this process"
    whole, two, one = found["losses"]
    assert one == whole
    assert found["ranks_apart"] == 0.0, "workers agree"
    # Later on, Adam goes as far by a gradient that is almost none, whichever way its last digit points.
    assert two[:30] == pytest.approx(whole[:30], rel=2e-3)
    assert sum(two[-20:]) < 0.5 * sum(two[:20])
    assert len(found["said"]) == 6
    assert found["said"][5].startswith("training an encoder: step 60 of 60, loss 0.")
    assert found["printed"] == "", "stdout is the answer's"
    assert "odd 2" in found["wrong"]
    assert "unset RAY_ADDRESS" in found["wrong"]


# The command where RAY_ADDRESS names that cluster, with fewer steps.
FITS = """
import io, json
from contextlib import redirect_stderr
from pathlib import Path
from forerun.cli import main
from forerun.measure.ray import RayRunner
from forerun.predictors.graphs import predictddl

predictddl.STEPS, workers, plain = 20, [], RayRunner.in_workers

def counting(self, *given):
    results = plain(self, *given)
    workers.append(len(results))
    return results

RayRunner.in_workers = counting
words = "fit --runs runs.csv --predictor predictddl:regression=linear:features=embedding:encoder=quantities"
with redirect_stderr(io.StringIO()) as said:
    code = main([*words.split(), "--out", "model.json"], standalone_mode=False)
saved = json.loads(Path("model.json").read_text())
print("FOUND", json.dumps({
    "code": code, "workers": workers, "said": said.getvalue(), "encoder": [*saved["model"]["encoder"]],
}))
"""


def test_the_command_trains_an_encoder_on_the_cluster_that_is_named(
    able: None, head: Head, tmp_path: Path
) -> None:
    for package in ("torch", "sklearn"):
        pytest.importorskip(package)
    rows = [
        f"{name},a100-sxm-80gb,1,{devices},{16 * devices},{0.01 * i}"
        for i, name in enumerate(("resnet18", "alexnet", "vgg11"), start=1) for devices in (1, 2, 4, 8)
    ]  # fmt: skip
    table = ["workload,device,nodes,devices,global_batch,step_time_s", *rows]
    (tmp_path / "runs.csv").write_text("\n".join(table))
    found = found_by(FITS, head, tmp_path, OMP_NUM_THREADS="1")
    assert found["code"] == 0
    assert found["workers"] == [2], "one for each CPU"
    assert "training an encoder: step 20 of 20, loss " in found["said"]
    assert {*found["encoder"]} == {*shapes()}


def test_a_cluster_that_does_not_answer_is_no_reason_to_train_elsewhere(
    able: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="no Ray cluster answers"):
        RayRunner(address="127.0.0.1:9").in_workers(lambda *_: None, 2, print)
