"""Elastic training: it observes configurations while it trains, fits, decides, and moves to the best one."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from forerun.advisor.elastic_choice import Outlook, known_curve, outlook, search_points
from forerun.errors import RequestError
from forerun.measure.elastic.channel import Message
from forerun.measure.elastic.driver import ElasticWorkers
from forerun.measure.elastic.job import Configuration, TrainingJob
from forerun.measure.hosts import Host
from forerun.measure.measurement import write_json
from forerun.measure.pace import Band, Pace
from forerun.measure.step_times import step_times
from forerun.predictors.convergence.learning import LEAST, arrival
from forerun.tables import Table
from forerun.units import SECONDS_PER_HOUR, counted, format_dollars, format_seconds
from forerun.wire import dumps

OBSERVED_STEPS = 20  # of a configuration in a search (Scavenger, section 4)
_WARM_STEPS = 3  # of a group, which are slower
_KEPT_STEPS = 200  # the last of a configuration, by which its step time is judged
_TICK_SECONDS = 0.5
_PHI_CHANGE = 1.5  # since the last decision, from which another one is made
_DECIDE_SECONDS, _DECIDE_STEPS = 5.0, 50  # at least, between two decisions
_MOST_SKIPPED = 50  # steps in a row with NaN or infinite gradients
_MEMORY = "memory ran out"
TRAIL, PROGRESS = "trail.jsonl", "progress.json"


@dataclass
class Progress:
    """How far a training has come, over all its sittings.

    Attributes:
        position, effective: samples, and those of the reference batch that would have taught as much.
        metrics: (effective samples, value) of the target's metric. met_position: samples when it was first good enough.
        refused: samples of a worker from which memory runs out, infinite where it never did.
        seconds_of: those of the last steps at each configuration. pauses: seconds of each move.
    """

    steps: int = 0
    position: int = 0
    effective: float = 0.0
    skipped: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    decisions: int = 0
    phi: float = math.nan
    sqr: float = math.nan
    var: float = math.nan
    refused: float = math.inf
    metrics: list[list[float]] = field(default_factory=list)
    met_position: int = 0
    pauses: list[float] = field(default_factory=list)
    seconds_of: dict[Configuration, deque[float]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all. Raises RequestError where it cannot be written."""
        times = [[*one, *seconds] for one, seconds in self.seconds_of.items()]
        write_json(path, {**vars(self), "seconds_of": times})

    @classmethod
    def read(cls, path: Path) -> Progress:
        """Return what a file holds, that of a new training where there is none. Raises RequestError."""
        if not path.exists():
            return cls()
        try:
            data = json.loads(path.read_text())
            times = {(int(k), int(b)): deque(seconds, _KEPT_STEPS) for k, b, *seconds in data.pop("seconds_of")}  # fmt: skip
            return cls(**data, seconds_of=times)
        except (OSError, ValueError, TypeError, KeyError) as error:
            found, todo = f"it cannot be read: {error}", "remove it, or name another folder"
            raise RequestError(f"the progress of a training, {path}", found, todo) from None

    @property
    def observed(self) -> dict[Configuration, float]:
        """The median step time in seconds of each configuration that was observed."""
        return {one: float(np.median(s)) for one, s in self.seconds_of.items() if len(s)}


class ElasticTraining:
    """One sitting of a training: it goes on from what its folder holds.

    Args:
        job: what is trained. folder: keeps the states, `trail.jsonl` (every decision and event, one a
            line) and `progress.json`.
        tell: called with what happens, in words. hosts: where workers are started; this machine where there is none.

    Raises:
        RequestError: another process trains in the folder, or the training function fails.
    """

    def __init__(
        self, job: TrainingJob, folder: str | Path, tell: Callable[[str], None] = lambda words: None,
        hosts: Sequence[Host] = (),
    ) -> None:  # fmt: skip
        self.job, self.folder, self._tell = job, Path(folder), tell
        self._curve, doubts = known_curve(job)
        for words in (
            (f"known runs ({job.known}) say what a batch is worth", *doubts) if self._curve else ()
        ):
            tell(words)
        self.workers = ElasticWorkers(job, folder, hosts)
        self.progress = Progress()
        self._queue: list[Configuration] = []  # to be observed still
        self._wanted = self._current = job.configurations[0]
        self._steps = self._skipped = 0  # in this group; in a row
        self._searched = self._warned = False
        self._pace, self._reported = Pace(), (self._current, 0.0, 0.0)
        self._broken = self._ended = ""  # why the group must be formed anew; why the training ends
        self._promised = math.inf  # most seconds of a step that the last decision counted on
        self._decided = (math.nan, 0.0, 0)  # phi, time and steps at the last decision
        self._ticked = time.monotonic()

    def run(self) -> str:
        """Train until the target is met or a limit is reached; return which, in words."""
        with self.workers:
            self.progress = done = Progress.read(self.folder / PROGRESS)
            if self.job.earlier and not done.seconds_of:
                known = Progress.read(Path(self.job.earlier) / PROGRESS)
                done.seconds_of, done.phi, done.refused = known.seconds_of, known.phi, known.refused
            points = search_points(self.job)
            self._queue = [p for p in points if len(done.seconds_of.get(p, ())) < OBSERVED_STEPS]
            self._ticked = time.monotonic()
            if self._queue:
                self._wanted = self._queue[0]
            else:
                self._decide("what was observed before")
            self._form("it observes" if self._queue else "it begins")
            try:
                while not (ended := self._is_done()):
                    if (event := self.workers.take(_TICK_SECONDS)) is not None:
                        self._heed(event)
                    self._tick()
                    if why := self._broken or self._moves():
                        self._form(why)
            except KeyboardInterrupt:
                self._finish("interrupted")
                raise
            self._finish(ended)
        return ended

    def _finish(self, why: str) -> None:
        self.workers.finish()
        while (event := self.workers.take(0.0)) is not None:
            self._heed(event)
        self._tick()
        self._keep()
        self._record("ended", why=why)

    @property
    def current(self) -> Configuration:
        """The workers and the global batch of the group that trains, or did last."""
        return self._current

    @property
    def met_at(self) -> float:
        """The first value of the metric that was good enough, NaN before one; what is reported later changes nothing."""
        target, values = self.job.target, self.progress.metrics
        return next((v for _, v in values if target is not None and target.is_met(v)), math.nan)

    @property
    def is_target_met(self) -> bool:
        """Whether a value of the metric was good enough."""
        return math.isfinite(self.met_at)

    def table(self) -> Table:
        """Return the configurations that were observed as a runs table, one row each."""
        done, price, until = self.progress, self.job.dollars_per_worker_hour, dict[str, Any]()
        if self.job.target is not None and self.is_target_met and len(done.seconds_of) == 1:
            until = {"target": str(self.job.target), "samples_to_target": done.met_position}
        return Table.from_rows([
            {
                "workload": self.job.entry, "framework": "pytorch", "learning_rate_rule": self.job.rule, "devices": k, "global_batch": b,
                "micro_batch": -(-b // k), "status": "ok", "step_time_s": times.median,
                "step_mean_s": times.mean, "step_std_s": times.std, "measured_steps": times.count,
                "grad_sqr": done.sqr, "grad_var": done.var, "price_usd_per_hour": k * price,
                "source": "forerun train", **until,
            }
            for (k, b), seconds in done.seconds_of.items() if (times := step_times(seconds)) is not None
        ])  # fmt: skip

    def to_json(self, ended: str) -> dict[str, Any]:
        """Return how far it is and what it observed, as JSON data; ended: why, as `run` returns it."""
        done = self.progress
        body = {name: value for name, value in vars(done).items() if name != "seconds_of"}
        return {
            "entry": self.job.entry, "ended": ended, "target_met": self.is_target_met,
            "metric": done.metrics[-1][-1] if done.metrics else math.nan, **body, "configurations": [
                {"workers": k, "global_batch": b, "step_seconds": seconds, "steps": len(done.seconds_of[k, b])}
                for (k, b), seconds in sorted(done.observed.items())
            ],
        }  # fmt: skip

    def _tick(self) -> None:
        now = time.monotonic()
        seconds, self._ticked = now - self._ticked, now
        self.progress.seconds += seconds
        rate = self._current[0] * self.job.dollars_per_worker_hour / SECONDS_PER_HOUR
        self.progress.dollars += seconds * rate

    def _is_done(self) -> str:
        job, done = self.job, self.progress
        if self.is_target_met and job.target is not None:
            return f"{job.target.metric} is {self.met_at:.4g}, {job.target.bound}"
        if done.seconds >= job.within_seconds:
            return f"the time ({format_seconds(job.within_seconds)}) is used"
        if done.dollars >= job.budget_dollars:
            return f"the money ({format_dollars(job.budget_dollars)}) is used"
        if self._skipped >= _MOST_SKIPPED:
            return f"{self._skipped} steps in a row had NaN or infinite gradients"
        return self._ended

    def _heed(self, event: Message) -> None:
        current, why = event.get("generation") == self.workers.generation, event.get("why")
        match event["is"], why:
            case "step", _:
                self._heed_step(event, current)
            case "metric", _:
                self._heed_metric(event)
            case "saved", _:
                self._keep()
            case "unsaved", _:
                self._say("unsaved", f"no state could be written: {why}; the one before stays")
            case "ended", _:
                self._ended = self._ended or "its training function returned"
            case "hang", _:
                self._broken = f"no step came for {event['seconds']:.0f} s"
            case "lost", _:
                self._say("lost", f"worker {event['worker']} {why}; another one starts")
                if event["trained"] and current:
                    self._broken = f"worker {event['worker']} was lost"
            case "stopped", "oom":
                self._heed_oom(event)
            case "stopped", "epochs":
                self._ended = f"{self.job.epochs:g} epochs are done"
            case _ if current:
                notice = f"worker {event['worker']} got notice" if event["noticed"] else ""
                self._broken = notice or self._broken or "its group lost a worker"

    def _heed_step(self, event: Message, current: bool) -> None:
        done, one = self.progress, (event["workers"], event["batch"])
        self._skipped = self._skipped + 1 if event["skipped"] > done.skipped else 0
        if self._skipped:
            self._say("skipped", f"step {event['step']} is skipped: NaN or infinite gradients")
        done.steps = event["step"]
        for name in ("position", "effective", "skipped", "phi", "sqr", "var"):
            setattr(done, name, event[name])
        done.pauses += [event["pause_seconds"]] if "pause_seconds" in event else []
        self._steps += current
        if current and self._steps > _WARM_STEPS:
            done.seconds_of.setdefault(one, deque(maxlen=_KEPT_STEPS)).append(event["seconds"])

    def _heed_metric(self, event: Message) -> None:
        target = self.job.target
        if target is None:
            return
        if target.metric not in event["values"]:
            names = ", ".join(event["values"])
            found, todo = f"run.report gave {names}", "report it, or name one of these in `target`"
            raise RequestError(f"the target's metric {target.metric!r}", found, todo)
        value = event["values"][target.metric]
        if target.is_met(value) and not self.is_target_met:
            self.progress.met_position = event["position"]
        self.progress.metrics.append([event["effective"], value])
        self._tell(f"{target.metric} {value:.4g} after {event['position']:,} samples, "
                   f"{format_seconds(self.progress.seconds)}")  # fmt: skip
        if not target.is_met(value):
            self._warn()

    def _heed_oom(self, event: Message) -> None:
        k, b = event["workers"], event["batch"]
        if b / k == self.progress.refused and self._broken == _MEMORY:
            return  # another worker said so
        self.progress.refused = min(self.progress.refused, b / k)
        self._say("oom", f"{b / k:g} samples of a worker ran out of memory and are not tried again")
        self._queue = [one for one in self._queue if self._fits(one)]
        allowed = [one for one in self.job.configurations if self._fits(one)]
        if not allowed:
            found, todo = "every configuration ran out of memory", "add a smaller global_batch"
            raise RequestError(f"training {self.job.entry}", found, todo)
        seen = [one for one in self.progress.observed if one in allowed and one[0] <= k]
        self._wanted = seen[-1] if seen else min(allowed, key=lambda one: one[1] / one[0])
        self._broken = _MEMORY

    def _fits(self, one: Configuration) -> bool:
        return one[1] / one[0] < self.progress.refused

    def _moves(self) -> str:
        """Return why the group should be formed anew, as `_wanted`; "" where it should go on."""
        if self._wanted != self._current:
            enough = self.workers.available >= self._wanted[0]
            return "enough workers are there again" if enough else ""
        if self._queue:
            if self._steps < OBSERVED_STEPS + _WARM_STEPS:
                return ""
            self._queue = [one for one in self._queue if one != self._current]
            if self._queue:
                self._wanted = self._queue[0]
                return "it observes"
            return self._decide("every point of the search is observed")
        if self._current not in self.progress.seconds_of:
            return ""
        if self._steps == OBSERVED_STEPS + _WARM_STEPS:
            seconds, promised = self.progress.observed[self._current], self._promised
            self._promised = math.inf
            if seconds > promised:
                return self._decide(f"a step takes {format_seconds(seconds)}, and at most "
                                    f"{format_seconds(promised)} was forecast")  # fmt: skip
        phi, at, steps = self._decided
        if time.monotonic() - at < _DECIDE_SECONDS or self.progress.steps - steps < _DECIDE_STEPS:
            return ""
        now = self.progress.phi
        alike = now == phi or (phi > 0 and 1 / _PHI_CHANGE < now / phi < _PHI_CHANGE)
        if math.isfinite(now) and not alike:
            return self._decide(f"the noise scale went from {phi:.3g} to {now:.3g}")
        return ""

    def _decide(self, why: str) -> str:
        """Choose a configuration, write down why, and return "" where it is the current one."""
        found = self._outlook()
        pause = float(np.median(self.progress.pauses)) if self.progress.pauses else 0.0
        stay = self._current if self._searched else None
        best = found.configurations[found.best(self.job.minimize, *self._limits, stay, pause)]
        here = found.at(self._current)
        self._decided = (self.progress.phi, time.monotonic(), self.progress.steps)
        self._searched = True
        self.progress.decisions += 1
        self._wanted, chosen = best, found.at(best)
        if chosen and best not in self.progress.observed:
            self._promised = chosen["step_seconds_p95"]
        self._record(
            "decision", why=why, phi=self.progress.phi, law=self.job.law, minimize=self.job.minimize,
            effective_samples_left=found.samples, chosen=chosen, current=here,
            observed=[
                {"workers": k, "global_batch": b, "step_seconds": seconds}
                for (k, b), seconds in self.progress.observed.items()
            ],
        )  # fmt: skip
        seconds = format_seconds(chosen["step_seconds"]) if chosen else "unknown"
        self._tell(f"decision: {_words(best)}, {seconds} a step ({why}; noise scale "
                   f"{self.progress.phi:.3g} samples)")  # fmt: skip
        return why if best != self._current else ""

    def _outlook(self) -> Outlook:
        allowed = [one for one in self.job.configurations if self._fits(one)]
        observed = {one: s for one, s in self.progress.observed.items() if self._fits(one)}
        if not observed:
            found, todo = "no step time is known", "search partial, or name another `earlier`"
            raise RequestError(f"deciding for {self.job.entry}", found, todo)
        phi, left = self.progress.phi, self._left()[1]
        return outlook(self.job, observed, phi, left, allowed, self._curve, self._current[1])

    @property
    def _limits(self) -> tuple[float, float]:
        """Seconds and dollars that are left."""
        return (self.job.within_seconds - self.progress.seconds,
                self.job.budget_dollars - self.progress.dollars)  # fmt: skip

    def _left(self) -> tuple[float, float, float]:
        """Return effective samples (or, without a target, samples) that are left, as quantiles."""
        done, target = self.progress, self.job.target
        if target is None:
            left = self.job.epochs * self.workers.dataset_size - done.position
            return (left,) * 3 if left > 0 and math.isfinite(left) else (math.nan,) * 3
        points = {samples: value for samples, value in done.metrics if math.isfinite(value)}
        if len(points) < LEAST:
            return 0.0, math.nan, math.inf
        curve = np.array(sorted(points.items()))
        until = arrival(curve[:, 0], curve[:, 1], target.value, target.at_least).samples
        low, middle, high = (max(samples - done.effective, 0.0) for samples in until)
        return low, middle if math.isfinite(middle) else math.nan, high

    def seconds_left(self) -> Band | None:
        """Return the seconds until it ends, as quantiles: what is left to learn, at the present pace; None before it is known."""
        rate = self._current[0] * self.job.dollars_per_worker_hour / SECONDS_PER_HOUR
        most = max(min(self._limits[0], self._limits[1] / rate if rate else math.inf), 0.0)
        if self.job.target is None and math.isinf(self.job.epochs):
            return (most,) * 3  # its time or its money ends it
        done, left = self.progress, np.array(self._left())
        if self._current not in done.observed or (math.isnan(left[1]) and not left[0] > 0):
            return None
        if not self._fits(self._current):  # memory ran out there: it is about to move
            return None
        found = self._outlook()
        if self._current not in found.configurations:  # a group that lacks a worker
            return None
        at = found.configurations.index(self._current)
        # What steps alone would take; between two reports there are evaluations and more besides.
        alone = np.where(np.isnan(left), np.inf, left) * float(found.sample_seconds[at])
        every = self.job.epochs * (
            self.workers.dataset_size or math.inf
        )  # not known before workers start
        ahead = max(every - done.position, 1.0)
        alone = np.minimum(alone, ahead / self._current[1] * float(found.step_seconds[at, 1]))
        since, self._reported = self._reported, (self._current, done.seconds, done.effective)
        piece = (done.effective - since[2]) * float(found.sample_seconds[at])
        if since[0] == self._current and piece > 0:
            self._pace.count(done.seconds - since[1], piece)
        if math.isinf(alone[1]):  # the target is out of sight: a limit ends it, or nobody knows
            return None if math.isinf(most) else (0.0, most, most)
        if not piece > 0 or (band := self._pace.left(alone[1], min(piece / alone[1], 1.0))) is None:
            return None
        with np.errstate(divide="ignore"):  # what is left to learn, and how fast it comes
            off = np.hypot(np.log(alone / alone[1]), np.log(np.array(band) / band[1]))
        low, middle, high = np.clip(
            band[1] * np.exp(off * (-1, 0, 1)), 0.0, max(most, 0.0)
        ).tolist()
        return low, middle, high

    def _warn(self) -> None:
        """Say once, early, where even the hopeful end of the projection passes a limit."""
        if self._warned or not self._searched or math.isinf(min(self._limits)):
            return
        found, low = self._outlook(), self._left()[0]
        for each, left, write in (
            (found.sample_seconds, self._limits[0], format_seconds),
            (found.sample_dollars, self._limits[1], format_dollars),
        ):
            if (need := low * float(np.nanmin(each))) > left:
                self._warned = True
                words = f"{write(need)} more is needed" if need < math.inf else "it comes no nearer"
                words = f"at best {words}, and {write(left)} is left"
                self._say("projection", f"the target will hardly be met: {words}")
                return

    def _form(self, why: str) -> None:
        """Move to what is wanted, with fewer workers where no more are alive, and write down why."""
        self.workers.pause()
        while (event := self.workers.take(0.0)) is not None:
            self._heed(event)  # memory may have run out
        if self._is_done():
            return
        self._broken, before = "", self._current
        self._current = (self.workers.form(*self._wanted), self._wanted[1])
        self._steps = 0
        self._tick()
        k, b = self._current
        more = {"workers": k, "global_batch": b, "before": before}
        self._record("group", why=why, generation=self.workers.generation, **more)
        self._tell(f"trains with {_words(self._current)}: {why}")

    def _say(self, kind: str, words: str) -> None:
        self._tell(words)
        self._record(kind, why=words)

    def _keep(self) -> None:
        try:
            self.progress.save(self.folder / PROGRESS)
        except RequestError as error:  # a full disk stops no training
            self._tell(f"{error.asked}: {error.found}")

    def _record(self, kind: str, **more: Any) -> None:
        done = self.progress
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "is": kind, "steps": done.steps,
            "samples": done.position, "effective_samples": done.effective, "seconds": done.seconds,
            "dollars": done.dollars, **more,
        }  # fmt: skip
        try:
            with (self.folder / TRAIL).open("a", encoding="utf-8") as stream:
                stream.write(dumps(line, None) + "\n")
        except OSError as error:
            self._tell(f"{self.folder / TRAIL}: {error.strerror}")


def _words(one: Configuration) -> str:
    return f"{counted(one[0], 'worker')}, batch {one[1]}"
