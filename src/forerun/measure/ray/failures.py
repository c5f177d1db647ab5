"""Told: what the workers of one run told by letters, and the cause of its end where that was bad.

Words: what Ray's own errors mean for a person, and as a status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.measure.failures import Ended, cause, is_secondhand
from forerun.measure.progress import Seen

# Where a worker has merely gone, Ray names want of memory among what may have happened: only
# these say that it did.
_WANT = ("OutOfMemoryError", "running low on memory", "memory usage threshold")
_SILENT = ("connectionerror", "could not find any running ray instance", "timed out",
           "failed to connect to gcs", "unable to connect to gcs")  # fmt: skip
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit)\b")  # as a traceback ends
_THEIRS = re.compile(r"cluster was started with:\s*Ray: (\S+)\s+Python: (\S+)")
_DIED = ("ActorDiedError", "ActorUnavailableError", "actor died", "WorkerCrashedError", "worker died",
         "SYSTEM_ERROR", "connection error code", "unexpectedly")  # fmt: skip
_NODE = ("node died", "node failure", "NodeDiedError", "unexpected node", "its node has died",
         "node was terminated", "node has been marked dead")  # fmt: skip


def from_ray(text: str) -> tuple[str, str]:
    """Return (status, what became of the worker) from Ray's words about it."""
    if any(word in text for word in _WANT):
        return "oom", "was killed by Ray, out of memory,"
    if any(word.lower() in text.lower() for word in _NODE):
        return "failed", f"was lost with its node ({_short(text)})"
    if any(word.lower() in text.lower() for word in _DIED):
        return "failed", "died without a word (killed, or crashed: Ray does not tell)"
    return "failed", f"failed: {_short(text)}"


def unreachable(output: str) -> str:
    """Return why no driver could work on the cluster, with what to do.

    Args:
        output: one error in words, or all that a program wrote until it ended.
    """
    text = _last_error(output)
    low = text.lower()
    said = f"({_short(text)})"
    if "version mismatch" in low:
        theirs = _THEIRS.search(text)
        same = f": Python {theirs[2]} with pip install ray=={theirs[1]}" if theirs else ""
        return f"the cluster runs another version of Ray or Python {said}; install the same{same}"
    if "no module named 'ray'" in low:
        return (
            "the Python of the driver has no Ray; install it there (pip install 'forerun[ray]'), or"
            " start the cluster where the python that has it comes first on the PATH"
        )
    if "invalid address format" in low:
        return (
            "that is no address of a Ray cluster; write HOST:PORT, auto, local, ray://HOST:PORT, or"
            " http://HEAD:8265 to submit"
        )
    if "timed out during startup" in low:
        return (
            "a cluster could not be started in time on this machine; try again when it is less busy,"
            " or give the address of one that runs (ray start --head)"
        )
    if "authentication" in low or "token" in low:
        return (
            f"the cluster asks for a token {said}; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN where"
            " it is another machine's"
        )
    if any(words in output.lower() for words in _SILENT):
        return f"no Ray cluster answers {said}; check the address, or start one: ray start --head"
    return f"Ray could not be used: {_short(text)}"


def _last_error(output: str) -> str:
    """Return the last exception that a program's output tells of, else its last line."""
    lines = [line for line in output.splitlines() if line.strip()]
    found = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    return " ".join(lines[found[-1] :]) if found else (lines or [""])[-1]


def failures(error: BaseException) -> dict[str, str]:
    """Return what Ray says of each worker by rank; of the fit as a whole under ""."""
    own = getattr(error, "worker_failures", None)
    if isinstance(own, Mapping) and own:
        return {str(rank): words_of(one) for rank, one in own.items()}
    return {"": words_of(error.__cause__ or error)}


def words_of(error: BaseException) -> str:
    """Return an exception's kind and words on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


Letter = dict[str, Any]


@dataclass
class Told:
    """What was told of one task: records and progress by rank."""

    records: dict[int, Letter] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)

    def progress(self, letter: Letter) -> None:
        """Take in how far a worker has come."""
        rank = int(letter["rank"])
        before = self.seen.get(rank)
        seconds = (*(before.seconds if before else ()), *letter["seconds"])
        self.seen[rank] = Seen(
            letter["phase"], letter["steps"], letter["begun"], letter["last"], seconds
        )

    @property
    def state(self) -> tuple[tuple[int, int, int], ...]:
        """What changes as long as anything moves."""
        return tuple((rank, one.phase, one.steps) for rank, one in sorted(self.seen.items()))

    def hindmost(self, workers: int) -> str:
        """Return where the worker was that had come least far."""
        if len(self.seen) < workers:
            return "while starting"
        return min(self.seen.values(), key=lambda one: one.steps).place()

    def cause(self, workers: int, failures: Mapping[str, str]) -> tuple[str, str]:
        """Return (status, reason) from the workers' own records, else from what Ray says of them.

        Args:
            workers: how many there were.
            failures: Ray's words about each worker, by its rank; about all under "".
        """
        ends = [
            Ended(rank, None, self.records.get(rank), self.seen.get(rank))
            for rank in range(workers)
        ]
        spoken = [e for e in ends if e.record is not None and e.record["status"] != "ok"]
        firsthand = [e for e in spoken if e.record and not is_secondhand(str(e.record["reason"]))]
        if firsthand or (spoken and not failures):
            return cause(ends)
        silent = {r: w for r, w in failures.items() if r == "" or self.records.get(int(r)) is None}
        for rank, words in (silent or dict(failures)).items():
            status, reason = from_ray(words)
            if rank == "":
                return status, reason
            seen = self.seen.get(int(rank))
            place = "while starting" if seen is None else seen.place()
            return status, f"worker {rank} of {workers} {reason} {place}"
        return "failed", "Ray Train ended without a word"
