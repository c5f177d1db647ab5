"""forerun search: runs with price and reason, against the oracle, and what is refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.search.black_boxes import made_up_rows
from tests.search.test_scavenger import trainings


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as a runs table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(names), *(",".join(str(r.get(n, "")) for n in names) for r in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Return a table of 96 configurations."""
    return str(write(tmp_path / "runs.csv", made_up_rows()))


@pytest.mark.parametrize("searcher", ["random", "grid", "cherrypick", "bayesian"])
def test_every_run_is_shown_with_its_price_and_why(forerun: Run, table: str, searcher: str) -> None:
    done = forerun("search", "--replay", table, "--searcher", searcher, "--max-runs", "7",
                   "--deadline", "150s")  # fmt: skip
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == f"{searcher}: least cost of a run within 2.5 min, 96 configurations replayed"
    assert sum(line.lstrip()[:1].isdigit() for line in lines) in (6, 7)
    for word in ("stopped", "best", "oracle", "regret", "near", "counted"):
        assert any(line.startswith(word) for line in lines), word


def test_json_has_every_run_and_the_oracle(forerun: Run, table: str) -> None:
    found = forerun("search", "--replay", table, "--max-runs", "5", "--seeds", "2", "--deadline",
                    "150s", "--no-stop", "--json").json()  # fmt: skip
    assert found["kind"] == "search"
    assert found["configurations"] == 96
    assert [one["seed"] for one in found["searches"]] == [0, 1]
    for one in found["searches"]:
        assert len(one["runs"]) == 5
        assert one["dollars"] == pytest.approx(sum(run["dollars"] for run in one["runs"]))
        assert all(run["reason"] for run in one["runs"])
        ended = [run for run in one["runs"] if run["status"] == "ok" and run["seconds"] < 150]
        assert (one["recommended"] is None) == (not ended)


def test_several_seeds_are_compared(forerun: Run, table: str) -> None:
    done = forerun("search", "--replay", table, "--seeds", "3", "--searcher", "random")
    assert "runs until within 10 %" in done.out
    assert "of 3 searches" in done.out


def test_the_same_seed_gives_the_same_answer(forerun: Run, table: str) -> None:
    ask = ("search", "--replay", table, "--max-runs", "8", "--seed", "5")
    assert forerun(*ask).out == forerun(*ask).out


def test_only_rows_that_meet_a_condition_are_replayed(forerun: Run, table: str) -> None:
    found = forerun("search", "--replay", table, "--where", "micro_batch=256", "--json").json()
    assert found["configurations"] == 48


def test_without_a_table_it_says_what_is_possible(forerun: Run) -> None:
    done = forerun("search")
    assert done.code == 2
    assert "--replay RUNS.csv" in done.err


def test_nothing_within_the_deadline_exits_3_with_the_nearest(forerun: Run, table: str) -> None:
    done = forerun("search", "--replay", table, "--deadline", "1s")
    assert done.code == 3
    assert "the nearest:" in done.err
    assert done.err.count(" with ") == 3


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--max-runs", "0"), "not a whole number"),
        (("--searcher", "cherypick"), "did you mean cherrypick?"),
        (("--minimize", "money"), "no such aim"),
        (("--deadline", "-3s"), "--deadline"),
        (("--where", "colour=red"), "colour"),
        (("--where", "devices=999"), "--where"),
    ],
)
def test_a_wrong_option_is_told(
    forerun: Run, table: str, options: tuple[str, ...], found: str
) -> None:
    done = forerun("search", "--replay", table, *options)
    assert done.code == 2, done.out
    assert found in done.err
    assert "Traceback" not in done.err


def changed(**columns: object) -> list[dict[str, object]]:
    """Return the table with columns replaced, or left out where None."""
    rows = [{**row, **columns} for row in made_up_rows()]
    return [{k: v for k, v in row.items() if v is not None} for row in rows]


@pytest.mark.parametrize(
    ("rows", "code", "found"),
    [
        (changed(price_usd_per_hour=None), 2, "no price"),
        (changed(time_to_train_s=None), 2, "none of them states a time"),
        (changed(status="timeout"), 3, "no run of the table reached its end (96 timeout)"),
        (changed(nodes=1, devices=1, micro_batch=1, learning_rate=1, sync="ps-sync",
                 price_usd_per_hour=1), 2, "one configuration"),
        (changed(time_to_train_s=-5), 2, "none of them states a time"),
    ],
    ids=["no-price", "no-time", "all-censored", "constant-columns", "negative-times"],
)  # fmt: skip
def test_a_table_that_cannot_be_searched_is_told(
    forerun: Run, tmp_path: Path, rows: list[dict[str, object]], code: int, found: str
) -> None:
    done = forerun("search", "--replay", str(write(tmp_path / "bad.csv", rows)))
    assert done.code == code, done.err
    assert found in done.err
    assert "next:" in done.err
    assert "Traceback" not in done.err


def test_without_prices_the_time_can_be_minimised(forerun: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "unpriced.csv", changed(price_usd_per_hour=None))
    done = forerun("search", "--replay", str(path), "--minimize", "time")
    assert done.code == 0, done.err
    assert "no price" in done.out


def test_constant_columns_do_no_harm(forerun: Run, tmp_path: Path) -> None:
    """One axis alone varies: the number of workers."""
    rows = [row for row in made_up_rows() if row["micro_batch"] == 256
            and row["learning_rate"] == 1e-3 and row["sync"] == "ps-sync"]  # fmt: skip
    path = write(tmp_path / "few.csv", rows[:6])
    for searcher in ("cherrypick", "bayesian", "grid"):
        done = forerun("search", "--replay", str(path), "--searcher", searcher, "--no-stop")
        assert done.code == 0, done.err
        assert "all 6 configurations are measured" in done.out


def test_rows_that_do_different_work_are_warned_of(forerun: Run, tmp_path: Path) -> None:
    rows = [{**row, "dataset_size": 1000 * (1 + i % 2)} for i, row in enumerate(made_up_rows())]
    path = write(tmp_path / "sizes.csv", rows)
    done = forerun("search", "--replay", str(path), "--max-runs", "2")
    assert "the rows differ in dataset_size" in done.out
    one = forerun(
        "search", "--replay", str(path), "--max-runs", "2", "--where", "dataset_size=1000"
    )
    assert "warnings" not in one.out
    assert forerun("search", "--replay", str(path), "--json").json()["warnings"]


@pytest.mark.parametrize("searcher", ["random", "grid", "cherrypick", "bayesian"])
def test_a_kept_search_goes_on_where_it_stopped(
    forerun: Run, table: str, tmp_path: Path, searcher: str
) -> None:
    ask = ("search", "--replay", table, "--searcher", searcher, "--deadline", "150s", "--no-stop",
           "--json")  # fmt: skip
    kept = (*ask, "--keep", "night", "--store", str(tmp_path / "runs.db"))
    whole = forerun(*ask, "--max-runs", "6").json()["searches"][0]
    first = forerun(*kept, "--max-runs", "4").json()["searches"][0]
    assert first["runs"] == whole["runs"][:4]
    assert forerun(*kept, "--max-runs", "6").json()["searches"][0] == whole


def test_an_interrupted_search_loses_no_run(
    forerun: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.store import open_store
    from forerun.store.sql_store import CampaignTable

    place, mark = str(tmp_path / "runs.db"), CampaignTable.mark
    made = []

    def killed(table: CampaignTable, name: str, step: str, status: str, note: str) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(step)
        mark(table, name, step, status, note=note)

    ask = ("search", "--replay", table, "--searcher", "random", "--max-runs", "5", "--no-stop",
           "--keep", "night", "--store", place)  # fmt: skip
    monkeypatch.setattr(CampaignTable, "mark", killed)
    assert forerun(*ask).code not in (0, None)
    monkeypatch.setattr(CampaignTable, "mark", mark)
    again = forerun(*ask)
    assert "kept      as 'night'; 3 runs of it made before" in again.out
    with open_store(place) as store:
        record = store.searches.get("night")
    assert record is not None
    assert len(record.points) == 5
    assert record.spec["searcher"] == "random"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--seed", "3", "--keep", "a"), "begun with another seed"),
        (("--keep", "a", "--seeds", "2"), "leave --seeds out"),
        ((), "give the search a name"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    forerun: Run, table: str, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    ask = ("search", "--replay", table, "--searcher", "grid", "--max-runs", "2", "--store",
           str(tmp_path / "runs.db"))  # fmt: skip
    assert forerun(*ask, "--keep", "a").code == 0
    done = forerun(*ask, *more)
    assert done.code == 2
    assert words in done.err


def test_other_workloads_runs_choose_without_a_search(forerun: Run, tmp_path: Path) -> None:
    asked = str(write(tmp_path / "asked.csv", trainings(critical=2000.0)))
    others = [row for name in ("a", "b") for row in trainings(name, 2000.0)]
    known = str(write(tmp_path / "known.csv", others))
    ask = ("search", "--replay", asked, "--minimize", "time", "--searcher", "scavenger-none")
    found = forerun(*ask, "--known", known, "--json").json()["searches"][0]
    assert len(found["runs"]) <= 3
    assert found["regret"] < 0.1
    assert "2 other workloads" in found["runs"][0]["reason"]
    alone = forerun(*ask)
    assert alone.code == 2
    assert "add --known RUNS.csv" in alone.err
    missing = forerun(*ask, "--known", str(tmp_path / "nowhere.csv"))
    assert missing.code == 2
    assert "nowhere.csv" in missing.err
    kept = (*ask, "--known", known, "--keep", "mine", "--store", str(tmp_path / "s.db"))
    assert forerun(*kept).code == 0
    assert "of it made before" in forerun(*kept).out
