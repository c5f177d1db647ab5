"""Learning: an advisor learns from what is sound in runs, and keeps what was flagged in them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (a BLAS of its own)
from threadpoolctl import threadpool_info, threadpool_limits

from forerun.advisor import Advisor
from forerun.advisor.fit_summary import LearningError, fitted, flags_of
from forerun.predictors.options import started
from forerun.tables import Table
from forerun.tables.suspects import FlagKind
from tests.tables.suspect_tables import measured, with_column

ROW = {
    "workload": "resnet50", "device": "a100-sxm-80gb", "nodes": 1, "devices": 1, "precision": "fp16",
    "global_batch": 64, "step_time_s": 0.08,
}  # fmt: skip


def test_the_new_advisor_has_the_flags_and_the_old_one_none() -> None:
    old = Advisor()
    new = old.fit(Table.from_rows([ROW, {**ROW, "global_batch": 128, "step_time_s": 160.0}]))
    assert old.flags is None
    assert new.flags is not None
    assert new.flags.row.tolist() == [1]
    assert new.flags.of(FlagKind.UNIT).all()


@pytest.mark.parametrize("name", ["analytic", "constant-mfu"])
def test_every_predictor_is_shown_sound_figures_alone(name: str) -> None:
    runs, _, seconds = measured("step_time_s", 3)
    spoilt = seconds.copy()
    spoilt[::7] *= 1000.0
    predictor = started(name)
    with_wrong, flags = fitted(predictor, with_column(runs, "step_time_s", spoilt))
    without = seconds.copy()
    without[::7] = np.nan
    as_if_blank = predictor.fit(with_column(runs, "step_time_s", without))
    np.testing.assert_allclose(
        with_wrong.predict(runs.jobs).seconds, as_if_blank.predict(runs.jobs).seconds
    )
    assert np.flatnonzero(~flags.teaches_step).tolist() == list(range(0, len(runs), 7))


def test_nothing_learned_says_why_of_every_row() -> None:
    rows = [{**ROW, "device": "no-such-gpu"}, {**ROW, "step_time_s": "", "status": "oom"}]
    with pytest.raises(LearningError, match="none of them has a step time to fit") as caught:
        Advisor().fit(Table.from_rows(rows))
    assert caught.value.flags.counts() == {"cluster": 1, "ended": 1}
    assert caught.value.exit_code == 2


def test_physics_without_runs_judges_those_of_other_predictors() -> None:
    runs, _, seconds = measured("step_time_s", 4)
    flags = flags_of(with_column(runs, "step_time_s", seconds * 1e3), started("constant-mfu"))
    assert flags.of(FlagKind.UNIT).sum() == len(runs)


def test_a_fit_keeps_blas_on_one_thread_and_gives_the_others_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def threads() -> set[int]:
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    seen, predictor = [], started("constant-mfu")
    monkeypatch.setattr(type(predictor), "fit", lambda *_: seen.append(threads()) or predictor)
    with threadpool_limits(2, user_api="blas"):
        fitted(predictor, measured("step_time_s", 3)[0])
        assert (seen, threads()) == ([{1}], {2})
