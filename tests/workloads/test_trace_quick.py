"""Shapes that are known without asking torch are the ones that torch would give."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="tracing needs the torch extra: pip install torch")

from forerun.workloads.trace.memory import tensors_in  # noqa: E402 - torch may be missing
from forerun.workloads.trace.recorder import quick_answer  # noqa: E402 - as above

aten = torch.ops.aten


def meta(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def normed(image: torch.Tensor) -> tuple[Any, ...]:
    channel = meta(image.shape[1])
    return image, channel, channel, channel, channel, True, 0.1, 1e-5


IMAGE = meta(2, 6, 5, 5)
LAST = IMAGE.to(memory_format=torch.channels_last)
CALLS = {
    "add": (aten.add.Tensor, (IMAGE, IMAGE)),
    "add of channels last": (aten.add.Tensor, (LAST, LAST)),
    "mul of transposed": (aten.mul.Tensor, (meta(4, 6).t(), meta(4, 6).t())),
    "div by a number": (aten.div.Tensor, (IMAGE, 3.0)),
    "relu": (aten.relu.default, (meta(3, 4, dtype=torch.bfloat16),)),
    "threshold": (aten.threshold_backward.default, (IMAGE, IMAGE, 0)),
    "threshold of expanded": (aten.threshold_backward.default, (meta().expand(3, 4), meta(3, 4), 0)),
    "gelu": (aten.gelu_backward.default, (IMAGE, IMAGE)),
    "mean": (aten.mean.dim, (IMAGE, [-1, -2], True)),
    "mean without sides": (aten.mean.dim, (IMAGE, [0])),
    "addmm": (aten.addmm.default, (meta(7), meta(3, 5), meta(5, 7))),
    "batch norm": (aten.native_batch_norm.default, normed(IMAGE)),
    "batch norm of halves": (aten.native_batch_norm.default, normed(IMAGE.bfloat16())),
    "batch norm backward": (
        aten.native_batch_norm_backward.default,
        (IMAGE, IMAGE, meta(6), meta(6), meta(6), meta(6), meta(6), True, 1e-5, [True, True, True]),
    ),
}  # fmt: skip


def told(result: Any) -> list[tuple[Any, ...]]:
    return [(t.shape, t.dtype, t.stride()) for t in tensors_in((result,))]


@pytest.mark.parametrize("case", CALLS)
def test_a_quick_shape_is_the_one_torch_finds(case: str) -> None:
    function, args = CALLS[case]
    quick = quick_answer(function._overloadpacket.__name__, args, {}, mutates=False)
    assert quick is not None
    assert told(quick) == told(function(*args))


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("add", (IMAGE, meta(6, 1, 1)), {}),
        ("add", (IMAGE, IMAGE.double()), {}),
        ("add", (meta(2, dtype=torch.long), 1.5), {}),
        ("add", (torch.zeros(2), torch.zeros(2)), {}),
        ("mean", (IMAGE, [0]), {"dtype": torch.float64}),
        ("addmm", (meta(3, 7), meta(3, 5), meta(5, 7)), {}),
        ("softmax", (IMAGE, 1), {}),
    ],
)
def test_torch_is_asked_wherever_a_rule_might_change_the_answer(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert quick_answer(name, args, kwargs, mutates=False) is None
