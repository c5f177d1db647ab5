"""The ideas of the analytic predictor, as benchmarks/ablation.yaml states them, and how one is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.analytic import step
from forerun.predictors.analytic.calibration import Manner
from forerun.predictors.analytic.calibration.parameters import PRIOR_SD
from forerun.predictors.analytic.constants import Constants

REST = "*"
FAMILIES = frozenset(name.partition("[")[0] for name in PRIOR_SD)


@dataclass(frozen=True)
class Idea:
    """One idea and how it is switched off, see benchmarks/ablation.yaml."""

    name: str
    idea: str = ""
    without: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    frameworks: Mapping[str, float] = field(default_factory=dict)
    frozen: Sequence[str] = ()
    parts: Sequence[str] = ()
    fit: Mapping[str, float] = field(default_factory=dict)
    profiles: bool = False
    unfitted: bool = False

    def priors(self) -> Constants:
        """Return the priors without the idea. Raises AttributeError, TypeError for no constant."""
        usual = Constants()
        changes: dict[str, Any] = {
            name: _changed(getattr(usual, name), value) for name, value in self.constants.items()
        }
        profiles = dict(usual.frameworks)
        if self.profiles:
            profiles = dict.fromkeys(profiles, profiles[""])
        profiles = {key: replace(p, **self.frameworks) for key, p in profiles.items()}
        return replace(usual, frameworks=profiles, **changes)

    def manner(self) -> Manner:
        """Return how the rest is fitted. Raises ValueError for a family that there is not."""
        families: set[str] = set()
        for name in self.frozen:
            start = name.removesuffix(REST)
            found = {f for f in FAMILIES if f == name or (start != name and f.startswith(start))}
            if not found:
                raise ValueError(f"{self.name}: {name} is no family of parameters")
            families |= found
        return Manner(frozen=frozenset(families), **self.fit)


FULL = Idea("full")


def _changed(usual: Any, value: Any) -> Any:
    """Return a constant's value in place of the usual one; of a mapping, for all or some keys."""
    if not isinstance(usual, Mapping):
        return float(value)
    given = dict(value) if isinstance(value, Mapping) else {REST: value}
    rest = given.pop(REST, None)
    return {**{key: old if rest is None else rest for key, old in usual.items()}, **given}


@contextmanager
def without_parts(names: Sequence[str]) -> Iterator[None]:
    """Leave parts out of every step that is computed meanwhile."""
    usual = step.step_parts

    def rest(rows: Any, constants: Constants) -> dict[str, NDArray[np.float64]]:
        parts = usual(rows, constants)
        return {n: np.zeros_like(v) if n in names else v for n, v in parts.items()}

    unknown = set(names) - set(step.PARTS)
    if unknown:
        raise ValueError(f"no parts of a step: {', '.join(sorted(unknown))}")
    step.step_parts = rest
    try:
        yield
    finally:
        step.step_parts = usual
