"""Writing whole: whatever goes wrong, the old file or the new one is there, and no half of one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forerun.errors import RequestError
from forerun.tables import Table, read_table, write_table
from forerun.tables.files import write_whole

TABLE = Table.from_columns({"workload": ["a", "b"], "nodes": [1, 2]})


def half(name: str) -> None:
    """Write half a file and fail as code with a defect does."""
    Path(name).write_text("half")
    raise KeyError("a defect in the middle")


def test_a_writer_that_fails_midway_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(KeyError):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_midway_makes_no_new_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_whole(tmp_path / "out.csv", half)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    # The kernel refuses bytes beyond the limit in the middle of the file, as a full disk does.
    path = tmp_path / "out.csv"
    path.write_text("old")
    script = (
        "import resource, sys\n"
        "from forerun.errors import RequestError\n"
        "from forerun.tables import Table, write_table\n"
        "table = Table.from_columns({'note': ['x' * 100] * 10000})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    write_table(table, sys.argv[1])\n"
        "except RequestError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"writing {path}: File too large; free space or rights\n"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_no_space_left_is_said_in_words_and_the_device_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.symlink_to("/dev/full")
    with pytest.raises(RequestError, match="No space left on device; free space"):
        write_table(TABLE, path)
    assert path.is_symlink()
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only folder")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RequestError, match="choose a folder you may write"):
            write_table(TABLE, tmp_path / "out.csv")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_nobody_may_write_is_refused() -> None:
    folder = Path("/proc/self")
    if not folder.is_dir():
        pytest.skip("this system has no /proc")
    with pytest.raises(RequestError, match="choose a folder you may write"):
        write_table(TABLE, folder / "out.csv")


def test_a_missing_folder_and_a_folder_in_the_way_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no folder"):
        write_table(TABLE, tmp_path / "no" / "out.csv")
    with pytest.raises(RequestError, match="it is a folder; name a file"):
        write_table(TABLE, tmp_path)
    with pytest.raises(RequestError, match=r"writing .*x: .*name too long"):
        write_table(TABLE, tmp_path / ("x" * 300))


def test_text_that_is_not_unicode_is_refused_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(RequestError, match="not Unicode"):
        write_table(Table.from_columns({"note": ["\ud800"]}), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    listener.start()
    write_table(TABLE, pipe)
    assert pipe.is_fifo()
    listener.join(timeout=10)
    assert heard == ["workload,nodes\na,1\nb,2\n"]


def test_a_link_goes_on_pointing_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "out.csv"
    link.symlink_to(tmp_path / "far" / "real.csv")
    for _ in range(2):
        write_table(TABLE, link)
        assert link.is_symlink()
        assert len(read_table(tmp_path / "far" / "real.csv")) == 2


def test_a_replaced_file_keeps_its_rights_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    secret, fresh, plain = (tmp_path / name for name in ("secret.csv", "fresh.csv", "plain.csv"))
    secret.write_text("old")
    secret.chmod(0o600)
    plain.write_text("made by open()")
    write_table(TABLE, secret)
    write_table(TABLE, fresh)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert fresh.stat().st_mode == plain.stat().st_mode
