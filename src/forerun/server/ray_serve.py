"""Ray Serve: the service as replicas on a Ray cluster, by `serve run forerun.server.ray_serve:app tokens=FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.errors import MissingExtraError, RequestError, UnknownNameError

_ARGUMENTS = ("tokens", "audit", "store", "replicas", "local")


def app(arguments: dict[str, Any]) -> Any:
    """Return the application that `serve run` and `serve deploy` start.

    Args:
        arguments: tokens: the file of tokens, which every replica reads; local: `yes` in its place, where nobody but
            this machine reaches the cluster. store, audit: as of `forerun serve`. replicas: how many (2). Model,
            predictor, prices and so on are the settings of the machines that replicas run on.

    Raises:
        RequestError: an argument that there is not, or neither tokens nor local.
        MissingExtraError: Ray Serve is not installed.
    """
    for name in arguments.keys() - set(_ARGUMENTS):
        raise UnknownNameError("argument of Ray Serve", name, _ARGUMENTS)
    if not arguments.get("tokens") and arguments.get("local") != "yes":
        raise RequestError(
            "serving on Ray", "others could ask, and no token would be needed",
            "give tokens=FILE, or local=yes where nobody but this machine reaches the cluster",
        )  # fmt: skip
    try:
        from ray import serve
    except ImportError:
        raise MissingExtraError("serving on Ray", "ray[serve]", "ray") from None

    def front() -> Any:  # in each replica
        return _front(arguments)

    replica = serve.ingress(front)()
    replica.__name__ = "forerun"
    return serve.deployment(replica, num_replicas=int(arguments.get("replicas", 2))).bind()


def _front(arguments: dict[str, Any]) -> Any:
    """Return what one replica answers with."""
    from forerun.advisor.advisor import usual_advisor
    from forerun.server.app import make_app
    from forerun.server.front import AuditLog, Front
    from forerun.server.limits import ServerLimits
    from forerun.server.questions import Questions
    from forerun.settings import load_settings

    advisor, limits = usual_advisor(), ServerLimits()
    tokens, audit = (Path(arguments[n]) if arguments.get(n) else None for n in ("tokens", "audit"))
    log = None if audit is None else AuditLog(audit, model=advisor.predictor.name)
    asked = Questions(advisor, load_settings(), arguments.get("store", ""))
    return Front(make_app(asked, limits, audit=log), limits, tokens, log)
