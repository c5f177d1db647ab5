"""Shipped constants: the files in the package are whole, small, and physically possible."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor, saving
from forerun.predictors.analytic.calibration.parameters import TABLES
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.families import FAMILIES
from forerun.predictors.analytic.operations import WINOGRAD_SHARE
from forerun.tables.fingerprints import unpacked
from tests.shipping import ship, ship_nothing

REAL = pytest.mark.skipif(not saving.has_shipped(), reason="this checkout ships no constants yet")
LARGEST_BYTES = 120_000
GIB = 2**30 / 1e9
WIDE = ("conv", "conv_grouped", "conv_depthwise")  # of 3 x 3 filters, which Winograd knows
# The most that each can be: nothing passes its peak, but Winograd its nominal one; where 16-bit
# numbers are computed in pairs they reach twice the fp32 rate.
MOST = {
    **{f"tensor_efficiency.{k}": 1.0 for k in Constants().tensor_efficiency},
    # Graphs count traffic that fusions and caches spare.
    **{f"bandwidth_efficiency.{k}": 1.25 for k in Constants().bandwidth_efficiency},
    **{f"link_efficiency.{k}": 1.0 for k in Constants().link_efficiency},
    **{f"double_efficiency.{k}": 1.0 for k in Constants().double_efficiency},
    # Matrix products in fp32 ran on TF32 units in some of the runs (PyTorch 1.7 to 1.11).
    **{f"vector_efficiency.{k}": 1.0 / WINOGRAD_SHARE if k in WIDE else 1.2
       for k in Constants().vector_efficiency},
    **{f"narrow_efficiency.{k}": 2.0 * (1.0 / WINOGRAD_SHARE if k in WIDE else 1.0)
       for k in Constants().narrow_efficiency},
}  # fmt: skip


@REAL
def test_the_file_is_small_and_names_the_tables_that_taught() -> None:
    text = (saving.place() / saving.FILE).read_text(encoding="utf-8")
    assert len(text) < LARGEST_BYTES
    made = saving.shipped_made()
    assert made["runs"]
    assert all(count > 0 for count in made["runs"].values())
    for name in ("date", "commit", "seed", "command", "split"):
        assert str(made[name]), name
    assert not str(made["commit"]).endswith("-dirty")


@REAL
def test_every_table_named_has_its_runs_fingerprints() -> None:
    rows = saving.shipped_rows()
    counts = saving.shipped_made()["runs"]
    assert set(rows) == set(counts)
    for name, text in rows.items():
        # Repeats that agree to five digits have one.
        assert 0.2 * counts[name] < len(unpacked(text)) <= counts[name], name


@REAL
def test_it_comes_back_from_a_model_file_as_it_is() -> None:
    first = AnalyticPredictor.shipped()
    assert AnalyticPredictor.from_json(first.to_json()).constants == first.constants
    assert first.start == "shipped"


@REAL
def test_every_efficiency_is_physically_possible() -> None:
    constants, _ = saving.shipped_constants()
    plain = asdict(constants)
    for name, most in MOST.items():
        family, key = name.split(".")
        assert 0 < plain[family][key] <= most, name
    for framework, profile in constants.frameworks.items():
        assert 0 < profile.usable_share <= GIB, framework
        assert profile.host_seconds > 0
    for name, bounds in FAMILIES.items():
        field = name.partition(".")[2]
        profiles = constants.frameworks.values()
        values = [getattr(p, field) for p in profiles] if field else [plain[name]]
        if name not in TABLES:
            assert all(bounds.low <= value <= bounds.high for value in values), name


@REAL
def test_it_is_read_quickly() -> None:
    saving._read.cache_clear()
    gc.collect()
    gc.disable()  # what other tests left to be collected is no time of the reading
    try:
        before = time.process_time()
        AnalyticPredictor.shipped()
        took = time.process_time() - before
    finally:
        gc.enable()
    assert took < 0.1  # 8 ms on a quiet machine


def test_fits_go_on_from_what_is_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ship(monkeypatch, tmp_path)
    first = AnalyticPredictor.shipped()
    known = {entry.name for entry in first.learned if entry.identified}
    assert known
    assert set(first.constants.settled) == known
    assert not any(name.startswith("setting:") for name in first.constants.run_counts)


def test_a_package_without_the_file_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ship_nothing(monkeypatch, tmp_path)
    assert AnalyticPredictor.shipped_made() is None
    with pytest.raises(RequestError, match="reading the shipped constants"):
        AnalyticPredictor.shipped()


@pytest.mark.parametrize("spoil", ["", "[]", '{"format": "forerun-constants/1"}', "{"])
def test_a_file_that_is_not_whole_says_so(
    spoil: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = ship(monkeypatch, tmp_path)
    (package / saving.FILE).write_text(spoil)
    with pytest.raises(RequestError, match=r"constants\.json.*--start priors"):
        AnalyticPredictor.shipped()


@pytest.mark.parametrize("part", ["constants", "learned"])
def test_a_file_with_a_part_of_another_shape_says_so(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = ship(monkeypatch, tmp_path)
    content = json.loads((package / saving.FILE).read_text())
    (package / saving.FILE).write_text(json.dumps({**content, part: {"magic": "x"}}))
    with pytest.raises(RequestError, match="reading the shipped"):
        AnalyticPredictor.shipped()


def test_fingerprints_of_other_constants_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = ship(monkeypatch, tmp_path)
    assert set(AnalyticPredictor.shipped_rows()) == {"slow", "dense"}
    content = json.loads((package / saving.ROWS_FILE).read_text())
    content["made"]["date"] = "1999-01-01"
    (package / saving.ROWS_FILE).write_text(json.dumps(content))
    saving._read.cache_clear()
    with pytest.raises(RequestError, match="it was not made with"):
        AnalyticPredictor.shipped_rows()
