"""Charts and small tables as plain values: drawn by matplotlib, in characters, or by the script of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import optional
from forerun.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, digits, format_count

# Marks of a chart in characters; further series of a kind take the next.
_MARKS = {"points": "ox+^%@", "line": "*#&$", "dashed": ".,"}
_BAND = ":"
_MARGIN, _BAR_FIGURES = 8, 12  # characters beside a plot, and beside a bar
_SEEN = 1e-4  # share of a whole that can be seen
# Durations below the first are drawn in units of the second, so named.
_DURATIONS = ((300.0, 1.0, "seconds"), (3 * SECONDS_PER_HOUR, 60.0, "minutes"),
              (5 * SECONDS_PER_DAY, SECONDS_PER_HOUR, "hours"), (math.inf, SECONDS_PER_DAY, "days"))  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Points of one name.

    Attributes:
        kind: line, dashed, points, or bars (which lie, the first on top, from `start` or 0 to y).
        x: numbers, or the names of bars.
        low, high, x_low, x_high: 5 and 95 % quantiles of y and of x; () where there are none.
    """

    name: str
    kind: str
    x: Sequence[Any]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    x_low: Sequence[float] = ()
    x_high: Sequence[float] = ()
    start: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """What is drawn. x, y: the axes, with units. log: those that are logarithmic, of "xy". ticks: of x, if not as usual."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log: str = ""
    ticks: Sequence[float] = ()

    def draw(self, axes: Any = None) -> Any:
        """Draw on matplotlib axes, by default on new ones, and return them. Raises MissingExtraError."""
        if axes is None:
            check_drawing("a plot")
            from matplotlib import pyplot

            _, axes = pyplot.subplots(layout="constrained")
        for i, one in enumerate(self.series):
            _draw(axes, one, f"C{i}")
        if self.series[0].kind == "bars":
            axes.invert_yaxis()
        axes.set(
            title=_unmarked(self.title), xlabel=self.x, ylabel=self.y,
            **{f"{n}scale": "log" for n in self.log},
        )  # fmt: skip
        if self.ticks:
            axes.set_xticks(self.ticks, [f"{value:g}" for value in self.ticks])
            axes.minorticks_off()
        axes.grid(alpha=0.3)
        if len(self.series) > 1:
            axes.legend()
        return axes

    def text(self, width: int = 76, height: int = 18) -> str:
        """Return the chart in plain characters, so wide and about so high."""
        bars = self.series[0].kind == "bars"
        lines = self._bars(width) if bars else self._points(width, height)
        return "\n".join([self.title, *(line.rstrip() for line in lines)])

    def _bars(self, width: int) -> Iterator[str]:
        bars, label = self.series[0], max(len(str(name)) for name in self.series[0].x)
        starts = bars.start or [0.0] * len(bars.y)
        scale = _Scale([0.0, *bars.y, *bars.high], max(width - label - _BAR_FIGURES, 8), log=False)
        for i, (name, begin, end) in enumerate(zip(bars.x, starts, bars.y, strict=True)):
            cells, figure = np.full(scale.cells, " "), "unknown"
            if math.isfinite(end):
                first, last = scale.at([begin, end]).round().astype(int)
                cells[first : max(last, first + 1)], figure = "#", _number(end - begin)
            if bars.low and math.isfinite(bars.low[i] + bars.high[i]):
                first, last = scale.at([bars.low[i], bars.high[i]]).round().astype(int)
                band = cells[first : last + 1]
                band[:] = np.where(band == "#", "=", "-")
                band[[0, -1]] = "|"
            yield f"{name:<{label}}  {''.join(cells)}  {figure}"
        band_words = "; # to the median, |==--| the 5-95 % band" if bars.low else ""
        yield f"{'':<{label}}  {self.x}{band_words}"

    def _points(self, width: int, height: int) -> Iterator[str]:
        ys = [v for s in self.series for v in (*s.y, *s.low, *s.high)]
        xs = [v for s in self.series for v in (*s.x, *s.x_low, *s.x_high)]
        down = _Scale(ys, height, "y" in self.log)
        across = _Scale(xs, width - _MARGIN - 2, "x" in self.log)
        grid = np.full((down.cells, across.cells), " ")
        marks, legend = {kind: iter(marks * 9) for kind, marks in _MARKS.items()}, []
        for one in sorted(self.series, key=lambda s: s.kind == "points"):  # which lie on lines
            mark = next(marks[one.kind])
            legend.append(f"{mark} {one.name}")
            _put(grid, one, mark, across, down)
        if any(one.low or one.x_low for one in self.series):
            legend.append(f"{_BAND} 5-95 % band")
        labels, left = dict(down.ticks()), " " * _MARGIN
        yield self.y
        for row in range(height - 1, -1, -1):
            yield f"{labels.get(row, ''):>{_MARGIN}} |{''.join(grid[row])}"
        yield f"{left} +{'-' * across.cells}"
        below = ""
        for cell, text in across.ticks(self.ticks):
            begin = _MARGIN + 2 + cell - len(text) // 2
            if begin > len(below) or not below:
                below = f"{below:<{begin}}{text}"
        yield from (below, f"{left}  {self.x}", f"{left}  {'   '.join(legend)}")


def duration_unit(longest: float) -> tuple[float, str]:
    """Return the seconds of the unit in which durations up to the longest are drawn, and its name."""
    return next((each, name) for most, each, name in _DURATIONS if not longest > most)


def _number(value: float) -> str:
    return format_count(value) if abs(value) >= 1e5 else digits(value, 3)


class _Scale:
    """Values on a number of character cells."""

    def __init__(self, values: Sequence[float], cells: int, log: bool) -> None:
        self._log, self.cells = log, cells
        found = self._of([v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0])
        self._low, self._range = found.min(), np.ptp(found) or 1.0

    def _of(self, values: Sequence[float] | FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(values) if self._log else values, dtype=np.float64)

    def at(self, values: Sequence[float] | FloatArray) -> FloatArray:
        """Return the cells of values from 0 on, not rounded; not finite where one is not on the scale."""
        return np.asarray((self._of(values) - self._low) / self._range * (self.cells - 1))

    def ticks(self, values: Sequence[float] = ()) -> list[tuple[int, str]]:
        """Return cells with the numbers to write there: of the values, else of five at equal distances."""
        even = self._low + np.linspace(0, 1, 5) * self._range
        found = list(values or (np.exp(even) if self._log else even))
        return [(round(c), _number(v)) for c, v in zip(self.at(found).tolist(), found, strict=True)]


def _put(grid: NDArray[np.str_], one: Series, mark: str, across: _Scale, down: _Scale) -> None:
    """Write a series into a grid of characters, its first row at the bottom."""
    n, points = len(one.x), one.kind == "points"
    places = np.arange(n) if points else np.linspace(0, n - 1, sum(grid.shape) * max(n - 1, 1))
    x, y, x_low, x_high, low, high = (
        np.interp(places, np.arange(n), scale.at(values or np.full(n, np.nan)))
        for scale, values in ((across, one.x), (down, one.y), (across, one.x_low), (across, one.x_high),
                              (down, one.low), (down, one.high))
    )  # fmt: skip
    seen = np.isfinite(x + y)
    columns, rows = (np.where(seen, cells, 0.0).round().astype(int) for cells in (x, y))
    for i in np.flatnonzero(seen):
        row, column = (grid[rows[i]], x_low[i], x_high[i]), (grid[:, columns[i]], low[i], high[i])
        for line, begin, end in (row, column):
            if math.isfinite(begin + end):
                band = line[round(begin) : round(end) + 1]
                band[band == " "] = _BAND
    for cell in zip(rows[seen], columns[seen], strict=True):
        if one.kind != "dashed" or grid[cell] in (" ", _BAND):
            grid[cell] = mark


def _unmarked(text: str) -> str:
    return text.replace("$", r"\$")  # which matplotlib reads as the begin of a formula


def _draw(axes: Any, one: Series, colour: str) -> None:
    def reach(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Any:
        return np.fmax([np.subtract(values, low), np.subtract(high, values)], 0) if low else None

    y_reach = reach(one.y, one.low, one.high)
    if one.kind == "bars":
        start = one.start or np.zeros(len(one.y))
        axes.barh([_unmarked(str(name)) for name in one.x], np.subtract(one.y, start), left=start, xerr=y_reach, color=colour,
                  capsize=4)  # fmt: skip
    elif one.kind == "points":
        axes.errorbar(one.x, one.y, yerr=y_reach, xerr=reach(one.x, one.x_low, one.x_high), fmt="o", color=colour,
                      capsize=3, alpha=0.8, label=_unmarked(one.name))  # fmt: skip
    else:
        axes.plot(
            one.x, one.y, "--" if one.kind == "dashed" else "-", color=colour,
            label=_unmarked(one.name),
        )  # fmt: skip
        if one.low:
            axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.2)


def check_drawing(asked: str) -> None:
    """Check that matplotlib is there, before anything is computed. Raises MissingExtraError."""
    with optional(asked, "matplotlib", "plot"):
        import matplotlib  # noqa: F401


def image(charts: Sequence[Chart], form: str) -> bytes:
    """Return a picture of charts below one another; form: png, svg or pdf. Raises MissingExtraError."""
    check_drawing("a picture")
    from matplotlib.figure import Figure

    figure, stream = Figure(figsize=(8, 4.5 * len(charts)), layout="constrained"), BytesIO()
    for chart, axes in zip(charts, figure.subplots(len(charts), squeeze=False)[:, 0], strict=True):
        chart.draw(axes)
    figure.savefig(stream, format=form, dpi=150)
    return stream.getvalue()


def waterfall(title: str, x: str, parts: Mapping[str, float], scale: float = 1.0) -> Chart:
    """Return a chart of parts that add up, the largest first, and of the whole; amounts times `scale`.

    Parts of less than a ten-thousandth, which nobody would see, are left out.
    """
    whole = sum(parts.values())
    names = sorted((n for n in parts if parts[n] > _SEEN * whole), key=lambda name: -parts[name])
    ends = [0.0, *accumulate(parts[name] * scale for name in names)]
    bars = Series("", "bars", [*names, "all"], [*ends[1:], whole * scale], start=[*ends[:-1], 0.0])
    return Chart(title, x, "", (bars,))


def html_table(title: str, rows: Iterable[Sequence[object]], headers: Sequence[str] = ()) -> str:
    """Return a small table of HTML, for notebooks; the first cell of a row is its heading."""
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    lines = [f"<tr>{head}</tr>"] if head else []
    for first, *others in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in others)
        lines.append(f"<tr><th>{escape(str(first))}</th>{cells}</tr>")
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"
