"""What the 90 % band is made of: how many measured times it holds, and how wide it is, without each part.

The parts and splits stand in benchmarks/ablation.yaml under `bands`; folds and judged rows are those of
`forerun evaluate`. What came out goes to benchmarks/results/band-ablation.json; docs/ablation_page.py
shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from ablation import DividedTable, Split, record
from ideas import Idea
from numpy.typing import NDArray

from forerun.evaluate import scoring as metrics
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.predictor import forecast_layout

HERE = Path(__file__).parent
SPEC, RESULTS = HERE / "ablation.yaml", HERE / "results" / "band-ablation.json"

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """One part of the band, and how it is left out: before the fit, or of the fitted constants."""

    name: str
    idea: str = ""
    without: str = ""
    frameworks: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float | str] = field(default_factory=dict)

    def priors(self) -> Constants:
        """Return the priors without the part."""
        return Idea(self.name, frameworks=self.frameworks).priors()

    def applied(self, fitted: Constants) -> Constants:
        """Return fitted constants without the part. Raises ValueError where no field is named."""
        usual, changes = Constants(), dict[str, Any]()
        for pattern, value in self.after.items():
            names = [f.name for f in fields(Constants) if fnmatchcase(f.name, pattern)]
            if not names:
                raise ValueError(f"{self.name}: {pattern} is no constant")
            for name in names:
                words = {"prior": getattr(usual, name), "fitted": getattr(fitted, name)}
                changes[name] = words[value] if isinstance(value, str) else float(value)
        return replace(fitted, **changes)


WHOLE = Part("all")


def spec() -> tuple[list[Split], list[Part]]:
    """Return the splits and the parts in their order."""
    found = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    splits = [Split(**{"figure": "band", "table": "bands", **s}) for s in found["band_splits"]]
    return splits, [Part(**part) for part in found["bands"]]


def bands(divided: DividedTable, parts: Sequence[Part]) -> dict[str, FloatArray]:
    """Return the quantiles of each asked row, (n, 3), without each part; `all` with all of them."""
    found = {part.name: np.full((len(divided.measured), 3), np.nan) for part in parts}
    for lesson in divided.training:
        made: dict[str, Constants] = {}
        for part in parts:
            key = str(sorted(part.frameworks.items()))
            if key not in made:
                made[key] = AnalyticPredictor(part.priors()).fit(lesson.training_runs).constants
            constants = part.applied(made[key])
            found[part.name][lesson.asked] = forecast_layout(
                lesson.layout, constants, False
            ).seconds
    return found


def measured_split(divided: DividedTable, parts: Sequence[Part]) -> dict[str, Any]:
    """Return coverage and median width of a split's bands, and without each part that matters."""
    found = bands(divided, [WHOLE, *parts])
    whole = found.pop(WHOLE.name)
    kept = {
        name: scored(rows, divided.measured)
        for name, rows in found.items()
        if not np.allclose(rows, whole, rtol=1e-6)
    }
    result = {**scored(whole, divided.measured), "rows": len(whole), "parts": kept}
    print(result, flush=True)
    return result


def scored(rows: FloatArray, truth: FloatArray) -> dict[str, float]:
    """Return the share of measured times inside their bands, and the median width."""
    inside = float(metrics.inside(rows, truth).mean())
    return {
        "inside": round(inside, 4),
        "width": round(float(np.median(metrics.band_widths(rows))), 3),
    }


def main() -> None:
    """Measure the splits and print what came out."""
    splits, parts = spec()
    record(RESULTS, splits, lambda split, divided: measured_split(divided, parts))


if __name__ == "__main__":
    main()
