"""Gradients: squared norms of a training's gradients in some of its steps, from which its noise follows."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement
from statistics import fmean
from typing import Any
from weakref import ref

from forerun.measure.noise import GradientNoise

NORMS_EVERY = 10  # steps: norms read all gradients twice, which costs little in a tenth of them
ADAM_EVERY = 20  # what is divided costs about twice as much
_SHARE = 0.01  # of the time of steps that noise may take: where these are short, fewer are observed
_MOST_EVERY = 10  # times the usual steps, lest one interruption ends the estimates
_ADAM_SETTLES = 5  # updates: the squares of fewer gradients do not say how large the next one is
_PIECE = 2**16  # numbers: they stay in a cache
_UNUSED = "no optimizer of torch used the gradients of each step"


@dataclass(frozen=True, slots=True)
class GradientSquares:
    """Squared norms of gradients that are compared, without the loss scale.

    Attributes:
        local: mean over those gradients that this worker knows. `mean`: of the mean of all of them.
        count: gradients. `batches`: steps whose batches they take together.
    """

    local: float
    mean: float
    count: int
    batches: int = 1


def squares_summary(steps: Sequence[GradientSquares | None], warm: int) -> dict[str, float | None]:
    """Return means over steps by their names in a record; the first `warm` ones serve where no other does."""
    known = [one for one in steps[warm:] if one] or [one for one in steps if one]
    if not known:
        return dict.fromkeys(("local_sqr", "mean_sqr"))
    kind = (known[-1].count, known[-1].batches)  # the last step of an epoch may have fewer passes
    alike = [one for one in known if (one.count, one.batches) == kind]
    return {
        "local_sqr": fmean(one.local for one in alike), "mean_sqr": fmean(one.mean for one in alike),
        "gradients": kind[0], "batches": kind[1],
    }  # fmt: skip


@dataclass(slots=True)
class _Sums:
    """Squared norms of the parts of a step's gradients, tensors (): of buckets of DDP, else of parameters."""

    added: list[Any] = field(default_factory=list)  # of what is reduced, or a pass adds
    whole: dict[Any, Any] = field(default_factory=dict)  # of what they hold in the end
    left: list[Any] = field(default_factory=list)  # of what they held before the first pass
    before: list[Any] = field(default_factory=list)  # of the step before
    across: list[Any] = field(default_factory=list)  # products of that step's and this one's
    passes: Counter[int] = field(default_factory=Counter)
    kept: dict[int, Any] = field(default_factory=dict)  # gradients, for the step after
    why: str = ""  # they are of no use


class Gradients:
    """Takes squared norms in one step of several, and feeds a noise where one is given.

    Workers compare the gradients that DDP reduces. One worker compares the passes that a step accumulates;
    where there is one pass and norms are asked for, such a step and the next (as AdaptDL with one replica).
    Where Adam trains, gradients are divided as its update divides them (AdaptDL). Unless `every` is given,
    steps whose observation takes more than a hundredth of their time are observed less often.

    Args:
        every: steps between two observations; 0 never; None the usual.
        samples: returns those in a step of all workers, 0 where not known.
    """

    def __init__(
        self, workers: int, every: int | None, noise: GradientNoise | None,
        samples: Callable[[], float],
    ) -> None:  # fmt: skip
        self.every, self.noise = every, noise
        self.why = ""  # there are none
        self._workers, self._samples = workers, samples
        self._size = 1
        self._module: Any = lambda: None
        self._optimizer: Any = lambda: None
        self._own: frozenset[int] = frozenset()  # parameters that are trained
        self._adam: dict[int, tuple[float, float]] = {}  # beta_2 and epsilon of a parameter
        self._handles: list[Any] = []  # of hooks on parameters
        self._updates = self._count = self._due = 0
        self._passes = 1  # of the last step
        self._spent = 0.0  # seconds of the observation under way, of this process
        self._since = (0, time.perf_counter())  # step and moment from which steps are timed
        self._scale: float | None = None  # of this step's loss; None until an optimizer has used it
        self._whole = True  # no gradients are left over from the step before
        self._reductions = 0
        self._sums = _Sums()
        self._prior: tuple[dict[int, Any], float] | None = None  # a step's gradients, their scale
        self._unread: Callable[[], GradientSquares | None] | None = None  # of the last step
        self._steps: list[GradientSquares | None] = []

    @property
    def asked(self) -> bool:
        """Whether somebody wants them: then one worker may keep a copy of its gradients for a step."""
        return bool(self.every) or (self.noise is not None and self.every is None)

    @property
    def _takes(self) -> bool:
        ready = not self._adam or self._updates >= _ADAM_SETTLES
        due = self._count >= self._due or self._prior is not None
        return self.every != 0 and ready and due

    def attach(self, module: Any) -> None:
        """Take norms of what a DistributedDataParallel module reduces."""
        self._module, self._size = ref(module), module.process_group.size()
        self._own = frozenset(map(id, module.parameters()))

    def detach(self) -> None:
        """Leave the parameters of one worker as they were."""
        while self._handles:
            self._handles.pop().remove()

    def reducing(self, bucket: Any) -> Callable[[], None] | None:
        """Take norms of a bucket that is about to be reduced, and return what takes those of the mean in it."""
        self._reductions += bucket.is_last()
        if self._workers == 1 or not self._takes:
            return None
        sums, buffer, index = self._sums, bucket.buffer(), bucket.index()
        if buffer.is_sparse:
            sums.why = "some gradients are sparse"
            return None
        parts: list[tuple[Any, Any]] = [(None, buffer)]
        if self._adam:
            parts = list(zip(bucket.parameters(), bucket.gradients(), strict=True))

        def squares() -> list[Any]:
            return [self._products(parameter, values)[0] for parameter, values in parts]

        sums.added += squares()
        return lambda: sums.whole.update({index: sum(squares())})

    def _products(self, parameter: Any, *gradients: Any) -> list[Any]:
        """Return the products of gradients, one or two, with one another: [aa] or [aa, ab, bb], tensors ().

        In float32 or more, since half precision overflows. Where Adam trains the parameter, they are divided by
        sqrt(second moment) + epsilon; on a CPU piece by piece, which needs no memory of their size.
        """
        import torch

        begun = time.perf_counter()
        flats = [
            (one if one.dtype == torch.float64 else one.float()).flatten()
            for one in (gradient.detach() for gradient in gradients)
        ]
        pairs = list(combinations_with_replacement(range(len(flats)), 2))
        sums = [flats[0].new_zeros(()) for _ in pairs]
        adam = self._adam.get(id(parameter))
        state = getattr(self._optimizer(), "state", {}).get(parameter, {}) if adam else {}
        if adam is None:
            sums = [flats[i].dot(flats[k]) for i, k in pairs]
        elif "exp_avg_sq" in state:  # else it has never been updated
            beta, epsilon = adam
            root = (1.0 - beta ** state["step"]) ** 0.5
            moment = state["exp_avg_sq"].flatten()
            size = max(len(moment), 1) if moment.is_cuda else _PIECE
            for second, *pieces in zip(
                moment.split(size), *(f.split(size) for f in flats), strict=True
            ):
                divisor = second.sqrt().add_(epsilon * root)
                divided = [piece / divisor for piece in pieces]
                for n, (i, k) in enumerate(pairs):
                    sums[n] += divided[i].dot(divided[k])
            sums = [one * root**2 for one in sums]
        self._spent += time.perf_counter() - begun
        return sums

    def _arrives(self, parameter: Any, gradient: Any) -> None:
        """A backward pass of one worker is about to add a gradient to what a parameter holds."""
        sums, passed = self._sums, self._sums.passes[id(parameter)]
        if gradient.is_sparse:
            sums.why = "some gradients are sparse"
        elif passed and parameter.grad is None:
            sums.why = "gradients are zeroed between two passes of a step"
        elif not sums.why:
            if not passed and parameter.grad is not None:
                sums.left += self._products(None, parameter.grad)
            if self._passes > 1:
                sums.added += self._products(parameter, gradient)

    def _added(self, parameter: Any) -> None:
        sums, key, gradient = self._sums, id(parameter), parameter.grad
        sums.passes[key] += 1
        if sums.why or sums.passes[key] < self._passes:
            return
        if self._passes > 1:
            (sums.whole[key],) = self._products(parameter, gradient)
        elif self._prior is None:
            begun = time.perf_counter()
            sums.kept[key] = gradient.detach().clone() if self.asked else None
            self._spent += time.perf_counter() - begun
        elif key in self._prior[0]:
            before, across, sums.whole[key] = self._products(
                parameter, self._prior[0][key], gradient
            )
            sums.before.append(before)
            sums.across.append(across)

    def updated(self, optimizer: Any) -> None:
        """Say that an optimizer is about to use its gradients; called from within its pre-hook."""
        if self._scale is None and (optimizer is self._optimizer() or self._meets(optimizer)):
            self._scale = _loss_scale() if self._takes else 1.0
            self._updates += 1

    def _meets(self, optimizer: Any) -> bool:
        """Whether an optimizer trains the DDP module, or what the first optimizer of one worker does."""
        from torch.optim import Adam, AdamW

        groups = optimizer.param_groups
        if self._workers == 1 and not self._own:
            self._own = frozenset(id(one) for group in groups for one in group["params"])
        if not any(id(one) in self._own for group in groups for one in group["params"][:1]):
            return False
        self._optimizer = ref(optimizer)
        self._adam = {
            id(one): (group["betas"][1], group["eps"])
            for group in groups if isinstance(optimizer, Adam | AdamW) for one in group["params"]
        }  # fmt: skip
        if self._adam:
            self.forget()  # norms of this step were not divided
        return True

    def end(self) -> None:
        """End a step: by now the squares of the step before are there."""
        self._settle()
        self._steps.append(None)
        sums, scale = self._sums, self._scale
        taken = bool(sums.added or sums.passes)
        if taken or sums.why:
            every = self._usual if self.every is None else self.every
            self._due = self._count + every if self._count >= self._due else self._due
            self.why = sums.why or self.why or (_UNUSED if scale is None else "")
        elif self.asked and not self._updates:
            bare = self._workers > 1 and not self._own
            self.why = "no DistributedDataParallel module is observed" if bare else _UNUSED
        if scale is None or not (taken and self._whole) or sums.why:
            self._prior = None
        else:
            self._unread = self._of_workers(scale) if self._workers > 1 else self._of_one(scale)
            if self._unread is not None and self._workers == 1:
                self._defer(self._steps_spent())
        self._whole, self._scale = scale is not None, None
        self._count += 1
        self.forget()
        self._hook()

    @property
    def _usual(self) -> int:
        return ADAM_EVERY if self._adam else NORMS_EVERY

    def _steps_spent(self) -> float:
        """Return how many steps an observation has taken that is complete, of those since the last one."""
        step, moment = self._since
        self._since = self._count + 1, time.perf_counter()
        spent, self._spent = self._spent, 0.0
        return spent * (self._since[0] - step) / max(self._since[1] - moment, 1e-9)

    def _defer(self, spent: float) -> None:
        """Observe later, where what an observation took, in steps, is more than its share of the usual ones."""
        if self.every is None and self.noise is not None:
            steps = min(math.ceil(spent / _SHARE), _MOST_EVERY * self._usual)
            self._due += max(steps - self._usual, 0)

    def _of_workers(self, scale: float) -> Callable[[], GradientSquares] | None:
        """Return what returns a step's squares later; None where it has none."""
        if self._reductions != 1:
            return None
        sums, size = self._sums, self._size
        module = self._module() if self.noise is not None else None
        spent = sums.added[0].new_tensor(self._steps_spent())
        read = _later(sums.added, [spent], [*sums.whole.values()], module=module)
        times = size**2 if module is None else size  # DDP has divided by it; the sum is of all

        def squares() -> GradientSquares:
            local, all_spent, mean = read()
            self._defer(all_spent / size)  # the same of all workers
            return GradientSquares(local * times / scale**2, mean / scale**2, size)

        return squares

    def _of_one(self, scale: float) -> Callable[[], GradientSquares | None] | None:
        sums, prior, passes = self._sums, self._prior, self._passes
        self._prior, self._passes = None, max(sums.passes.values())
        if self._passes != passes:  # the next step is observed as one of so many
            self._due = self._count + 1
        elif min(sums.passes.values()) < passes:
            self.why = "some parameters have no gradient in some passes of a step"
        elif passes > 1:
            read = _later([*sums.whole.values()], sums.added, sums.left)
            return partial(_of_passes, read, passes, scale)
        elif prior is not None and sums.passes.keys() == prior[0].keys():
            read = _later([*sums.whole.values()], sums.before, sums.across, sums.left)
            return partial(_of_two_steps, read, prior[1], scale)
        elif not self.asked:
            self.every = 0  # a step is one pass: there is nothing to compare
        elif sums.kept:
            self._prior = sums.kept, scale
        return None

    def _hook(self) -> None:
        """Watch the parameters of one worker through the steps whose norms are taken, and no other."""
        optimizer = self._optimizer()
        if self._workers > 1 or not self._takes or optimizer is None:
            self.detach()
        elif not self._handles:
            for one in (one for group in optimizer.param_groups for one in group["params"]):
                if one.requires_grad:
                    self._handles.append(one.register_hook(partial(self._arrives, one)))
                    self._handles.append(one.register_post_accumulate_grad_hook(self._added))

    def restart(self) -> None:
        """Forget the steps so far; norms are taken in the next one."""
        self.read()
        self._count = self._due = 0
        self._since = (0, time.perf_counter())
        self._hook()

    def forget(self) -> None:
        """Leave out what has been reduced or added since the last step."""
        self._sums, self._reductions = _Sums(), 0

    def read(self) -> list[GradientSquares | None]:
        """Return the squares of the steps since the last call, None where none were taken."""
        self._settle()
        steps, self._steps = self._steps, []
        return steps

    def _settle(self) -> None:
        unread, self._unread = self._unread, None
        if unread is None:
            return
        squares, batch = unread(), self._samples()
        if squares is None:
            self.why = "gradients are left over from the step before"
            return
        if self.noise is not None:
            count, total = squares.count, squares.batches * batch
            self.noise.observe(squares.local, squares.mean, count, total)
        if math.isfinite(squares.local + squares.mean):
            self._steps[-1] = squares
        else:
            self.why = "gradients are not finite"


def _of_passes(
    read: Callable[[], list[float]], passes: int, scale: float
) -> GradientSquares | None:
    """Of passes that a step accumulates: its gradient is the mean of so many times what each has added."""
    whole, added, left = read()
    if left > 0:
        return None
    return GradientSquares(added * passes / scale**2, whole / scale**2, passes)


def _of_two_steps(
    read: Callable[[], list[float]], prior: float, scale: float
) -> GradientSquares | None:
    whole, before, across, left = read()
    if left > 0:
        return None
    both = before / prior**2 + whole / scale**2
    return GradientSquares(both / 2, (both + 2 * across / (prior * scale)) / 4, 2, 2)


def _later(*parts: list[Any], module: Any = None) -> Callable[[], list[float]]:
    """Return what returns the sum of each list of tensors (), which are not waited for until then.

    Where a DDP module is given, the first two sums are those of all its workers.
    """
    import torch

    device = parts[0][0].device
    zero = [parts[0][0].new_zeros(())]
    sums = torch.stack([torch.stack([s.to(device) for s in some or zero]).sum() for some in parts])
    wait: Callable[[], Any] = lambda: None  # noqa: E731
    if module is not None:
        group, reduce = module.process_group, torch.distributed.all_reduce
        wait = reduce(sums[:2], group=group, async_op=True).wait
    if sums.is_cuda:
        wait()  # the device's stream waits, and not this process
        on_device, sums = sums, torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        sums.copy_(on_device, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        wait = event.synchronize

    def read() -> list[float]:
        wait()
        numbers: list[float] = sums.tolist()
        return numbers

    return read


def _loss_scale() -> float:
    """Return the loss scale of the update under way, by its callers; 1.0 without a GradScaler."""
    from torch.amp import GradScaler

    frame = sys._getframe(1)
    while frame.f_code is not GradScaler.step.__code__:
        if frame.f_back is None:
            return 1.0
        frame = frame.f_back
    return float(frame.f_locals["self"].get_scale())  # 1.0 of a scaler that is not enabled
