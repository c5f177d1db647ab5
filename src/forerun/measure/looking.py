"""Looking: a process group that stands before another one and lets each reduction of gradients be seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

# Sees a reduction begin, of the tensor that is handed to it, and returns what sees it end, or None.
See = Callable[[Any], Callable[[Any], None] | None]


def may_stand_before(module: Any) -> bool:
    """Whether another group may stand before a DDP module's own.

    What it takes is no promise of torch, and was tried on processors; elsewhere a hook that torch
    documents does the same, whose cost an accelerator hardly waits for.
    """
    swaps = hasattr(module.reducer, "_update_process_group")
    return swaps and all(one.device.type == "cpu" for one in module.parameters())


def looking(group: Any, see: See) -> Any:
    """Return a process group that does what another one does, and shows its reductions on their way.

    What DDP reduces through it, it reduces as ever: the same tensors, by the same collective of
    the same group, in the same order. Only what DDP's reducer calls is there: allreduce and
    broadcast.

    Args:
        group: the one that does the work.
        see: is called with every floating tensor as it is handed over, on the thread and the
            stream that handed it; what it returns is called with the tensor once it is reduced,
            before anybody else gets it.
    """
    return _kinds()[0](group, see)


@cache
def _kinds() -> tuple[Any, Any]:
    """Return the classes of the process group and of its work; torch is loaded late."""
    import torch.distributed as dist
    from torch.compiler import disable

    class Work(dist.Work):  # type: ignore[misc]  # torch is untyped here
        def __init__(self, inner: Any, future: Any) -> None:
            super().__init__()
            self._inner, self._future = inner, future

        def get_future(self) -> Any:
            return self._future

        def wait(self, timeout: Any = None) -> bool:
            self._future.wait()
            return True

    class Group(dist.ProcessGroup):  # type: ignore[misc]  # torch is untyped here
        def __init__(self, inner: Any, see: See) -> None:
            super().__init__(inner.rank(), inner.size())
            self.inner, self._see = inner, see

        # DDP calls these from within its forward, which may be code that torch.compile traces.
        @disable  # type: ignore[untyped-decorator]  # torch is untyped here
        def broadcast(self, tensors: Any, options: Any) -> Any:
            return self.inner.broadcast(tensors, options)

        @disable  # type: ignore[untyped-decorator]  # torch is untyped here
        def allreduce(self, tensors: Any, options: Any) -> Any:
            # What is not floating is DDP's map of parameters that were used.
            floating = len(tensors) == 1 and tensors[0].is_floating_point()
            ended = self._see(tensors[0]) if floating else None
            work = self.inner.allreduce(tensors, options)
            if ended is None:
                return work

            def pass_on(future: Any) -> Any:
                value = future.value()
                ended(value[0])
                return value

            return Work(work, work.get_future().then(pass_on))

    return Group, Work
