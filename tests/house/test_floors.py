"""The floors: imports go down only, and heavy packages stay with the module that announces them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint_imports(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter in a folder, without its cache, and return what it said."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("contract", [c["id"] for c in CONFIG["contracts"]])
def test_every_import_keeps_the_contract(contract: str) -> None:
    done = lint_imports(ROOT, "--contract", contract)
    assert done.returncode == 0, done.stdout + done.stderr


def floors_of_toy(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Lint a toy package under this project's own contracts."""
    for name, text in files.items():
        path = folder / "forerun" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents:
            if parent.name:
                (folder / parent / "__init__.py").touch()
        path.write_text(text)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return lint_imports(folder)


def test_an_import_upward_breaks_the_floors(tmp_path: Path) -> None:
    done = floors_of_toy(
        tmp_path,
        {"search/space.py": "", "domain/job.py": "import forerun.search.space"},
    )
    assert done.returncode == 1
    assert "forerun.domain is not allowed to import forerun.search" in done.stdout


def test_siblings_that_import_one_another_break_the_floors(tmp_path: Path) -> None:
    done = floors_of_toy(
        tmp_path,
        {"workloads/zoo.py": "", "predictors/laws.py": "import forerun.workloads.zoo"},
    )
    assert done.returncode == 1
    assert "forerun.predictors is not allowed to import forerun.workloads" in done.stdout


def test_an_extra_outside_its_module_breaks_the_contract(tmp_path: Path) -> None:
    done = floors_of_toy(tmp_path, {"workloads/zoo.py": "def f():\n    import torch\n"})
    assert done.returncode == 1
    assert "forerun is not allowed to import torch" in done.stdout


def test_a_folder_without_a_floor_is_noticed(tmp_path: Path) -> None:
    done = floors_of_toy(tmp_path, {"domain/job.py": "", "attic/box.py": ""})
    assert done.returncode == 1
    assert "attic" in done.stdout
