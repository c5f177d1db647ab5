"""forerun serve: answers over REST; forerun serve token create: lets somebody ask."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from forerun.advisor.listings import versions
from forerun.cli import options as shared
from forerun.cli.inputs import DURATION, FILE, FROM_ZERO, WHOLE, SeveralTables
from forerun.cli.interrupting import orderly
from forerun.cli.printing import echo
from forerun.cli.showing import Screen
from forerun.errors import MissingExtraError, RequestError
from forerun.server.front import LOOPBACK, AuditLog, Front
from forerun.server.limits import ServerLimits
from forerun.server.tokens import SCOPES, create_token, read_tokens, revoke_token

_tokens_option = click.option("--tokens", "tokens_file", type=FILE, metavar="FILE", help="The file of tokens.")  # fmt: skip


_task_options = shared.together(
    click.option("--allow-modules", "modules", is_flag=True, help="Tasks may run package.module:callable of others, and scripts, on this machine."),
    click.option("--ray", metavar="ADDRESS", help="A Ray cluster for runs, fits, evaluations, recommendations and encoders; http://HEAD:8265: for runs alone, by `ray job submit`."),
)  # fmt: skip


class _Serve(click.Group, SeveralTables):
    """A group whose own options take several tables."""


@click.group(cls=_Serve, invoke_without_command=True)
@shared.together(
    click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one."),
    shared.store_option,
    _tokens_option,
    click.option("--audit", type=FILE, metavar="FILE", help="Append a line of JSON for each prediction."),
    click.option("--rate", "requests_per_second", type=FROM_ZERO, help="The most requests a second of a token or address (no limit)."),
    click.option("--questions", type=WHOLE, help="The most questions that wait or are computed (256)."),
    click.option("--threads", "workers", type=WHOLE, help="Threads that compute (2)."),
    click.option("--timeout", "seconds", type=DURATION, help="The longest that an answer takes (2min)."),
    click.option("--max-body", "body_bytes", type=WHOLE, help="Bytes of a question (1,000,000)."),
    click.option("--max-batch", "batch_bytes", type=WHOLE, help="Bytes of a batch (64,000,000)."),
    click.option("--cache", "cache_bytes", type=WHOLE, help="Bytes of answers that are kept (256,000,000)."),
    click.option("--metrics-open", is_flag=True, help="GET /metrics needs no token."),
    click.option("--workers", "task_workers", type=click.IntRange(0, 64), default=1, show_default=True,
                 help="Tasks that are carried out at once; 0: none here."),
    click.option("--keep-tasks", type=WHOLE, help="Tasks that have ended that are kept (10,000); models and runs stay."),
)  # fmt: skip
@_task_options
@shared.predictor_options
def serve(host: str, port: int, task_workers: int, **options: Any) -> None:
    """Answer over REST what other commands answer with --json (docs/serving.md), until Ctrl-C.

    On this machine alone nobody needs a token; on another --host, --tokens names the file of those
    that are let in.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    commands = [_worker_words(slot) for slot in range(task_workers)]
    variables = {"FORERUN_STORE": options["where"]} if options["where"] else {}
    app, run = _app(host, options)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        todo = "choose another --port or --host"
        raise RequestError(f"serving on {host}:{port}", str(error.strerror), todo) from None
    with listening:
        shown, at = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        echo(f"forerun answers on http://{shown}:{at}/v1 (Ctrl-C ends it); its page is http://{shown}:{at}/")  # fmt: skip
        from forerun.server.worker import Workers

        with Workers(commands, variables):
            run(app, listening)


def _worker_words(slot: int, *more: str) -> list[str]:
    """Return the command of a worker with the options of this one; the store is in its environment."""
    context = click.get_current_context()
    words = [sys.executable, "-m", "forerun", "serve", "worker", "--slot", str(slot), *more]
    for option in worker.params:
        value = context.params.get(str(option.name))
        several = value if isinstance(value, tuple) else () if value in (None, False) else (value,)
        for one in several if option.name not in ("where", "slot", "task") else ():
            words += [option.opts[0], *([] if one is True else [str(one)])]
    return words


def _app(host: str, options: dict[str, Any]) -> tuple[Any, Callable[[Any, socket.socket], None]]:
    """Return what answers, and what runs it. Raises RequestError for another host than loopback without tokens."""
    try:
        from forerun.server.app import make_app, run
        from forerun.server.questions import Questions
        from forerun.server.tasks import KEPT_TASKS, TaskDesk
        from forerun.server.watching import Watched
    except ModuleNotFoundError as error:
        raise MissingExtraError("serving", str(error.name), "server") from None
    names = ("tokens_file", "audit", "where", "modules", "ray", "metrics_open", "keep_tasks")
    file, audit, store, modules, _, metrics_open, kept = (options.pop(name) for name in names)
    if file is None and (host not in LOOPBACK or not host):
        raise RequestError(
            f"serving on {host or 'every address'}", "others could ask, and no token would be needed",
            "give --tokens FILE (made by: forerun serve token create --tokens FILE --scope predict)",
        )  # fmt: skip
    given = {name: options.pop(name, None) for name in vars(ServerLimits())}
    stated = {name: value for name, value in given.items() if value is not None}
    settings, limits = shared.settings_of(options), ServerLimits(**stated)
    advisor = shared.advisor_of(settings, options, choose=True)
    lists = " ".join(machine.source for machine in advisor.catalog.instances)
    prices = ", ".join(sorted(set(re.findall(r"commit \w+", lists)))) or "none with a date"
    model = f"{advisor.predictor.name}, constants {versions()['constants']}"
    if file is not None:
        read_tokens(file)  # a file that cannot be read is found now
    log = None if audit is None else AuditLog(audit, model=model, prices=prices)
    asked = Questions(advisor, settings, store)
    desk = TaskDesk(asked, limits, modules, kept or KEPT_TASKS)
    routes = make_app(asked, limits, desk, log)
    front = Front(routes, limits, file, log)
    return Watched(front, routes, asked, metrics_open), partial(run, desk=desk)


@serve.command()
@shared.store_option
@click.option(
    "--slot", type=click.IntRange(0), default=0, show_default=True,
    help="Its number on this machine: of each number one works.",
)  # fmt: skip
@click.option("--task", nargs=2, hidden=True)
@_task_options
@shared.predictor_options
@orderly("stopped")
def worker(where: str, slot: int, task: tuple[str, str] | None, modules: bool, ray: str | None, **options: Any) -> None:  # fmt: skip
    """Carry out tasks of a store. `forerun serve` starts its own; give this its options, on further machines too."""
    if task is None:
        from forerun.server.worker import TaskWorker

        TaskWorker(where, slot, lambda key, by: _worker_words(slot, "--task", key, by)).work()
        return
    from forerun.measure.processes import die_with_parent
    from forerun.server.questions import Questions
    from forerun.server.task_kinds import carry_out

    die_with_parent()
    settings = shared.settings_of(options)
    advisor = shared.advisor_of(settings, options, choose=True)
    carry_out(Questions(advisor, settings, where), *task, ray or "", modules)


@serve.group()
def token() -> None:
    """The tokens that let others ask."""


def _named(file: Path | None) -> Path:
    if file is None:
        raise RequestError("tokens", "no file is named that keeps them", "give --tokens FILE")
    return file


@token.command()
@_tokens_option
@shared.together(
    click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, required=True,
                 help="read: lists and runs; predict: questions; run: keep runs and start long work; admin: all (may be repeated)."),
    click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="Until it ends."),
    click.option("--name", "of", default="", help="Whose it is, for `forerun serve token list`."),
)  # fmt: skip
def create(tokens_file: Path | None, scopes: tuple[str, ...], days: int, of: str) -> None:
    """Make a token, print it once, and keep its hash."""
    echo(create_token(_named(tokens_file), scopes, days, of))


@token.command("list")
@_tokens_option
def list_tokens(tokens_file: Path | None) -> None:
    """The tokens of a file: id, name, scopes and end."""
    every = read_tokens(_named(tokens_file)).values()
    rows = [(one.id, one.of, ", ".join(one.scopes), one.expires) for one in every]
    Screen().table(("id", "name", "scopes", "ends"), rows)


@token.command()
@_tokens_option
@click.argument("name", metavar="ID")
def revoke(tokens_file: Path | None, name: str) -> None:
    """End a token at once, by its id."""
    revoke_token(_named(tokens_file), name)
    echo(f"the token {name} is let in no more")
