"""Words: what Ray's own errors mean for a person, and as a status."""

from __future__ import annotations

# Where a worker has merely gone, Ray names want of memory among what may have happened: only
# these say that it did.
_WANT = ("OutOfMemoryError", "running low on memory", "memory usage threshold")
_SILENT = ("connectionerror", "could not find any running ray instance", "timed out",
           "failed to connect to gcs", "unable to connect to gcs")  # fmt: skip
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


def unreachable(text: str) -> str:
    """Return why no driver could work on the cluster, with what to do."""
    low = text.lower()
    if "version mismatch" in low:
        return (
            f"the cluster runs another version of Ray or Python ({_short(text)}); install the same"
        )
    if "no module named 'ray'" in low:
        return "Ray is not installed there; install it with: pip install 'forerun[ray]'"
    if "authentication" in low or "token" in low:
        return f"the cluster asks for a token ({_short(text)}); set RAY_AUTH_MODE as the cluster has it"
    if (
        "connectionerror" in low
        or "could not find any running ray instance" in low
        or "timed out" in low
    ):
        return f"no Ray cluster answers ({_short(text)}); check the address, or start one: ray start --head"
    return f"Ray could not be used: {_short(text)}"


def _short(text: str) -> str:
    return " ".join(text.split())[:300]
