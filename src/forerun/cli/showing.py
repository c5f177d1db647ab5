"""Showing: tables and labelled lines for a person, and an answer in them, every number with its unit."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Any

import click
import numpy as np

from forerun import units
from forerun.advisor import Answer
from forerun.charts import Chart, check_drawing, image
from forerun.cli.inputs import writable, write_text
from forerun.cli.printing import STARTED, echo, visible
from forerun.domain.estimate import Estimate, checkpoint_interval, failure_seconds, startup_of
from forerun.domain.forecast import Forecast, meaning, nearer
from forerun.domain.job import Job
from forerun.domain.objective import Limits, Preemption
from forerun.domain.quantiles import LEVELS, at_probability
from forerun.domain.recommendation import ALL, BUDGET, DEADLINE, Option, Recommendation
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.options import known_words
from forerun.progress import present_listener, progress_to
from forerun.settings import Settings, load_settings

SOON_SECONDS = 0.5  # a shorter wait needs no word
QUIET_SECONDS = 1.0  # without a word, since the program's start or the last wait, are enough
_QUIET = [STARTED]
_BAR_WIDTH = 24
_DRAWING, _WIDEST_DRAWING = 76, 110  # characters; the first where nothing says how many there are
PICTURES = (".png", ".svg", ".pdf")
_TERMINAL = Path("-")
_LEAST_COLUMN = 18  # of a table side by side, with the space before it
_NO_LOSS = 0.995  # of goodput, which rounds to 100 %


@contextmanager
def waiting(words: str, plain: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is done on stderr, with the time that it takes, where that is a terminal; else, if plain, as lines.

    A wait that is soon over shows nothing. Nothing may be written to stdout in the block. Messages of computations within the block (`forerun.progress`) go there too.
    """
    if not sys.stderr.isatty():
        if not plain:
            yield lambda words: None
            return
        with progress_to(lambda words: echo(words, err=True)) as said:
            yield said
        return
    if (outer := present_listener()) is not None:  # a wait within another one
        outer(words)
        yield outer
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    task, soon = shown.add_task(words, total=None), _QUIET[0] + QUIET_SECONDS - time.monotonic()
    later = threading.Timer(min(soon, SOON_SECONDS), shown.start)
    later.daemon = True
    if soon > 0:
        later.start()
    else:  # it has been quiet for long, and imports would keep another thread from starting
        shown.start()
    try:
        with progress_to(lambda words: shown.update(task, description=visible(words))) as said:
            yield said
    finally:
        later.cancel()
        if later.ident is not None:
            later.join()
        shown.stop()
        _QUIET[0] = time.monotonic()


class Screen:
    """Where a command writes its answer."""

    def __init__(self, settings: Settings | None = None) -> None:
        wanted = (settings or load_settings()).text("color")
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        terminal = wanted == "always" or (wanted == "auto" and sys.stdout.isatty() and not plain)
        self._width = shutil.get_terminal_size().columns if terminal else 0  # 0: no terminal

    @property
    def columns(self) -> int:
        """Characters that a drawing may be wide."""
        return min(self._width or _DRAWING, _WIDEST_DRAWING)

    def title(self, text: str) -> None:
        """Write a heading."""
        terminal = self._width > 0
        text = visible(text)
        click.echo(click.style(text, bold=True) if terminal else text, color=terminal)

    def line(self, text: str = "", indent: int | None = None) -> None:
        """Write one line; a terminal that is too narrow gets it broken between words."""
        label = re.match(r"\S+ {2,}", text)
        indent = indent or (len(label[0]) if label else 2)
        if self._width and len(text) > self._width:
            text = textwrap.fill(
                text, self._width, subsequent_indent=" " * indent, break_on_hyphens=False
            )
        echo(text)

    def labelled(self, rows: Iterable[tuple[str, str]], width: int = 8) -> None:
        """Write lines of a label and a text; nothing for a text that is ""."""
        for label, text in rows:
            if text:
                self.line(f"{label:<{width}}{text}")

    def items(self, title: str, lines: Iterable[str]) -> None:
        """Write a titled list, nothing where it is empty."""
        lines = list(lines)
        if lines:
            self.title(title)
        for text in lines:
            self.line(f"  - {text}", 4)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Write a table; cells that look like numbers are set to the right."""
        cells = [[str(c) for c in row] for row in rows]
        if title:
            self.title(title)
        columns = range(len(headers))
        right = [bool(cells) and all(is_numeric(row[i]) for row in cells) for i in columns]
        if not self._width:
            echo("\n".join(plain_lines(headers, cells, right)))
            return
        kept = _kept(headers, cells, right, self._width)
        stacked = [_stacked(headers[i], cells, i) for i in kept]
        depth = max(map(len, stacked))
        heads = zip(*([""] * (depth - len(words)) + words for words in stacked), strict=True)
        grid = [*heads, *([row[i] for i in kept] for row in cells)]
        lines = plain_lines(grid[0], grid[1:], [right[i] for i in kept])
        rule = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * max(map(len, lines))
        above = 0 not in kept
        heading = [headers[0]] if above and headers[0] else []
        echo("\n".join((*heading, *lines[:depth], rule)))
        for row, line in zip(cells, lines[depth:], strict=True):
            if above:
                self.line(row[0])
            echo(line)
            for i in columns[1:]:
                if i not in kept and row[i]:
                    self.line(f"    {headers[i]}: {row[i]}", 6)

    def side_by_side(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table of long cells; a narrow terminal breaks them, and gets the columns in several tables."""
        label = 2 + max(len(row[0]) for row in rows)
        room, columns = max(self._width - label, _LEAST_COLUMN), len(headers) - 1
        many = min(room // _LEAST_COLUMN, columns) if self._width else columns
        width = room // many - 2 if self._width else sys.maxsize
        for first in range(1, columns + 1, many):
            if first > 1:
                self.line()
            broken: list[Sequence[str]] = []
            for row in rows:
                cells = [textwrap.wrap(c, width) or [""] for c in row[first : first + many]]
                names = chain([row[0]], repeat(""))
                lines = zip_longest(*cells, fillvalue="")
                broken += [(name, *parts) for name, parts in zip(names, lines, strict=False)]
            self.table((headers[0], *headers[first : first + many]), broken)

    def bar(self, share: float) -> str:
        """Return a bar for a share between 0 and 1."""
        full = round(max(0.0, min(share, 1.0)) * _BAR_WIDTH)
        return ("\N{FULL BLOCK}" if self._width else "#") * full


class Outputs:
    """Where an answer goes: the screen or JSON, and the files of --plot and --html (taken out of the options).

    Raises:
        RequestError: a file cannot be written, or a plot and JSON would share the screen.
        MissingExtraError: a picture is asked for without the library that draws it.
    """

    def __init__(self, options: dict[str, Any], as_json: bool) -> None:
        self._plot, self._html = options.pop("plot"), options.pop("html")
        self._as_json = as_json
        writable(self._html, (".html", ".htm"))
        if self._plot == _TERMINAL and as_json:
            raise RequestError(
                "--plot with --json", "both would be written to the screen",
                "name a picture: --plot FILE.png",
            )  # fmt: skip
        if self._plot not in (None, _TERMINAL):
            writable(self._plot, PICTURES)
            check_drawing(f"drawing {self._plot}")

    def __bool__(self) -> bool:
        return self._plot is not None or self._html is not None

    def write(
        self, screen: Screen, show: Callable[[Screen], None], json: Callable[[], None],
        charts: Callable[[], Sequence[Chart]],
    ) -> None:  # fmt: skip
        """Write the answer that `show` writes to a screen, or `json` as JSON; `charts` are made where they are drawn."""
        drawn = charts() if self else ()
        if self._as_json:
            json()
        else:
            show(screen)
        if self._html is not None:
            from forerun.cli.report import answer_page

            write_text(self._html, visible(answer_page(show, drawn)))
        if self._plot == _TERMINAL:
            for chart in drawn:
                echo(f"\n{chart.text(screen.columns)}")
        elif self._plot is not None:
            write_text(self._plot, image(drawn, self._plot.suffix[1:].lower()))
        if not self._as_json:
            for file in (self._html, self._plot):
                if file not in (None, _TERMINAL):
                    echo(f"written to {file}")


def plain_lines(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
) -> list[str]:
    """Return aligned lines, two spaces between columns and none at the end."""
    grid = [headers, *rows]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    signs = [">" if numeric else "<" for numeric in right]
    form = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    return [form.format(*row).rstrip() for row in grid]


def _kept(
    headers: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> list[int]:
    kept = list(range(len(headers)))
    needs = [
        2 + max(map(len, (*_stacked(headers[i], cells, i), *(r[i] for r in cells)))) for i in kept
    ]
    texts = sorted((i for i in kept if not right[i]), key=needs.__getitem__)
    while any(right) and texts and sum(needs[i] for i in kept) - 2 > width:
        kept.remove(texts.pop())
    return kept


def _stacked(header: str, cells: Sequence[Sequence[str]], i: int) -> list[str]:
    """Return a header's words in lines, as few as keep to the width of column i where they can."""
    width = max(map(len, (" ", *header.split(), *(row[i] for row in cells))))
    return textwrap.wrap(header, width, break_on_hyphens=False) or [""]


# A number, with what may stand before it, its unit behind it, and the other end of its range.
_NUMBER = re.compile(
    r"[-+$<>]*[\d.][\d.,]*(e[-+]?\d+)?( ?[%A-Za-z/]{1,8})?"
    r"((-| to )[-+$<>\d.,e]+( ?[%A-Za-z/]{1,8})?|( \(.*\)))?"
)


def is_numeric(cell: str) -> bool:
    """Whether a cell looks like a number, with its unit, or is blank."""
    return not cell or _NUMBER.fullmatch(cell) is not None


BEST = {"time": "least time", "cost": "least cost", "energy": "least energy",
        "knee": "nearest the knee of time and cost"}  # fmt: skip
BETTER = {"time": "faster", "cost": "cheaper", "energy": "thriftier", "knee": "nearer the knee"}


def limits_of(limits: Limits) -> list[tuple[str, str, str]]:
    """Return each limit that there is: its name among chances, its header, and it in words."""
    found, seconds, dollars = [], limits.deadline_seconds, limits.budget_dollars
    if seconds is not None:
        found.append((DEADLINE, "in time", f"within {units.format_seconds(seconds)}"))
    if dollars is not None:
        found.append((BUDGET, "in budget", f"for at most {units.format_dollars(dollars)}"))
    return found


def limits_text(chance: Mapping[str, float], limits: Limits) -> str:
    """Return the probabilities of keeping the limits in words; "" where there are none."""
    found = [units.chance_text(words, chance[name]) for name, _, words in limits_of(limits)]
    return "; ".join([*found, units.chance_text("all, and it fits", chance[ALL])]) if found else ""


def source_text(forecast: Forecast, constants: str = "") -> str:
    """Return who answered, with which constants, and how far from what was measured."""
    who = f"predictor {forecast.predictor}" + (f" ({constants})" if constants else "")
    if not math.isfinite(forecast.distance):
        return who
    words = meaning(forecast.distance, forecast.distance_parts)
    return f"{who}, distance {forecast.distance:.2f} from what was measured: {words}"


def nearer_text(forecast: Forecast) -> str:
    """Return what would bring the answer nearer to what was measured; "" where nothing would."""
    closer = nearer(forecast.distance, forecast.distance_parts)
    return f"the distance falls with {'; '.join(closer)}" if closer else ""


def limit_cells(chance: Mapping[str, float], limits: Limits) -> tuple[str, ...]:
    """Return the probabilities of the limits that there are."""
    return tuple(units.format_probability(chance[name]) for name, _, _ in limits_of(limits))


def rivals(found: Recommendation) -> list[tuple[str, str]]:
    """Return the next best options in words, each with the probability that the best beats it."""
    named: list[tuple[str, Option]] = []
    if (other := found.runner_up) is not None:
        named.append((f"{other.job.cluster.name}, the closest rival on another cluster", other))
    if (other := found.next_layout) is not None:
        named.append((f"{other.job.plan}, the next best layout here", other))
    by, aim = found.compared_by, f"best is {BETTER[found.compared_by]}"
    return [(words, units.chance_text(aim, one.beaten.get(by, math.nan))) for words, one in named]


def best_text(found: Recommendation) -> str:
    """Return what the best is, at which confidence."""
    return f"{BEST[found.compared_by]} at {100 * found.objective.confidence:.3g} % confidence"


def confidence_text(found: Recommendation, words: str) -> str:
    """Return words about the confidence that decides; "" where medians do."""
    sure = found.objective.confidence
    return "" if sure == LEVELS[1] else words.format(f"{100 * sure:.3g} %")


def decisive(row: Sequence[float], found: Recommendation) -> float:
    """Return the figure by which options are compared, of quantiles: that at the confidence."""
    return float(at_probability(np.array([row]), found.objective.confidence)[0])


def beaten(option: Option, found: Recommendation) -> str:
    """Return the probability that the best beats an option in what was asked; "" for itself."""
    best = found.best
    if best is None or (option.job == best.job and option.estimate.spot == best.estimate.spot):
        return ""
    return units.format_probability(option.beaten.get(found.compared_by, math.nan))


def price_text(one: Answer | Option, advice: str) -> str:
    """Return the hourly price with its market and source, or what to do where none is known."""
    price, source = one.dollars_per_hour, one.job.cluster.price_source
    if price is None:
        return f"none is known; {advice}"
    market = "spot" if one.estimate.spot else "on demand"
    n = one.job.plan.server_machines
    held = f", {n} of the {one.job.cluster.nodes + n} machines for servers" if n else ""
    return f"{units.format_dollars(price)} an hour {market}{f' ({source})' if source else ''}{held}"


def share(value: float) -> str:
    """Return a share in per cent; "" where it is not known."""
    return units.format_percent(value, 1) if math.isfinite(value) else ""


def loses(estimate: Estimate) -> bool:
    """Whether so little of the wall time is steps that it is worth a line of its own."""
    return estimate.run_seconds[1] < _NO_LOSS * estimate.wall_seconds[1]


def start_line(job: Job, estimate: Estimate, lost: Preemption) -> str:
    """Return how long machines take to start, and what is billed at least; "" where neither matters."""
    wall, write = estimate.wall_seconds[1], units.format_seconds
    least, machines = startup_of(job.cluster, lost)[1], units.counted(job.cluster.nodes, "machine")
    words = []
    if estimate.start_seconds > (1.0 - _NO_LOSS) * wall:
        stated = lost.startup_seconds is not None
        whose = "as stated" if stated else "at published times; --startup states yours"
        share = units.format_percent(estimate.start_seconds / wall)
        words.append(
            f"{write(estimate.start_seconds)} until the first step of {machines}, {share} of the wall ({whose})"
        )
    if least > wall:
        words.append(f"{write(least)} are billed at least (--least-billed states yours)")
    return "; ".join(words)


def throughput_lines(
    job: Job, figures: Mapping[str, float], estimate: Estimate, lost: Preemption | None = None
) -> list[tuple[str, str]]:
    """Return labelled lines: speed, MFU, goodput, and the whole run's device-hours."""
    images = job.workload.sample == "image" and job.workload.image_size
    words = {"samples": "images" if images else "samples", "tokens": "tokens"}
    known = [name for name in words if math.isfinite(figures[f"{name}_per_second"])]
    speed, worth = ["unknown"], []
    if known:
        last, counts = known[-1], {key: units.format_count(value) for key, value in figures.items()}
        speed = [f"{counts[f'{name}_per_second']} {words[name]}/s" for name in known]
        speed.append(f"{counts[f'{last}_per_second_per_device']} {words[last]}/s a device")
        total = {"device_hours": "device-hours", f"{last}_per_dollar": f"{words[last]} a dollar"}
        worth = [
            f"{counts[key]} {word}" for key, word in total.items() if math.isfinite(figures[key])
        ]
    mfu, hfu = share(figures["mfu"]), share(figures["hfu"])
    recomputed = f" (HFU {hfu}, with what is recomputed)" * (hfu != mfu)
    done, peak = (
        figures[n] / units.TERA for n in ("flops_per_second_per_device", "peak_flops_per_second")
    )
    most = f"{peak:,.0f}" if peak >= 100 else f"{peak:.3g}"
    if figures["mfu"] > 1:
        recomputed += " (Winograd's convolutions multiply less than the model states)"
    return [
        ("speed", ", ".join(speed)),
        (
            "MFU",
            f"{mfu}{recomputed}: {units.digits(done, 3)} of {most} TFLOP/s a device" if mfu else "",
        ),
        ("goodput", goodput_line(job, estimate, lost)),
        ("start", start_line(job, estimate, lost or Preemption())),
        ("total", ", ".join(worth)),
    ]


def goodput_line(job: Job, estimate: Estimate, lost: Preemption | None) -> str:
    """Return in one line what of a run is steps and what is not; "" where it is not known."""
    if estimate.forecast is not None and estimate.forecast.quantity == "run":
        return "what a run loses is in the measured runs behind the forecast"
    if not math.isfinite(estimate.goodput):
        return ""
    if estimate.goodput >= _NO_LOSS:
        return "100 %"
    if not estimate.goodput:
        return "0 %: it loses more than it does, and does not end"
    wall = estimate.wall_seconds[1] - estimate.start_seconds
    gone = wall - estimate.run_seconds[1]
    devices, write = job.cluster.devices * job.machines_paid, units.format_seconds
    if lost is not None and lost.goodput is not None:
        nodes = " on spot nodes and" if estimate.spot else ""
        spent = f"is lost{nodes} as stated: --goodput {lost.goodput:g}"
    elif estimate.spot:
        spent = "goes to lost spot nodes, restarts, checkpoints and evaluation"
    else:
        spent = (
            f"goes to failures (one every {write(float(failure_seconds(devices)))} at published rates),"
            f" restarts, checkpoints (every {write(float(checkpoint_interval(devices)))}), evaluation"
            " and, in large jobs, slower phases (--goodput states yours)"
        )
    return (
        f"{units.format_percent(estimate.goodput)} of {write(wall)} is steps; {write(gone)} {spent}"
    )


def show_answer(screen: Screen, answer: Answer) -> None:
    """Write one prediction."""
    job, estimate, length = answer.job, answer.estimate, answer.length
    device, forecast = job.cluster.device, answer.forecast
    screen.title(f"{job.workload.name} on {job.cluster.name}")
    long = f"{units.format_count(length.count)} {length.unit} ({length.source})"
    target = forecast.samples_to_target
    if target is not None and target[1] > 0 and length.source != "given":
        long = "until its target"
    screen.labelled([
        ("plan", f"{job.plan}, global batch {job.plan.global_batch:,}"),
        ("settings", workload_text(job.workload)),
        ("length", f"{long}: {units.counted(round(estimate.steps), 'step')}"),
    ], 10)  # fmt: skip
    screen.line()
    rows = [
        ("step", *map(units.format_seconds, answer.step_seconds)),
        ("run", *map(units.format_seconds, estimate.run_seconds)),
        *([("wall", *map(units.format_seconds, estimate.wall_seconds))] if loses(estimate) else []),
        ("cost", *map(units.format_dollars, estimate.dollars)),
        ("energy", *map(units.format_kwh, estimate.kilowatt_hours)),
        ("memory", *map(units.format_bytes, forecast.peak_bytes)),
    ]
    screen.table(("", "5 %", "median", "95 %"), rows)
    screen.line()
    fits = units.format_probability(estimate.fit_probability)
    late, stale = "", forecast.staleness
    if stale.get("p95"):  # by how many updates of other workers an update comes late
        reach = f"5 to 95 %: {stale['p05']:.0f} to {stale['p95']:.0f}"
        late = f"{stale['mean']:.3g} updates by others on average ({reach})"
    screen.labelled([
        ("fits", f"probability {fits} in the {units.format_bytes(device.memory_bytes)} of each {device.id}"),
        ("limits", limits_text(answer.chance, answer.limits)),
        *throughput_lines(job, answer.throughput, estimate, answer.preemption),
        ("staleness", late),
        ("price", price_text(answer, "give --price")),
        ("source", source_text(forecast, known_words(answer.start))),
        ("closest", forecast.nearest or ""),
        ("nearer", nearer_text(forecast)),
    ], 10)  # fmt: skip
    screen.items("notes", answer.notes)
    screen.items("warnings", answer.warnings)


def workload_text(workload: Workload) -> str:
    """Return what of the workload moves an answer most: `bf16, sequences of 8,192 tokens, adamw`."""
    words = [workload.precision]
    if workload.sample == "image" and workload.image_size:
        words.append(f"images of {workload.image_size:,} pixels a side")
    elif workload.seq_len:
        words.append(f"sequences of {workload.seq_len:,} tokens")
    words += [workload.optimizer, workload.framework or "any framework"]
    if workload.task != "pretrain":
        words.append(workload.task)
    return ", ".join(words)


def show_parts(
    screen: Screen, title: str, parts: Iterable[tuple[str, float]], write: Callable[[float], str]
) -> None:
    """Write parts with their share of the whole, largest first, and the whole."""
    parts = list(parts)
    whole = sum(value for _, value in parts) or math.nan
    rows = [
        (name, write(value), units.format_percent(value / whole, 1), screen.bar(value / whole))
        for name, value in parts
    ]
    rows.append(("all", write(whole), "100.0 %", ""))
    screen.table(("part", "amount", "share", ""), rows, title)


def small_dollars(dollars: float) -> str:
    """Return dollars; two digits below ten cents, where whole cents would hide a difference."""
    return f"${dollars:.2g}" if 1e-6 < dollars < 0.1 else units.format_dollars(dollars)


def ranged(row: Sequence[float], write: Callable[[float], str]) -> str:
    """Return the median with its 5 to 95 % range."""
    if not math.isfinite(row[1]):
        return write(row[1])
    return f"{write(row[1])} ({write(row[0])} to {write(row[2])})"
