"""Real logs: what torch's profiler and this package's own recorder write is read as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.measure.logs import eta_of, read_log, read_runs

LOGS = Path(__file__).resolve().parents[3] / "benchmarks" / "logs"


def test_a_profile_of_torch_is_divided_into_its_parts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.randn(640, 64), batch_size=64)
    path = tmp_path / "rank0.pt.trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
        acc_events=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:  # fmt: skip
        for inputs in data:
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    series = read_log(path)
    assert len(series) == 6
    parts = ("forward", "backward", "optimizer", "input")
    assert all(np.median(series.numbers(f"{name}_time_s")) > 0 for name in parts)
    assert not series.numbers("sync_time_s").any()
    row = read_runs(path).row(0)
    parts = ("input", "forward", "backward", "optimizer")
    assert sum(row[f"{p}_time_s"] for p in parts) <= row["step_time_s"] * 1.5
    assert "no communication is in the trace" in row["note"]


@pytest.mark.parametrize(
    "path", sorted(LOGS.glob("*/*.log")), ids=lambda p: f"{p.parent.name} {p.stem}"
)
def test_a_job_that_was_killed_and_slowed_is_told_so(path: Path) -> None:
    """The logs of benchmarks/eta_logs.py: how each job was treated is in its name."""
    eta = eta_of(read_log(path))
    assert eta.share == 1
    restarts = [gap for gap in eta.intervals.gaps if gap.restart]
    assert len(restarts) == {"resumed": 1, "resumed_and_slowed": 1, "resumed_twice": 2}.get(
        path.stem, 0
    )
    assert eta.away_seconds >= 6 * len(restarts), "each was left dead for six seconds"
    if path.stem == "slowed" and path.parent.name == "own":
        assert any("slower" in note for note in eta.notes)


def test_the_recorder_s_lines_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    rows = [
        f'{{"step": {i}, "time": {1.75e9 + i * 0.5}, "step_time_s": 0.5}}' for i in range(2, 80, 2)
    ]
    path.write_text("\n".join(rows) + "\n")
    from forerun.measure.logs import JobLength

    eta = eta_of(read_log(path), JobLength(steps=200))
    assert eta.remaining_seconds[1] == pytest.approx(122 * 0.5, rel=0.03)
