"""The generic law in words: its formula with units and intervals, and what it says of scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forerun.arrays import FloatArray
from forerun.predictors.laws.group_words import article, percent

if TYPE_CHECKING:
    from forerun.predictors.laws.generic_law import GenericLaw

# What a law does from the fewest to the most devices, as an exponent of them: -1 is perfect.
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
    words.append(f"lambda {law.strength:g}; columns are over a middle run's")
    return "; ".join(words)


def _scaling(law: GenericLaw) -> str:
    names = list(law.scaling)
    if "devices" not in names:
        fewest, most = law.machines
        if fewest == most:
            return f"it says nothing of scaling: all runs are on {most:g} devices"
        return "it says nothing of scaling: devices are left out"
    weak = keeps_batch_per_device(law)
    fewest, most = law.machines
    counts = np.array([fewest, most, 2.0 * most])
    seconds, fixed = _seconds_by_devices(law, counts)
    given = "at an unchanged batch a device" if weak else "all else unchanged"
    # Of the whole law, its constant counted: what is constant does not shrink with devices.
    more = counts[1:] / counts[:-1]
    gain = seconds[:-1] / seconds[1:] * (more if weak else 1.0)
    of_perfect = gain / more
    text = ""
    if fewest < most:
        power = -float(np.log(gain[0]) / np.log(more[0]))
        verdict = next(text for bound, text in _VERDICTS if power <= bound)
        text = (
            f"scaling is {verdict}: {most:g} devices {_does(gain[0], weak)} as {fewest:g}, "
            f"{percent(of_perfect[0])} of perfect; "
        )
    text += (
        f"{2 * most:g} {_does(gain[1], weak)} as {most:g}, "
        f"{percent(of_perfect[1])} of perfect ({given})"
    )
    if fixed > _SHOWN * float(law.coefficients.max()):
        text += f"; at {most:g} devices {percent(fixed / float(seconds[1]))} is constant"
    return text


def _does(gain: float, weak: bool) -> str:
    return f"do {gain:.2f} times as much" if weak else f"are {gain:.2f} times as fast"


def _seconds_by_devices(law: GenericLaw, counts: FloatArray) -> tuple[FloatArray, float]:
    """Return seconds of the middle run's work on so many devices, and what of them is constant.

    counts: (n,).
    """
    power = law.exponents[len(law.numbers) + list(law.scaling).index("devices")]
    fixed = float(law.coefficients[-1])
    scaled = law.coefficients[:-1]
    # Each number has a term of its own; of the words of a text one holds at a time.
    words = sum(len(of) for of in law.categories.values())
    work = float(scaled[: len(scaled) - words].sum() + sum(_per_text(law, scaled, words)))
    return fixed + work * (counts / law.scaling["devices"]) ** power, fixed


def _per_text(law: GenericLaw, scaled: FloatArray, words: int) -> list[float]:
    """Return the mean constant of each text column's words."""
    at, means = len(scaled) - words, []
    for of in law.categories.values():
        means.append(float(scaled[at : at + len(of)].mean()))
        at += len(of)
    return means


def keeps_batch_per_device(law: GenericLaw) -> bool:
    """Return whether the exponent of the devices is one at an unchanged batch of a device."""
    if law.quantity != "step" or "global_batch" in law.scaling:
        return False
    return "micro_batch" in law.scaling or "devices" in law.left_out.get("global_batch", "")
