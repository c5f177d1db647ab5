"""One family of errors: each says what was asked, what was found, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

EXIT_DEFECT = 1
EXIT_REQUEST = 2
EXIT_UNSATISFIED = 3


LIKELY = 0.75  # as alike as a slip of the pen leaves two names


class ForerunError(Exception):
    """A mistake or a limit that a person can act upon: what was asked, what was found, what to do now."""

    exit_code = EXIT_REQUEST

    def __init__(self, asked: str, found: str, next_step: str) -> None:
        super().__init__(asked, found, next_step)
        self.asked = asked
        self.found = found
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.asked}: {self.found}; {self.next_step}"


class RequestError(ForerunError):
    """The request itself is wrong (exit code 2)."""


_FEW = 5  # names that an error lists


class UnknownNameError(RequestError):
    """A name that no catalogue, zoo or registry holds; the nearest ones are offered."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "",
        nearest: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        known = list(known)
        self.nearest = nearest_names(name, known) if nearest is None else list(nearest)
        offer = f"did you mean {', '.join(self.nearest)}?" if self.nearest else _known(kind, known)
        parts = [p for p in (offer, hint) if p and (p is offer or p[1:-1] not in offer)]
        join = " " if hint.startswith("(") else "; "
        super().__init__(f"{kind} {name!r}", f"no such {kind}", join.join(parts))


class UnsatisfiedError(ForerunError):
    """The request is sound, and nothing satisfies it (exit code 3)."""

    exit_code = EXIT_UNSATISFIED


class UnavailableError(RequestError):
    """What the request needs does not work now, such as a database that is away; it may come back."""


class MissingExtraError(RequestError):
    """An optional dependency that this request needs is not installed."""

    def __init__(self, asked: str, package: str, extra: str) -> None:
        super().__init__(
            asked, f"the package {package!r} is not installed",
            f"install it with: pip install 'forerun[{extra}]'",
        )  # fmt: skip


@contextmanager
def optional(asked: str, package: str, extra: str) -> Iterator[None]:
    """Within it an optional dependency is imported. Raises MissingExtraError where it is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(asked, package, extra) from error


def one_of(value: object, choices: Iterable[object]) -> str:
    """Return what to write in place of a value that is none of a few, the likeliest first."""
    words = [str(choice) for choice in choices]
    near = likely_name(str(value), words)
    return f"{f'did you mean {near}? ' if near else ''}use one of {', '.join(words)}"


def likely_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` is most probably a slip of; "" where none is so near."""
    folded = {k.lower().replace("_", "-"): k for k in known}
    wanted = re.sub(r"[\s_-]+", "-", name.strip().lower())
    close = get_close_matches(wanted, folded, n=1, cutoff=LIKELY) if len(wanted) > 2 else []
    return folded[close[0]] if close else ""


def nearest_names(name: str, known: Iterable[str], count: int = 4) -> list[str]:
    """Return up to `count` known names that look like `name`, nearest first."""
    known = list(known)
    folded = {k.lower().replace("_", "-"): k for k in known}
    wanted = name.lower().replace("_", "-")
    close = [folded[m] for m in get_close_matches(wanted, folded, n=count, cutoff=0.55)]
    holding = [k for f, k in folded.items() if wanted and (wanted in f or f in wanted)]
    holding.sort(key=lambda k: (abs(len(k) - len(name)), k))
    return list(dict.fromkeys(close + holding))[:count]


def _known(kind: str, known: list[str]) -> str:
    if len(known) > _FEW:
        return f"{len(known)} {kind.replace(' or ', 's or ')}s are known"
    return f"known: {', '.join(map(str, known))}" if known else ""
