"""Headline jobs: what `forerun predict` says of published training jobs beside the hours that their reports state.

benchmarks/headline_jobs.yaml holds the jobs; the shipped constants answer. What came out goes to
benchmarks/results/headline_jobs.json; docs/jobs_page.py makes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from accuracy import commit_of_source

HERE = Path(__file__).parent
JOBS, RESULTS = HERE / "headline_jobs.yaml", HERE / "results" / "headline_jobs.json"
KEPT = ("step_seconds", "run_seconds", "wall_seconds", "distance", "fits")


def half_of(job: Mapping[str, Any]) -> str:
    """Return whether a job's figures were `known`, could be `seen`, or stayed `blind` while physics was made."""
    if job.get("known"):
        return "known"
    return "blind" if zlib.crc32(job["name"].encode()) % 2 else "seen"


def answered(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a job's command says. Raises RuntimeError where it fails."""
    words = shlex.split(job["command"])
    if job.get("spec"):
        (folder / words[1]).write_text(job["spec"], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *words, "--json"],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"forerun {job['command']}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return dict(json.loads(done.stdout))


def compared(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a job's forecast beside what its report states, a step's seconds or the wall's."""
    answer = answered(job, folder)
    devices = answer["cluster"]["devices"]
    if "step_seconds" in job:
        kind, seconds = "step_seconds", float(job["step_seconds"])
    elif "days" in job:
        kind, seconds = "wall_seconds", float(job["days"]) * 86400.0
    else:
        kind, seconds = "wall_seconds", float(job["device_hours"]) * 3600.0 / devices
    plan = {
        name: value for name, value in answer["plan"].items() if value not in (0, False, "none")
    }
    return {
        "name": job["name"], "half": half_of(job), "kind": kind, "published": seconds,
        "devices": devices, "device": answer["cluster"]["device"], "plan": plan,
        "forecast": {name: answer.get(name) for name in KEPT},
    }  # fmt: skip


def inside(one: Mapping[str, Any]) -> bool:
    """Whether what was published lies in the band."""
    band = one["forecast"][one["kind"]]
    return bool(band["p05"] <= one["published"] <= band["p95"])


def errors(found: list[dict[str, Any]]) -> list[float]:
    """Return how far each median lies off what was published, signed shares."""
    return [one["forecast"][one["kind"]]["p50"] / one["published"] - 1.0 for one in found]


def main() -> None:
    """Ask the jobs and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", action="append", help="known, seen or blind; nothing is kept")
    options = parser.parse_args()
    jobs = yaml.safe_load(JOBS.read_text(encoding="utf-8"))["jobs"]
    if options.half:
        jobs = [job for job in jobs if half_of(job) in options.half]
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs:
            one = compared(job, Path(scratch))
            found.append(one)
            band = one["forecast"][one["kind"]]
            width = band["p95"] / band["p05"]
            print(
                f"{one['name']:26} {one['half']:5} {one['published'] / 86400:8.2f} d {100 * errors([one])[0]:+6.0f} %"
                f" {'in ' if inside(one) else 'OUT'} {width:4.1f}x fits {one['forecast']['fits']:.2f} {one['plan']}",
                flush=True,
            )
    off = errors(found)
    print(
        f"median_abs_pct: {100 * statistics.median(map(abs, off)):.1f}, median_pct: {100 * statistics.median(off):+.1f},"
        f" inside {sum(map(inside, found))} of {len(found)}"
    )
    if options.half:
        return
    made = {
        "command": "python benchmarks/headline_jobs.py", "commit": commit_of_source(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    RESULTS.write_text(json.dumps({"made": made, "jobs": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
