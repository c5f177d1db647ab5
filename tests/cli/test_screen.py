"""What a person reads fits the terminal: numbers in one piece, sentences broken between words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.cli.showing import Screen, _kept, is_numeric
from forerun.settings import load_settings
from tests.cli.conftest import Run

Reading = Callable[[], list[str]]
HEADERS = ("cluster", "run", "peak memory", "P(in time)", "plan")
ROWS = [("32xnebius:gpu-h100-sxm_8gpu-128vcpu-1600gb@eu-north1", "53.3 min", "716 MB", ">0.99",
         "dp=256 micro_batch=1 zero_stage=2 sequence_parallel=true"),
        ("1xlambda:gpu_1x_gh200", "5.9 h", "13.2 GB", "0.85", "dp=1 micro_batch=256")]  # fmt: skip


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Callable[[int], Screen], Reading]:
    """Return a maker of screens of some width, and what was written on them without colours."""

    def screen(width: int) -> Screen:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("FORERUN_COLOR", "always")
        return Screen(load_settings())

    def written() -> list[str]:
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return screen, written


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_every_cell_of_numbers_stands_whole_in_one_line(
    terminal: tuple[Callable[[int], Screen], Reading], width: int
) -> None:
    screen, written = terminal
    screen(width).table(HEADERS, ROWS)
    lines = written()
    assert max(len(line.rstrip()) for line in lines) <= width
    for row in ROWS:
        assert [line for line in lines if all(cell in line for cell in row[1:4])]


def test_a_wide_first_column_stands_above_its_row_and_others_below(
    terminal: tuple[Callable[[int], Screen], Reading],
) -> None:
    screen, written = terminal
    screen(60).table(HEADERS, ROWS)
    lines = written()
    at = lines.index(ROWS[1][0])
    assert "13.2 GB" in lines[at + 1]
    assert lines[at + 2] == f"    plan: {ROWS[1][4]}"


def test_a_sentence_is_broken_between_words_under_its_label(
    terminal: tuple[Callable[[int], Screen], Reading],
) -> None:
    screen, written = terminal
    text = "price   " + "a word and more " * 10
    screen(50).line(text)
    first, *rest = written()
    assert first.startswith("price   a word")
    assert all(line.startswith("        ") and len(line) <= 50 for line in rest)
    assert " ".join(" ".join((first, *rest)).split()) == " ".join(text.split())


def test_what_is_piped_stays_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = "source  " + "word " * 100
    Screen(load_settings()).line(text)
    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize(
    "cell",
    ["1", "-0.91", "$1,362", ">0.99", "<0.01", "12.2 h", "1.02x", "100 %", "61.5%", "0.83x to 1.17x",
     "100 (34-100)", "0.20-0.30", "289.1 kWh", "1,024", "8.03B", "50 % to 60 %", "3.4 days", ""],
)  # fmt: skip
def test_numbers_are_told_by_their_look(cell: str) -> None:
    assert is_numeric(cell)


@pytest.mark.parametrize(
    "cell", ["4x8xh100-sxm-80gb", "32xoci:BM.GPU.B300.8@us", "dp=4", "yes", "no-such", "2H200.141S"]
)
def test_names_are_no_numbers(cell: str) -> None:
    assert not is_numeric(cell)


@given(st.integers(20, 200), st.lists(st.integers(1, 60), min_size=2, max_size=8), st.data())
def test_no_column_of_numbers_ever_leaves_the_row(
    width: int, sizes: list[int], data: st.DataObject
) -> None:
    right = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    row = ["1" * n if numeric else "a" * n for n, numeric in zip(sizes, right, strict=True)]
    kept = _kept(["h"] * len(sizes), [row], right, width)
    assert {i for i, numeric in enumerate(right) if numeric} <= set(kept)


@pytest.mark.parametrize("width", ["80", "120"])
def test_an_explanation_fits_the_terminal(
    forerun: Run, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("FORERUN_COLOR", "always")
    done = forerun("explain", "resnet50", "--cluster", "1x8xa100-sxm-80gb")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.out)
    assert max(len(line.rstrip()) for line in plain.splitlines()) <= int(width)
