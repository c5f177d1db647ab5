"""What the core takes on disk: `pip install .` into an empty environment, dependencies included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MB = 350.0


def megabytes(folder: Path) -> float:
    """Return the size of all files below a folder, links not followed, in 1e6 bytes."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return sum(p.stat().st_size for p in files) / 1e6


def main() -> int:
    """Print the sizes; return 1 where the core is larger than its limit."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "environment"
        venv.create(home, with_pip=True)
        empty = megabytes(home)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--no-cache-dir"]
        subprocess.run([*pip, str(ROOT)], check=True, stderr=subprocess.DEVNULL)
        full = megabytes(home)
    print(f"empty_environment_mb: {empty:.0f}")
    print(f"core_install_mb: {full - empty:.0f}")
    return int(full - empty > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
