"""Kept: what a store gives back beside Runs: keys, campaigns and their points, artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.domain.job import Job

# Columns of a table that say where a run comes from. A table that has them gives its rows their
# own keys and provenance, so that runs move between stores without becoming others.
PROVENANCE: Mapping[str, str] = {
    "run_key": "the run's key in the store",
    "run_started": "when it began, ISO 8601 in UTC",
    "run_campaign": "the campaign that asked for it",
    "run_point": "which point of that campaign it is",
    "run_fingerprint": "software and hardware that it ran on, as JSON",
}


@dataclass(frozen=True)
class Added:
    """What became of the rows of one call.

    Attributes:
        keys: (n,) of each row, new or known.
        new: how many were not there before.
        known: how many were there already, or stand in the call twice under one key.
    """

    keys: tuple[str, ...]
    new: int
    known: int


@dataclass(frozen=True)
class Stored:
    """One run with its provenance.

    Attributes:
        key: its key.
        row: its columns without blanks, in the units of the runs table; a cell of a number column
            that could not be read is its text.
        job: the whole job, None where the run came as a row of a table.
        started, added: ISO 8601 in UTC; when the run began ("" where nobody said), and when it
            was stored.
        campaign, point: who asked for it, "" where nobody did.
        fingerprint: software and hardware that it ran on, empty where not known.
    """

    key: str
    row: Mapping[str, Any]
    job: Job | None
    started: str
    added: str
    campaign: str
    point: str
    fingerprint: Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """One point of a campaign or step of a search.

    Attributes:
        status: a word of its owner's; a run that was added for it leaves its own status.
        run_key: the run that answered it, "" where there is none yet.
        note: a reason, or what else its owner wrote.
        updated: ISO 8601 in UTC.
    """

    status: str
    run_key: str = ""
    note: str = ""
    updated: str = ""


@dataclass(frozen=True)
class Record:
    """A campaign or a search.

    Attributes:
        name: unique among its kind.
        spec: what was asked for, as JSON.
        created: ISO 8601 in UTC.
        points: by name, in the order in which they came.
    """

    name: str
    spec: Mapping[str, Any]
    created: str
    points: Mapping[str, Point] = field(default_factory=dict)


@dataclass(frozen=True)
class Artifact:
    """Something made from runs: a model, a plot, a report; and what made it.

    Attributes:
        digest: SHA-256 of its content, 64 hexadecimal digits.
        name, kind: as its maker calls it, e.g. `mlp.json` and `model`.
        size_bytes: of its content.
        path: the file that holds it, "" where the store does.
        seed, commit, command: what made it; None and "" where not said.
        created: ISO 8601 in UTC.
        runs: keys of the runs that it was made from.
    """

    digest: str
    name: str
    kind: str
    size_bytes: int
    path: str
    seed: int | None
    commit: str
    command: str
    created: str
    runs: tuple[str, ...] = ()
