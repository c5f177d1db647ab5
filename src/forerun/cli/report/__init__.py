"""The report: one self-contained HTML page of a recommendation or a search; it loads nothing from a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun import wire
from forerun.cli import showing
from forerun.domain.recommendation import Option, Recommendation
from forerun.units import format_bytes, format_dollars, format_probability, format_seconds

HERE = Path(__file__).parent


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
        "report",
        name=name,
        found=found,
        objective=", ".join([showing.best_text(found), *(text for _, _, text in limits)]),
        limit_headers=[header for _, header, _ in limits],
        better=showing.BETTER[found.compared_by],
        rivals=showing.rivals(found),
        options=options,
        best=best,
        refused=list(refused.values()),
        data={"options": options, "best": best},
    )


def page(kind: str, data: Mapping[str, Any], **fields: Any) -> str:
    """Return the HTML of a page: its template with the fields, its script with the data."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(f"{kind}.html.j2").render(
        **fields,
        data=wire.clean(data),
        chart_library=(HERE / "chart.umd.min.js").read_text(encoding="utf-8"),
        script=(HERE / f"{kind}.js").read_text(encoding="utf-8"),
        style=(HERE / "report.css").read_text(encoding="utf-8"),
    )


def _option(option: Option, found: Recommendation) -> dict[str, Any]:
    estimate, forecast, cluster = option.estimate, option.estimate.forecast, option.job.cluster
    peak = forecast.peak_bytes[1] if forecast else float("nan")
    plan = option.job.plan
    lines = showing.throughput_lines(
        option.job, option.throughput, estimate, found.objective.preemption
    )
    return {
        "cluster": cluster.name,
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
        "hours": estimate.wall_seconds[1] / 3600,
        "dollars": estimate.dollars[1],
        "device_gb": cluster.device.memory_bytes / 1e9,
        "parts": _scaled(forecast.parts if forecast else {}, 1e3),
        "memory_parts": _scaled(forecast.memory_parts if forecast else {}, 1e-9),
    }


def _scaled(parts: Mapping[str, float], factor: float) -> list[tuple[str, float]]:
    kept = [(name, value * factor) for name, value in parts.items() if value > 0]
    return sorted(kept, key=lambda part: -part[1])
