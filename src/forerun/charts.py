"""Charts and small tables as plain values: drawn by matplotlib, in characters, or by the script of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from itertools import pairwise
from typing import Any

from forerun.errors import MissingExtraError
from forerun.units import digits, format_count

# Marks of a chart in characters; further series of a kind take the next.
_MARKS = {"points": "ox+^%@", "line": "*#&$", "dashed": ".,"}
_BAND = ":"
_MOST_TICKS = 10  # points of a first series that are the ticks of its axis
_BAR_FIGURES = 12  # characters beside a bar


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
    """What is drawn. x, y: what the axes are, with units. log: those that are logarithmic, of "xy"."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log: str = ""

    @property
    def has_bars(self) -> bool:
        """Whether it is of bars, whose lengths are along x."""
        return self.series[0].kind == "bars"

    @property
    def names_ticks(self) -> bool:
        """Whether the points of the first series are the ticks along x: a few of a line over a logarithmic axis."""
        first = self.series[0]
        return "x" in self.log and first.kind == "line" and len(first.x) <= _MOST_TICKS

    def draw(self, axes: Any = None) -> Any:
        """Draw on matplotlib axes, by default on new ones, and return them.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if axes is None:
            _matplotlib("a plot")
            from matplotlib import pyplot

            _, axes = pyplot.subplots(layout="constrained")
        for i, one in enumerate(self.series):
            _draw(axes, one, f"C{i}")
        if self.has_bars:
            axes.invert_yaxis()
        for name in self.log:
            getattr(axes, f"set_{name}scale")("log")
        ticks = self.series[0].x
        if self.names_ticks:
            axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
            axes.minorticks_off()
        axes.set_title(self.title)
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        axes.grid(alpha=0.3)
        if len(self.series) > 1:
            axes.legend()
        return axes

    def text(self, width: int = 76, height: int = 18) -> str:
        """Return the chart in plain characters, so wide and about so high."""
        lines = self._bars(width) if self.has_bars else self._points(width, height)
        return "\n".join([self.title, *(line.rstrip() for line in lines)])

    def _bars(self, width: int) -> Iterator[str]:
        bars, names = self.series[0], [str(name) for name in self.series[0].x]
        label = max(map(len, names))
        room = max(width - label - _BAR_FIGURES, 8)
        most = max((v for v in (*bars.y, *bars.high) if math.isfinite(v)), default=0.0) or 1.0
        for i, name in enumerate(names):
            begin, end = (bars.start[i] if bars.start else 0.0), bars.y[i]
            if not math.isfinite(end):
                yield f"{name:<{label}}  unknown"
                continue
            cells = [" "] * (room + 1)
            first, last = (round(room * value / most) for value in (begin, end))
            cells[first : max(last, first + 1)] = "#" * max(last - first, 1)
            if bars.low and math.isfinite(bars.low[i] + bars.high[i]):
                first, last = (round(room * v / most) for v in (bars.low[i], bars.high[i]))
                inside = ["=" if cell == "#" else "-" for cell in cells[first + 1 : last]]
                cells[first : last + 1] = ["|", *inside, "|"][: last - first + 1]
            yield f"{name:<{label}}  {''.join(cells)}  {_number(end - begin)}"
        band = "; # to the median, |==--| the 5-95 % band" if bars.low else ""
        yield f"{'':<{label}}  {self.x}{band}"

    def _points(self, width: int, height: int) -> Iterator[str]:
        ys = [v for s in self.series for v in (*s.y, *s.low, *s.high)]
        xs = [v for s in self.series for v in (*s.x, *s.x_low, *s.x_high)]
        down, margin = _Scale(ys, height - 1, "y" in self.log), 8
        across = _Scale(xs, width - margin - 3, "x" in self.log)
        grid = [[" "] * (width - margin - 2) for _ in range(height)]
        marks = {kind: iter(marks * 9) for kind, marks in _MARKS.items()}
        legend = []
        # Lines first, so that points lie on them.
        for one in sorted(self.series, key=lambda s: s.kind == "points"):
            mark = next(marks[one.kind])
            legend.append(f"{mark} {one.name}")
            _put(grid, one, mark, across, down)
        if any(one.low or one.x_low for one in self.series):
            legend.append(f"{_BAND} 5-95 % band")
        labels = dict(down.ticks(5))
        yield self.y
        for row in range(height):
            text = labels.get(height - 1 - row, "")
            yield f"{text:>{margin}} |{''.join(grid[row])}"
        yield f"{'':>{margin}} +{'-' * (width - margin - 2)}"
        below = [" "] * (width + 9)
        values = self.series[0].x if self.names_ticks else ()
        free = 0
        for cell, text in across.ticks(5, values):
            begin = max(margin + 2 + cell - len(text) // 2, 0)
            if begin >= free:
                below[begin : begin + len(text)] = text
                free = begin + len(text) + 1
        yield "".join(below)
        yield f"{'':>{margin}}  {self.x}"
        yield f"{'':>{margin}}  {'   '.join(legend)}"


def _number(value: float) -> str:
    return format_count(value) if abs(value) >= 1e5 else digits(value, 3)


class _Scale:
    """Values on a number of character cells."""

    def __init__(self, values: Iterable[float], cells: int, log: bool) -> None:
        self._log, self._cells = log, cells
        found = [self._of(v) for v in values if math.isfinite(v) and (v > 0 or not log)]
        self._low, high = min(found, default=0.0), max(found, default=1.0)
        self._range = (high - self._low) or 1.0

    def _of(self, value: float) -> float:
        return math.log(value) if self._log else value

    def at(self, value: float) -> float:
        """Return a value's cell, not rounded; NaN where it is not on the scale."""
        if not math.isfinite(value) or (self._log and value <= 0):
            return math.nan
        return (self._of(value) - self._low) / self._range * self._cells

    def ticks(self, count: int, values: Sequence[float] = ()) -> list[tuple[int, str]]:
        """Return cells with the numbers to write there: of the values, else at equal distances."""
        if values:
            return [(round(self.at(v)), _number(v)) for v in values if math.isfinite(self.at(v))]
        shares = [i / (count - 1) for i in range(count)]
        places = [self._low + share * self._range for share in shares]
        return [
            (round(share * self._cells), _number(math.exp(place) if self._log else place))
            for share, place in zip(shares, places, strict=True)
        ]


def _put(
    grid: list[list[str]], one: Series, mark: str, across: _Scale, down: _Scale
) -> None:
    """Write a series into a grid of characters, its first row on top."""

    def put(column: float, row: float, character: str, over: str = "") -> None:
        if math.isfinite(column) and math.isfinite(row):
            cells = grid[len(grid) - 1 - round(row)]
            if not over or cells[round(column)] in over:
                cells[round(column)] = character

    points = [(across.at(x), down.at(y)) for x, y in zip(one.x, one.y, strict=True)]
    bands = [*zip(map(down.at, one.low), map(down.at, one.high), strict=True)]
    reach = [*zip(map(across.at, one.x_low), map(across.at, one.x_high), strict=True)]
    if one.kind == "points":
        for (column, row), (low, high) in zip(points, bands or [(math.nan,) * 2] * len(points), strict=True):
            for cell in range(round(low), round(high) + 1) if math.isfinite(low + high) else ():
                put(column, cell, _BAND, over=" ")
            put(column, row, mark)
        for (_, row), (low, high) in zip(points, reach, strict=False):
            for cell in range(round(low), round(high) + 1) if math.isfinite(low + high) else ():
                put(cell, row, _BAND, over=" ")
        return
    for i, ((x, y), (x2, y2)) in enumerate(pairwise(points)):
        if not math.isfinite(x + y + x2 + y2):
            continue
        steps = max(round(abs(x2 - x)), round(abs(y2 - y)), 1)
        for step in range(steps + 1):
            share = step / steps
            column = x + share * (x2 - x)
            if bands:
                low, high = (a + share * (b - a) for a, b in zip(bands[i], bands[i + 1], strict=True))
                for cell in range(round(low), round(high) + 1) if math.isfinite(low + high) else ():
                    put(column, cell, _BAND, over=" ")
            put(column, y + share * (y2 - y), mark, over="" if one.kind == "line" else f" {_BAND}")
    if len(points) == 1:
        put(*points[0], mark)


def _draw(axes: Any, one: Series, colour: str) -> None:
    def reach(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Any:
        if not low:
            return None
        sides = zip(values, low, high, strict=True)
        below, above = zip(*((max(v - a, 0), max(b - v, 0)) for v, a, b in sides), strict=True)
        return [below, above]

    if one.kind == "bars":
        start = one.start or [0.0] * len(one.y)
        lengths = [end - begin for begin, end in zip(start, one.y, strict=True)]
        error = reach(one.y, one.low, one.high)
        names = [str(name) for name in one.x]
        axes.barh(names, lengths, left=start, xerr=error, color=colour, capsize=4)
    elif one.kind == "points":
        axes.errorbar(
            one.x, one.y, yerr=reach(one.y, one.low, one.high), xerr=reach(one.x, one.x_low, one.x_high),
            fmt="o", color=colour, capsize=3, alpha=0.8, label=one.name,
        )  # fmt: skip
    else:
        line = "--" if one.kind == "dashed" else "-"
        axes.plot(one.x, one.y, line, color=colour, label=one.name)
        if one.low:
            axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.2)


def _matplotlib(asked: str) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(asked, "matplotlib", "plot") from None


def check_drawing(path: object) -> None:
    """Check that a file can be drawn, before anything is computed. Raises MissingExtraError."""
    _matplotlib(f"drawing {path}")


def image(charts: Sequence[Chart], form: str) -> bytes:
    """Return a picture of charts below one another; form: png, svg or pdf. Raises MissingExtraError."""
    _matplotlib(f"drawing {form}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5 * len(charts)), layout="constrained")
    places = figure.subplots(len(charts), squeeze=False)[:, 0]
    for chart, axes in zip(charts, places, strict=True):
        chart.draw(axes)
    stream = BytesIO()
    figure.savefig(stream, format=form, dpi=150)
    return stream.getvalue()


def waterfall(title: str, x: str, parts: Mapping[str, float], scale: float = 1.0) -> Chart:
    """Return a chart of parts that add up, the largest first, and of the whole; amounts times `scale`."""
    kept = sorted(((n, v * scale) for n, v in parts.items() if v > 0), key=lambda part: -part[1])
    names, start, end = [name for name, _ in kept], [], list[float]()
    for _, value in kept:
        start.append(end[-1] if end else 0.0)
        end.append(start[-1] + value)
    names, start, end = [*names, "all"], [*start, 0.0], [*end, end[-1] if end else 0.0]
    return Chart(title, x, "", (Series("", "bars", names, end, start=start),))


def html_table(title: str, rows: Iterable[Sequence[object]], headers: Sequence[str] = ()) -> str:
    """Return a small table of HTML, for notebooks; the first cell of a row is its heading."""
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    lines = [f"<tr>{head}</tr>"] if head else []
    for first, *others in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in others)
        lines.append(f"<tr><th>{escape(str(first))}</th>{cells}</tr>")
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"
