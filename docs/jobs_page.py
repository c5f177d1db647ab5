"""Prints docs/jobs.md from benchmarks/five_jobs.yaml, headline_jobs.yaml and the results that their scripts kept."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from forerun.units import format_bytes, format_dollars, format_probability, format_seconds

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
WIDTH, REACH = 61, 4.0  # columns of the picture, and how many times the measurement it reaches
QUANTILES = ("p05", "p50", "p95")
Found = Mapping[str, Any]

_INTRO = """\
Five real jobs that others measured and published, of different kinds, each asked with the command that a
user would type, and the answer beside the measurement.

* **Chosen by rule, before any forecast, and kept whatever came out**: of the rows of one table with a
  measured step, the middle one by the FLOPs of a step.
* **Answered without their table**: the constants are made as the shipped ones are, from every table of
  measured runs but the job's own, less rows of others that hold the same measurement. The shipped
  constants have seen these tables too, so the commands as they stand are not blind;
  with `--model` and the constants without the table they give what stands here.
* The band reaches from the 5 % to the 95 % quantile, so one job in ten should lie outside. *Distance* is
  how far the question lies from what was measured: 0 beside measured runs, 1 physics alone."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first stand to the right."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def error(forecast: Found, truth: float) -> str:
    """Return how far a median is off the truth, signed."""
    return f"{100.0 * (forecast['p50'] / truth - 1.0):+.1f} %"


def inside(forecast: Found, truth: float) -> bool:
    """Whether the truth lies in the band."""
    return bool(forecast["p05"] <= truth <= forecast["p95"])


def band(forecast: Found, truth: float) -> str:
    """Return a band as text around the measured time, which stands in the middle."""

    def column(seconds: float) -> int:
        share = 0.5 + 0.5 * math.log(seconds / truth) / math.log(REACH)
        return min(max(round(share * (WIDTH - 1)), 0), WIDTH - 1)

    low, middle, high = (column(forecast[q]) for q in QUANTILES)
    cells = [" "] * WIDTH
    cells[low : high + 1] = "-" * (high + 1 - low)
    cells[low], cells[high] = "[", "]"
    cells[(WIDTH - 1) // 2] = "|"
    cells[middle] = "#" if middle == (WIDTH - 1) // 2 else "o"
    return "".join(cells).rstrip()


def picture(names: Sequence[str], found: Sequence[Found]) -> str:
    """Return the five bands under one another, each over its own measured time."""
    wide = max(map(len, names))
    marks = {0: "1/4", 15: "1/2", 30: "1", 45: "2", 60: "4"}
    ruler = [" "] * (WIDTH + 4)
    for place, text in marks.items():
        start = max(place - len(text) // 2, 0)
        ruler[start : start + len(text)] = text
    lines = [f"{'':{wide}}  {''.join(ruler).rstrip()}  x measured step"]
    lines += [
        f"{name:{wide}}  {band(f['forecast']['step_seconds'], f['measured']['step_seconds'])}"
        for name, f in zip(names, found, strict=True)
    ]
    return "\n".join(["```", *lines, "", "| measured   [ ] 90 % band   o median   # both", "```"])


def summary(names: Sequence[str], found: Sequence[Found]) -> list[str]:
    """Return the table of all jobs and one sentence on it."""
    rows, hits = [], 0
    for name, one in zip(names, found, strict=True):
        step, truth = one["forecast"]["step_seconds"], one["measured"]["step_seconds"]
        hits += inside(step, truth)
        rows.append([
            name, format_seconds(truth), format_seconds(step["p50"]),
            f"{format_seconds(step['p05'])} to {format_seconds(step['p95'])}", error(step, truth),
            "yes" if inside(step, truth) else "**no**", f"{one['forecast']['distance']:.2f}",
        ])  # fmt: skip
    heads = ("job", "measured step", "forecast", "90 % band", "error", "inside", "distance")
    return [table(heads, rows), f"{hits} of {len(found)} measured steps lie inside their band."]


def command(text: str) -> str:
    """Return a command over several lines, one option each."""
    lines: list[str] = []
    for word in shlex.split(text):
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "```\n" + " \\\n    ".join(lines) + "\n```"


def figures(one: Found) -> str:
    """Return a job's figures, forecast and measured."""
    said, truth = one["forecast"], one["measured"]
    rows = [_row("step", said["step_seconds"], truth["step_seconds"], format_seconds)]
    rows.append(
        _row("peak memory of a device", said["peak_bytes"], truth["peak_bytes"], format_bytes)
    )
    if truth["run_seconds"]:
        rows.append(_row("whole run", said["run_seconds"], truth["run_seconds"], format_seconds))
    if said["dollars"] and said["dollars"].get("p50") is not None:
        rows.append(_row("cost on demand", said["dollars"], None, format_dollars))
    return table(("", "5 %", "median", "95 %", "measured", "error", "inside"), rows)


def _row(name: str, said: Found, truth: float | None, shown: Any) -> list[str]:
    cells = [name, *(shown(said[q]) for q in QUANTILES)]
    if truth is None:
        return [*cells, "not published", "", ""]
    return [*cells, shown(truth), error(said, truth), "yes" if inside(said, truth) else "**no**"]


def section(number: int, job: Found, one: Found) -> list[str]:
    """Return the blocks on one job."""
    said = one["forecast"]
    chosen = f"the middle of {one['candidates']} rows of {one['table']}"
    if one["where"]:
        chosen += f" ({' and '.join(one['where'])})"
    text = [f"Measured by: {one['ref']}; {chosen}."]
    if job.get("remark"):
        text.append(job["remark"].strip())
    means = f", {said['distance_means']}" if said["distance_means"] else ""
    taught = sum(one["teachers"].values())
    return [
        f"## {number}. {job['kind']}",
        " ".join(text),
        command(one["command"]),
        figures(one),
        f"It fits in memory with probability {format_probability(said['fits'])}. Distance"
        f" {said['distance']:.2f}{means}. Fitted to {taught:,} runs of {len(one['teachers'])} other"
        " tables.",
    ]


def page(jobs: Sequence[Found], kept: Found) -> str:
    """Return the page."""
    found, made = kept["jobs"], kept["made"]
    names = [job["short"] for job in jobs]
    blocks = ["# Five published jobs, forecast and measured", _INTRO]
    blocks += summary(names, found)
    blocks.append(picture(names, found))
    for number, (job, one) in enumerate(zip(jobs, found, strict=True), 1):
        blocks += section(number, job, one)
    blocks += [
        "## How these figures were made",
        f"`{made['command']}` in the folder of measured runs chose the jobs, fitted the constants (at most"
        f" {made['runs_each']} runs of a table, seed {made['seed']}; `--models FOLDER` keeps them), ran the"
        f" commands and kept their answers in `benchmarks/results/jobs.json` on {made['date']} at commit"
        f" {made['commit']}, in {made['seconds']:.0f} s; `python docs/jobs_page.py` makes this page.",
    ]
    return "\n\n".join(blocks) + "\n"


_HEADLINES = """\
## Published trainings: days

Trainings whose reports state days or device-hours, asked from what the reports say, with the shipped constants.
Published hours are divided by the devices. *Steps* is the time of optimizer steps alone, *lost* what failures,
restarts, checkpoints and evaluation add at published rates; both together are the wall time that is forecast.

* *known*: the job's figures were in view when the physics was made. Of the others the parity of the CRC-32 of
  their names, taken before any forecast, made two halves: *seen* could be looked at meanwhile; *blind* was first
  asked when the physics stood, and again after each later change. Three choices were made with its answers in view: that
  walls of small jobs are as uncertain as those of large ones, that one mixture of frameworks serves devices of all years, and
  that the band of lost time is that of one more report (decision 22).
* No constant of a step was fitted to them: these come from tables of measured steps. The share of slower phases in
  the wall time of large jobs comes from seven reports that state hours and the rate of steps, six of them here. It
  came after both halves were first asked, at a median error of 21 % (known and seen) and 32 % (blind), a bias of -15
  and -30 %, and 18 of 22 and 14 of 20 inside.
* Where a report leaves the plan open, the search chooses it: what the best plan takes, which a team may not have
  run. Of 59 published plans of seven tables the search's takes 11 % less, in the mean of the tables (decision 23);
  answers do not count that, since a plan takes as long whoever chose it."""


def off(one: Found) -> float:
    """Return how far a headline job's median lies off what was published, a signed share."""
    return float(one["forecast"][one["kind"]]["p50"] / one["published"] - 1.0)


def headline_summary(found: Sequence[Found]) -> str:
    """Return the scores of the halves of headline jobs as a table."""
    rows = []
    for half in ("known", "seen", "blind", "all"):
        some = [one for one in found if half in (one["half"], "all")]
        if not some:
            continue
        widths = [one["forecast"][one["kind"]] for one in some]
        rows.append([
            half, str(len(some)), f"{100 * statistics.median(abs(off(o)) for o in some):.1f} %",
            f"{100 * statistics.median(map(off, some)):+.1f} %",
            f"{sum(inside(o['forecast'][o['kind']], o['published']) for o in some)} of {len(some)}",
            f"{statistics.median(w['p95'] / w['p05'] for w in widths):.1f}x",
        ])  # fmt: skip
    return table(("half", "jobs", "median error", "bias", "inside", "width"), rows)


def headlines(jobs: Sequence[Found], kept: Found) -> list[str]:
    """Return the blocks on published trainings."""
    found, rows, notes = kept["jobs"], [], []
    for job, one in zip(jobs, found, strict=True):
        band, truth = one["forecast"][one["kind"]], one["published"]
        steps, wall = (one["forecast"][f"{name}_seconds"]["p50"] for name in ("run", "wall"))
        rows.append([
            job["name"], one["half"], f"{one['devices']:,} {one['device']}", format_seconds(truth),
            format_seconds(band["p50"]),
            f"{format_seconds(band['p05'])} to {format_seconds(band['p95'])}",
            f"{100 * off(one):+.0f} %", "yes" if inside(band, truth) else "**no**",
            format_seconds(steps), format_seconds(wall - steps),
        ])  # fmt: skip
        text = [f"* **{job['name']}**: {job['source']}."]
        text += [f"Assumed: {job['assumed']}."] if job.get("assumed") else []
        text += [f"Known: {job['known']}."] if job.get("known") else []
        notes.append(" ".join(text) + f"\n  `forerun {' '.join(job['command'].split())}`")
    heads = ("job", "half", "devices", "published", "forecast", "90 % band", "error", "inside",
             "steps", "lost")  # fmt: skip
    made = kept["made"]
    return [
        _HEADLINES, headline_summary(found), table(heads, rows), "\n".join(notes),
        f"`{made['command']}` asked them on {made['date']} at commit {made['commit']}; files named in a"
        " command stand in benchmarks/headline_jobs.yaml.",
    ]  # fmt: skip


def read(name: str, results: str) -> tuple[list[Found], Found]:
    """Return jobs as they were asked, and what was kept of them."""
    jobs = yaml.safe_load((BENCHMARKS / name).read_text(encoding="utf-8"))["jobs"]
    return jobs, json.loads((BENCHMARKS / "results" / results).read_text(encoding="utf-8"))


def main() -> None:
    """Print the page."""
    print(page(*read("five_jobs.yaml", "jobs.json")), end="")
    blocks = headlines(*read("headline_jobs.yaml", "headline_jobs.json"))
    print("\n" + "\n\n".join(blocks))


if __name__ == "__main__":
    main()
