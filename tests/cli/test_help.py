"""Help: commands and options stand under their topics, and none is lost."""

from __future__ import annotations

import re

import click
import pytest

from forerun.cli import main
from tests.cli.conftest import Run


def _sections(text: str) -> dict[str, list[str]]:
    """Return the first words of each section's entries."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r"([A-Z][\w ]+):", line):
            found[heading[1]] = []
        elif found and (entry := re.match(r"  (-h, )?(\S+)", line)):
            found[next(reversed(found))].append(entry[2].rstrip(","))
    return found


def test_commands_stand_under_topics(forerun: Run) -> None:
    sections = _sections(forerun("--help").out)
    assert list(sections) == ["Options", "Ask", "Learn from runs", "Measure", "Look up"]
    assert sections["Ask"][0] == "predict"
    assert "search" in sections["Learn from runs"]
    assert "instances" in sections["Look up"]
    listed = [name for topic in list(sections)[1:] for name in sections[topic]]
    assert set(main.list_commands(click.Context(main))) <= set(listed)


@pytest.mark.parametrize("command", ["predict", "recommend", "explain", "suggest", "support"])
def test_options_of_a_workload_s_commands_stand_under_topics(forerun: Run, command: str) -> None:
    sections = _sections(forerun(command, "--help").out)
    assert "--seq-len" in sections["Workload"]
    assert "--json" in sections["Output"]
    listed = {name for names in sections.values() for name in names}
    known = main.get_command(click.Context(main), command)
    assert known is not None
    for option in known.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.opts[0] in listed, option.opts[0]


def test_predict_has_length_prices_and_runs_apart(forerun: Run) -> None:
    sections = _sections(forerun("predict", "--help").out)
    assert sections["Length of the job"] == ["--steps", "--samples", "--tokens", "--epochs"]
    assert {"--deadline", "--spot"} <= set(sections["Prices and limits"])
    assert {"--fit", "--map"} <= set(sections["Predictor and runs"])
    assert sections["Options"][0] == "--cluster"
