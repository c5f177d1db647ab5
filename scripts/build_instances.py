"""Build the packaged instance table from price tables, network notes and extra machines.

    python scripts/build_instances.py PRICES.csv [PRICES.csv ...] [--out FILE]

A price table has the columns provider, instance_type, accelerator (or gpu), accelerator_count
(or gpu_count), vcpus, memory_gib (or mem_gib), region, on-demand and spot price, source and
source_commit. Rows whose note says DOUBTFUL are left out, and a spot price that is not below the
on-demand price is no spot price.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from forerun.catalog import load_catalog

HERE = Path(__file__).parent
OUT = HERE.parent / "src/forerun/catalog/data/instances.csv"
CAPTION = (
    "# Priced machines of the clouds, built by scripts/build_instances.py: prices as of the commit"
    " in each row, never today's; link_gb_per_s blank means the device's own.\n"
)
COLUMNS = (
    "provider", "type", "region", "device", "device_count", "vcpus", "memory_gib",
    "dollars_per_hour", "spot_dollars_per_hour", "listing", "link_gb_per_s", "nic_gbit_per_s",
    "nic_kind", "nic_source", "host_watts", "source", "commit", "note",
)  # fmt: skip
# One offer of a private machine, or of a reseller, is not a cloud's list price.
MARKETPLACES = {"vast", "primeintellect", "hyperbolic"}
NO_ACCELERATOR = "none (CPU)"


def read_table(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file whose first lines may be # comments."""
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def first(row: dict[str, str], *names: str) -> str:
    """Return the first of these columns that the row has."""
    return next((row[name].strip() for name in names if row.get(name)), "")


def read_prices(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a price table in the packaged columns, doubtful ones left out."""
    for row in read_table(path):
        note = first(row, "note")
        if "DOUBTFUL" in note:
            continue
        price = first(row, "on_demand_usd_per_hour", "on_demand_usd_h")
        spot = first(row, "spot_usd_per_hour", "spot_usd_h")
        if price and spot and float(spot) >= float(price):
            spot = ""
            said = "the source gives spot = on-demand, so no spot price is kept"
            note = f"{note}; {said}" if note else said
        yield {
            "provider": row["provider"], "type": row["instance_type"], "region": row["region"],
            "accelerator": first(row, "accelerator", "gpu"),
            "device_count": first(row, "accelerator_count", "gpu_count"),
            "vcpus": row["vcpus"], "memory_gib": first(row, "memory_gib", "mem_gib"),
            "dollars_per_hour": price, "spot_dollars_per_hour": spot,
            "source": row["source"], "commit": row["source_commit"], "note": note,
        }  # fmt: skip


def read_extras(path: Path) -> Iterator[dict[str, str]]:
    """Yield machines that no price table has."""
    for row in read_table(path):
        yield {
            **{k: row[k] for k in ("provider", "type", "region", "accelerator", "vcpus")},
            "device_count": row["count"], "memory_gib": row["memory_gib"],
            "dollars_per_hour": row["dollars_per_hour"], "spot_dollars_per_hour": "",
            "source": row["source_key"], "commit": "", "note": row["note"],
        }  # fmt: skip


def add_device(row: dict[str, str]) -> None:
    """Replace the accelerator's label by its catalogue id; a CPU machine is its own device."""
    label = row.pop("accelerator")
    if label == NO_ACCELERATOR:
        row["device"], row["device_count"] = f"cpu-{row['type'].lower()}", "1"
        return
    device, warnings = load_catalog().device(label)
    row["device"] = device.id
    if any("leaves open" in warning for warning in warnings):
        said = f"the source says {label}: taken as {device.id}"
        row["note"] = f"{row['note']}; {said}" if row["note"] else said


def add_network(row: dict[str, str], networks: list[dict[str, str]]) -> None:
    """Add the machine's network and in-node rates, and the estimated power of its host."""
    for network in networks:
        if network["provider"] == row["provider"] and fnmatchcase(row["type"], network["pattern"]):
            row |= {k: network[k] for k in ("nic_gbit_per_s", "nic_kind", "link_gb_per_s")}
            row["nic_source"] = "network-unverified"
            break
    else:
        row |= {"nic_gbit_per_s": "10", "nic_kind": "ethernet", "link_gb_per_s": ""}
        row["nic_source"] = "network-assumed"
    is_cpu = row["device"].startswith("cpu-")
    accelerators = 0 if is_cpu else int(row["device_count"])
    if row["device"].startswith("tpu-"):
        hosts = max(1, accelerators // load_catalog().device(row["device"])[0].devices_per_node)
        row["nic_gbit_per_s"] = f"{float(row['nic_gbit_per_s']) * hosts:g}"
    vcpus = float(row["vcpus"] or 16 * accelerators)
    row["host_watts"] = "0" if is_cpu else f"{5 * vcpus + 30 * accelerators:.0f}"
    row["listing"] = "marketplace" if row["provider"] in MARKETPLACES else "list"


def build(price_files: list[Path]) -> list[dict[str, str]]:
    """Return all packaged rows, sorted, one for each provider, type and region."""
    networks = list(read_table(HERE / "instance_networks.csv"))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for source in (*map(read_prices, price_files), read_extras(HERE / "instance_extras.csv")):
        for row in source:
            add_device(row)
            add_network(row, networks)
            rows.setdefault((row["provider"], row["type"], row["region"]), row)
    return [rows[key] for key in sorted(rows)]


def main() -> int:
    """Read the arguments, build the table, write it and say how many rows it has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prices", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = build(options.prices)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        file.write(CAPTION)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows written to {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
