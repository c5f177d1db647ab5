"""The ideas of the analytic predictor, as benchmarks/ablation.yaml states them, and how one is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Device
from forerun.domain.workload import Workload
from forerun.predictors.analytic import flat, operations, step
from forerun.predictors.analytic.calibration import fitting, parameters
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.families import FAMILIES

REST = "*"


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
    law: str = ""
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

    @property
    def in_code(self) -> bool:
        """Whether formulas are replaced, beside constants."""
        return bool(self.parts or self.law)

    def frozen_families(self) -> frozenset[str]:
        """Return the families that no fit moves. Raises ValueError for one that there is not."""
        families: set[str] = set()
        for name in self.frozen:
            start = name.removesuffix(REST)
            found = {f for f in FAMILIES if f == name or (start != name and f.startswith(start))}
            if not found:
                raise ValueError(f"{self.name}: {name} is no family of parameters")
            families |= found
        return frozenset(families)


FULL = Idea("full")


def _changed(usual: Any, value: Any) -> Any:
    """Return a constant's value in place of the usual one; of a mapping, for all or some keys."""
    if not isinstance(usual, Mapping):
        return float(value)
    given = dict(value) if isinstance(value, Mapping) else {REST: value}
    rest = given.pop(REST, None)
    return {**{key: old if rest is None else rest for key, old in usual.items()}, **given}


def _vector_or_tensor(device: Device, workload: Workload) -> str:
    """Return one unit for all that has no matrix unit."""
    return "tensor" if device.has_matrix_unit(device.computed_as(workload.precision)) else "vector"


# Formulas in place of those of the predictor: (module, name, what stands there without the idea).
LAWS: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "": (),
    "one vector unit": ((operations, "unit_of", _vector_or_tensor),),
    "devices of one process as those of many": ((step, "ONE_PROCESS", -1),),
    "Winograd for 3 x 3 alone": ((flat, "_WINOGRAD", flat._WINOGRAD[:1]),),
    "stated clocks": (
        (operations, "clock_share", lambda device, precision: 1.0),
        (operations, "stated_ghz", lambda device: 0.0),
        (operations, "most_clock_share", lambda device: 1.0),
    ),
}  # fmt: skip


@contextmanager
def switched_off(idea: Idea) -> Iterator[None]:
    """Leave an idea's parts out of every step that is computed meanwhile, and replace its law.

    Fits meanwhile move no frozen family, and are made with the idea's constants of `fitting`.

    Raises:
        ValueError: it names a part or a law that there is not.
    """
    unknown = {*idea.parts, idea.law} - {*step.PARTS, *LAWS}
    if unknown:
        raise ValueError(f"{idea.name}: no part or law is {', '.join(sorted(unknown))}")
    usual = step.step_parts

    def rest(rows: Any, constants: Constants) -> dict[str, NDArray[np.float64]]:
        parts = usual(rows, constants)
        return {n: np.zeros_like(v) if n in idea.parts else v for n, v in parts.items()}

    frozen, usual_parameters = idea.frozen_families(), fitting.parameters_for

    def moving(jobs: Any) -> tuple[parameters.Parameter, ...]:
        return tuple(p for p in usual_parameters(jobs) if p.family not in frozen)

    changes = [(step, "step_parts", rest if idea.parts else usual), *LAWS[idea.law]]
    changes += [(fitting, name.upper(), value) for name, value in idea.fit.items()]
    changes.append((fitting, "parameters_for", moving))
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    try:
        for place, name, value in changes:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
