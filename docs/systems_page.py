"""Writes docs/systems/: a page for each published method, from its recipe, and a page that lists them."""

from __future__ import annotations

from pathlib import Path

from forerun import registry
from forerun.systems.recipe import System, page

FOLDER = Path(__file__).parent / "systems"


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    texts, rows = {}, []
    for entry in registry.entries("systems"):
        if entry.origin != "forerun":
            continue  # a guest's recipe has its page where the guest lives
        system: System = registry.load("systems", entry.name)
        texts[f"{entry.name}.md"] = page(system)
        rows.append(f"| [{entry.name}]({entry.name}.md) | {system.title} | {entry.help} |")
    head = (
        "# Systems\n\nPublished methods as recipes of this package's mechanisms. Each page is written "
        "from its recipe in `src/forerun/systems/` by `make docs`.\n\n| name | method | recipe |\n"
        "|---|---|---|\n"
    )
    return {**texts, "README.md": head + "\n".join(rows) + "\n"}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(f"wrote docs/systems/{name}")
