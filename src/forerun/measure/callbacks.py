"""Callbacks: the HuggingFace Trainer and Lightning say where steps end; nothing of them is imported."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from forerun.errors import RequestError
from forerun.measure.recorder import Recorder
from forerun.measure.session import record


class _Session:
    """A recorder that runs from a training's begin to its end."""

    def __init__(self, **given: Any) -> None:
        self._given = given
        self._open: ExitStack | None = None
        self.recorder: Recorder | None = None

    def begin(self, model: Any) -> None:
        """Start to measure, and watch a model."""
        self._open = ExitStack()
        self.recorder = self._open.enter_context(record(**self._given))
        if model is not None:
            self.recorder.watch(model)
        self.recorder.begin()
        self.recorder.resume()
        self.recorder.switch("input")

    def step_begins(self) -> None:
        """Say that a batch is there."""
        if self.recorder is not None:
            self.recorder.switch("")

    def step_ends(self) -> bool:
        """End a step; return whether it is enough."""
        if self.recorder is None:
            return False
        enough = self.recorder.step()
        self.recorder.switch("input")
        return enough

    def end(self) -> None:
        """Stop, and write the record where one is wanted."""
        if self._open is not None:
            self._open.close()
            self._open = None


class TrainerCallback:
    """For the HuggingFace Trainer: `Trainer(..., callbacks=[TrainerCallback()])`.

    It ends training early only where a forerun runner asks for it. Steps are optimizer steps;
    what lies between two of them, such as logging and evaluation, counts as waiting for input.

    Args:
        given: as of `measure.record` (samples, out ...).
    """

    def __init__(self, **given: Any) -> None:
        self._session = _Session(**given)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):  # what the Trainer tells and this does not need
            return lambda *args, **kwargs: None
        raise AttributeError(name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """Start to measure."""
        self._session.begin(given.get("model"))
        return control

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """A batch is there."""
        self._session.step_begins()
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """An optimizer step has ended."""
        if self._session.step_ends():
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """Stop measuring."""
        self._session.end()
        return control


def lightning_callback(**given: Any) -> Any:
    """Return a callback for Lightning's Trainer: `Trainer(callbacks=[lightning_callback()])`.

    Args:
        given: as of `measure.record` (samples, out ...).

    Raises:
        RequestError: neither lightning nor pytorch_lightning is installed.
    """
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        try:
            from pytorch_lightning.callbacks import Callback
        except ImportError:
            raise RequestError(
                "a Lightning callback", "the package 'lightning' is not installed",
                "install it with: pip install lightning",
            ) from None  # fmt: skip

    class Measuring(Callback):  # type: ignore[misc]  # an extra's class is untyped here
        """Tells forerun's recorder where a batch begins and where it ends."""

        def __init__(self) -> None:
            super().__init__()
            self._session = _Session(**given)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._session.begin(trainer.strategy.model or pl_module)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            self._session.step_begins()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            if self._session.step_ends():
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._session.end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._session.end()

    return Measuring()
