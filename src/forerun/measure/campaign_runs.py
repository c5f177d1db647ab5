"""Campaign runs: what varies of each workload, or of each run that a campaign file lists by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from forerun.errors import one_of
from forerun.measure.campaign import Point
from forerun.sections import Section


def sections_of(
    top: Section, workloads: Section, allowed: Sequence[str]
) -> Iterator[tuple[Section, str]]:
    """Yield the fields that make points, with their workload's name.

    Args:
        top: the whole file; where it has `runs`, each of these makes its points, with the fields of
            its workload where it has none of its own.
        workloads: its workloads by name.
        allowed: fields of a run beside `workload`.

    Raises:
        RequestError: a run has another field, or no workload that is there.
    """
    if "runs" not in top.values:
        yield from ((workloads.section(str(name)), str(name)) for name in workloads.values)
        return
    for run in top.sections("runs"):
        run.only(("workload", *allowed))
        name = str(run.values.get("workload", ""))
        if name not in workloads.values:
            raise run.error(
                "workload", f"no workload {name!r}", one_of(name, list(workloads.values))
            )
        own = {field: value for field, value in run.values.items() if field != "workload"}
        values = {**workloads.section(name).values, **own}
        yield Section(run.path, run.name, values, run.lines), name


def told_apart(points: Sequence[Point]) -> list[Point]:
    """Return points of which those that ask the same are each other's repeats."""
    counts: dict[str, int] = {}
    found = []
    for point in points:
        first = replace(point, repeat=0)
        counts[first.key] = counts.get(first.key, -1) + 1
        found.append(replace(point, repeat=counts[first.key]))
    return found
