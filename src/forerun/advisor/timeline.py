"""Timeline: the predicted step as a Chrome trace: one process a pipeline stage."""

from __future__ import annotations

from typing import Any, NamedTuple

from forerun.advisor.answer import Answer
from forerun.errors import RequestError

# Parts of the step that a micro-batch's forward or backward pass holds; the others stand before
# or after the schedule.
_BACKWARD = ("backward", "recompute")
_BOTH = ("tensor comm", "pipeline comm", "context comm", "expert comm", "host", "imbalance")
_LARGEST_EVENTS = 400_000
_STREAM = {"comm": 1, "input": 2, "host": 2, "overhead": 2}
_STREAM_NAMES = ("compute", "communication", "host")
MICROSECONDS = 1e6


class Slot(NamedTuple):
    """One forward or backward pass of a micro-batch through a chunk, on one stage."""

    stage: int
    forward: bool
    micro_batch: int
    chunk: int
    start: float
    duration: float


def _stage_order(stage: int, pp: int, m: int, vpp: int) -> list[tuple[bool, int, int]]:
    total = m * vpp
    warm_up = min(total, pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp)

    def place(k: int, forward: bool) -> tuple[bool, int, int]:
        if vpp == 1:
            return forward, k, 0
        round_, within = divmod(k, pp * vpp)
        chunk = within // pp
        return forward, round_ * pp + within % pp, chunk if forward else vpp - 1 - chunk

    order = [place(k, True) for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [place(warm_up + k, True), place(k, False)]
    return order + [place(k, False) for k in range(total - warm_up, total)]


def schedule(pp: int, m: int, vpp: int, forward: float, backward: float) -> list[Slot]:
    """Return every pass with its start, given seconds of a stage's passes of one micro-batch.

    One forward, one backward, interleaved between model chunks (Narayanan et al. 2021, section 2.2).
    """
    chunks = 1 if m % pp else vpp
    queues = [_stage_order(stage, pp, m, chunks) for stage in range(pp)]
    durations = {True: forward / chunks, False: backward / chunks}
    last = pp * chunks - 1
    ended: dict[tuple[bool, int, int], float] = {}  # by direction, micro-batch, place in the model
    clock = [0.0] * pp
    slots: list[Slot] = []
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                ahead, micro, chunk = queue[0]
                place = chunk * pp + stage
                need = (ahead, micro, place - 1 if ahead else place + 1)
                if not ahead and place == last:
                    need = (True, micro, place)
                is_first = ahead and place == 0
                if need not in ended and not is_first:
                    break
                start = max(clock[stage], ended.get(need, 0.0))
                clock[stage] = ended[ahead, micro, place] = start + durations[ahead]
                slots.append(Slot(stage, ahead, micro, chunk, start, durations[ahead]))
                del queue[0]
    return slots


def chrome_trace(answer: Answer) -> dict[str, Any]:
    """Return the median step as Chrome trace JSON; it lasts as long as the predicted step.

    Raises:
        RequestError: too many passes to draw.
    """
    parts, plan = dict(answer.forecast.parts), answer.job.plan
    m = max(1, round(plan.micro_batches))
    if 2 * m * plan.pp * plan.vpp > _LARGEST_EVENTS:
        raise RequestError(
            f"a trace of {m} micro-batches in {plan.pp} stages",
            f"that is more than {_LARGEST_EVENTS:,} events",
            "use a larger micro_batch or a smaller global batch",
        )
    forward, bubble = parts.pop("forward", 0.0), parts.pop("pipeline bubble", 0.0)
    backward, both = (sum(parts.pop(name, 0.0) for name in names) for names in (_BACKWARD, _BOTH))
    work = forward + backward
    scale = (work + both) / work / m if work > 0 else 0.0
    slots = schedule(plan.pp, m, plan.vpp, forward * scale, backward * scale)
    drawn = max(slot.start + slot.duration for slot in slots)
    stretch = (work + both + bubble) / drawn if drawn > 0 else 1.0
    clock = parts.pop("input", 0.0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": stage, "tid": tid, "name": kind, "args": {"name": name}}
        for stage in range(plan.pp)
        for kind, tid, name in (
            ("process_name", 0, f"stage {stage}" if plan.pp > 1 else f"every device ({plan})"),
            *(("thread_name", tid, stream) for tid, stream in enumerate(_STREAM_NAMES)),
        )
    ]
    events += _everywhere(plan.pp, "input", 0.0, clock)
    events += [
        {
            "ph": "X", "cat": "pass", "pid": slot.stage, "tid": 0,
            "name": "forward" if slot.forward else "backward",
            "ts": (clock + slot.start * stretch) * MICROSECONDS,
            "dur": slot.duration * stretch * MICROSECONDS,
            "args": {"micro_batch": slot.micro_batch, "chunk": slot.chunk},
        }
        for slot in slots
    ]  # fmt: skip
    clock += drawn * stretch
    for name, seconds in parts.items():
        events += _everywhere(plan.pp, name, clock, seconds)
        clock += max(seconds, 0.0)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "what": "predicted median step; only exposed communication is drawn",
            "workload": answer.job.workload.name,
            "cluster": answer.job.cluster.name,
            "plan": str(plan),
            "predictor": answer.forecast.predictor,
        },
        "traceEvents": events,
    }


def _everywhere(stages: int, name: str, start: float, seconds: float) -> list[dict[str, Any]]:
    stream = next((tid for word, tid in _STREAM.items() if word in name), 0)
    return [
        {"ph": "X", "cat": "part", "pid": stage, "tid": stream, "name": name,
         "ts": start * MICROSECONDS, "dur": seconds * MICROSECONDS, "args": {}}
        for stage in range(stages if seconds > 0 else 0)
    ]  # fmt: skip
