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
        self.recorder: Recorder | None = None

    def begin(self, model: Any) -> None:
        self.recorder = self._open.enter_context(record(**self._given))
        self._model = model
        if model is not None:
            self.recorder.watch(model)
        self.recorder.begin()
        self.resume()

    def resume(self) -> None:
        """Start the next step now: the time since the last one ended belongs to none."""
        if self.recorder is not None:
            self.recorder.resume()
            self.recorder.switch("input")

    def step_begins(self) -> None:
        """Say that a batch is there; at the first, also find the DDP module of a bare model."""
        self.switch("")
        model, self._model = self._model, None
        if self.recorder is not None and self.recorder.workers > 1 and model is not None:
            ddp = find_ddp(model.parameters())
            if ddp is not None:
                self.recorder.reduce_through(ddp)

    def switch(self, part: str) -> None:
        if self.recorder is not None:
            self.recorder.switch(part)

    def step_ends(self) -> bool:
        """End a step; return whether it is enough."""
        enough = self.recorder is not None and self.recorder.step()
        self.switch("input")
        return enough

    def end(self) -> None:
        """Stop, and write the record where one is wanted."""
        self._open.close()


class TrainerCallback:
    """For the HuggingFace Trainer: `Trainer(..., callbacks=[TrainerCallback()])`.

    Steps are optimizer steps; what lies between two, such as logging, counts as waiting for input;
    evaluations and checkpoints belong to none. It ends training early only under a forerun runner.
    """

    def __init__(self, **given: Any) -> None:
        self._session = _Session(**given)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        session: _Session = self.__dict__["_session"]
        used: dict[str, Callable[[], None]] = {
            "on_step_begin": session.step_begins, "on_evaluate": session.resume,
            "on_save": session.resume, "on_train_end": session.end,
        }  # fmt: skip
        event = used.get(name, lambda: None)
        return lambda *args, **given: event()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start to measure."""
        self._session.begin(given.get("model"))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """An optimizer step has ended."""
        if self._session.step_ends():
            control.should_training_stop = True
        return control


class _Lightning:
    """Lightning's hooks; the class is joined with its Callback where that is installed."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._steps = 0  # of the optimizer when the last one was counted
        self._accumulates = False
        self._disturbed = False  # by something that belongs to no step
        self._spoiled = False  # disturbed amid a step

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._session.begin(trainer.strategy.model or pl_module)
        if trainer.strategy.model in (None, pl_module):  # then its forward need not be called
            for child in pl_module.children():
                if self._session.recorder is not None:
                    self._session.recorder.watch(child)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if self._disturbed:
            self._session.resume()
            self._spoiled, self._disturbed = self._accumulates, False
        self._session.step_begins()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._session.switch("backward")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._session.switch("optimizer")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        self._accumulates = trainer.global_step == self._steps
        self._steps = trainer.global_step
        if self._accumulates:
            self._session.switch("input")
        elif self._spoiled:
            self._session.resume()
            self._spoiled = False
        elif self._session.step_ends():
            trainer.should_stop = True

    def on_validation_end(self, *given: Any) -> None:
        self._disturbed = True

    on_save_checkpoint = on_validation_end  # it is written after this

    def on_train_end(self, *given: Any) -> None:
        self._session.end()

    on_exception = on_train_end


def lightning_callback(**given: Any) -> Any:
    """Return a callback for Lightning's Trainer: `Trainer(callbacks=[lightning_callback()])`.

    Steps are optimizer steps; validation and checkpoints belong to none. Raises RequestError.
    """
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        with suppress(ImportError):
            kind: Any = type("Measuring", (_Lightning, import_module(name).Callback), {})
            return kind(_Session(**given))
    raise RequestError(
        "a Lightning callback", "the package 'lightning' is not installed",
        "install it with: pip install lightning",
    )  # fmt: skip
