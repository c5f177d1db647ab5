"""Prints docs/frameworks.md: each framework, what it is called, what times it and which plans and devices it cannot run."""

from __future__ import annotations

from forerun.catalog.frameworks import frameworks

_HEAD = """\
# Frameworks

`--framework` (`framework=` in Python, the column `framework` of a table) says which software trains.
Its profile times the step; its table limits the plans and devices that a search looks at, and a stated plan
or cluster that it cannot run is refused with the reason; `device=tpu` means all generations of TPUs. A label means the first framework of which it holds a name; a
release may stand beside it. Rows of tables are never refused: `predicted_note` names the conflict. Where no framework is stated,
the search looks at every legal plan, and the answer covers the frameworks that people use. Stages of
ZeRO are those of its paper: 1 shards optimizer states, 2 gradients too, 3 everything (FSDP).

| framework | names | timed as | does not run |
|---|---|---|---|"""


def page() -> str:
    """Return the page's text."""
    lines = [_HEAD]
    for software in frameworks():
        reasons: dict[str, list[str]] = {}
        for feature, reason in software.cannot.items():
            reasons.setdefault(reason, []).append(f"`{feature}`")
        limits = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        names = ", ".join(software.words)
        lines.append(f"| {software.name} | {names} | {software.profile} | {limits} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
