"""Charts: what is drawn in characters is where it belongs, and a picture needs its library."""

from __future__ import annotations

import math
import sys

import pytest

from forerun.charts import Chart, Series, duration_unit, html_table, image, waterfall
from forerun.errors import MissingExtraError


def plotted(text: str) -> list[str]:
    """Return a chart's rows of characters, the top one first."""
    return [line.partition("|")[2] for line in text.splitlines() if "|" in line[:12]]


def test_a_line_rises_from_corner_to_corner_within_its_band() -> None:
    band = Series("forecast", "line", [1, 2, 4], [10, 20, 40], [5, 10, 20], [20, 40, 80])
    text = Chart("Scaling", "devices", "rate", (band,), "xy", [1, 2, 4]).text(60, 12)
    rows = plotted(text)
    assert [row.index("*") for row in rows if "*" in row] == sorted(
        (row.index("*") for row in rows if "*" in row), reverse=True
    )
    assert rows[0].rstrip().endswith(":")  # the band's upper edge at the most devices
    assert rows[-1].startswith(":")
    assert not any("*" in row for row in (rows[0], rows[-1]))
    assert max(map(len, text.splitlines())) <= 60
    assert text.splitlines()[0] == "Scaling"
    assert text.splitlines()[-3].split() == ["1", "2", "4"]


def test_points_lie_over_lines_and_unknown_ones_are_left_out() -> None:
    line = Series("as measured", "dashed", [1, 9], [1, 9])
    points = Series("law", "points", [1, 5, 9], [1, 5, math.nan], [0.5, 4, 1], [2, 6, 2])
    rows = plotted(Chart("", "x", "y", (points, line)).text(60, 17))
    assert sum(row.count("o") for row in rows) == 2
    assert any("." in row for row in rows)
    middle = next(row for row in rows if "o" in row)  # the upper of the two
    column = middle.index("o")
    assert [row[column] for row in rows if len(row) > column].count(":") >= 2


def test_a_vertical_line_is_drawn_whole() -> None:
    done = Series("done", "line", [0, 5], [0, 100])
    end = Series("deadline", "dashed", [9, 9], [0, 100])
    rows = plotted(Chart("", "hours", "steps", (done, end)).text(50, 10))
    assert all(row.rstrip().endswith(".") for row in rows)


def test_what_has_no_value_is_drawn_without_one() -> None:
    empty = Series("none", "line", [1, 2], [math.nan, math.nan])
    assert "none" in Chart("", "x", "y", (empty,), "xy").text()
    bars = Series("", "bars", ["a", "b"], [math.nan, 2.0])
    lines = Chart("", "dollars", "", (bars,)).text(40).splitlines()
    assert lines[1].split() == ["a", "unknown"]
    assert lines[2].startswith("b  #")


def test_bars_show_their_band_around_the_median() -> None:
    bars = Series("", "bars", ["a"], [50.0], [25.0], [100.0])
    line = Chart("", "hours", "", (bars,)).text(60).splitlines()[1]
    drawn = line.split()[1]
    assert drawn.count("|") == 2
    assert drawn.index("|") == pytest.approx((len(drawn) - 1) / 4, abs=1)
    assert drawn.rindex("=") == pytest.approx((len(drawn) - 1) / 2, abs=1)
    assert line.split()[2] == "50"


def test_a_waterfall_adds_up_to_the_whole() -> None:
    chart = waterfall("step", "ms", {"sync": 1.0, "compute": 3.0, "none": 0.0}, 1e3)
    bars = chart.series[0]
    assert list(bars.x) == ["compute", "sync", "all"]
    assert list(bars.start) == [0.0, 3000.0, 0.0]
    assert list(bars.y) == [3000.0, 4000.0, 4000.0]


def test_durations_are_drawn_in_a_unit_that_suits_them() -> None:
    units = [duration_unit(s)[1] for s in (10, 3600, 86400, 1e7, math.nan, math.inf)]
    assert units == ["seconds", "minutes", "hours", "days", "seconds", "days"]


def test_a_cell_of_a_notebook_s_table_is_text() -> None:
    assert "<td>&lt;b&gt;</td>" in html_table("t", [("row", "<b>")])


def test_a_picture_without_the_library_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    chart = waterfall("step", "ms", {"compute": 3.0})
    for draw in (chart.draw, lambda: image([chart], "png")):
        with pytest.raises(MissingExtraError, match=r"pip install 'forerun\[plot\]'"):
            draw()


def test_a_picture_has_every_chart_and_every_band() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no picture was drawn")
    points = Series("runs", "points", [1, 2], [1, 2], [0.5, 1], [2, 3], [0.5, 1], [2, 3])
    line = Series("forecast", "line", [1, 2], [1, 2], [0.5, 1], [2, 3])
    charts = [
        Chart("curve", "x", "y", (line, points), "xy", [1, 2]),
        waterfall("w", "s", {"a": 1.0}),
    ]
    assert image(charts, "png").startswith(b"\x89PNG")
    from matplotlib.figure import Figure

    axes = charts[0].draw(Figure().subplots())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["forecast", "runs"]
    assert axes.get_xscale() == "log"
    assert len(axes.collections) >= 3  # the filled band, and the error bars both ways
    odd = r"a$\frac$_b$"  # no formula, whatever it looks like
    named = Series(odd, "points", [1, 2], [1, 2])
    assert image([Chart(odd, "x", "y", (named, line)), waterfall(odd, "s", {odd: 1.0})], "svg")
