"""The section of docs/accuracy.md on shipped constants and sources that they were not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT = """\
What comes with forerun was learned from published runs; whoever asks next is a source of their own.
Here each table is left out whole, the constants are refitted to all the others, and the table is
forecast: *others*. Beside it the answers of *priors* alone, and those of constants that were
fitted to the table with the rest, *all*, which is what a row like those of the table gets from the shipped file.
How strongly priors hold in what is shipped ({chosen:g} of the usual widths) {how}: {widths}.{settings}
The choice was made on these same tables, so that *others* is a little optimistic."""
# Of what a fit may lay to the peculiarities of a source.
_SETTINGS = """
So did how much may be laid to what is peculiar to a source (a standard deviation of {chosen:g} of the
log of the step): {settings}."""

_NEAR = 0.03  # as a share of the least geometric mean

STARTS = ("priors", "others", "all")
HEADERS = (
    "table", "rows", *(f"{start}, median %" for start in STARTS), "others, bias %",
    "others, inside %", "others, width",
)  # fmt: skip


def new_source_text(kept: Mapping[str, Any]) -> str:
    """Return what stands above the table."""
    widths = _listed({width: found["means"] for width, found in kept["widths"].items()})
    others = {float(width): found["means"]["others"] for width, found in kept["widths"].items()}
    best = min(others.values())
    behind = others[kept["chosen"]] / best - 1.0
    how = "is what" if behind <= 0 else "is near what" if behind < _NEAR else "is not what"
    how += " served left-out\ntables best, by the geometric mean of the medians"
    if len(others) == 1:
        how = "was chosen, with what a source counts for,\nby half of the tables' medians\n(decision 14), here"
    return _TEXT.format(
        chosen=kept["chosen"], how=how, widths=widths, settings=_settings_text(kept)
    )


def _settings_text(kept: Mapping[str, Any]) -> str:
    """Return what is said of setting_sd, each with its best width; nothing where one was tried."""
    tried: Mapping[str, Any] = kept.get("settings", {})
    if len(tried) < 2:
        return ""
    best = {
        setting: min(widths.values(), key=lambda means: means["others"])
        for setting, widths in tried.items()
    }
    return _SETTINGS.format(chosen=kept["chosen_setting"], settings=_listed(best))


def _listed(means: Mapping[str, Mapping[str, float]]) -> str:
    """Return what each value led to, in order of size."""
    return ", ".join(
        f"{float(value):g}: {found['others']:.1f} % (all {found['all']:.1f})"
        for value, found in sorted(means.items(), key=lambda one: float(one[0]))
    )


def new_source_rows(kept: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each table, by name, and the geometric means."""
    found = kept["widths"][str(kept["chosen"])]
    rows = []
    for name, one in sorted(found["tables"].items()):
        others = one["others"]
        rows.append([
            name, f"{others['rows']:,}", *(f"{one[start]['median']:.1f}" for start in STARTS),
            f"{others['bias']:+.0f}", f"{others['inside']:.0f}", f"{others['width']:.2f}x",
        ])  # fmt: skip
    means = [f"{found['means'][start]:.1f}" for start in STARTS]
    return [*rows, ["geometric mean", "", *means, "", "", ""]]


def new_source_made(kept: Mapping[str, Any]) -> str:
    """Return where the figures come from."""
    made = kept["made"]
    return (
        f"`{made['command']}` (seed {made['seed']}, commit {made['commit']}, {made['date']}); "
        "the fit reads thinned tables, so `all` is a little farther off than the shipped file."
    )
