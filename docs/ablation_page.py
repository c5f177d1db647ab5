"""Prints docs/ablation.md from benchmarks/ablation.yaml and the results that its script kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TABLES = {
    "plans": "Transformers with plans",
    "nets": "Other nets, one device and many",
}
UNSURE, LEAST = "~", 0.05

_INTRO = """\
What each idea of the analytic predictor buys: it is switched off alone, everything else is fitted anew
to the teachers of each fold, and runs that were left out are forecast: a new model, a new device, more
devices, or another laboratory. A cell is the error without the idea in percent (mean or median, as the
column says) and, in brackets, by how much that is more than with all ideas; ~ stands where the difference
cannot be distinguished from chance (the 90 % interval of it, judged rows drawn again by workload and cluster, holds
zero) or is no twentieth of a point. A blank: the idea does nothing there. Ideas stand in the order of what they buy: the mean over the
splits of the table of log(error without / error with), a blank counting as zero. Switched off one at a
time, ideas that can stand in for one another each look smaller than they are."""

Found = Mapping[str, Any]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(c.replace('|', '/') for c in line)} |" for line in lines)


def unsure(one: Found) -> bool:
    """Whether a difference cannot be distinguished from chance, or is below a twentieth of a point."""
    return bool(one["low"] <= 0.0 <= one["high"]) or abs(one["figure"] - one["full"]) < LEAST


def found_of(split: Found, idea: str) -> Found | None:
    """Return what a split found of an idea, with its own error with all ideas; None: untouched."""
    one = split["ideas"].get(idea)
    return one and {**one, "full": split["full"]}


def cell(split: Found, idea: str) -> str:
    """Return an idea's cell in a split's column."""
    one = found_of(split, idea)
    if one is None:
        return ""
    mark = UNSURE if unsure(one) else f"{one['figure'] - split['full']:+.1f}"
    return f"{one['figure']:.1f} ({mark})"


def gain(splits: Sequence[Found], idea: str) -> float:
    """Return what an idea buys over splits: the mean log of the error without over that with it."""
    logs = [
        math.log(s["ideas"][idea]["figure"] / s["full"]) if idea in s["ideas"] else 0.0
        for s in splits
    ]
    return sum(logs) / len(logs) if logs else 0.0


def section(title: str, splits: Sequence[Found], kept: Found, ideas: Sequence[Found]) -> list[str]:
    """Return the blocks of one table of splits."""
    inside = [s for s in splits if s["case"] in kept]
    found = [kept[s["case"]] for s in inside]
    if not found:
        return []
    touched = [i for i in ideas if any(i["name"] in f["ideas"] for f in found)]
    touched.sort(key=lambda i: -gain(found, i["name"]))
    heads = ["idea; what stands in its place", *(f"{s['name']}, {s['figure']} %" for s in inside)]
    rows = [["**all ideas**", *(f"**{f['full']:.1f}**" for f in found)]]
    rows += [
        [f"{i['idea']}; *{i['without']}*", *(cell(f, i["name"]) for f in found)] for i in touched
    ]
    return [f"## {title}", table(heads, rows), *verdicts(found, touched)]


def verdicts(found: Sequence[Found], ideas: Sequence[Found]) -> list[str]:
    """Return a table of the ideas that no split surely needs, or that some do better without.

    Each stands with the splits that are surely worse without it, and those that are surely better.
    """
    rows = []
    for idea in ideas:
        ones = [(f, one) for f in found if (one := found_of(f, idea["name"]))]
        gains = {
            f["name"]: one["figure"] - f["full"] for f, one in ones if not unsure(one)
        }  # fmt: skip
        worse, better = ([n for n, g in gains.items() if (g > 0) == up] for up in (True, False))
        if better or not worse:
            rows.append([idea["idea"], ", ".join(worse) or "none", ", ".join(better) or "none"])
    if not rows:
        return []
    # What nothing needs and something does better without comes first.
    rows.sort(key=lambda row: (row[1] != "none", row[2] == "none"))
    heads = ("idea", "surely worse without it", "surely better without it")
    return [
        "Ideas that no split of this table surely needs, or that some split does surely better without"
        " (what is left out of both columns cannot be distinguished from chance):",
        table(heads, rows),
    ]


def band_section(spec: Found, kept: Found) -> list[str]:
    """Return the blocks on what the band is made of."""
    splits = [s for s in spec["band_splits"] if s["case"] in kept]
    if not splits:
        return []
    found = [kept[s["case"]] for s in splits]
    rows = [["**all parts**", *(f"**{_band(f)}**" for f in found)]]
    for part in spec["bands"]:
        cells = [f["parts"].get(part["name"]) for f in found]
        rows.append([
            f"{part['idea']}; *{part['without']}*", *(_band(c) if c else "" for c in cells)
        ])  # fmt: skip
    heads = ["part; what stands in its place", *(s["name"] for s in splits)]
    return [
        "## The band",
        "How many of the measured times the 90 % band holds, in percent, and how wide it is (median of"
        " its upper over its lower end), without each of its parts. All runs are judged here, slow ones"
        " too. A blank: the part does nothing there.",
        table(heads, rows),
    ]


def _band(one: Found) -> str:
    return f"{100 * one['inside']:.0f}, {one['width']:.2f}x"


def provenance(splits: Sequence[Found], kept: Found) -> list[str]:
    """Return how the figures of some splits came about, a line each."""
    return [
        [s["case"], f"{f['rows']:,}{' of a thinned table' if s.get('rows') else ''}",
         f"`{f['command']}`", str(f["seed"]), f["commit"], f["date"], f"{f['seconds']:.0f}"]
        for s in splits if (f := kept.get(s["case"]))
    ]  # fmt: skip


def made(spec: Found, kept: Found, bands: Found) -> list[str]:
    """Return the blocks on how every figure came about."""
    lines = provenance(spec["splits"], kept) + provenance(spec["band_splits"], bands)
    minutes = sum(f["seconds"] for f in (*kept.values(), *bands.values())) / 60
    return [
        "## How these figures were made",
        "`python benchmarks/ablation.py` and `python benchmarks/band_ablation.py` measure all of them"
        f" ({minutes:.0f} minutes) in the folder of measured runs and keep them in `benchmarks/results`;"
        " `python docs/ablation_page.py` makes this page. The cases are those of"
        " `benchmarks/accuracy.yaml`, the ideas and their switches those of `benchmarks/ablation.yaml`."
        " Thinned tables and fewer folds are why some figures differ from those of docs/accuracy.md.",
        table(("case", "judged rows", "command", "seed", "commit", "date", "s"), lines),
    ]


def page(spec: Found, kept: Found, bands: Found) -> str:
    """Return the page."""
    splits, ideas = spec["splits"], spec["ideas"]
    kept = {s["case"]: {**kept[s["case"]], "name": s["name"]} for s in splits if s["case"] in kept}
    blocks = ["# Ablation: what each idea buys", _INTRO]
    for key, title in TABLES.items():
        blocks += section(title, [s for s in splits if s["table"] == key], kept, ideas)
    blocks += band_section(spec, bands)
    blocks += [
        "## Ideas without a switch",
        "What they brought when they came in, each measured on the model of its day by the same splits.",
        table(("idea", "measured"), [(e["idea"], e["measured"]) for e in spec["earlier"]]),
        "## Tried, and of no help",
        table(("tried", "measured"), [(t["what"], t["measured"]) for t in spec["tried"]]),
    ]
    return "\n\n".join(blocks + made(spec, kept, bands)) + "\n"


def main() -> None:
    """Print the page."""
    spec = yaml.safe_load((BENCHMARKS / "ablation.yaml").read_text(encoding="utf-8"))
    kept, bands = (
        json.loads((BENCHMARKS / "results" / name).read_text(encoding="utf-8"))
        for name in ("ablation.json", "band-ablation.json")
    )
    print(page(spec, kept, bands), end="")


if __name__ == "__main__":
    main()
