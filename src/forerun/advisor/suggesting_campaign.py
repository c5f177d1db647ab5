"""SuggestingCampaign: suggested runs as a campaign file, which `forerun profile` carries out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from forerun.catalog import Catalog
from forerun.domain.plan import parse_plan
from forerun.errors import ForerunError, RequestError
from forerun.measure.campaign_file import campaign
from forerun.search.suggestion import DOLLARS
from forerun.tables import Table
from forerun.tables.table import iter_rows
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.advisor.suggesting import Suggested

_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# Columns of a row that are fields of a campaign's run, and what each is called there.
_WHOLE = {"devices": "workers", "global_batch": "global_batch", "dataset_size": "dataset_size",
          "threads": "threads"}  # fmt: skip
_TEXTS = ("precision", "optimizer")
# What forerun's own loop does not do: plans that say more than data-parallel.
_ONE = ("tp", "pp", "cp", "ep", "vpp")
_PLAIN = {"zero_stage": ("", "0"), "recompute": ("", "none"), "sync": ("", "allreduce")}
# Columns that all rows of a campaign share, because one kind of machine carries it out.
_SHARED = ("node_gbps", "interconnect")


def campaign_text(
    found: Suggested, entries: Mapping[str, str], catalog: Catalog, name: str,
    budget: float = np.inf,
) -> str:  # fmt: skip
    """Return suggested runs as the text of a campaign file.

    Args:
        found: the runs, at least one.
        entries: what to train for a workload, by its name; a `package.module:callable` is its own.
        catalog: where it is looked up whether a device is a GPU.
        name: of the campaign.
        budget: dollars that all runs may cost; infinite for none, and where prices are no dollars.

    Raises:
        RequestError: there is no run; it is not known what to train; the runs are on several kinds
            of machine, or of a plan that no campaign carries out.
    """
    table, asked = found.table, f"a campaign of {counted(len(found.table), 'suggested run')}"
    if not len(table):
        raise RequestError(asked, f"no run is suggested: {found.suggestion.stop}", "leave it out")
    rows = list(iter_rows(table))
    fields: dict[str, Any] = {"name": name}
    fields["workloads"] = {
        label: {"entry": _entry(label, entries, asked)} for label in dict.fromkeys(table.texts("workload"))
    }  # fmt: skip
    device = _one(table, "device", asked)
    fields |= {"device": device} if device else {}
    shared = {column: _one(table, column, asked) for column in _SHARED}
    if any(shared.values()):
        fields["asked"] = {column: _number(text) for column, text in shared.items() if text}
    gpu = _is_gpu(device, catalog)
    fields["runs"] = [_run(row, gpu, asked) for row in rows]
    counts = table.numbers("suggested_run_steps")
    if np.isfinite(counts).any():
        fields["steps"] = {"most": int(np.nanmax(counts))}
    fields |= _prices(table, found, budget)
    campaign(fields, name)  # what it could not carry out is said now
    return _written(fields, found)


def _entry(label: str, entries: Mapping[str, str], asked: str) -> str:
    entry = entries.get(label) or (label if _MODULE.fullmatch(label) else "")
    if not entry:
        raise RequestError(
            asked, f"it is not known what to train for {label or 'a row without a workload'}",
            f"say it with --entry {label or 'NAME'}=package.module:callable, or a script (.py)",
        )  # fmt: skip
    return entry


def _one(table: Table, column: str, asked: str) -> str:
    """Return what all rows have in a column. Raises RequestError where they differ."""
    values = dict.fromkeys(table.texts(column))
    if len(values) > 1:
        raise RequestError(
            asked, f"the runs are of several {column}: {', '.join(t or 'blank' for t in values)}",
            "one kind of machine carries a campaign out: give candidates of one, or a campaign each",
        )  # fmt: skip
    return next(iter(values), "")


def _run(row: Mapping[str, Any], gpu: bool, asked: str) -> dict[str, Any]:
    """Return a row as a run of a campaign file."""
    plan = parse_plan(str(row["suggested_plan"])) if row.get("suggested_plan") else {}
    cells = {**row, **plan}
    odd = [f"{name}={cells[name]}" for name in _ONE if float(cells.get(name) or 1) != 1]
    odd += [f"{name}={cells[name]}" for name, usual in _PLAIN.items()
            if _plain(cells.get(name, "")) not in usual]  # fmt: skip
    if odd:
        raise RequestError(
            asked, f"{row['workload']} with {', '.join(odd)}: forerun's own loop trains data-parallel"
            " by all-reduce", "fix the plan with --plan, or measure a training script of your own",
        )  # fmt: skip
    run: dict[str, Any] = {"workload": row["workload"]}
    run |= {ours: int(row[name]) for name, ours in _WHOLE.items() if row.get(name)}
    run |= {name: str(row[name]) for name in _TEXTS if row.get(name)}
    if row.get("cpus_per_worker"):
        run["cpus_per_worker"] = float(row["cpus_per_worker"])
    if gpu:
        run["gpus_per_worker"] = 1
    micro, batch = float(cells.get("micro_batch") or 0), float(run.get("global_batch", 0))
    passes = batch / (micro * run.get("workers", 1)) if micro else 1.0
    if passes > 1:
        run["settings"] = {"accumulate": int(passes)}
    return run


def _prices(table: Table, found: Suggested, budget: float) -> dict[str, Any]:
    """Return the price of a worker's hour where all rows have one, and the budget."""
    hourly = table.numbers("price_usd_per_hour") / table.numbers("devices")
    prices: dict[str, Any] = {}
    if np.isfinite(hourly).all() and np.ptp(hourly) <= 1e-6 * hourly.max():
        prices["price_usd_per_worker_hour"] = round(float(hourly[0]), 6)
    if np.isfinite(budget) and found.suggestion.unit == DOLLARS:
        prices["budget"] = {"dollars": float(budget)}
    return prices


def _is_gpu(device: str, catalog: Catalog) -> bool:
    try:
        return bool(device) and catalog.device(device)[0].kind == "gpu"
    except ForerunError:
        return False  # a label of one's own


def _written(fields: Mapping[str, Any], found: Suggested) -> str:
    """Return the fields as YAML, a run a line, each with its reason above it."""
    rest = {name: value for name, value in fields.items() if name != "runs"}
    lines = [f"# Suggested for {found.predictor}; carry it out: forerun profile THIS_FILE"]
    lines += yaml.safe_dump(rest, sort_keys=False, allow_unicode=True).splitlines()
    lines.append("runs:")
    for run, reason in zip(fields["runs"], found.reasons, strict=True):
        flow = yaml.safe_dump(run, sort_keys=False, default_flow_style=True, width=10_000)
        lines += [f"  # {' '.join(reason.split())}", f"  - {flow.strip()}"]
    return "\n".join(lines) + "\n"


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


def _plain(value: Any) -> str:
    text = str(value).strip().lower()
    return text.removesuffix(".0")


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
