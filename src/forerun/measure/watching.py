"""Watching: one launch from outside: results as they come, time limits, hangs, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage

from forerun.measure.causes import Ended, MemoryKills, cause, place
from forerun.measure.intervals import step_times
from forerun.measure.launch import Launch
from forerun.measure.measurement import Measurement
from forerun.measure.progress import STARTING, Seen, seen, steps_done
from forerun.measure.records import merged, progress_path, read_records, record_path
from forerun.measure.task import Task

_LOOK_SECONDS = 0.05
_ROOM_BYTES = 131072  # more than the progress and record of a worker
_GRACE_SECONDS = 2.0  # for the neighbours of a worker that failed to say what they know

# To import what is trained takes its time, and no step can come meanwhile: a hang of a start is
# told so much later than one of a step.
START_SECONDS = 60.0


class Watch:
    """A launch and the clock of the task that it carries out now."""

    def __init__(self, launch: Launch, tasks: Sequence[Task]) -> None:
        self._launch = launch
        self._tasks = tasks
        self._kills = MemoryKills(launch.pids)
        self._since = launch.began

    def results(self) -> Iterator[tuple[Measurement, bool]]:
        """Yield a measurement for each task, and whether the workers go on after it.

        After a failure there are no more: the launch has ended, and the tasks that are left need
        another one.
        """
        try:
            for i, task in enumerate(self._tasks):
                measured = self._wait_for(i, task)
                self._since = time.monotonic()
                goes_on = measured.status == "ok"
                if not goes_on or i + 1 == len(self._tasks):
                    if goes_on:
                        self._launch.wait(_GRACE_SECONDS)
                    self._launch.end()
                yield measured, goes_on
                if not goes_on:
                    return
        finally:
            self._launch.end()
            self._kills.close()

    def _wait_for(self, i: int, task: Task) -> Measurement:
        folder = self._launch.folders[i]
        hang = _Hang(task, folder)
        while True:
            codes = self._launch.codes()
            if all(record_path(folder, rank).exists() for rank in range(task.workers)):
                records = read_records(folder)
                if all(record["status"] == "ok" for record in records):
                    return merged(records, task.global_batch, self._elapsed())
                return self._failed(folder, task)
            if any(code is not None for code in codes):
                # One that has ended may have written its record after the look above.
                if any(
                    c is not None and not record_path(folder, r).exists()
                    for r, c in enumerate(codes)
                ):
                    return self._failed(folder, task)
                if self._unwell(folder):
                    return self._failed(folder, task)
            if self._elapsed() > task.timeout_seconds:
                return self._timed_out(folder, task)
            if hang.seen():
                where = self._stop(folder, task)
                return Measurement(
                    "failed", f"no step for {task.hang_seconds:g} s: it hangs {where}",
                    seconds=self._elapsed(),
                )  # fmt: skip
            time.sleep(_LOOK_SECONDS)

    def _elapsed(self) -> float:
        return time.monotonic() - self._since

    @staticmethod
    def _unwell(folder: Path) -> bool:
        return any(record["status"] != "ok" for record in read_records(folder))

    def _failed(self, folder: Path, task: Task) -> Measurement:
        self._launch.wait(_GRACE_SECONDS)
        codes = self._launch.codes()
        elapsed = self._elapsed()
        self._launch.end()
        status, reason = cause(self._ends(folder, task, codes))
        if disk_usage(folder).free < _ROOM_BYTES:  # then a worker can tell nothing itself
            reason += f"; {self._launch.folder.parent}: No space left on device"
        return Measurement(status, f"{reason} (log: {self._launch.folder})", seconds=elapsed)

    def _ends(self, folder: Path, task: Task, codes: list[int | None]) -> list[Ended]:
        records = {int(record["rank"]): record for record in read_records(folder)}
        pids = self._launch.pids
        return [
            Ended(
                rank, code, records.get(rank), seen(progress_path(folder, rank)),
                _last_line(self._launch.log(rank)),
                code == -9 and self._kills.killed(rank, pids[rank]),
            )
            for rank, code in enumerate(codes)
        ]  # fmt: skip

    def _stop(self, folder: Path, task: Task) -> str:
        """End the launch and return where its workers were: the one that had come least far."""
        self._launch.end()
        return place(_hindmost(self._ends(folder, task, [None] * task.workers)))

    def _timed_out(self, folder: Path, task: Task) -> Measurement:
        elapsed, now = self._elapsed(), time.time()
        where = self._stop(folder, task)
        reason = f"ended after its limit of {task.timeout_seconds:g} s, {where}"
        told = [seen(progress_path(folder, rank)) for rank in range(task.workers)]
        stepping = [one for one in told if one is not None and one.phase != STARTING]
        if not stepping:
            return Measurement("timeout", reason, seconds=elapsed)
        slowest = min(stepping, key=lambda one: one.steps)
        return Measurement(
            "timeout", reason, step_seconds=least_step_seconds(slowest, task, now),
            epoch_seconds=_least_epoch_seconds(slowest, task, now), steps=slowest.steps,
            seconds=elapsed,
        )  # fmt: skip


class _Hang:
    """Whether any step has ended lately."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._task = task
        self._paths = [progress_path(folder, rank) for rank in range(task.workers)]
        self._last: list[tuple[int, int]] = []
        self._moved = time.monotonic()

    def seen(self) -> bool:
        """Return whether nothing has moved for as long as the task allows."""
        if not self._task.hang_seconds:
            return False
        now = [steps_done(path) for path in self._paths]
        if now != self._last:
            self._last, self._moved = now, time.monotonic()
        starts = all(phase == STARTING for phase, _ in now)
        allowed = self._task.hang_seconds + START_SECONDS * starts
        return time.monotonic() - self._moved > allowed


def least_step_seconds(seen: Seen, task: Task, now: float) -> float | None:
    """Return what a step takes at least, from the steps that were done before time ran out.

    The lower end of their interval; the fastest, where there are too few for one; and where none
    was counted, the time that the one under way had already taken.
    """
    counted = seen.seconds[task.steps.warmup :]
    times = step_times(counted)
    if times is None:
        waited = now - max(seen.last, seen.begun)
        return waited if waited > 0 and not seen.steps else None
    return times.low if times.low is not None else min(counted)


def _least_epoch_seconds(seen: Seen, task: Task, now: float) -> float | None:
    """Return what an epoch takes at least, where not one had ended."""
    steps = -(-task.dataset_size // task.global_batch)
    if not task.steps.epochs or seen.steps >= task.steps.warmup + steps:
        return None
    passed = now - seen.begun - sum(seen.seconds[: task.steps.warmup])
    return passed if passed > 0 and seen.steps >= task.steps.warmup else None


def _hindmost(workers: Sequence[Ended]) -> Ended:
    return min(workers, key=lambda one: (one.seen is not None, one.seen.steps if one.seen else 0))


def _last_line(log: Path) -> str:
    """Return the last line of a log that says anything."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line), "")
    return ""
