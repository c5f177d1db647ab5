"""A saved choice answers as the one that was fitted; what cannot be saved is left out and named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun.advisor.given_runs import load_model, model_text
from forerun.contracts import Predictor
from forerun.errors import RequestError
from forerun.predictors.choice import Auto
from forerun.predictors.choice.auto import Members
from tests.predictors.choice.rows import grid_rows, jobs_of, runs_of


def test_a_loaded_choice_answers_as_the_saved_one(tmp_path: Path) -> None:
    fitted = Auto(names=("analytic", "ernest", "linear-scaling")).fit(runs_of(grid_rows()))
    path = tmp_path / "model.json"
    path.write_text(model_text(fitted))
    loaded, _ = load_model(path)
    asked = [*grid_rows(machines=(3, 16)), *grid_rows(workload="no-net")[:1]]
    one, other = fitted.predict(jobs_of(asked)), loaded.predict(jobs_of(asked))
    np.testing.assert_allclose(other.seconds, one.seconds, rtol=1e-9)
    assert list(one.declined) == list(other.declined)
    assert list(one.by) == list(other.by)  # type: ignore[arg-type]
    assert loaded.reasons == fitted.reasons  # type: ignore[attr-defined]


def test_it_is_strict_json() -> None:
    text = Auto(names=("ernest",)).fit(runs_of(grid_rows())).to_json()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse)["predictor"] == "auto"


class Unsaved:
    """A predictor without a JSON form."""

    name = "ernest"

    def __init__(self, one: Predictor) -> None:
        self.fit, self.declines, self.predict = one.fit, one.declines, one.predict


def test_a_member_without_json_is_left_out_and_named() -> None:
    whole = Auto(names=("ernest", "linear-scaling")).fit(runs_of(grid_rows()))
    chosen = whole.chosen[0]
    members = {**chosen.members.fitted, "ernest": Unsaved(chosen.members.fitted["ernest"])}
    fitted = replace(whole, chosen=(replace(chosen, members=Members(members, {})),))
    assert fitted.unsaved == ("ernest",)
    loaded = Auto.from_json(fitted.to_json())
    answer = loaded.predict(jobs_of(grid_rows()))
    assert set(answer.by) == {"auto: linear-scaling (among the runs)"}  # type: ignore[arg-type]
    assert "ernest: not among them: it has no JSON form" in loaded.reasons


@pytest.mark.parametrize("where", ["choice", "member"])
def test_another_version_is_a_clear_error(where: str) -> None:
    saved = json.loads(Auto(names=("ernest",)).fit(runs_of(grid_rows())).to_json())
    part = saved if where == "choice" else saved["chosen"][0]["members"]["fitted"]["ernest"]
    part["version"] = 99
    with pytest.raises(RequestError, match="its version is 99") as caught:
        Auto.from_json(json.dumps(saved))
    assert caught.value.next_step == "fit it again"


def test_a_part_that_is_missing_is_a_clear_error() -> None:
    saved = json.loads(Auto(names=("ernest",)).fit(runs_of(grid_rows())).to_json())
    del saved["chosen"][0]["verdicts"][0]["scores"]
    with pytest.raises(RequestError, match="a part is missing"):
        Auto.from_json(json.dumps(saved))
