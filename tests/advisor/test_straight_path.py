"""Straight path: a prediction asks the predictor as rarely and enters as few modules as it can."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forerun.advisor import Advisor
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs

MOST_MODULES = 40
CLUSTER = "1x8xa100-sxm-80gb"
FULL = "dp=8,tp=1,pp=1,cp=1,ep=1,vpp=1,micro_batch=64,zero_stage=0,recompute=none"


class Counting(AnalyticPredictor):
    """Physics that writes down how many rows each call had."""

    calls: list[int] = []  # noqa: RUF012

    def predict(self, jobs: Jobs, detail: bool = True):  # type: ignore[no-untyped-def]
        """Return what physics says."""
        self.calls.append(len(jobs))
        return super().predict(jobs, detail=detail)


@pytest.fixture
def calls() -> list[int]:
    """Return the rows of each call, none at first."""
    Counting.calls = []
    return Counting.calls


def test_a_full_plan_is_one_predictor_call_of_one_row(calls: list[int]) -> None:
    found = Advisor(predictor=Counting()).predict("resnet50", CLUSTER, FULL, global_batch=512)
    assert calls == [1]
    assert not any("chosen by search" in note for note in found.notes)
    assert found.chosen == ()


def test_an_open_plan_is_scored_once_and_then_answered(calls: list[int]) -> None:
    found = Advisor(predictor=Counting()).predict("resnet50", CLUSTER, "tp=1", global_batch=512)
    assert len(calls) == 2
    assert calls[1] == 1
    assert any(f"among {calls[0]} legal plans" in note for note in found.notes)


def test_a_prediction_enters_few_modules() -> None:
    """Counted over a second call in one process, with another batch."""
    code = (
        "import sys\nfrom forerun.cli import main\nseen = set()\n"
        "def entered(frame, event, arg):\n"
        "    name = frame.f_globals.get('__name__', '')\n"
        "    if event == 'call' and name.startswith('forerun'): seen.add(name)\n"
        "for batch in ('512', '1024'):\n"
        "    sys.setprofile(entered if batch == '1024' else None)\n"
        f"    main(['predict', 'resnet50', '--cluster', '{CLUSTER}', '--global-batch', batch],"
        " standalone_mode=False)\n"
        "sys.setprofile(None)\nprint('\\n'.join(sorted(seen)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [line for line in done.stdout.splitlines() if line.startswith("forerun.")]
    assert len(names) <= MOST_MODULES, names
