"""forerun compare: jobs side by side in a table, as JSON, and what cannot be compared in one message."""

from __future__ import annotations

import pytest

from forerun.cli.showing import Screen
from tests.cli.conftest import Run

A100, H100 = "1x8xa100-sxm-80gb", "1x8xh100-sxm-80gb"
ASK = ("compare", "resnet50", "--framework", "pytorch", "--epochs", "90")


def rows(out: str) -> dict[str, list[str]]:
    """Return the table's cells by the name of their row."""
    lines = [line for line in out.splitlines() if line[:1].strip() and "  " in line]
    return {line.split("  ")[0]: line.split("  ", 1)[1].split("  ") for line in lines}


def test_clusters_stand_side_by_side_with_what_differs_and_the_best(forerun: Run) -> None:
    done = forerun(*ASK, "--cluster", A100, H100, "--deadline", "3h")
    assert done.code == 0
    assert done.out.splitlines()[0] == "resnet50: 2 jobs"
    table = {name: [c for c in cells if c] for name, cells in rows(done.out).items()}
    assert [c.strip() for c in table["cluster"]] == [A100, H100]
    one, two = forerun(*ASK, "--cluster", A100, H100, "--json").json()["jobs"]
    for name in (
        "step",
        "wall",
        "cost",
        "memory",
        "P(fits)",
        "MFU",
        "speed",
        "P(in time)",
        "price an hour",
    ):
        assert len(table[name]) == 2, name
    assert "precision" not in table  # it does not differ
    assert "settings  bf16, pytorch" in done.out
    fast = "12"[one["wall_seconds"]["p50"] > two["wall_seconds"]["p50"]]
    assert f"least time  {fast}, {(A100, H100)[int(fast) - 1]}" in done.out
    assert f"P({fast} is faster)" in table
    assert "plan chosen by search" not in done.out
    assert done.out.count("global batch 256: usual") == 1


def test_each_column_is_what_predict_answers(forerun: Run) -> None:
    data = forerun(*ASK, "--cluster", A100, "--cluster", H100, "--json").json()
    assert data["kind"] == "comparison"
    for cluster, job in zip((A100, H100), data["jobs"], strict=True):
        alone = forerun("predict", *ASK[1:], "--cluster", cluster, "--json").json()
        assert job == alone
    beats = data["beats"]["cost"]
    assert beats[0][1] + beats[1][0] == pytest.approx(1)
    assert beats[0][0] is None


def test_every_combination_of_what_is_repeated_is_a_job(forerun: Run) -> None:
    many = (
        "compare",
        "resnet50",
        "bert-large",
        "--cluster",
        A100,
        H100,
        "--precision",
        "bf16",
        "--precision",
        "fp16",
    )
    data = forerun(*many, "--json").json()
    found = {
        (j["workload"]["name"], j["cluster"]["name"], j["workload"]["precision"])
        for j in data["jobs"]
    }
    assert len(found) == 8
    assert data["differs"][:3] == ["workload", "cluster", "precision"]
    assert "The jobs do different work" in forerun(*many).out
    plans = forerun(
        "compare",
        "llama3-8b",
        "--cluster",
        H100,
        "--plan",
        "tp=8",
        "pp=8",
        "--steps",
        "9",
        "--json",
    ).json()
    assert [(j["plan"]["tp"], j["plan"]["pp"]) for j in plans["jobs"]] == [(8, 1), (1, 8)]


def test_a_job_that_cannot_be_is_listed_with_its_reason(forerun: Run) -> None:
    ask = (
        "compare",
        "llama3-8b",
        "--cluster",
        H100,
        "--plan",
        "tp=8",
        "--plan",
        "tp=16",
        "--plan",
        "pp=8",
    )
    done = forerun(*ask, "--tokens", "1B")
    assert done.code == 0
    assert "not answered\n  - llama3-8b, 1x8xh100-sxm-80gb, tp=16: " in done.out
    assert [r["job"] for r in forerun(*ask, "--json").json()["refused"]] == [
        f"llama3-8b, {H100}, tp=16"
    ]
    one = forerun("compare", "llama3-8b", "--cluster", "1x1xt4", H100, "--tokens", "1B")
    assert one.code == 0
    assert f"least time  1, {H100}\n" in one.out
    assert "not answered\n  - llama3-8b, 1x1xt4: " in one.out
    none = forerun("compare", "llama3-8b", "--cluster", H100, "--plan", "tp=16", "--plan", "tp=32")
    assert none.code == 2
    assert "tp=16" in none.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no WORKLOADS and no --cluster given"),
        (("resnet50",), "no --cluster given"),
        (("resnet50", "--cluster", A100), "there is nothing to compare"),
        (("resnet50", "--cluster", A100, "1x8xh101"), "no such device"),
        (("resnet50", "resnet51", "--cluster", A100), "no such workload"),
        (("resnet50", "--cluster", A100, "--plan", "tp=1", "--plan", "tq=2"), "tq"),
        (
            ("resnet50", "--cluster", A100, "--precision", "bf16", "--precision", "bf17"),
            "no such precision",
        ),
        (("resnet50", "--cluster", *[f"{n}x8xa100-sxm-80gb" for n in range(1, 10)]), "at most 8"),
        (("resnet50", "--cluster", A100, H100, "--global-batch", "many"), "not a whole number"),
    ],
)
def test_what_cannot_be_compared_is_one_message(
    forerun: Run, words: tuple[str, ...], says: str
) -> None:
    done = forerun("compare", *words)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("error:") == 1
    assert not done.out


def test_a_narrow_terminal_gets_several_tables_of_broken_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORERUN_COLOR", "always")
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"job {n}" for n in range(1, 6)]
    Screen().side_by_side(
        ("", *names), [("plan", *["dp=8 micro_batch=32 zero_stage=2"] * 5), ("cost", *"12345")]
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert [out.count(name) for name in names] == [1] * 5
    assert out.count("zero_stage=2") == 5
    assert out.count("plan") == 2  # a table of three jobs and one of two


@pytest.mark.parametrize(
    "words",
    [
        ("--cluster", "1x8xh100-sxm-80gb", "1x8xa100-sxm-80gb"),
        ("--clusters", "1x8xh100-sxm-80gb,1x8xa100-sxm-80gb"),
        ("--clusters=1x8xh100-sxm-80gb", "--cluster", "1x8xa100-sxm-80gb"),
        ("--clusters", "1x8xh100-sxm-80gb,", "1x8xa100-sxm-80gb,"),
    ],
    ids=["spaces", "commas", "repeated", "commas and spaces"],
)
@pytest.mark.parametrize("verb", ["compare", "recommend"])
def test_clusters_are_written_as_one_likes(forerun: Run, verb: str, words: tuple[str, ...]) -> None:
    found = forerun(verb, "resnet50", "--epochs", "1", *words, "--json").json()
    jobs = found["jobs"] if verb == "compare" else found["alternatives"]
    assert {(job.get("job") or job)["cluster"]["name"] for job in jobs} == {
        "1x8xh100-sxm-80gb", "1x8xa100-sxm-80gb",
    }  # fmt: skip


def test_one_cluster_has_both_names(forerun: Run) -> None:
    ask = ("predict", "resnet50", "--epochs", "1", "--json")
    one, other = (
        forerun(*ask, name, "1x8xa100-sxm-80gb").json() for name in ("--cluster", "--clusters")
    )
    assert one == other


def test_devices_with_counts_follow_one_another(forerun: Run) -> None:
    """A workload of the form package.module:callable is none of them."""
    words = ("--cluster", "h100:8", "a100:8,", "1x8xv100-sxm2-32gb", "tests.cli.nets:tiny")
    jobs = forerun("compare", *words, "--steps", "1").err
    assert "workload 'tests.cli.nets:tiny'" in jobs or "tests.cli.nets" in jobs
    found = forerun("compare", "resnet50", *words[:-1], "--steps", "1", "--json").json()["jobs"]
    assert [job["cluster"]["devices"] for job in found] == [8, 8, 8]


@pytest.mark.parametrize("verb", ["predict", "explain"])
@pytest.mark.parametrize(
    "words",
    [
        ("--cluster", A100, "--cluster", H100),
        (f"--clusters={A100},{H100}",),
    ],
)
def test_one_job_takes_no_second_cluster(forerun: Run, verb: str, words: tuple[str, ...]) -> None:
    done = forerun(verb, "resnet50", *words)
    assert done.code == 2
    assert f"forerun {verb} takes one cluster" in done.err
    assert "forerun compare" in done.err
