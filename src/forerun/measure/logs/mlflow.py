"""MLflow: the runs of a tracking store, from its folder of files or its SQLite database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forerun.errors import RequestError
from forerun.measure.logs.keys import column_of
from forerun.measure.logs.opening import head_of, written_s
from forerun.measure.logs.series import Fact, Gathered, LogSeries, Point, add_points

_SQLITE = b"SQLite format 3\0"
_FINISHED = ("FINISHED", "3")
_DELETED = "deleted"  # a run's lifecycle_stage in MLflow's bin
_STATUSES = {"FAILED": "failed", "KILLED": "failed", "4": "failed", "5": "failed"}
# Parameters that mean one thing alone; a plain `batch_size` may be that of a device, so it is none.
_PARAMS = ("global_batch", "devices", "total_steps", "total_epochs", "steps_per_epoch")
_TEXTS = {"precision": "precision", "optimizer": "optimizer", "dataset": "dataset"}
_WHOLE = "copy the file while nothing writes to it, and name the copy"


def accepts(path: Path) -> bool:
    """Return whether a path is a store's folder, an experiment's or a run's, or its database."""
    if path.is_dir():
        return next(_run_folders(path), None) is not None
    if not path.is_file() or head_of(path)[:16] != _SQLITE:
        return False
    with _connected(path) as database:
        return {"runs", "metrics", "params"} <= _tables(database)


def read_mlflow(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return every run of a store that has metrics, deleted ones left out, in order of their start.

    Raises:
        RequestError: the store cannot be read, or none of its runs has a metric.
    """
    found = tuple(_folders(path) if path.is_dir() else _database(path))
    if not found:
        raise RequestError(
            f"reading {path}", "none of its runs has a metric (yet)",
            "wait until the job has logged some with mlflow.log_metric(..., step=...)",
        )  # fmt: skip
    return found


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield the folders of runs: those with metrics beside a meta.yaml."""
    for depth in ("metrics", "*/metrics", "*/*/metrics", "mlruns/*/*/metrics"):
        for metrics in sorted(path.glob(depth)):
            if metrics.is_dir() and (metrics.parent / "meta.yaml").is_file():
                yield metrics.parent


def _folders(path: Path) -> Iterator[LogSeries]:
    known = [(_meta(folder / "meta.yaml"), folder) for folder in _run_folders(path)]
    for meta, folder in sorted(known, key=lambda run: (_started(run[0]), str(run[1]))):
        if meta.get("lifecycle_stage") == _DELETED and folder.resolve() != path.resolve():
            continue
        files = [p for p in sorted((folder / "metrics").rglob("*")) if p.is_file()]
        points = [point for file in files for point in _points(file, folder / "metrics")]
        if not points:
            continue
        params = {p.name: _text(p) for p in sorted((folder / "params").glob("*")) if p.is_file()}
        yield _series(
            str(meta.get("run_name") or folder.name), str(folder), points, params,
            str(meta.get("status", "")), written_s(*files),
        )  # fmt: skip


def _started(meta: Mapping[str, Any]) -> float:
    started = meta.get("start_time")
    return float(started) if isinstance(started, int | float) else 0.0


def _meta(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(_text(path))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise RequestError(
            f"reading {path}", str(error.strerror), "let your user read it (ls -l shows who may)"
        ) from None


def _points(file: Path, metrics: Path) -> Iterator[Point]:
    """Yield the points of a metric's file: lines of `milliseconds value step`."""
    key = file.relative_to(metrics).as_posix()
    for line in _text(file).splitlines():
        words = line.split()
        try:
            step = int(words[2]) if len(words) > 2 else 0
            yield key, float(words[1]), float(words[0]) / 1000, step
        except (ValueError, IndexError):
            continue  # a line that is being written


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection that only reads, and never waits long for a writer."""
    try:
        # Opened for reading alone; a store in use keeps its log beside it, which SQLite reads too.
        database = sqlite3.connect(
            f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, timeout=5
        )
    except sqlite3.Error as error:
        raise RequestError(f"reading {path}", f"SQLite says: {error}", _WHOLE) from None
    try:
        yield database
    except sqlite3.Error as error:
        raise RequestError(
            f"reading {path}",
            f"SQLite says: {error}",
            _WHOLE,
        ) from None
    finally:
        database.close()


def _tables(database: sqlite3.Connection) -> set[str]:
    return {
        name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
    }


def _database(path: Path) -> Iterator[LogSeries]:
    with _connected(path) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
        kept = "WHERE lifecycle_stage != ?" if "lifecycle_stage" in columns else "WHERE ? != ''"
        runs = list(database.execute(
            f"SELECT run_uuid, name, status FROM runs {kept} ORDER BY start_time", (_DELETED,)
        ))  # fmt: skip
        for key, name, status in runs:
            rows = database.execute(
                "SELECT key, value, timestamp, step FROM metrics"
                " WHERE run_uuid = ? AND NOT is_nan ORDER BY timestamp", (key,)
            )  # fmt: skip
            points = [(str(k), float(v), float(t) / 1000, float(s)) for k, v, t, s in rows]
            params = dict(
                database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (key,))
            )
            if points:
                yield _series(
                    str(name or key), f"{path}#{key}", points, params, str(status), written_s(path)
                )


def _series(
    name: str, where: str, points: list[Point], params: Mapping[str, str], status: str,
    written: float,
) -> LogSeries:  # fmt: skip
    """Return a run's points joined by step."""
    gathered = Gathered()
    other = add_points([p for p in points if not p[0].startswith("system/")], gathered)
    ended = _STATUSES.get(status.strip(), "ok")
    notes = []
    if other:
        notes.append(f"logged by another count than steps, and left out: {', '.join(other)}")
    if status.strip() in _FINISHED:
        notes.append("MLflow says that the run has finished")
    return LogSeries(
        name=name, reader="mlflow", paths=(where,), columns=gathered.columns(),
        facts={**gathered.facts, **_facts(params)}, status=ended,
        reason="MLflow's status of the run" if ended != "ok" else "", absolute=True,
        resolution_s=0.001, written_s=written, notes=tuple(notes),
    )  # fmt: skip


def _facts(params: Mapping[str, str]) -> dict[str, Fact]:
    """Return the parameters that mean a column of the runs table and nothing else."""
    facts: dict[str, Fact] = {}
    for key, text in params.items():
        column = (column_of(key) or ("", 1.0))[0]
        if column in _PARAMS:
            with contextlib.suppress(ValueError):
                facts[column] = float(text)
        elif key in _TEXTS and text:
            facts[_TEXTS[key]] = text
    return facts
