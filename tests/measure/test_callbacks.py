"""Callbacks: the HuggingFace Trainer and Lightning are measured by one line, where they are installed."""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forerun.errors import RequestError
from forerun.measure import GradientNoise
from forerun.measure.callbacks import TrainerCallback, lightning_callback
from forerun.measure.local import LocalRunner
from forerun.measure.measurement import Measurement
from forerun.measure.recorder import Recorder, installed
from forerun.measure.task import Steps, Task
from tests.needs import require

pytestmark = pytest.mark.filterwarnings("ignore")  # their own deprecations are not ours


def needs(package: str) -> None:
    """Go on where a package is installed; else skip or fail as `require` does."""
    require(package, find_spec(package) is not None, f"pip install {package} accelerate")


class Line(nn.Module):
    """A linear model that returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def forward(self, inputs: Any = None, labels: Any = None) -> dict[str, Any]:
        out = self.inner(inputs)
        return {"loss": (out - labels).square().mean(), "logits": out}


ROWS = [{"inputs": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]


@pytest.fixture
def torchvision() -> None:
    """Let torchvision be imported beside a torch of another build: transformers looks for it."""
    from benchmarks.zoo_figures import prepare_torchvision

    if find_spec("torchvision") is not None:
        prepare_torchvision()


SLOW = 0.15  # seconds of an evaluation or a checkpoint


def hugging_trainer(tmp_path: Path, callback: TrainerCallback, steps: int, **given: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    class Slow(Trainer):  # type: ignore[misc]  # an extra's class is untyped here
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLOW)
            return super().evaluate(*args, **kwargs)

        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLOW)
            return super()._save_checkpoint(*args, **kwargs)

    arguments = TrainingArguments(
        **{
            "output_dir": str(tmp_path), "max_steps": steps, "per_device_train_batch_size": 4,
            "use_cpu": True, "report_to": [], "save_strategy": "no", "logging_strategy": "no",
            "disable_tqdm": True, "gradient_accumulation_steps": 2, **given,
        }
    )  # fmt: skip
    return Slow(Line(), arguments, train_dataset=ROWS, eval_dataset=ROWS[:4], callbacks=[callback])


def test_the_trainer_of_transformers_is_measured(tmp_path: Path, torchvision: None) -> None:
    needs("transformers")
    out = tmp_path / "m.json"
    hugging_trainer(tmp_path, TrainerCallback(samples=8, out=out), 20).train()
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert (measured.status, measured.steps + measured.warmup_steps) == ("ok", 20)
    assert {"input", "forward", "backward", "optimizer"} <= set(measured.parts)
    assert measured.samples_per_second is not None


@pytest.mark.parametrize("passes", [1, 4])
def test_the_trainer_of_transformers_tells_the_true_gradient_noise(
    tmp_path: Path, torchvision: None, passes: int
) -> None:
    needs("transformers")
    torch.manual_seed(0)
    inputs = torch.randn(4096, 8)
    labels = 3 * inputs.sum(1, keepdim=True) + torch.randn(4096, 1)
    noise = GradientNoise(decay=0.999)
    callback = TrainerCallback(samples=4 * passes, noise=noise, norms_every=1)
    trainer = hugging_trainer(
        tmp_path, callback, 500, gradient_accumulation_steps=passes, optim="sgd", learning_rate=0.0
    )
    trainer.train_dataset = [
        {"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)
    ]
    trainer.train()
    with torch.no_grad():
        residual = 2 * (trainer.model.inner(inputs) - labels)
    gradients = torch.cat([residual * inputs, residual], 1)  # of each sample, by weights and bias
    sqr, var = gradients.mean(0).square().sum(), gradients.var(0).sum()
    assert noise.steps >= 240
    assert noise.phi == pytest.approx(float(var / sqr), rel=0.3), "of 500 small batches"


def test_evaluations_and_checkpoints_of_the_trainer_belong_to_no_step(
    tmp_path: Path, torchvision: None
) -> None:
    needs("transformers")
    out = tmp_path / "m.json"
    hugging_trainer(
        tmp_path, TrainerCallback(out=out), 20,
        eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=6,
    ).train()  # fmt: skip
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert measured.steps + measured.warmup_steps == 20
    assert measured.step_mean_seconds is not None
    assert measured.step_mean_seconds * measured.steps < 4 * SLOW, "four evaluations, three saves"


HUGGING = """
import sys, torch
from importlib.util import find_spec
sys.path.append("ROOT")
from benchmarks.zoo_figures import prepare_torchvision

if find_spec("torchvision") is not None:  # transformers looks for it: it may be of another build
    prepare_torchvision()
from transformers import Trainer, TrainingArguments
from forerun.measure.callbacks import TrainerCallback

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 1)

    def forward(self, inputs=None, labels=None):
        out = self.inner(inputs)
        return {"loss": (out - labels).square().mean(), "logits": out}

if __name__ == "__main__":
    rows = [{"inputs": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]
    arguments = TrainingArguments(
        sys.argv[1], max_steps=500, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True)
    Trainer(Line(), arguments, train_dataset=rows, callbacks=[TrainerCallback(samples=8)]).train()
"""


def test_the_trainer_on_two_workers_tells_communication_though_it_hands_out_the_bare_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HUGGING.replace("ROOT", str(Path(__file__).parents[2])))
    steps = Steps(warmup=2, least=6, most=12, half_width=0.5)
    task = Task("train.py", (str(tmp_path / "made"),), workers=2, global_batch=8, steps=steps)
    measured = LocalRunner(folder=tmp_path / "runs").measure(task)
    assert measured.status == "ok", measured.reason
    assert measured.sync_bytes == 4 * 9
    assert {"input", "forward", "backward", "sync", "optimizer"} == set(measured.parts)


def test_a_runner_ends_the_trainer_early(tmp_path: Path, torchvision: None) -> None:
    needs("transformers")
    recorder = Recorder(Steps(warmup=2, least=6, most=10))
    with installed(recorder):
        hugging_trainer(tmp_path, TrainerCallback(), 500).train()
    assert 6 <= len(recorder.record()["seconds"]) <= 10


def test_what_the_trainer_tells_besides_is_let_pass() -> None:
    callback = TrainerCallback()
    assert callback.on_anything_new(1, 2, three=3) is None
    with pytest.raises(AttributeError):
        _ = callback.other


def lightning_training(tmp_path: Path, steps: int, **given: Any) -> Measurement:
    """Return what was measured of a training by Lightning that validates and saves slowly."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]  # an extra's class is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(0.01)
            return self.line(**batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            time.sleep(SLOW)

        def on_save_checkpoint(self, checkpoint: Any) -> None:
            time.sleep(SLOW)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    out = tmp_path / "m.json"
    measuring = lightning_callback(samples=4, out=out, **given.pop("measuring", {}))
    callbacks = [measuring, *given.pop("callbacks", [])]
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(tmp_path), callbacks=callbacks,
        **{"enable_checkpointing": False, "num_sanity_val_steps": 0, "limit_val_batches": 0, **given},
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(ROWS, batch_size=4)  # type: ignore[arg-type]
    trainer.fit(Module(), loader, torch.utils.data.DataLoader(ROWS[:4], batch_size=4))  # type: ignore[arg-type]
    return Measurement.from_json(json.loads(out.read_text()))


def test_lightning_is_measured(tmp_path: Path, torchvision: None) -> None:
    needs("lightning")
    measured = lightning_training(tmp_path, 20)
    assert (measured.status, measured.steps + measured.warmup_steps) == ("ok", 20)
    assert {"input", "forward", "backward", "optimizer"} <= set(measured.parts)


@pytest.mark.parametrize("passes", [1, 4])
def test_lightning_tells_gradient_noise(tmp_path: Path, torchvision: None, passes: int) -> None:
    needs("lightning")
    noise = GradientNoise()
    measuring = {"noise": noise, "norms_every": 1}
    lightning_training(tmp_path, 24, accumulate_grad_batches=passes, measuring=measuring)
    assert noise.steps == (22 if passes > 1 else 11)
    assert noise.var > 0
    assert 1.0 <= noise.gamma <= max(passes, 2)


def test_a_step_of_lightning_is_of_as_many_batches_as_it_accumulates(
    tmp_path: Path, torchvision: None
) -> None:
    needs("lightning")
    measured = lightning_training(tmp_path, 12, accumulate_grad_batches=4)
    assert measured.steps + measured.warmup_steps == 12
    assert measured.step_seconds is not None
    assert measured.step_seconds >= 4 * 0.01


def test_validation_and_checkpoints_of_lightning_belong_to_no_step(
    tmp_path: Path, torchvision: None
) -> None:
    needs("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    measured = lightning_training(
        tmp_path, 12, accumulate_grad_batches=2, val_check_interval=5, limit_val_batches=1,
        enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, every_n_train_steps=3)],
    )  # fmt: skip
    assert 12 - 3 <= measured.steps + measured.warmup_steps < 12, "some were disturbed amid"
    assert measured.step_mean_seconds is not None
    assert measured.step_mean_seconds < SLOW / 2
    assert measured.step_seconds is not None
    assert measured.step_seconds >= 2 * 0.01


def test_without_lightning_its_callback_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("lightning", "pytorch_lightning"):
        for part in ("", ".pytorch", ".pytorch.callbacks", ".callbacks"):
            monkeypatch.setitem(sys.modules, name + part, None)
    with pytest.raises(RequestError, match="pip install lightning"):
        lightning_callback()
