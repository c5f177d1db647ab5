"""Settings: default < file < environment < flag, and every wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import RequestError, UnknownNameError
from forerun.settings import SETTINGS, load_settings


def file_of(tmp_path: Path, text: str) -> dict[str, str]:
    """Return an environment that names a settings file with that text."""
    path = tmp_path / "forerun.toml"
    path.write_text(text)
    return {"FORERUN_CONFIG": str(path)}


def test_each_later_source_beats_the_earlier_ones(tmp_path: Path) -> None:
    nothing = {"FORERUN_CONFIG": str(tmp_path / "empty.toml")}
    (tmp_path / "empty.toml").write_text("")
    assert load_settings(environ=nothing)["max_devices"] == 512
    environ = file_of(tmp_path, "max-devices = 64\n")
    assert load_settings(environ=environ)["max_devices"] == 64
    environ["FORERUN_MAX_DEVICES"] = "128"
    assert load_settings(environ=environ)["max_devices"] == 128
    found = load_settings({"max_devices": 256, "market": None}, environ)
    assert found["max_devices"] == 256
    assert (found.origins["max_devices"], found.origins["market"]) == ("flag", "default")


def test_names_are_unique_and_every_one_has_help() -> None:
    names = [setting.name for setting in SETTINGS]
    assert len(set(names)) == len(names)
    assert all(setting.help for setting in SETTINGS)


def test_several_catalogue_files_come_from_a_list_or_a_path(tmp_path: Path) -> None:
    found = load_settings(environ=file_of(tmp_path, 'catalog = ["a.yaml", "b.yaml"]\n'))
    assert found.catalog_files == ("a.yaml", "b.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("market = 'black'", "on-demand"),
        ("max_devices = 'many'", "whole number"),
        ("max_devices = 1.5", "whole number"),
        ("debug = 'perhaps'", "true"),
        ("= 3", "TOML"),
    ],
)
def test_a_wrong_value_in_the_file_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        load_settings(environ=file_of(tmp_path, text + "\n"))


def test_an_unknown_name_in_the_file_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="max_devices"):
        load_settings(environ=file_of(tmp_path, "max_device = 3\n"))


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="FORERUN_CONFIG"):
        load_settings(environ={"FORERUN_CONFIG": str(tmp_path / "none.toml")})
