"""Runs that look wrong are named at every door that learns from runs, and in a file on request."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.conftest import Run

HEAD = "workload,device,nodes,devices,dp,global_batch,step_time_s,status"
SOUND = [f"resnet50,a100-sxm-80gb,1,{n},{n},{64 * n},{0.08 + 0.001 * n},ok" for n in (1, 2, 4, 8)]
IN_MS = "resnet50,a100-sxm-80gb,1,8,8,1024,170,ok"
UNEVEN = "resnet50,a100-sxm-80gb,1,8,4,512,0.09,ok"
OOM = "resnet50,a100-sxm-80gb,1,8,8,65536,,oom"


def table(path: Path, *rows: str) -> str:
    path.write_text("\n".join((HEAD, *rows)) + "\n")
    return str(path)


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return table(tmp_path / "runs.csv", *SOUND[:2], "", IN_MS, *SOUND[2:], UNEVEN, OOM)


def test_fit_names_each_row_that_it_leaves_out(forerun: Run, runs: str, tmp_path: Path) -> None:
    done = forerun("fit", "--runs", runs, "--out", str(tmp_path / "m.json"))
    assert done.code == 0
    assert "3 of 7 runs are flagged; 4 have a step time to fit" in done.out
    assert "runs.csv line 5: step_time_s is 170 s; expected about 0.1" in done.out
    assert "it looks like ms: divide by 1000" in done.out
    assert "runs.csv line 8: the plan uses tp x pp x dp x cp = 4 devices" in done.out
    assert "runs.csv line 9: it ran out of memory" in done.out


def test_what_is_left_out_teaches_nothing(forerun: Run, runs: str, tmp_path: Path) -> None:
    sound = table(tmp_path / "sound.csv", *SOUND)
    models = [tmp_path / name for name in ("a.json", "b.json")]
    for source, model in zip((runs, sound), models, strict=True):
        assert forerun("fit", "--runs", source, "--out", str(model)).code == 0
    ask = (
        "predict",
        "resnet50",
        "--cluster",
        "1x8xa100-sxm-80gb",
        "--global-batch",
        "512",
        "--json",
    )
    first, second = (forerun(*ask, "--model", str(m)).json()["step_seconds"]["p50"] for m in models)
    assert first == pytest.approx(second, rel=1e-6)


def test_the_file_holds_every_flag_with_its_line(forerun: Run, runs: str, tmp_path: Path) -> None:
    to = tmp_path / "flags.csv"
    done = forerun("fit", "--runs", runs, "--out", str(tmp_path / "m.json"), "--flags", str(to))
    assert f"3 flags written to {to}" in done.out
    rows = list(csv.DictReader(to.read_text().splitlines()))
    assert [(r["file"], r["line"], r["kind"]) for r in rows] == [
        ("runs.csv", "5", "unit"), ("runs.csv", "8", "devices"), ("runs.csv", "9", "ended"),
    ]  # fmt: skip
    assert {r["teaches_step_time"] for r in rows} == {"false"}
    assert rows[0]["column"] == "step_time_s"
    assert rows[0]["found"] == "170 s"


def test_json_has_the_flags_as_columns(forerun: Run, runs: str, tmp_path: Path) -> None:
    data = forerun("fit", "--runs", runs, "--out", str(tmp_path / "m.json"), "--json").json()
    assert data["kind"] == "fit"
    assert data["predictor"] == "analytic"
    assert data["runs"]["counts"] == {"unit": 1, "devices": 1, "ended": 1}
    assert data["runs"]["flags"]["line"] == [5, 8, 9]
    assert data["runs"]["rows_that_teach_time"] == 4


def test_the_count_is_that_of_the_rows_that_are_listed(
    forerun: Run, runs: str, tmp_path: Path
) -> None:
    """`fit` lists rows that only have nothing to teach too; `predict --fit` names faults alone."""
    out = forerun("fit", "--runs", runs, "--out", str(tmp_path / "m.json")).out
    assert out.startswith("3 of 7 runs are flagged")
    assert len({line.split(":")[1] for line in out.splitlines() if ".csv line" in line}) == 3
    err = forerun("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--fit", runs).err
    assert err.startswith("2 of 7 runs are flagged")
    assert sum(".csv line" in line for line in err.splitlines()) == 2


def test_columns_that_nobody_reads_are_named_with_what_was_meant(
    forerun: Run, tmp_path: Path
) -> None:
    path = tmp_path / "runs.csv"
    heads = HEAD.replace("status", "note_to_me") + ",memory_bg"
    path.write_text("\n".join((heads, *(f"{row},1" for row in SOUND))) + "\n")
    done = forerun("fit", "--runs", str(path), "--out", str(tmp_path / "m.json"))
    assert done.out.startswith(
        "2 columns are not known, and not read: 'memory_bg' (did you mean 'memory_gb'?),"
        " 'note_to_me' (it is the same in all runs); if so: --map 'memory_bg=memory_gb'\n"
    )
    asked = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--fit", str(path))
    assert forerun(*asked).err.startswith("1 column is not known, and not read: 'memory_bg'")
    data = forerun("fit", "--runs", str(path), "--out", str(tmp_path / "n.json"), "--json").json()
    assert data["runs"]["unread_columns"] == {"memory_bg": "memory_gb", "note_to_me": ""}


def test_a_misspelt_measurement_is_named_where_nothing_could_be_learned(
    forerun: Run, tmp_path: Path
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((HEAD.replace("step_time_s", "step_tim"), *SOUND)) + "\n")
    done = forerun("fit", "--runs", str(path), "--out", str(tmp_path / "m.json"))
    assert done.code == 2
    assert "'step_tim' (did you mean 'step_time_s'?)" in done.err


def test_sound_runs_are_not_spoken_of(forerun: Run, tmp_path: Path) -> None:
    sound = table(tmp_path / "sound.csv", *SOUND)
    done = forerun("fit", "--runs", sound, "--out", str(tmp_path / "m.json"))
    assert done.out.startswith("analytic fitted on 1 table,")
    assert done.err == ""


def test_a_table_of_jobs_is_answered_and_the_runs_are_named_aside(
    forerun: Run, runs: str, jobs: Path, tmp_path: Path
) -> None:
    to = tmp_path / "flags.csv"
    done = forerun(
        "predict", "--table", str(jobs), "--fit", runs, "--flags", str(to), "--json"
    )  # fmt: skip
    assert "runs.csv line 5: step_time_s is 170 s" in done.err
    assert done.json()["runs"]["counts"]["unit"] == 1
    assert to.read_text().count("\n") == 4


def test_one_answer_with_fit_names_them_too(forerun: Run, runs: str) -> None:
    done = forerun("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--fit", runs)
    assert "runs.csv line 5: step_time_s is 170 s" in done.err
    assert "line 5" not in done.out


def test_evaluate_names_them_on_both_sides(forerun: Run, runs: str, tmp_path: Path) -> None:
    smaller = [f"resnet50,a100-sxm-80gb,1,{n},{n},{32 * n},{0.05 + 0.001 * n},ok" for n in (1, 2)]
    other = table(tmp_path / "other.csv", *smaller, IN_MS.replace("1024,170", "512,90"))
    done = forerun("evaluate", "--runs", runs, "--fit", other, "--json")
    assert done.code == 0
    assert "runs.csv line 5: step_time_s is 170 s" in done.err
    assert "other.csv line 4: step_time_s is 90 s" in done.err
    assert done.json()["kind"] == "evaluation"


def test_runs_that_all_ran_out_of_memory_are_refused_with_the_way_on(
    forerun: Run, tmp_path: Path
) -> None:
    oom = table(tmp_path / "oom.csv", OOM, OOM)
    to = tmp_path / "flags.csv"
    done = forerun("fit", "--runs", oom, "--out", str(tmp_path / "m.json"), "--flags", str(to))
    assert done.code == 2
    assert "none of them has a step time to fit: 2 ended" in done.err
    assert "add a run that ended ok" in done.err
    assert "oom.csv line 3: it ran out of memory" in done.err
    assert to.read_text().count("ended") == 2
    assert not (tmp_path / "m.json").exists()


def test_a_whole_column_in_milliseconds_is_refused_in_one_sentence(
    forerun: Run, tmp_path: Path
) -> None:
    rows = [row.replace(",0.08", ",8") for row in SOUND]
    ms = table(tmp_path / "ms.csv", *rows)
    done = forerun("fit", "--runs", ms, "--out", str(tmp_path / "m.json"))
    assert done.code == 2
    assert "ms.csv: the whole column step_time_s looks like ms (4 of 4 rows)" in done.err


def test_a_slip_in_a_framework_is_named_where_runs_are_learned(
    forerun: Run, tmp_path: Path
) -> None:
    file = tmp_path / "slip.csv"
    rows = [f"{row},{name}" for row, name in zip(SOUND, ("pytorch", "pytroch", "my-loop", ""), strict=True)]  # fmt: skip
    file.write_text("\n".join((f"{HEAD},framework", *rows)) + "\n")
    said = "framework 'pytroch' is not known, and is taken for a framework of its own: did you mean pytorch?"
    done = forerun("fit", "--runs", str(file), "--out", str(tmp_path / "m.json"))
    assert done.code == 0
    assert done.out.count(" is not known") == done.out.count(said) == 1
    ask = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--fit", str(file))
    assert said in forerun(*ask, "--predictor", "analytic").err


def test_flags_without_runs_to_flag_are_refused(forerun: Run, tmp_path: Path) -> None:
    ask = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb")
    done = forerun(*ask, "--flags", str(tmp_path / "f.csv"))
    assert done.code == 2
    assert "give --fit too" in done.err


@pytest.mark.parametrize("name", ["flags.txt", "runs.csv", "m.json"])
def test_flags_go_to_a_table_of_their_own(
    forerun: Run, runs: str, tmp_path: Path, name: str
) -> None:
    out = str(tmp_path / "m.json")
    done = forerun("fit", "--runs", runs, "--out", out, "--flags", str(tmp_path / name))
    assert done.code == 2
    assert not Path(out).exists()


def test_answers_and_flags_are_not_written_to_one_file(
    forerun: Run, runs: str, jobs: Path, tmp_path: Path
) -> None:
    to = str(tmp_path / "both.csv")
    done = forerun("predict", "--table", str(jobs), "--out", to, "--fit", runs, "--flags", to)
    assert done.code == 2
    assert "name two files" in done.err


def test_the_text_says_which_of_several_unit_rows_is_left_out(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"llama3-8b,4x8xh100-sxm-80gb,128,torchtitan,{v}" for v in (23.8, 0.74, 195_000, 6.1)]
    head = "workload,cluster,global_batch,framework,samples_per_s"
    path.write_text("\n".join((head, *rows)) + "\n")
    done = forerun("fit", "--runs", str(path), "--out", str(tmp_path / "m.json"))
    said = {int(line.split(" line ")[1].split(":")[0]): line for line in done.out.splitlines()
            if line.startswith("  unit: ")}  # fmt: skip
    assert "left out where certainly wrong (2 of " in done.out
    for line in (3, 4):
        assert said[line].endswith("; left out")
    assert all(text.endswith("kept") for line, text in said.items() if line not in (3, 4))
    assert "line 2:" not in done.out.partition("contradictory-repeats:")[0]
