"""Running: a service on a socket, from what the command line or a test states."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.advisor import Advisor
from forerun.errors import MissingExtraError, RequestError
from forerun.server.limits import ServerLimits
from forerun.settings import Settings

if TYPE_CHECKING:
    from forerun.server.front import Front

_IDLE_SECONDS = 30
_CONNECTIONS = 2000


@dataclass(frozen=True)
class Service:
    """What a service is made of; host "127.0.0.1" is this machine alone, port 0 any that is free."""

    advisor: Advisor
    settings: Settings
    host: str = "127.0.0.1"
    port: int = 8080
    store: str = ""
    tokens: Path | None = None
    audit: Path | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)

    def app(self) -> Front:
        """Return the ASGI application.

        Raises:
            RequestError: another host than loopback without tokens, or a file that cannot be used.
            MissingExtraError: the extra `server` is not installed.
        """
        from importlib.util import find_spec

        for package in ("fastapi", "uvicorn", "orjson"):
            if find_spec(package) is None:
                raise MissingExtraError("serving", package, "server")
        from forerun.advisor.listings import versions
        from forerun.server.app import make_app
        from forerun.server.front import AuditLog, Front, is_loopback
        from forerun.server.questions import Questions
        from forerun.server.tokens import Tokens

        if self.tokens is None and not is_loopback(self.host):
            raise RequestError(
                f"serving on {self.host}", "others could ask, and no token is needed",
                "give --tokens FILE (forerun serve token create --tokens FILE --scope predict), or --host 127.0.0.1",
            )  # fmt: skip
        questions = Questions(self.advisor, self.settings, self.store)
        app = make_app(questions, self.limits)
        tokens = None if self.tokens is None else Tokens(self.tokens)
        audit = None
        if self.audit is not None:
            sources = {machine.source for machine in self.advisor.catalog.instances}
            model = f"{self.advisor.predictor.name}, constants {versions()['constants']}"
            audit = AuditLog(self.audit, model, "; ".join(sorted(sources)))
        hosts = ("localhost", "127.0.0.1", "::1", self.host) if tokens is None else ()
        return Front(app, self.limits, tokens, audit, hosts)

    def listening(self) -> socket.socket:
        """Return a socket that listens. Raises RequestError where the address is taken or none."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=1024)
        except (OSError, OverflowError) as error:
            found = getattr(error, "strerror", None) or str(error)
            todo = "choose another --port or --host"
            raise RequestError(f"serving on {self.host}:{self.port}", found, todo) from None

    def server(self, app: Front) -> Any:
        """Return uvicorn's server of an application; `run(sockets=[...])` serves until a signal."""
        import uvicorn

        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on",
            timeout_keep_alive=_IDLE_SECONDS, limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=10,
        )  # fmt: skip
        return uvicorn.Server(config)
