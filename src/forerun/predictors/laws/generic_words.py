"""The generic law in words: its formula with units and intervals, and what it says of scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forerun.predictors.laws.group_words import article

if TYPE_CHECKING:
    from forerun.predictors.laws.generic_law import GenericLaw

# The exponent of the devices, -1 for work that they share perfectly, up to these.
_VERDICTS = (
    (-1.05, "better than perfect"), (-0.9, "near perfect"), (-0.5, "partial"), (-0.1, "weak"),
    (0.1, "none"), (np.inf, "none, more devices are slower"),
)  # fmt: skip

# A constant below this share of the largest one is rounding, and is not printed.
_SHOWN = 1e-6


def formula_of(law: GenericLaw, quantity: str) -> str:
    """Return an expression with units, the references of its columns and the intervals of exponents."""
    powers = [
        f"{power:.2f} [{low:.2f}, {high:.2f}]"
        for power, (low, high) in zip(law.exponents, law.intervals, strict=True)
    ]
    by = {**law.numbers, **law.scaling}
    factors = [
        f" x ({name} / {reference:g})^{power}"
        for (name, reference), power in zip(by.items(), powers, strict=True)
    ]
    conditions = [
        f" if {name} = {word or '(blank)'}" for name, of in law.categories.items() for word in of
    ]
    texts = [*factors[: len(law.numbers)], *conditions] or [""]
    terms = list(zip(law.coefficients[:-1], texts, strict=True))
    least = _SHOWN * float(law.coefficients.max())
    work = " + ".join(f"{value:.4g} s{text}" for value, text in terms if value > least) or "0 s"
    if len(terms) > 1:
        work = f"({work})"
    fixed = law.coefficients[-1]
    rest = f" + {fixed:.4g} s" if fixed > least else ""
    return f"seconds of {article(quantity)} = {work}{''.join(factors[len(law.numbers) :])}{rest}"


def limit_of(law: GenericLaw) -> str:
    """Return what a law says about scalability, and which columns it leaves out."""
    words = [_scaling(law), *law.notes]
    if law.left_out:
        words.append(
            "left out: " + ", ".join(f"{name} ({why})" for name, why in law.left_out.items())
        )
    same = [f"{name} {low:g}" for name, (low, high) in law.bounds.items() if low == high]
    if same:
        words.append(f"the same in all runs: {', '.join(same)}")
    words.append(f"lambda {law.strength:g}; columns are over a middle run's, intervals 90 %")
    return "; ".join(words)


def _scaling(law: GenericLaw) -> str:
    names = list(law.scaling)
    if "devices" not in names:
        fewest, most = law.machines
        if fewest == most:
            return f"it says nothing of scaling: all runs are on {most:g} devices"
        return "it says nothing of scaling: devices are left out"
    power = float(law.exponents[len(law.numbers) + names.index("devices")])
    weak = keeps_batch_per_device(law)
    perfect = "0 is perfect" if weak else "-1 is perfect, 0 none"
    given = "at an unchanged batch a device" if weak else "all else unchanged"
    verdict = next(text for most, text in _VERDICTS if power - weak <= most)
    text = f"scaling is {verdict}: devices to the {power:.2f}, {given} ({perfect})"
    fixed = float(law.coefficients[-1])
    if fixed > _SHOWN * float(law.coefficients.max()):
        most = law.machines[1]
        scaled = float(law.coefficients[:-1].mean()) * (most / law.scaling["devices"]) ** power
        text += f"; near {most:g} devices about {100 * fixed / (fixed + scaled):.0f} % is constant"
    return text


def keeps_batch_per_device(law: GenericLaw) -> bool:
    """Return whether the exponent of the devices is one at an unchanged batch of a device."""
    if law.quantity != "step" or "global_batch" in law.scaling:
        return False
    return "micro_batch" in law.scaling or "devices" in law.left_out.get("global_batch", "")
