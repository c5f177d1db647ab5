"""Prints docs/accuracy.md from benchmarks/accuracy.yaml and the results that its script kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from new_source_section import HEADERS, new_source_made, new_source_rows, new_source_text
from travel_section import travel_blocks

from forerun.evaluate import ALL_TABLES, Evaluation, Score
from forerun.evaluate.pages import (
    answered,
    cell,
    detected,
    inside,
    markdown,
    number,
    regretted,
    sections,
    summary,
)
from forerun.evaluate.scoring import share_interval

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
WHOLE = "nothing-fitted"
ENOUGH_ROWS = 100  # from here a split's coverage speaks for itself
LEAST_INSIDE, MOST_INSIDE = 0.85, 0.95  # of a band that says 90 %
OURS, THUMB = "analytic", "constant-mfu"

HOW_TO_READ = """\
Each run was measured, and forecast from what was known before it started. *Error* is |forecast -
measured| as a share of the measured time: its mean, its median, and its 90th percentile (one row in
ten is worse). *Bias* is the median of forecast over measured, less one: below zero is too optimistic.
*Rank* is Kendall's tau of seconds per sample within a workload (*of plans*: within a job): 1 is the
right order, 0 is chance. *Inside* is the share of measured times within the stated 5-95 % band, which
ought to be 90 %, with the interval that this many rows support; *width* is the band's upper over its
lower edge. *Answered* is the share of comparable rows that got a forecast; the others were declined
with a reason. A line in brackets answered less than 90 % and does not count."""

STOPPED_HELP = """\
A run that was stopped has a lower bound of its time and no time; it is in no figure above. An
answer *below* the bound is wrong, by what it lacks of it; one above is right."""

MEMORY_HELP = """\
*Peak* is the median error of the predicted peak bytes of a device. *F1* is out-of-memory foreseen
(probability of fitting below one half) against out-of-memory that happened, without plans taken to be
impossible; *runs at all* is the same with these. *Regret* is the price of taking the plan predicted
fastest, of those that fit with a probability of 90 %, instead of the one measured fastest, among runs
that differ in nothing but the plan: over the picks that ran, ties broken at random, twenty times over;
*crashed* counts the jobs in which a pick ran out of memory or failed."""

DISTANCE_HELP = """\
*Distance* says how far a question lies from what was measured: 0 is beside a measured run, 1 is physics
with nothing measured. The band has to grow with it, and to hold as many measured times everywhere."""
_HELP = {
    "Stopped runs": STOPPED_HELP,
    "Memory and choice of plan": MEMORY_HELP,
    "By distance": DISTANCE_HELP,
}

_INTRO = f"""\
The first table holds our forecasts against what simple models reached and what others published, each
case with the judged runs left out of all that was fitted: a new model, a new device, more devices, or
a table of one laboratory from the tables of others.

{HOW_TO_READ}

*Rule of thumb* is a constant share of the peak rate, fitted to the same runs. *Simple* is the best
of a few small calibrated models on the same split. *Faster half*: among the runs that share the named
columns only the faster half by the clock is fitted and judged, because it is there that plans are
chosen, and as the simple models were judged."""

_BLIND = """\
What a fit leaves out it does not know. What the model is made of was worked out on these same tables,
and that cannot be left out; nor can this, of the priors of the analytic constants:"""
_PRIORS = """\
Every value here is a *prior*, a round number that no program fitted. Most are read from data
sheets and papers. Some were read off simple models of public runs or set after a look at them, so
a forecast of these tables is not blind:

* vtrain, ultrascale: host time of Megatron and nanotron;
  ultrascale, torchtitan, llm_foundry: what these frameworks hold in memory, and how full a device can be;
* timm, pytorch_gpu_benchmark, profet: shares of peak and bandwidth of convolutions, host time of
  PyTorch and TensorFlow, the width of the bands of convolutional nets;
  pytorch_gpu_benchmark: that its boards do not keep their stated clocks (the clocks themselves are
  data sheets' and one round pair a generation), and that samples are copied while devices wait;
  tf_benchmarks, profet: that 5 x 5 convolutions are Winograd's too, and direct_share;
  profet: that filters move more than once, that vector units fill slowly, and on which images and
  maps Winograd's algorithm is not worth it;
* llm_foundry: that PyTorch's checkpoints stop early, that composer's loss is fused, and what
  fused attention reaches on Hopper; vtrain: waits of tensor ranks; narayanan2021, mtnlg: how
  DeepSpeed gathers parameters and that its pipelines send whole activations; dlperf_gpt:
  OneFlow's 16-bit gradients; nvidia_nemo: that experts are learned; and for all of these how
  closely the constants of links are known;
* maxtext: that JAX shards within a slice of TPUs and copies between slices;
* mlperf: MXNet's fusions, the time to decode input, the profile of what vendors tune, that BERT is
  timed without padding and GPT-3 in 8 bits, interleaved and sharded, Megatron-Core's buckets;
  pollux, sia: what Ethernet carries and the width of network bands; gavel, profet, tf_benchmarks: what Kepler reaches of its vector rate.

Profiles of nemo, torchtitan, composer, jax and oneflow, low_power_share and the efficiencies of
matrix products by generation are judgement, unverified. Calibration replaces what runs identify.
`constants`, `families`, `step`, `calibration.parameters` and the shares of `uncertainty`
hold these figures."""

_NAMES = {
    "mape": "mean", "median_ape": "median", "oom_f1": "out-of-memory F1",
    "regret_median": "median regret", "regret_crashed": "picks that crash",
    "memory_median_ape": "median error of the peak",
}  # fmt: skip
_SHARES = ("regret_median",)

Case = Mapping[str, Any]
Results = Mapping[str, Sequence[Mapping[str, Any]]]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns whose cells all begin as numbers stand to the right."""
    rows = [list(row) for row in rows]
    right = [
        all(not cell or cell[0] in "0123456789+-" for cell in c) for c in zip(*rows, strict=True)
    ]
    lines = [list(headers), ["---:" if r else "---" for r in right], *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def evaluations(results: Results, case: Case) -> list[Evaluation]:
    """Return a case's evaluations, one a seed; none where it was not run."""
    return [
        Evaluation.from_dict({"by_workload": [], **one["evaluation"]})
        for one in results.get(case["name"], ())
    ]


def averaged(scores: Sequence[Score]) -> Score:
    """Return the mean of each figure over seeds; counts are those of the first."""
    first = scores[0]
    means = {
        f.name: float(np.nanmean(values))
        for f in fields(Score)
        if f.type == "float"
        and not np.isnan(values := [getattr(s, f.name) for s in scores]).all()
    }  # fmt: skip
    mean = replace(first, **means)
    low, high = share_interval(round(mean.coverage * mean.answered or 0), mean.answered)
    return replace(mean, coverage_low=low, coverage_high=high)


def score_of(found: Sequence[Evaluation], predictor: str) -> Score:
    """Return a predictor's score over all rows of a case."""
    return averaged([one.of(predictor, ALL_TABLES) for one in found])


def title(case: Case) -> str:
    """Return a case in words."""
    text = f"{', '.join(case['runs'])}: {case.get('split', 'whole')}"
    if case.get("fit"):
        text = f"{', '.join(case['runs'])}: from the other tables of transformers"
    if case.get("faster_half"):
        text += f", faster half by {' and '.join(case['faster_half'])}"
    if case.get("note"):
        text += f" ({case['note']})"
    seeds = len(case.get("seeds", (0,)))
    return f"{text}; mean of {seeds} draws" if seeds > 1 else text


def shown(figure: str, value: float) -> str:
    """Return a figure with its unit."""
    if figure in _SHARES:
        value *= 100
    unit = " %" if figure.endswith("ape") or figure in _SHARES else ""
    return number(value, "{:.2f}" if figure.startswith("oom") else "{:g}") + unit


def verdict(target: Mapping[str, Any], score: Score, each: Sequence[Score]) -> str:
    """Return a figure's target and whether it was met."""
    figure = target["figure"]
    scores = (
        [s for s in each if s.predictor == OURS and s.oom_happened]
        if target.get("each")
        else [score]
    )
    values = [getattr(s, figure) for s in scores]
    least = target.get("at_least")
    bound = target["at_most"] if least is None else least
    met = score.counts and bool(values) and all(
        value <= bound if least is None else value >= bound for value in values
    )  # fmt: skip
    sign, of_each = "<=" if least is None else ">=", " of each" if target.get("each") else ""
    said = f"{_NAMES[figure]}{of_each} {sign} {shown(figure, bound)}"
    before = f" [{shown(figure, target['simple'])}]" if "simple" in target else ""
    return f"{said}{before}: {'met' if met else 'missed'}"


def case_row(case: Case, found: Sequence[Evaluation]) -> list[str]:
    """Return one line of a leaderboard."""
    name = title(case)
    if not found:
        return [name, *[""] * 9, "not run yet"]
    ours, thumb = score_of(found, OURS), score_of(found, THUMB)
    each = [s for s in found[0].by_workload if s.predictor == OURS]
    targets = [verdict(t, ours, each) for t in case.get("targets", ())]
    return [
        name if ours.counts else f"({name})",
        f"{ours.comparable:,}", answered(ours), number(ours.mape),
        number(ours.median_ape), number(ours.p90_ape), inside(ours), number(ours.width, "{:.2f}x"),
        f"{number(thumb.mape)} / {number(thumb.median_ape)}", "; ".join(targets),
        case.get("peers", ""),
    ]  # fmt: skip


_HEADERS = ("split", "rows", "answered", "mean %", "median %", "90th %", "inside %", "width",
            "rule of thumb, mean / median %", "target [simple]", "published")  # fmt: skip


def plan_rows(cases: Sequence[Case], results: Results) -> list[list[str]]:
    """Return a line for each case in which memory or choice was judged, and for its workloads."""
    rows = []
    for case in cases:
        found = evaluations(results, case)
        if not found or case["name"] == WHOLE:
            continue
        ours = score_of(found, OURS)
        if not (ours.memory_rows or ours.oom_rows):
            continue
        rows.append(_plan_row(title(case), ours))
        by_workload = [s for s in found[0].by_workload if s.predictor == OURS and s.oom_rows]
        rows += [_plan_row(f"... {s.group}", s) for s in by_workload]
    return rows


def _plan_row(name: str, s: Score) -> list[str]:
    return [
        name, f"{s.memory_rows:,}" if s.memory_rows else "", number(s.memory_median_ape),
        f"{s.oom_happened:,} of {s.oom_rows:,}" if s.oom_rows else "", detected(s),
        number(s.refused_f1, "{:.2f}") if s.refused_rows else "",
        f"{s.regret_picked:,} of {s.regret_groups:,}" if s.regret_groups else "",
        f"{s.regret_crashed:,}" if s.regret_groups else "", regretted(s),
    ]  # fmt: skip


def distance_rows(cases: Sequence[Case], results: Results) -> list[list[str]]:
    """Return a line for each case and range of distances, for cases that span several."""
    rows = []
    for case in cases:
        found = evaluations(results, case)
        if not found:
            continue
        table_name = ALL_TABLES if len(found[0].tables) > 1 else found[0].tables[0]
        bins = [s for s in found[0].by_distance if (s.predictor, s.table) == (OURS, table_name)]
        if len(bins) < 2:
            continue
        name = "every table, nothing fitted" if case["name"] == WHOLE else title(case)
        rows += [
            [name, s.group, f"{s.answered:,}", number(s.median_ape), inside(s),
             number(s.width, "{:.2f}x")] for s in bins
        ]  # fmt: skip
    return rows


def disclosure() -> str:
    """Return which tables the priors have seen, as a quotation."""
    return "\n".join(f"> {line}".rstrip() for line in _PRIORS.splitlines())


def coverage_notes(cases: Sequence[Case], results: Results) -> list[str]:
    """Return how the band's coverage stands: split by split, and small splits pooled."""
    found = {c["name"]: evaluations(results, c) for c in cases}
    scores = {c["name"]: (c, score_of(found[c["name"]], OURS)) for c in cases if found[c["name"]]}
    counted = [(c, s) for c, s in scores.values() if s.counts]
    large = [(c, s) for c, s in counted if s.answered >= ENOUGH_ROWS]
    off = [(c, s) for c, s in large if not LEAST_INSIDE <= s.coverage <= MOST_INSIDE]
    named = [f"* {title(c)}: {100 * s.coverage:.1f} %" for c, s in off]
    blocks = [
        f"Of {len(large)} splits that count and have at least {ENOUGH_ROWS} judged rows, the band holds"
        f" {100 * LEAST_INSIDE:.0f}-{100 * MOST_INSIDE:.0f} % in {len(large) - len(off)}"
        + (". The others:" if off else "."),
        "\n".join(named),
    ]
    small = [s for _, s in counted if 0 < s.answered < ENOUGH_ROWS]
    if small:
        rows = sum(s.answered for s in small)
        hits = round(sum(s.coverage * s.answered for s in small))
        low, high = share_interval(hits, rows)
        blocks.append(
            f"Splits of fewer than {ENOUGH_ROWS} judged rows, pooled: {hits} of {rows} inside the"
            f" band, {100 * hits / rows:.0f} % ({100 * low:.0f}-{100 * high:.0f})."
        )
    return blocks


def provenance(cases: Sequence[Case], results: Results, hardware: str) -> list[str]:
    """Return how every figure came about."""
    lines = []
    seconds = 0.0
    for case in cases:
        for one in results.get(case["name"], ()):
            seconds += one["seconds"]
            dropped = sum(sum(d.values()) for d in one["evaluation"]["identical"].values())
            lines.append([
                case["name"], f"`{one['command']}`", str(one["seed"]), one["commit"], one["date"],
                number(one["seconds"]), str(dropped) if dropped else "",
            ])  # fmt: skip
    return [
        "## How these figures were made",
        "`python benchmarks/accuracy.py` runs the commands below in the folder of measured runs and keeps"
        f" their scores in `benchmarks/results/accuracy.json` ({seconds / 60:.0f} minutes of commands on"
        f" {hardware}); `python docs/accuracy_page.py` makes this page of them. *Identical*: rows of"
        " the other tables that hold a judged measurement, and were left out of the fit.",
        table(("case", "command", "seed", "commit", "date", "s", "identical"), lines),
    ]


def new_source_blocks(kept: Mapping[str, Any] | None) -> list[str]:
    """Return the blocks on shipped constants; none where benchmarks/new_source.py has not run."""
    if kept is None:
        return []
    return [
        "## Shipped constants on a source that they were not fitted to",
        new_source_text(kept), table(HEADERS, new_source_rows(kept)), new_source_made(kept),
    ]  # fmt: skip


def page(
    cases: Sequence[Case], kept: Mapping[str, Any], new_source: Mapping[str, Any] | None = None
) -> str:
    """Return the page; kept, new_source: what the scripts of these names kept."""
    results: Results = kept["cases"]
    fitted = [c for c in cases if c["name"] != WHOLE]
    against = [c for c in fitted if c.get("targets") or c.get("peers")]
    others = [c for c in fitted if c not in against]
    blocks = [
        "# Accuracy",
        _INTRO,
        _BLIND,
        disclosure(),
        "## Against targets and published figures",
    ]
    blocks.append(table(_HEADERS, [case_row(c, evaluations(results, c)) for c in against]))
    blocks += ["## Further splits", table(
        _HEADERS[:9], [case_row(c, evaluations(results, c))[:9] for c in others]
    )]  # fmt: skip
    blocks += ["## The band", *coverage_notes(fitted, results)]
    blocks += ["## Memory and choice of plan", MEMORY_HELP, table(
        ("split", "peak rows", "peak median %", "out of memory", "F1 (precision / recall)",
         "runs at all, F1", "picked",
         "crashed", "regret % median / mean / worst"), plan_rows(fitted, results),
    )]  # fmt: skip
    blocks += ["## The band by distance from what was measured", DISTANCE_HELP, table(
        ("split", "distance", "rows", "median %", "inside %", "width"), distance_rows(cases, results)
    )]  # fmt: skip
    blocks += travel_blocks(table)
    blocks += new_source_blocks(new_source)
    blocks += provenance(cases, results, kept["hardware"])
    whole = [c for c in cases if c["name"] == WHOLE]
    for found in (evaluations(results, c) for c in whole):
        blocks += whole_sections(found)
    return "\n\n".join(block for block in blocks if block) + "\n"


def predictor_blocks(evaluation: Evaluation, predictor: str) -> list[str]:
    """Return the Markdown blocks on one predictor: a summary, then each table of figures."""
    blocks = [f"## {predictor}", summary(evaluation, predictor)]
    for title, _, head, rows in sections(evaluation, predictor):
        bold = [[f"**{row[0]}**", *row[1:]] if row[0] == ALL_TABLES else row for row in rows]
        side = "---" if head[-1] == "reason" else "---:"
        blocks += [
            f"### {title}" if title else "",
            _HELP.get(title, ""),
            markdown(head, bold, side),
        ]
    return [block for block in blocks if block]


def whole_sections(found: Sequence[Evaluation]) -> list[str]:
    """Return the blocks on every table with nothing fitted."""
    if not found:
        return []
    blocks = [
        "## Every table, nothing fitted",
        "The answers of physics and priors alone, on every comparable row of every table.",
    ]
    for predictor in (OURS, THUMB):
        parts = predictor_blocks(found[0], predictor)
        if predictor == THUMB:  # its reasons are the same, and its memory is not answered
            parts = parts[:3]
        blocks += [f"#{block}" if block.startswith("##") else block for block in parts]
    return blocks


def main() -> None:
    """Print the page."""
    cases = yaml.safe_load((BENCHMARKS / "accuracy.yaml").read_text(encoding="utf-8"))["cases"]
    kept = json.loads((BENCHMARKS / "results" / "accuracy.json").read_text(encoding="utf-8"))
    beside = BENCHMARKS / "results" / "new_source.json"
    new_source = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else None
    print(page(cases, kept, new_source), end="")


if __name__ == "__main__":
    main()
