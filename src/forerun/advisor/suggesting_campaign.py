"""SuggestingCampaign: suggested runs as a campaign file, which `forerun profile` carries out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from forerun.catalog import Catalog
from forerun.domain.plan import parse_plan
from forerun.errors import ForerunError, RequestError
from forerun.measure.campaign_file import campaign
from forerun.search.suggestion import DOLLARS
from forerun.tables.table import iter_rows
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Suggested

_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# Columns of a row that are fields of a campaign's run, and what each is called there.
_WHOLE = {"devices": "workers", "global_batch": "global_batch", "dataset_size": "dataset_size",
          "threads": "threads"}  # fmt: skip
# Forerun's own loop is data-parallel by all-reduce: the values of plan fields that it has.
_PLAIN = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "vpp"), "1"), "zero_stage": "0", "recompute": "none",
    "sync": "allreduce",
}  # fmt: skip
# Columns that all rows of a campaign share, because one kind of machine carries it out.
_SHARED = ("device", "node_gbps", "interconnect")


def campaign_text(
    found: Suggested, entries: Mapping[str, str], catalog: Catalog, name: str,
    budget: float = np.inf,
) -> str:  # fmt: skip
    """Return suggested runs as the text of a campaign file.

    `entries` are what to train for a workload, by its name; a `package.module:callable` is its own.

    Raises:
        RequestError: there is no run; it is not known what to train; the runs are on several kinds
            of machine, or of a plan that no campaign carries out.
    """
    table, title = found.table, f"a campaign of {counted(len(found.table), 'suggested run')}"
    if not len(table):
        raise RequestError(title, f"no run is suggested: {found.suggestion.stop}", "leave it out")
    workloads = {}
    for label in dict.fromkeys(table.texts("workload")):
        entry = entries.get(label) or (label if _MODULE.fullmatch(label) else "")
        if not entry:
            raise RequestError(
                title, f"it is not known what to train for {label or 'a row without a workload'}",
                f"say it with --entry {label or 'NAME'}=package.module:callable, or a script (.py)",
            )  # fmt: skip
        workloads[label] = {"entry": entry}
    shared = {}
    for column in _SHARED:
        shared[column], *others = dict.fromkeys(table.texts(column))
        if others:
            texts = ", ".join(text or "blank" for text in (shared[column], *others))
            raise RequestError(
                title, f"the runs are of several {column}: {texts}",
                "one kind of machine carries a campaign out: give candidates of one, or a campaign each",
            )  # fmt: skip
    device = shared.pop("device")
    fields: dict[str, Any] = {"name": name, "workloads": workloads}
    fields |= {"device": device} if device else {}
    asked = {column: text for column, text in shared.items() if text}
    if asked:
        number = {"node_gbps": float(asked["node_gbps"])} if "node_gbps" in asked else {}
        fields["asked"] = {**asked, **number}
    gpu = False
    with suppress(ForerunError):  # a label of one's own
        gpu = bool(device) and catalog.device(device)[0].kind == "gpu"
    runs = [_run(row, gpu, title) for row in iter_rows(table)]
    counts = table.numbers("suggested_run_steps")
    if np.isfinite(counts).any():
        fields["steps"] = {"most": int(np.nanmax(counts))}
    hourly = table.numbers("price_usd_per_hour") / table.numbers("devices")
    if np.isfinite(hourly).all() and np.ptp(hourly) <= 1e-6 * hourly.max():
        fields["price_usd_per_worker_hour"] = round(float(hourly[0]), 6)
    if np.isfinite(budget) and found.suggestion.unit == DOLLARS:
        fields["budget"] = {"dollars": float(budget)}
    campaign({**fields, "runs": runs}, name)  # what it could not carry out is said now
    lines = [f"# Suggested for {found.predictor}; carry it out: forerun profile THIS_FILE"]
    lines += yaml.safe_dump(fields, sort_keys=False, allow_unicode=True).splitlines()
    lines.append("runs:")
    for run, reason in zip(runs, found.reasons, strict=True):
        flow = yaml.safe_dump(run, sort_keys=False, default_flow_style=True, width=10_000)
        lines += [f"  # {reason}", f"  - {flow.strip()}"]
    return "\n".join(lines) + "\n"


def _run(row: Mapping[str, Any], gpu: bool, title: str) -> dict[str, Any]:
    """Return a row as a run of a campaign file."""
    plan = parse_plan(str(row["suggested_plan"])) if row.get("suggested_plan") else {}
    cells = {**row, **plan}
    odd = [
        f"{name}={cells[name]}" for name, usual in _PLAIN.items()
        if str(cells.get(name, "")).strip().lower().removesuffix(".0") not in ("", usual)
    ]  # fmt: skip
    if odd:
        raise RequestError(
            title, f"{row['workload']} with {', '.join(odd)}: forerun's own loop trains data-parallel"
            " by all-reduce", "fix the plan with --plan, or measure a training script of your own",
        )  # fmt: skip
    run: dict[str, Any] = {"workload": row["workload"]}
    run |= {ours: int(row[name]) for name, ours in _WHOLE.items() if row.get(name)}
    run |= {name: str(row[name]) for name in ("precision", "optimizer") if row.get(name)}
    if row.get("cpus_per_worker"):
        run["cpus_per_worker"] = float(row["cpus_per_worker"])
    if gpu:
        run["gpus_per_worker"] = 1
    micro, batch = float(cells.get("micro_batch") or 0), float(run.get("global_batch", 0))
    passes = batch / (micro * run.get("workers", 1)) if micro else 1.0
    if passes > 1:
        run["settings"] = {"accumulate": int(passes)}
    return run


def entries_of(given: Sequence[str]) -> dict[str, str]:
    """Return NAME=WHAT texts as what to train by workload. Raises RequestError for another form."""
    found = {}
    for text in given:
        name, sign, entry = text.partition("=")
        if not sign or not name.strip() or not entry.strip():
            raise RequestError(
                f"--entry {text}", "it is not NAME=WHAT",
                "write e.g. --entry mlp=my_models:mlp, or own=train.py",
            )  # fmt: skip
        found[name.strip()] = entry.strip()
    return found
