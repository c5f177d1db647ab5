"""Conditions and filters mean in a store what they mean of a table."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.store.sql_store import SqlStore
from forerun.tables import Table
from forerun.tables.conditions import parse_condition

N = 200


def rows() -> Table:
    """Return rows with blanks in every column, numbers and texts, real and one's own."""
    rng = np.random.default_rng(3)

    def some(values: list[object]) -> list[object]:
        return [values[i] for i in rng.integers(0, len(values), N)]

    return Table.from_columns({
        "workload": some(["resnet50", "gpt2", "", "bert-base"]), "device": some(["t4", "v100", ""]),
        "devices": some([1, 2, 4, 8, ""]), "step_time_s": some([0.1, 0.5, 2.5, ""]),
        "status": some(["ok", "oom"]), "queue": some(["fast", "slow", ""]),
        "vcpus": np.array(some([4.0, 8.0, np.nan]), dtype=float), "source": ["made"] * N,
    })  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("devices<=4",), ("devices<4",), ("devices>=2", "devices!=4"), ("devices=1,8.0",),
        ("device=t4",), ("device=t4,v100",), ("device!=t4",), ("step_time_s>0.5",),
        ("workload=gpt2", "device=v100", "devices<=8", "status=ok"), ("workload=nobody",),
        ("queue=fast",), ("queue!=fast",), ("vcpus>4",), ("vcpus=4,8",), ("vcpus!=8", "queue=slow"),
        ("status=oom", "vcpus<=4"),
    ],
)  # fmt: skip
def test_a_condition_holds_where_it_does_in_a_table(
    store: SqlStore, words: tuple[str, ...]
) -> None:
    table = rows()
    store.add_table(table)
    held = np.all([parse_condition(word).holds(table) for word in words], axis=0)
    found = store.table(where=words)
    wanted = table.take(np.flatnonzero(held))
    assert len(found) == held.sum()
    assert store.count(where=words) == held.sum()
    for name in table.columns:
        assert found.texts(name).tolist() == wanted.texts(name).tolist(), name
    assert (
        store.runs(where=words, limit=5).table.texts("step_time_s").tolist()
        == (wanted.texts("step_time_s").tolist()[:5])
    )


@pytest.mark.parametrize(
    ("equal", "rows"),
    [
        ({"devices": 8}, [2]), ({"devices": "8"}, [2]), ({"devices": [1, 8]}, [0, 2]),
        ({"devices": None}, [1]), ({"devices": [8, None]}, [1, 2]), ({"device": ""}, [2]),
        ({"device": "t4"}, [0, 1]), ({"device": []}, []), ({"own": 7}, [0]), ({"own": "x"}, [1]),
        ({"own": None}, [2]), ({"own": [None, "x"]}, [1, 2]), ({"device": "T4"}, []),
        ({"campaign": "c"}, [0, 1, 2]), ({"run_campaign": "d"}, []), ({"point": None}, [0, 1, 2]),
    ],
)  # fmt: skip
def test_a_filter_leaves_the_rows_that_equal_it(
    store: SqlStore, equal: dict[str, object], rows: list[int]
) -> None:
    table = Table.from_columns({
        "devices": [1, "", 8], "device": ["t4", "t4", ""], "own": [7, "x", ""], "at": [0, 1, 2],
    })  # fmt: skip
    store.add_table(table, campaign="c")
    assert store.table(**equal).numbers("at").tolist() == rows
    assert store.count(**equal) == len(rows)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("devicess<=8", "no run has such a column; did you mean"),
        ("device<=8", "device holds texts"),
        ("devices=many", "devices holds numbers"),
        ("devices", "it is no condition"),
    ],
)
def test_a_question_that_makes_no_sense_is_told(store: SqlStore, where: str, words: str) -> None:
    store.add_table(rows())
    with pytest.raises(RequestError, match=words):
        store.table(where=[where])


def test_a_name_with_signs_of_its_own_is_asked_for_as_it_is(store: SqlStore) -> None:
    """Quotes and the wildcards of LIKE are letters like others."""
    names = ['100% "sure"', "100_ sure", "100x sure"]
    store.add_table(Table.from_columns({name: [str(i)] for i, name in enumerate(names)}))
    store.add_table(Table.from_columns({names[0]: ["5"]}))
    assert store.count(**{names[0]: 0}) == 1
    assert store.count(**{names[0]: None}) == 0
    assert store.count(where=[f"{names[1]}<=1"]) == 1


def test_the_values_of_a_column_are_told_with_their_runs(store: SqlStore) -> None:
    table = rows()
    store.add_table(table, campaign="night")
    for name in ("workload", "devices", "queue", "vcpus", "source"):
        texts = [t for t in table.texts(name) if t not in ("", "nan")]
        wanted = {text: texts.count(text) for text in dict.fromkeys(texts)}
        found = store.values(name)
        assert {float(k) if k[0].isdigit() else k: n for k, n in found.items()} == {
            float(k) if k[0].isdigit() else k: n for k, n in wanted.items()
        }, name
        assert list(found.values()) == sorted(found.values(), reverse=True), name
        assert list(store.values(name, 1).items()) == list(found.items())[:1], name
    assert store.values("campaign") == {"night": N}
    assert store.values("image_size") == {}
    with pytest.raises(RequestError, match="no run has such a column"):
        store.values("queueue")
