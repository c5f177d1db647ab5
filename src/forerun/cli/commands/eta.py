"""forerun eta: when a running job will be done, from its log; an alert where it will be late.

The ETA on a screen and as JSON: what is done, what is left, what it costs, and whether in time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import wire
from forerun.cli.inputs import COUNT, DOLLARS, DURATION, FILE, PROBABILITY, WHOLE, check_kind
from forerun.cli.options import json_option, settings_of
from forerun.cli.screen import Screen
from forerun.errors import RequestError, UnknownNameError

if TYPE_CHECKING:
    from forerun.measure.logs import Eta, LogSeries
    from forerun.settings import Settings

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forerun.errors import UnsatisfiedError
from forerun.units import (
    SECONDS_PER_HOUR,
    chance_text,
    format_dollars,
    format_percent,
    format_probability,
    format_seconds,
)

if TYPE_CHECKING:
    from forerun.measure.logs import Eta


_SHORTLY = 1800.0  # seconds between a band's ends, below which its times are printed to the second
_LIKELY = 0.5  # above it a person should hear of a deadline, also below the asked confidence


def show_eta(
    screen: Screen, eta: Eta, per_hour: float | None, deadline_s: float | None, price_source: str
) -> None:
    """Write an answer for a person."""
    unit = eta.unit
    screen.title(eta.name)
    screen.line(
        f"now       {unit[:-1]} {eta.done:,.6g} of {eta.total:,.6g}, {format_percent(eta.share, 1)}"
        f" ({eta.length})"
    )
    now = eta.outlook.speeds.now
    since = f" since {unit[:-1]} {now.begin:,.6g}" if len(eta.outlook.speeds.segments) > 1 else ""
    screen.line(f"speed     {format_seconds(eta.outlook.step_seconds)} a {unit[:-1]}{since}")
    if eta.share >= 1:
        screen.line("left      nothing: it is done")
    else:
        p05, p50, p95 = eta.remaining_seconds
        screen.line(
            f"left      {format_seconds(p50)} (90 %: {format_seconds(p05)} to {format_seconds(p95)})"
        )
        if eta.finish_s is not None:
            fine = eta.finish_s[2] - eta.finish_s[0] < _SHORTLY
            early, middle, late = (_clock(seconds, fine) for seconds in eta.finish_s)
            screen.line(f"done at   {middle} (90 %: {early} to {late})")
    screen.line(f"so far    {format_seconds(eta.elapsed_seconds)}{_away(eta)}")
    for text in _pauses(eta):
        screen.line(f"pauses    {text}")
    if per_hour is not None:
        so_far, rest = _dollars(eta, per_hour)
        screen.line(
            f"cost      {format_dollars(so_far)} so far, {format_dollars(rest[1])} left (90 %:"
            f" {format_dollars(rest[0])} to {format_dollars(rest[2])}), at"
            f" {format_dollars(per_hour)} an hour ({price_source})"
        )
    if deadline_s is not None:
        screen.line(f"deadline  {_deadline_words(eta, deadline_s)}")
    screen.items("notes", eta.notes)
    screen.items("unknown", eta.unknown)


def _deadline_words(eta: Eta, deadline_s: float) -> str:
    """Return whether a deadline, so many seconds from now on, will be met or was, in words."""
    if eta.share >= 1:
        late = eta.last_s - (eta.now_s + deadline_s)
        if not math.isfinite(late):
            return "it is done; when, the log does not say"
        return f"it was done {format_seconds(abs(late))} {'too late' if late > 0 else 'before'}"
    missed = eta.missed(deadline_s)
    if deadline_s <= 0:
        return f"it passed {format_seconds(-deadline_s)} ago: {chance_text('missed', missed)}"
    word = "it will probably be late: " if missed > _LIKELY else ""
    return f"in {format_seconds(deadline_s)}: {word}{chance_text('missed', missed)}"


def alert_of(eta: Eta, deadline_s: float | None, confidence: float) -> UnsatisfiedError | None:
    """Return the alert where the deadline will be missed with this confidence, else None."""
    if deadline_s is None or eta.share >= 1:
        return None
    missed = eta.missed(deadline_s)
    if missed < confidence:
        return None
    _, middle, last = eta.remaining_seconds
    if deadline_s <= 0:
        return UnsatisfiedError(
            f"done by {_clock(eta.now_s + deadline_s, fine=False)}",
            f"that passed {format_seconds(-deadline_s)} ago, and {format_seconds(middle)} are left"
            f"{_ends(eta)}",
            f"give a deadline that lies ahead: it will be kept with 95 % at --deadline"
            f" {math.ceil(last)}s",
        )
    return UnsatisfiedError(
        f"done within {format_seconds(deadline_s)}",
        f"it will be missed with probability {format_probability(missed)}: {format_seconds(middle)}"
        f" are left, {format_seconds(middle - deadline_s)} too many{_ends(eta)}",
        "add devices or end earlier; `forerun recommend --deadline` says which cluster would do",
    )


def _ends(eta: Eta) -> str:
    """Return when the job will be done, as the end of a sentence; "" where no date is known."""
    if eta.finish_s is None:
        return ""
    early, middle, late = eta.finish_s
    fine = late - early < _SHORTLY
    return (
        f"; it ends at {_clock(middle, fine)} (90 %: {_clock(early, fine)} to {_clock(late, fine)})"
    )


def eta_json(eta: Eta, per_hour: float | None, deadline_s: float | None) -> dict[str, Any]:
    """Return an answer as JSON; what is not known is null."""
    speeds = eta.outlook.speeds
    so_far, rest = _dollars(eta, per_hour) if per_hour is not None else (None, None)
    return {
        "schema": wire.SCHEMA,
        "kind": "eta",
        "log": eta.name,
        "unit": eta.unit,
        "done": eta.done,
        "total": eta.total,
        "total_from": eta.length,
        "share": eta.share,
        "status": eta.status,
        "reason": eta.reason,
        "step_seconds": eta.outlook.step_seconds,
        "speeds": [
            {"begin": s.begin, "end": s.end, "step_seconds": s.step_seconds} for s in speeds.segments
        ],
        "remaining_seconds": wire.quantiles(eta.remaining_seconds),
        "finish": None if eta.finish_s is None else dict(
            zip(("p05", "p50", "p95"), map(_iso, eta.finish_s), strict=True)
        ),
        "elapsed_seconds": eta.elapsed_seconds,
        "away_seconds": eta.away_seconds,
        "redone": eta.redone,
        "restarts": sum(gap.restart for gap in eta.intervals.gaps),
        "pauses": [
            {
                "kind": p.kind, "seen": len(p.at), "seconds": float(p.seconds.mean()),
                "every": p.period, "to_come": p.expected(eta.done, eta.total),
            }
            for p in eta.outlook.pauses
        ],
        "dollars_so_far": so_far,
        "dollars_left": None if rest is None else wire.quantiles(rest),
        "deadline_seconds": deadline_s,
        "missed_probability": None if deadline_s is None else eta.missed(deadline_s),
        "notes": list(eta.notes),
        "unknown": list(eta.unknown),
    }  # fmt: skip


def _clock(seconds: float, fine: bool) -> str:
    """Return a time of this machine's zone, to the minute, or to the second."""
    moment = datetime.fromtimestamp(seconds).astimezone()
    return moment.isoformat(" ", "seconds" if fine else "minutes")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _away(eta: Eta) -> str:
    if not eta.intervals.gaps:
        return ""
    return f", and {format_seconds(eta.away_seconds)} away between sessions"


def _pauses(eta: Eta) -> list[str]:
    """Return a line for each kind of pause that takes a hundredth of the job's time or more."""
    lines = []
    for pauses in eta.outlook.pauses:
        if pauses.seconds.sum() < 0.01 * eta.elapsed_seconds:
            continue
        every = f" every {pauses.period:,.6g} {eta.unit}" if pauses.period == pauses.period else ""
        coming = pauses.expected(eta.done, eta.total)
        lines.append(
            f"{len(pauses.at)} of kind {pauses.kind}{every}, {format_seconds(float(pauses.seconds.mean()))}"
            f" each; about {coming:,.0f} to come"
        )
    return lines


def _dollars(eta: Eta, per_hour: float) -> tuple[float, tuple[float, float, float]]:
    """Return what the job cost so far (gaps between sessions left out), and what is left of it."""
    p05, p50, p95 = eta.remaining_seconds
    each = per_hour / SECONDS_PER_HOUR
    return eta.elapsed_seconds * each, (p05 * each, p50 * each, p95 * each)


@click.command()
@click.argument("logs", nargs=-1, required=True, type=FILE, metavar="LOG...")
@click.option("--total-steps", type=COUNT, help="How long the job is, in optimizer steps.")
@click.option("--epochs", type=COUNT, help="How long the job is, in passes over the dataset.")
@click.option("--tokens", type=COUNT, help="How long the job is, in tokens, e.g. 15T.")
@click.option("--samples", type=COUNT, help="How long the job is, in samples.")
@click.option(
    "--steps-per-epoch", type=COUNT, help="Where the log does not say: steps of an epoch."
)
@click.option("--global-batch", type=COUNT, help="Where the log does not say: samples of a step.")
@click.option("--seq-len", type=COUNT, help="Where the log does not say: tokens of a sample.")
@click.option("--deadline", help="A duration from now (6h) or a time (2027-01-31T18:00).")
@click.option(
    "--confidence", "sure", type=PROBABILITY, default="0.9", show_default=True,
    help="Alert (exit 3) where the deadline will be missed with at least this probability.",
)  # fmt: skip
@click.option("--price", type=DOLLARS, help="Dollars an hour, the whole cluster.")
@click.option(
    "--cluster", help="The cluster, for its price in the catalogue, e.g. 2xaws:p5.48xlarge."
)
@click.option("--reader", default="", help="The log's format, where its content misleads.")
@click.option(
    "--pattern", default="", metavar="REGEX",
    help="For plain logs: an expression with named groups (step, step_time_ms, loss ...).",
)  # fmt: skip
@click.option(
    "--run",
    "run_name",
    default="",
    help="Which run, by its name or key, where a folder or store has several.",
)
@click.option("--follow", is_flag=True, help="Answer again whenever the log has grown.")
@click.option(
    "--every",
    type=DURATION,
    default="10s",
    show_default=True,
    help="With --follow: how often to look.",
)
@click.option("--times", type=WHOLE, help="With --follow: stop after so many answers.")
@click.option(
    "--as-of", metavar="TIME", help="Answer as of this time, or `last`: the log's last row."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draws.")
@json_option
def eta(logs: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """When a running job will be done: from its log, with a 90 % band, its cost, and an alert.

    LOG is a plain log, JSON lines, TensorBoard event files or their folder, an MLflow run, or
    several logs of one job that was started again. Work that was redone after a restart is no
    progress, and the time between sessions is counted apart. A change of speed is found and reported,
    and the new speed is used. What recurs (evaluation, checkpoints) is foreseen.

    Exit code 3 where the deadline will be missed with the asked confidence; --follow ends there.
    """
    follow = bool(options["follow"])
    settings = settings_of(options)
    job = _Job(logs, settings, options)
    write: Callable[[Eta], None]
    if as_json:
        write = lambda found: click.echo(  # noqa: E731 (one of two ways to write)
            wire.dumps(eta_json(found, job.per_hour, job.deadline_s(found)), None if follow else 2)
        )
    else:
        screen = Screen(settings)
        write = lambda found: show_eta(  # noqa: E731
            screen, found, job.per_hour, job.deadline_s(found), job.price_source
        )
    found = _followed(job, write, options) if follow else job.look()
    if not follow and found is not None:
        write(found)
    late = None if found is None else alert_of(found, job.deadline_s(found), options["sure"])
    if late is not None:
        raise late


class _Job:
    """A job's logs and what was asked about them."""

    def __init__(self, logs: tuple[Path, ...], settings: Settings, options: dict[str, Any]) -> None:
        from forerun.measure.logs import JobLength

        self.logs, self.options = logs, options
        self.ask = JobLength(
            options["total_steps"], options["epochs"], options["tokens"], options["samples"],
            options["steps_per_epoch"], options["global_batch"], options["seq_len"],
        )  # fmt: skip
        self.deadline = _deadline(options["deadline"])
        if self.deadline is not None and options["follow"] and not self.deadline[1]:
            self.deadline = time.time() + self.deadline[0], True  # it stays where it is
        self.per_hour, self.price_source = _price(settings, options)
        self.as_of = _as_of(options["as_of"])

    def look(self) -> Eta:
        """Return when the job will be done, by its logs as they are now."""
        from forerun.measure.logs import eta_of, joined

        series = joined([s for path in self.logs for s in self._read(path)])
        return eta_of(series, self.ask, self.as_of if self.as_of is not None else time.time(),
                      self.options["seed"])  # fmt: skip

    def _read(self, path: Path) -> tuple[LogSeries, ...]:
        from forerun.measure.logs import read_logs

        if not self.options["reader"] and not self.options["pattern"]:
            check_kind(path, f"the ETA of {path}", "a log", "store", "table")
        found = read_logs(path, reader=self.options["reader"], pattern=self.options["pattern"])
        wanted = self.options["run_name"]
        if wanted:
            ends = tuple(f"{mark}{wanted}" for mark in "#/")  # a store's own key of the run
            chosen = tuple(s for s in found if s.name == wanted or s.paths[0].endswith(ends))
            if not chosen:
                raise UnknownNameError("run", wanted, [series.name for series in found])
            return chosen
        names = list(dict.fromkeys(series.name for series in found))
        if len(names) > 1:
            raise RequestError(
                f"the ETA of {path}", f"{len(names)} runs are in it ({', '.join(names[:5])})",
                "choose one with --run NAME",
            )  # fmt: skip
        return found

    def deadline_s(self, found: Eta) -> float | None:
        """Return the seconds from the answer's own time until the deadline, None where none is."""
        if self.deadline is None:
            return None
        seconds, is_time = self.deadline
        if not is_time:
            return seconds
        if math.isnan(found.now_s):
            raise RequestError(
                "a deadline by the clock", "nobody knows when the log was written",
                "give a duration, e.g. --deadline 6h",
            )  # fmt: skip
        return seconds - found.now_s

    def sizes(self) -> tuple[tuple[float, int], ...]:
        """Return when and how long each file below the logs was last written."""
        files = [f for p in self.logs for f in ((p,) if not p.is_dir() else sorted(p.rglob("*")))]
        stats = []
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                continue
            stats.append((stat.st_mtime, stat.st_size))
        return tuple(stats)


def _followed(job: _Job, write: Callable[[Eta], None], options: dict[str, Any]) -> Eta | None:
    """Answer whenever the logs have grown, until the job is done or will be late; return the last.

    Raises:
        RequestError: the log was there, and is gone.
    """
    found: Eta | None = None
    seen: tuple[tuple[float, int], ...] | None = None
    answers = 0
    while options["times"] is None or answers < options["times"]:
        sizes = job.sizes()
        if sizes != seen:
            seen = sizes
            answers += 1
            gone = [str(path) for path in job.logs if not path.exists()]
            if gone and found is not None:
                raise RequestError(
                    f"following {', '.join(gone)}", "it was there, and is gone",
                    "name the log where the job writes now",
                )  # fmt: skip
            try:
                found = job.look()
            except RequestError as error:
                if found is not None:
                    raise
                waits = f"waiting for {', '.join(gone)}" if gone else error.next_step
                click.echo(f"{error.found}; {waits}", err=True)
                time.sleep(options["every"])
                continue
            write(found)
            if found.share >= 1 or found.status != "ok":
                break
            if alert_of(found, job.deadline_s(found), options["sure"]) is not None:
                break
        if options["times"] is None or answers < options["times"]:
            time.sleep(options["every"])
    return found


def _deadline(text: str | None) -> tuple[float, bool] | None:
    """Return a deadline as (seconds, False) from now, or (seconds since 1970, True)."""
    if text is None:
        return None
    import re

    from forerun.measure.logs.text import iso_seconds
    from forerun.units import parse_duration

    if re.fullmatch(r"\s*\d{1,2}:\d\d\s*", text):
        raise RequestError(
            f"--deadline {text!r}", "it may be a time of day or a duration",
            "write 6h30min, or a date too: 2027-01-31T18:00",
        )  # fmt: skip
    moment = iso_seconds(text) if "-" in text else math.nan
    if not math.isnan(moment):
        return moment, True
    try:
        return parse_duration(text, "--deadline"), False
    except RequestError as error:
        raise RequestError(
            error.asked, "it is neither a duration nor a time",
            "write a duration from now (6h, 1d12h) or a time (2027-01-31T18:00)",
        ) from None  # fmt: skip


def _as_of(text: str | None) -> float | None:
    """Return the time as of which to answer; -inf is the log's last row, None is now."""
    if text is None:
        return None
    if text.strip().lower() == "last":
        return -math.inf
    from forerun.measure.logs.text import iso_seconds

    moment = iso_seconds(text)
    if math.isnan(moment):
        raise RequestError(f"--as-of {text!r}", "it is no time", "write 2027-01-31T18:00, or last")
    return moment


def _price(settings: Settings, options: dict[str, Any]) -> tuple[float | None, str]:
    """Return dollars an hour and who says so; None where nobody was asked."""
    price, cluster = options["price"], options["cluster"]
    if price is not None and cluster is not None:
        raise RequestError("--price and --cluster", "both give a price", "give one of them")
    if cluster is None:
        return price, "as given"
    from forerun.catalog import load_catalog

    found = load_catalog(settings.catalog_files).cluster(cluster, region=settings.text("region"))
    if found.dollars_per_hour is None or math.isnan(found.dollars_per_hour):
        raise RequestError(f"--cluster {cluster}", "no price is known for it", "give --price")
    return found.dollars_per_hour, found.price_source
