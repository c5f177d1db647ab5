"""Demo on Ray: two models are measured on a Ray cluster of this machine, and unseen runs foreseen.

    make demo-ray          or: python examples/demo_ray.py [FOLDER]

Measures eight configurations through Ray Train, learns from them, foresees four that were not run, then runs
these too and draws both beside one another (FOLDER/demo-ray.svg). Three to five minutes on two cores.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

CAMPAIGN = """
name: {name}
runner: ray
workloads:
  small-cnn: {{entry: "examples.lab_models:cnn"}}
  small-mlp: {{entry: "examples.lab_models:mlp"}}
vary: {{workers: [1, 2], global_batch: {batches}, threads: 1}}
steps: {{warmup: 5, least: 20, most: 300, half_width: 3%, seconds: 8s}}
timeout: 3min
device: this-machine
"""
WIDTH, HEIGHT, MARGIN = 720, 420, 70


def say(*words: str | Path) -> None:
    """Print a forerun command, and carry it out."""
    text = [str(word) for word in words]
    print("\n$ forerun " + " ".join(text), flush=True)
    subprocess.run([sys.executable, "-m", "forerun", *text], check=True)


def rows(path: Path) -> list[dict[str, str]]:
    """Return a table's rows."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def main() -> None:
    """Measure, learn, foresee, measure again, compare."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-ray")
    folder.mkdir(exist_ok=True)
    for name, batches in (("seen", [16, 64]), ("unseen", [32])):
        (folder / f"{name}.yaml").write_text(CAMPAIGN.format(name=f"demo-{name}", batches=batches))
    store = folder / "runs.db"
    say("profile", folder / "seen.yaml", "--store", store, "--out", folder / "seen.csv")
    asked = [
        {"workload": model, "device": "this-machine", "devices": workers, "nodes": 1,
         "global_batch": 32, "framework": "pytorch", "precision": "fp32", "optimizer": "sgd"}
        for model in ("small-cnn", "small-mlp") for workers in (1, 2)
    ]  # fmt: skip
    jobs = folder / "jobs.csv"
    with jobs.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, asked[0])
        writer.writeheader()
        writer.writerows(asked)
    answers = folder / "foreseen.csv"
    answers.unlink(missing_ok=True)
    say("predict", "--table", jobs, "--fit", folder / "seen.csv", "--out", answers)
    print("\nforeseen; now the same jobs are run for real", flush=True)
    say("profile", folder / "unseen.yaml", "--store", store, "--out", folder / "unseen.csv")
    told = {key(row): row for row in rows(answers)}
    pairs = [
        (row, told[key(row)]) for row in rows(folder / "unseen.csv")
        if row["status"] == "ok" and told[key(row)]["predicted_step_time_s"]
    ]  # fmt: skip
    for row in told.values():
        if row["declined"]:
            print(f"declined {row['workload']} on {row['devices']}: {row['declined']}")
    show(pairs)
    picture = folder / "demo-ray.svg"
    picture.write_text(drawn(pairs))
    print(f"drawn    {picture}")


def key(row: dict[str, str]) -> tuple[str, float, float]:
    """Return what says which job a row is."""
    return row["workload"], float(row["devices"]), float(row["global_batch"])


def bars(row: dict[str, str]) -> tuple[float, float, float]:
    """Return low, middle and high of a forecast, seconds."""
    names = ("_p05_s", "_s", "_p95_s")
    low, middle, high = (float(row[f"predicted_step_time{name}"]) for name in names)
    return low, middle, high


def show(pairs: list[tuple[dict[str, str], dict[str, str]]]) -> None:
    """Print foreseen beside measured."""
    print(f"\n{'job':<24}{'foreseen':>12}{'5-95 %':>22}{'measured':>12}{'error':>9}")
    for run, told in pairs:
        low, middle, high = bars(told)
        step = float(run["step_time_s"])
        job = f"{run['workload']} on {run['devices']}, batch {run['global_batch']}"
        band = f"{1e3 * low:.1f} to {1e3 * high:.1f} ms"
        print(
            f"{job:<24}{1e3 * middle:>9.1f} ms{band:>22}{1e3 * step:>9.1f} ms{middle / step - 1:>+9.0%}"
        )


def drawn(pairs: list[tuple[dict[str, str], dict[str, str]]]) -> str:
    """Return a picture: each job's band and median, and what was measured, as SVG."""
    top = max(
        [bars(told)[2] for _, told in pairs] + [float(run["step_time_s"]) for run, _ in pairs]
    )
    step = (WIDTH - 2 * MARGIN) / max(len(pairs), 1)

    def y(seconds: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * seconds / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="30" font-size="15">Steps on Ray: foreseen with their 5-95 % bands '
        "(blue); measured afterwards (orange)</text>",
    ]  # fmt: skip
    for part in range(5):
        value = top * part / 4
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="#ddd"/><text x="{MARGIN - 8}" y="{y(value) + 4:.1f}" text-anchor="end">'
            f"{1e3 * value:.1f} ms</text>"
        )
    for i, (run, told) in enumerate(pairs):
        low, middle, high = bars(told)
        x, seen = MARGIN + step * (i + 0.5), float(run["step_time_s"])
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" stroke="#36c" '
            f'stroke-width="6" opacity="0.4"/><circle cx="{x:.1f}" cy="{y(middle):.1f}" r="5" fill="#36c"/>'
            f'<path d="M{x - 8:.1f} {y(seen):.1f}h16" stroke="#e70" stroke-width="3"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 20}" text-anchor="middle">{run["workload"]} on '
            f"{run['devices']}</text>"
        )
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    main()
