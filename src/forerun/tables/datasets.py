"""Datasets: tables of measured runs that come with the package, by name, with their device and their networks' graphs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forerun import wire
from forerun.domain.workload import Workload

FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Dataset:
    """NAME.csv has the runs, NAME.yaml the device that they ran on, NAME.json.gz their workloads by label."""

    name: str

    @property
    def table(self) -> Path:
        """The file of its runs; columns say on what hardware and when each was measured."""
        return FOLDER / f"{self.name}.csv"

    @property
    def catalog(self) -> Path:
        """The catalogue file of its device."""
        return FOLDER / f"{self.name}.yaml"

    @property
    def workloads(self) -> Mapping[str, Workload]:
        """Its workloads by the labels of its rows, traced: nothing need be installed to read them."""
        return _workloads(FOLDER / f"{self.name}.json.gz")


@cache
def _workloads(path: Path) -> dict[str, Workload]:
    saved = json.loads(gzip.decompress(path.read_bytes()))
    return {label: wire.read(Workload, value) for label, value in saved.items()}


def dataset_names() -> list[str]:
    """Return the names of all datasets, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def dataset(source: object) -> Dataset | None:
    """Return the dataset that a name means, or None; a file or folder of that name is meant before it."""
    text = str(source)
    return Dataset(text) if text in dataset_names() and not Path(text).exists() else None
