"""The page on elastic training: its job is read, and its table has every field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forerun.measure.elastic import job as job_file
from forerun.measure.elastic.job import MetricTarget, read_training_job

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "elastic.md").read_text()


def test_the_job_of_the_page_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0])
    job = read_training_job(path)
    assert job.target == MetricTarget("accuracy", 0.98, at_least=True)
    assert len(job.configurations) == 8
    assert (job.reference_batch, job.within_seconds, job.rule) == (32, 300.0, "adascale")
    assert job.search == "partial"


def test_the_page_has_every_field_and_no_other() -> None:
    cells = re.findall(r"^\| (`[^|]+`) \|", PAGE, re.M)
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert named == set(job_file.FIELDS)


@pytest.mark.parametrize("name", ["digits", "text"])
def test_the_examples_are_jobs_with_a_target_and_a_limit(name: str) -> None:
    job = read_training_job(ROOT / "examples" / f"{name}.yaml")
    assert job.target is not None
    assert job.within_seconds <= 300
