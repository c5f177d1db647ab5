"""Units: what a person writes becomes SI, and what they cannot mean becomes a RequestError."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.units import (
    above,
    counted,
    format_bytes,
    format_count,
    format_dollars,
    format_kwh,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_dollars,
    parse_duration,
)

# Text near the edge between sense and nonsense, beside text of any kind.
NEARLY = st.text("0123456789.,:_-+eE$ kKmMbBtThHdDsSwinaf\u212a\u017f\u0663", max_size=12)
ANY = st.one_of(NEARLY, st.text(max_size=30))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86400.0),
        ("1d12h", 129600.0),
        ("1d, 12h", 129600.0),
        ("90 min", 5400.0),
        ("90m", 5400.0),
        ("1:30:00", 5400.0),
        ("1:30", 5400.0),
        ("250ms", 0.25),
        ("1.5 Hours", 5400.0),
        ("2 weeks", 1209600.0),
        ("1e3s", 1000.0),
        (".5h", 1800.0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["", " ", "24", "h", "-3h", "0h", "3 fortnights", "1h 30", "1.2.3h", "nan s", "inf h",
     "1e999h", "1:75", "1:00:99", "h24", "24h!", "1:2"],
)  # fmt: skip
def test_what_is_not_a_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match="90min, 24h or 1d12h") as caught:
        parse_duration(text, "deadline")
    assert caught.value.asked == f"deadline {text!r}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("300", 300.0),
        (300, 300.0),
        (2.5, 2.5),
        (1e22, 1e22),
        ("1.5e12", 1.5e12),
        ("15T", 15e12),
        ("2.5m", 2.5e6),
        ("8B", 8e9),
        ("8g", 8e9),
        ("4k", 4e3),
        ("1,234,567.5", 1234567.5),
        ("1_000", 1000.0),
        (" 7 ", 7.0),
    ],
)
def test_a_count_is_read_with_its_suffix(text: str | float, value: float) -> None:
    assert parse_count(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "nan",
        "inf",
        "1e999",
        "101e180",
        "many",
        "3x",
        "1 2",
        "k",
        math.nan,
        -2.0,
        True,
    ],
)
def test_what_is_not_a_positive_number_is_refused(text: str | float) -> None:
    with pytest.raises(RequestError, match="steps"):
        parse_count(text, "steps")


@pytest.mark.parametrize("text", ["1,5", "1,5M", "12,34", "1,2345", "1,234,5", ",5", "0,001,5"])
def test_a_decimal_comma_is_refused_rather_than_read_as_ten_times_as_much(text: str) -> None:
    with pytest.raises(RequestError, match="not a positive number"):
        parse_count(text)


@pytest.mark.parametrize(
    "text", ["5000", "$5000", "$5,000", "$ 5000", "5k", "5000 USD", "5000usd", 5000]
)
def test_dollars_are_read_as_people_write_them(text: str | float) -> None:
    assert parse_dollars(text) == 5000.0


@pytest.mark.parametrize("text", ["€5", "5 EUR", "$", "-$5", "$-5", "free"])
def test_money_that_is_not_dollars_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="budget"):
        parse_dollars(text)


@pytest.mark.parametrize("parse", [parse_duration, parse_count, parse_dollars])
@given(text=ANY)
def test_any_text_is_a_positive_finite_number_or_a_request_error(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    try:
        value = parse(text)
    except RequestError:
        return
    assert 0 < value < math.inf


@given(st.floats(1e-6, 1e15))
def test_a_count_written_in_full_comes_back_exactly(value: float) -> None:
    assert parse_count(repr(value)) == value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (25e-6, "25 us"),
        (0.0421, "42.1 ms"),
        (0.9996, "1,000 ms"),
        (12.34, "12.3 s"),
        (119.9, "120 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (172800, "2.0 days"),
        (86400 * 999, "999.0 days"),
        (86400 * 36525, "100.0 years"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_seconds_are_shown_in_a_unit_a_person_reads(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (8e10, "80 GB"), (1.5e12, "1.5 TB"), (999.9e6, "1,000 MB"),
     (4.2e15, "4,200 TB"), (math.nan, "unknown")],
)  # fmt: skip
def test_bytes_are_shown_in_decimal_units(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(0, "$0.00"), (3.456, "$3.46"), (1234567.8, "$1,234,568"), (math.nan, "no price")],
)
def test_dollars_have_cents_below_a_hundred(dollars: float, text: str) -> None:
    assert format_dollars(dollars) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7"), (4100, "4.1k"), (8.03e9, "8.03B"), (15e12, "15T"), (3e18, "3,000,000T")],
)
def test_counts_are_shown_with_a_suffix(count: float, text: str) -> None:
    assert format_count(count) == text


@given(st.floats(1e-9, 1e12))
def test_no_shown_duration_or_size_needs_an_exponent_or_lies(value: float) -> None:
    for text in (format_seconds(max(value, 1e-6)), format_bytes(value)):
        assert "e+" not in text
    if value >= 1:
        number, unit = format_bytes(value).split()
        scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
        assert float(number.replace(",", "")) * scale == pytest.approx(value, rel=6e-3, abs=0.5)


@given(st.floats(1e5, 1e13))
def test_a_shown_duration_reads_back_within_its_digits(seconds: float) -> None:
    text = format_seconds(seconds)
    if "years" not in text:
        assert parse_duration(text.replace(",", "")) == pytest.approx(seconds, rel=0.03)


def test_energy_and_counts_read_the_same_everywhere() -> None:
    assert [format_kwh(v) for v in (9.604, 289.12, 2475.3, math.nan)] == [
        "9.604 kWh", "289.1 kWh", "2,475 kWh", "unknown",
    ]  # fmt: skip
    assert [counted(n, "run") for n in (0, 1, 2400)] == ["0 runs", "1 run", "2,400 runs"]
    assert counted(2, "entry", "entries") == "2 entries"
    assert format_seconds(4.97e-14) == "<0.001 us"


def test_a_number_above_a_limit_never_reads_as_the_limit() -> None:
    assert above(format_seconds, 7.04 * 86400, 7 * 86400) == ("7.04 days", "7.00 days")
    assert above(format_dollars, 500.00001, 500) == ("just over $500", "$500")
    assert above(format_dollars, 600, 500) == ("$600", "$500")


@pytest.mark.parametrize(
    ("text", "count"),
    [("256GB", 256e9), ("256", 256e9), ("1 TiB", 2.0**40), ("1.5t", 1.5e12), ("512 MB", 512e6),
     (".5GiB", 2.0**29), ("8kb", 8e3)],
)  # fmt: skip
def test_an_amount_of_memory_is_read_in_bytes(text: str, count: float) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1 GBit", "1e3", "1,5GB", "256 PB", "nan"])
def test_what_is_no_amount_of_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match="256GB or 1TiB") as caught:
        parse_bytes(text, "--min-ram")
    assert caught.value.asked == f"--min-ram {text!r}"
