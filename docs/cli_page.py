"""Prints docs/cli.md: every command with its help and options, and every setting."""

from __future__ import annotations

from collections.abc import Iterator

import click

from forerun.cli import main
from forerun.settings import SETTINGS


def command_section(command: click.Command, words: str, parent: click.Context | None) -> str:
    """Return the heading and help of one command, as `--help` shows it."""
    context = click.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    context.max_content_width = context.terminal_width = 96
    return f"## `{words}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


def sections(
    command: click.Command, words: str = "forerun", parent: click.Context | None = None
) -> Iterator[str]:
    """Yield the section of a command, then those of the visible commands below it."""
    yield command_section(command, words, parent)
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from sections(child, f"{words} {name}", context)


def settings_table() -> str:
    """Return the settings as a table of name, default and help."""
    rows = [f"| `{s.name}` | {s.default} | {s.help} |" for s in SETTINGS]
    return "\n".join(["## Settings", "", "| name | default | what |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print("# The command line\n\nWritten by `make docs` from the commands themselves.\n")
    print("\n".join(sections(main)))
    print(settings_table())
