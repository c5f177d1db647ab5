"""Findings: what runs taught stands first, and what they leave open is not called learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.advisor.fit_summary import findings, open_questions
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.saving import Learned
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.predictors.options import started
from forerun.testing.samples import tiny_runs

ENTRY = Learned("launch_seconds", "s", 4e-6, 3e-6, 5e-6, 4e-6, 0.1, 0.4, 7, ("lab",))


def told(entry: Learned, before: Learned | None = None) -> tuple[float, bool]:
    first = AnalyticPredictor(learned=() if before is None else (before,))
    (finding,) = findings(AnalyticPredictor(learned=(entry,)), first)
    return finding.gain, finding.identified


def test_what_is_as_it_was_has_told_nothing() -> None:
    assert told(replace(ENTRY, log_sd=0.4)) == (pytest.approx(0.0), False)


def test_more_is_told_the_narrower_and_the_farther_from_the_prior() -> None:
    gains = [told(e)[0] for e in (replace(ENTRY, log_sd=0.3), ENTRY, replace(ENTRY, value=8e-6))]
    assert gains == sorted(gains)
    assert gains[0] > 0


def test_what_no_run_spoke_of_is_not_identified() -> None:
    assert told(ENTRY)[1]
    assert not told(replace(ENTRY, runs=0))[1]


def test_what_earlier_runs_knew_is_not_learned_again() -> None:
    """A constant as narrow as before is no news, though it is narrower than its first prior."""
    now = replace(ENTRY, value=4.1e-6, prior_log_sd=0.19)
    assert not told(replace(now, log_sd=0.18), before=ENTRY)[1]
    assert told(replace(now, log_sd=0.05), before=ENTRY)[1]


def test_only_what_a_fit_could_speak_of_is_told() -> None:
    other = replace(ENTRY, name="tile", unit="elements")
    first = AnalyticPredictor(learned=(ENTRY,))
    found = findings(AnalyticPredictor(learned=(ENTRY, other)), first)
    assert [f.entry.name for f in found] == ["tile"]
    assert len(findings(AnalyticPredictor(learned=(ENTRY, other)))) == 2


def test_a_fit_tells_the_most_first_and_names_what_stays_open() -> None:
    before = AnalyticPredictor()
    found = findings(before.fit(tiny_runs(mfu=0.2)), before)
    gains = [finding.gain for finding in found]
    assert gains == sorted(gains, reverse=True)
    open_names = [f.entry.name for f in found if not f.identified]
    assert open_names
    assert 0 < len(open_questions(found)) <= len(open_names)
    assert all(np.isfinite(gains))


def test_open_questions_are_one_piece_for_each_family_most_spoken_of_first() -> None:
    def vague(name: str, runs: int) -> Learned:
        return replace(ENTRY, name=name, runs=runs, log_sd=0.4)

    entries = (
        vague("link_efficiency[pcie]", 1),
        vague("tile", 9),
        vague("link_efficiency[efa]", 2),
    )
    found = findings(AnalyticPredictor(learned=entries))
    assert open_questions(found) == (
        "matrix side at which a matrix unit is half filled", "link's bandwidth reached (efa, pcie)"
    )  # fmt: skip


def test_other_predictors_tell_nothing() -> None:
    assert findings(ConstantMFU().fit(tiny_runs()), ConstantMFU()) == ()
    assert findings(started("constant-mfu")) == ()
