"""forerun serve: answers over REST; forerun serve token create: lets somebody ask."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from forerun.advisor.listings import versions
from forerun.cli import options as shared
from forerun.cli.inputs import DURATION, FILE, FROM_ZERO, WHOLE, SeveralTables
from forerun.cli.printing import echo
from forerun.errors import MissingExtraError, RequestError
from forerun.server.front import LOOPBACK, AuditLog, Front
from forerun.server.limits import ServerLimits
from forerun.server.tokens import SCOPES, create_token, read_tokens

_tokens_option = click.option(
    "--tokens", "tokens_file", type=FILE, metavar="FILE", help="The file of tokens."
)


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
)  # fmt: skip
@shared.predictor_options
def serve(host: str, port: int, **options: Any) -> None:
    """Answer over REST what other commands answer with --json (docs/serving.md), until Ctrl-C.

    On this machine alone nobody needs a token; on another --host, --tokens names the file of those
    that are let in.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    app, run = _app(host, options)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        todo = "choose another --port or --host"
        raise RequestError(f"serving on {host}:{port}", str(error.strerror), todo) from None
    with listening:
        shown, at = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        echo(
            f"forerun answers on http://{shown}:{at}/v1, and shows a page on http://{shown}:{at}/ (Ctrl-C ends it)"
        )
        run(app, listening)


def _app(
    host: str, options: dict[str, Any]
) -> tuple[Front, Callable[[Front, socket.socket], None]]:
    """Return what answers, and what runs it. Raises RequestError for another host than loopback without tokens."""
    try:
        from forerun.server.app import make_app, run
        from forerun.server.questions import Questions
    except ModuleNotFoundError as error:
        raise MissingExtraError("serving", str(error.name), "server") from None
    file, audit, store = (options.pop(name) for name in ("tokens_file", "audit", "where"))
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
    return Front(make_app(Questions(advisor, settings, store), limits), limits, file, log), run


@serve.group()
def token() -> None:
    """The tokens that let others ask."""


@token.command()
@_tokens_option
@shared.together(
    click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, required=True,
                 help="read: lists and runs; predict: questions; run: keep runs; admin: all (may be repeated)."),
    click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="Until it ends."),
)  # fmt: skip
def create(tokens_file: Path | None, scopes: tuple[str, ...], days: int) -> None:
    """Make a token, print it once, and keep its hash. Who takes its entry out of the file ends it."""
    if tokens_file is None:
        raise RequestError("a token", "no file is named that keeps it", "give --tokens FILE")
    echo(create_token(tokens_file, scopes, days))
