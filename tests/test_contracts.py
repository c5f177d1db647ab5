"""Contracts: the shipped predictor keeps the protocol, and what lacks a method does not."""

from __future__ import annotations

import inspect

import pytest

from forerun.contracts import Predictor, Reader, Runner, Searcher, Store
from forerun.predictors.analytic import AnalyticPredictor


def test_the_analytic_predictor_is_a_predictor() -> None:
    predictor = AnalyticPredictor()
    assert isinstance(predictor, Predictor)
    assert predictor.name == "analytic"


def test_the_analytic_predictor_takes_the_arguments_that_the_contract_names() -> None:
    for method in ("fit", "declines", "predict"):
        promised = list(inspect.signature(getattr(Predictor, method)).parameters)[1:]
        kept = list(inspect.signature(getattr(AnalyticPredictor(), method)).parameters.values())
        assert [p.name for p in kept[: len(promised)]] == promised
        assert all(p.default is not inspect.Parameter.empty for p in kept[len(promised) :])


@pytest.mark.parametrize("protocol", [Searcher, Runner, Reader, Store])
def test_a_predictor_is_nothing_else(protocol: type) -> None:
    assert not isinstance(AnalyticPredictor(), protocol)


@pytest.mark.parametrize(
    ("protocol", "methods"),
    [
        (Predictor, ("fit", "declines", "predict")),
        (Searcher, ("suggest",)),
        (Runner, ("run",)),
        (Reader, ("accepts", "read")),
        (Store, ("add", "runs")),
    ],
)
def test_whoever_lacks_one_method_does_not_keep_the_contract(
    protocol: type, methods: tuple[str, ...]
) -> None:
    body = {"name": "x", **dict.fromkeys(methods, lambda self: None)}
    assert isinstance(type("Whole", (), body)(), protocol)
    for missing in methods:
        part = {key: value for key, value in body.items() if key != missing}
        assert not isinstance(type("Part", (), part)(), protocol)
