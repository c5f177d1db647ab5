"""Callbacks: the HuggingFace Trainer and Lightning are measured by one line, where they are installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forerun.errors import RequestError
from forerun.measure.callbacks import TrainerCallback, lightning_callback
from forerun.measure.measurement import Measurement
from forerun.measure.recorder import Recorder
from forerun.measure.session import installed
from forerun.measure.task import Steps

pytestmark = pytest.mark.filterwarnings("ignore")  # their own deprecations are not ours


def needs(package: str) -> None:
    """Skip where a package is missing, saying so."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")


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
    from forerun.workloads.trace import prepare_torchvision

    prepare_torchvision()


def hugging_trainer(tmp_path: Path, callback: TrainerCallback, steps: int) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=4, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    return Trainer(Line(), arguments, train_dataset=ROWS, callbacks=[callback])


def test_the_trainer_of_transformers_is_measured(tmp_path: Path, torchvision: None) -> None:
    needs("transformers")
    out = tmp_path / "m.json"
    hugging_trainer(tmp_path, TrainerCallback(samples=8, out=out), 20).train()
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert (measured.status, measured.steps + measured.warmup_steps) == ("ok", 20)
    assert {"input", "forward", "backward", "optimizer"} <= set(measured.parts)
    assert measured.samples_per_second is not None


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


def test_lightning_is_measured(tmp_path: Path, torchvision: None) -> None:
    needs("lightning")
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.line(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    out = tmp_path / "m.json"
    trainer = lightning.Trainer(
        max_steps=20, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[lightning_callback(samples=4, out=out)],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(ROWS, batch_size=4))  # type: ignore[arg-type]
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert (measured.status, measured.steps + measured.warmup_steps) == ("ok", 20)
    assert {"input", "optimizer"} <= set(measured.parts)


def test_without_lightning_its_callback_is_refused_in_words() -> None:
    if find_spec("lightning") or find_spec("pytorch_lightning"):
        pytest.skip("lightning is installed")
    with pytest.raises(RequestError, match="pip install lightning"):
        lightning_callback()
