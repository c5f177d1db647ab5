"""Options of predictors: written after the name, checked, read back as written."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from forerun import registry
from forerun.cli import main
from forerun.errors import RequestError, UnknownNameError
from forerun.predictors.options import configured, options_of, read_spec, started, write_spec

WITH_OPTIONS = [
    name for name in registry.names("predictors") if options_of(registry.load("predictors", name))
]


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_every_default_is_what_the_predictor_does_without_options(name: str) -> None:
    kind = registry.load("predictors", name)
    defaults = {option.name: option.default for option in options_of(kind)}
    spec = write_spec(name, defaults)
    assert read_spec(spec) == (kind, defaults)
    assert configured(kind, defaults) == started(name, "priors")


def test_options_follow_the_name_and_set_the_predictor() -> None:
    assert started("generic:mode=faithful:penalty=l1").penalty == "l1"
    made = started("ray-ml:techniques=Ridge+NNLS:seed=3").settings
    assert (made.techniques, made.seed) == (("Ridge", "NNLS"), 3)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("generic:mode=quick", "give fast or faithful"),
        ("generic:mode", "is no key=value"),
        ("ray-ml:seed=many", "give an integer"),
        ("ray-ml:techniques=Ridge+Lasso", "some of Ridge"),
        ("ernest:mode=fast", "ernest has no options"),
    ],
)
def test_a_wrong_option_says_what_may_be_given(spec: str, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        started(spec)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean mode"):
        started("generic:mod=fast")


def test_the_command_lists_the_options_of_a_predictor() -> None:
    shown = CliRunner().invoke(main, ["predictors", "generic"]).output
    assert "fast or faithful" in shown
    assert "penalty" in shown
