"""Learned: fit tells what runs taught, doors start from what is shipped, and answers say which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.advisor import Advisor
from forerun.cli.learned import show_formulas
from forerun.cli.showing import Screen
from forerun.settings import load_settings
from tests.cli.conftest import Run
from tests.shipping import DENSE, SLOW, ship, ship_nothing, write

ON_A100 = ("--cluster", "1x8xa100-sxm-80gb")
ASK = ("predict", "resnet50", *ON_A100, "--framework", "pytorch", "--global-batch", "512", "--json")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return write(tmp_path / "slow.csv", SLOW)


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return ship(monkeypatch, tmp_path)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ship_nothing(monkeypatch, tmp_path)


def test_fit_prints_what_the_runs_taught_and_what_they_left_open(
    forerun: Run, bare: None, slow: Path, tmp_path: Path
) -> None:
    done = forerun("fit", "--runs", str(slow), "--out", str(tmp_path / "m.json"))
    assert done.code == 0, done.err
    first, header, *rows = done.out.splitlines()
    assert "1 table" in first
    assert "(priors, fitted to 12 runs)" in first
    assert header.split() == ["constant", "learned", "5", "to", "95", "%", "prior", "runs", "from"]
    assert "12  slow-lab" in rows[0]
    kept = [
        row for row in rows if row.startswith("not identified, so they stay near their priors: ")
    ]
    assert len(kept) == 1
    assert rows[rows.index(kept[0]) + 1].startswith(
        "setting: the runs come from 1 place (source: slow-lab)"
    )
    assert rows[-1].startswith("next: a run ")


def test_fit_marks_what_went_too_far_from_its_prior(
    forerun: Run, bare: None, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants that lie farther off than the mark are named, with how far; here it is set low."""
    ask = ("fit", "--runs", str(slow), "--out", str(tmp_path / "m.json"), "--force")
    assert "absorbs misfit" not in forerun(*ask, "--constants").out
    monkeypatch.setattr("forerun.predictors.analytic.saving.FAR_OFF", 0.7)
    lines, data = forerun(*ask, "--constants").out.splitlines(), forerun(*ask, "--json").json()
    far = [e for e in data["learned"] if e["identified"] and e["absorbs_misfit"]]
    assert far
    (said,) = [line for line in lines if line.startswith("absorbs misfit")]
    assert all(f"{e['words']} {e['sds_from_prior']:.1f} sd" in said for e in far)


def test_fit_prints_all_only_when_asked(
    forerun: Run, bare: None, slow: Path, tmp_path: Path
) -> None:
    dense = write(tmp_path / "dense.csv", DENSE)
    ask = ("fit", "--runs", str(slow), str(dense), "--out", str(tmp_path / "m.json"), "--force")
    some, every = forerun(*ask).out, forerun(*ask, "--constants").out
    assert len(every) > len(some)
    assert "(--constants)" in some
    assert "(--constants" not in every


def test_fit_in_json_has_every_constant(
    forerun: Run, bare: None, slow: Path, tmp_path: Path
) -> None:
    data = forerun("fit", "--runs", str(slow), "--out", str(tmp_path / "m.json"), "--json").json()
    assert (data["start"], data["fitted_runs"], data["runs_known_already"]) == ("priors", 12, 0)
    names = {entry["name"] for entry in data["learned"]}
    assert {"device_compute[a100-sxm-80gb]", "framework.step_seconds[pytorch]"} <= names
    open_names = {entry["name"] for entry in data["learned"] if not entry["identified"]}
    assert set(data["not_identified"]) == open_names
    for entry in data["learned"]:
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert entry["words"] != entry["name"]


def test_doors_start_from_what_is_shipped_and_from_priors_when_asked(
    forerun: Run, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, plain = forerun(*ASK).json(), forerun(*ASK, "--start", "priors").json()
    assert (usual["predictor"], usual["start"], usual["fitted_runs"]) == ("analytic", "shipped", 0)
    assert plain["start"] == "priors"
    assert usual["step_seconds"] != plain["step_seconds"]
    assert usual["distance"] < plain["distance"]
    monkeypatch.setenv("FORERUN_START", "priors")
    assert forerun(*ASK).json()["step_seconds"] == plain["step_seconds"]
    assert forerun(*ASK, "--start", "shipped").json()["step_seconds"] == usual["step_seconds"]


def test_every_door_says_which_constants_answered(
    forerun: Run, shipped: Path, slow: Path, jobs: Path, tmp_path: Path
) -> None:
    explain = ("explain", "resnet50", *ON_A100)
    recommend = ("recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb")
    table = ("predict", "--table", str(jobs))
    for ask in (explain, recommend, table):
        assert forerun(*ask, "--json").json()["start"] == "shipped"
        assert forerun(*ask, "--json", "--start", "priors").json()["start"] == "priors"
    for ask in (explain, recommend):
        assert "predictor analytic (shipped constants)" in forerun(*ask).out
    taught = forerun(*ASK, "--fit", str(slow), "--start", "priors").json()
    assert (taught["start"], taught["fitted_runs"]) == ("priors", 12)


def test_runs_that_taught_before_are_said_to_count_twice(
    forerun: Run, shipped: Path, slow: Path, tmp_path: Path
) -> None:
    ask = ("fit", "--runs", str(slow), "--out", str(tmp_path / "m.json"), "--force")
    done = forerun(*ask)
    assert "12 of 12 runs are among those that the shipped constants were fitted to" in done.out
    assert "shipped constants, fitted to 12 runs" in done.out
    assert "count twice" not in forerun(*ask, "--start", "priors").out
    assert "count twice" in forerun(*ASK, "--fit", str(slow)).err
    other = write(tmp_path / "other.csv", [row.replace("slow-lab", "mine").replace("0.", "0.3", 1)
                                           for row in SLOW[:3]])  # fmt: skip
    assert "count twice" not in forerun(*ASK, "--fit", str(other)).err


def test_a_model_keeps_what_it_started_from(
    forerun: Run, shipped: Path, slow: Path, tmp_path: Path
) -> None:
    model = str(tmp_path / "m.json")
    assert forerun("fit", "--runs", str(slow), "--out", model).code == 0
    data = forerun(*ASK, "--model", model).json()
    assert (data["start"], data["fitted_runs"]) == ("shipped", 12)
    assert "distance" in data


def test_the_shipped_constants_are_listed_with_how_they_were_made(
    forerun: Run, shipped: Path
) -> None:
    text = forerun("predictors", "--constants").out
    assert "runs    21 of dense 9, slow 12" in text
    assert "date    20" in text
    data = forerun("predictors", "--constants", "--json").json()
    (analytic,) = data["constants"]  # that of every predictor built on it
    assert "analytic" in analytic["predictors"]
    assert f"constants shipped with {', '.join(analytic['predictors'])}" in text
    assert analytic["made"]["runs"] == {"dense": 9, "slow": 12}
    some = forerun("predictors", "slow-lab", "--constants", "--json").json()["constants"][0]
    assert 0 < len(some["learned"]) < len(analytic["learned"])
    assert forerun("predictors", "no-such", "--constants").code == 2


def test_a_package_without_constants_says_so_and_answers_from_its_priors(
    forerun: Run, bare: None
) -> None:
    assert forerun(*ASK).json()["start"] == "priors"
    for ask in ((*ASK, "--start", "shipped"), ("predictors", "--constants")):
        done = forerun(*ask)
        assert done.code == 2
        assert "comes with" in done.err


def test_evaluate_falls_back_to_priors_on_runs_that_taught(
    forerun: Run, shipped: Path, slow: Path, tmp_path: Path
) -> None:
    ask = ("evaluate", "--runs", str(slow))
    assert "start from priors (the shipped constants were fitted to 12 of 12 judged rows)" in (
        forerun(*ask).out
    )
    assert "the shipped constants were fitted to 12 of 12 judged rows: not blind" in (
        forerun(*ask, "--start", "shipped").out
    )
    unseen = write(tmp_path / "unseen.csv", [row.replace(",0.", ",1.") for row in SLOW])
    found = forerun("evaluate", "--runs", str(unseen), "--json").json()
    assert found["start"] == "shipped constants of analytic"


@pytest.mark.parametrize(
    "words",
    [("--start", "sideways"), ("--predictor", "constant-mfu", "--start", "shipped"),
     ("--model", "MODEL", "--start", "priors"), ("--model", "CUT"), ("--model", "OLD"),
     ("--model", "TEXT"), ("--model", "WRONG"), ("--model", "no/such.json"), ("--model", ".")],
)  # fmt: skip
def test_a_mistake_is_exit_2_in_words(
    words: tuple[str, ...], forerun: Run, bare: None, slow: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.json"
    assert forerun("fit", "--runs", str(slow), "--out", str(model)).code == 0
    saved = json.loads(model.read_text())
    texts = {"MODEL": model.read_text(), "CUT": model.read_text()[:900], "TEXT": "not JSON",
             "OLD": json.dumps({**saved, "version": 1}),
             "WRONG": json.dumps({**saved, "constants": {"tile": "wide"}})}  # fmt: skip
    given = []
    for word in words:
        if word in texts:
            (tmp_path / f"{word}.json").write_text(texts[word])
            word = str(tmp_path / f"{word}.json")
        given.append(word)
    done = forerun(*ASK, *given)
    assert done.code == 2, done.out
    assert "next:" in done.err
    assert "Traceback" not in done.err


def test_python_starts_as_the_command_does(shipped: Path) -> None:
    usual, plain = Advisor(), Advisor(start="priors")
    ask = ("resnet50", "1x8xa100-sxm-80gb")
    assert usual.predict(*ask).start == {"start": "shipped", "fitted_runs": 0}
    assert plain.predict(*ask).start == {"start": "priors", "fitted_runs": 0}
    assert Advisor(predictor="constant-mfu").predict(*ask).start == {}


@pytest.mark.parametrize(("laws", "said"), [(7, "and 1 more law ("), (9, "and 3 more laws (")])
def test_laws_that_are_not_shown_are_counted(
    laws: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {f"kind {i}": "seconds = 1" for i in range(laws)}
    show_formulas(Screen(load_settings()), found, everything=False)
    assert said in capsys.readouterr().out
