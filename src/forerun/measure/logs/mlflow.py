"""MLflow: the runs of a tracking store, from its folder of files or its SQLite database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forerun.errors import RequestError
from forerun.measure.logs import series
from forerun.measure.logs.files import bytes_of, head_of, mapping_of, written_s

_SQLITE = b"SQLite format 3\0"
_DELETED = "deleted"  # a run's lifecycle_stage in MLflow's bin
# MLflow's RunStatus, by name in a database and by number in files; others are still running.
_FINISHED, _FAILED = ("FINISHED", "3"), ("FAILED", "KILLED", "4", "5")
# Parameters that mean one thing alone; a plain `batch_size` may be that of a device, so it is none.
_PARAMS = ("global_batch", "devices", "total_steps", "total_epochs", "steps_per_epoch")
_TEXTS = ("precision", "optimizer", "dataset")


def accepts(path: Path) -> bool:
    """Return whether a path is a store's folder, an experiment's or a run's, or its database."""
    if path.is_dir():
        return next(_run_folders(path), None) is not None
    if not path.is_file() or head_of(path)[:16] != _SQLITE:
        return False
    with _connected(path) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
    return {"runs", "metrics", "params"} <= {name for (name,) in tables}


def read(path: Path, pattern: str = "") -> tuple[series.LogSeries, ...]:
    """Return every run of a store that has metrics, in order of their start. Raises RequestError."""
    runs = _of_folder(path) if path.is_dir() else _of_database(path)
    found = tuple(filter(len, runs))
    if not found:
        todo = "wait until the job has logged some with mlflow.log_metric(..., step=...)"
        raise RequestError(f"reading {path}", "none of its runs has a metric (yet)", todo)
    return found


def _run_folders(path: Path) -> Iterator[Path]:
    for depth in ("metrics", "*/metrics", "*/*/metrics", "mlruns/*/*/metrics"):
        for metrics in sorted(path.glob(depth)):
            if metrics.is_dir() and (metrics.parent / "meta.yaml").is_file():
                yield metrics.parent


def _of_folder(path: Path) -> Iterator[series.LogSeries]:
    import yaml

    known = []
    for folder in _run_folders(path):
        meta: Mapping[str, Any] = {}
        with contextlib.suppress(yaml.YAMLError):
            meta = mapping_of(yaml.safe_load(_text(folder / "meta.yaml")))
        started = meta.get("start_time")
        known.append((started if isinstance(started, int) else 0, folder, meta))
    for _, folder, meta in sorted(known, key=lambda run: run[:2]):
        if meta.get("lifecycle_stage") == _DELETED and folder.resolve() != path.resolve():
            continue
        metrics, points = folder / "metrics", list[series.Scalar]()
        files = [p for p in sorted(metrics.rglob("*")) if p.is_file()]
        for file in files:
            for line in _text(file).splitlines():  # milliseconds, value, step
                with contextlib.suppress(ValueError):  # a line that is being written
                    time, value, *step = line.split()
                    point = float(value), float(time) / 1000, float(step[0]) if step else 0.0
                    points.append((file.relative_to(metrics).as_posix(), *point))
        params = {p.name: _text(p) for p in sorted((folder / "params").glob("*")) if p.is_file()}
        name, status = str(meta.get("run_name") or folder.name), str(meta.get("status", ""))
        yield _series(name, str(folder), points, params, status, written_s(*files))


def _text(path: Path) -> str:
    return bytes_of(path).decode("utf-8", errors="replace").strip()


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5)) as database:
            yield database
    except sqlite3.Error as error:
        todo = "copy the file while nothing writes to it, and name the copy"
        raise RequestError(f"reading {path}", f"SQLite says: {error}", todo) from None


def _of_database(path: Path) -> Iterator[series.LogSeries]:
    with _connected(path) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
        kept = "WHERE lifecycle_stage != ?" if "lifecycle_stage" in columns else "WHERE ? != ''"
        query = f"SELECT run_uuid, name, status FROM runs {kept} ORDER BY start_time"
        for key, name, status in database.execute(query, (_DELETED,)).fetchall():
            rows = database.execute(
                "SELECT key, value, timestamp, step FROM metrics"
                " WHERE run_uuid = ? AND NOT is_nan ORDER BY timestamp", (key,)
            )  # fmt: skip
            points = [(str(k), float(v), float(t) / 1000, float(s)) for k, v, t, s in rows]
            found = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (key,))
            title, where, written = str(name or key), f"{path}#{key}", written_s(path)
            yield _series(title, where, points, dict(found), str(status), written)


def _series(
    name: str, where: str, points: list[series.Scalar], params: Mapping[str, str], status: str,
    written: float,
) -> series.LogSeries:  # fmt: skip
    gathered = series.SeriesBuilder()
    notes = series.add_scalars([p for p in points if not p[0].startswith("system/")], gathered)
    if status.strip() in _FINISHED:
        notes.append("MLflow says that the run has finished")
    facts: dict[str, series.Fact] = {}
    for key, text in params.items():
        column = (series.column_of(key) or ("", 1.0))[0]
        if column in _PARAMS:
            with contextlib.suppress(ValueError):
                facts[column] = float(text)
        elif key in _TEXTS and text:
            facts[key] = text
    failed = status.strip() in _FAILED
    return series.LogSeries(
        name=name, reader="mlflow", paths=(where,), columns=gathered.columns(),
        facts={**gathered.facts, **facts}, status="failed" if failed else "ok",
        reason="MLflow's status of the run" if failed else "", absolute=True,
        resolution_s=0.001, written_s=written, notes=tuple(notes),
    )  # fmt: skip
