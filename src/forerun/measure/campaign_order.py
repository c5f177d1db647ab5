"""Campaign order: which run is made when, so that a machine that wanders does not pass for what was varied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.measure.campaign import Point
from forerun.measure.task import sharing

ORDERS = ("smallest", "random")


def in_order(points: Sequence[Point], order: str, seed: int) -> list[Point]:
    """Return points in the order in which they are run.

    Args:
        points: all of a campaign.
        order: `smallest`: fewest workers first, as given otherwise; such runs cost least, and tell
            soonest that something is wrong. `random`: pass after pass, each with one repeat of
            every point, its starts of processes drawn by chance and so the points of each start: a
            randomised complete block design (Fisher, The Design of Experiments, 1935). What the
            machine does meanwhile falls on all alike then, and repeats, hours apart, show it.
        seed: of the draw; equal points and seed give an equal order, also when resumed.
    """
    if order == "smallest":
        return sorted(points, key=lambda point: (point.task.workers, point.task.cpus_per_worker))
    draw = np.random.default_rng(seed)
    found: list[Point] = []
    for repeat in sorted({point.repeat for point in points}):
        some = [point for point in points if point.repeat == repeat]
        starts = sharing([point.task for point in some])
        for start in draw.permutation(len(starts)):
            found += [some[i] for i in draw.permutation(starts[start])]
    return found
