"""Cluster text, such as `4x8xh100-sxm-80gb`, read into counts and names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from forerun.errors import RequestError

MAX_DEVICES = 1_000_000
FORMS = (
    "write NODESxDEVICESxDEVICE (4x8xh100-sxm-80gb), DEVICESxDEVICE for one node "
    "(8xh100-sxm-80gb), NODESxINSTANCE (4xaws:p5.48xlarge@us-east-1) or DEVICE:COUNT (H100:8)"
)
_COUNT = re.compile(r"\s*([+-]?[0-9]+)\s*[x\u00d7*]\s*(?=\S)", re.IGNORECASE)
_SKYPILOT = re.compile(r"(.+):\s*([+-]?[0-9]+)")


@dataclass(frozen=True, slots=True)
class ClusterText:
    """What a cluster's text asks for: nodes, devices in each (None: an instance's own), a name."""

    nodes: int
    devices_per_node: int | None
    name: str
    region: str = ""


def parse_cluster(text: str, is_instance: Callable[[str], bool]) -> ClusterText:
    """Return the counts and the name in a cluster's text.

    Args:
        text: see FORMS.
        is_instance: whether a name is that of a known machine type (those may begin with
            counts themselves, such as `8x_H100`).

    Raises:
        RequestError: malformed text, or counts that are not positive or above a million devices.
    """
    raw = str(text).strip()
    if not raw or len(raw) > 300:
        raise RequestError(f"cluster {raw[:60]!r}", "it is not a cluster's text", FORMS)
    body, _, region = raw.partition("@")
    rest, region, counts = body.strip(), region.strip(), list[int]()
    while not is_instance(rest) and (match := _COUNT.match(rest)):
        counts.append(_count(match[1], raw))
        rest = rest[match.end() :].strip()
    if is_instance(rest):
        if len(counts) > 1:
            raise RequestError(
                f"cluster {raw!r}", f"{rest} already says how many devices a node has",
                f"write NODESx{rest}",
            )  # fmt: skip
        return ClusterText(counts[0] if counts else 1, None, rest, region)
    if (match := _SKYPILOT.fullmatch(rest)) and len(counts) < 2:
        rest, counts = match[1].strip(), [*(counts or [1]), _count(match[2], raw)]
    if len(counts) > 2 or not rest or not re.search(r"[^\W_]", rest):
        raise RequestError(f"cluster {raw!r}", "it is not a cluster's text", FORMS)
    if rest.isdecimal():
        raise RequestError(f"cluster {raw!r}", "it has counts and names no device", FORMS)
    nodes, per_node = [1, 1, *counts][-2:] if len(counts) != 1 else (1, counts[0])
    check_counts(nodes, per_node, f"cluster {raw!r}")
    return ClusterText(nodes, per_node, rest, region)


def check_counts(nodes: int, devices_per_node: int, asked: str) -> None:
    """Refuse counts below one, and clusters above a million devices."""
    if nodes < 1 or devices_per_node < 1:
        raise RequestError(
            asked, f"it has {nodes} nodes of {devices_per_node} devices",
            "give at least one node and one device in it",
        )  # fmt: skip
    if nodes * devices_per_node > MAX_DEVICES:
        raise RequestError(
            asked, f"it has {nodes * devices_per_node:,} devices",
            f"give at most {MAX_DEVICES:,} devices",
        )  # fmt: skip


def _count(digits: str, raw: str) -> int:
    """Return a count; a number of absurd length is refused before it is read."""
    if len(digits) > 9:
        raise RequestError(
            f"cluster {raw[:60]!r}", f"a count has {len(digits)} digits",
            f"give at most {MAX_DEVICES:,} devices",
        )  # fmt: skip
    return int(digits)
