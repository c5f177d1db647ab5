"""forerun predict: one job as words and as JSON, and a table of jobs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from forerun.catalog import load_catalog
from forerun.tables import read_table
from tests.cli.conftest import Run

ASK = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb")
LLAMA = ("predict", "llama3-8b", "--cluster", "4x8xh100-sxm-80gb")
QUANTILES = (
    "step_seconds",
    "run_seconds",
    "wall_seconds",
    "dollars",
    "peak_bytes",
    "kilowatt_hours",
)
KEYS = ("fits", "parts", "memory_parts", "predictor", "distance", "warnings", "plan", "cluster",
        "workload", "length", "prices", "key", "notes", "chosen")  # fmt: skip


def cells(path: Path) -> list[dict[str, str]]:
    """Return a CSV file's rows as text."""
    return list(csv.DictReader(path.read_text().splitlines()))


def test_json_has_every_promised_name(forerun: Run) -> None:
    done = forerun(*ASK, "--json")
    assert done.code == 0
    data = done.json()
    assert data["schema"] == "forerun/1"
    assert set(KEYS) | set(QUANTILES) <= set(data)
    for name in QUANTILES:
        assert 0 < data[name]["p05"] <= data[name]["p50"] <= data[name]["p95"]


def test_parts_add_up_to_the_median_step_and_peak(forerun: Run) -> None:
    data = forerun(*LLAMA, "--json").json()
    assert sum(data["parts"].values()) == pytest.approx(data["step_seconds"]["p50"], rel=1e-6)
    assert sum(data["memory_parts"].values()) == pytest.approx(data["peak_bytes"]["p50"], rel=1e-6)


def test_run_time_is_steps_times_step_and_cost_is_hours_times_price(forerun: Run) -> None:
    data = forerun(*ASK, "--json").json()
    run = data["run_seconds"]["p50"]
    assert run == pytest.approx(data["steps"] * data["step_seconds"]["p50"])
    wall = data["wall_seconds"]["p50"]
    assert run / wall == pytest.approx(data["goodput"])
    assert data["dollars"]["p50"] == pytest.approx(
        wall / 3600 * data["prices"]["dollars_per_hour"]
    )  # fmt: skip


def test_layers_are_cut_over_the_devices_of_each_replica(forerun: Run, tmp_path: Path) -> None:
    ask = (
        "predict",
        "vgg16",
        "--cluster",
        "4x1xt4",
        "--framework",
        "pytorch",
        "--global-batch",
        "64",
    )
    found = forerun(*ask, "--partitions", "2", "--micro-batch", "32", "--json").json()
    assert (found["plan"]["partitions"], found["plan"]["dp"]) == (2, 2)
    assert found["parts"]["tensor comm"] > 0
    assert any("checked on small hosts alone" in words for words in found["warnings"])
    shown = forerun("explain", *ask[1:], "--plan", "partitions=2", "--micro-batch", "32").out
    assert "layers that can be cut are cut" in " ".join(shown.split())
    same = forerun(*ask, "--plan", "partitions=2", "--micro-batch", "32", "--json").json()
    assert same["step_seconds"] == found["step_seconds"]
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "workload,framework,device,devices,nodes,partitions,micro_batch,global_batch,memory_format\n"
        "vgg16,pytorch,t4,4,4,2,32,64,nhwc\n"
        "vgg16,pytorch,t4,4,4,3,32,64,nhwc\n"
    )
    done = forerun("predict", "--table", str(rows), "--json")
    one, other = done.json()["rows"]
    assert one["predicted_step_time_s"] == pytest.approx(found["step_seconds"]["p50"], rel=1e-6)
    assert other["declined"] == "4 devices are not divisible by partitions=3; choose a divisor"
    limits = forerun("explain", *ask[1:], "--plan", "partitions=4").out
    assert "the bottleneck is model-parallel exchange" in limits
    assert forerun("explain", *ask[1:], "--partitions", "4").out == limits


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (("--partitions", "0"), 2, "not a whole number from 1"),
        (("--partitions", "1.5"), 2, "not a whole number from 1"),
        (("--partitions", "3"), 2, "4 devices are not divisible by partitions=3"),
        (("--partitions", "2", "--plan", "tp=2"), 2, "use tp=1, pp=1, cp=1, ep=1, zero_stage=0"),
        (("--partitions", "2", "--plan", "zero_stage=1"), 2, "use tp=1, pp=1, cp=1, ep=1, zero_stage=0"),
        (("--partitions", "2", "--plan", "partitions=4"), 2, "partitions is given twice"),
        (("--partitions", "2", "--table", "rows.csv"), 2, "the rows of a table say that themselves"),
        (("--partitions", "8192", "--cluster", "8192x1xt4"), 3, "use partitions=4096 at most"),
        (("--partitions", "2", "--predictor", "constant-mfu"), 3, "physics alone times"),
    ],
)  # fmt: skip
def test_cuts_that_cannot_be_say_what_can(
    forerun: Run, given: tuple[str, ...], code: int, words: str
) -> None:
    ask = () if "--table" in given else ("vgg16",)
    place = () if {"--table", "--cluster"} & {*given} else ("--cluster", "4x1xt4")
    done = forerun("predict", *ask, *place, *given)
    assert (done.code, words in done.err) == (code, True), done.err


def test_servers_machines_are_paid_for_and_named(forerun: Run) -> None:
    """Four workers' machines and two servers': half as much again, unless they are the workers'."""
    ask = ("predict", "resnet50", "--cluster", "4xaws:p3.2xlarge", "--steps", "10000000", "--plan")
    plan = "sync=ps-async,parameter_servers=2"
    apart, beside = (
        forerun(*ask, text, "--json").json() for text in (plan, f"{plan},servers_with_workers=true")
    )
    rates = [one["prices"]["dollars_per_hour"] for one in (apart, beside)]
    assert rates[0] == pytest.approx(1.5 * rates[1])
    for one, machines, rate in zip((apart, beside), (6, 4), rates, strict=True):
        hours = one["wall_seconds"]["p50"] / 3600
        assert one["prices"]["server_machines"] == machines - 4
        assert one["device_hours"] == pytest.approx(machines * hours)
        assert one["dollars"]["p50"] == pytest.approx(rate * hours)
    assert "2 of the 6 machines for servers" in forerun(*ask, plan).out


def test_twice_the_price_is_twice_the_cost_and_the_same_job(forerun: Run) -> None:
    one = forerun(*ASK, "--price", "10", "--json").json()
    two = forerun(*ASK, "--price", "20", "--json").json()
    assert two["dollars"]["p50"] == pytest.approx(2 * one["dollars"]["p50"])
    assert two["step_seconds"] == one["step_seconds"]
    assert two["key"] == one["key"]


@pytest.mark.parametrize(
    ("flag", "value", "steps"),
    [("--steps", "1000", 1000), ("--samples", "25600", 100), ("--epochs", "1", 5005)],
)
def test_a_job_is_as_long_as_it_is_said(forerun: Run, flag: str, value: str, steps: int) -> None:
    data = forerun(*ASK, "--global-batch", "256", flag, value, "--json").json()
    assert data["steps"] == pytest.approx(steps, abs=1)


def test_the_length_is_always_printed(forerun: Run) -> None:
    assert "90 epochs" in forerun(*ASK).out
    assert "20 tokens a parameter" in forerun(*LLAMA).out


def test_a_plan_that_is_given_is_kept_and_the_rest_is_said_to_be_chosen(forerun: Run) -> None:
    data = forerun(*LLAMA, "--plan", "tp=4,pp=2", "--json").json()
    assert (data["plan"]["tp"], data["plan"]["pp"], data["plan"]["dp"]) == (4, 2, 4)
    assert "tp" not in data["chosen"]
    assert "micro_batch" in data["chosen"]
    assert any("chosen by search" in note for note in data["notes"])


def test_a_stated_plan_that_does_not_fit_is_answered_with_its_chance(forerun: Run) -> None:
    data = forerun(
        "predict", "llama3-70b", "--cluster", "1x8xa100-sxm-80gb",
        "--plan", "dp=8,micro_batch=1,zero_stage=0,recompute=none", "--json",
    ).json()  # fmt: skip
    assert data["fits"] < 0.01
    assert any("does not fit" in warning for warning in data["warnings"])


def test_spot_takes_longer_than_undisturbed_and_says_why(forerun: Run) -> None:
    ask = ("predict", "resnet50", "--cluster", "2xaws:p5.48xlarge@us-east-1", "--json")
    plain, spot = forerun(*ask).json(), forerun(*ask, "--spot").json()
    assert spot["market"] == "spot"
    assert spot["run_seconds"] == plain["run_seconds"]
    assert spot["wall_seconds"]["p50"] > plain["wall_seconds"]["p50"]
    assert spot["dollars"]["p50"] < plain["dollars"]["p50"]
    safe = forerun(*ask, "--spot", "--preemption-rate", "0").json()
    assert safe["wall_seconds"]["p50"] < spot["wall_seconds"]["p50"]


def test_a_device_without_a_price_costs_null_and_says_so(forerun: Run) -> None:
    done = forerun("predict", "resnet50", "--cluster", "1x1xrtx-2080ti", "--json")
    data = done.json()
    if data["prices"]["dollars_per_hour"] is None:
        assert data["dollars"] is None
        assert any("no price" in warning for warning in data["warnings"])


def test_a_table_keeps_its_rows_and_columns_and_gains_the_answers(
    forerun: Run, jobs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    done = forerun("predict", "--table", str(jobs), "--out", str(out))
    assert done.code == 0
    assert "3 of 6 rows answered" in done.out
    before, after = cells(jobs), cells(out)
    assert [row["mark"] for row in after] == [row["mark"] for row in before]
    assert list(after[0])[: len(before[0])] == list(before[0])
    for row in after:
        answered = row["predicted_step_time_s"] != ""
        assert answered == (row["declined"] == "")
        assert (row["predictor"] == "analytic") == answered


def test_a_table_row_is_answered_as_the_same_job_alone(
    forerun: Run, jobs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    forerun("predict", "--table", str(jobs), "--out", str(out))
    row = read_table(out).row(1)
    alone = forerun(
        *LLAMA, "--global-batch", "512",
        "--plan", "dp=16,tp=2,micro_batch=32,zero_stage=0,recompute=none,pp=1,cp=1,vpp=1,ep=1"
        ",sequence_parallel=false", "--json",
    ).json()  # fmt: skip
    assert float(row["predicted_step_time_s"]) == pytest.approx(
        alone["step_seconds"]["p50"], rel=1e-6
    )
    assert float(row["predicted_memory_gb"]) == pytest.approx(
        alone["peak_bytes"]["p50"] / 1e9, rel=1e-6
    )


def test_an_impossible_plan_in_a_table_fits_with_probability_zero(
    forerun: Run, jobs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    forerun("predict", "--table", str(jobs), "--out", str(out))
    rows = cells(out)
    assert float(rows[4]["predicted_fit_probability"]) == 0
    assert "3 devices" in rows[4]["declined"]
    assert rows[2]["predicted_fit_probability"] == ""


def test_a_table_without_out_is_csv_on_stdout(forerun: Run, jobs: Path) -> None:
    done = forerun("predict", "--table", str(jobs))
    assert done.out.splitlines()[0].endswith("predictor,declined")
    assert len(done.out.splitlines()) == 7


def test_a_table_as_json_has_a_row_for_each(forerun: Run, jobs: Path) -> None:
    data = forerun("predict", "--table", str(jobs), "--json").json()
    assert (data["answered"], data["declined"], len(data["rows"])) == (3, 3, 6)


def test_a_table_with_no_answer_is_written_and_exits_3(forerun: Run, tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "o.csv"
    table.write_text("workload,device\nno-such-net,no-such-gpu\n")
    done = forerun("predict", "--table", str(table), "--out", str(out))
    assert done.code == 3
    assert out.exists()
    assert "no row was answered" in done.err


def test_servers_of_a_graph_without_parameters_are_declined(forerun: Run, tmp_path: Path) -> None:
    spec = tmp_path / "bare.yaml"
    spec.write_text("""operations: [{name: product, kind: matmul, flops: 2.4e9, reads: 1e5, writes: 8e5}]
global_batch: 64
""")
    ask = ("predict", str(spec), "--cluster", "4x1xv100-sxm2-32gb", "--plan")
    done = forerun(*ask, "sync=ps-async,parameter_servers=2")
    assert done.code == 3
    assert "bare states no parameters for servers to pass; use sync=allreduce" in done.err
    assert "next: use sync=allreduce" in done.err
    assert forerun(*ask, "sync=allreduce").code == 0


def test_more_partitions_than_channels_are_declined_with_the_most_that_can_be(
    forerun: Run,
) -> None:
    done = forerun(
        "predict", "resnet50", "--cluster", "4096x1xv100-sxm2-32gb", "--partitions", "4096"
    )
    assert done.code == 3
    assert "the widest layer of resnet50 has 2,048 channels" in done.err
    assert "next: use partitions=2048 at most" in done.err


def test_a_table_says_which_rows_do_not_fit_and_how_many(forerun: Run, tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "o.csv"
    head = "workload,device,nodes,devices,global_batch,dp,micro_batch,zero_stage"
    rows = ("llama3-70b,h100-sxm-80gb,1,8,64,8,1,0", "resnet50,a100-sxm-80gb,1,8,256,8,32,0")
    table.write_text("\n".join((head, *rows)) + "\n")
    done = forerun("predict", "--table", str(table), "--out", str(out))
    assert "  1 row of them does not fit in memory" in done.out
    assert [row["predicted_note"] for row in cells(out)] == [
        "it does not fit in a device's memory", ""
    ]  # fmt: skip
    plain = forerun("predict", "--table", str(table))
    assert len(plain.out.splitlines()) == 3
    assert "1 row of them does not fit in memory" in plain.err
    assert forerun("predict", "--table", str(table), "--json").json()["not_fitting"] == 1


def test_a_chance_near_zero_is_not_said_to_equal_a_bound(forerun: Run) -> None:
    plan = "dp=8,tp=1,pp=1,micro_batch=1,zero_stage=0,recompute=none"
    done = forerun("predict", "llama3-70b", "--cluster", "1x8xh100-sxm-80gb", "--plan", plan)
    assert "P(fits) < 0.01" in done.out
    assert "= <" not in done.out


def test_text_says_mfu_goodput_and_what_a_dollar_buys(forerun: Run) -> None:
    """A run of minutes has no word of loss; one of months says what is not steps, and by which rates."""
    short = forerun(*ASK, "--epochs", "1").out
    assert "\ngoodput   100 %\n" in short
    assert "\nwall " not in short
    assert "images/s a device" in short
    long = forerun(
        "predict", "llama3-70b", "--cluster", "512x8xh100-sxm-80gb", "--tokens", "15T"
    ).out
    for words in ("MFU ", "TFLOP/s a device", "tokens/s a device", "device-hours", "tokens a dollar",
                  "\nwall ", "is steps;", "published rates", "checkpoints (every "):  # fmt: skip
        assert words in long, words
    assert (
        " of 8.1 TFLOP/s a device"
        in forerun("predict", "resnet50", "--cluster", "1x1xt4", "--precision", "fp32").out
    )
    stated = forerun(*ASK, "--goodput", "80%").out
    assert "goodput   80 % of" in stated
    assert "--goodput 0.8" in stated


def test_a_stated_goodput_lengthens_the_wall_of_every_row_of_a_table(
    forerun: Run, jobs: Path
) -> None:
    plain, half = (
        forerun("predict", "--table", str(jobs), "--json", *more).json()["rows"]
        for more in ((), ("--goodput", "0.5"))
    )
    for row, slow in zip(plain, half, strict=True):
        if row.get("predicted_wall_time_s") is None:
            continue
        assert 0 < row["predicted_mfu"] <= row["predicted_hfu"] <= 1
        assert slow["predicted_goodput"] == pytest.approx(0.5)
        assert slow["predicted_time_to_train_s"] == row["predicted_time_to_train_s"]
        assert slow["predicted_wall_time_s"] == pytest.approx(2 * row["predicted_time_to_train_s"])
        assert row["predicted_wall_time_s"] >= row["predicted_time_to_train_s"]
    assert any(row.get("predicted_mfu") for row in plain)


def test_spot_prices_are_looked_up_among_machines_that_have_one(forerun: Run) -> None:
    """The cheapest machine on demand has no spot price; another one of the device has."""
    ask = ("predict", "resnet50", "--cluster")
    found = forerun(*ask, "1x1xh100-sxm-80gb", "--spot", "--json").json()
    offers = [i for i in load_catalog().instances if i.device == "h100-sxm-80gb"]
    least = min(
        i.spot_dollars_per_hour for i in offers
        if i.device_count == 1 and not i.marketplace and i.spot_dollars_per_hour is not None
    )  # fmt: skip
    assert found["cluster"]["spot_dollars_per_hour"] == pytest.approx(least)
    assert found["market"] == "spot"
    without = forerun(*ask, "1xaws:p5.4xlarge", "--spot")
    assert without.code == 2
    assert "spot prices are listed for" in without.err
    assert "name one of these machines" in without.err
    given = forerun(*ask, "1xaws:p5.4xlarge", "--spot", "--price", "3", "--json").json()
    assert given["cluster"]["spot_dollars_per_hour"] == 3
    chosen = forerun("recommend", "resnet50", "--clusters", "1x1xh100-sxm-80gb", "--spot", "--json")
    assert chosen.code == 0, chosen.err
    region = forerun(*ask, "1xaws:p5.48xlarge", "--spot", "--json").json()["cluster"]
    spots = {i.region: i.spot_dollars_per_hour for i in offers if i.name == "aws:p5.48xlarge"}
    assert region["region"] == min((p, r) for r, p in spots.items() if p is not None)[1]
