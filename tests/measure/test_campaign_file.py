"""Campaign files: every combination becomes a point; a mistake is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.measure.campaign import Campaign
from forerun.measure.campaign_file import campaign, read_campaign
from forerun.tables import Table

GOOD = """
name: study
workloads:
  mlp: {entry: "examples.lab_models:mlp"}
  cnn:
    entry: examples.lab_models:cnn
    global_batch: [64]
vary:
  workers: [1, 2, 4]
  global_batch: [16, 32]
  dataset_size: [1k, 4096]
leave_out: ["workers=4 and global_batch=16"]
steps: {warmup: 2, least: 5, most: 40, half_width: 5%, seconds: 20s}
repeats: 2
timeout: 5min
budget: {time: 2h, dollars: $3}
price_usd_per_worker_hour: 0.1
device: lab-cpu
asked: {interconnect: 300 Mb/s}
"""


def table_of(found: Campaign) -> Table:
    return Table.from_rows([dict(point.asked) for point in found.points], "points")


def read(tmp_path: Path, text: str = GOOD):  # type: ignore[no-untyped-def]
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_campaign(path)


def test_every_combination_and_repeat_is_a_point_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path)
    mlp = [p for p in found.points if p.asked["workload"] == "mlp"]
    cnn = [p for p in found.points if p.asked["workload"] == "cnn"]
    assert len(mlp) == (3 * 2 - 1) * 2 * 2  # one pair of workers and batch is left out
    assert len(cnn) == 3 * 1 * 2 * 2  # its own batch is in place of the general ones
    assert len({p.key for p in found.points}) == len(found.points)
    assert {p.task.dataset_size for p in found.points} == {1000, 4096}
    assert [p.task.workers for p in found.points] == sorted(p.task.workers for p in found.points)
    assert found.notes == ("4 runs left out by leave_out",)


def test_caps_prices_and_columns_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD + "runner: ray\n")
    assert found.runner == "ray"
    assert read(tmp_path).runner == "local"
    task = found.points[0].task
    assert (task.steps.least, task.steps.most, task.steps.half_width) == (5, 40, 0.05)
    assert (task.steps.seconds, task.timeout_seconds) == (20.0, 300.0)
    assert (found.budget.seconds, found.budget.dollars) == (7200.0, 3.0)
    assert found.dollars_per_worker_hour == 0.1
    table = table_of(found)
    assert set(table.texts("device")) == {"lab-cpu"}
    assert set(table.texts("interconnect")) == {"300 Mb/s"}
    assert (table.numbers("micro_batch") * table.numbers("devices")).tolist() == (
        table.numbers("global_batch").tolist()
    )


def test_a_column_whose_name_is_a_number_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD.replace("asked: {", "asked: {0: 10, "))
    assert set(table_of(found).texts("0")) == {"10"}


def test_a_point_keeps_its_key_when_only_caps_change(tmp_path: Path) -> None:
    first = read(tmp_path)
    later = read(tmp_path, GOOD.replace("most: 40", "most: 90").replace("5min", "9min"))
    assert [p.key for p in first.points] == [p.key for p in later.points]
    other = read(tmp_path, GOOD.replace("device: lab-cpu", "device: another"))
    assert not {p.key for p in first.points} & {p.key for p in other.points}


def test_the_batch_of_one_worker_grows_with_the_workers() -> None:
    found = campaign({
        "workloads": {"m": {"entry": "a:b", "batch_per_worker": 8, "settings": {"bucket_mb": [1, 25]}}},
        "vary": {"workers": [1, 3]},
    })  # fmt: skip
    assert {(p.task.workers, p.task.global_batch) for p in found.points} == {(1, 8), (3, 24)}
    assert {p.task.settings["bucket_mb"] for p in found.points} == {1, 25}
    assert {p.asked["bucket_mb"] for p in found.points} == {1, 25}


def test_with_accumulation_a_pass_of_a_worker_is_its_batch_by_the_passes() -> None:
    found = campaign({
        "workloads": {"m": {"entry": "a:b", "settings": {"accumulate": [1, 2, 4]}}},
        "vary": {"workers": 2, "global_batch": [16, 32]},
        "leave_out": ["batch_per_worker=8 and grad_accum=4", "batch_per_worker=16 and accumulate=2"],
    })  # fmt: skip
    rows = {(p.asked["global_batch"], p.asked["grad_accum"], p.asked["micro_batch"])
            for p in found.points}  # fmt: skip
    assert rows == {(16, 1, 8), (16, 2, 4), (32, 1, 16), (32, 4, 4)}
    assert all("accumulate" not in p.asked for p in found.points), "the schema has a name for it"
    table = table_of(found)
    each = table.numbers("micro_batch") * table.numbers("grad_accum") * table.numbers("devices")
    assert each.tolist() == table.numbers("global_batch").tolist()
    plain = campaign({"workloads": {"m": {"entry": "a:b"}}, "vary": {"global_batch": 8}})
    assert "grad_accum" not in plain.points[0].asked


def test_passes_that_do_not_divide_a_workers_batch_are_told_before_anything_runs() -> None:
    for passes in (3, 0, "two"):
        with pytest.raises(RequestError, match="they do not divide it evenly"):
            campaign({"workloads": {"m": {"entry": "a:b", "settings": {"accumulate": passes}}},
                      "vary": {"global_batch": 8}})  # fmt: skip


def test_words_of_a_script_are_filled_in() -> None:
    found = campaign({
        "workloads": {"own": {"entry": "train.py", "arguments": ["--batch", "{batch_per_worker}"]}},
        "vary": {"workers": 2, "global_batch": 8},
    })  # fmt: skip
    assert found.points[0].task.arguments == ("--batch", "4")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("vary:", "varies:"), "line 8, varies: no such field; use one of vary"),
        (("[1, 2, 4]", "[1, 2.5]"), "line 9, vary.workers: 2.5 is not a whole number"),
        (("[1, 2, 4]", "[0]"), "not a whole number from 1"),
        (("[1, 2, 4]", "[3]"), "a global batch of 16 on 3 workers: 1 samples are left over"),
        (("entry: examples.lab_models:cnn", "entri: x"), "entri: no such field; use one of entry"),
        (('"examples.lab_models:mlp"', "mlp"), "neither package.module:callable nor a script"),
        (("half_width: 5%", "half_width: wide"), "'wide' is no share"),
        (("seconds: 20s", "seconds: soon"), "'soon' is not a duration"),
        (("$3", "-3"), "not a positive number"),
        (("leave_out: [", 'leave_out: ["workers", '), "it is no condition"),
        (("repeats: 2", "repeats: 0"), "not a whole number from 1"),
        (('["workers=4 and global_batch=16"]', '["workload=mlp,cnn"]'), "it has no run to make"),
        (("[16, 32]", "[]"), "it has no value"),
        (("global_batch: [16, 32]", "threads: 1"), "no batch is given"),
        (("repeats: 2", "repeats: 1M"), "a campaign has at most"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_what_to_do(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    assert change[0] in GOOD
    with pytest.raises(RequestError) as error:
        read(tmp_path, GOOD.replace(*change))
    assert words in str(error.value)


LISTED = """
workloads:
  mlp: {entry: "examples.lab_models:mlp", optimizer: adam}
vary: {workers: 2, dataset_size: [0, 1024]}
runs:
  - {workload: mlp, global_batch: 32, dataset_size: 0}
  - {workload: mlp, global_batch: 64, workers: 4, dataset_size: 512, precision: bf16}
  - {workload: mlp, global_batch: 32, dataset_size: 0}
  - {workload: mlp, global_batch: 16}
"""


def test_listed_runs_are_made_alone_and_equal_ones_are_repeats(tmp_path: Path) -> None:
    found = read(tmp_path, LISTED)
    asked = [
        (p.task.workers, p.task.global_batch, p.task.dataset_size, p.repeat) for p in found.points
    ]
    assert sorted(asked) == [
        (2, 16, 0, 0), (2, 16, 1024, 0), (2, 32, 0, 0), (2, 32, 0, 1), (4, 64, 512, 0),
    ]  # fmt: skip
    assert {p.task.optimizer for p in found.points} == {"adam"}
    assert found.points[-1].task.precision == "bf16"
    assert len({p.key for p in read(tmp_path, LISTED + "repeats: 2\n").points}) == 10


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("{workload: cnn, global_batch: 8}", "line 5.*no workload 'cnn'.*mlp"),
     ("{workload: mlp, batch: 8}", "no such field.*global_batch"),
     ("{workload: mlp}", "no batch is given")],
)  # fmt: skip
def test_a_listed_run_that_is_wrong_is_told_with_its_line(
    tmp_path: Path, wrong: str, words: str
) -> None:
    text = f"workloads:\n  mlp: {{entry: 'm:f'}}\nvary: {{workers: 2}}\nruns:\n  - {wrong}\n"
    with pytest.raises(RequestError, match=words):
        read(tmp_path, text)
