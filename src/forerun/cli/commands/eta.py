"""forerun eta: when a running job will be done, from its log; an alert where it will be late."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun import units, wire
from forerun.cli import inputs
from forerun.cli import options as shared
from forerun.cli.inputs import COUNT, DOLLARS, DURATION, FILE, PROBABILITY, WHOLE
from forerun.cli.options import json_option, log_options, settings_of
from forerun.cli.printing import echo
from forerun.cli.showing import Outputs, Screen, ranged, waiting
from forerun.errors import RequestError, UnknownNameError, UnsatisfiedError
from forerun.settings import Settings
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.measure.logs import Eta, LogSeries


@click.command(cls=inputs.SeveralFiles)
@click.argument("logs", nargs=-1, required=True, type=FILE, metavar="LOG...")
@click.option("--total-steps", type=COUNT, help="How long the job is, in optimizer steps.")
@click.option("--epochs", type=COUNT, help="How long the job is, in passes over the dataset.")
@click.option("--tokens", type=COUNT, help="How long the job is, in tokens, e.g. 15T.")
@click.option("--samples", type=COUNT, help="How long the job is, in samples.")
@click.option("--steps-per-epoch", type=COUNT, help="If the log does not say: steps of an epoch.")
@click.option("--global-batch", type=COUNT, help="If the log does not say: samples of a step.")
@click.option("--seq-len", type=COUNT, help="If the log does not say: tokens of a sample.")
@click.option("--deadline", help="A duration from now (6h) or a time (2027-01-31T18:00).")
@click.option(
    "--confidence", "sure", type=PROBABILITY, default="0.9", show_default=True,
    help="Alert (exit 3) where the deadline will be missed with at least this probability.",
)  # fmt: skip
@click.option("--price", type=DOLLARS, help="Dollars an hour, the whole cluster.")
@click.option("--cluster", help="For its price in the catalogue, e.g. 2xaws:p5.48xlarge.")
@log_options
@click.option("--run", "run_name", default="", help="Which of several runs, by name or key.")
@click.option("--follow", is_flag=True, help="Answer again whenever the log has grown.")
@click.option("--every", type=DURATION, default="10s", show_default=True, help="How often to look.")
@click.option("--times", type=WHOLE, help="With --follow: stop after so many answers.")
@click.option("--as-of", metavar="TIME", help="As of this time, or `last`: the log's last row.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the draws."
)
@shared.seeing_options
@json_option
def eta(logs: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """When a running job will be done: from its log, with a 90 % band, its cost, and an alert.

    LOG is a plain log, JSON lines, TensorBoard event files or their folder, an MLflow run, or
    several logs of one job that was started again. Redone work is no progress; a change of speed is
    found and reported; what recurs (evaluation, checkpoints) is forecast.

    Exit code 3 where the deadline will be missed with the asked confidence; --follow ends there.
    """
    settings = settings_of(options)
    watch = _Watch(logs, settings, options, as_json)
    found = watch.follow() if options["follow"] else watch.look()
    if found is None:
        return
    if not options["follow"]:
        watch.write(found)
    if (late := watch.alert(found)) is not None:
        raise late


class _Watch:
    def __init__(
        self, logs: tuple[Path, ...], settings: Settings, options: dict[str, Any], as_json: bool
    ) -> None:
        from forerun.measure.logs import JobLength
        from forerun.measure.logs.text import iso_seconds

        self.logs, self.options, self.as_json = logs, options, as_json
        self.seen, self.screen = Outputs(options, as_json), Screen(settings)
        self.length = JobLength(
            options["total_steps"], options["epochs"], options["tokens"], options["samples"],
            options["steps_per_epoch"], options["global_batch"], options["seq_len"],
        )  # fmt: skip
        self.deadline, self.by_clock = _deadline(options["deadline"])
        if self.deadline is not None and options["follow"] and not self.by_clock:
            self.deadline, self.by_clock = time.time() + self.deadline, True  # it stays where it is
        self.per_hour, self.price_source = options["price"], "as given"
        place, both = options["cluster"], {"--price": self.per_hour is not None}
        inputs.at_most_one("both give a price", {**both, "--cluster": place})
        if place is not None:
            from forerun.catalog import load_catalog

            catalog = load_catalog(settings.catalog_files)
            found = catalog.cluster(place, region=settings.text("region"))
            self.per_hour, self.price_source = found.dollars_per_hour, found.price_source
            if self.per_hour is None or math.isnan(self.per_hour):
                raise RequestError(f"--cluster {place}", "no price is known for it", "give --price")
        self.as_of = text = options["as_of"]
        if text is not None:
            self.as_of = -math.inf if text.strip().lower() == "last" else iso_seconds(text)
            if math.isnan(self.as_of):
                todo = "write 2027-01-31T18:00, or last"
                raise RequestError(f"--as-of {text!r}", "it is no time", todo)

    def look(self) -> Eta:
        from forerun.measure.logs import eta_of, joined

        with waiting(f"reads {counted(len(self.logs), 'log')}"):
            series = joined([s for path in self.logs for s in self._read(path)])
            now = time.time() if self.as_of is None else self.as_of
            found = eta_of(series, self.length, now, self.options["seed"])
        if math.isfinite(now) and now < found.last_s and self.as_of is not None:
            asked, until = f"--as-of {self.options['as_of']}", _clock(found.last_s)
            raise RequestError(
                asked, f"the log goes on until {until}", "write a later time, or last"
            )
        return found

    def _read(self, path: Path) -> tuple[LogSeries, ...]:
        from forerun.measure.logs import read_logs

        reader, pattern, wanted = (self.options[n] for n in ("reader", "pattern", "run_name"))
        if not reader and not pattern:
            inputs.check_kind(path, f"the ETA of {path}", "a log", "store", "table")
        found = read_logs(path, reader=reader, pattern=pattern)
        names = list(dict.fromkeys(series.name for series in found))
        if wanted:
            ends = (f"#{wanted}", f"/{wanted}")  # a store's own key of the run
            chosen = tuple(s for s in found if s.name == wanted or s.paths[0].endswith(ends))
            if not chosen:
                raise UnknownNameError("run", wanted, names)
            return chosen
        if len(names) > 1:
            raise RequestError(
                f"the ETA of {path}", f"{len(names)} runs are in it ({', '.join(names[:5])})",
                "choose one with --run NAME",
            )  # fmt: skip
        return found

    def follow(self) -> Eta | None:
        found: Eta | None = None
        sizes: list[tuple[float, int]] | None = None
        answers, most = 0, self.options["times"] or math.inf
        while True:
            before, sizes = sizes, _sizes(self.logs)
            if sizes != before:
                answers += 1
                gone = ", ".join(str(path) for path in self.logs if not path.exists())
                if gone and found is not None:
                    raise RequestError(
                        f"following {gone}", "it was there, and is gone",
                        "name the log where the job writes now",
                    )  # fmt: skip
                try:
                    found = self.look()
                except RequestError as error:
                    if found is not None:
                        raise
                    waits = f"waiting for {gone}" if gone else error.next_step
                    echo(f"{error.found}; {waits}", err=True)
                else:
                    self.write(found)
                    if found.share >= 1 or found.status != "ok" or self.alert(found) is not None:
                        return found
            if answers >= most:
                return found
            time.sleep(self.options["every"])

    def left(self, eta: Eta) -> float | None:
        if self.deadline is None or not self.by_clock:
            return self.deadline
        if math.isnan(eta.now_s):
            raise RequestError(
                "a deadline by the clock", "nobody knows when the log was written",
                "give a duration, e.g. --deadline 6h",
            )  # fmt: skip
        return self.deadline - eta.now_s

    def alert(self, eta: Eta) -> UnsatisfiedError | None:
        left = self.left(eta)
        if left is None or eta.share >= 1 or (missed := eta.missed(left)) < self.options["sure"]:
            return None
        _, middle, last = eta.remaining_seconds
        needed = f"{units.format_seconds(middle)} are left"
        ends = f"; it ends at {ranged(eta.finish_s, _clock)}" if eta.finish_s else ""
        if left <= 0:
            return UnsatisfiedError(
                f"done by {_clock(eta.now_s + left)}",
                f"that passed {units.format_seconds(-left)} ago, and {needed}{ends}",
                f"give a later deadline; it will be kept with 95 % at --deadline {math.ceil(last)}s",
            )
        return UnsatisfiedError(
            f"done within {units.format_seconds(left)}",
            f"it will be missed with probability {units.format_probability(missed)}: {needed},"
            f" {units.format_seconds(middle - left)} too many{ends}",
            "add devices or end earlier; `forerun recommend --deadline` shows which cluster would do",
        )

    def write(self, eta: Eta) -> None:
        each = math.nan if self.per_hour is None else self.per_hour / units.SECONDS_PER_HOUR
        so_far, rest = eta.elapsed_seconds * each, [s * each for s in eta.remaining_seconds]
        left = self.left(eta)

        def write_json() -> None:
            body = _json(eta, so_far, None if self.per_hour is None else rest, left)
            shared.write_json("eta", body, None if self.options["follow"] else 2)

        show = partial(self.show, eta=eta, so_far=so_far, rest=rest)
        self.seen.write(self.screen, show, write_json, lambda: [eta.chart(left)])

    def show(self, screen: Screen, eta: Eta, so_far: float, rest: list[float]) -> None:
        one, now = eta.unit[:-1], eta.outlook.segments[-1]
        since = f" since {one} {now.begin:,.6g}" if len(eta.outlook.segments) > 1 else ""
        away = f", and {units.format_seconds(eta.away_seconds)} away between sessions"
        cost = ""
        if self.per_hour is not None:
            cost = (
                f"{units.format_dollars(so_far)} so far, {ranged(rest, units.format_dollars)} left, at"
                f" {units.format_dollars(self.per_hour)} an hour ({self.price_source})"
            )
        pauses = []
        for one_kind in eta.outlook.pauses:
            every = (
                "" if math.isnan(one_kind.period) else f" every {one_kind.period:,.6g} {eta.unit}"
            )
            each = units.format_seconds(float(one_kind.seconds.mean()))
            coming = f"about {one_kind.expected(eta.done, eta.total):,.0f} to come"
            seen = f"{len(one_kind.at)} of kind {one_kind.kind}{every}"
            pauses.append(("pauses", f"{seen}, {each} each; {coming}"))
        open_ = eta.share < 1
        screen.title(eta.name)
        screen.labelled([
            ("now", f"{one} {eta.done:,.6g} of {eta.total:,.6g}, {units.format_percent(eta.share, 1)}"
                    f" ({eta.length})"),
            ("speed", f"{units.format_seconds(eta.outlook.step_seconds)} a {one}{since}"),
            ("left", ranged(eta.remaining_seconds, units.format_seconds) if open_
                     else "nothing: it is done"),
            ("done at", ranged(eta.finish_s, _clock) if open_ and eta.finish_s else ""),
            ("so far", f"{units.format_seconds(eta.elapsed_seconds)}{away if eta.intervals.gaps else ''}"),
            *pauses,
            ("cost", cost),
            ("deadline", _deadline_text(eta, self.left(eta))),
        ], 10)  # fmt: skip
        screen.items("notes", eta.notes)
        screen.items("unknown", eta.unknown)


def _sizes(logs: Sequence[Path]) -> list[tuple[float, int]]:
    stats = []
    for file in (f for p in logs for f in (sorted(p.rglob("*")) if p.is_dir() else [p])):
        with suppress(OSError):
            stat = file.stat()
            stats.append((stat.st_mtime, stat.st_size))
    return stats


def _json(eta: Eta, so_far: float, rest: list[float] | None, left: float | None) -> dict[str, Any]:
    ends = [_iso(s, UTC, timespec="milliseconds") for s in eta.finish_s or ()]
    names = "unit done total share status reason elapsed_seconds away_seconds redone"
    return {
        "log": eta.name, "total_from": eta.length, **wire.fields_of(eta, names),
        "step_seconds": eta.outlook.step_seconds,
        "speeds": [wire.fields_of(s, "begin end step_seconds") for s in eta.outlook.segments],
        "remaining_seconds": wire.quantiles(eta.remaining_seconds),
        "finish": dict(zip(("p05", "p50", "p95"), ends, strict=True)) if ends else None,
        "restarts": sum(gap.restart for gap in eta.intervals.gaps),
        "pauses": [
            {"kind": p.kind, "seen": len(p.at), "seconds": float(p.seconds.mean()),
             "every": p.period, "to_come": p.expected(eta.done, eta.total)}
            for p in eta.outlook.pauses
        ],
        "dollars_so_far": so_far, "dollars_left": None if rest is None else wire.quantiles(rest),
        "deadline_seconds": left,
        "missed_probability": None if left is None else eta.missed(left),
        "notes": list(eta.notes), "unknown": list(eta.unknown),
    }  # fmt: skip


def _deadline_text(eta: Eta, left: float | None) -> str:
    if left is None:
        return ""
    if eta.share >= 1:
        late = eta.last_s - (eta.now_s + left)
        if not math.isfinite(late):
            return "it is done; the log has no time"
        side = "too late" if late > 0 else "before"
        return f"it was done {units.format_seconds(abs(late))} {side}"
    seconds = units.format_seconds(abs(left))
    when = f"in {seconds}" if left > 0 else f"it passed {seconds} ago"
    return f"{when}: {units.chance_text('missed', eta.missed(left))}"


def _clock(seconds: float) -> str:
    return _iso(seconds, None, sep=" ", timespec="seconds") or "a time beyond the year 9999"


def _iso(seconds: float, zone: tzinfo | None, **form: str) -> str | None:
    """Return a time by the calendar (without a zone: the local one), None where it has no such year."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(seconds, zone).astimezone(zone).isoformat(**form)
    return None


def _deadline(text: str | None) -> tuple[float | None, bool]:
    """Return a deadline in seconds from now, or in seconds since 1970 and True."""
    from forerun.measure.logs.text import iso_seconds

    if text is None:
        return None, False
    moment = iso_seconds(text) if "-" in text else math.nan
    if not math.isnan(moment):
        return moment, True
    found = "it may be a time of day or a duration"
    if not re.fullmatch(r"\s*\d{1,2}:\d\d\s*", text):
        found = "it is neither a duration nor a time"
        with suppress(RequestError):
            return units.parse_duration(text), False
    raise RequestError(
        f"--deadline {text!r}", found,
        "write a duration from now (6h, 1d12h) or a time with its date (2027-01-31T18:00)",
    )  # fmt: skip
