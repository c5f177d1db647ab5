"""Refit: what is shipped follows from a folder of runs, says how it was made, and is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from converters import converted_folder
from refit import (
    SCALES,
    fitted_runs,
    main,
    refitted,
    repeats_of_sources,
    rows_content,
    run_counts,
)

from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration.fitting import SHARED_POWER, repeats
from forerun.predictors.analytic.saving import shipped_made
from forerun.tables import Runs, read_table
from forerun.tables.fingerprints import seen, unpacked
from forerun.workloads.rows import runs_from_table
from tests.shipping import DENSE, SLOW, data_folder, ship, write


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return ship(monkeypatch, tmp_path)


def runs_in(path: Path) -> Runs:
    return runs_from_table(read_table(path), load_catalog())


def test_what_was_written_answers_as_what_was_fitted(package: Path, tmp_path: Path) -> None:
    tables = fitted_runs(converted_folder(tmp_path / "data" / "runs"))
    fitted, read = refitted(tables), AnalyticPredictor.shipped()
    # Scales of places, workloads and layers are left out: another source's scripts share none of them.
    rounded = AnalyticPredictor(replace(fitted.constants, **{family: {} for family in SCALES}))
    for name, runs in tables.items():
        now, then = (p.predict(runs.jobs) for p in (read, rounded))
        np.testing.assert_allclose(now.seconds[:, 1], then.seconds[:, 1], rtol=1e-3, err_msg=name)
        np.testing.assert_allclose(now.peak_bytes, then.peak_bytes, rtol=1e-3, err_msg=name)


def test_what_was_learned_is_nearer_to_the_runs_than_the_priors(
    package: Path, tmp_path: Path
) -> None:
    for name, runs in fitted_runs(tmp_path / "data" / "runs").items():
        off = [np.abs(np.log(p.predict(runs.jobs).seconds[:, 1] / runs.step_seconds())).mean()
               for p in (AnalyticPredictor.shipped(), AnalyticPredictor())]  # fmt: skip
        assert off[0] < 0.7 * off[1], name


def test_the_file_says_how_it_was_made(package: Path) -> None:
    made = shipped_made()
    assert made["runs"] == {"dense": len(DENSE), "slow": len(SLOW)}  # and no Spark
    assert {"date", "commit", "seed", "command", "split"} <= set(made)


def test_runs_that_are_suspect_are_not_counted_as_teachers(tmp_path: Path) -> None:
    """Of twelve runs one is a thousand times as long as physics and its siblings say."""
    cells = SLOW[3].split(",")
    wrong = ",".join([*cells[:6], str(1000.0 * float(cells[6])), *cells[7:]])
    path = write(tmp_path / "slow.csv", [*SLOW[:3], wrong, *SLOW[4:]])
    dense = write(tmp_path / "dense.csv", DENSE)
    tables = {"slow": runs_in(path), "dense": runs_in(dense)}
    assert run_counts(tables) == {"slow": len(SLOW) - 1, "dense": len(DENSE)}
    rows = rows_content(tables, {"date": "", "commit": ""})["rows"]
    assert np.flatnonzero(~seen(tables["slow"], rows)).tolist() == [3]
    assert {name: len(unpacked(text)) for name, text in rows.items()} == run_counts(tables)


def test_every_constant_has_a_line_that_a_person_can_read(package: Path) -> None:
    text = (package / "constants.json").read_text()
    learned = json.loads(text)["learned"]
    assert len(learned) > 20
    lines = text[text.index('"learned"') :].splitlines()
    assert len(lines) == len(learned) + 3  # the group's two lines, and the file's last
    assert [line.split('"')[1] for line in lines[1:-2]] == list(learned)
    far = json.loads(text)["absorbs_misfit"]
    assert all(name in learned and sds > 3.0 for name, sds in far.items())
    assert {"dense-lab", "slow-lab"} == {s for row in learned.values() for s in row[-1]}


def test_what_only_one_source_shows_is_neither_shipped_nor_learned(
    package: Path, tmp_path: Path
) -> None:
    content = json.loads((package / "constants.json").read_text())
    named = {name.partition("[")[0] for name in (*content["learned"], *content["constants"])}
    assert "device_compute" in named
    assert not named & set(SCALES)
    tables = fitted_runs(converted_folder(tmp_path / "data" / "runs"))
    free = refitted(tables, setting_sd=0.12).constants.workload_scale
    held = refitted(tables).constants.workload_scale
    assert max(abs(held[name] - 1.0) for name in held) < 0.02
    assert max(abs(free[name] - 1.0) for name in free) > 0.02


def test_a_source_counts_as_the_root_of_what_its_rows_say(tmp_path: Path) -> None:
    path = data_folder(tmp_path / "data") / "runs" / "slow.csv"
    jobs = runs_in(path).jobs
    alike = repeats(jobs)
    assert (alike**-SHARED_POWER).sum() > 1.5
    whole = (repeats_of_sources(jobs) ** -SHARED_POWER).sum()
    assert whole == pytest.approx((alike**-SHARED_POWER).sum() ** (1.0 - SHARED_POWER))
    one = jobs.take(np.arange(1))
    assert repeats_of_sources(one).tolist() == [1.0]


def test_runs_that_taught_are_known_again_and_others_are_not(package: Path, tmp_path: Path) -> None:
    rows = AnalyticPredictor.shipped_rows()
    runs = runs_in(tmp_path / "data" / "runs" / "slow.csv")
    assert seen(runs, rows).all()
    other = Runs(runs.jobs, runs.table.with_columns(step_time_s=runs.step_seconds() * 1.01))
    assert not seen(other, rows).any()


def test_a_run_that_ran_out_of_memory_teaches_too(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "data") / "runs"
    full = "gpt2,v100-sxm2-16gb,1,1,64,megatron,,,oom,dense-lab,fp16"
    write(folder / "dense.csv", [*DENSE, full])
    assert "oom" in fitted_runs(folder)["dense"].status


def test_no_table_gives_more_than_its_share(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "data") / "runs"
    assert [len(runs) for runs in fitted_runs(folder, each=4).values()] == [4, 4]
    assert [len(runs) for runs in fitted_runs(folder).values()] == [len(DENSE), len(SLOW)]


@pytest.mark.parametrize("words", [("--data", "no/such"), ("--out", "no/such"), ()])
def test_a_mistake_is_told(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORERUN_DATA", raising=False)
    given = ["--data", str(data_folder(tmp_path / "data")), "--out", str(tmp_path), *words]
    with pytest.raises(RequestError):
        main(given if words else ["--out", str(tmp_path)])


def test_nothing_but_other_jobs_teaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write(tmp_path / "runs" / "odd.csv", ["no-such-net,t4,1,1,8,,1,,ok,x,"])
    with pytest.raises(RequestError, match="no table of measured steps"):
        fitted_runs(tmp_path / "runs")
