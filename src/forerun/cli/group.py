"""LazyGroup: a click group that loads a command when it is called, and turns errors into words."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from forerun.cli.interrupting import silence
from forerun.cli.printing import echo
from forerun.errors import EXIT_DEFECT, EXIT_REQUEST, ForerunError, likely_name, nearest_names

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
# What a system may refuse that is no defect: a path, a right, or room.
_REFUSED = (
    errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOTDIR,
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO,
)  # fmt: skip


class LazyGroup(click.Group):
    """Commands by name as (module:attribute, short help); none is imported for the group's help.

    topics: headings of the help, each by the command with which it begins.
    """

    def __init__(
        self, commands_at: Mapping[str, tuple[str, str]], topics: Mapping[str, str], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._commands_at, self._topics = commands_at, topics

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names in the order of their table."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module now."""
        if cmd_name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by topic, the columns of all topics aligned."""
        topics: dict[str, list[tuple[str, str]]] = {}
        topic, width = "Commands", max(map(len, self._commands_at))
        for name, (_, text) in self._commands_at.items():
            topic = self._topics.get(name, topic)
            topics.setdefault(topic, []).append((name.ljust(width), text))
        for topic, rows in topics.items():
            with formatter.section(topic):
                formatter.write_dl(rows)

    def main(self, *arguments: Any, standalone_mode: bool = True, **named: Any) -> Any:
        """Run a command line; return its exit code, or leave with it where it stands alone."""
        named.setdefault("prog_name", "forerun")
        words = arguments[0] if arguments and arguments[0] is not None else sys.argv[1:]
        named.setdefault("obj", list(words))  # what pages say that they were written by
        try:
            result = super().main(*arguments, standalone_mode=False, **named)  # type: ignore[call-overload]
            sys.stdout.flush()
            code = result if isinstance(result, int) else 0
        except Exception as error:  # noqa: BLE001 (the last door: a defect is reported, not shown raw)
            code = _exit_code(error)
        except KeyboardInterrupt:
            code = _exit_code(click.Abort())
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader who has gone away ends it quietly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise click.exceptions.Exit(_exit_code(error)) from None


def _exit_code(error: Exception) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        echo(error.format_message(), err=True)
        return EXIT_REQUEST
    if isinstance(error, click.UsageError):
        return report_error(_usage_error(error))
    if isinstance(error, click.ClickException):
        error = ForerunError("forerun", error.format_message(), "see forerun --help")
    if isinstance(error, ForerunError):
        return report_error(error)
    if isinstance(error, click.Abort):
        echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return EXIT_BROKEN_PIPE
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        error = OSError(errno.ELOOP, "", str(error).partition("from ")[2].strip("'"))  # Python 3.11
    if isinstance(error, OSError) and error.errno in _REFUSED:
        if error.filename is None:
            silence(sys.stdout)
        name, reason = str(error.filename or "stdout")[:80], os.strerror(error.errno)
        return report_error(
            ForerunError(f"using {name}", reason, "check the path, its rights and the free space")
        )
    echo(
        f"error: forerun failed\n found: {type(error).__name__}: {error} (a defect of forerun)\n"
        " next: run it again with FORERUN_DEBUG=1 and report what it prints",
        err=True,
    )
    if os.environ.get("FORERUN_DEBUG", "").lower() not in ("", "0", "false", "no", "off"):
        import traceback

        traceback.print_exception(error)
    return EXIT_DEFECT


def report_error(error: ForerunError) -> int:
    """Write an error's three parts to stderr; return its exit code."""
    echo(f"error: {error.asked}\n found: {error.found}\n next: {error.next_step}", err=True)
    return error.exit_code


def _usage_error(error: click.UsageError) -> ForerunError:
    path, command = "forerun", None
    if error.ctx is not None:
        path, command = error.ctx.command_path, error.ctx.command
    found, near = error.format_message().partition(" Did you mean")[0].rstrip("."), ""
    words = re.findall(r"'([^']*)'", found)  # click quotes the value, before the choices
    if isinstance(error, click.NoSuchOption):
        found = f"no such option {error.option_name}"
        names = [n for p in command.params for n in p.opts if n.startswith("--")] if command else []
        near = " or ".join(error.possibilities or nearest_names(error.option_name, names))
    elif isinstance(error, click.BadParameter) and error.param is not None:
        given = next((word for word in words if word not in error.param.opts), "")
        near = likely_name(given, map(str, getattr(error.param.type, "choices", ())))
    elif isinstance(command, click.Group) and error.ctx is not None and words:
        near = ", ".join(nearest_names(words[0], command.list_commands(error.ctx)))
    next_step = f"did you mean {near}? " if near else ""
    if "unexpected extra" in found:
        next_step = "give several values of an option with commas, as in A,B; "
    return ForerunError(path, found[:1].lower() + found[1:], f"{next_step}see {path} --help")
