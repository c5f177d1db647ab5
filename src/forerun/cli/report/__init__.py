"""The report: one self-contained HTML page of a recommendation, a search or an answer; it loads nothing from a network."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from forerun import wire
from forerun.charts import Chart
from forerun.cli import showing
from forerun.domain.recommendation import Option, Recommendation
from forerun.packaged import filled
from forerun.units import (
    SECONDS_PER_HOUR,
    format_bytes,
    format_dollars,
    format_probability,
    format_seconds,
)

HERE = Path(__file__).parent
_LABEL = 28  # characters of a cluster's name beside a point or in a table; a longer one gives way to its devices
_SCRIPTS = ("common.js", "{}.js")


def report_page(name: str, found: Recommendation) -> str:
    """Return the HTML of a recommendation's page."""
    shown = list(found.front or found.near_misses)
    if found.best is not None and found.best not in shown:
        shown.append(found.best)
    best = -1 if found.best is None else shown.index(found.best)
    options = [_option(option, found) for option in shown]
    limits = showing.limits_of(found.objective.limits)
    refused: dict[str, dict[str, Any]] = {}
    for one in found.refused:
        limit = one.limit or one.reason
        group = refused.setdefault(limit, {"limit": limit, "count": 0, "examples": []})
        group["count"] += one.count
        if one.plan:
            why = one.reason.removeprefix(f"{limit}: ")
            group["examples"].append((one.cluster, one.plan, "" if why == limit else why))
    return page(
        "report", name=name, found=found,
        objective=", ".join([showing.best_text(found), *(text for _, _, text in limits)]),
        limit_headers=[header for _, header, _ in limits], better=showing.BETTER[found.compared_by],
        rivals=showing.rivals(found), options=options, best=best, refused=list(refused.values()),
        data={"options": options, "best": best},
    )  # fmt: skip


class PageScreen(showing.Screen):
    """A screen that keeps what is written on it, as the blocks of a page."""

    def __init__(self) -> None:
        self._width = 0
        self.blocks: list[dict[str, Any]] = []

    def _add(self, kind: str, **fields: Any) -> None:
        self.blocks.append({"kind": kind, **fields})

    def title(self, text: str) -> None:
        """Keep a heading."""
        self._add("title", text=text)

    def line(self, text: str = "", indent: int | None = None) -> None:
        """Keep a paragraph."""
        if text:
            self._add("line", text=text)

    def labelled(self, rows: Iterable[tuple[str, str]], width: int = 8) -> None:
        """Keep labels with their texts."""
        if kept := [row for row in rows if row[1]]:
            self._add("facts", rows=kept)

    def items(self, title: str, lines: Iterable[str]) -> None:
        """Keep a titled list, nothing where it is empty."""
        if kept := list(lines):
            self.title(title)
            self._add("items", rows=kept)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Keep a table, less the columns that have neither a header nor a cell."""
        cells = [[str(cell) for cell in row] for row in rows]
        used = [i for i, head in enumerate(headers) if head or any(row[i] for row in cells)]
        if title:
            self.title(title)
        right = [all(showing.is_numeric(row[i]) for row in cells) for i in used]
        kept = [[row[i] for i in used] for row in cells]
        self._add("table", headers=[headers[i] for i in used], rows=kept, right=right)

    def bar(self, share: float) -> str:
        """Return nothing: charts show shares."""
        return ""


def answer_page(show: Callable[[showing.Screen], None], charts: Sequence[Chart]) -> str:
    """Return the HTML of what `show` writes to a screen, under its first heading, with charts behind its first table."""
    screen = PageScreen()
    show(screen)
    first = next(block for block in screen.blocks if block["kind"] == "title")
    blocks = [block for block in screen.blocks if block is not first]
    kinds = [block["kind"] for block in blocks]
    after = next((kinds.index(kind) for kind in ("table", "facts") if kind in kinds), 0)
    data = {"charts": charts}
    return page("answer", data, name=first["text"], blocks=blocks, charts_after=after)


def _made() -> dict[str, str]:
    """Return when a page is written, by which version, and by which command where there is one."""
    context = click.get_current_context(silent=True)
    words = None if context is None else context.find_root().obj
    return {
        "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "version": version("forerun"), "command": shlex.join(["forerun", *words]) if words else "",
    }  # fmt: skip


def page(kind: str, data: Mapping[str, Any], **fields: Any) -> str:
    """Return the HTML of a page: its template with the fields, its script with the data."""
    return filled(
        HERE / f"{kind}.html.j2", html=True, **fields, data=wire.clean(data), made=_made(),
        chart_library=(HERE / "chart.umd.min.js").read_text(encoding="utf-8"),
        script="\n".join((HERE / n.format(kind)).read_text(encoding="utf-8") for n in _SCRIPTS),
        style=(HERE / "report.css").read_text(encoding="utf-8"),
    )  # fmt: skip


def _option(option: Option, found: Recommendation) -> dict[str, Any]:
    estimate, forecast, cluster = option.estimate, option.estimate.forecast, option.job.cluster
    peak = forecast.peak_bytes[1] if forecast else float("nan")
    plan, devices = (
        option.job.plan, f"{cluster.nodes}x{cluster.devices_per_node}x{cluster.device.id}",
    )  # fmt: skip
    lines = showing.throughput_lines(
        option.job, option.throughput, estimate, found.objective.preemption
    )
    return {
        "cluster": cluster.name,
        "label": cluster.name
        if len(cluster.name) <= _LABEL
        else f"{devices} {cluster.provider}".strip(),
        "plan": f"{plan}, global batch {plan.global_batch:,}",
        "wall": format_seconds(estimate.wall_seconds[1]),
        "wall_range": " to ".join(map(format_seconds, estimate.wall_seconds[::2])),
        "run": format_seconds(estimate.run_seconds[1]),
        "mfu": showing.share(option.throughput["mfu"]),
        **{f"{name.lower()}_words": text or "unknown" for name, text in lines},
        "cost": format_dollars(estimate.dollars[1]),
        "cost_range": " to ".join(map(format_dollars, estimate.dollars[::2])),
        "memory": f"{format_bytes(peak)} of {format_bytes(cluster.device.memory_bytes)}",
        "fits": format_probability(estimate.fit_probability),
        "chance": showing.limit_cells(option.chance, found.objective.limits),
        "limits": showing.limits_text(option.chance, found.objective.limits),
        "beaten": showing.beaten(option, found),
        "source": showing.source_text(forecast) if forecast else "",
        "nearer": showing.nearer_text(forecast) if forecast else "",
        "misses": "; ".join(option.misses.values()),
        "warnings": "; ".join(option.warnings),
        "market": "spot" if estimate.spot else "on demand",
        "settings": showing.workload_text(option.job.workload),
        "price": showing.price_text(option, "add one with --catalog"),
        "hours": estimate.wall_seconds[1] / SECONDS_PER_HOUR,
        "bands": [
            *(s / SECONDS_PER_HOUR for s in estimate.wall_seconds[::2]),
            *estimate.dollars[::2],
        ],
        "dollars": estimate.dollars[1],
        "device_gb": cluster.device.memory_bytes / 1e9,
        "parts": _scaled(forecast.parts if forecast else {}, 1e3),
        "memory_parts": _scaled(forecast.memory_parts if forecast else {}, 1e-9),
    }


def _scaled(parts: Mapping[str, float], factor: float) -> list[tuple[str, float]]:
    kept = [(name, value * factor) for name, value in parts.items() if value > 0]
    return sorted(kept, key=lambda part: -part[1])
