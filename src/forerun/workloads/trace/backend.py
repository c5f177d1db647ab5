"""The one door to torch: it is loaded here, and its hooks are handed out as plain callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forerun.errors import optional

if TYPE_CHECKING:
    from collections.abc import Iterator

# Takes (function, positional arguments, keyword arguments); returns what the function would.
Interceptor = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def load_torch(asked: str = "trace a module") -> Any:
    """Return the torch package. Raises MissingExtraError where it is not installed."""
    with optional(asked, "torch", "torch"):
        import torch
    return torch


def dispatch_mode(intercept: Interceptor) -> Any:
    """Return a context in which every operation that torch dispatches goes through a callable."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return intercept(func, args, kwargs or {})

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Nothing is compiled here; saying so spares loading the compiler, about a second."""
            return False

    return Dispatch()


def function_mode(intercept: Interceptor) -> Any:
    """Return a context in which every call of torch's Python face goes through a callable."""
    from torch.overrides import TorchFunctionMode

    class Function(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return intercept(func, args, kwargs or {})

    return Function()


@contextmanager
def no_dispatch() -> Iterator[None]:
    """Leave every dispatch mode for a while: what is allocated here is not part of the step."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def autograd_function(
    forward: Callable[[Any, Sequence[Any]], Any], backward: Callable[[Any, Sequence[Any]], Any]
) -> Callable[..., Any]:
    """Return a differentiable function of tensors from its two halves, given (context, tensors)."""
    torch = load_torch()

    halves = {
        "forward": staticmethod(lambda ctx, *tensors: forward(ctx, tensors)),
        "backward": staticmethod(lambda ctx, *grads: backward(ctx, grads)),
    }
    function: Any = type(torch.autograd.Function)("Fused", (torch.autograd.Function,), halves)
    applied: Callable[..., Any] = function.apply
    return applied
