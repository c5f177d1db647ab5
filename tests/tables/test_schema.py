"""Schema: one name for one thing; a doubled column or a foreign unit is refused, not guessed."""

from __future__ import annotations

import pytest

from forerun.errors import RequestError
from forerun.tables import COLUMNS, MEASURED
from forerun.tables.table import ALIASES, canonical_names


def test_schema_names_stay_and_unknown_ones_are_kept() -> None:
    names = [*COLUMNS, "my_note", "Whatever Else"]
    assert canonical_names(names, "here") == names


def test_every_alias_leads_to_a_column_and_hides_none() -> None:
    assert set(ALIASES.values()) <= set(COLUMNS)
    assert not set(ALIASES) & set(COLUMNS)
    assert set(MEASURED) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("name", "column"),
    [("nnodes", "nodes"), ("nproc_per_node", "devices_per_node"), ("world_size", "devices"),
     ("num_hidden_layers", "layers"), ("tensor_model_parallel_size", "tp"), ("GPU_Type", "device"),
     ("\ufeffmodel", "workload"), ("  gbs ", "global_batch")],
)  # fmt: skip
def test_the_names_of_other_tools_are_understood(name: str, column: str) -> None:
    assert canonical_names([name], "here") == [column]


@pytest.mark.parametrize(
    "names", [["nodes", "nodes"], ["nodes", "nnodes"], ["gpus", "workers"], ["x", " x "]]
)
def test_one_quantity_given_twice_is_refused_also_under_two_names(names: list[str]) -> None:
    with pytest.raises(RequestError, match="appears twice") as caught:
        canonical_names(names, "jobs.csv")
    assert "jobs.csv" in caught.value.asked


@pytest.mark.parametrize("name", ["", "  ", "\ufeff"])
def test_a_column_has_a_name(name: str) -> None:
    with pytest.raises(RequestError, match="a column has no name"):
        canonical_names(["nodes", name], "here")


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("step_time_ms", "convert it to s and name it 'step_time_s'"),
        ("step_time_us", "'step_time_s'"),
        ("STEP_TIME_MS", "'step_time_s'"),
        ("epoch_time_min", "'epoch_time_s'"),
        ("epoch_time_hours", "'epoch_time_s'"),
        ("time_to_train_h", "'time_to_train_s'"),
        ("time_to_train_days", "'time_to_train_s'"),
        ("sync_time_ms", "'sync_time_s'"),
        ("memory_gib", "convert it to 1e9 bytes and name it 'memory_gb'"),
        ("memory_mb", "'memory_gb'"),
        ("memory_bytes", "'memory_gb'"),
        ("samples_per_min", "convert it to 1/s and name it 'samples_per_s'"),
        ("samples_per_sec", "'samples_per_s'"),
        ("tokens_per_hour", "'tokens_per_s'"),
        ("cost_eur", "convert it to USD and name it 'cost_usd'"),
        ("cost_cents", "'cost_usd'"),
        ("price_usd", "'price_usd_per_hour'"),
        ("price_eur_per_hour", "'price_usd_per_hour'"),
        ("price_usd_per_month", "'price_usd_per_hour'"),
        ("std_ms", "'std_s'"),
    ],
)
def test_a_known_quantity_in_a_foreign_unit_is_refused_with_ours(name: str, offer: str) -> None:
    with pytest.raises(RequestError) as caught:
        canonical_names([name], "here")
    assert offer in caught.value.next_step
    assert repr(name) in caught.value.found


@pytest.mark.parametrize("name", ["room_temperature_c", "queue_time_ms", "batch_s", "my_usd"])
def test_a_unit_on_a_quantity_that_is_not_ours_is_left_alone(name: str) -> None:
    assert canonical_names([name], "here") == [name]
