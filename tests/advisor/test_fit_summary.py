"""What runs say as a whole: where it holds, how little a few tell, which run would tell most."""

from __future__ import annotations

import pytest

from forerun.advisor import Advisor
from forerun.tables import Table

ROW = {"workload": "resnet50", "device": "a100-sxm-80gb", "nodes": 1, "precision": "fp16"}


def runs(*cells: tuple[int, int, float], **more: object) -> Table:
    """Return runs of (devices, samples of each, step seconds)."""
    return Table.from_rows(
        {**ROW, "devices": n, "micro_batch": b, "global_batch": n * b, "step_time_s": s, **more}
        for n, b, s in cells
    )


MANY_ROWS = [
    {**ROW, "devices": n, "dp": n, "micro_batch": 64, "global_batch": n * 64} for n in (2, 4, 8)
]
MANY = runs((1, 64, 0.08), (2, 64, 0.082), (4, 32, 0.045), (8, 64, 0.09))


def test_one_run_is_said_to_tell_little_and_what_stays_as_it_was() -> None:
    said = Advisor().fit(runs((8, 64, 0.09))).fit_summary
    few = [line for line in said if line.startswith("few: one run determines little")]
    assert len(few) == 1
    assert "stay at what is shipped" in few[0]
    assert "stay at their priors" in " ".join(
        Advisor(start="priors").fit(runs((8, 64, 0.09))).fit_summary
    )


def test_several_runs_are_not_called_few() -> None:
    assert not [line for line in Advisor().fit(MANY).fit_summary if line.startswith("few")]


def test_rows_that_teach_nothing_do_not_count_as_runs() -> None:
    table = runs((8, 64, 0.09), (8, 65536, float("nan")))
    assert "one run determines little" in " ".join(Advisor().fit(table).fit_summary)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "1 place (source: not named)"),
        ({"source": "mine"}, "1 place (source: mine)"),
    ],
)
def test_what_is_peculiar_to_one_place_is_said_to_be_learned(
    source: dict[str, object], words: str
) -> None:
    said = Advisor().fit(runs((8, 64, 0.09), (4, 64, 0.08), **source)).fit_summary[0]
    assert said.startswith("setting: the runs come from")
    assert words in said
    assert said.endswith("answers hold for that place")


def test_what_is_peculiar_to_each_of_several_places_is_said_to_be_set_aside() -> None:
    here, there = runs((8, 64, 0.09), source="a"), runs((8, 64, 0.12), source="b")
    said = Advisor().fit(here, there).fit_summary[0]
    assert "2 places (source: a, b)" in said
    assert said.endswith("a place not seen yet, and what is peculiar to each is set aside")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            ((1, 64, 0.08), (1, 32, 0.045)),
            "a run on several devices would add most, since these say nothing of links",
        ),
        (
            ((8, 64, 0.09),),
            "a run with another plan (all had the same tp, pp, zero_stage) would add most",
        ),
    ],
)
def test_the_next_run_differs_where_these_are_alike(
    cells: tuple[tuple[int, int, float], ...], words: str
) -> None:
    said = Advisor().fit(runs(*cells)).fit_summary[-1]
    assert said.startswith(f"next: {words}; fill in memory_gb")


def test_memory_is_asked_for_where_none_was_measured() -> None:
    assert "fill in memory_gb" in Advisor().fit(MANY).fit_summary[-1]
    measured = runs((1, 64, 0.08), (8, 64, 0.09), memory_gb=9.0)
    assert "memory_gb" not in Advisor().fit(measured).fit_summary[-1]


def test_predictors_without_constants_have_nothing_to_add() -> None:
    assert Advisor(predictor="constant-mfu").fit(MANY).fit_summary == ()


def test_it_is_said_how_far_the_forecasts_of_the_runs_own_jobs_moved_in_all() -> None:
    """Twice as slow as was forecast: they move towards it, by what two answers tell as well."""
    before = Advisor()
    jobs = [Table.from_rows([row]) for row in MANY_ROWS]
    old = [float(before.predict_table(job).columns["predicted_step_time_s"][0]) for job in jobs]
    slow = Table.from_rows(
        {**row, "step_time_s": 2.0 * s} for row, s in zip(MANY_ROWS, old, strict=True)
    )
    after = before.fit(slow)
    new = [float(after.predict_table(job).columns["predicted_step_time_s"][0]) for job in jobs]
    middle = sorted(n / o for n, o in zip(new, old, strict=True))[1]
    said = [line for line in after.fit_summary if line.startswith("moved: ")]
    assert said[0].startswith(
        f"moved: forecasts of these runs' jobs moved by {middle:.3g}x in the median"
    )
    assert 1.15 < middle < 2.2
