"""LazyGroup: a click group that loads a command when it is called, and turns errors into words."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from forerun.errors import EXIT_DEFECT, EXIT_REQUEST, ForerunError, likely_name, nearest_names

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_DEVICE_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LazyGroup(click.Group):
    """Commands by name as (module:attribute, short help); none is imported for the group's help."""

    def __init__(self, commands_at: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._commands_at = commands_at

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; the nearest is offered for an unknown one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self._commands_at:
            near = nearest_names(name, self._commands_at)
            raise ForerunError(
                f"forerun {name[:60]}", "no such command",
                f"did you mean {', '.join(near)}?" if near else "see forerun --help",
            )  # fmt: skip
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._commands_at.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "forerun",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; return its exit code, or leave with it where it stands alone."""
        code = self._run(args, prog_name, complete_var, extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        extra: Mapping[str, Any],
    ) -> int:
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except ForerunError as error:
            return tell(error)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return EXIT_REQUEST
        except click.UsageError as error:
            return tell(usage_error(error))
        except click.ClickException as error:
            return tell(ForerunError("forerun", error.format_message(), "see forerun --help"))
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            _close_stdout()
            return EXIT_BROKEN_PIPE
        except OSError as error:
            if error.errno not in _DEVICE_FULL:
                return _defect(error)
            _close_stdout()
            return tell(
                ForerunError(
                    "writing the answer", f"{error.strerror} ({error.filename or 'stdout'})",
                    "free space, or write elsewhere",
                )
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 (the last door: a defect is reported, not shown raw)
            return _defect(error)
        return result if isinstance(result, int) else 0

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader who has gone away ends it quietly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _close_stdout()
            raise click.exceptions.Exit(EXIT_BROKEN_PIPE) from None


def tell(error: ForerunError) -> int:
    """Write an error's three parts to stderr; return its exit code."""
    click.echo(f"error: {error.asked}\n found: {error.found}\n next: {error.next_step}", err=True)
    return error.exit_code


def usage_error(error: click.UsageError) -> ForerunError:
    """Return click's usage error in the words of this program."""
    path = error.ctx.command_path if error.ctx else "forerun"
    next_step = f"see {path} --help"
    found = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        found = f"no such option {error.option_name}"
        known = [] if error.ctx is None else [
            name for p in error.ctx.command.params for name in p.opts if name.startswith("--")
        ]  # fmt: skip
        near = list(error.possibilities or ()) or nearest_names(error.option_name, known)
        if near:
            next_step = f"did you mean {' or '.join(near)}? {next_step}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        next_step = f"{_near_choice(error.param, found)}{next_step}"
    wrapped = ForerunError(path, found[:1].lower() + found[1:], next_step)
    assert wrapped.exit_code == EXIT_REQUEST
    return wrapped


def _near_choice(parameter: click.Parameter, found: str) -> str:
    """Return which of an option's few words was likely meant; "" where it takes other values."""
    if not isinstance(parameter.type, click.Choice):
        return ""
    words = [str(choice) for choice in parameter.type.choices]
    # Click says the value in quotes, after the option's name and before the choices.
    given = next((w for w in re.findall(r"'([^']*)'", found) if w not in parameter.opts), "")
    near = likely_name(given, words)
    return f"did you mean {near}? " if near else ""


def _defect(error: Exception) -> int:
    """Say that this is forerun's own mistake; with FORERUN_DEBUG also where."""
    click.echo(
        f"error: forerun failed\n found: {type(error).__name__}: {error} (a defect of forerun)\n"
        " next: run it again with FORERUN_DEBUG=1 and report what it prints",
        err=True,
    )
    if os.environ.get("FORERUN_DEBUG", "").lower() not in ("", "0", "false", "no", "off"):
        import traceback

        traceback.print_exception(error)
    return EXIT_DEFECT


def _close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
