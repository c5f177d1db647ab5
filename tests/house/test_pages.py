"""The pages on tables and files: every column and every field is written down."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from forerun.catalog import devices as device_rows
from forerun.catalog import load_catalog
from forerun.contracts import Predictor
from forerun.tables import COLUMNS
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_runs
from forerun.workloads import spec
from forerun.workloads.transformer import TransformerSpec

ROOT = Path(__file__).resolve().parents[2]
SPEC_PAGE = ROOT / "docs" / "spec.md"


def named(page: str) -> set[str]:
    """Return the names in the first cells of a page's tables."""
    cells = re.findall(r"^\| (`[^|]+`) \|", page, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def part(page: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one."""
    return page.partition(f"\n{heading}\n")[2].partition("\n#")[0]


@pytest.mark.parametrize("page", ["tables", "frameworks", "launching"])
def test_a_page_is_what_its_script_writes(page: str) -> None:
    written = subprocess.run(
        [sys.executable, f"docs/{page}_page.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / f"{page}.md").read_text() == written, "run `make docs`"


def test_every_column_says_its_meaning_in_the_page() -> None:
    page = (ROOT / "docs" / "tables.md").read_text()
    for column in COLUMNS.values():
        assert column.help, f"{column.name} says nothing"
        assert f"| `{column.name}` | {column.kind} | {column.unit} | {column.help} |" in page


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("## A workload: the YAML spec", spec._TOP),
        ("### `transformer`", [f.name for f in fields(TransformerSpec)]),
        ("### `operations`",
         ["name", "kind", "shape", "dims", "block", "shard", *spec._OP_NUMBERS, *spec._OP_COUNTS]),
        ("### `devices`", device_rows.schema("device")[0]),
        ("### `instances`", device_rows.schema("instance")[0]),
    ],
)  # fmt: skip
def test_the_page_on_files_has_the_fields_and_no_other(heading: str, names: list[str]) -> None:
    assert named(part(SPEC_PAGE.read_text(), heading)) == set(names)


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", SPEC_PAGE.read_text(), re.S)
    assert len(blocks) == 3
    for i, text in enumerate(blocks[:2]):
        path = tmp_path / f"w{i}.yaml"
        path.write_text(text)
        assert spec.workload_from_spec(path).params > 0
    path = tmp_path / "c.yaml"
    path.write_text(blocks[2])
    cluster = load_catalog([path]).cluster("2xmycloud:big.8x")
    assert (cluster.devices, cluster.device.id) == (16, "my-card")


def test_the_law_that_the_page_on_extending_shows_is_a_predictor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    code = next(b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "GroupedLaws" in b)
    shown = tmp_path / "shown_law.py"
    shown.write_text(code)
    rules = ["ruff", "check", "--isolated", "--select=D1,ANN", "--ignore=D105,D107", str(shown)]
    lint = subprocess.run([sys.executable, "-m", *rules], capture_output=True, check=False)
    assert lint.returncode == 0, lint.stdout  # make lint would refuse it in the repository
    monkeypatch.syspath_prepend(tmp_path)
    law = importlib.import_module("shown_law").Amdahl

    class Exam(PredictorContract):
        def make_predictor(self) -> Predictor:
            fitted: Predictor = law().fit(tiny_runs())
            return fitted

    exam = Exam()
    for name in dir(exam):
        if name.startswith("test_"):
            getattr(exam, name)()
    fitted = law().fit(tiny_runs())
    assert fitted.formulas
    assert type(fitted).from_json(fitted.to_json()).formulas == fitted.formulas
