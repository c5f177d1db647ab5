"""Blind: runs that taught the shipped constants do not flatter physics in its trials."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.predictors.choice import Auto
from forerun.predictors.choice.columns import JobColumns
from forerun.predictors.choice.trials import Trials, bringers, known_already, trials_of
from forerun.predictors.laws.constant_mfu import ConstantMFU
from forerun.tables import Runs, Table, read_table, sorted_runs
from forerun.tables.table import iter_rows
from forerun.workloads.rows import runs_from_table
from tests.predictors.choice.rows import catalog
from tests.shipping import ship

NAMES = ("analytic", "linear-scaling")


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """Ship constants that two tables taught; return the runs of one of them."""
    ship(monkeypatch, tmp_path)
    return runs_of(read_table(tmp_path / "data" / "runs" / "slow.csv"))


def runs_of(table: Table) -> Runs:
    """Return a table as runs in order."""
    return sorted_runs(runs_from_table(table, catalog()))


def elsewhere(runs: Runs) -> Runs:
    """Return the same runs on another device, 3 % slower: runs that nobody has published."""
    rows = [
        {**row, "device": "v100-sxm2-16gb", "step_time_s": 1.03 * row["step_time_s"]}
        for row in iter_rows(runs.table)
    ]
    return runs_of(Table.from_rows(rows))


def both(runs: Runs) -> Runs:
    """Return published runs and those of another device."""
    rows = [*iter_rows(runs.table), *iter_rows(elsewhere(runs).table)]
    return runs_of(Table.from_rows(rows))


def known(runs: Runs, names: tuple[str, ...] = NAMES, start: str = "shipped") -> np.ndarray:
    return known_already(names, start, runs, JobColumns(runs.jobs))


def physics(trials: Trials) -> np.ndarray:
    return trials.error[:, trials.names.index("analytic")]


def test_runs_that_taught_and_their_like_are_known(published: Runs) -> None:
    assert known(published).all()
    assert not known(elsewhere(published)).any()
    device = both(published).table.texts("device")
    np.testing.assert_array_equal(known(both(published)), device == "a100-sxm-80gb")
    # Another time of a published workload and device is no published run, but one of its like.
    told = published.table.with_columns(step_time_s=published.step_seconds() * np.where(
        np.arange(len(published)) > 0, 1.1, 1.0))  # fmt: skip
    assert known(Runs(published.jobs, told)).all()


def test_who_brings_no_constants_is_never_flattered(published: Runs) -> None:
    assert bringers((*NAMES, "residual"), "shipped") == ("analytic", "residual")
    assert bringers(NAMES, "priors") == ()
    assert not known(published, ("linear-scaling",)).any()
    assert not known(published, start="priors").any()


def test_constants_of_unknown_teachers_know_every_run(
    published: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun import registry

    class Guest(ConstantMFU):
        @staticmethod
        def shipped() -> Guest:
            return Guest(mfu=0.9)

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda g, n: Guest if n == "guest" else load(g, n))
    assert known(elsewhere(published), ("guest",)).all()


def test_on_runs_that_taught_physics_is_judged_from_its_priors(published: Runs) -> None:
    shipped, priors = (trials_of(NAMES, s, published, "step") for s in ("shipped", "priors"))
    np.testing.assert_array_equal(physics(shipped), physics(priors))
    assert (shipped.familiar, priors.familiar) == (len(published), 0)


def test_on_other_runs_it_is_judged_as_it_was_shipped(published: Runs) -> None:
    own = elsewhere(published)
    shipped, priors = (trials_of(NAMES, s, own, "step") for s in ("shipped", "priors"))
    assert shipped.familiar == 0
    assert not np.allclose(physics(shipped), physics(priors), equal_nan=True)


def test_of_both_each_is_judged_as_alone_it_would_be(published: Runs) -> None:
    runs = both(published)
    shipped, priors = (trials_of(NAMES, s, runs, "step") for s in ("shipped", "priors"))
    assert shipped.familiar == len(published)
    groups, group = JobColumns(runs.jobs).groups
    mine = [g[1] for g in groups].index("a100-sxm-80gb")
    here = shipped.cell % len(groups) == mine
    assert group.max() == 1
    np.testing.assert_array_equal(physics(shipped)[here], physics(priors)[here])
    assert np.isfinite(physics(shipped)).all()
    assert not np.allclose(physics(shipped)[~here], physics(priors)[~here])


def test_the_reasons_say_so_and_the_answer_starts_from_the_shipped_constants(
    published: Runs,
) -> None:
    fitted = Auto("shipped", NAMES).fit(published)
    told = [words for words in fitted.reasons if "taught the constants shipped" in words]
    assert len(told) == 1
    assert told[0].startswith(f"{len(published)} judged runs are of a workload and device")
    assert fitted.planner.start == "shipped"  # type: ignore[attr-defined]
    loaded = Auto.from_json(fitted.to_json())
    assert loaded.reasons == fitted.reasons
    alone = Auto("priors", NAMES).fit(published)
    assert not any("taught the constants shipped" in words for words in alone.reasons)
