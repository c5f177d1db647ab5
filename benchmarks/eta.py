"""ETA: error and coverage of a running job's ETA, on made and on real logs, against what is usual.

`python benchmarks/eta.py [--seeds 40] [--from-seed 1000] [--real-only] [--out FILE.md]`: each job is cut
at 5, 10, 25, 50 and 75 % of its wall time, and what is left is foreseen from what the log says up to
there. The constants of measure/logs were chosen on made jobs of seeds below 1000 and on the real jobs
of DEVELOPMENT; the figures for the record are of other seeds and of the other real jobs.

Rivals: `naive`, the time since the job's first row over the steps done; `tqdm`, an exponential mean
of the last rows' speed (smoothing 0.3), begun anew where the job was. They give no band.
Real logs, in benchmarks/logs:
* `jobs`, made by benchmarks/eta_jobs.py: kinds of training on two cores that unknown others used as
  well, with a quota that was narrowed on the way; by the wall clock, and by the process's own CPU time,
  which is what the same job would see on a core of its own.
* `own` and `shared`, made by benchmarks/eta_logs.py: on a host of the lab that has its share of a core
  to itself, and on a core that unknown others used as well. Six of the eight jobs are killed or slowed
  on purpose, which nobody can foresee: the shares are counted anew from the last such surprise, too.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.eta_logs import JOBS
from forerun.errors import RequestError
from forerun.measure.logs import JobLength, LogSeries, eta_of, read_log
from forerun.measure.logs.series import CHECKPOINT, EVALUATION, RESTART

SHARES = (0.05, 0.1, 0.25, 0.5, 0.75)
RIVALS = ("forerun", "naive", "tqdm")
LOGS = Path(__file__).parent / "logs"
FAMILIES = ("steady", "noisy", "evaluated", "slowed", "slowed for a while", "drifting", "stragglers",
            "resumed", "all of it")  # fmt: skip
# Each second job of eta_logs.JOBS and eta_jobs.KINDS, in their order there: settled before a look at any.
DEVELOPMENT = frozenset((
    "evaluated", "resumed_twice", "slowed_for_a_while", "wide",
    "mlp", "cnn", "lstm", "ragged", "recommender", "curriculum", "rollouts", "audio",
))  # fmt: skip
_CPU = re.compile(r" step \d+/\d+ cpu=([\d.]+)")


@dataclass(frozen=True)
class Replay:
    """A whole log: rows of (count, time, event), and the length of the job.

    `begin_s` is the time from which shares of it are counted: its first row, or its last surprise.
    """

    name: str
    done: np.ndarray
    time_s: np.ndarray
    event: np.ndarray
    total: float
    begin_s: float = 0.0
    resolution_s: float = 0.0

    def cut_s(self, share: float) -> float:
        """Return the time of a share."""
        begin = max(self.begin_s, float(self.time_s[0]))
        return begin + share * (float(self.time_s[-1]) - begin)

    def until(self, share: float) -> LogSeries:
        """Return the log as it was when a share of the job's wall time had gone by."""
        kept = self.time_s <= self.cut_s(share)
        columns = {"step": self.done[kept], "time_s": self.time_s[kept], "event": self.event[kept]}
        return LogSeries(self.name, "replay", (), columns, absolute=True,
                         resolution_s=self.resolution_s)  # fmt: skip


def made(family: str, seed: int) -> Replay:
    """Return a made log of a family: a job of a few hundred to thousand rows."""
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    rows = int(rng.integers(150, 1500))
    every = int(rng.choice([1, 5, 10, 50]))
    total = rows * every
    base = float(np.exp(rng.uniform(np.log(0.02), np.log(5)))) * every
    everything = family == "all of it"
    noise = float(rng.uniform(0.1, 0.35) if family == "noisy" else rng.uniform(0.005, 0.08))
    memory = float(rng.choice([0.0, 0.5, 0.9]))
    shocks = rng.standard_normal(rows)
    logs = np.zeros(rows)
    for i in range(1, rows):
        logs[i] = memory * logs[i - 1] + np.sqrt(1 - memory**2) * shocks[i]
    seconds = base * np.exp(noise * logs)
    seconds[: int(rng.integers(1, 4))] *= rng.uniform(1.5, 6)  # warm-up
    seconds *= _levels(family, rows, rng)
    if family == "stragglers" or everything:
        hit = rng.random(rows) < rng.uniform(0.01, 0.05)
        seconds[hit] += base * rng.pareto(2.0, int(hit.sum())) * 2
    event = np.zeros(rows, dtype=int)
    if family in ("evaluated", "resumed", "slowed") or everything:
        for bit, per_job in ((EVALUATION, rng.integers(3, 30)), (CHECKPOINT, rng.integers(5, 60))):
            period = max(2, rows // int(per_job))
            size = base * rng.uniform(0.5, 3.0) * period * 0.1
            at = np.arange(period - 1, rows, period)
            seconds[at] += size * np.exp(0.1 * rng.standard_normal(len(at)))
            if rng.random() < 0.5:  # some logs say it
                event[at] |= bit
    done = np.arange(1, rows + 1) * float(every)
    if family == "resumed" or everything:
        done, seconds, event = _interrupted(done, seconds, event, base, rng)
    return Replay(f"{family} {seed}", done, 1.7e9 + np.cumsum(seconds), event, float(total))


def _levels(family: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return how the speed's level goes over the job (rows,)."""
    level = np.ones(rows)
    if family in ("slowed", "slowed for a while") or (family == "all of it" and rng.random() < 0.5):
        at, size = int(rng.uniform(0.05, 0.9) * rows), float(np.exp(rng.normal(0.15, 0.25)))
        end = int(rng.uniform(at, rows)) if family == "slowed for a while" else rows
        level[at:end] *= size
    if family == "drifting":
        level *= np.linspace(1.0, float(np.exp(rng.normal(0.0, 0.2))), rows)
    return level


def _interrupted(
    done: np.ndarray, seconds: np.ndarray, event: np.ndarray, base: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows with one to four restarts: back to a checkpoint, after a gap."""
    rows = len(done)
    for at in np.sort(rng.integers(rows // 20, rows, int(rng.integers(1, 5))))[::-1]:
        back = int(min(at - 1, rng.integers(0, max(2, rows // 25))))
        again = slice(at - back, at)
        gap = base * rng.uniform(2, 0.05 * rows + 3)
        more = seconds[again].copy()
        first = np.r_[more, seconds[at:]]
        if len(first):
            first[0] += gap
        told = np.r_[event[again], event[at:]]
        if rng.random() < 0.5 and len(told):
            told[0] |= RESTART
        done = np.r_[done[:at], done[again], done[at:]]
        seconds, event = np.r_[seconds[:at], first], np.r_[event[:at], told]
    return done, seconds, event


def real(folder: str, development: bool = False) -> Iterator[Replay]:
    """Yield the real logs of a folder: those for the report, or those for choosing constants."""
    for path in sorted((LOGS / folder).glob("*.log")):
        if (path.stem in DEVELOPMENT) is not development:
            continue
        series = read_log(path)
        yield Replay(
            path.stem, series.numbers("step"), series.numbers("time_s"),
            np.nan_to_num(series.numbers("event")).astype(int), series.fact("total_steps"),
        )  # fmt: skip


def by_own_time(replays: Iterable[Replay], folder: str) -> Iterator[Replay]:
    """Yield the same jobs by their process's CPU time, where their logs tell it."""
    for replay in replays:
        times = _CPU.findall((LOGS / folder / f"{replay.name}.log").read_text())
        if len(times) == len(replay.done):
            clock = 1.7e9 + np.array(times, dtype=float)
            yield replace(replay, time_s=clock, resolution_s=0.01)


def after_surprise(replay: Replay) -> Replay:
    """Return a real log whose shares count from the last kill or change of its share of a core."""
    job = next(job for job in JOBS if job.name == replay.name)
    back = np.flatnonzero((replay.event & RESTART) > 0)
    at = [replay.time_s[back[-1]]] if len(back) else []
    changes = [share for share in (job.slow_from, job.slow_to) if share < 1]
    at += [replay.time_s[np.argmax(replay.done >= share * replay.total)] for share in changes]
    return replace(replay, begin_s=float(max(at, default=0.0)))


def foreseen(replay: Replay, share: float) -> dict[str, tuple[float, ...]] | None:
    """Return what each rival says is left at a share, in seconds; None where too little is seen."""
    seen = replay.until(share)
    done, times = seen.numbers("step"), seen.numbers("time_s")
    if len(seen) < 3:
        return None
    try:
        eta = eta_of(seen, JobLength(steps=replay.total))
    except RequestError:
        return None
    left = replay.total - done[-1]
    return {
        "forerun": eta.remaining_seconds,
        "naive": ((times[-1] - times[0]) / max(done[-1] - done[0], 1e-9) * left,),
        "tqdm": (_tqdm(done, times) * left,),
    }


def _tqdm(done: np.ndarray, times: np.ndarray, smoothing: float = 0.3) -> float:
    """Return tqdm's seconds of a step: means of both differences, newer rows counting more."""
    begin = int(np.flatnonzero(np.diff(done) < 0)[-1] + 1) if (np.diff(done) < 0).any() else 0
    ahead, took = np.diff(done[begin:]), np.diff(times[begin:])
    if not len(ahead):
        return float((times[-1] - times[0]) / max(done[-1] - done[0], 1e-9))
    mean_ahead = mean_took = weight = 0.0
    for a, t in zip(ahead, took, strict=True):
        mean_ahead = smoothing * a + (1 - smoothing) * mean_ahead
        mean_took = smoothing * t + (1 - smoothing) * mean_took
        weight = smoothing + (1 - smoothing) * weight
    return float(mean_took / max(mean_ahead, 1e-9))


@dataclass
class Score:
    """Errors of each rival, and whether the truth lay within forerun's band."""

    errors: dict[str, list[float]]
    covered: list[bool]
    widths: list[float]


def scored(replays: list[Replay], shares: tuple[float, ...] = SHARES) -> dict[float, Score]:
    """Return the scores at each share of the jobs."""
    scores = {share: Score({name: [] for name in RIVALS}, [], []) for share in shares}
    for replay in replays:
        for share, score in scores.items():
            said = foreseen(replay, share)
            if said is None:
                continue
            seen = replay.time_s[replay.time_s <= replay.cut_s(share)]
            truth = replay.time_s[-1] - seen[-1]
            for name, row in said.items():
                score.errors[name].append(abs(row[len(row) // 2] - truth) / truth)
            low, middle, high = said["forerun"]
            score.covered.append(low <= truth <= high)
            score.widths.append((high - low) / middle)
    return scores


def table(groups: dict[str, list[Replay]]) -> list[str]:
    """Return the results as lines of a Markdown table."""
    lines = [
        "| jobs | at | n | forerun | naive | tqdm | forerun, mean | naive, mean | in the 90 % band"
        " | band's width |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, replays in groups.items():
        for share, score in scored(replays).items():
            if not score.covered:
                continue
            errors = [f"{100 * np.median(score.errors[r]):.1f} %" for r in RIVALS]
            errors += [f"{100 * np.mean(score.errors[r]):.1f} %" for r in RIVALS[:2]]
            lines.append(
                f"| {name} | {share:.0%} | {len(score.covered)} | {' | '.join(errors)} |"
                f" {100 * np.mean(score.covered):.0f} % | {100 * np.median(score.widths):.0f} % |"
            )
    return lines


def real_groups(development: bool) -> dict[str, list[Replay]]:
    """Return the groups of real jobs: of the report, or of development."""
    jobs = list(real("jobs", development))
    own, shared = list(real("own", development)), list(real("shared", development))
    owned = list(by_own_time(jobs, "jobs"))
    later, later_shared = [after_surprise(r) for r in own], [after_surprise(r) for r in shared]
    return {
        "kinds of training, wall clock": jobs,
        "the same, own CPU time": owned,
        "own share of a core": own,
        "the same, from the last surprise on": later,
        "shared core": shared,
        "the same, from the last surprise on ": later_shared,
        "all real, from the last surprise on": [*jobs, *owned, *later, *later_shared],
    }


def main() -> None:
    """Print the tables; write them where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--from-seed", type=int, default=1000)
    parser.add_argument("--real-only", action="store_true")
    parser.add_argument("--development", action="store_true", help="the other real jobs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begun = time.perf_counter()
    seeds = range(options.from_seed, options.from_seed + options.seeds)
    groups = real_groups(options.development)
    if not options.real_only:
        families = {family: [made(family, seed) for seed in seeds] for family in FAMILIES}
        groups |= families
        groups["all made"] = [replay for replays in families.values() for replay in replays]
    lines = table(groups)
    words = " ".join(("python benchmarks/eta.py", *sys.argv[1:]))
    text = "\n".join((
        f"Median (and mean) error of the time left, {time.strftime('%Y-%m-%d')}, `{words}`"
        f" ({time.perf_counter() - begun:.0f} s)", "", *lines, "",
    ))  # fmt: skip
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
