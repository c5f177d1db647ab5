"""The rooms: every file has a caption, stays small, and speaks of the product only."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CAPTIONED = [
    path
    for folder in ("src", "tests", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "__init__.py" or folder == "src"
]

# Written in two halves, so that this file does not hold what it looks for.
LEAKS = re.compile("|".join((
    r"(?<![\w.])/(?:work|farm|root|home|tmp/bash_jobs)" + "/", "index" + "-url",
    "--reg" + "istry", r"file:///" + r"opt/", r"^(?:<{7}|>{7}) ",
)))  # fmt: skip


def name_of(path: Path) -> str:
    """Return a path as a person would write it from the root."""
    return path.relative_to(ROOT).as_posix()


def tracked_texts() -> list[Path]:
    """Return the text files that git tracks or would track; all files where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if ".venv" not in p.parts and p.is_file()]
    return [p for p in paths if p.is_file() and b"\0" not in p.read_bytes()[:4096]]


@pytest.mark.parametrize("path", CAPTIONED, ids=name_of)
def test_file_opens_with_a_caption_of_one_sentence(path: Path) -> None:
    caption = ast.get_docstring(ast.parse(path.read_text()))
    assert caption, f"{name_of(path)} has no docstring; write one sentence that says what it is"
    first = caption.split("\n\n")[0]
    assert first.endswith((".", "?")), f"{name_of(path)} opens with {first!r}, not a sentence"


def test_no_file_names_a_machine_or_a_package_host_or_holds_both_sides_of_a_merge() -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in tracked_texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if LEAKS.search(line)
    ]
    assert not found, "paths of one machine, package hosts or marks of a merge:\n" + "\n".join(
        found
    )


@pytest.mark.parametrize(
    "line",
    [
        "open('/wo" + "rk/x')",
        "pip --index" + "-url https://host",
        " /ho" + "me/me/x",
        "<" * 7 + " HEAD",
    ],
)
def test_the_search_for_leaks_finds_one(line: str) -> None:
    assert LEAKS.search(line)


@pytest.mark.parametrize("line", ["framework/torch", "network/latency", "examples/work/x"])
def test_the_search_for_leaks_lets_plain_words_pass(line: str) -> None:
    assert not LEAKS.search(line)


def test_each_public_class_has_a_name_of_its_own() -> None:
    trees = (ast.parse(path.read_text()) for path in SOURCES)
    names = [n.name for tree in trees for n in tree.body if isinstance(n, ast.ClassDef)]
    assert not {name for name in names if names.count(name) > 1 and name[0] != "_"}


def names_of(path: Path) -> set[str]:
    """Return what a module defines or imports, and the modules of a folder."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    found |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    found |= {n.asname or n.name for n in nodes if isinstance(n, ast.alias)}
    if path.name == "__init__.py":
        found |= {child.stem for child in path.parent.iterdir()}
    return found


# Heads of dotted names that are no module: fields and operations, and packages of others.
NO_MODULES = {
    "device", "forerun", "layer", "matmul", "ray", "shape", "split", "steps", "subprocess", "time",
}  # fmt: skip
DOTTED = re.compile(r"`(?:forerun\.)?([a-z_]+(?:\.\w+)+)(?:\([^`]*\))?`")
FILES = (".py", ".csv", ".json", ".jsonl", ".yaml", ".md")


def test_modules_and_names_that_texts_speak_of_exist() -> None:
    modules: dict[str, set[str]] = {}
    for path in SOURCES:
        own = path.parent.name if path.name == "__init__.py" else path.stem
        modules.setdefault(own, set()).update(names_of(path))
    stale = []
    for path in (*SOURCES, *sorted((ROOT / "benchmarks").glob("*.py"))):
        for text in DOTTED.findall(path.read_text()):
            head, *parts = text.split(".")
            if head in NO_MODULES or text.endswith(FILES):
                continue
            for name in parts:
                if name not in modules.get(head, ()):
                    stale.append(f"{name_of(path)}: {text}")
                if name not in modules:
                    break
                head = name
    assert not stale, "no such module or name: " + ", ".join(stale)
