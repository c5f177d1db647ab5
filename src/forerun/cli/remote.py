"""Remote: what commands ask in place of an advisor, lists and a store: the service that it names."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forerun.advisor.given_runs import PREFIX, is_stored
from forerun.cli.options import service
from forerun.cli.printing import echo
from forerun.cli.showing import waiting
from forerun.client import Client, answered_rows, columns_of, finished
from forerun.errors import RequestError
from forerun.settings import Settings
from forerun.tables import Table
from forerun.tables.datasets import dataset

# What a service has of its own, and what else it does not take, by parameter or setting.
_LOCAL = ("fit_files", "catalog_files", "flags_file", "predictor", "start", "own_columns", "lab_name", "address", "where")  # fmt: skip
_NOT_THERE = ("campaign", "drawing", "hold", "dry_run", "known", "name", "seeds", "html")
_OPTIONS = {
    "fit_files": "--fit", "catalog_files": "--catalog", "flags_file": "--flags", "drawing": "--plot or --html",
    "lab_name": "--lab", "where": "--store", "name": "--keep",
}  # fmt: skip


def client_at(settings: Settings) -> RemoteAdvisor:
    """Return a client of the service that settings name. Raises RequestError."""
    token, file = os.environ.get("FORERUN_TOKEN", ""), settings.text("token_file")
    if file:
        try:
            token = Path(file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            found = getattr(error, "strerror", None) or "it is not text"
            todo = "name a file with the token that `forerun serve token create` printed"
            raise RequestError(f"the token in {file}", str(found), todo) from None
    return RemoteAdvisor(settings.text("server"), token.strip())


def refuse_local(settings: Settings, options: dict[str, Any], taken: Sequence[str] = ()) -> None:
    """Take out of the options what a service does not take, less what it takes. Raises RequestError where one is given."""
    for name in (one for one in (*_LOCAL, *_NOT_THERE) if one not in taken):
        if options.pop(name, None) or settings.origins.get(name) == "flag":
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            found = "the service answers with the predictor, runs, lists and machines that it was started with"
            found = found if name in _LOCAL else "it is for commands on this machine"
            raise RequestError(f"{option} with a server", found, "leave it out, or give --server ''")  # fmt: skip


def own_of(settings: Settings) -> dict[str, str]:
    """Return who learns and from which columns of one's own, as far as the command line names it."""
    names = ("predictor", "start", "own_columns")
    return {n: settings.text(n) for n in names if settings.origins.get(n) == "flag"}


def sent_runs(files: Sequence[Path]) -> dict[str, Any]:
    """Return the columns of files of runs, or conditions on those that the service keeps. Raises RequestError for others."""
    texts = [str(file) for file in files]
    if len(texts) == 1 and texts[0].startswith(PREFIX):
        return {"where": list(filter(None, [texts[0].removeprefix(PREFIX).strip()]))}
    for text in texts:
        if is_stored(text) or dataset(text) is not None:
            found = "a service gets tables, or names its own runs: store:, or store:CONDITION, alone"  # fmt: skip
            raise RequestError(f"--runs {text} with a server", found, "give such, or --server ''")
    return {"columns": columns_of(files)}


def carried_out(what: str, body: dict[str, Any], words: str) -> dict[str, Any]:
    """Return what a task of the command's service found; Ctrl-C cancels it. Raises what made it fail where it found nothing."""
    client: Any = service()
    task = client.start_task(what, body, secrets.token_hex(16))["id"]
    try:
        with waiting(words, plain=True) as doing:
            for kind, data in client.events(task):
                if kind == "task" and data["progress"]["note"]:
                    doing(data["progress"]["note"])
    except KeyboardInterrupt:
        client.cancel(task)
        echo(f"the task {task} of the service is cancelled", err=True)
        raise
    done = client.task(task)
    return dict(done["result"] or finished(done)["result"])


class RemoteAdvisor(Client):
    """A service in place of an advisor."""

    def __init__(self, url: str, token: str = "") -> None:
        super().__init__(url, token)
        self.made = None
        self.flags: Any = None
        self.predictor: Any = None

    def ask_model(self, name: str) -> None:
        """Have a model of the service (`/v1/models`) answer from now on."""
        self._always = {"model": name}

    def _by(self, about: dict[str, Any]) -> None:
        names = {"choice": "verdicts", "reasons_of_choice": "reasons"}
        self.predictor = SimpleNamespace(**{names.get(n, n): value for n, value in about.items()})
        if "runs" in about:
            self.flags = SimpleNamespace(as_dict=lambda: about["runs"])

    def workload(self, name: str, **changes: Any) -> Any:
        """Return a workload as `predict` takes it: the service reads it then."""
        return SimpleNamespace(name=name, changes=changes)

    def cluster(self, name: str, **_: Any) -> None:
        """Do nothing: the service reads the cluster when it is asked."""

    def predict(self, workload: Any, cluster: Any, plan: Any = None, **asked: Any) -> Any:
        """Return an answer."""
        if isinstance(workload, SimpleNamespace):
            workload, asked = workload.name, {**asked, **workload.changes}
        return super().predict(workload, cluster, plan, **asked)


class RemoteStore:
    """The store of a service."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.where = ""

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(self, *_: object) -> None:
        """The command closes the client."""

    def _runs(self, where: Sequence[str], limit: int | None) -> dict[str, Any]:
        found = self._client.runs(list(where), limit)
        self.where = found["store"]
        return dict(found)

    def count(self, where: Sequence[str] = ()) -> int:
        """Return how many runs meet the conditions."""
        return int(self._runs(where, 1)["count"])

    def why_none(self, where: Sequence[str]) -> list[str]:
        """Return why no run meets them."""
        return list(self._runs(where, 1)["why_none"])

    def table(
        self, where: Sequence[str] = (), limit: int | None = None, newest: bool = False, provenance: bool = False
    ) -> Table:  # fmt: skip
        """Return the runs that meet conditions, the oldest first unless `newest`."""
        if limit is not None and not newest:
            raise RequestError("--oldest with a server", "it lists the newest", "leave it out")
        rows = self._runs(where, limit)["runs"]
        if not provenance:
            own = ("run_key", "run_started", "run_campaign", "run_point", "run_fingerprint")
            rows = [{n: v for n, v in row.items() if n not in own} for row in rows]
        every = rows if newest else rows[::-1]
        return answered_rows(every)

    def add_tables(self, tables: Sequence[Table], campaign: str = "") -> list[SimpleNamespace]:
        """Keep tables, each whole or not at all, and return how many runs of each were new and known."""
        counts = []
        for table in tables:
            found = self._client.keep_runs(table, campaign)
            self.where = found["store"]
            (file,) = found["files"]
            counts.append(SimpleNamespace(new=file["new"], known=file["known_already"]))
        return counts
