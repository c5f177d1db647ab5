"""forerun serve: answers over REST; forerun serve token: who may ask."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from forerun.cli import options as shared
from forerun.cli.inputs import DURATION, FILE, FROM_ZERO, WHOLE, SeveralTables
from forerun.cli.printing import echo

_tokens_option = click.option("--tokens", type=FILE, metavar="FILE", help="The file of tokens.")


class _Serve(click.Group, SeveralTables):
    """A group whose own options may name several tables."""


@click.group(cls=_Serve, invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any.")
@shared.store_option
@_tokens_option
@click.option("--audit", type=FILE, metavar="FILE", help="Append a line of JSON for each prediction.")
@click.option("--rate", "requests_per_second", type=FROM_ZERO,
              help="The most requests a second of a token or address (no limit).")  # fmt: skip
@click.option("--questions", type=WHOLE, help="The most questions that wait or are computed (256).")
@click.option("--threads", type=WHOLE, help="Threads that compute (2).")
@click.option("--timeout", "seconds", type=DURATION, help="The longest that an answer takes (2min).")
@click.option("--max-body", "body_bytes", type=WHOLE, help="Bytes of a question (1,000,000).")
@click.option("--max-batch", "batch_bytes", type=WHOLE, help="Bytes of a batch (64,000,000).")
@click.option("--cache", "cache_bytes", type=WHOLE, help="Bytes of answers kept (256,000,000).")
@shared.market_options
@shared.predictor_options
@click.pass_context
def serve(
    context: click.Context, host: str, port: int, where: str, tokens: Path | None, audit: Path | None,
    **options: Any,
) -> None:  # fmt: skip
    """Answer over REST what the other commands answer with --json (docs/serving.md).

    On this machine alone no token is needed; on another --host, --tokens names the file of those
    that are let in. Stop it with Ctrl-C.
    """
    if context.invoked_subcommand is not None:
        return
    from forerun.server.limits import ServerLimits
    from forerun.server.running import Service

    stated = {f.name: v for f in fields(ServerLimits) if (v := options.pop(f.name, None)) is not None}
    settings = shared.settings_of(options)
    advisor = shared.advisor_of(settings, options, choose=True)
    service = Service(
        advisor, settings, host, port, where, tokens, audit, ServerLimits(**stated)
    )  # fmt: skip
    app = service.app()
    with service.listening() as listening:
        shown = f"[{host}]" if ":" in host else host
        echo(f"forerun answers on http://{shown}:{listening.getsockname()[1]}/v1 (Ctrl-C ends it)")
        service.server(app).run(sockets=[listening])


@serve.group()
def token() -> None:
    """The tokens that let others ask."""


@token.command()
@_tokens_option
@click.option("--scope", "scopes", multiple=True, required=True,
              type=click.Choice(["read", "predict", "run", "admin"]),
              help="read: lists and runs; predict: questions; run: keep runs; admin: all (may be repeated).")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="Until it ends.")
def create(tokens: Path | None, scopes: tuple[str, ...], days: int) -> None:
    """Make a token, print it once, and keep its hash. Take its entry out of the file to end it."""
    from forerun.errors import RequestError
    from forerun.server.tokens import create as made

    if tokens is None:
        raise RequestError("a token", "no file is named that keeps it", "give --tokens FILE")
    echo(made(tokens, scopes, days))
