"""Callbacks: the HuggingFace Trainer and Lightning mark the steps of a recorder; nothing of them is imported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any

from forerun.errors import RequestError
from forerun.measure.recorder import Recorder, find_ddp, record


class _Session:
    """A recorder that runs from a training's begin to its end; before and after, calls do nothing."""

    def __init__(self, **given: Any) -> None:
        self._given = given
        self._open = ExitStack()
        self._model: Any = None
        self._recorder: Recorder | None = None

    def _begin(self, model: Any) -> None:
        self._recorder = self._open.enter_context(record(**self._given))
        self._model = model
        if model is not None:
            self._recorder.watch(model)
        self._recorder.begin()
        self._resume()

    def _resume(self) -> None:
        if self._recorder is not None:
            self._recorder.resume()
            self._recorder.switch("input")

    def _step_begins(self) -> None:
        """Say that a batch is there; at the first, also find the DDP module of a bare model."""
        self._switch("")
        model, self._model = self._model, None
        if self._recorder is not None and self._recorder.workers > 1 and model is not None:
            self._recorder.reduce_through(find_ddp(model.parameters()))

    def _switch(self, part: str) -> None:
        if self._recorder is not None:
            self._recorder.switch(part)

    def _step_ends(self) -> bool:
        enough = self._recorder is not None and self._recorder.step()
        self._switch("input")
        return enough

    def _end(self) -> None:
        self._open.close()


class TrainerCallback(_Session):
    """For the HuggingFace Trainer; evaluations and checkpoints belong to no step."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        used: dict[str, Callable[[], None]] = {
            "on_step_begin": self._step_begins, "on_evaluate": self._resume,
            "on_save": self._resume, "on_train_end": self._end,
        }  # fmt: skip
        event = used.get(name, lambda: None)
        return lambda *args, **given: event()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start to measure."""
        self._begin(given.get("model"))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """An optimizer step has ended."""
        if self._step_ends():
            control.should_training_stop = True
        return control


class _Lightning(_Session):
    """Lightning's hooks; the class is joined with its Callback where that is installed."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._steps = 0  # of the optimizer when the last one was counted
        self._accumulates = False
        self._disturbed = False  # by something that belongs to no step
        self._spoiled = False  # disturbed amid a step

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._begin(trainer.strategy.model or pl_module)
        if trainer.strategy.model in (None, pl_module):  # then its forward need not be called
            for child in pl_module.children():
                if self._recorder is not None:
                    self._recorder.watch(child)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if self._disturbed:
            self._resume()
            self._spoiled, self._disturbed = self._accumulates, False
        self._step_begins()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._switch("backward")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._switch("optimizer")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        self._accumulates = trainer.global_step == self._steps
        self._steps = trainer.global_step
        if self._accumulates:
            self._switch("input")
        elif self._spoiled:
            self._resume()
            self._spoiled = False
        elif self._step_ends():
            trainer.should_stop = True

    def on_validation_end(self, *given: Any) -> None:
        self._disturbed = True

    on_save_checkpoint = on_validation_end  # it is written after this

    def on_train_end(self, *given: Any) -> None:
        self._end()

    on_exception = on_train_end


def lightning_callback(**given: Any) -> Any:
    """Return a callback for Lightning's Trainer(callbacks=[...]), as `TrainerCallback`. Raises RequestError."""
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        with suppress(ImportError):
            kind: Any = type("Measuring", (_Lightning, import_module(name).Callback), {})
            return kind(**given)
    found = "the package 'lightning' is not installed"
    raise RequestError("a Lightning callback", found, "install it with: pip install lightning")
