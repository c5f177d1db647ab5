"""The documents: every command, option and setting is written down, and none that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLI_PAGE = ROOT / "docs" / "cli.md"
GUIDES = (
    "README.md", "docs/why.md", "docs/vocabulary.md", "docs/architecture.md", "docs/spec.md",
    "docs/tables.md", "docs/lab.md", "docs/extending.md", "docs/elastic.md",
    "docs/cookbook.md",
)  # fmt: skip


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command under a group with the words that call it, e.g. `forerun lab up`."""
    words = (*path, command.name or "forerun") if path else ("forerun",)
    yield " ".join(words), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{name} is listed and cannot be loaded"
            yield from walk(child, words)


def commands() -> dict[str, click.Command]:
    """Return every visible command of the forerun command line by the words that call it."""
    from forerun.cli import main

    assert isinstance(main, click.Group), "forerun.cli:main is the click group of all commands"
    return {words: command for words, command in walk(main) if not command.hidden}


def section(page: str, words: str) -> str:
    """Return the part of a page under the heading that names a command."""
    match = re.search(rf"^#+ `?{re.escape(words)}`?\s*$(.*?)(?=^#+ |\Z)", page, re.M | re.S)
    assert match, f"docs/cli.md has no heading {words!r}; run `make docs`"
    return match[1]


def test_every_command_has_its_section_with_every_option() -> None:
    page = CLI_PAGE.read_text()
    missing = []
    for words, command in commands().items():
        text = section(page, words)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                names = [*parameter.opts, *parameter.secondary_opts]
                missing += [
                    f"{words} {name}"
                    for name in names
                    if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
                ]
    assert not missing, f"not in docs/cli.md: {', '.join(missing)}; run `make docs`"


def test_the_page_names_no_command_that_is_gone() -> None:
    headings = re.findall(r"^#+ `?(forerun(?: [a-z-]+)*)`?\s*$", CLI_PAGE.read_text(), re.M)
    assert headings
    assert set(headings) <= set(commands())


def test_every_command_and_option_says_what_it_is_for() -> None:
    silent = []
    for words, command in commands().items():
        if not (command.help or command.short_help):
            silent.append(words)
        silent += [
            f"{words} {parameter.opts[-1]}"
            for parameter in command.params
            if isinstance(parameter, click.Option) and not (parameter.help or parameter.hidden)
        ]
    assert not silent, f"no help text: {', '.join(silent)}"


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_shown_in_a_guide_exist(guide: str) -> None:
    known = {words.split()[1] for words in commands() if " " in words}
    shown = set(re.findall(r"^(?:\$ )?forerun ([a-z]+)\b", (ROOT / guide).read_text(), re.M))
    assert shown <= known, f"{guide} shows {sorted(shown - known)}"


@pytest.mark.parametrize("guide", GUIDES)
def test_links_between_the_documents_lead_somewhere(guide: str) -> None:
    page = ROOT / guide
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    broken = [t for t in targets if not (page.parent / t).exists()]
    assert not broken, f"{guide} links to {broken}"


def test_every_setting_is_documented_with_its_default() -> None:
    from forerun.settings import SETTINGS

    page = CLI_PAGE.read_text()
    rows = dict(re.findall(r"^\| `([a-z_.-]+)` \| ?([^|]*?) ?\|", page, re.M))
    assert SETTINGS
    for setting in SETTINGS:
        assert setting.name in rows, (
            f"setting {setting.name} is not in docs/cli.md; run `make docs`"
        )
        assert rows[setting.name] == str(setting.default)
