"""Shortcuts: the settings choose the advisor, and an edited catalogue file is read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun.errors import RequestError, UnknownNameError

DEVICE = (
    "devices:\n  - {{id: mine-1, memory_gb: {gb}, memory_gb_per_s: 1000, fp32_tflops: 40,"
    " fp16_tflops: 160, watts: 300, link_gb_per_s: 0, host_gb_per_s: 25, devices_per_node: 8}}\n"
)


def test_an_edited_catalogue_file_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(DEVICE.format(gb=48))
    monkeypatch.setenv("FORERUN_CATALOG", str(path))
    first = forerun.predict("resnet50", "1x1xmine-1")
    path.write_text(DEVICE.format(gb=96))
    os.utime(path, (1, 1))
    second = forerun.predict("resnet50", "1x1xmine-1")
    assert first.job.cluster.device.memory_bytes == 48e9
    assert second.job.cluster.device.memory_bytes == 96e9


def test_a_wrong_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_PREDICTOR", "analitic")
    with pytest.raises(UnknownNameError, match="analytic"):
        forerun.predict("resnet50", "1x1xt4")
    monkeypatch.setenv("FORERUN_PREDICTOR", "analytic")
    monkeypatch.setenv("FORERUN_MODEL", "missing.json")
    with pytest.raises(RequestError, match="missing"):
        forerun.predict("resnet50", "1x1xt4")


def test_functions_list_their_arguments_with_types() -> None:
    from inspect import Parameter

    from forerun.advisor.answer import JobRequest
    from forerun.domain.workload import Length
    from forerun.workloads.resolve import CHANGES

    assert set(JobRequest.__annotations__) == {*CHANGES, *Length.UNITS}
    for function in (forerun.predict, forerun.recommend, forerun.provision, forerun.explain):
        arguments = signature(function).parameters
        assert "self" not in arguments
        assert {*JobRequest.__annotations__, "length"} <= arguments.keys()
        assert all(a.kind is not Parameter.VAR_KEYWORD for a in arguments.values())
        assert all(a.annotation is not Parameter.empty for a in arguments.values())
    assert signature(forerun.predict).parameters["tokens"].annotation == float | str | None
    assert signature(forerun.predict_table).parameters["market"].default == "on-demand"


def test_a_length_is_an_argument_of_its_own() -> None:
    ask = ("llama3-8b", "1x8xh100-sxm-80gb", "tp=8")
    by_length = forerun.predict(*ask, length=forerun.Length("tokens", 2e9))
    for tokens in (2e9, "2B"):
        found = forerun.predict(*ask, tokens=tokens)
        assert found.length == by_length.length
        assert found.estimate.dollars == by_length.estimate.dollars
    assert forerun.predict(*ask, steps=10).estimate.steps == 10
    assert forerun.explain(*ask, samples=5120).answer.estimate.steps == 10
    best = forerun.recommend("resnet50", clusters=["1x8xa100-sxm-80gb"], epochs=1).best
    assert best is not None
    assert best.estimate.steps == pytest.approx(1281167 / 256, rel=0.01)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokens": 1e9, "epochs": 1}, "one length"),
        ({"tokens": 1e9, "length": forerun.Length("steps", 3)}, "one length"),
        ({"tokens": "many"}, "positive number"),
        ({"steps": -1}, "positive number"),
        ({"sequence": 5}, "no such argument"),
    ],
)
def test_a_wrong_length_is_one_message(given: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        forerun.predict("llama3-8b", "1x8xh100-sxm-80gb", "tp=8", **given)  # type: ignore[arg-type]


def test_what_a_notebook_shows_is_short() -> None:
    answer = forerun.predict("resnet50", "1x8xa100-sxm-80gb", epochs=90)
    found = forerun.recommend("resnet50", clusters=["a100-sxm-80gb"], epochs=90)
    shown = {repr(answer): "step", repr(found): "best Option(resnet50 on"}
    for text, part in shown.items():
        assert part in text
        assert "P(fits) > 0.99" in text
        assert len(text) < 250
        assert "\n" not in text
    assert "Explanation(Answer(" in repr(forerun.explain("resnet50", "1x8xa100-sxm-80gb", epochs=1))
    for html in (answer._repr_html_(), found._repr_html_()):
        assert html.startswith("<table>")
        assert "<script" not in html
    assert found._repr_html_().count("<tr>") == 1 + len(found.front)
    none = forerun.recommend("resnet50", clusters=["a100-sxm-80gb"], epochs=90, deadline="1s")
    assert "nothing satisfies the limits" in repr(none)
    front = found.charts[0].series[0]
    assert len(front.x) == len(found.front)
    assert all(low < y < high for low, y, high in zip(front.low, front.y, front.high, strict=True))


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"spot": True}, "market='spot'"),
        ({"token": 1e9}, "tokens"),
        ({"epoch": 3}, "epochs"),
        ({"batch_size": 64}, "global_batch"),
        ({"gpus": 8}, "cluster="),
    ],
)
def test_a_wrong_argument_is_met_with_the_one_that_was_meant(
    given: dict[str, object], near: str
) -> None:
    with pytest.raises(UnknownNameError) as raised:
        forerun.predict("resnet50", "1x8xa100-sxm-80gb", **given)  # type: ignore[arg-type]
    assert raised.value.asked == f"argument {next(iter(given))!r}"
    assert raised.value.nearest[0].startswith(near)


def test_a_list_may_be_text_with_commas() -> None:
    ask: dict[str, object] = {"max_devices": 8, "epochs": 1}
    for name, items in {
        "devices": "h100, a100",
        "exclude": "v100,aws",
        "providers": "aws,gcp",
    }.items():
        text, listed = (
            forerun.recommend("resnet50", **ask, **{name: given})  # type: ignore[arg-type]
            for given in (items, [item.strip() for item in items.split(",")])
        )
        assert repr(text) == repr(listed)
    both = forerun.recommend("resnet50", clusters="1x8xh100-sxm-80gb,1x8xa100-sxm-80gb", epochs=1)
    assert {o.job.cluster.name for o in both.alternatives} == {
        "1x8xh100-sxm-80gb",
        "1x8xa100-sxm-80gb",
    }


def test_a_deadline_of_a_few_bare_seconds_asks_for_a_unit() -> None:
    for ask in (
        lambda: forerun.recommend("resnet50", clusters="1x8xa100-sxm-80gb", deadline=24),
        lambda: forerun.predict("resnet50", "1x8xa100-sxm-80gb", steps=3, deadline=24),
    ):
        with pytest.raises(RequestError, match=r"a number is seconds.*'24h' or '24s'"):
            ask()
    short = forerun.predict("resnet50", "1x8xa100-sxm-80gb", steps=3, deadline="24s")
    assert short.limits.deadline_seconds == 24
    assert short.chance["deadline"] > 0.9
    found = forerun.recommend("resnet50", clusters="1x8xa100-sxm-80gb", epochs=1, deadline=86400)
    assert found.objective.deadline_seconds == 86400


def test_a_price_may_be_text() -> None:
    for price in (10, "10", "$10"):
        assert forerun.predict("resnet50", "1x8xa100-sxm-80gb", price=price).dollars_per_hour == 10
    with pytest.raises(RequestError, match="price"):
        forerun.predict("resnet50", "1x8xa100-sxm-80gb", price="much")
    with pytest.raises(RequestError, match=r"for example 5000, 12\.50, \$5,000") as raised:
        forerun.predict("resnet50", "1x8xa100-sxm-80gb", price="2$")
    assert "15T" not in str(raised.value)


@pytest.mark.parametrize("function", [forerun.predict, forerun.recommend, forerun.provision])
@pytest.mark.parametrize("name", ["batch_size", "gpus", "spot"])
def test_arguments_that_are_suggested_exist(function: Callable[..., Any], name: str) -> None:
    with pytest.raises(UnknownNameError) as raised:
        function("resnet50", **{name: 8})
    for words in raised.value.nearest:
        assert words.partition("=")[0] in signature(function).parameters
    assert raised.value.nearest or (function, name) == (forerun.provision, "spot")


def test_one_global_batch_needs_no_list() -> None:
    ask = partial(forerun.recommend, "resnet50", clusters="1x8xa100-sxm-80gb", epochs=1)
    for one, same in ((64, [64]), ("64", [64]), ("64,1k", [64, 1000])):
        found, listed = ask(global_batches=one), ask(global_batches=same)
        assert repr(found) == repr(listed)
        assert found.assumptions == listed.assumptions
        assert found.best is not None
        assert found.best.job.plan.global_batch == same[-1]
    for wrong in (0, "many", [64, -1], 1.5):
        with pytest.raises(RequestError):
            ask(global_batches=wrong)
