"""Sizes: at which sizes a device is timed, so that operations are measured and not their launches."""

from __future__ import annotations

from dataclasses import dataclass

# More would take a small host too long; time is proportional to size beyond.
MOST_FLOPS = 1.3e9
_CUDA_FLOPS, _CUDA_WIDE_FLOPS = 1.2e12, 1.4e11  # many cards do fp64 at a thirtieth of fp32
_CUDA_FOOTPRINT = 4e9
_TENSORS = 5  # that an operation of elements reads, writes and keeps, at most
# A call that takes less than so many launches says more of these than of itself.
LAUNCHES = 3.0


@dataclass(frozen=True)
class Sizes:
    """The points of the grids; those of a core, unless said otherwise.

    Attributes:
        rows, sides: of matrix products.
        images: (side of the image, samples) of convolutions.
        outputs, inputs: channels of dense 3 x 3 convolutions.
        pointwise: channels of 1 x 1 convolutions.
        depthwise, groups: channels of depthwise ones; groups of 16 channels.
        tokens, head_sizes, heads: of attention; heads are those of all samples.
        counts: elements of an operation's input: from one that only costs a call, to what no
            cache holds.
        lines, widths: of operations that go row by row; a size is lines x 64 elements.
        footprints: bytes that are gone through in turn: from what a cache holds to what only
            memory does.
        chunk: elements of one call of those; 0 goes through all of them in one call.
        most_flops: a point with more is not run.
    """

    rows: tuple[int, ...] = (8, 64, 512)
    sides: tuple[int, ...] = (10, 64, 256, 1024)
    images: tuple[tuple[int, int], ...] = ((8, 8), (16, 16), (32, 16))
    outputs: tuple[int, ...] = (16, 64, 128)
    inputs: tuple[int, ...] = (3, 16, 64, 128)
    pointwise: tuple[int, ...] = (16, 64, 256)
    depthwise: tuple[int, ...] = (16, 64, 256)
    groups: tuple[int, ...] = (2, 8, 32)
    tokens: tuple[float, ...] = (32.0, 128.0, 512.0)
    head_sizes: tuple[float, ...] = (32.0, 64.0)
    heads: tuple[float, ...] = (16.0, 128.0)
    counts: tuple[int, ...] = (64, 8192, 131072, 1048576, 4194304)
    lines: tuple[int, ...] = (8, 256, 4096)
    widths: tuple[int, ...] = (10, 128, 1024)
    footprints: tuple[float, ...] = (1e6, 4e6, 8e6, 16e6, 32e6, 64e6, 192e6)
    chunk: int = 65536
    most_flops: float = MOST_FLOPS


CPU = Sizes()


def cuda_sizes(free_bytes: float, element_bytes: int) -> Sizes:
    """Return the sizes of a GPU, whose launches take as long as 100 MB of its memory.

    Args:
        free_bytes: of its memory; nothing takes more than a quarter of them.
        element_bytes: of a number.
    """
    room = free_bytes / 4.0
    largest = min(_CUDA_FOOTPRINT, room)
    counts = (64, 65536, 1048576, 16777216, 67108864)
    return Sizes(
        rows=(16, 256, 2048, 8192), sides=(64, 512, 2048, 8192),
        images=((8, 16), (16, 64), (56, 32)),
        outputs=(64, 128, 512), inputs=(3, 64, 128, 512), pointwise=(64, 256, 1024),
        depthwise=(32, 128, 512), groups=(2, 8, 32),
        tokens=(128.0, 512.0, 2048.0), head_sizes=(64.0, 128.0), heads=(16.0, 128.0),
        counts=tuple(n for n in counts if n * _TENSORS * element_bytes <= room),
        lines=(64, 4096, 262144), widths=(10, 128, 1024, 8192),
        footprints=(
            *(f for f in (4e6, 16e6, 64e6, 256e6, 1e9) if f < largest), largest
        ),
        chunk=0,
        most_flops=_CUDA_FLOPS if element_bytes <= 4 else _CUDA_WIDE_FLOPS,
    )  # fmt: skip


def sizes_of(torch: object, device: str, element_bytes: int) -> Sizes:
    """Return the sizes at which a device is timed."""
    if device != "cuda":
        return CPU
    free, _ = torch.cuda.mem_get_info()  # type: ignore[attr-defined]
    return cuda_sizes(float(free), element_bytes)
