"""Traffic: what collectives of steps come to: their volume and time, and the noise of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one step of one worker.

    Attributes:
        bytes: handed to collectives.
        under_way_seconds: time in which at least one of them was under way.
        exposed_seconds: from the end of the local gradient computation, when the last bucket was
            ready, to the end of the last bucket.
        local_sqr, mean_sqr: squared norm of the worker's own gradient and of the mean gradient,
            of the loss as it was before a GradScaler scaled it. None in a step whose norms were
            not taken, were not finite, or would be of something else: of a step that reduced its
            gradients several times (accumulation without no_sync), which sums both kinds, or
            whose gradients no optimizer took.
        times: how often the gradients were reduced.
        why: why norms that were taken are not told, "" where they are.
    """

    bytes: float
    under_way_seconds: float
    exposed_seconds: float
    local_sqr: float | None = None
    mean_sqr: float | None = None
    times: int = 0
    why: str = ""


def means(traffic: Sequence[Traffic], every: Sequence[Traffic] = ()) -> dict[str, float | None]:
    """Return volume and time of communication in a step, and gradient norms, as means over steps.

    Args:
        traffic: of the steps that are timed.
        every: of all counted steps, whose norms serve where none of the others have any.
    """
    if not any(t.bytes for t in traffic):
        return {"sync_bytes": None, "comm_seconds": None, "local_sqr": None, "mean_sqr": None}
    normed = [t for t in traffic if t.local_sqr is not None] or [
        t for t in every if t.local_sqr is not None
    ]

    def mean(pick: Callable[[Traffic], float | None], among: Sequence[Traffic]) -> float | None:
        return sum(pick(t) or 0.0 for t in among) / len(among) if among else None

    return {
        "sync_bytes": mean(lambda t: t.bytes, traffic),
        "comm_seconds": mean(lambda t: t.under_way_seconds, traffic),
        "local_sqr": mean(lambda t: t.local_sqr, normed),
        "mean_sqr": mean(lambda t: t.mean_sqr, normed),
    }


def with_sync(
    parts: Mapping[str, float],
    traffic: Sequence[Traffic | None],
    each: Sequence[Mapping[str, float]],
    warm: int = 0,
    alone: bool = False,
) -> dict[str, float]:
    """Return a step's parts with exposed communication taken out of backward, where it is known.

    It is the share of backward that it was in the steps that were looked at. These may be few: a
    mean of their own, beside one of backward over all steps, made a step that took long by chance
    outweigh all others, and left no backward.

    Args:
        parts: seconds of each part, as means over steps.
        traffic: of all counted steps, None of those that were not looked at.
        each: the parts of the same steps.
        warm: steps at the beginning that only count where no other was looked at.
        alone: there is one worker, who waits for nobody.
    """
    both = [*zip(traffic, each, strict=False)]
    looked = [(t, own) for t, own in both[warm:] if t] or [(t, own) for t, own in both if t]
    if not parts or not any(t.bytes for t, _ in looked):
        return {**parts, "sync": 0.0} if parts and alone else dict(parts)
    exposed = sum(t.exposed_seconds for t, _ in looked)
    within = sum(own.get("backward", 0.0) for _, own in looked)
    if "backward" not in parts or not within:
        return {**parts, "sync": exposed / len(looked)}
    sync = parts["backward"] * min(exposed / within, 1.0)
    return {**parts, "sync": sync, "backward": parts["backward"] - sync}


def notes(traffic: Sequence[Traffic], alone: bool = False) -> list[str]:
    """Return what a reader of the figures should know of how gradients were reduced.

    Args:
        traffic: of the counted steps that were looked at.
        alone: norms were asked for, of one worker.
    """
    if alone:
        return ["gradient noise is not told: one worker has no second gradient of the same weights"]
    if traffic and not any(t.bytes for t in traffic):
        return [
            "communication is not told apart: the DDP module reduced nothing in the steps that were"
            " looked at"
        ]
    most = max((t.times for t in traffic), default=0)
    if most > 1:
        return [
            f"gradients are reduced {most} times a step: volume and time of communication are of"
            " all of them, and gradient noise is not told; accumulate within no_sync() to reduce once"
        ]
    why = next((t.why for t in traffic if t.why), "")
    if why and all(t.local_sqr is None for t in traffic):
        return [f"gradient noise is not told: {why}"]
    return []


def covered_seconds(spans: list[tuple[float, float]]) -> float:
    """Return how much time is covered by at least one of the spans (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def gradient_noise(
    local_sqr: float, mean_sqr: float, workers: int, global_batch: float
) -> tuple[float, float] | None:
    """Return (|G|^2, tr Sigma): squared norm of the true gradient and variance of a sample's.

    Args:
        local_sqr: mean over steps and workers of |g_i|^2, each over global_batch / workers samples.
        mean_sqr: mean over steps of |g|^2, g the mean gradient of a step.
        workers: K; None is returned for one: a single replica has no second gradient of the same
            weights, and keeping the one of the step before would add to the memory measured.
        global_batch: B.

    Both are unbiased, and so may come out below zero where the noise is large: means over many
    steps or runs have to keep such values, or they are too high.

    Source: Pollux (OSDI 2021), as in METHODS 4: E|g_i|^2 = |G|^2 + K tr Sigma / B and
    E|g|^2 = |G|^2 + tr Sigma / B, so that |G|^2 = (K |g|^2 - |g_i|^2) / (K - 1) and
    tr Sigma = (|g_i|^2 - |g|^2) B / (K - 1).
    """
    if workers < 2:
        return None
    sqr = (workers * mean_sqr - local_sqr) / (workers - 1)
    var = (local_sqr - mean_sqr) * global_batch / (workers - 1)
    return sqr, var
